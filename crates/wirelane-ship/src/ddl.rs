//! The schema at the place to ask, as ClickHouse's SQL.
//!
//! Every statement can be applied again: tables and views are created if they are missing, and columns are added if they
//! are missing. Names are those of the store.

use std::fmt::Write as _;

use arrow::datatypes::{DataType, Field};
use wirelane_store::Table;

/// Columns of addresses.
const ADDRESSES: [&str; 6] = ["src", "dst", "caller", "callee", "client", "server"];
/// Columns of texts of which there are few.
const FEW: [&str; 24] = [
    "device",
    "direction",
    "tunnel",
    "ether_type",
    "application",
    "application_by",
    "end_reason",
    "tcp_flags",
    "reverse_tcp_flags",
    "transport",
    "state",
    "codec",
    "mos_model",
    "method",
    "version",
    "measurement",
    "kind",
    "list",
    "protocol",
    "alarm",
    "value_name",
    "hung_up",
    "toward",
    "content_type",
];
/// Days that rows are kept: those of the tables, of the roll-up of a minute, and of that of an hour.
const DAYS: [u32; 3] = [90, 180, 1825];
/// Tokens that a table remembers: those of this many batches.
const WINDOW: u32 = 10_000;
/// Columns of the table of batches.
const SHIPMENTS: [(&str, &str); 8] = [
    ("probe", "LowCardinality(String)"),
    ("time", "DateTime64(3, 'UTC')"),
    ("hour", "DateTime('UTC')"),
    ("table", "LowCardinality(String)"),
    ("kind", "LowCardinality(String)"),
    ("batch", "String"),
    ("files", "UInt32"),
    ("rows", "UInt64"),
];
/// Name of the table of batches.
pub(crate) const SHIPMENTS_NAME: &str = "shipments";

/// Type of a column.
fn kind(table: Table, field: &Field) -> String {
    let name = field.name().as_str();
    let kind = match field.data_type() {
        DataType::Int32 => "Int32",
        DataType::Int64 => "Int64",
        DataType::Float64 => "Float64",
        DataType::Boolean => "Bool",
        DataType::Timestamp(..) => "DateTime64(6, 'UTC')",
        _ if ADDRESSES.contains(&name) => "IPv6",
        _ => "String",
    };
    let is_null = field.is_nullable() && !["probe", "schema_version"].contains(&name);
    let few = kind == "String"
        && (FEW.contains(&name) || name == "probe")
        && !(table == Table::Calls && name == "version");
    match (few, is_null) {
        (true, true) => format!("LowCardinality(Nullable({kind}))"),
        (true, false) => format!("LowCardinality({kind})"),
        (false, true) => format!("Nullable({kind})"),
        (false, false) => kind.to_owned(),
    }
}

/// Key by which the rows of a table are ordered, beside the probe and the hour.
fn key(table: Table) -> &'static str {
    match table {
        Table::Flows | Table::Streams => ", src, dst",
        Table::Calls => ", caller, callee",
        Table::Transactions => ", client, server",
        Table::Measurements => ", measurement, kind",
        Table::Alarms => ", alarm",
        Table::Ledgers => "",
    }
}

/// Columns that the server must have, as `table.column`.
pub(crate) fn columns() -> Vec<String> {
    let of = |table: Table| {
        let schema = table.schema();
        let names: Vec<String> =
            schema.fields().iter().map(|field| format!("{}.{}", table.name(), field.name())).collect();
        names
    };
    let shipments = SHIPMENTS.iter().map(|(name, _)| format!("{SHIPMENTS_NAME}.{name}"));
    Table::ALL.into_iter().flat_map(of).chain(shipments).collect()
}

fn settings() -> String {
    format!("SETTINGS non_replicated_deduplication_window = {WINDOW}, allow_nullable_key = 1")
}

/// The statements that create the schema in this database.
pub fn statements(database: &str) -> Vec<String> {
    let mut all = vec![format!("CREATE DATABASE IF NOT EXISTS {database}")];
    for table in Table::ALL {
        let (name, schema) = (table.name(), table.schema());
        let columns: Vec<String> = schema
            .fields()
            .iter()
            .map(|field| format!("`{}` {}", field.name(), kind(table, field)))
            .collect();
        all.push(format!(
            "CREATE TABLE IF NOT EXISTS {database}.{name} (\n    {}\n) ENGINE = MergeTree PARTITION BY toDate(end_time) \
             ORDER BY (probe, toStartOfHour(end_time){})\nTTL toDateTime(end_time) + INTERVAL {} DAY {}",
            columns.join(",\n    "),
            key(table),
            DAYS[0],
            settings()
        ));
        let added: Vec<String> =
            columns.iter().map(|column| format!("ADD COLUMN IF NOT EXISTS {column}")).collect();
        all.push(format!("ALTER TABLE {database}.{name}\n    {}", added.join(",\n    ")));
    }
    for (name, start, days) in
        [("flows_1m", "toStartOfMinute", DAYS[1]), ("flows_1h", "toStartOfHour", DAYS[2])]
    {
        let mut text = format!("CREATE TABLE IF NOT EXISTS {database}.{name} (\n");
        let _ = write!(
            text,
            "    `probe` LowCardinality(String),\n    `time` DateTime('UTC'),\n    `src` Nullable(IPv6),\n    \
             `dst` Nullable(IPv6),\n    `protocol` Nullable(Int32),\n    `application` LowCardinality(Nullable(String)),\n    \
             `flows` UInt64,\n    `packets` UInt64,\n    `bytes` UInt64,\n    `reverse_packets` UInt64,\n    \
             `reverse_bytes` UInt64\n) ENGINE = SummingMergeTree PARTITION BY toYYYYMM(time) \
             ORDER BY (probe, time, src, dst, protocol, application)\nTTL time + INTERVAL {days} DAY {}",
            settings()
        );
        all.push(text);
        all.push(format!(
            "CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.{name}_view TO {database}.{name} AS\nSELECT probe, \
             toDateTime({start}(end_time), 'UTC') AS time, src, dst, protocol, application, count() AS flows,\n    \
             sum(flows.packets) AS packets, sum(flows.bytes) AS bytes, sum(ifNull(flows.reverse_packets, 0)) AS \
             reverse_packets,\n    sum(ifNull(flows.reverse_bytes, 0)) AS reverse_bytes\nFROM {database}.flows AS flows\nGROUP BY \
             probe, time, src, dst, protocol, application"
        ));
    }
    let columns: Vec<String> = SHIPMENTS.iter().map(|(name, kind)| format!("`{name}` {kind}")).collect();
    all.push(format!(
        "CREATE TABLE IF NOT EXISTS {database}.{SHIPMENTS_NAME} (\n    {}\n) ENGINE = MergeTree PARTITION BY toYYYYMM(hour) \
         ORDER BY (probe, hour, table)\nTTL hour + INTERVAL {} DAY {}",
        columns.join(",\n    "),
        DAYS[0],
        settings()
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_and_column_is_in_the_schema() {
        let text = statements("db").join(";\n");
        for table in Table::ALL {
            assert!(text.contains(&format!("CREATE TABLE IF NOT EXISTS db.{} (", table.name())));
            for field in table.schema().fields() {
                assert!(
                    text.contains(&format!("ADD COLUMN IF NOT EXISTS `{}` ", field.name())),
                    "{}",
                    field.name()
                );
            }
        }
        assert!(text.contains("`src` Nullable(IPv6)") && text.contains("`client` IPv6"), "{text}");
    }
}
