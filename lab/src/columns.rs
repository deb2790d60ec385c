//! All trials by column, as table libraries require: the columns of `trials.csv`.

use crate::results::{Row, figures_text};
use crate::trial::Measured;

/// Values of a column, one for each trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Text.
    Text(Vec<String>),
    /// Counts, with gaps.
    Counts(Vec<Option<u64>>),
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Real numbers.
    Real(Vec<f64>),
}

/// Columns, with their names.
pub fn columns(rows: &[Row]) -> Vec<(&'static str, Values)> {
    let text = |of: fn(&Row) -> &String| Values::Text(rows.iter().map(|row| of(row).clone()).collect());
    let count = |of: fn(&Row) -> u64| Values::Counts(rows.iter().map(|row| Some(of(row))).collect());
    let real = |of: fn(&Measured) -> f64| Values::Real(rows.iter().map(|row| of(&row.measured)).collect());
    vec![
        ("case", text(|row| &row.case)),
        ("repetition", count(|row| row.repetition.into())),
        ("rate", text(|row| &row.rate)),
        ("search", text(|row| &row.search)),
        ("offered", count(|row| row.measured.offered)),
        ("sent", count(|row| row.measured.sent)),
        ("seen", Values::Counts(rows.iter().map(|row| row.measured.seen).collect())),
        ("captured", count(|row| row.measured.captured)),
        ("analysed", count(|row| row.measured.analysed)),
        ("lost", count(|row| row.measured.lost)),
        ("aside", count(|row| row.measured.aside)),
        ("unaccounted", Values::Whole(rows.iter().map(|row| row.measured.unaccounted).collect())),
        ("passed_on", Values::Counts(rows.iter().map(|row| row.measured.passed_on).collect())),
        ("duration_s", real(|of| of.duration_s)),
        ("late_s", real(|of| of.late_s)),
        ("sensor_cpu_s", real(|of| of.sensor_cpu_s)),
        ("sensor_user_s", real(|of| of.sensor_user_s)),
        ("napi_cpu_s", real(|of| of.napi_cpu_s)),
        ("generator_cpu_s", real(|of| of.generator_cpu_s)),
        ("cores", text(|row| &row.measured.cores)),
        ("others", real(|of| of.others)),
        ("steal", real(|of| of.steal)),
        ("figures", Values::Text(rows.iter().map(|row| figures_text(&row.measured.figures)).collect())),
        ("invalid", text(|row| &row.measured.invalid)),
        ("fault", text(|row| &row.measured.fault)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::{Results, TRIALS};

    #[test]
    fn columns_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::begin(&folder.path().join("a"), "", &Machine::describe()).unwrap();
        let text = std::fs::read_to_string(results.folder().join(TRIALS)).unwrap();
        let names: Vec<&str> = columns(&[]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.join(","), text.trim());
    }
}
