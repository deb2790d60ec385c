//! The tables of a store: their columns, and rows of them.
//!
//! Types are those that every reader of Parquet has: Spark knows neither unsigned numbers nor times in nanoseconds, so times are
//! there to the microsecond for people (`start_time`, `end_time`, in UTC) and in full for programs (`start_ns`,
//! `duration_ns`). Addresses are text, as people write them in questions. Names and meanings are those of the JSON exports;
//! each table says where they are not.

mod calls;
mod flows;
mod probe;
mod transactions;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondBuilder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;

pub use flows::FlowNames;

/// A table of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Flows.
    Flows,
    /// Calls.
    Calls,
    /// RTP streams, of calls and others.
    Streams,
    /// HTTP transactions.
    Transactions,
    /// What measurements of probes have come to.
    Measurements,
    /// Alarms of probes that were raised or cleared.
    Alarms,
    /// Where packets of probes went.
    Ledgers,
}

/// What can be stored: it comes to rows of one table or several.
pub trait Storable: Send + 'static {
    /// The tables that it comes to.
    const TABLES: &'static [Table];
    /// What numbers in it are called, as the capture knows it.
    type Naming: Send + 'static;
    /// What is looked up once, and not for every one.
    type Names: From<Self::Naming> + Send + 'static;

    /// Rows of this table that it comes to.
    fn rows(&self, table: Table) -> u64;

    /// Puts its rows: for each the table, when it has ended in nanoseconds since 1970, and what fills it.
    fn put(&self, names: &mut Self::Names, put: &mut Put<'_>);
}

/// Takes a row: see [`Storable::put`].
pub type Put<'a> = dyn FnMut(Table, u64, &mut dyn FnMut(&mut Row<'_>)) + 'a;

/// What the metadata of a file says of its table: this, and the table's name.
pub(crate) const TABLE: &str = "wirelane.table";
/// What it says of the columns: one more where a column has changed its meaning. A new column is no such change.
pub(crate) const VERSION: (&str, &str) = ("wirelane.schema", "1");

#[derive(Clone, Copy)]
enum Type {
    Int,
    Long,
    Real,
    Flag,
    Text,
    Time,
}

/// Name, type, whether a row may be without.
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

    /// Its name, in SQL, and of its folder.
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

    /// What counts its rows that are in no file.
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

    /// The schema of its files.
    pub(crate) fn schema(self) -> SchemaRef {
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
        Arc::new(Schema::new(columns.into_iter().map(field).collect::<Vec<_>>()))
    }

    /// Columns that hardly ever have a value twice: numbers close to each other, for which there is a better encoding than a
    /// dictionary.
    pub(crate) fn series(self) -> &'static [&'static str] {
        &["start_time", "end_time", "start_ns", "duration_ns"]
    }

    /// Columns of values that hardly ever come twice, and are not close to each other: a dictionary takes time and room.
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

/// Rows on their way into a file.
#[derive(Debug)]
pub(crate) struct Columns {
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
}

impl Columns {
    /// No rows.
    pub(crate) fn new(table: Table) -> Columns {
        let schema = table.schema();
        let columns = schema.fields().iter().map(|field| Column::of(field.data_type())).collect();
        Columns { schema, columns, rows: 0 }
    }

    /// Their schema.
    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// How many there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds one.
    pub(crate) fn push(&mut self, fill: &mut dyn FnMut(&mut Row<'_>)) {
        fill(&mut Row(self.columns.iter_mut()));
        self.rows += 1;
    }

    /// Takes the rows out.
    ///
    /// # Errors
    /// Where columns are not what the schema says, which is a fault here.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        RecordBatch::try_new(self.schema(), self.columns.iter_mut().map(Column::finish).collect())
    }
}

/// A row's values, column by column.
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

    /// Of what is 64 bits wide: times end in 2262, and no counter gets there.
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
            // The builder takes all that is written.
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

    /// The four columns that all tables begin with.
    fn span(&mut self, first_ns: u64, last_ns: u64) {
        self.time(first_ns);
        self.time(last_ns);
        self.wide(Some(first_ns));
        self.wide(Some(last_ns.saturating_sub(first_ns)));
    }

    /// What a JSON object has under the columns' names, to the last column of these.
    fn values(&mut self, object: &serde_json::Value, columns: &[Described]) {
        for ((name, ..), column) in columns.iter().zip(&mut self.0) {
            let value = &object[*name];
            match column {
                // Numbers fit: columns are as wide as what is counted.
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
