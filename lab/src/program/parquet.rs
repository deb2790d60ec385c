//! All trials as a Parquet file, if this program includes the library: the columns of `trials.csv`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use wirelane_store::plain::{Column, write};

use crate::results::{Results, Row, figures};
use crate::trial::Measured;

/// File name.
const PARQUET: &str = "trials.parquet";

/// Writes the file beside `trials.csv`, and replaces an earlier one.
pub fn write_trials(results: &Results) -> Result<()> {
    let path: PathBuf = results.folder().join(PARQUET);
    let columns = columns(&results.rows);
    write(&path, columns).map_err(anyhow::Error::from_boxed).with_context(|| path.display().to_string())
}

/// Columns, with their names.
fn columns(rows: &[Row]) -> Vec<(&'static str, Column)> {
    let text = |of: fn(&Row) -> &String| Column::Text(rows.iter().map(|row| of(row).clone()).collect());
    let count = |of: fn(&Row) -> u64| Column::Counts(rows.iter().map(|row| Some(of(row))).collect());
    let real =
        |of: fn(&Measured) -> f64| Column::Real(rows.iter().map(|row| Some(of(&row.measured))).collect());
    vec![
        ("case", text(|row| &row.case)),
        ("repetition", count(|row| row.repetition.into())),
        ("rate", text(|row| &row.rate)),
        ("search", text(|row| &row.search)),
        ("offered", count(|row| row.measured.offered)),
        ("sent", count(|row| row.measured.sent)),
        ("seen", Column::Counts(rows.iter().map(|row| row.measured.seen).collect())),
        ("captured", count(|row| row.measured.captured)),
        ("analysed", count(|row| row.measured.analysed)),
        ("lost", count(|row| row.measured.lost)),
        ("aside", count(|row| row.measured.aside)),
        ("unaccounted", Column::Whole(rows.iter().map(|row| row.measured.unaccounted).collect())),
        ("passed_on", Column::Counts(rows.iter().map(|row| row.measured.passed_on).collect())),
        ("duration_s", real(|of| of.duration_s)),
        ("late_s", real(|of| of.late_s)),
        ("sensor_cpu_s", real(|of| of.sensor_cpu_s)),
        ("sensor_user_s", real(|of| of.sensor_user_s)),
        ("napi_cpu_s", real(|of| of.napi_cpu_s)),
        ("generator_cpu_s", real(|of| of.generator_cpu_s)),
        ("cores", text(|row| &row.measured.cores)),
        ("idle", Column::Real(rows.iter().map(|row| row.measured.idle).collect())),
        ("others", real(|of| of.others)),
        ("steal", real(|of| of.steal)),
        ("figures", Column::Text(rows.iter().map(|row| figures::text(&row.measured.figures)).collect())),
        ("invalid", text(|row| &row.measured.invalid)),
        ("fault", text(|row| &row.measured.fault)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::results::TRIALS;

    #[test]
    fn columns_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let results = Results::begin(&folder.path().join("a"), "", &Machine::describe()).unwrap();
        let text = std::fs::read_to_string(results.folder().join(TRIALS)).unwrap();
        let names: Vec<&str> = columns(&[]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.join(","), text.trim());
    }
}
