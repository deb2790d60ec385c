//! A table with any columns in one Parquet file, for results outside of a store.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// The values of a column.
#[derive(Clone, Debug)]
pub enum Column {
    /// Text.
    Text(Vec<String>),
    /// Counts, some of which may be missing.
    Counts(Vec<Option<u64>>),
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Floating-point numbers, some of which may be missing.
    Real(Vec<Option<f64>>),
}

impl Column {
    fn array(self) -> ArrayRef {
        match self {
            Column::Text(values) => Arc::new(StringArray::from(values)),
            Column::Counts(values) => Arc::new(UInt64Array::from(values)),
            Column::Whole(values) => Arc::new(Int64Array::from(values)),
            Column::Real(values) => Arc::new(Float64Array::from(values)),
        }
    }
}

/// Writes a file, and replaces an existing one. The file is built in memory first.
///
/// # Errors
/// If columns differ in length, or the file cannot be written.
pub fn write(
    path: &Path,
    columns: Vec<(&str, Column)>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let columns = columns.into_iter().map(|(name, column)| {
        // The column's type decides whether it may have gaps, and not its current values.
        let gaps = matches!(column, Column::Counts(_) | Column::Real(_));
        (name, column.array(), gaps)
    });
    let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(zstd).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    fs::write(path, bytes)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        let columns = vec![
            ("name", Column::Text(vec!["a".into(), "\u{e9}\n".into()])),
            ("count", Column::Counts(vec![Some(u64::MAX), None])),
            ("whole", Column::Whole(vec![-1, 2])),
            ("real", Column::Real(vec![Some(1e300), None])),
        ];
        write(&path, columns.clone()).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).unwrap()).unwrap();
        let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 1);
        for ((name, column), (field, array)) in
            columns.into_iter().zip(batches[0].schema().fields().iter().zip(batches[0].columns()))
        {
            assert_eq!((name, &column.array()), (field.name().as_str(), array));
        }
        write(&path, vec![("a", Column::Whole(vec![]))]).unwrap();
        let uneven = vec![("a", Column::Whole(vec![1])), ("b", Column::Whole(vec![]))];
        assert!(write(&path, uneven).is_err());
        assert!(write(&folder.path().join("none/a"), vec![("a", Column::Whole(vec![]))]).is_err());
    }
}
