//! Summary of the repetitions of each trial.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::compare;
use crate::duts::{Adapter, Duts};
use crate::judge::{self, Judgement};
use crate::results::{FoundRow, Results, Row};
use crate::run;
use crate::schedule::{self, Case};
use crate::search::Bound;
use crate::suite::{Axis, Quantity, Rate, Suite};
use crate::trial::Measured;

/// Median and range of several values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Median: the middle value, or the mean of the two middle ones.
    pub median: f64,
    /// Lowest value.
    pub low: f64,
    /// Highest value.
    pub high: f64,
}

impl Spread {
    /// Spread of these values; `None`: there are no values.
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

/// Summary of the trials of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The case.
    pub case: Case,
    /// Trials that count.
    pub trials: usize,
    /// Trials that do not count: the generator was too slow, or a failure occurred.
    pub left_out: usize,
    /// Whether all trials were disturbed, so that the values are of disturbed ones.
    pub disturbed: bool,
    /// Packets offered per second.
    pub offered: Option<Spread>,
    /// Measured quantities; the rate is that of the search with the lowest goal.
    values: BTreeMap<Quantity, Spread>,
    /// CPU time of the sensor in user space and in the kernel, and of NAPI threads: medians.
    pub cpu_parts: Option<[f64; 3]>,
    /// Median ratio of captured packets to those of each reference in the same repetition.
    pub of: Vec<(String, f64)>,
    /// The same relative to this sensor with the first of the entries, workers or RX queues that the suite varies.
    pub of_first: Option<f64>,
    /// Other numbers that the sensor reports, by name.
    pub figures: Vec<(String, Spread)>,
    /// At twice the rate that was found: packets captured per second relative to it; and the loss at four fifths of it
    /// after that.
    pub overload: (Option<Spread>, Option<Spread>),
    /// For each goal of a search: the goal, the rate, and the reason why it is not higher.
    pub found: Vec<(f64, Option<Spread>, Bound)>,
}

impl Line {
    /// Value of a quantity; for a search, the one with the lowest goal.
    pub fn value(&self, quantity: Quantity) -> Option<Spread> {
        self.values.get(&quantity).copied()
    }

    /// Position on an axis.
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
            Axis::Entries => case.entries.map(f64::from),
            Axis::Devices => case.devices.map(f64::from),
        }
    }
}

/// Contents of a report.
#[derive(Clone, Debug)]
pub struct Summary {
    /// A line for each case, in the order of the suite.
    pub lines: Vec<Line>,
    /// DUTs that are missing, and the reasons.
    pub skipped: BTreeMap<String, String>,
    /// Trials with failures, and their descriptions.
    pub faults: Vec<String>,
    /// Trials and searches that are not completed yet.
    pub missing: usize,
    /// Statements about curves over the offered rate, by conditions.
    pub said: Vec<(String, Vec<String>)>,
    /// Decisions about the published conclusions.
    pub judgements: Vec<Judgement>,
}

/// Summarises the available results.
pub fn summarise(suite: &Suite, sensors: &Duts, results: &Results) -> Result<Summary> {
    // Missing programs of agents are known only to the run that asked them.
    let skipped = match &suite.agent_devices {
        Some(_) => results.skipped()?.unwrap_or_default(),
        None => run::skipped(suite, sensors),
    };
    let mut by_case: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &results.rows {
        by_case.entry(&row.case).or_default().push(row);
    }
    let mut found: BTreeMap<&str, Vec<&FoundRow>> = BTreeMap::new();
    for row in &results.found {
        found.entry(&row.case).or_default().push(row);
    }
    let trials = schedule::trials(suite, sensors);
    let wanted = |trial: &&schedule::Trial| !skipped.contains_key(&trial.case.sensor) && !results.has(trial);
    let missing = trials.iter().filter(wanted).count();
    let lines = trials.into_iter().filter(|trial| trial.repetition == 1).filter_map(|trial| {
        let key = trial.case.key();
        let rows = by_case.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        let found = found.get(key.as_str()).map_or(&[][..], Vec::as_slice);
        let of = |case: Case| by_case.get(case.key().as_str()).map_or(&[][..], Vec::as_slice);
        (!rows.is_empty() || !found.is_empty()).then(|| {
            let mut line = line(trial.case, rows, found);
            let reference = |name: &String| {
                Some((name.clone(), ratio(rows, of(same(suite, &line.case, sensors.get(name)?)))?))
            };
            line.of = suite
                .reference
                .iter()
                .filter(|name| **name != line.case.sensor)
                .filter_map(reference)
                .collect();
            line.of_first = first(suite, &line.case).and_then(|first| ratio(rows, of(first)));
            line
        })
    });
    let lines: Vec<Line> = lines.collect();
    let fault = |row: &Row| format!("{} #{}: {}", row.case, row.repetition, row.measured.fault);
    let faults = results.rows.iter().filter(|row| !row.measured.fault.is_empty()).map(fault).collect();
    let judgements = judge::judgements(suite, sensors, &lines);
    let mut summary = Summary { lines, skipped, faults, missing, said: Vec::new(), judgements };
    summary.said = compare::sentences(suite, sensors, &summary);
    Ok(summary)
}

/// The same case with another sensor, without the settings that the sensor does not support.
fn same(suite: &Suite, case: &Case, adapter: &Adapter) -> Case {
    let told = |names: &[&str]| adapter.asks_for(names);
    Case {
        sensor: adapter.name.clone(),
        loops: case.loops.filter(|_| told(&["loops", "load-program"])),
        workers: case.workers.filter(|_| told(&["workers"])),
        engine: case.engine.clone().filter(|_| told(&["engine"])),
        entries: case.entries.filter(|_| suite.traffic.flows_as_entries || told(&["entries"])),
        ..case.clone()
    }
}

/// The case with the first of the values that the suite varies; `None`: it is this case, or no value is varied.
fn first(suite: &Suite, case: &Case) -> Option<Case> {
    let mut first = case.clone();
    if suite.entries.len() > 1 && case.entries.is_some() {
        first.entries = suite.entries.first().copied();
    } else if suite.workers.len() > 1 && case.workers.is_some() {
        first.workers = suite.workers.first().copied();
    } else {
        first.queues = *suite.topologies().first()?;
    }
    (first != *case).then_some(first)
}

/// Median ratio of captured packets over the repetitions in which both count.
fn ratio(rows: &[&Row], others: &[&Row]) -> Option<f64> {
    let counts = |row: &&&Row| row.search.is_empty() && row.measured.counts();
    let of = |row: &&Row| {
        let other = others.iter().filter(counts).find(|other| other.repetition == row.repetition)?;
        let (ours, theirs) = (row.measured.captured_pps(), other.measured.captured_pps());
        (theirs > 0.0).then(|| ours / theirs)
    };
    Spread::of(rows.iter().filter(counts).filter_map(of).collect()).map(|spread| spread.median)
}

/// A value of a trial.
type Value = fn(&Measured) -> Option<f64>;

fn line(case: Case, rows: &[&Row], found: &[&FoundRow]) -> Line {
    let plain: Vec<&Measured> =
        rows.iter().filter(|row| row.search.is_empty()).map(|row| &row.measured).collect();
    let good: Vec<&Measured> = plain.iter().copied().filter(|one| one.counts()).collect();
    // On a machine that is always disturbed, disturbed trials are used, and marked.
    let usable = |one: &&Measured| !one.is_of_no_use();
    let rest: Vec<&Measured> = plain.iter().copied().filter(usable).collect();
    let disturbed = good.is_empty() && !rest.is_empty();
    let used = if disturbed { rest } else { good };
    let mut goals: Vec<f64> = found.iter().map(|row| row.goal).collect();
    goals.sort_by(|a, b| b.total_cmp(a));
    goals.dedup();
    let goal = |goal: f64| {
        let of: Vec<&&FoundRow> = found.iter().filter(|row| row.goal == goal).collect();
        let rates = of.iter().filter_map(|row| row.rate).collect();
        let bound = of.iter().map(|row| row.bound).find(|bound| *bound != Bound::Loss);
        (goal, Spread::of(rates), bound.unwrap_or_default())
    };
    let found_rates: Vec<_> = goals.iter().copied().map(goal).collect();
    let quantities: [(Quantity, Value); 7] = [
        (Quantity::Captured, |one| Some(one.captured_pps())),
        (Quantity::Analysed, |one| Some(one.analysed_pps())),
        (Quantity::Loss, |one| Some(one.loss())),
        (Quantity::Cpu, |one| Some(one.cpu_ns())),
        (Quantity::PassedOn, Measured::passed_on_pps),
        (Quantity::Generator, |one| Some(one.generator_ns())),
        (Quantity::Idle, |one| one.idle),
    ];
    let spread = |of: Value| Spread::of(used.iter().filter_map(|one| of(one)).collect());
    let values = quantities.into_iter().map(|(quantity, of)| (quantity, spread(of)));
    let rate = found_rates.last().and_then(|(_, rate, _)| *rate);
    let values = values.chain([(Quantity::Rate, rate)]);
    // Copies of packets are no measure of the loss.
    let values = values.filter(|(quantity, _)| *quantity != Quantity::Loss || !case_copies(&used));
    Line {
        trials: used.len() + found.len() / goals.len().max(1),
        left_out: plain.len() - used.len(),
        disturbed,
        offered: spread(|one| Some(one.offered_pps())),
        values: values.filter_map(|(quantity, value)| Some((quantity, value?))).collect(),
        cpu_parts: cpu_parts(&used),
        of: Vec::new(),
        of_first: None,
        figures: figures(&used),
        overload: (
            Spread::of(found.iter().filter_map(|row| row.overload).collect()),
            Spread::of(found.iter().filter_map(|row| row.lost_after).collect()),
        ),
        found: found_rates,
        case,
    }
}

/// Medians of the shares of CPU time.
fn cpu_parts(used: &[&Measured]) -> Option<[f64; 3]> {
    let part = |at: usize| Spread::of(used.iter().map(|one| one.cpu_parts_ns()[at]).collect());
    Some([part(0)?.median, part(1)?.median, part(2)?.median])
}

/// Figures by name, each over the trials that have it.
fn figures(used: &[&Measured]) -> Vec<(String, Spread)> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in used.iter().flat_map(|one| &one.figures) {
        values.entry(name).or_default().push(*value);
    }
    values.into_iter().filter_map(|(name, values)| Some((name.to_owned(), Spread::of(values)?))).collect()
}

/// Whether packets were counted once for each worker: then more were captured than sent.
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
        let sensors = Duts::shipped();
        let text = "name = \"a\"\nsensors = [\"wirelane-count\"]\nrates = [1000, 2000, 3000]\nsearch = [0]\nrepetitions = 3\ncores = [[1]]\n";
        let suite = Suite::parse(text, Path::new("b"), &sensors).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::begin(&folder.path().join("r"), text, &Machine::describe()).unwrap();
        let trials = schedule::trials(&suite, &sensors);
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
            rate: Some(rate),
            trials: 9,
            ..FoundRow::default()
        };
        results.add_found(vec![found(1, 500.0)]).unwrap();
        results.add_found(vec![found(2, 700.0)]).unwrap();

        let summary = summarise(&suite, &sensors, &results).unwrap();
        let [first, second, third, search] = &summary.lines[..] else { panic!("{summary:?}") };
        assert_eq!((first.trials, first.left_out, first.disturbed), (2, 1, false));
        assert_eq!(
            first.value(Quantity::Captured).unwrap(),
            Spread { median: 902.0, low: 901.0, high: 903.0 }
        );
        assert_eq!(
            (second.trials, second.disturbed, second.value(Quantity::Captured).is_some()),
            (3, true, true)
        );
        assert_eq!((third.trials, third.left_out, third.value(Quantity::Captured)), (0, 2, None));
        assert_eq!((search.trials, search.value(Quantity::Rate).unwrap().median), (2, 600.0));
        assert_eq!((summary.faults.len(), summary.missing), (1, 2));
        assert!(summary.faults[0].ends_with("#2: it died"), "{:?}", summary.faults);
    }
}
