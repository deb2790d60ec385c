//! The tables of a store: their columns and rows.
//!
//! Types are those that every reader of Parquet supports: Spark supports neither unsigned numbers nor times in
//! nanoseconds, so times are stored to the microsecond for people (`start_time`, `end_time`, in UTC) and in full for
//! programs (`start_ns`, `duration_ns`). Addresses are text, as people write them in questions. Names and meanings are
//! those of the JSON exports; each table documents its differences.

mod calls;
mod flows;
mod probe;
mod transactions;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;

pub use flows::FlowNames;

/// A table of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Flows.
    Flows,
    /// Calls.
    Calls,
    /// RTP streams, whether they belong to calls or not.
    Streams,
    /// HTTP transactions.
    Transactions,
    /// Results of the measurements of probes.
    Measurements,
    /// Raised and cleared alarms of probes.
    Alarms,
    /// Packet ledgers of probes.
    Ledgers,
}

/// A value that can be stored as rows of one or several tables.
pub trait Storable: Send + 'static {
    /// Tables that contain rows of this value.
    const TABLES: &'static [Table];
    /// Tables of the capture for the names of numbers, such as device ids.
    type Naming: Send + 'static;
    /// Names that are looked up once, not for every value.
    type Names: From<Self::Naming> + Send + 'static;

    /// Number of rows of this value in a table.
    fn rows(&self, table: Table) -> u64;

    /// Stores the rows: for each the table, the end in nanoseconds since 1970, and a function that fills the row.
    fn put(&self, names: &mut Self::Names, put: &mut Put<'_>);
}

/// Receives a row: see [`Storable::put`].
pub type Put<'a> = dyn FnMut(Table, u64, &mut dyn FnMut(&mut Row<'_>)) + 'a;

/// Key of the table's name in the metadata of a file.
pub(crate) const TABLE: &str = "wirelane.table";
/// Key of the probe's name in the metadata of a file.
pub(crate) const PROBE: &str = "wirelane.probe";
/// Key of the schema version in the metadata.
pub(crate) const VERSION: &str = "wirelane.schema";
/// Schema version of files that are written now: increased when a column changes its meaning, or when all tables get a
/// column. Version 2 added `probe` and `schema_version` to all tables; files of version 1 are read as such.
pub const SCHEMA: i32 = 2;

/// Columns at the end of all tables: who wrote the row, and in which schema.
const IDENTITY: [Described; 2] = [("probe", Type::Text, true), ("schema_version", Type::Int, true)];

/// Columns that had another name before version 0.2: table, former name, name. Files keep the names that they were written
/// with.
const RENAMED: [(Table, &str, &str); 1] = [(Table::Flows, "proto", "protocol")];

#[derive(Clone, Copy)]
enum Type {
    Int,
    Long,
    Real,
    Flag,
    Text,
    Time,
}

/// Name, type, whether the value may be missing.
type Described = (&'static str, Type, bool);

impl Table {
    /// All tables.
    pub const ALL: [Table; 7] = [
        Table::Flows,
        Table::Calls,
        Table::Streams,
        Table::Transactions,
        Table::Measurements,
        Table::Alarms,
        Table::Ledgers,
    ];

    /// Name in SQL and of the folder.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Flows => "flows",
            Table::Calls => "calls",
            Table::Streams => "streams",
            Table::Transactions => "transactions",
            Table::Measurements => "measurements",
            Table::Alarms => "alarms",
            Table::Ledgers => "ledgers",
        }
    }

    /// Name of a column before version 0.2.
    pub(crate) fn former(self, name: &str) -> Option<&'static str> {
        RENAMED.iter().find(|(of, _, now)| *of == self && *now == name).map(|(_, former, _)| *former)
    }

    /// Name of the counter of rows that are not in any file.
    pub(crate) const fn unwritten(self) -> &'static str {
        match self {
            Table::Flows => "unwritten_flows",
            Table::Calls => "unwritten_calls",
            Table::Streams => "unwritten_streams",
            Table::Transactions => "unwritten_transactions",
            Table::Measurements => "unwritten_measurements",
            Table::Alarms => "unwritten_alarms",
            Table::Ledgers => "unwritten_ledgers",
        }
    }

    /// Schema of the table's files.
    pub fn schema(self) -> SchemaRef {
        let field = |(name, kind, nullable): (String, Type, bool)| {
            let kind = match kind {
                Type::Int => DataType::Int32,
                Type::Long => DataType::Int64,
                Type::Real => DataType::Float64,
                Type::Flag => DataType::Boolean,
                Type::Text => DataType::Utf8,
                Type::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
            };
            Field::new(name, kind, nullable)
        };
        let own = |columns: &[Described]| -> Vec<(String, Type, bool)> {
            columns.iter().map(|(name, kind, nullable)| ((*name).to_owned(), *kind, *nullable)).collect()
        };
        let columns = match self {
            Table::Flows => flows::columns(),
            Table::Calls => own(calls::CALLS),
            Table::Streams => own(calls::STREAMS),
            Table::Transactions => own(transactions::COLUMNS),
            Table::Measurements => own(probe::MEASUREMENTS),
            Table::Alarms => own(probe::ALARMS),
            Table::Ledgers => own(probe::LEDGERS),
        };
        let columns = columns.into_iter().chain(own(&IDENTITY));
        Arc::new(Schema::new(columns.map(field).collect::<Vec<_>>()))
    }

    /// Columns of close numbers that rarely repeat: a delta encoding is better than a dictionary for these.
    pub(crate) fn series(self) -> &'static [&'static str] {
        &["start_time", "end_time", "start_ns", "duration_ns"]
    }

    /// Columns of values that rarely repeat and are not close to each other: a dictionary would cost time and memory.
    pub(crate) fn distinct(self) -> &'static [&'static str] {
        match self {
            Table::Flows => &[
                "community_id",
                "tcp_rtt_ns",
                "tcp_first_seq",
                "tcp_last_seq",
                "reverse_tcp_first_seq",
                "reverse_tcp_last_seq",
            ],
            Table::Calls => &["call_id"],
            _ => &[],
        }
    }
}

#[derive(Debug)]
enum Column {
    Int(Int32Builder),
    Long(Int64Builder),
    Real(Float64Builder),
    Flag(BooleanBuilder),
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
}

impl Column {
    fn of(kind: &DataType) -> Column {
        match kind {
            DataType::Int32 => Column::Int(Int32Builder::new()),
            DataType::Int64 => Column::Long(Int64Builder::new()),
            DataType::Float64 => Column::Real(Float64Builder::new()),
            DataType::Boolean => Column::Flag(BooleanBuilder::new()),
            DataType::Timestamp(..) => Column::Time(TimestampMicrosecondBuilder::new()),
            _ => Column::Text(StringBuilder::new()),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Int(builder) => Arc::new(builder.finish()),
            Column::Long(builder) => Arc::new(builder.finish()),
            Column::Real(builder) => Arc::new(builder.finish()),
            Column::Flag(builder) => Arc::new(builder.finish()),
            Column::Text(builder) => Arc::new(builder.finish()),
            Column::Time(builder) => Arc::new(builder.finish()),
        }
    }
}

/// Rows that are collected for a file.
#[derive(Debug)]
pub(crate) struct Columns {
    schema: SchemaRef,
    probe: Arc<str>,
    columns: Vec<Column>,
    rows: usize,
}

impl Columns {
    /// Creates an empty set of rows of this probe.
    pub(crate) fn new(table: Table, probe: Arc<str>) -> Columns {
        let schema = table.schema();
        let columns = schema.fields().iter().map(|field| Column::of(field.data_type())).collect();
        Columns { schema, probe, columns, rows: 0 }
    }

    /// Schema of the rows.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, fill: &mut dyn FnMut(&mut Row<'_>)) {
        let mut row = Row(self.columns.iter_mut());
        fill(&mut row);
        row.text(Some(&self.probe));
        row.int(Some(SCHEMA));
        self.rows += 1;
    }

    /// Takes all rows out as a batch.
    ///
    /// # Errors
    /// If columns do not match the schema, which is a bug in this crate.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        RecordBatch::try_new(self.schema(), self.columns.iter_mut().map(Column::finish).collect())
    }
}

/// The values of a row, written column by column.
#[derive(Debug)]
pub struct Row<'a>(std::slice::IterMut<'a, Column>);

impl Row<'_> {
    fn int(&mut self, value: Option<impl Into<i32>>) {
        if let Some(Column::Int(column)) = self.0.next() {
            column.append_option(value.map(Into::into));
        }
    }

    fn long(&mut self, value: Option<impl Into<i64>>) {
        if let Some(Column::Long(column)) = self.0.next() {
            column.append_option(value.map(Into::into));
        }
    }

    /// Writes an unsigned 64-bit value: times end in 2262, and no counter gets there.
    fn wide(&mut self, value: Option<u64>) {
        self.long(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn real(&mut self, value: f64) {
        if let Some(Column::Real(column)) = self.0.next() {
            column.append_value(value);
        }
    }

    fn flag(&mut self, value: bool) {
        if let Some(Column::Flag(column)) = self.0.next() {
            column.append_value(value);
        }
    }

    fn text(&mut self, value: Option<&str>) {
        if let Some(Column::Text(column)) = self.0.next() {
            column.append_option(value);
        }
    }

    fn address(&mut self, value: Option<IpAddr>) {
        let Some(Column::Text(column)) = self.0.next() else { return };
        match value {
            // Writing to the builder cannot fail.
            Some(value) => {
                let _ = write!(column, "{value}");
                column.append_value("");
            }
            None => column.append_null(),
        }
    }

    fn time(&mut self, ns: u64) {
        if let Some(Column::Time(column)) = self.0.next() {
            column.append_value((ns / 1000) as i64);
        }
    }

    /// Writes the four columns that all tables begin with.
    fn span(&mut self, first_ns: u64, last_ns: u64) {
        self.time(first_ns);
        self.time(last_ns);
        self.wide(Some(first_ns));
        self.wide(Some(last_ns.saturating_sub(first_ns)));
    }

    /// Writes the values of a JSON object under the names of these columns.
    fn values(&mut self, object: &serde_json::Value, columns: &[Described]) {
        for ((name, ..), column) in columns.iter().zip(&mut self.0) {
            let value = &object[*name];
            match column {
                // Numbers fit: columns are as wide as their counters.
                Column::Int(column) => {
                    column.append_option(value.as_i64().and_then(|value| value.try_into().ok()))
                }
                Column::Long(column) => column.append_option(value.as_i64()),
                Column::Real(column) => column.append_option(value.as_f64()),
                Column::Flag(column) => column.append_option(value.as_bool()),
                Column::Text(column) => column.append_option(value.as_str()),
                Column::Time(column) => column.append_null(),
            }
        }
    }
}
