//! The whole measurement, interleaved: each round has every setup and load, and within these every receiver once,
//! beginning with another one each time, so that what changes on the machine meanwhile hits all alike.

use std::io::{Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::bed::{Bed, Cores, Setup};
use crate::cost::{self, Cost};
use crate::flow_caches;
use crate::flow_rates::{self, Rates};
use crate::http;
use crate::libpcap::{self, Compared};
use crate::options::{Options, Part, USUAL_MTU};
use crate::overload;
use crate::patterns::{self, Searched};
use crate::receiver::Receiver;
use crate::search::{Bound, Length, Outcome, search};
use crate::stored;
use crate::study::run::{self as study, Studied};
use crate::summary::LossFree;
use crate::trial::{self, Load, Tools, Trial};
use crate::voip;

/// The goals of the search for loss-free rates, the most lenient first.
const GOALS: [f64; 2] = [0.005, 0.0];

/// How often a trial is tried that something else than the receiver decides.
const TRIES: usize = 3;
const QUICK_TRIES: usize = 2;

/// Short trials of a search, in seconds, and how much longer those are that confirm. The generator goes first on its
/// core, and a process that does so for 0.95 s is held back (sched_rt_runtime_us in sched(7)).
const SEARCH_SECONDS: f64 = 0.25;
const CONFIRM: f64 = 3.6;

/// Trials after which a search for one goal ends.
const MOST_TRIALS: usize = 40;
const QUICK_TRIALS: usize = 24;

/// MTU for frames of 9000 bytes and their Ethernet header.
const JUMBO_MTU: u32 = 9000;

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// Trials of throughput, each with its round.
    pub trials: Vec<(usize, Trial)>,
    /// Trials of the searches.
    pub search_trials: Vec<Trial>,
    /// What the searches found.
    pub loss_free: Vec<LossFree>,
    /// What the parts of a kernel program cost.
    pub costs: Vec<Cost>,
    /// Flows made in the kernel.
    pub flow_caches: flow_caches::Measured,
    /// RTP of calls.
    pub voip: voip::Measured,
    /// HTTP logs side by side.
    pub http: http::Measured,
    /// Flow probes side by side.
    pub flow_rates: Rates,
    /// The store of flows.
    pub stored: stored::Measured,
    /// Payloads searched for patterns.
    pub searched: Vec<Searched>,
    /// Programs on the system's libpcap and on ours.
    pub compared: Compared,
    /// What the studies of parallelism measured.
    pub studied: Studied,
    /// Receivers that were left out, and why.
    pub left_out: Vec<(Receiver, String)>,
    /// Cells in which a receiver could not be measured, and why.
    pub failed: Vec<(Receiver, String)>,
    /// Whether a signal ended the run before it was done.
    pub cut_short: bool,
    /// How long all of it took, in seconds.
    pub took_s: f64,
    /// Load average at the start and the end.
    pub load_average: (f64, f64),
}

/// Runs what the options ask for.
///
/// # Errors
/// Where a namespace or a signal handler cannot be made.
pub fn run(options: &Options, tools: &Tools) -> Result<Measured> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catching signals")?;
    }
    let start = Instant::now();
    let mut runner =
        Runner { options, tools, stop, receivers: Vec::new(), measured: Measured::default(), start };
    runner.measured.load_average.0 = crate::process::load_average();
    let done = runner.everything();
    // After a signal, what there is stands.
    runner.measured.cut_short = runner.stop.load(Ordering::Relaxed);
    if !runner.measured.cut_short {
        done?;
    }
    runner.measured.took_s = start.elapsed().as_secs_f64();
    runner.measured.load_average.1 = crate::process::load_average();
    Ok(runner.measured)
}

struct Runner<'a> {
    options: &'a Options,
    tools: &'a Tools,
    stop: Arc<AtomicBool>,
    receivers: Vec<Receiver>,
    measured: Measured,
    start: Instant,
}

impl Runner<'_> {
    fn everything(&mut self) -> Result<()> {
        self.choose_receivers()?;
        if self.options.parts.contains(&Part::Cost) {
            self.measured.costs = cost::measure(self.options.cores[1])?;
        }
        if self.options.parts.contains(&Part::Patterns) {
            self.patterns()?;
        }
        if self.options.parts.contains(&Part::Flows) {
            self.say("flows: caches by the number of flows");
            self.measured.flow_caches = flow_caches::measure(self.options.cores[1], self.options.quick)?;
            let (check, say) = (|| self.check_stop(), |text: &str| self.say(text));
            let mut rates = Rates::default();
            let done = flow_rates::measure(self.options, self.tools, &check, &say, &mut rates);
            self.measured.flow_rates = rates;
            done?;
        }
        if self.options.parts.contains(&Part::Store) {
            let (check, say) = (|| self.check_stop(), |text: &str| self.say(text));
            let mut measured = stored::Measured::default();
            let done = stored::measure(self.options, self.tools, &check, &say, &mut measured);
            self.measured.stored = measured;
            done?;
        }
        if self.options.parts.contains(&Part::Voip) {
            self.measured.voip = voip::measure(self.options.cores[1], self.options.quick)?;
        }
        if self.options.parts.contains(&Part::Http) {
            let (check, say) = (|| self.check_stop(), |text: &str| self.say(text));
            let mut measured = http::Measured::default();
            let done = http::measure(self.options, self.tools, &check, &say, &mut measured);
            self.measured.http = measured;
            done?;
        }
        if self.options.parts.contains(&Part::Throughput) {
            self.throughput()?;
        }
        if self.options.parts.contains(&Part::LossFree) {
            self.loss_free()?;
        }
        if self.options.parts.contains(&Part::Libpcap) {
            let (check, say) = (|| self.check_stop(), |text: &str| self.say(text));
            let mut compared = Compared::default();
            let done = libpcap::measure(self.options, self.tools, &check, &say, &mut compared);
            self.measured.compared = compared;
            done?;
        }
        study::run(self.options, self.tools, &self.stop, self.start, &mut self.measured.studied)
    }

    fn patterns(&mut self) -> Result<()> {
        let Some(captures) = &self.options.captures else {
            self.say("left out: patterns (their payloads are those of real captures: --captures FOLDER)");
            return Ok(());
        };
        self.measured.searched = patterns::measure(self.options.cores[1], captures)?;
        Ok(())
    }

    /// Leaves out what is not installed.
    fn choose_receivers(&mut self) -> Result<()> {
        for receiver in &self.options.receivers {
            match receiver.needs() {
                Some((program, package)) if !is_installed(program) => {
                    let reason = format!("{program} is not installed (Debian: apt install {package})");
                    self.say(&format!("left out: {} ({reason})", receiver.label()));
                    self.measured.left_out.push((*receiver, reason));
                }
                _ => self.receivers.push(*receiver),
            }
        }
        if self.receivers.is_empty() {
            bail!("--receivers: none of them can run here");
        }
        Ok(())
    }

    fn throughput(&mut self) -> Result<()> {
        for round in 0..self.options.rounds {
            for setup in self.options.setups.clone() {
                for load in self.options.loads() {
                    // The first size decides; the others need fewer rounds to show their tendency.
                    if round % 2 == 1 && load.size != self.options.sizes[0] {
                        continue;
                    }
                    self.say(&format!(
                        "round {} of {}: setup {}, {} bytes, {}",
                        round + 1,
                        self.options.rounds,
                        setup.name(),
                        load.size,
                        load.method.name()
                    ));
                    self.cell(round, setup, load)?;
                }
            }
        }
        Ok(())
    }

    /// Every receiver once; again where the trial does not count.
    fn cell(&mut self, round: usize, setup: Setup, load: Load) -> Result<()> {
        let mut bed = self.bed(setup, load)?;
        let count = self.receivers.len();
        for position in 0..count {
            let receiver = self.receivers[(position + round) % count];
            if receiver.is_recorder() || !self.sees(receiver, load) {
                continue;
            }
            let tries = if self.options.quick { QUICK_TRIES } else { TRIES };
            for _ in 0..tries {
                self.check_stop()?;
                match trial::run(&mut bed, self.tools, setup, receiver, load, None, self.options.seconds) {
                    Ok(trial) => {
                        let counts = trial.invalid.is_none();
                        self.measured.trials.push((round, trial));
                        if counts {
                            break;
                        }
                    }
                    Err(error) => {
                        self.failed(receiver, setup, load, &error)?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn loss_free(&mut self) -> Result<()> {
        let Some(load) = self.options.searched_load() else { return Ok(()) };
        // Where both setups are measured, the one in which the receiver and not the generator is the bound.
        if let Some(setup) = self.options.setups.last().copied() {
            for receiver in self.options.searched(&self.receivers) {
                if !self.sees(receiver, load) {
                    continue;
                }
                self.say(&format!("loss-free rate: setup {}, {}", setup.name(), receiver.label()));
                let mut bed = self.bed(setup, load)?;
                if let Err(error) = self.search(&mut bed, setup, receiver, load) {
                    self.failed(receiver, setup, load, &error)?;
                }
            }
        }
        Ok(())
    }

    /// The highest rates of one receiver, and what happens at twice the higher one.
    fn search(&mut self, bed: &mut Bed, setup: Setup, receiver: Receiver, load: Load) -> Result<()> {
        // What it took at full speed is near.
        let of = |(_, trial): &&(usize, Trial)| {
            (trial.setup, trial.load, trial.receiver) == (setup, load, receiver)
        };
        let start = self.measured.trials.iter().filter(of).map(|(_, trial)| trial.received_pps());
        let start = start.max_by(f64::total_cmp).unwrap_or(5e5);
        let seconds = SEARCH_SECONDS.min(self.options.seconds);
        let mut trials = Vec::new();
        let most = if self.options.quick { QUICK_TRIALS } else { MOST_TRIALS };
        let found = search(start, &GOALS, most, &mut |rate, length| {
            self.check_stop()?;
            let seconds = if length == Length::Long { seconds * CONFIRM } else { seconds };
            let trial = trial::run(bed, self.tools, setup, receiver, load, Some(rate), seconds)?;
            let loss = trial.loss().max(0.0);
            let outcome = match trial.invalid {
                Some(trial::NOT_REACHED) => Outcome::Invalid,
                Some(_) if loss > 0.0 => Outcome::Disturbed(loss),
                _ => Outcome::Loss(loss),
            };
            trials.push(trial);
            Ok(outcome)
        });
        self.measured.search_trials.append(&mut trials);
        let found = found?;
        // Not of the rate without any loss: on a machine that stalls now and then, that is far below what is lasting.
        let lasting = found.iter().find(|found| found.goal == GOALS[0] && found.bound == Bound::Loss);
        let overload = match lasting.and_then(|found| found.rate) {
            Some(rate) => Some(overload::measure(bed, self.tools, receiver, load, rate)?),
            None => None,
        };
        self.measured.loss_free.extend(found.into_iter().map(|found| {
            let overload = overload.filter(|_| found.goal == GOALS[0]);
            LossFree { setup, load, receiver, found, overload }
        }));
        Ok(())
    }

    /// Whether a receiver sees packets of this kind; where it does not, the results say so once.
    fn sees(&mut self, receiver: Receiver, load: Load) -> bool {
        let Some(reason) = receiver.blind_to(load.method) else { return true };
        let entry = (receiver, format!("with {}: {reason}", load.method.label()));
        if !self.measured.left_out.contains(&entry) {
            self.measured.left_out.push(entry);
        }
        false
    }

    fn bed(&self, setup: Setup, load: Load) -> Result<Bed> {
        let mtu = if load.size > USUAL_MTU + 14 { JUMBO_MTU } else { USUAL_MTU };
        let [generator, receiver] = self.options.cores[..] else { bail!("--cores: give two") };
        Bed::new(setup, mtu, Cores { generator, receiver, nice: self.options.nice })
    }

    /// What cannot be measured is named in the results; after a signal, the run ends.
    fn failed(&mut self, receiver: Receiver, setup: Setup, load: Load, error: &anyhow::Error) -> Result<()> {
        self.check_stop()?;
        let message = format!(
            "{}, setup {}, {} bytes, {}: {error:#}",
            receiver.label(),
            setup.name(),
            load.size,
            load.method.name()
        );
        self.say(&format!("failed: {message}"));
        self.measured.failed.push((receiver, message));
        Ok(())
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            bail!("ended by a signal");
        }
        Ok(())
    }

    /// Progress, on standard error.
    fn say(&self, text: &str) {
        // Nobody may be reading; the results are written all the same.
        let _ = writeln!(stderr(), "{:>5.0} s  {text}", self.start.elapsed().as_secs_f64());
    }
}

/// Whether a program is in the path.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).exists())
}
