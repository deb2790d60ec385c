//! A run of a suite, from its first trial to its report.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::duts::{Adapter, Duts};
use crate::overload;
use crate::remote::Agents;
use crate::results::{FoundRow, Results, Row};
use crate::roles::station::Station;
use crate::schedule::{self, Case, Trial};
use crate::search::{self, Bound, Length, Outcome};
use crate::site::Site;
use crate::suite::{Rate, Suite};
use crate::topology::{Plan, Topology};
use crate::trial::{self, Measured};

/// Factor by which trials that confirm the result of a search are longer than normal ones.
const CONFIRM: u32 = 3;
/// Maximum number of trials of a search, for each goal.
const MOST_SEARCHED: usize = 60;
/// Start rate of a search in packets per second, if no better one is known.
const START: f64 = 200_000.0;
/// Initial estimate of the overhead of a trial in addition to its traffic.
const BESIDE: Duration = Duration::from_millis(2500);
/// Expected number of trials of a search.
const EXPECTED: u32 = 30;

/// Receiver of progress reports.
pub trait Progress {
    /// A trial begins; with the number of completed ones, the total, and the estimated remaining time.
    fn begins(&mut self, ended: usize, of: usize, left: Duration, what: &str);
    /// A trial has ended.
    fn ended(&mut self, what: &str, measured: &Measured);
    /// Another message.
    fn note(&mut self, text: &str);
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// DUTs that are missing, and the reasons.
    pub skipped: BTreeMap<String, String>,
    /// Trials of this run, including those of searches.
    pub run: usize,
    /// Trials and searches of earlier runs.
    pub before: usize,
    /// Names of trials with failures.
    pub faults: Vec<String>,
}

/// Location of a run.
#[derive(Debug)]
pub enum On {
    /// This machine; with the program that sends, and that our sensors are.
    Local(PathBuf),
    /// The machines of these agents.
    Remote(Box<Agents>),
}

impl On {
    /// DUTs of a suite that cannot run there, and the reasons.
    pub fn skipped(&self, suite: &Suite, sensors: &Duts) -> BTreeMap<String, String> {
        match self {
            On::Local(_) => skipped(suite, sensors),
            On::Remote(agents) => agents.skipped(suite, sensors),
        }
    }
}

/// DUTs of a suite whose programs are not installed on this machine, and the reasons.
pub fn skipped(suite: &Suite, sensors: &Duts) -> BTreeMap<String, String> {
    let missing = |name: &String| Some((name.clone(), sensors.get(name)?.missing()?));
    suite.sensors.iter().filter_map(missing).collect()
}

/// Estimated duration of a suite.
pub fn expected(suite: &Suite, trials: &[Trial]) -> Duration {
    trials.iter().map(|trial| expected_of(suite, trial)).sum()
}

fn expected_of(suite: &Suite, trial: &Trial) -> Duration {
    match &trial.case.rate {
        Rate::Search(goals) => (suite.duration + BESIDE) * EXPECTED * goals.len() as u32,
        _ => suite.duration + BESIDE,
    }
}

/// Runs all trials without results.
///
/// # Errors
/// The test-bed fails. Failures of single trials are part of the outcomes.
pub fn run(
    suite: &Suite,
    sensors: &Duts,
    results: &mut Results,
    on: On,
    progress: &mut dyn Progress,
) -> Result<Outcomes> {
    let mut outcomes = Outcomes { skipped: on.skipped(suite, sensors), ..Outcomes::default() };
    if suite.agent_devices.is_some() {
        results.skip(&outcomes.skipped)?;
    }
    for (name, why) in &outcomes.skipped {
        progress.note(&format!("{name} is skipped: {why}"));
    }
    let mut trials = schedule::trials(suite, sensors);
    trials.retain(|trial| !outcomes.skipped.contains_key(&trial.case.sensor));
    let all = trials.len();
    trials.retain(|trial| !results.has(trial));
    outcomes.before = all - trials.len();
    let (wirelane, place) = match on {
        On::Local(wirelane) => (wirelane, None),
        On::Remote(agents) => (PathBuf::new(), Some(Site::Remote(agents))),
    };
    if suite.traffic.web {
        progress.note("web traffic is recorded");
        crate::web::recording(&wirelane)?;
    }
    let mut runner = Runner { suite, sensors, wirelane, place, capacities: BTreeMap::new() };
    let begun = Instant::now();
    let (whole, mut done) = (expected(suite, &trials), Duration::ZERO);
    for (at, trial) in trials.iter().enumerate() {
        // The remaining trials are assumed to exceed their estimates by the same factor as the completed ones.
        let pace = if done.is_zero() { 1.0 } else { begun.elapsed().as_secs_f64() / done.as_secs_f64() };
        let what = format!("{} #{}", trial.case.key(), trial.repetition);
        progress.begins(outcomes.before + at, all, whole.saturating_sub(done).mul_f64(pace), &what);
        match &trial.case.rate {
            Rate::Search(goals) => runner.search(trial, goals, results, &mut outcomes, progress)?,
            rate => {
                let mut measured = runner.at(trial, rate)?;
                for _ in 1..suite.tries {
                    if measured.invalid.is_empty() {
                        break;
                    }
                    measured = runner.at(trial, rate)?;
                }
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
        done += expected_of(suite, trial);
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
    suite: &'a Suite,
    sensors: &'a Duts,
    wirelane: PathBuf,
    place: Option<Site>,
    /// Packets per second that the first sensor can analyse, by repetition and by all other conditions of a case.
    capacities: BTreeMap<String, f64>,
}

impl Runner<'_> {
    /// Runs a trial at a rate of the suite.
    fn at(&mut self, trial: &Trial, rate: &Rate) -> Result<Measured> {
        let Rate::OfCapacity(part) = rate else { return self.trial(trial, rate, self.suite.duration) };
        match self.capacity(trial)? {
            Some(capacity) => self.trial(trial, &Rate::Pps((capacity * part).round()), self.suite.duration),
            None => Ok(Measured::failed("the first sensor has analysed nothing at full speed".to_owned())),
        }
    }

    /// Packets per second that the first sensor can analyse with its cores, by a trial at full speed: analysed packets
    /// per second of CPU time, multiplied by the number of cores of its workers.
    fn capacity(&mut self, trial: &Trial) -> Result<Option<f64>> {
        let case = Case { sensor: self.suite.sensors[0].clone(), rate: Rate::Full, ..trial.case.clone() };
        let key = format!("{} {}", case.key(), trial.repetition);
        if let Some(capacity) = self.capacities.get(&key) {
            return Ok(Some(*capacity));
        }
        let cores = case.cores.len().min(case.workers.unwrap_or(1)) as f64;
        let first = Trial { case, repetition: trial.repetition };
        let measured = self.trial(&first, &Rate::Full, self.suite.duration)?;
        if !measured.fault.is_empty() || measured.analysed == 0 || measured.sensor_cpu_s <= 0.0 {
            return Ok(None);
        }
        let capacity = measured.analysed as f64 / measured.sensor_cpu_s * cores;
        self.capacities.insert(key, capacity);
        Ok(Some(capacity))
    }

    fn trial(&mut self, trial: &Trial, rate: &Rate, duration: Duration) -> Result<Measured> {
        let adapter = self.adapter(trial)?.clone();
        let suite = self.suite;
        let place = self.place(&trial.case)?;
        trial::run(place, suite, &adapter, &trial.case, rate, duration)
    }

    fn adapter(&self, trial: &Trial) -> Result<&Adapter> {
        self.sensors.get(&trial.case.sensor).with_context(|| format!("no adapter {}", trial.case.sensor))
    }

    fn place(&mut self, case: &Case) -> Result<&mut Site> {
        let plan = Plan {
            devices: case.devices.unwrap_or(self.suite.devices[0]),
            queues: case.queues,
            mtu: self.suite.mtu(),
            napi: case.napi_in(self.suite),
            nice: self.suite.nice,
            merges: self.suite.traffic.merges(),
            receiver: self.suite.receiver,
        };
        let fits = match &self.place {
            Some(Site::Local(here)) => *here.host.plan() == plan,
            Some(Site::Remote(_)) => true,
            None => false,
        };
        if !fits {
            // Remove the old one first, as device names would collide.
            self.place = None;
            let topology = Topology::new(&plan).context("building the test-bed")?;
            self.place = Some(Site::Local(Box::new(Station::new(topology, self.wirelane.clone()))));
        }
        self.place.as_mut().context("there is a place")
    }

    /// Runs a search. Trials of an interrupted search are reused.
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
        let duration = self.suite.duration;
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
            // The remaining stored trials belong to another course of the search.
            begun.clear();
            let measured = self.trial(trial, &rate, duration)?;
            note(outcomes, &what, &measured);
            progress.ended(&what, &measured);
            let outcome = outcome(&measured);
            let (case, repetition) = (key.clone(), trial.repetition);
            results.add(Row { case, repetition, rate: rate.name(), search: name.to_owned(), measured })?;
            Ok(outcome)
        })?;
        let mut rows: Vec<FoundRow> = found
            .iter()
            .map(|found| FoundRow {
                case: key.clone(),
                repetition: trial.repetition,
                goal: found.goal,
                rate: found.rate,
                bound: found.bound,
                trials: found.trials,
                invalid: found.invalid,
                overload: None,
                lost_after: None,
            })
            .collect();
        // Not of the rate without any loss: on a machine that stalls now and then, that is far below the sustained
        // rate.
        let lasting = rows.iter_mut().find(|row| row.bound == Bound::Loss);
        if let Some((row, rate)) =
            lasting.filter(|_| self.suite.overload).and_then(|row| row.rate.map(|rate| (row, rate)))
        {
            let adapter = self.adapter(trial)?.clone();
            let suite = self.suite;
            match overload::measure(self.place(&trial.case)?, suite, &adapter, &trial.case, rate)? {
                Ok(overload) => {
                    (row.overload, row.lost_after) = (Some(overload.captured), overload.lost_after);
                    if adapter.exact && overload.unaccounted != 0 {
                        outcomes.faults.push(format!(
                            "{what}: {} packets of an overload are nowhere",
                            overload.unaccounted
                        ));
                    }
                }
                Err(error) => outcomes.faults.push(format!("{what}: overload: {error:#}")),
            }
        }
        results.add_found(rows)
    }
}

/// Outcome of a trial in a search. A loss that other programs may have caused is retried; without loss, a disturbance
/// has no effect.
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
        let mut sensors = Duts::shipped();
        sensors.add(folder.path()).unwrap();
        let text = "name = \"a\"\nsensors = [\"absent\", \"wirelane-count\"]\nrates = [1000]\n";
        let suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        let skipped = skipped(&suite, &sensors);
        assert_eq!(skipped.len(), 1);
        assert_eq!(skipped["absent"], "no-such-program is not installed (Debian's package none)");
        assert_eq!(
            expected(&suite, &schedule::trials(&suite, &sensors)),
            (Duration::from_secs(1) + BESIDE) * 2
        );
    }
}
