//! The highest rate that a receiver takes without loss, or with little: a binary search in the manner of
//! MLRsearch (draft-ietf-bmwg-mlrsearch): short trials narrow the rate down, a longer one confirms it.

use std::time::Duration;

use anyhow::Result;

/// Width of the interval at which a search ends, as a share of the rate.
const WIDTH: f64 = 0.005;
/// How often a rate that short trials gave is tried for longer before the search gives up on confirming.
const MOST_CONFIRMATIONS: u32 = 4;
/// How often a trial in which the generator fell short is repeated before the rate counts as out of reach.
const REPEATS: u32 = 1;

/// What one trial at a rate showed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Loss was at most the goal.
    Held,
    /// Loss was more than the goal.
    Lost,
    /// The generator did not hold the rate: says nothing about the receiver.
    Invalid,
}

/// How long trials last.
#[derive(Clone, Copy, Debug)]
pub struct Durations {
    /// Of the search.
    pub short: Duration,
    /// Of the confirmation.
    pub long: Duration,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The highest rate that held, in packets per second; 0 where none did.
    pub rate: f64,
    /// Whether a longer trial confirmed it.
    pub confirmed: bool,
    /// Whether the generator could not go higher: the receiver may take more than `rate`.
    pub generator_limited: bool,
    /// Trials that were not counted, as the generator fell short.
    pub invalid: u32,
}

/// Searches between `low` and `high`, both in packets per second, by calling `trial` with a rate and a duration.
///
/// # Errors
/// Those of `trial`.
pub fn search(
    low: f64,
    high: f64,
    durations: Durations,
    mut trial: impl FnMut(f64, Duration) -> Result<Verdict>,
) -> Result<Found> {
    let mut invalid = 0;
    let mut attempt = |rate: f64, duration: Duration| -> Result<Verdict> {
        for _ in 0..=REPEATS {
            match trial(rate, duration)? {
                Verdict::Invalid => invalid += 1,
                verdict => return Ok(verdict),
            }
        }
        Ok(Verdict::Invalid)
    };
    let (mut low, mut high) = (low, high);
    let (mut held, mut confirmed, mut limited_at) = (0.0, false, f64::INFINITY);
    // What is taken for the lower end has to hold as well.
    for _ in 0..6 {
        match attempt(low, durations.short)? {
            Verdict::Held => {
                held = low;
                break;
            }
            Verdict::Lost => high = low,
            Verdict::Invalid => limited_at = low,
        }
        low /= 2.0;
    }
    if held > 0.0 {
        for _ in 0..MOST_CONFIRMATIONS {
            while high - held > WIDTH * high {
                let rate = f64::midpoint(held, high);
                match attempt(rate, durations.short)? {
                    Verdict::Held => held = rate,
                    Verdict::Lost => high = rate,
                    Verdict::Invalid => (high, limited_at) = (rate, rate),
                }
            }
            if attempt(held, durations.long)? == Verdict::Held {
                confirmed = true;
                break;
            }
            // A longer trial meets rarer disturbances: somewhat lower, by steps that grow the interval again.
            (high, held) = (held, held * 0.9);
        }
    }
    Ok(Found { rate: held, confirmed, generator_limited: limited_at <= high, invalid })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: Durations =
        Durations { short: Duration::from_millis(1), long: Duration::from_millis(10) };

    fn receiver(capacity: f64) -> impl FnMut(f64, Duration) -> Result<Verdict> {
        move |rate, _| Ok(if rate <= capacity { Verdict::Held } else { Verdict::Lost })
    }

    #[test]
    fn finds_the_capacity_to_half_a_percent() {
        for capacity in [150.0, 1000.0, 1999.0] {
            let found = search(500.0, 2000.0, DURATIONS, receiver(capacity)).unwrap();
            assert!(found.confirmed && !found.generator_limited, "{found:?}");
            assert!(found.rate <= capacity && found.rate > capacity * 0.994, "{capacity}: {found:?}");
        }
    }

    #[test]
    fn a_generator_that_falls_short_limits_and_is_not_counted_as_loss() {
        let found = search(500.0, 2000.0, DURATIONS, |rate, _| {
            Ok(if rate > 1200.0 { Verdict::Invalid } else { Verdict::Held })
        })
        .unwrap();
        assert!(found.generator_limited && found.confirmed && found.invalid > 0, "{found:?}");
        assert!(found.rate <= 1200.0 && found.rate > 1190.0, "{found:?}");
    }

    #[test]
    fn what_only_short_trials_hold_is_lowered_until_a_long_one_does() {
        let found = search(500.0, 2000.0, DURATIONS, |rate, duration| {
            let capacity = if duration == DURATIONS.long { 900.0 } else { 1000.0 };
            Ok(if rate <= capacity { Verdict::Held } else { Verdict::Lost })
        })
        .unwrap();
        assert!(!found.confirmed || found.rate <= 900.0, "{found:?}");
    }

    #[test]
    fn a_receiver_that_loses_at_any_rate_has_none() {
        let found = search(500.0, 2000.0, DURATIONS, |_, _| Ok(Verdict::Lost)).unwrap();
        assert_eq!((found.rate, found.confirmed), (0.0, false));
    }
}
