//! A battery, run from its first trial to its report.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::away::Agents;
use crate::battery::{Battery, Rate};
use crate::bed::{Bed, Plan};
use crate::place::{Here, Place};
use crate::results::{FoundRow, Results, Row};
use crate::schedule::{self, Trial};
use crate::search::{self, Length, Outcome};
use crate::sensors::{Adapter, Sensors};
use crate::trial::{self, Measured};

/// How much longer than a trial those are that confirm what a search has found.
const CONFIRM: u32 = 3;
/// Trials of a search, at most, for each goal.
const MOST_SEARCHED: usize = 60;
/// Where a search begins, in packets a second, if nothing is known.
const START: f64 = 200_000.0;
/// What a trial takes beside its traffic, until it is known better.
const BESIDE: Duration = Duration::from_millis(2500);
/// Trials that a search is expected to take.
const EXPECTED: u32 = 30;

/// Whoever shows how far it is.
pub trait Progress {
    /// A trial begins: how many have ended, of how many, and how long the rest will take.
    fn begins(&mut self, ended: usize, of: usize, left: Duration, what: &str);
    /// It has ended.
    fn ended(&mut self, what: &str, measured: &Measured);
    /// Something else to know.
    fn note(&mut self, text: &str);
}

/// What a run has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// Sensors that are not there, and why.
    pub skipped: BTreeMap<String, String>,
    /// Trials that were run now, searches' ones included.
    pub run: usize,
    /// Trials and searches that had been there already.
    pub before: usize,
    /// Trials at fault, by their names.
    pub faults: Vec<String>,
}

/// Where a battery is run.
#[derive(Debug)]
pub enum On {
    /// On this machine; with the program that sends, and that our sensors are.
    Here(PathBuf),
    /// On the machines of these agents.
    Away(Box<Agents>),
}

impl On {
    /// Sensors of a battery that cannot be run there, and why.
    pub fn skipped(&self, battery: &Battery, sensors: &Sensors) -> BTreeMap<String, String> {
        match self {
            On::Here(_) => skipped(battery, sensors),
            On::Away(agents) => agents.skipped(battery, sensors),
        }
    }
}

/// Sensors of a battery whose programs are not on this machine, and why.
pub fn skipped(battery: &Battery, sensors: &Sensors) -> BTreeMap<String, String> {
    let missing = |name: &String| Some((name.clone(), sensors.get(name)?.missing()?));
    battery.sensors.iter().filter_map(missing).collect()
}

/// How long a battery will take, about.
pub fn expected(battery: &Battery, trials: &[Trial]) -> Duration {
    trials.iter().map(|trial| expected_of(battery, trial)).sum()
}

fn expected_of(battery: &Battery, trial: &Trial) -> Duration {
    match &trial.case.rate {
        Rate::Search(goals) => (battery.duration + BESIDE) * EXPECTED * goals.len() as u32,
        _ => battery.duration + BESIDE,
    }
}

/// Runs what is not there yet.
///
/// # Errors
/// Where the test-bed does not work. What single trials do wrong is among the outcomes.
pub fn run(
    battery: &Battery,
    sensors: &Sensors,
    results: &mut Results,
    on: On,
    progress: &mut dyn Progress,
) -> Result<Outcomes> {
    let mut outcomes = Outcomes { skipped: on.skipped(battery, sensors), ..Outcomes::default() };
    if battery.seats.is_some() {
        results.skip(&outcomes.skipped)?;
    }
    for (name, why) in &outcomes.skipped {
        progress.note(&format!("{name} is skipped: {why}"));
    }
    let mut trials = schedule::trials(battery, sensors);
    trials.retain(|trial| !outcomes.skipped.contains_key(&trial.case.sensor));
    let all = trials.len();
    trials.retain(|trial| !results.has(trial));
    outcomes.before = all - trials.len();
    let (wirelane, place) = match on {
        On::Here(wirelane) => (wirelane, None),
        On::Away(agents) => (PathBuf::new(), Some(Place::Away(agents))),
    };
    let mut runner = Runner { battery, sensors, wirelane, place };
    let begun = Instant::now();
    let (whole, mut done) = (expected(battery, &trials), Duration::ZERO);
    for (at, trial) in trials.iter().enumerate() {
        // What remains takes as much longer than expected as what has been did.
        let pace = if done.is_zero() { 1.0 } else { begun.elapsed().as_secs_f64() / done.as_secs_f64() };
        let what = format!("{} #{}", trial.case.key(), trial.repetition);
        progress.begins(outcomes.before + at, all, whole.saturating_sub(done).mul_f64(pace), &what);
        match &trial.case.rate {
            Rate::Search(goals) => runner.search(trial, goals, results, &mut outcomes, progress)?,
            rate => {
                let measured = runner.trial(trial, rate, battery.duration)?;
                note(&mut outcomes, &what, &measured);
                progress.ended(&what, &measured);
                let row = Row {
                    case: trial.case.key(),
                    repetition: trial.repetition,
                    rate: rate.name(),
                    search: String::new(),
                    measured,
                };
                results.add(row)?;
            }
        }
        done += expected_of(battery, trial);
    }
    Ok(outcomes)
}

fn note(outcomes: &mut Outcomes, what: &str, measured: &Measured) {
    outcomes.run += 1;
    if !measured.fault.is_empty() {
        outcomes.faults.push(format!("{what}: {}", measured.fault));
    }
}

struct Runner<'a> {
    battery: &'a Battery,
    sensors: &'a Sensors,
    wirelane: PathBuf,
    place: Option<Place>,
}

impl Runner<'_> {
    fn trial(&mut self, trial: &Trial, rate: &Rate, duration: Duration) -> Result<Measured> {
        let adapter = self.adapter(trial)?.clone();
        let battery = self.battery;
        let place = self.place(trial.case.queues)?;
        trial::run(place, battery, &adapter, &trial.case, rate, duration)
    }

    fn adapter(&self, trial: &Trial) -> Result<&Adapter> {
        self.sensors.get(&trial.case.sensor).with_context(|| format!("no adapter {}", trial.case.sensor))
    }

    fn place(&mut self, queues: u32) -> Result<&mut Place> {
        let plan = Plan {
            devices: self.battery.devices,
            queues,
            mtu: self.battery.mtu(),
            napi: self.battery.napi,
            merges: self.battery.traffic.merges(),
            receiver: self.battery.receiver,
        };
        let fits = match &self.place {
            Some(Place::Here(here)) => *here.bed().plan() == plan,
            Some(Place::Away(_)) => true,
            None => false,
        };
        if !fits {
            // The old one first: devices of both would have one name.
            self.place = None;
            let bed = Bed::new(&plan).context("building the test-bed")?;
            self.place = Some(Place::Here(Box::new(Here::new(bed, self.wirelane.clone()))));
        }
        self.place.as_mut().context("there is a place")
    }

    /// Searches. Trials that an interrupted search had run are taken as they were.
    fn search(
        &mut self,
        trial: &Trial,
        goals: &[f64],
        results: &mut Results,
        outcomes: &mut Outcomes,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let key = trial.case.key();
        let what = format!("{key} #{}", trial.repetition);
        let mut begun: VecDeque<Row> = results.begun(trial).into();
        let duration = self.battery.duration;
        let found = search::search(START, goals, MOST_SEARCHED, &mut |pps, length| {
            let rate = Rate::Pps(pps.round());
            let (name, duration) = match length {
                Length::Short => ("short", duration),
                Length::Long => ("long", duration * CONFIRM),
            };
            if let Some(row) = begun.front().filter(|row| row.rate == rate.name() && row.search == name) {
                let outcome = outcome(&row.measured);
                begun.pop_front();
                return Ok(outcome);
            }
            // What follows was another course of the search.
            begun.clear();
            let measured = self.trial(trial, &rate, duration)?;
            note(outcomes, &what, &measured);
            progress.ended(&what, &measured);
            let outcome = outcome(&measured);
            let (case, repetition) = (key.clone(), trial.repetition);
            results.add(Row { case, repetition, rate: rate.name(), search: name.to_owned(), measured })?;
            Ok(outcome)
        })?;
        let rows = found.iter().map(|found| FoundRow {
            case: key.clone(),
            repetition: trial.repetition,
            goal: found.goal,
            rate: found.rate,
            bound: found.bound.name().to_owned(),
            trials: found.trials,
            invalid: found.invalid,
        });
        results.add_found(rows.collect())
    }
}

/// What a trial says in a search. Loss that others may have caused is tried again; where nothing was lost, nobody disturbed it.
fn outcome(measured: &Measured) -> Outcome {
    let loss = measured.loss().max(0.0);
    if measured.is_of_no_use() {
        Outcome::Invalid
    } else if !measured.invalid.is_empty() && loss > 0.0 {
        Outcome::Disturbed(loss)
    } else {
        Outcome::Loss(loss)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::trial::FELL_SHORT;

    #[test]
    fn what_a_trial_says_in_a_search() {
        let good = Measured { offered: 1000, sent: 1000, captured: 990, ..Measured::default() };
        assert!(matches!(outcome(&good), Outcome::Loss(loss) if (loss - 0.01).abs() < 1e-9));
        let disturbed = Measured { invalid: "other programs ran".into(), ..good.clone() };
        assert!(matches!(outcome(&disturbed), Outcome::Disturbed(loss) if loss > 0.0));
        assert_eq!(outcome(&Measured { captured: 1000, ..disturbed }), Outcome::Loss(0.0));
        assert_eq!(outcome(&Measured { invalid: FELL_SHORT.into(), ..good.clone() }), Outcome::Invalid);
        assert_eq!(outcome(&Measured { fault: "it died".into(), ..good }), Outcome::Invalid);
    }

    #[test]
    fn a_sensor_that_is_not_there_is_skipped_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let text = "program = \"no-such-program\"\npackage = \"none\"\ncommand = [\"no-such-program\"]\nready = \"packet-socket\"\n\
                    quiet = \"1s\"\n[counts]\ncaptured = { regex = '(\\d+)' }\n";
        std::fs::write(folder.path().join("absent.toml"), text).unwrap();
        let mut sensors = Sensors::shipped();
        sensors.add(folder.path()).unwrap();
        let text = "name = \"a\"\nsensors = [\"absent\", \"wirelane-count\"]\nrates = [1000]\n";
        let battery = Battery::parse(text, Path::new("b"), &sensors).unwrap();
        let skipped = skipped(&battery, &sensors);
        assert_eq!(skipped.len(), 1);
        assert_eq!(skipped["absent"], "no-such-program is not installed (Debian's package none)");
        assert_eq!(
            expected(&battery, &schedule::trials(&battery, &sensors)),
            (Duration::from_secs(1) + BESIDE) * 2
        );
    }
}
