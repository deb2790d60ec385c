//! Answers of ClickHouse, shown as those of a store.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::noted::Noted;
use super::{AskSettings, Form, Question, Shown, Sink, guarded, session};
use crate::{Error, Result};

/// Shows the answer to [`Question::clickhouse`], which is in Parquet: its columns become those of a store's answer, by
/// their position.
///
/// # Errors
/// [`Error::Engine`] if it is not such an answer, [`Error::Output`] with the error of `sink`.
pub fn show(question: &Question, limit: u64, answer: Vec<u8>, form: Form, sink: &mut Sink<'_>) -> Result<()> {
    let engine = |why: String| Error::Engine(why);
    let schema = schema(question, limit).map_err(|error| engine(error.strip_backtrace()))?;
    let mut shown = Shown::new(form, sink);
    let rows = match answer.is_empty() {
        true => Vec::new(),
        false => guarded(|| read(answer, &schema))
            .and_then(|read| read)
            .map_err(|why| engine(format!("the server's answer cannot be read: {why}")))?,
    };
    shown.rows(&schema, &rows).and_then(|()| shown.end(&schema))
}

/// Columns of a store's answer.
fn schema(question: &Question, limit: u64) -> datafusion::error::Result<SchemaRef> {
    let settings = AskSettings { folder: "".into(), memory_mib: 64, from_ns: None, to_ns: None, probe: None };
    let sql = question.sql(limit);
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(DataFusionError::IoError)?;
    let answer = runtime.block_on(session(&settings, &[], Some(&Noted::new()), None)?.sql(&sql))?;
    Ok(answer.schema().as_arrow().clone().into())
}

fn read(answer: Vec<u8>, schema: &SchemaRef) -> std::result::Result<Vec<RecordBatch>, String> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(answer))
        .and_then(ParquetRecordBatchReaderBuilder::build)
        .map_err(|error| error.to_string())?;
    let mut batches = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|error| error.to_string())?;
        if batch.num_columns() != schema.fields().len() {
            return Err(format!("it has {} columns, not {}", batch.num_columns(), schema.fields().len()));
        }
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns
            .map(|(column, field)| cast(column, field.data_type()))
            .collect::<std::result::Result<_, _>>();
        let batch = columns.and_then(|columns| RecordBatch::try_new(schema.clone(), columns));
        batches.push(batch.map_err(|error| error.to_string())?);
    }
    Ok(batches)
}
