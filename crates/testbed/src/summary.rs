//! What the repetitions of each trial come to.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::battery::{Axis, Battery, Quantity, Rate};
use crate::compare;
use crate::results::{FoundRow, Results, Row};
use crate::run;
use crate::schedule::{self, Case};
use crate::sensors::Sensors;
use crate::trial::Measured;

/// The middle of several values, and their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The middle one, or between the two in the middle.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of these values; none: there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Spread { median, low, high })
    }
}

/// What trials of one case come to.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The case.
    pub case: Case,
    /// Trials that count.
    pub trials: usize,
    /// Trials that do not: the generator fell short, or something went wrong.
    pub left_out: usize,
    /// Whether others disturbed every trial, so that what is here is of disturbed ones.
    pub disturbed: bool,
    /// Packets offered a second.
    pub offered: Option<Spread>,
    /// Packets captured a second.
    pub captured: Option<Spread>,
    /// Packets analysed a second.
    pub analysed: Option<Spread>,
    /// Part not captured.
    pub loss: Option<Spread>,
    /// Nanoseconds per packet.
    pub cpu: Option<Spread>,
    /// Packets a second that arrived at the receiver.
    pub passed_on: Option<Spread>,
    /// For each goal of a search: the goal, the rate, and why it is not higher.
    pub found: Vec<(f64, Option<Spread>, String)>,
}

impl Line {
    /// A quantity of it; of a search the one with the lowest goal.
    pub fn value(&self, quantity: Quantity) -> Option<Spread> {
        match quantity {
            Quantity::Captured => self.captured,
            Quantity::Analysed => self.analysed,
            Quantity::Loss => self.loss,
            Quantity::Cpu => self.cpu,
            Quantity::PassedOn => self.passed_on,
            Quantity::Rate => self.found.last().and_then(|(_, rate, _)| *rate),
        }
    }

    /// Where it is on an axis.
    pub fn place(&self, axis: Axis) -> Option<f64> {
        let case = &self.case;
        match axis {
            Axis::Rate => match case.rate {
                Rate::Pps(pps) => Some(pps),
                _ => self.offered.map(|offered| offered.median),
            },
            Axis::Size => case.size.map(f64::from),
            Axis::Loops => case.loops.map(f64::from),
            Axis::Cores => Some(case.cores.len() as f64),
            Axis::Workers => case.workers.map(|workers| workers as f64),
            Axis::Queues => Some(f64::from(case.queues)),
            Axis::Calls => case.calls.map(f64::from),
        }
    }
}

/// All that a report shows.
#[derive(Clone, Debug)]
pub struct Summary {
    /// A line for each case, in the order of the battery.
    pub lines: Vec<Line>,
    /// Sensors that are not there, and why.
    pub skipped: BTreeMap<String, String>,
    /// Trials that went wrong, and how.
    pub faults: Vec<String>,
    /// Trials and searches that a whole run has and this one has not yet.
    pub missing: usize,
    /// What curves over the offered rate say, by conditions.
    pub said: Vec<(String, Vec<String>)>,
}

/// Adds up what is there.
///
/// # Errors
/// Where the folder of the results cannot be read.
pub fn summarise(battery: &Battery, sensors: &Sensors, results: &Results) -> Result<Summary> {
    // What agents lack is known to whoever has asked them.
    let skipped = match &battery.seats {
        Some(_) => results.skipped()?.unwrap_or_default(),
        None => run::skipped(battery, sensors),
    };
    let mut by_case: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &results.rows {
        by_case.entry(&row.case).or_default().push(row);
    }
    let mut found: BTreeMap<&str, Vec<&FoundRow>> = BTreeMap::new();
    for row in &results.found {
        found.entry(&row.case).or_default().push(row);
    }
    let trials = schedule::trials(battery, sensors);
    let wanted = |trial: &&schedule::Trial| !skipped.contains_key(&trial.case.sensor) && !results.has(trial);
    let missing = trials.iter().filter(wanted).count();
    let lines = trials.into_iter().filter(|trial| trial.repetition == 1).filter_map(|trial| {
        let key = trial.case.key();
        let rows = by_case.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        let found = found.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        (!rows.is_empty() || !found.is_empty()).then(|| line(trial.case, rows, found))
    });
    let lines = lines.collect();
    let fault = |row: &Row| format!("{} #{}: {}", row.case, row.repetition, row.measured.fault);
    let faults = results.rows.iter().filter(|row| !row.measured.fault.is_empty()).map(fault).collect();
    let mut summary = Summary { lines, skipped, faults, missing, said: Vec::new() };
    summary.said = compare::sentences(battery, sensors, &summary);
    Ok(summary)
}

fn line(case: Case, rows: &[&Row], found: &[&FoundRow]) -> Line {
    let plain: Vec<&Measured> =
        rows.iter().filter(|row| row.search.is_empty()).map(|row| &row.measured).collect();
    let good: Vec<&Measured> = plain.iter().copied().filter(|one| one.counts()).collect();
    // On a machine that is never quiet those stand that others disturbed, and that is said.
    let usable = |one: &&Measured| !one.is_of_no_use();
    let rest: Vec<&Measured> = plain.iter().copied().filter(usable).collect();
    let disturbed = good.is_empty() && !rest.is_empty();
    let used = if disturbed { rest } else { good };
    let of = |value: fn(&Measured) -> f64| Spread::of(used.iter().map(|one| value(one)).collect());
    let mut goals: Vec<f64> = found.iter().map(|row| row.goal).collect();
    goals.sort_by(|a, b| b.total_cmp(a));
    goals.dedup();
    let goal = |goal: f64| {
        let of: Vec<&&FoundRow> = found.iter().filter(|row| row.goal == goal).collect();
        let rates = of.iter().filter_map(|row| row.rate).collect();
        let bound = of.iter().map(|row| row.bound.as_str()).find(|bound| *bound != "loss").unwrap_or("loss");
        (goal, Spread::of(rates), bound.to_owned())
    };
    Line {
        trials: used.len() + found.len() / goals.len().max(1),
        left_out: plain.len() - used.len(),
        disturbed,
        offered: of(Measured::offered_pps),
        captured: of(Measured::captured_pps),
        analysed: of(Measured::analysed_pps),
        loss: if case_copies(&used) { None } else { of(Measured::loss) },
        cpu: of(Measured::cpu_ns),
        passed_on: Spread::of(used.iter().filter_map(|one| one.passed_on_pps()).collect()),
        found: goals.into_iter().map(goal).collect(),
        case,
    }
}

/// Whether packets were counted once for each worker: then more were captured than were sent.
fn case_copies(used: &[&Measured]) -> bool {
    used.iter().any(|one| one.captured > one.offered)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::machine::Machine;
    use crate::trial::FELL_SHORT;

    #[test]
    fn spreads_have_a_middle_and_ends() {
        let odd = Spread::of(vec![3.0, 1.0, 2.0]).unwrap();
        assert_eq!((odd.median, odd.low, odd.high), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of(vec![1.0, 2.0, 4.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn trials_that_do_not_count_are_left_out_and_told() {
        let sensors = Sensors::shipped();
        let text = "name = \"a\"\nsensors = [\"wirelane-count\"]\nrates = [1000, 2000, 3000]\nsearch = [0]\nrepetitions = 3\ncores = [[1]]\n";
        let battery = Battery::parse(text, Path::new("b"), &sensors).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::begin(&folder.path().join("r"), text, &Machine::describe()).unwrap();
        let trials = schedule::trials(&battery, &sensors);
        for trial in &trials {
            let case = trial.case.key();
            let Rate::Pps(pps) = trial.case.rate else { continue };
            let mut measured = Measured {
                offered: pps as u64,
                captured: 900 + u64::from(trial.repetition),
                duration_s: 1.0,
                ..Measured::default()
            };
            match (pps as u64, trial.repetition) {
                (1000, 2) => measured.fault = "it died".into(),
                (2000, _) => measured.invalid = "other programs ran".into(),
                (3000, 1) => continue,
                (3000, _) => measured.invalid = FELL_SHORT.into(),
                _ => {}
            }
            let rate = trial.case.rate.name();
            results
                .add(Row { case, repetition: trial.repetition, rate, search: String::new(), measured })
                .unwrap();
        }
        let case = trials.last().unwrap().case.key();
        let found = |repetition, rate| FoundRow {
            case: case.clone(),
            repetition,
            goal: 0.0,
            rate: Some(rate),
            bound: "loss".into(),
            trials: 9,
            invalid: 0,
        };
        results.add_found(vec![found(1, 500.0)]).unwrap();
        results.add_found(vec![found(2, 700.0)]).unwrap();

        let summary = summarise(&battery, &sensors, &results).unwrap();
        let [first, second, third, search] = &summary.lines[..] else { panic!("{summary:?}") };
        assert_eq!((first.trials, first.left_out, first.disturbed), (2, 1, false));
        assert_eq!(first.captured.unwrap(), Spread { median: 902.0, low: 901.0, high: 903.0 });
        assert_eq!((second.trials, second.disturbed, second.captured.is_some()), (3, true, true));
        assert_eq!((third.trials, third.left_out, third.captured), (0, 2, None));
        assert_eq!((search.trials, search.value(Quantity::Rate).unwrap().median), (2, 600.0));
        assert_eq!((summary.faults.len(), summary.missing), (1, 2));
        assert!(summary.faults[0].ends_with("#2: it died"), "{:?}", summary.faults);
    }
}
