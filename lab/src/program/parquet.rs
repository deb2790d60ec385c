//! All trials as a Parquet file, if this program includes the library.

use std::path::PathBuf;

use anyhow::{Context, Result};
use wirelane_lab::columns::{Values, columns};
use wirelane_lab::results::Results;
use wirelane_store::plain::{Column, write};

/// File name.
const PARQUET: &str = "trials.parquet";

/// Writes the file beside `trials.csv`, and replaces an earlier one.
///
/// # Errors
/// The file cannot be written.
pub fn write_trials(results: &Results) -> Result<()> {
    let path: PathBuf = results.folder().join(PARQUET);
    let column = |(name, values)| {
        let column = match values {
            Values::Text(values) => Column::Text(values),
            Values::Counts(values) => Column::Counts(values),
            Values::Whole(values) => Column::Whole(values),
            Values::Real(values) => Column::Real(values),
        };
        (name, column)
    };
    let columns = columns(&results.rows).into_iter().map(column).collect();
    write(&path, columns).map_err(anyhow::Error::from_boxed).with_context(|| path.display().to_string())
}
