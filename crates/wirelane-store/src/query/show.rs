//! Output of answers for people and programs.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::cast::AsArray as _;
use datafusion::arrow::array::types::TimestampMicrosecondType;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use jiff::Timestamp;
use wirelane::escape::{csv_cell, json, printable};
use wirelane_export::calendar;

use super::Sink;
use crate::{Error, Result};

/// Output format of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Columns under a header, for people: control characters for the terminal are escaped.
    Table,
    /// A JSON object per line; NULL values are omitted, and unsafe characters become `\uXXXX`.
    Json,
    /// CSV (RFC 4180, with LF line ends) under a header; NULL values are empty, unsafe characters are escaped, and
    /// texts that a spreadsheet would execute are prefixed with an apostrophe.
    Csv,
}

/// Number of first rows that determine the columns' widths; wider cells in later rows stand out.
const MEASURED: usize = 20_000;

/// State of writing an answer.
pub(super) struct Shown<'a> {
    form: Form,
    sink: &'a mut Sink<'a>,
    /// Widths of a table's columns, once its header was written.
    widths: Option<Vec<usize>>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(form: Form, sink: &'a mut Sink<'_>) -> Shown<'a> {
        // The sink lives longer than this.
        Shown { form, sink, widths: None }
    }

    /// Whether anything was written.
    pub(super) fn begun(&self) -> bool {
        self.widths.is_some()
    }

    /// Writes rows.
    pub(super) fn rows(&mut self, schema: &SchemaRef, batches: &[RecordBatch]) -> Result<()> {
        let engine = |error: ArrowError| Error::Engine(error.to_string());
        let mut text = Vec::new();
        match self.form {
            Form::Json => {
                self.widths.get_or_insert_default();
                text = json_lines(&batches.iter().collect::<Vec<_>>()).map_err(engine)?;
            }
            Form::Csv => {
                let rows = cells(batches, true).map_err(engine)?;
                let head = schema.fields().iter().map(|field| csv_cell(field.name()).into_owned()).collect();
                let head = self.widths.is_none().then_some(head);
                self.widths.get_or_insert_default();
                for row in head.into_iter().chain(rows) {
                    text.extend_from_slice(row.join(",").as_bytes());
                    text.push(b'\n');
                }
            }
            Form::Table => self.table(schema, batches, &mut text).map_err(engine)?,
        }
        (self.sink)(&text).map_err(Error::Output)
    }

    fn table(
        &mut self,
        schema: &SchemaRef,
        batches: &[RecordBatch],
        text: &mut Vec<u8>,
    ) -> std::result::Result<(), ArrowError> {
        let mut rows = cells(batches, false)?;
        if self.widths.is_none() {
            rows.insert(
                0,
                schema.fields().iter().map(|field| printable(field.name()).into_owned()).collect(),
            );
            let width = |column: usize| {
                let cells = rows.iter().take(MEASURED).map(|row| row[column].chars().count());
                cells.max().unwrap_or_default()
            };
            self.widths = Some((0..schema.fields().len()).map(width).collect());
        }
        let widths = self.widths.as_deref().unwrap_or_default();
        for row in rows {
            let mut line = String::new();
            for ((cell, width), field) in row.iter().zip(widths).zip(schema.fields()) {
                let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                let (left, right) =
                    if field.data_type().is_numeric() { (pad.as_str(), "") } else { ("", pad.as_str()) };
                line.extend([left, cell.as_str(), right, "  "]);
            }
            text.extend_from_slice(line.trim_end().as_bytes());
            text.push(b'\n');
        }
        Ok(())
    }

    /// Ends the answer; one without rows gets a header.
    pub(super) fn end(&mut self, schema: &SchemaRef) -> Result<()> {
        if self.begun() { Ok(()) } else { self.rows(schema, &[]) }
    }
}

/// A JSON object per line for each row, in which unsafe characters are `\uXXXX`.
pub(crate) fn json_lines(batches: &[&RecordBatch]) -> std::result::Result<Vec<u8>, ArrowError> {
    let mut text = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut text);
    writer.write_batches(batches)?;
    writer.finish()?;
    // Arrow writes UTF-8, and escapes only what JSON does not allow.
    if let Cow::Owned(safe) = json(&String::from_utf8_lossy(&text)) {
        text = safe.into_bytes();
    }
    Ok(text)
}

/// A column of a table. Times become text if times for people are in the local time zone, with their distance to UTC.
fn for_people(column: &ArrayRef) -> std::result::Result<ArrayRef, ArrowError> {
    let (Some(zone), DataType::Timestamp(..)) = (calendar::local(), column.data_type()) else {
        return Ok(Arc::clone(column));
    };
    let times = cast(column, &DataType::Timestamp(TimeUnit::Microsecond, None))?;
    let text = times.as_primitive::<TimestampMicrosecondType>().iter().map(|us| {
        let time = Timestamp::from_microsecond(us?).ok()?.to_zoned_datetime(zone.clone());
        Some(time.strftime("%Y-%m-%d %H:%M:%S%.f%:z").to_string())
    });
    Ok(Arc::new(text.collect::<StringArray>()))
}

/// Rows as text: cells of CSV, or of a table.
fn cells(batches: &[RecordBatch], csv: bool) -> std::result::Result<Vec<Vec<String>>, ArrowError> {
    let options = FormatOptions::default()
        .with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.f"))
        .with_null(if csv { "" } else { "-" });
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| if csv { Ok(Arc::clone(column)) } else { for_people(column) });
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        let columns = columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let mut line = Vec::with_capacity(columns.len());
            for (at, column) in columns.iter().enumerate() {
                let cell = column.value(row).try_to_string()?;
                // Numbers may begin with a sign that would make a text a formula: -inf.
                let is_text = !batch.column(at).data_type().is_numeric();
                let safe = if csv && is_text { csv_cell(&cell) } else { printable(&cell) };
                line.push(safe.into_owned());
            }
            rows.push(line);
        }
    }
    Ok(rows)
}
