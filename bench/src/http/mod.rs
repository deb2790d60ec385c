//! HTTP logs side by side on the same web traffic: `wirelane http` with heads picked out in the kernel and in its worker, and
//! httpry.
//!
//! nginx's answers to wrk are recorded once ([`recording`]) and replayed at any rate ([`trial`]); the server's log says what is
//! in them. First all of them take what they can, each once in every round. Then the highest rates are searched for at which
//! every request of the server's log is in theirs, and with half a percent missing; at last all run at one rate, four fifths of
//! what the slowest takes, for their CPU time.

mod recording;
mod report;
mod trial;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::bed::{Bed, Cores, Setup};
use crate::options::{Options, USUAL_MTU};
use crate::run::is_installed;
use crate::search::{Found, Length, Outcome, search};
use crate::trial::{NOT_REACHED, Tools};

pub use report::{csv, page};
pub use trial::Point;

use recording::Recording;
use trial::Trial;

/// Who logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// wirelane http --analysis kernel, native XDP, packets taken.
    KernelNative,
    /// The same on tc.
    KernelTc,
    /// wirelane http --analysis user, native XDP, packets taken.
    UserNative,
    /// The same on tc.
    UserTc,
    /// httpry.
    Httpry,
}

impl Who {
    const ALL: [Who; 5] = [Who::KernelNative, Who::UserNative, Who::KernelTc, Who::UserTc, Who::Httpry];

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Who::KernelNative => "Wirelane, in the kernel, native XDP",
            Who::KernelTc => "Wirelane, in the kernel, tc",
            Who::UserNative => "Wirelane, in the worker, native XDP",
            Who::UserTc => "Wirelane, in the worker, tc",
            Who::Httpry => "httpry",
        }
    }

    fn is_ours(self) -> bool {
        self != Who::Httpry
    }

    fn is_below(self) -> bool {
        matches!(self, Who::KernelNative | Who::KernelTc)
    }

    fn hook(self) -> Option<&'static str> {
        match self {
            Who::KernelNative | Who::UserNative => Some("native"),
            Who::KernelTc | Who::UserTc => Some("tc"),
            Who::Httpry => None,
        }
    }
}

/// Goals of the searches, the most lenient first.
const GOALS: [f64; 2] = [0.005, 0.0];
/// Seconds of a short trial, and of one that confirms.
const SHORT: f64 = 0.25;
const LONG: f64 = 0.9;
/// Trials after which a search for one goal ends.
const MOST_TRIALS: usize = 24;
const QUICK_TRIALS: usize = 8;
/// Trials of CPU time with each, in turn, and their rate, of the lowest that was found.
const COST_TRIALS: usize = 5;
const COST_RATE: f64 = 0.8;

/// What was measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// Packets, bytes and requests of the recording.
    pub recorded: Option<[u64; 3]>,
    /// Trials at full speed.
    pub full: Vec<Point>,
    /// Trials of the searches.
    pub searched: Vec<Point>,
    /// What the searches found, in packets per second.
    pub found: BTreeMap<(Setup, Who), Vec<Found>>,
    /// Trials at one rate.
    pub costs: Vec<Point>,
    /// What could not be measured, whether it is ours, and why.
    pub failed: Vec<(bool, String)>,
}

/// Measures everything; what there is when `check` ends it stays in `measured`.
///
/// # Errors
/// Where nothing can be recorded, a bed cannot be made, and that of `check`.
pub fn measure(
    options: &Options,
    tools: &Tools,
    check: &dyn Fn() -> Result<()>,
    say: &dyn Fn(&str),
    measured: &mut Measured,
) -> Result<()> {
    for program in ["nginx", "wrk", "tcpdump"] {
        if !is_installed(program) {
            let missing = format!("{program} is not installed: scripts/setup");
            say(&format!("left out: http ({missing})"));
            measured.failed.push((false, missing));
            return Ok(());
        }
    }
    say("http: recording web traffic");
    let recording = Recording::make(tools)?;
    measured.recorded = Some([recording.packets(), recording.bytes(), recording.requests]);
    let mut all = Who::ALL.to_vec();
    if !is_installed("httpry") {
        measured.failed.push((false, "httpry is not installed: scripts/setup".to_owned()));
        all.retain(|who| who.is_ours());
    }
    let [generator, receiver] = options.cores[..] else { anyhow::bail!("--cores: give two") };
    let cores = Cores { generator, receiver, nice: options.nice };
    for setup in &options.setups {
        let mut bed = Bed::new(*setup, USUAL_MTU, cores)?;
        let mut runner =
            Runner { bed: &mut bed, tools, options, check, recording: &recording, setup: *setup };
        let failed = |measured: &mut Measured, who: Who, error: anyhow::Error| -> Result<()> {
            check()?;
            let failed = format!("{}, setup {}: {error:#}", who.label(), setup.name());
            say(&format!("failed: {failed}"));
            measured.failed.push((who.is_ours(), failed));
            Ok(())
        };
        for round in 0..options.rounds {
            say(&format!("http: round {} of {}: setup {}", round + 1, options.rounds, setup.name()));
            for position in 0..all.len() {
                let who = all[(position + round) % all.len()];
                match runner.trial(who, None, options.seconds) {
                    Ok(point) => measured.full.push(point),
                    Err(error) => failed(measured, who, error)?,
                }
            }
        }
        for who in &all {
            say(&format!("http: loss-free rate: setup {}, {}", setup.name(), who.label()));
            match runner.search(*who, measured) {
                Ok(found) => drop(measured.found.insert((*setup, *who), found)),
                Err(error) => failed(measured, *who, error)?,
            }
        }
        say(&format!("http: all at one rate: setup {}", setup.name()));
        if let Err(error) = runner.costs(&all, measured) {
            failed(measured, all[0], error)?;
        }
    }
    Ok(())
}

struct Runner<'a> {
    bed: &'a mut Bed,
    tools: &'a Tools,
    options: &'a Options,
    check: &'a dyn Fn() -> Result<()>,
    recording: &'a Recording,
    setup: Setup,
}

impl Runner<'_> {
    fn trial(&mut self, who: Who, rate: Option<f64>, seconds: f64) -> Result<Point> {
        (self.check)()?;
        Trial { setup: self.setup, who, rate, seconds }.run(self.bed, self.tools, self.recording)
    }

    fn search(&mut self, who: Who, measured: &mut Measured) -> Result<Vec<Found>> {
        // What it took at full speed is near.
        let each = self.recording.packets() as f64 / self.recording.requests as f64;
        let its = measured.full.iter().filter(|point| (point.setup, point.who) == (self.setup, who));
        let start = its.map(|point| point.logged_rps() * each).max_by(f64::total_cmp).unwrap_or(1e5);
        let most = if self.options.quick { QUICK_TRIALS } else { MOST_TRIALS };
        let disturbed = self.options.disturbed;
        search(start, &GOALS, most, &mut |rate, length| {
            let seconds = if length == Length::Long { LONG } else { SHORT };
            let point = self.trial(who, Some(rate), seconds)?;
            let (loss, invalid) = (point.loss(), point.invalid);
            measured.searched.push(point);
            Ok(match invalid {
                Some(NOT_REACHED) => Outcome::Invalid,
                Some(_) if loss > 0.0 && !disturbed => Outcome::Disturbed(loss),
                _ => Outcome::Loss(loss),
            })
        })
    }

    fn costs(&mut self, all: &[Who], measured: &mut Measured) -> Result<()> {
        let rates = all.iter().filter_map(|who| {
            let found = measured.found.get(&(self.setup, *who))?;
            // Without loss, else with a little.
            found.iter().rev().find_map(|found| found.rate)
        });
        let Some(rate) = rates.min_by(f64::total_cmp) else { return Ok(()) };
        ensure!(rate > 0.0, "no rate");
        for _ in 0..if self.options.quick { 1 } else { COST_TRIALS } {
            for who in all {
                let point = self.trial(*who, Some(rate * COST_RATE), LONG)?;
                measured.costs.push(point);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use wirelane_tests::{require_root, wirelane_binary};

    use super::*;

    /// Real web traffic, as the server has logged it: httpry reads the same from a file, and each logs all of it live, at a rate
    /// that all can take.
    #[test]
    fn every_request_that_the_server_has_logged_is_in_each_log() {
        if !require_root("every_request_that_the_server_has_logged_is_in_each_log") {
            return;
        }
        if let Some(program) = ["nginx", "wrk", "tcpdump", "httpry"].iter().find(|one| !is_installed(one)) {
            println!("left out: every_request_that_the_server_has_logged_is_in_each_log (no {program})");
            return;
        }
        let wirelane = wirelane_binary().unwrap().to_str().unwrap().to_owned();
        let tools = Tools { wirelane, bench: String::new(), buffer: 4 };
        let recording = Recording::make(&tools).unwrap();
        assert_eq!(recording.requests, recording::REQUESTS);
        let folder = tempfile::tempdir().unwrap();
        let (file, log) = (folder.path().join("two.pcap"), folder.path().join("httpry.log"));
        recording.write(&file, 2).unwrap();
        let output = Command::new("httpry").arg("-r").arg(&file).arg("-o").arg(&log).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let log = std::fs::read_to_string(log).unwrap();
        assert_eq!(trial::of_httpry(&log), 2 * recording.requests);
        assert_eq!(log.matches("\tHTTP/1.1\t200\tOK").count() as u64, 2 * recording.requests);

        let cores = Cores { generator: 0, receiver: 1, nice: 0 };
        let mut bed = Bed::new(Setup::A, USUAL_MTU, cores).unwrap();
        for who in [Who::KernelNative, Who::UserTc, Who::Httpry] {
            let trial = Trial { setup: Setup::A, who, rate: Some(4000.0), seconds: 0.1 };
            let point = trial.run(&mut bed, &tools, &recording).unwrap();
            assert_eq!((point.requests, point.offered), (recording.requests, recording.packets()));
            assert_eq!(
                (point.logged, point.lost, point.device_dropped),
                (recording.requests, 0, 0),
                "{point:?}"
            );
            match (who.is_below(), point.came_up) {
                // Heads, ends of bodies, and little else.
                (true, Some(came_up)) => assert!(came_up < point.offered / 2, "{point:?}"),
                (false, came_up) => assert_eq!(came_up, who.is_ours().then_some(point.offered)),
                _ => panic!("{point:?}"),
            }
        }
    }
}
