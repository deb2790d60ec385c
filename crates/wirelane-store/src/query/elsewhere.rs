//! Answers of ClickHouse, shown as those of a store.

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::cell::{Column, Row, cell, plain};
use super::engine::Engine;
use super::noted::Noted;
use super::{AskSettings, Form, Question, Shown, Sink, guarded};
use crate::{Error, Result};

/// Shows the answer to [`Question::clickhouse`], which is in Parquet: its columns become those of a store's answer, by
/// their position.
///
/// # Errors
/// [`Error::Engine`] if it is not such an answer, [`Error::Output`] with the error of `sink`.
pub fn show<'s>(
    question: &Question,
    limit: u64,
    answer: Vec<u8>,
    form: Form,
    sink: &'s mut Sink<'s>,
) -> Result<()> {
    let columns = columns(question, limit).map_err(|error| Error::Engine(error.to_string()))?;
    let mut shown = Shown::new(form, sink);
    let rows = match answer.is_empty() {
        true => Vec::new(),
        false => guarded(|| read(answer, columns.len()))
            .and_then(|read| read)
            .map_err(|why| Error::Engine(format!("the server's answer cannot be read: {why}")))?,
    };
    shown.rows(&columns, &rows).and_then(|()| shown.end(&columns))
}

/// Columns of a store's answer.
fn columns(question: &Question, limit: u64) -> rusqlite::Result<Vec<Column>> {
    let settings = AskSettings { folder: "".into(), memory_mib: 64, from_ns: None, to_ns: None, probe: None };
    Engine::new(&settings, &[], Some(&Noted::new()), None)?.columns(&question.sql(limit))
}

fn read(answer: Vec<u8>, count: usize) -> std::result::Result<Vec<Row>, String> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(answer))
        .and_then(ParquetRecordBatchReaderBuilder::build)
        .map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|error| error.to_string())?;
        if batch.num_columns() != count {
            return Err(format!("it has {} columns, not {count}", batch.num_columns()));
        }
        let columns = batch.columns().iter().map(plain).collect::<std::result::Result<Vec<_>, _>>();
        let columns = columns.map_err(|error| error.to_string())?;
        rows.extend(
            (0..batch.num_rows())
                .map(|row| -> Row { columns.iter().map(|column| cell(column, row).into_owned()).collect() }),
        );
    }
    Ok(rows)
}
