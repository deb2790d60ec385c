//! Mean and standard deviation over the repetitions of each case, and two results compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use wirelane::escape::printable;

use crate::results::{Results, Row};
use crate::trial::Measured;

/// Two means differ if they are further apart than this many standard errors of the difference.
const ERRORS: f64 = 2.0;

/// Mean and spread of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Statistic {
    /// Number of values.
    pub runs: usize,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation; `None`: there is one value only.
    pub standard_deviation: Option<f64>,
    /// Lowest value.
    pub low: f64,
    /// Highest value.
    pub high: f64,
}

impl Statistic {
    /// Statistic of these values; `None`: there are no values.
    pub fn of(values: &[f64]) -> Option<Statistic> {
        let low = values.iter().copied().min_by(f64::total_cmp)?;
        let high = values.iter().copied().max_by(f64::total_cmp)?;
        let runs = values.len();
        let mean = values.iter().sum::<f64>() / runs as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let standard_deviation = (runs > 1).then(|| (squares / (runs - 1) as f64).sqrt());
        Some(Statistic { runs, mean, standard_deviation, low, high })
    }

    /// Whether two means differ by more than their spread explains; `None`: a spread is not known.
    fn differs(&self, other: &Statistic) -> Option<bool> {
        let square = |one: &Statistic| Some(one.standard_deviation?.powi(2) / one.runs as f64);
        let error = (square(self)? + square(other)?).sqrt();
        Some((self.mean - other.mean).abs() > ERRORS * error)
    }
}

/// A case with its values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseStatistics {
    /// The case: the sensor and its conditions.
    pub case: String,
    /// Trials that do not count.
    pub left_out: usize,
    /// Whether no trial counts because other programs ran, and the values are of those trials.
    pub disturbed: bool,
    /// Values by name.
    pub values: BTreeMap<&'static str, Statistic>,
}

/// A measured value of a trial.
type Value = fn(&Measured) -> f64;

/// Values with their names.
const VALUES: [(&str, Value); 4] = [
    ("captured_pps", Measured::captured_pps),
    ("analysed_pps", Measured::analysed_pps),
    ("loss_percent", |one| one.loss() * 100.0),
    ("cpu_ns_per_packet", Measured::cpu_ns),
];

/// Name of the rate that a search has found.
const FOUND: &str = "found_pps";

/// Statistics of all cases, in order of their first trials.
pub fn statistics(results: &Results) -> Vec<CaseStatistics> {
    let mut cases: Vec<CaseStatistics> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for row in results.rows.iter().filter(|row| row.search.is_empty()) {
        if !names.contains(&row.case.as_str()) {
            names.push(&row.case);
        }
    }
    for name in names {
        let rows: Vec<&Row> =
            results.rows.iter().filter(|row| row.case == name && row.search.is_empty()).collect();
        let mut used: Vec<&Row> = rows.iter().copied().filter(|row| row.measured.counts()).collect();
        let disturbed = used.is_empty() && rows.iter().any(|row| !row.measured.is_of_no_use());
        if disturbed {
            used = rows.iter().copied().filter(|row| !row.measured.is_of_no_use()).collect();
        }
        let value = |(name, value): (&'static str, Value)| {
            let values: Vec<f64> = used.iter().map(|row| value(&row.measured)).collect();
            Some((name, Statistic::of(&values)?))
        };
        cases.push(CaseStatistics {
            case: name.to_owned(),
            left_out: rows.len() - used.len(),
            disturbed,
            values: VALUES.into_iter().filter_map(value).collect(),
        });
    }
    let mut found: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in &results.found {
        let rates = found.entry(format!("{} goal={}", row.case, row.goal)).or_default();
        rates.extend(row.rate);
    }
    cases.extend(found.into_iter().map(|(case, rates)| CaseStatistics {
        case,
        left_out: 0,
        disturbed: false,
        values: Statistic::of(&rates).map(|rate| (FOUND, rate)).into_iter().collect(),
    }));
    cases
}

/// A value of a case in two results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The case.
    pub case: String,
    /// Name of the value.
    pub value: &'static str,
    /// In the first results.
    pub before: Statistic,
    /// In the second results.
    pub after: Statistic,
    /// The second mean divided by the first; `None`: the first is 0.
    pub ratio: Option<f64>,
    /// Whether the means differ by more than two standard errors; `None`: one of them has one run only.
    pub differs: Option<bool>,
}

/// Two results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Values that both have.
    pub changes: Vec<Change>,
    /// Cases that only the first has.
    pub only_before: Vec<String>,
    /// Cases that only the second has.
    pub only_after: Vec<String>,
}

/// Compares two results, case by case.
pub fn compare(before: &[CaseStatistics], after: &[CaseStatistics]) -> Comparison {
    let mut comparison = Comparison::default();
    for case in before {
        let Some(other) = after.iter().find(|other| other.case == case.case) else {
            comparison.only_before.push(case.case.clone());
            continue;
        };
        for (name, before) in &case.values {
            let Some(after) = other.values.get(name) else { continue };
            comparison.changes.push(Change {
                case: case.case.clone(),
                value: name,
                before: *before,
                after: *after,
                ratio: (before.mean != 0.0).then(|| after.mean / before.mean),
                differs: before.differs(after),
            });
        }
    }
    let new = after.iter().filter(|case| before.iter().all(|other| other.case != case.case));
    comparison.only_after = new.map(|case| case.case.clone()).collect();
    comparison
}

/// A mean with its standard deviation.
fn shown(statistic: &Statistic) -> String {
    let digits = if statistic.mean.abs() < 100.0 { 3 } else { 0 };
    match statistic.standard_deviation {
        Some(deviation) => format!("{:.digits$} \u{b1} {deviation:.digits$}", statistic.mean),
        None => format!("{:.digits$}", statistic.mean),
    }
}

/// The statistics as text.
pub fn text(cases: &[CaseStatistics]) -> String {
    let mut text = String::new();
    for case in cases {
        let runs = case.values.values().map(|statistic| statistic.runs).max().unwrap_or(0);
        let _ = write!(text, "{}: {runs} run{}", printable(&case.case), if runs == 1 { "" } else { "s" });
        if case.left_out > 0 {
            let _ = write!(text, ", {} left out", case.left_out);
        }
        text.push_str(if case.disturbed { ", disturbed by other programs\n" } else { "\n" });
        for (name, statistic) in &case.values {
            let _ = writeln!(
                text,
                "  {name:<18} {}  ({:.3} to {:.3})",
                shown(statistic),
                statistic.low,
                statistic.high
            );
        }
    }
    text
}

impl Comparison {
    /// The comparison as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut case = "";
        for change in &self.changes {
            if change.case != case {
                case = &change.case;
                let _ = writeln!(text, "{}", printable(case));
            }
            let ratio = change.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}x"));
            let verdict = match change.differs {
                Some(true) => "differs",
                Some(false) => "within the spread",
                None => "one run: no spread",
            };
            let _ = writeln!(
                text,
                "  {:<18} {} -> {}  {ratio}, {verdict}",
                change.value,
                shown(&change.before),
                shown(&change.after)
            );
        }
        for (cases, which) in [(&self.only_before, "first"), (&self.only_after, "second")] {
            for case in cases {
                let _ = writeln!(text, "{}: only in the {which} folder", printable(case));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::FoundRow;

    /// Results in which these packets of 1000 were captured in a second, by case.
    fn results(folder: &std::path::Path, cases: &[(&str, &[u64])], found: &[f64]) -> Results {
        let mut results = Results::begin(folder, "", &Machine::describe()).unwrap();
        for (case, captured) in cases {
            for (repetition, captured) in (1..).zip(*captured) {
                let measured =
                    Measured { offered: 1000, captured: *captured, duration_s: 1.0, ..Measured::default() };
                let (case, rate) = ((*case).to_owned(), "1000".to_owned());
                results.add(Row { case, repetition, rate, search: String::new(), measured }).unwrap();
            }
        }
        let row = |rate: &f64| FoundRow { case: "s".to_owned(), rate: Some(*rate), ..FoundRow::default() };
        results.add_found(found.iter().map(row).collect()).unwrap();
        results
    }

    #[test]
    fn a_standard_deviation_is_that_of_a_sample() {
        let statistic = Statistic::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!((statistic.runs, statistic.mean, statistic.low, statistic.high), (8, 5.0, 2.0, 9.0));
        assert!((statistic.standard_deviation.unwrap() - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(Statistic::of(&[3.0]).unwrap().standard_deviation, None);
        assert_eq!(Statistic::of(&[]), None);
    }

    #[test]
    fn folders_are_compared_case_by_case() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let before =
            results(&at("a"), &[("x", &[500, 510, 490]), ("y", &[700, 700]), ("z", &[1])], &[10.0, 30.0]);
        let after = results(&at("b"), &[("x", &[505, 500, 495]), ("y", &[800, 802]), ("w", &[2])], &[20.0]);
        let (before, after) = (statistics(&before), statistics(&after));
        let captured = before[0].values["captured_pps"];
        assert_eq!((captured.mean, captured.standard_deviation, captured.runs), (500.0, Some(10.0), 3));
        let comparison = compare(&before, &after);
        let of = |case: &str, value: &str| {
            comparison.changes.iter().find(|one| one.case == case && one.value == value).unwrap()
        };
        assert_eq!(
            (of("x", "captured_pps").ratio, of("x", "captured_pps").differs),
            (Some(1.0), Some(false))
        );
        assert_eq!(of("y", "captured_pps").differs, Some(true));
        assert_eq!(
            (of("s goal=0", "found_pps").ratio, of("s goal=0", "found_pps").differs),
            (Some(1.0), None)
        );
        assert_eq!(
            (&comparison.only_before[..], &comparison.only_after[..]),
            (&["z".to_owned()][..], &["w".to_owned()][..])
        );
        let text = comparison.text();
        assert!(text.contains("500 \u{b1} 10 -> 500 \u{b1} 5  1.000x, within the spread"), "{text}");
        assert!(text.contains("z: only in the first folder"), "{text}");
    }
}
