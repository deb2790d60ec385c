//! `ends()`: both ends of all flows, summed, as a table for ready questions.
//!
//! ```text
//! flows (src, dst, bytes, reverse_bytes) -> SumsExec, a table of sums for each partition -> rows
//! ```
//!
//! In SQL alone this takes two scans, one by source and one by destination, each of which groups by text; here it is
//! one scan, and the lookup key of each end is an address as a number. Rows are partial sums: each partition has its
//! own sums, and hands them on when memory is short, so the query has to sum them by address (`GROUP BY`), which may
//! use temporary files.
//!
//! `ends()` returns addresses; `ends(24, 48)` networks with prefix lengths for IPv4 and IPv6; `ends('10.0.0.0/8')` the
//! addresses that have talked to an address of this network, with the times of the first and the last flow.

mod sums;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray, StringViewArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit, TimestampMicrosecondType};
use datafusion::catalog::{Session, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::cast::{as_int64_array, as_string_view_array, as_timestamp_microsecond_array};
use datafusion::common::{ScalarValue, plan_err};
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
};
use datafusion::prelude::{DataFrame, col, lit};
use futures::StreamExt;

use super::functions::{Network, contained};
use sums::{By, End, Sums, Table};

/// Number of rows that are handed on together.
const TOGETHER: usize = 8192;

/// The table function `ends()`.
#[derive(Debug)]
pub(super) struct Ends {
    flows: DataFrame,
}

impl Ends {
    /// Creates the function over these flows.
    pub(super) fn new(flows: DataFrame) -> Ends {
        Ends { flows }
    }
}

impl TableFunctionImpl for Ends {
    fn call_with_args(&self, arguments: TableFunctionArgs<'_, '_>) -> Result<Arc<dyn TableProvider>> {
        let literal = |expr: &Expr| match expr {
            Expr::Literal(value, _) => Some(value.clone()),
            _ => None,
        };
        let values: Option<Vec<ScalarValue>> = arguments.exprs().iter().map(literal).collect();
        let bits = |value: &i64, most: u8| u8::try_from(*value).ok().filter(|bits| *bits <= most);
        let (by, peer) = match values.as_deref() {
            Some([]) => (Some(By::Address), None),
            Some([ScalarValue::Int64(Some(four)), ScalarValue::Int64(Some(six))]) => {
                (bits(four, 32).zip(bits(six, 128)).map(|(four, six)| By::Network(four, six)), None)
            }
            Some([ScalarValue::Utf8(Some(text))]) => {
                let peer = Network::parse(text);
                (peer.map(|_| By::Address), peer)
            }
            _ => (None, None),
        };
        let Some(by) = by else {
            return plan_err!(
                "write ends(), ends(24, 48) for networks, or ends('10.0.0.0/8') for whoever talked to it"
            );
        };
        let mut columns = vec!["src", "dst", "bytes", "reverse_bytes"];
        let mut flows = self.flows.clone();
        if let Some(peer) = &peer {
            columns.extend(["start_time", "end_time"]);
            let is_peer = |column: &str| match peer.is_one() {
                // Comparing text is faster than parsing it, and files contain addresses in this one form.
                true => col(column).eq(lit(peer.address().to_string())),
                false => contained().call(vec![col(column), lit(peer.to_string())]),
            };
            flows = flows.filter(is_peer("src").or(is_peer("dst")))?;
        }
        let plan = flows.select_columns(&columns)?.into_unoptimized_plan();
        Ok(Arc::new(EndsTable { plan, schema: schema(peer.is_some()), by, peer }))
    }
}

/// Schema of the rows.
fn schema(timed: bool) -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    let time = |name: &str| Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, None), false);
    let mut fields = vec![Field::new("address", DataType::Utf8, true)];
    fields.extend(["flows", "sent", "received"].map(number));
    fields.extend(["first", "last"].map(time).into_iter().filter(|_| timed));
    Arc::new(Schema::new(fields))
}

/// The table that the function returns.
#[derive(Debug)]
struct EndsTable {
    /// The flows that are summed.
    plan: LogicalPlan,
    schema: SchemaRef,
    by: By,
    peer: Option<Network>,
}

#[async_trait]
impl TableProvider for EndsTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = state.create_physical_plan(&self.plan).await?;
        let sums = Arc::new(SumsExec::new(input, Arc::clone(&self.schema), self.by, self.peer));
        let Some(columns) = projection else { return Ok(sums) };
        let named = |at: &usize| {
            let name = self.schema.field(*at).name();
            ProjectionExpr::new(Arc::new(Column::new(name, *at)), name.clone())
        };
        Ok(Arc::new(ProjectionExec::try_new(columns.iter().map(named), sums)?))
    }
}

/// Sums the ends of its input, each partition separately.
#[derive(Debug)]
struct SumsExec {
    input: Arc<dyn ExecutionPlan>,
    by: By,
    peer: Option<Network>,
    properties: Arc<PlanProperties>,
}

impl SumsExec {
    fn new(input: Arc<dyn ExecutionPlan>, schema: SchemaRef, by: By, peer: Option<Network>) -> SumsExec {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(input.output_partitioning().partition_count()),
            EmissionType::Final,
            Boundedness::Bounded,
        ));
        SumsExec { input, by, peer, properties }
    }
}

impl DisplayAs for SumsExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SumsExec: by={:?}, peer={:?}", self.by, self.peer)
    }
}

impl ExecutionPlan for SumsExec {
    fn name(&self) -> &str {
        "SumsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let [input] = <[_; 1]>::try_from(children)
            .map_err(|_| DataFusionError::Internal("SumsExec has one input".into()))?;
        Ok(Arc::new(SumsExec::new(input, self.schema(), self.by, self.peer)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, Arc::clone(&context))?;
        let consumer = MemoryConsumer::new(format!("SumsExec[{partition}]")).with_can_spill(true);
        let adding = Adding {
            input,
            table: Table::new(self.by),
            memory: consumer.register(context.memory_pool()),
            by: self.by,
            peer: self.peer,
            schema: self.schema(),
            rows: None,
            is_over: false,
        };
        let rows = futures::stream::try_unfold(adding, |mut adding| async move {
            adding.next().await.map(|batch| batch.map(|batch| (batch, adding)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}

/// Sums that are being handed on.
type Rows = Box<dyn Iterator<Item = (Option<String>, Sums)> + Send>;

/// State of a partition.
struct Adding {
    input: SendableRecordBatchStream,
    table: Table,
    memory: MemoryReservation,
    by: By,
    peer: Option<Network>,
    schema: SchemaRef,
    /// Rows that are handed on before more flows are added.
    rows: Option<Rows>,
    is_over: bool,
}

impl Adding {
    /// The next rows.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(rows) = &mut self.rows {
                let rows: Vec<_> = rows.take(TOGETHER).collect();
                if !rows.is_empty() {
                    return batch(&self.schema, rows).map(Some);
                }
                self.rows = None;
                self.memory.free();
            }
            if self.is_over {
                return Ok(None);
            }
            match self.input.next().await {
                Some(flows) => {
                    self.add(&flows?)?;
                    // When the memory limit is reached, the sums are handed on; the `GROUP BY` after this may use
                    // files.
                    if self.memory.try_resize(self.table.size()).is_err() {
                        self.hand_on();
                    }
                }
                None => {
                    self.is_over = true;
                    self.hand_on();
                }
            }
        }
    }

    fn hand_on(&mut self) {
        let table = std::mem::replace(&mut self.table, Table::new(self.by));
        self.rows = Some(Box::new(table.into_rows()));
    }

    /// Adds both ends of these flows.
    fn add(&mut self, flows: &RecordBatch) -> Result<()> {
        let (src, dst) = (as_string_view_array(flows.column(0))?, as_string_view_array(flows.column(1))?);
        let (bytes, back) = (as_int64_array(flows.column(2))?, as_int64_array(flows.column(3))?);
        let times = match self.peer {
            Some(_) => {
                let time = |at: usize| as_timestamp_microsecond_array(flows.column(at));
                Some((time(4)?, time(5)?))
            }
            None => None,
        };
        let number =
            |column: &Int64Array, row: usize| if column.is_valid(row) { column.value(row) } else { 0 };
        for row in 0..flows.num_rows() {
            let (source, destination) = (end(src, row), end(dst, row));
            let (sent, received) = (number(bytes, row), number(back, row));
            let (first, last) = times.map_or((0, 0), |(first, last)| (first.value(row), last.value(row)));
            let sums = Sums { flows: 1, sent, received, first, last };
            let wanted = |other: Option<End<'_>>| {
                self.peer.is_none_or(|peer| other.is_some_and(|other| other.is_in(&peer)))
            };
            if let Some(end) = source.filter(|_| wanted(destination)) {
                self.table.add(end, &sums);
            }
            if let Some(end) = destination.filter(|_| wanted(source)) {
                self.table.add(end, &Sums { sent: received, received: sent, ..sums });
            }
        }
        Ok(())
    }
}

/// An end of the flow in this row.
fn end(column: &StringViewArray, row: usize) -> Option<End<'_>> {
    column.is_valid(row).then(|| End::read(column.value(row)))
}

fn batch(schema: &SchemaRef, rows: Vec<(Option<String>, Sums)>) -> Result<RecordBatch> {
    let names: StringArray = rows.iter().map(|(name, _)| name.as_deref()).collect();
    let numbers = |of: fn(&Sums) -> i64| Int64Array::from_iter_values(rows.iter().map(|(_, sums)| of(sums)));
    let times = |of| -> ArrayRef { Arc::new(numbers(of).reinterpret_cast::<TimestampMicrosecondType>()) };
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(names),
        Arc::new(numbers(|sums| sums.flows)),
        Arc::new(numbers(|sums| sums.sent)),
        Arc::new(numbers(|sums| sums.received)),
    ];
    if schema.fields().len() > columns.len() {
        columns.extend([times(|sums| sums.first), times(|sums| sums.last)]);
    }
    Ok(RecordBatch::try_new(Arc::clone(schema), columns)?)
}

#[cfg(test)]
mod tests;
