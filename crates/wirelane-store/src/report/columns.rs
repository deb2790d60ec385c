//! Columns of the tables in a report: their values in an answer, and their names for people.

use chrono::NaiveDateTime;
use serde_json::{Map, Value, json};
use wirelane_export::calendar::zone_word;

use super::{Cell, Table};

/// A row of an answer.
pub(super) type Row = Map<String, Value>;

/// A column of a report: its name in the answer, and the conversion to a cell.
pub(super) type Named = (&'static str, fn(&Row, &str) -> Cell);

pub(super) const TALKERS: &[Named] =
    &[("address", text), ("flows", count), ("sent_bytes", count), ("received_bytes", count)];
pub(super) const PORTS: &[Named] = &[
    ("protocol", protocol),
    ("port", count),
    ("application", text),
    ("flows", count),
    ("packets", count),
    ("bytes", count),
];
pub(super) const APPLICATIONS: &[Named] =
    &[("application", text), ("flows", count), ("packets", count), ("bytes", count)];
pub(super) const HOSTS: &[Named] =
    &[("host", text), ("transactions", count), ("failed", count), ("bytes", count), ("ttfb_ms", rate)];
pub(super) const STATUSES: &[Named] =
    &[("status", status), ("transactions", count), ("bytes", count), ("ttfb_ms", rate)];
pub(super) const SLOWEST: &[Named] = &[
    ("start_time", stamp),
    ("client", text),
    ("method", text),
    ("host", text),
    ("uri", text),
    ("status", status),
    ("ms", rate),
];
pub(super) const CALLS: &[Named] = &[
    ("state", text),
    ("status", status),
    ("calls", count),
    ("post_dial_delay_ms", rate),
    ("talk_seconds", rate),
    ("mos", rate),
];
pub(super) const WORST_CALLS: &[Named] = &[
    ("start_time", stamp),
    ("from_uri", text),
    ("to_uri", text),
    ("state", text),
    ("status", status),
    ("seconds", rate),
    ("mos", rate),
    ("expected", count),
    ("capture_lost", count),
    ("lost", count),
];
pub(super) const KEYS: &[Named] =
    &[("key", text), ("packets", count), ("bytes", count), ("intervals", count)];
pub(super) const ITEMS: &[Named] = &[("item", text), ("packets", count), ("error", count)];
pub(super) const MEASUREMENTS: &[Named] = &[
    ("measurement", text),
    ("intervals", count),
    ("packets", count),
    ("bytes", count),
    ("mean_bps", rate),
    ("highest_bps", rate),
    ("highest_pps", rate),
];
pub(super) const ALARMS: &[Named] = &[
    ("alarm", text),
    ("measurement", text),
    ("raised", count),
    ("cleared", count),
    ("highest", rate),
    ("first", time),
    ("last", time),
];
pub(super) const EVENTS: &[Named] = &[
    ("time", time),
    ("alarm", text),
    ("state", text),
    ("key", text),
    ("value_name", name),
    ("value", rate),
    ("recording", file),
];

/// The words for a column, a counter or a measured value.
pub(super) fn words(name: &str) -> String {
    let words = match name {
        "sent_bytes" => "bytes sent",
        "received_bytes" => "bytes received",
        "failed" => "with an error status",
        "ttfb_ms" => "time to first byte, ms",
        "ms" => "duration, ms",
        "start_time" | "time" => return format!("time ({})", zone_word()),
        "uri" => "path",
        "post_dial_delay_ms" => "post-dial delay, ms",
        "talk_seconds" => "talk time, s",
        "seconds" => "duration, s",
        "mos" => "MOS",
        "from_uri" => "from",
        "to_uri" => "to",
        "expected" => "RTP packets expected",
        "lost" => "lost",
        "capture_lost" => "lost by the capture",
        "error" => "too many, at most",
        "mean_bps" => "mean bit/s",
        "highest_bps" => "highest bit/s",
        "highest_pps" => "highest packets/s",
        "highest" => "highest value",
        "first" | "last" => return format!("{name} ({})", zone_word()),
        "value_name" => "measured",
        "nic_missed" => "missed by the card",
        "of seen" => "share of seen",
        "pps" => "packets/s",
        "bps" => "bit/s",
        "distinct_src" => "distinct sources",
        "distinct_dst" => "distinct destinations",
        "distinct_src_port" => "distinct source ports",
        "distinct_dst_port" => "distinct destination ports",
        "retransmitted_percent" => "retransmitted, %",
        other => return other.replace('_', " "),
    };
    words.to_owned()
}

/// Title of a list of a measurement.
pub(super) fn list_title(list: &str, measurement: &str) -> String {
    let words = match list {
        "lengths" => "Lengths of packets, bytes",
        "gaps" => "Gaps between packets, ns",
        "top_src" => "Sources with most packets",
        "top_dst" => "Destinations with most packets",
        "top_port" => "Ports with most packets",
        "top_flow" => "Flows with most packets",
        other => &words(other),
    };
    format!("{words}: {measurement}")
}

/// A name of ours, shown in words.
pub(super) fn named(name: &str) -> Cell {
    Cell::Worded(json!(name), words(name))
}

fn name(row: &Row, column: &str) -> Cell {
    row.get(column).and_then(Value::as_str).map_or(Cell::Unknown, named)
}

fn protocol(row: &Row, column: &str) -> Cell {
    let Some(number) = row.get(column).and_then(Value::as_i64) else { return Cell::Unknown };
    let shown = match number {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    };
    Cell::Worded(json!(number), shown)
}

/// A status code, which is no number to group or to compare.
fn status(row: &Row, column: &str) -> Cell {
    let code = row.get(column).and_then(Value::as_i64);
    code.map_or(Cell::Unknown, |code| Cell::Worded(json!(code), code.to_string()))
}

fn text(row: &Row, name: &str) -> Cell {
    row.get(name).and_then(Value::as_str).map_or(Cell::Unknown, |text| Cell::Text(text.to_owned()))
}

fn file(row: &Row, name: &str) -> Cell {
    row.get(name).and_then(Value::as_str).map_or(Cell::Unknown, |path| Cell::File(path.to_owned()))
}

pub(super) fn count(row: &Row, name: &str) -> Cell {
    row.get(name).and_then(Value::as_i64).map_or(Cell::Unknown, Cell::Count)
}

fn rate(row: &Row, name: &str) -> Cell {
    row.get(name).and_then(Value::as_f64).map_or(Cell::Unknown, Cell::Rate)
}

fn time(row: &Row, name: &str) -> Cell {
    row.get(name).and_then(Value::as_i64).map_or(Cell::Unknown, Cell::Time)
}

/// A time stamp of the engine, in UTC: `2026-03-01T12:00:00.25`.
fn stamp(row: &Row, name: &str) -> Cell {
    let text = row.get(name).and_then(Value::as_str).map(|text| text.trim_end_matches('Z'));
    let stamp = text.and_then(|text| text.parse::<NaiveDateTime>().ok());
    let ns = stamp.and_then(|stamp| stamp.and_utc().timestamp_nanos_opt());
    ns.map_or(Cell::Unknown, Cell::Time)
}

pub(super) fn number(row: &Row, name: &str) -> i64 {
    row.get(name).and_then(Value::as_i64).unwrap_or(0)
}

pub(super) fn string<'r>(row: &'r Row, name: &str) -> &'r str {
    row.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A table of rows; `bar`: the column that is also drawn as a bar.
pub(super) fn table(rows: &[Row], columns: &[Named], bar: Option<&str>) -> Table {
    Table {
        columns: columns.iter().map(|(name, _)| *name).collect(),
        rows: rows.iter().map(|row| columns.iter().map(|(name, cell)| cell(row, name)).collect()).collect(),
        bar: bar.and_then(|bar| columns.iter().position(|(name, _)| *name == bar)),
    }
}
