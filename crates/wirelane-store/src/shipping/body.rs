//! Rows of several files of a table in memory, in the schema of today.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray, new_null_array};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::Error;
use crate::file::properties;
use crate::newer;
use crate::query::{guarded, json};
use crate::tables::{PROBE, Table};

/// Rows and origin of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Path of the file.
    pub path: PathBuf,
    /// Name of the probe; `None`: the file is of schema version 1.
    pub probe: Option<String>,
    /// Number of rows.
    pub rows: u64,
}

/// Rows of files.
#[derive(Debug, Default)]
pub struct Rows {
    /// Files that were read, and their rows.
    pub files: Vec<(Described, Vec<RecordBatch>)>,
    /// Files that cannot be read, and the reasons.
    pub damaged: Vec<(PathBuf, String)>,
}

impl Rows {
    /// All rows, in the order of the files.
    pub fn batches(&self) -> impl Iterator<Item = &RecordBatch> {
        self.files.iter().flat_map(|(_, batches)| batches)
    }
}

/// Reads the footer of a file; `None`: it cannot be read.
pub(crate) fn described(path: &Path) -> Option<Described> {
    let open = || {
        let file = File::open(path).ok()?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).ok()?;
        let metadata = reader.metadata().file_metadata();
        let pairs = metadata.key_value_metadata().into_iter().flatten();
        let probe = pairs.into_iter().find(|pair| pair.key == PROBE).and_then(|pair| pair.value.clone());
        Some(Described { path: path.to_owned(), probe, rows: u64::try_from(metadata.num_rows()).ok()? })
    };
    guarded(open).ok().flatten()
}

/// Reads files. `probe`: the name for rows of files that do not name theirs.
///
/// # Errors
/// [`Error::Newer`].
pub fn rows(table: Table, files: &[PathBuf], probe: &str) -> crate::Result<Rows> {
    let mut rows = Rows::default();
    for path in files {
        newer::refuse_file(path)?;
        let read = guarded(|| read(table, path, probe)).and_then(|read| read);
        match (read, described(path)) {
            (Ok(read), Some(found)) => rows.files.push((found, read)),
            (Err(why), _) => rows.damaged.push((path.clone(), why)),
            (Ok(_), None) => rows.damaged.push((path.clone(), "its footer cannot be read".to_owned())),
        }
    }
    Ok(rows)
}

/// A Parquet file with these rows of a table, written by this probe.
///
/// # Errors
/// [`Error::Engine`] if they cannot be encoded, which is a bug in this crate.
pub fn parquet<'a>(
    table: Table,
    probe: &str,
    batches: impl Iterator<Item = &'a RecordBatch>,
) -> crate::Result<Vec<u8>> {
    let failed = |error: parquet::errors::ParquetError| {
        Error::Engine(format!("{} cannot be encoded: {error}", table.name()))
    };
    let (mut bytes, properties) = (Vec::new(), properties(table, probe).as_ref().clone());
    let mut writer = ArrowWriter::try_new(&mut bytes, table.schema(), Some(properties)).map_err(failed)?;
    for batch in batches {
        writer.write(batch).map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    Ok(bytes)
}

/// A JSON object per line for each row, as queries print them.
///
/// # Errors
/// [`Error::Engine`] if they cannot be encoded, which is a bug in this crate.
pub fn json_lines(batches: &[&RecordBatch]) -> crate::Result<Vec<u8>> {
    json(batches).map_err(|error| Error::Engine(error.to_string()))
}

/// The rows of a file, with the columns of today.
fn read(table: Table, path: &Path, probe: &str) -> Result<Vec<RecordBatch>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| error.to_string())?;
    let schema = table.schema();
    let mut batches = Vec::new();
    for batch in reader.build().map_err(|error| error.to_string())? {
        let batch = batch.map_err(|error| error.to_string())?;
        let column = |name: &str| -> Option<ArrayRef> {
            batch.column_by_name(name).or_else(|| batch.column_by_name(table.former(name)?)).cloned()
        };
        let columns = schema.fields().iter().map(|field| match (column(field.name()), &**field.name()) {
            (Some(column), _) => column,
            (None, "probe") => Arc::new(StringArray::from(vec![probe; batch.num_rows()])),
            (None, "schema_version") => Arc::new(Int32Array::from(vec![1; batch.num_rows()])),
            (None, _) => new_null_array(field.data_type(), batch.num_rows()),
        });
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect());
        batches.push(batch.map_err(|error| error.to_string())?);
    }
    Ok(batches)
}
