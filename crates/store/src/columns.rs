//! The table of flows: its columns, and flows in them.
//!
//! Types are those that every reader of Parquet has: Spark knows neither unsigned numbers nor times in nanoseconds, so times are
//! there to the microsecond for people (`start_time`, `end_time`, in UTC) and in full for programs (`start_ns`,
//! `duration_ns`). Addresses are text, as people write them in questions. Names and meanings are those of the JSON export, but for
//! `start` and `end`, of which SQL has reserved one, and for `length_mean`, which is a quotient of others.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Int32Builder, Int64Builder, RecordBatch, StringBuilder, TimestampMicrosecondBuilder,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::arrow::error::ArrowError;
use wirelane_analysis::flows::{Flow, FlowRecord, community_id, flow_flags};
use wirelane_datapath::layout::{l3, tunnel};
use wirelane_export::flows::{Naming, evidence, has_ports, reason, tcp_flags, tunnel_name};

/// What the metadata of a file says of its table.
pub(crate) const TABLE: (&str, &str) = ("wirelane.table", "flows");
/// What it says of the columns: one more where a column has changed its meaning. A new column is no such change.
pub(crate) const VERSION: (&str, &str) = ("wirelane.schema", "1");
/// Columns that hardly ever have a value twice: numbers close to each other, for which there is a better encoding than a
/// dictionary.
pub(crate) const SERIES: &[&str] = &["start_time", "end_time", "start_ns", "duration_ns"];
/// Text that hardly ever comes twice.
pub(crate) const DISTINCT: &[&str] = &["community_id"];

#[derive(Clone, Copy)]
enum Type {
    Int,
    Long,
    Text,
    Time,
}

/// Columns: name, type, whether a flow may be without.
const COLUMNS: &[(&str, Type, bool)] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("device", Type::Text, true),
    ("interface_index", Type::Long, false),
    ("queue", Type::Int, false),
    ("direction", Type::Text, false),
    ("vlan", Type::Int, true),
    ("mpls_label", Type::Int, true),
    ("tunnel", Type::Text, true),
    ("tunnel_id", Type::Long, true),
    ("ether_type", Type::Text, true),
    ("ip_version", Type::Int, true),
    ("src", Type::Text, true),
    ("dst", Type::Text, true),
    ("proto", Type::Int, true),
    ("src_port", Type::Int, true),
    ("dst_port", Type::Int, true),
    ("icmp_type", Type::Int, true),
    ("icmp_code", Type::Int, true),
    ("tcp_rtt_ns", Type::Long, true),
    ("application", Type::Text, true),
    ("application_by", Type::Text, true),
    ("community_id", Type::Text, true),
    ("end_reason", Type::Text, false),
];

/// Columns of one direction; of the other they have `reverse_` before their names, and may be missing.
const DIRECTION: &[(&str, Type, bool)] = &[
    ("packets", Type::Long, false),
    ("bytes", Type::Long, false),
    ("wire_bytes", Type::Long, false),
    ("length_min", Type::Long, false),
    ("length_max", Type::Long, false),
    ("tos", Type::Int, true),
    ("ttl_min", Type::Int, true),
    ("ttl_max", Type::Int, true),
    ("fragments", Type::Long, false),
    ("tcp_flags", Type::Text, true),
    ("tcp_first_seq", Type::Long, true),
    ("tcp_last_seq", Type::Long, true),
    ("tcp_retransmitted", Type::Long, true),
    ("tcp_reordered", Type::Long, true),
];

/// The schema of files of flows.
pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, kind: Type, nullable: bool| {
        let kind = match kind {
            Type::Int => DataType::Int32,
            Type::Long => DataType::Int64,
            Type::Text => DataType::Utf8,
            Type::Time => DataType::Timestamp(TimeUnit::Microsecond, None),
        };
        Field::new(name, kind, nullable)
    };
    let own = COLUMNS.iter().chain(DIRECTION).map(|(name, kind, nullable)| field(name, *kind, *nullable));
    let reverse = DIRECTION.iter().map(|(name, kind, _)| field(&format!("reverse_{name}"), *kind, true));
    Arc::new(Schema::new(own.chain(reverse).collect::<Vec<_>>()))
}

#[derive(Debug)]
enum Column {
    Int(Int32Builder),
    Long(Int64Builder),
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
}

impl Column {
    fn of(kind: &DataType) -> Column {
        match kind {
            DataType::Int32 => Column::Int(Int32Builder::new()),
            DataType::Int64 => Column::Long(Int64Builder::new()),
            DataType::Timestamp(..) => Column::Time(TimestampMicrosecondBuilder::new()),
            _ => Column::Text(StringBuilder::new()),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Column::Int(builder) => Arc::new(builder.finish()),
            Column::Long(builder) => Arc::new(builder.finish()),
            Column::Text(builder) => Arc::new(builder.finish()),
            Column::Time(builder) => Arc::new(builder.finish()),
        }
    }
}

/// Flows on their way into a file.
#[derive(Debug)]
pub(crate) struct FlowColumns {
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
}

/// What is looked up once, not for every flow.
#[derive(Debug)]
pub(crate) struct Names {
    naming: Naming,
    devices: HashMap<(u16, u16), String>,
    tcp_flags: Vec<String>,
}

impl Names {
    pub(crate) fn new(naming: Naming) -> Names {
        Names { naming, devices: HashMap::new(), tcp_flags: (0..=u8::MAX).map(tcp_flags).collect() }
    }
}

/// A flow's values, column by column.
struct Row<'a>(std::slice::IterMut<'a, Column>);

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

    fn direction(&mut self, flow: Option<&Flow>, names: &Names) {
        let has = |flag: u16| flow.filter(|flow| flow.flags & flag != 0);
        let (ip, tcp) = (has(flow_flags::TTL), has(flow_flags::TCP));
        self.wide(flow.map(|flow| flow.packets));
        self.wide(flow.map(|flow| flow.bytes));
        self.wide(flow.map(|flow| flow.wire_bytes));
        self.long(flow.map(|flow| flow.min_length));
        self.long(flow.map(|flow| flow.max_length));
        self.int(ip.map(|flow| flow.tos));
        self.int(ip.map(|flow| flow.min_ttl));
        self.int(ip.map(|flow| flow.max_ttl));
        self.long(flow.map(|flow| flow.fragments));
        self.text(tcp.map(|flow| names.tcp_flags[usize::from(flow.tcp_flags)].as_str()));
        self.long(tcp.map(|flow| flow.first_seq));
        self.long(tcp.map(|flow| flow.last_seq));
        self.long(tcp.map(|flow| flow.retransmitted));
        self.long(tcp.map(|flow| flow.reordered));
    }
}

impl FlowColumns {
    /// No flows.
    pub(crate) fn new() -> FlowColumns {
        let schema = schema();
        let columns = schema.fields().iter().map(|field| Column::of(field.data_type())).collect();
        FlowColumns { schema, columns, rows: 0 }
    }

    /// How many flows are in it.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Adds a flow.
    pub(crate) fn push(&mut self, record: &FlowRecord, names: &mut Names) {
        let key = &record.key;
        let naming = &names.naming;
        let known = names.devices.entry((key.device, record.flow.queue));
        known.or_insert_with(|| naming.device(record));
        let device = names.devices[&(key.device, record.flow.queue)].as_str();
        let ip = key.l3 != l3::NONE;
        let ports = has_ports(record);
        let icmp = record.icmp();
        let (source, destination) = (record.source_port(), record.destination_port());
        let (first, last) = (record.first_ns(), record.last_ns());
        let mut row = Row(self.columns.iter_mut());
        row.time(first);
        row.time(last);
        row.wide(Some(first));
        row.wide(Some(last - first));
        row.text((!device.is_empty()).then_some(device));
        row.long(Some(naming.index(record)));
        row.int(Some(record.flow.queue));
        row.text(Some(if record.is_egress() { "egress" } else { "ingress" }));
        row.int(record.vlan());
        // 20 bits.
        row.int(record.mpls_label().map(|label| label as i32));
        row.text(tunnel_name(key.tunnel));
        row.long((key.tunnel != tunnel::NONE).then_some(key.tunnel_id));
        row.text((!ip).then(|| format!("0x{:04x}", key.eth_type)).as_deref());
        row.int(ip.then_some(key.l3));
        row.address(record.source());
        row.address(record.destination());
        row.int(ip.then_some(key.proto));
        row.int(ports.then_some(source));
        row.int(ports.then_some(destination));
        row.int(icmp.map(|(kind, _)| kind));
        row.int(icmp.map(|(_, code)| code));
        row.wide(record.rtt_ns());
        let application = record.application();
        row.text(application.map(|application| application.name));
        row.text(application.map(|application| evidence(application.by)));
        row.text(community_id(key).as_deref());
        row.text(Some(reason(record.reason)));
        row.direction(Some(&record.flow), names);
        row.direction(record.reverse.as_ref(), names);
        self.rows += 1;
    }

    /// Takes the flows out.
    ///
    /// # Errors
    /// Where columns are not what the schema says, which is a fault here.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        self.rows = 0;
        RecordBatch::try_new(Arc::clone(&self.schema), self.columns.iter_mut().map(Column::finish).collect())
    }
}
