//! Flow probes side by side on the same packets: both caches of `wirelane flows`, softflowd, nfpcapd, pmacctd, and XDP_DROP as
//! the limit. Traffic is live frames of 60 bytes and 4096 flows.
//!
//! First all of them take what they can while the generator runs as fast as it can, each once in every round. Then the highest
//! rates without loss are searched for, in rounds too. At last the kernel's cache runs at the best rate of the best peer, for what is left to do in user
//! space.
//!
//! Rates are of packets that are in flows by whoever's own count ([`crate::probes`]); of ours, where flows lack a packet, the trial
//! fails.

mod report;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::bed::{Bed, Cores, Setup};
use crate::options::{Options, USUAL_MTU};
use crate::receiver::{PROBES, Receiver, USUAL};
use crate::run::is_installed;
use crate::search::{Length, Outcome, search};
use crate::summary::{LossFree, Spread};
use crate::trial::{self, Load, Method, Tools, Trial};

pub use report::{csv, page};

/// The traffic: the generator makes 4096 flows where nothing else is said.
const LOAD: Load = Load { method: Method::Kernel, size: 60 };
/// Goals of the searches, the most lenient first.
const GOALS: [f64; 2] = [0.005, 0.0];
/// Seconds of a short trial, and of one that confirms.
const SHORT: f64 = 0.25;
const LONG: f64 = 0.9;
/// Trials after which a search for one goal ends.
const MOST_TRIALS: usize = 24;
const QUICK_TRIALS: usize = 12;
/// Rounds of searches.
const SEARCHES: usize = 3;
/// How often a trial is tried that something else than the receiver decides.
const TRIES: usize = 3;
/// Trials at the peer's best rate, and seconds of each: parts of flows come up every two seconds.
const AT_BEST: usize = 3;
const AT_BEST_SECONDS: f64 = 5.0;

/// What was measured.
#[derive(Debug, Default)]
pub struct Rates {
    /// Trials at full speed, each with its round.
    pub trials: Vec<(usize, Trial)>,
    /// Trials of the searches, the same way.
    pub search_trials: Vec<(usize, Trial)>,
    /// What the searches found, each with its round.
    pub found: Vec<(usize, LossFree)>,
    /// The kernel's cache at the rate of the best peer.
    pub at_peers_best: Vec<AtBest>,
    /// What is not installed.
    pub left_out: Vec<String>,
    /// What could not be measured, whether it is ours, and why.
    pub failed: Vec<(bool, String)>,
}

/// The kernel's cache at the rate of the best peer.
#[derive(Clone, Debug, Serialize)]
pub struct AtBest {
    /// Who works where.
    pub setup: Setup,
    /// The peer.
    pub peer: Receiver,
    /// Its highest rate without loss, or with 0.5 % where it has none, in packets per second: the median of the rounds.
    pub rate: f64,
    /// The trials.
    pub trials: Vec<Trial>,
}

impl Rates {
    /// The rates that searches found for a goal, over the rounds.
    pub fn searched(&self, setup: Setup, receiver: Receiver, goal: f64) -> Option<Spread> {
        let of = |(_, one): &&(usize, LossFree)| {
            (one.setup, one.receiver) == (setup, receiver) && one.found.goal == goal
        };
        Spread::of(self.found.iter().filter(of).filter_map(|(_, one)| one.found.rate).collect())
    }

    /// The best peer by what searches found, and its rate: without loss where there is such a rate.
    fn best_peer(&self, setup: Setup) -> Option<(Receiver, f64)> {
        let rate = |peer: Receiver| {
            let found = self.searched(setup, peer, 0.0).or_else(|| self.searched(setup, peer, GOALS[0]))?;
            Some((peer, found.median))
        };
        let peers = PROBES.into_iter().filter(|one| one.is_probe()).filter_map(rate);
        peers.max_by(|one, other| one.1.total_cmp(&other.1))
    }
}

/// Measures everything; what there is when `check` ends it stays in `rates`.
///
/// # Errors
/// Where a bed cannot be made, and that of `check`.
pub fn measure(
    options: &Options,
    tools: &Tools,
    check: &dyn Fn() -> Result<()>,
    say: &dyn Fn(&str),
    rates: &mut Rates,
) -> Result<()> {
    let mut receivers = Vec::new();
    // Other parts' receivers make no flows.
    let chosen = |one: &Receiver| options.receivers == USUAL || options.receivers.contains(one);
    for receiver in PROBES.into_iter().filter(chosen) {
        match receiver.needs() {
            Some((program, package)) if !is_installed(program) => {
                let text = format!(
                    "{} ({program} is not installed; Debian: apt install {package})",
                    receiver.label()
                );
                say(&format!("left out: {text}"));
                rates.left_out.push(text);
            }
            _ => receivers.push(receiver),
        }
    }
    let mut runner = Runner { options, tools, check, say, receivers, rates };
    for round in 0..options.rounds {
        for setup in &options.setups {
            runner.full_speed(round, *setup)?;
        }
    }
    for round in 0..if options.rounds < SEARCHES { 1 } else { SEARCHES } {
        for setup in &options.setups {
            runner.searches(round, *setup)?;
        }
    }
    for setup in &options.setups {
        runner.at_peers_best(*setup)?;
    }
    Ok(())
}

struct Runner<'a> {
    options: &'a Options,
    tools: &'a Tools,
    check: &'a dyn Fn() -> Result<()>,
    say: &'a dyn Fn(&str),
    receivers: Vec<Receiver>,
    rates: &'a mut Rates,
}

impl Runner<'_> {
    fn bed(&self, setup: Setup) -> Result<Bed> {
        let [generator, receiver] = self.options.cores[..] else { bail!("--cores: give two") };
        Bed::new(setup, USUAL_MTU, Cores { generator, receiver, nice: self.options.nice })
    }

    /// Each beginning with another one.
    fn in_turn(&self, round: usize) -> Vec<Receiver> {
        let count = self.receivers.len();
        (0..count).map(|position| self.receivers[(position + round) % count]).collect()
    }

    /// What cannot be measured is named in the results; after a signal, the run ends.
    fn failed(&mut self, receiver: Receiver, setup: Setup, error: &anyhow::Error) -> Result<()> {
        (self.check)()?;
        let message = format!("{}, setup {}: {error:#}", receiver.label(), setup.name());
        (self.say)(&format!("failed: {message}"));
        self.rates.failed.push((receiver.is_ours(), message));
        Ok(())
    }

    fn full_speed(&mut self, round: usize, setup: Setup) -> Result<()> {
        (self.say)(&format!("flows: round {} of {}: setup {}", round + 1, self.options.rounds, setup.name()));
        let mut bed = self.bed(setup)?;
        for receiver in self.in_turn(round) {
            for _ in 0..TRIES {
                (self.check)()?;
                match trial::run(&mut bed, self.tools, setup, receiver, LOAD, None, self.options.seconds) {
                    Ok(trial) => {
                        let counts = trial.invalid.is_none() || self.options.disturbed;
                        self.rates.trials.push((round, trial));
                        if counts {
                            break;
                        }
                    }
                    Err(error) => {
                        self.failed(receiver, setup, &error)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn searches(&mut self, round: usize, setup: Setup) -> Result<()> {
        // Where there is little time, that of the limit is left out.
        let is_searched = |receiver: &Receiver| !self.options.quick || *receiver != Receiver::Drop;
        let receivers: Vec<Receiver> = self.in_turn(round).into_iter().filter(is_searched).collect();
        for receiver in receivers {
            (self.say)(&format!("flows: loss-free rate: setup {}, {}", setup.name(), receiver.label()));
            let mut bed = self.bed(setup)?;
            if let Err(error) = self.search(&mut bed, round, setup, receiver) {
                self.failed(receiver, setup, &error)?;
            }
        }
        Ok(())
    }

    fn search(&mut self, bed: &mut Bed, round: usize, setup: Setup, receiver: Receiver) -> Result<()> {
        // What it took at full speed is near.
        let of = |(_, trial): &&(usize, Trial)| (trial.setup, trial.receiver) == (setup, receiver);
        let start = self.rates.trials.iter().filter(of).map(|(_, trial)| trial.received_pps());
        let start = start.max_by(f64::total_cmp).unwrap_or(5e5);
        let most = if self.options.quick { QUICK_TRIALS } else { MOST_TRIALS };
        let found = search(start, &GOALS, most, &mut |rate, length| {
            (self.check)()?;
            let seconds = if length == Length::Long { LONG } else { SHORT };
            let trial = trial::run(bed, self.tools, setup, receiver, LOAD, Some(rate), seconds)?;
            let loss = trial.loss().max(0.0);
            let outcome = match trial.invalid {
                Some(trial::NOT_REACHED) => Outcome::Invalid,
                Some(_) if loss > 0.0 && !self.options.disturbed => Outcome::Disturbed(loss),
                _ => Outcome::Loss(loss),
            };
            self.rates.search_trials.push((round, trial));
            Ok(outcome)
        })?;
        let of = |found| (round, LossFree { setup, load: LOAD, receiver, found, overload: None });
        self.rates.found.extend(found.into_iter().map(of));
        Ok(())
    }

    fn at_peers_best(&mut self, setup: Setup) -> Result<()> {
        let ours = Receiver::FlowsKernel;
        let Some((peer, rate)) = self.rates.best_peer(setup) else { return Ok(()) };
        if !self.receivers.contains(&ours) {
            return Ok(());
        }
        (self.say)(&format!(
            "flows: {} at the rate of {}, setup {}",
            ours.label(),
            peer.label(),
            setup.name()
        ));
        let mut bed = self.bed(setup)?;
        let mut trials = Vec::new();
        for _ in 0..AT_BEST {
            (self.check)()?;
            match trial::run(&mut bed, self.tools, setup, ours, LOAD, Some(rate), AT_BEST_SECONDS) {
                Ok(trial) => trials.push(trial),
                Err(error) => self.failed(ours, setup, &error)?,
            }
        }
        self.rates.at_peers_best.push(AtBest { setup, peer, rate, trials });
        Ok(())
    }
}
