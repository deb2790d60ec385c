//! Search for the highest rate that a receiver captures within an allowed loss, as in MLRsearch
//! (draft-ietf-bmwg-mlrsearch): bisection between a rate that passed and one that did not, with short trials, until the
//! two are 0.5 % apart; then the one that passed must pass a longer trial. Results for one goal are reused for the
//! next.
//!
//! A trial in which the generator was too slow has no result about the receiver and is repeated; if that happens
//! repeatedly, the generator is the bound, and the result says so. A trial with loss during which other programs used
//! the cores is repeated, too.
//!
//! A rate passes if two of three trials pass (MLRsearch's exceed ratio of 0.5): otherwise a single stall of the machine
//! in a hundred trials would determine the result.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Maximum distance of a rate that passed and one that did not, relative to the rate.
const WIDTH: f64 = 0.005;

/// Maximum number of attempts of a trial while the generator is too slow.
const TRIES: usize = 2;

/// Number of trials with equal results that decide whether a rate passes.
const AGREE: usize = 2;

/// Lowest rate of a search, in packets per second.
const LOWEST: f64 = 2000.0;

/// Outcome of one trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// This fraction of the packets was lost.
    Loss(f64),
    /// The same, but other causes than the receiver are possible.
    Disturbed(f64),
    /// The generator did not reach the rate.
    Invalid,
}

/// Short trials narrow the search, long ones confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// As long as a throughput trial, or shorter.
    Short,
    /// Several times longer.
    Long,
}

/// Result of a search for one goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Maximum allowed loss, as a fraction.
    pub goal: f64,
    /// Highest rate that passed long trials, or any trials if the search ran out of them, in packets per second;
    /// `None`: not even the lowest rate passed.
    pub rate: Option<f64>,
    /// Reason why it is not higher.
    pub bound: Bound,
    /// Valid trials, and invalid ones because of the generator.
    pub trials: usize,
    /// See `trials`.
    pub invalid: usize,
}

/// Reason why a rate is not higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// The receiver lost more than allowed.
    #[default]
    Loss,
    /// The generator could not go faster.
    Generator,
    /// The search ran out of trials.
    Trials,
}

struct Search<'a> {
    measure: &'a mut dyn FnMut(f64, Length) -> Result<Outcome>,
    /// Short trials so far: rate and loss; the loss is infinite if the generator was too slow.
    known: Vec<(f64, f64)>,
    trials: usize,
    invalid: usize,
    most: usize,
}

/// Searches for each goal in turn, the most lenient first, starting at a rate that is expected to be close. Each search
/// ends after `most` trials, because a receiver with erratic behaviour has no rate to find.
pub fn search(
    start: f64,
    goals: &[f64],
    most: usize,
    measure: &mut dyn FnMut(f64, Length) -> Result<Outcome>,
) -> Result<Vec<Found>> {
    let mut search = Search { measure, known: Vec::new(), trials: 0, invalid: 0, most };
    goals.iter().map(|goal| search.goal(*goal, start.max(LOWEST))).collect()
}

impl Search<'_> {
    /// Loss at this rate by the majority of trials; infinite if the generator cannot reach the rate.
    fn loss(&mut self, rate: f64, length: Length, goal: f64) -> Result<f64> {
        let (mut passed, mut failed) = (Vec::new(), Vec::new());
        loop {
            let loss = self.once(rate, length)?;
            let side = if loss <= goal { &mut passed } else { &mut failed };
            side.push(loss);
            // If the generator cannot reach the rate, further trials are useless.
            if side.len() >= AGREE || loss.is_infinite() {
                let typical = side.iter().copied().fold(f64::INFINITY, f64::min);
                self.known.push((rate, typical));
                return Ok(typical);
            }
        }
    }

    /// Loss in one valid trial.
    fn once(&mut self, rate: f64, length: Length) -> Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..TRIES {
            match (self.measure)(rate, length)? {
                Outcome::Loss(loss) => {
                    self.trials += 1;
                    least = loss;
                    break;
                }
                // On a machine that is always disturbed, the best of the attempts counts.
                Outcome::Disturbed(loss) => {
                    self.invalid += 1;
                    least = least.min(loss);
                }
                Outcome::Invalid => self.invalid += 1,
            }
        }
        Ok(least)
    }

    fn goal(&mut self, goal: f64, start: f64) -> Result<Found> {
        (self.trials, self.invalid) = (0, 0);
        // Known from earlier goals: the lowest rate that fails, and the highest below it that passes.
        let fails = |known: &&(f64, f64)| known.1 > goal;
        let mut above = self.known.iter().filter(fails).copied().min_by(|a, b| a.0.total_cmp(&b.0));
        let limit = above.map_or(f64::INFINITY, |(rate, _)| rate);
        let passes = |known: &&(f64, f64)| known.1 <= goal && known.0 < limit;
        let mut below = self.known.iter().filter(passes).map(|known| known.0).max_by(f64::total_cmp);

        let mut length = Length::Short;
        let mut step = WIDTH;
        while self.trials + self.invalid < self.most {
            let rate = match (below, above) {
                (None, None) => start,
                (Some(below), None) => below * 1.25,
                (None, Some((above, _))) if length == Length::Short => above / 2.0,
                // A long trial failed at a rate that short ones passed: decrease it in growing steps.
                (None, Some((above, _))) => {
                    step *= 2.0;
                    above * (1.0 - step.min(0.5))
                }
                (Some(below), Some((above, _))) if above / below > 1.0 + WIDTH => (below * above).sqrt(),
                (Some(rate), Some((_, loss))) => {
                    let bound = if loss.is_infinite() { Bound::Generator } else { Bound::Loss };
                    // From here on, only long trials set `below`.
                    let confirmed = length == Length::Long || {
                        length = Length::Long;
                        let loss = self.loss(rate, length, goal)?;
                        (above, below) = (Some((rate, loss)), None);
                        loss <= goal
                    };
                    if confirmed {
                        return Ok(self.found(goal, Some(rate), bound));
                    }
                    continue;
                }
            };
            if rate < LOWEST {
                return Ok(self.found(goal, None, Bound::Loss));
            }
            let loss = self.loss(rate, length, goal)?;
            if loss <= goal {
                below = Some(rate);
            } else {
                above = Some((rate, loss));
            }
        }
        Ok(self.found(goal, below, Bound::Trials))
    }

    fn found(&self, goal: f64, rate: Option<f64>, bound: Bound) -> Found {
        Found { goal, rate, bound, trials: self.trials, invalid: self.invalid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 40;

    /// Searches with a receiver that processes `capacity` packets per second and loses the rest; the generator reaches
    /// `most`.
    fn run(capacity: f64, most: f64, start: f64) -> Vec<Found> {
        search(start, &[0.005, 0.0], MOST, &mut |rate, _| {
            Ok(if rate > most { Outcome::Invalid } else { Outcome::Loss((1.0 - capacity / rate).max(0.0)) })
        })
        .unwrap()
    }

    fn near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|rate| rate <= expected * 1.0001 && rate >= expected * (1.0 - 1.1 * WIDTH))
    }

    #[test]
    fn a_receivers_capacity_is_found_from_above_and_below() {
        for start in [100e3, 777e3, 1e6, 5e6] {
            let found = run(777e3, f64::INFINITY, start);
            assert!(near(found[0].rate, 777e3 / 0.995), "{start}: {found:?}");
            assert!(near(found[1].rate, 777e3), "{start}: {found:?}");
            assert!(found.iter().all(|found| found.bound == Bound::Loss && found.trials < 50), "{found:?}");
        }
    }

    #[test]
    fn a_generator_that_falls_short_is_named() {
        let found = run(5e6, 1e6, 2e6);
        assert!(near(found[0].rate, 1e6), "{found:?}");
        assert_eq!(found[0].bound, Bound::Generator);
        assert!(found[0].invalid >= TRIES);
    }

    #[test]
    fn a_stalled_generator_now_and_then_changes_nothing() {
        let mut calls = 0;
        let found = search(1e6, &[0.0], MOST, &mut |rate, _| {
            calls += 1;
            Ok(if calls % 3 == 0 { Outcome::Invalid } else { Outcome::Loss((1.0 - 777e3 / rate).max(0.0)) })
        })
        .unwrap();
        assert!(near(found[0].rate, 777e3), "{found:?}");
        assert_eq!(found[0].bound, Bound::Loss);
    }

    #[test]
    fn a_disturbed_trial_is_tried_again() {
        let mut calls = 0;
        let found = search(1e6, &[0.0], MOST, &mut |rate, _| {
            calls += 1;
            let disturbed = calls % 4 == 0;
            let loss = (1.0_f64 - 777e3 / rate).max(0.0);
            Ok(if disturbed { Outcome::Disturbed(loss.max(0.1)) } else { Outcome::Loss(loss) })
        })
        .unwrap();
        assert!(near(found[0].rate, 777e3) && found[0].invalid > 0, "{found:?}");
        assert_eq!(found[0].bound, Bound::Loss);
    }

    #[test]
    fn one_bad_trial_now_and_then_does_not_decide() {
        let mut calls = 0;
        let found = search(1e6, &[0.0], MOST, &mut |rate, _| {
            calls += 1;
            let stall = if calls % 5 == 0 { 0.01 } else { 0.0 };
            Ok(Outcome::Loss((1.0_f64 - 777e3 / rate).max(stall)))
        })
        .unwrap();
        assert!(near(found[0].rate, 777e3), "{found:?}");
    }

    #[test]
    fn a_rate_that_only_holds_for_short_trials_is_not_believed() {
        let found = search(1e6, &[0.0], MOST, &mut |rate, length| {
            let capacity = if length == Length::Short { 900e3 } else { 800e3 };
            Ok(Outcome::Loss((1.0_f64 - capacity / rate).max(0.0)))
        })
        .unwrap();
        assert!(near(found[0].rate, 800e3), "{found:?}");
    }

    #[test]
    fn a_receiver_that_always_loses_has_no_rate() {
        let found = search(1e6, &[0.005, 0.0], MOST, &mut |_, _| Ok(Outcome::Loss(0.1))).unwrap();
        assert!(found.iter().all(|found| found.rate.is_none() && found.bound == Bound::Loss), "{found:?}");
    }

    #[test]
    fn searches_end() {
        let mut calls = 0_usize;
        let found = search(1e6, &[0.0], MOST, &mut |_, length| {
            calls += 1;
            // Passes every short trial and fails every long one.
            Ok(Outcome::Loss(if length == Length::Short { 0.0 } else { 0.5 }))
        })
        .unwrap();
        // There is no bound and no confirmation, which the result reports.
        assert_eq!(found[0].bound, Bound::Trials);
        assert!(calls <= MOST + 3 * TRIES, "{calls}");
    }
}
