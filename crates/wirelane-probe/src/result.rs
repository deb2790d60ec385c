//! Results of tables: named numbers, as text and JSON.

use serde::Serialize;
use serde_json::{Map, json};
use wirelane_bpf::sketch::{Distinct, Top};

use crate::cell::{Cell, greatest};
use crate::config::{Measurement, Value};
use crate::key::{self, Key};
use crate::table::Table;

/// Number of keys of a top-list that are shown.
const TOP_SHOWN: usize = 10;

/// An interval, or several consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Start, UTC nanoseconds since 1970.
    pub start_ns: u64,
    /// End, UTC nanoseconds since 1970.
    pub end_ns: u64,
}

impl Interval {
    fn seconds(self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }
}

/// Time in seconds with nine decimals, as text: a JSON number would be rounded.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Name of the measurement.
    pub measurement: String,
    /// Whether it covers the whole time instead of one interval.
    pub total: bool,
    /// Start, UTC seconds.
    pub start: String,
    /// End, UTC seconds.
    pub end: String,
    /// Packets that were measured.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Number of keys; `None` without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<usize>,
    /// Packets that lack a field of the key.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_key: u64,
    /// Entropy of packets over keys, in bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f64>,
    /// Standard error of estimates, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_percent: Option<f64>,
    /// Rows with the highest first value; one row without a key.
    pub rows: Vec<Row>,
    /// Values of packets whose keys exceeded the capacity; they are not in any row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<Map<String, serde_json::Value>>,
    /// Packets and bytes of `other`.
    #[serde(skip)]
    pub other_sum: (u64, u64),
    /// Names of the values in rows, in the order of the configuration.
    #[serde(skip)]
    pub columns: Vec<String>,
    /// Name of the value by which rows are sorted, if they have it.
    #[serde(skip)]
    pub first: Option<String>,
    /// The interval.
    #[serde(skip)]
    pub interval: Interval,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One row: a key and its values.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Fields of the key.
    #[serde(flatten)]
    pub key: Map<String, serde_json::Value>,
    /// Key as one text.
    #[serde(skip)]
    pub text: String,
    /// Packets and bytes on the wire, whether or not the configuration asks for them.
    #[serde(skip)]
    pub sum: (u64, u64),
    /// Values by name.
    #[serde(flatten)]
    pub values: Map<String, serde_json::Value>,
}

/// Value of a cell that is one number.
pub(crate) fn number(of: &Measurement, value: Value, cell: &Cell, seconds: f64) -> f64 {
    let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let more = cell.more.as_deref();
    let count = |n: fn(&crate::cell::More) -> u64| more.map_or(0, n) as f64;
    match value {
        Value::Packets => cell.packets as f64,
        Value::Bytes => cell.bytes as f64,
        Value::Pps => rate(cell.packets),
        Value::Bps => rate(cell.bytes) * 8.0,
        Value::PeakPackets => count(|more| more.peak.0),
        Value::PeakBytes => count(|more| more.peak.1),
        Value::OneWay => match count(|more| more.forward) {
            forward if forward == 0.0 || forward == cell.packets as f64 => cell.packets as f64,
            _ => 0.0,
        },
        Value::Macs => count(|more| more.macs.len() as u64),
        Value::Segments => count(|more| more.segments),
        Value::Retransmissions => count(|more| more.retransmissions),
        Value::RetransmittedPercent => match count(|more| more.segments) {
            0.0 => 0.0,
            segments => 100.0 * count(|more| more.retransmissions) / segments,
        },
        _ => {
            let place = of.values.iter().filter(|one| one.distinct().is_some()).position(|one| *one == value);
            let sketch = place.and_then(|place| more?.distinct.get(place));
            sketch.map_or(0.0, |sketch| sketch.estimate().round())
        }
    }
}

/// Value of a cell of any kind; `None`: it belongs to the measurement as a whole.
fn value(of: &Measurement, value: Value, cell: &Cell, seconds: f64) -> Option<serde_json::Value> {
    let more = cell.more.as_deref();
    let classes = |classes: &Vec<u64>| {
        let used = classes.iter().enumerate().filter(|(_, packets)| **packets > 0);
        let named = used.map(|(class, packets)| (class_name(class, classes.len()), json!(packets)));
        serde_json::Value::Object(named.collect())
    };
    Some(match value {
        _ if value.is_of_all() => return None,
        Value::Lengths => classes(&more?.lengths),
        Value::Gaps => classes(&more?.gaps),
        Value::Pps | Value::Bps | Value::RetransmittedPercent => json!(number(of, value, cell, seconds)),
        _ if value.top().is_some() => {
            let place = of.values.iter().filter(|one| one.top().is_some()).position(|one| *one == value)?;
            tops(value, more?.tops.get(place)?)
        }
        _ => json!(number(of, value, cell, seconds) as u64),
    })
}

fn tops(value: Value, top: &Top) -> serde_json::Value {
    let Some(field) = value.top() else { return serde_json::Value::Null };
    let row = |(key, count, error): &(Key, u64, u64)| json!({ "key": key::field_text(field, key), "packets": count, "error": error });
    greatest(top, TOP_SHOWN).iter().map(row).collect()
}

/// Range of a class: `64-127`.
fn class_name(class: usize, classes: usize) -> String {
    match class {
        0 | 1 => class.to_string(),
        _ if class + 1 == classes => format!("{}-", 1u64 << (class - 1)),
        _ => format!("{}-{}", 1u64 << (class - 1), (1u64 << class) - 1),
    }
}

/// Entropy of packets over keys, in bits; packets without a cell count as one more key.
pub(crate) fn entropy(table: &Table) -> f64 {
    let all: u64 = table.cells.values().chain([&table.rest]).map(|cell| cell.packets).sum();
    let share = |cell: &Cell| match cell.packets {
        0 => 0.0,
        packets => {
            let share = packets as f64 / all as f64;
            -share * share.log2()
        }
    };
    let mut shares: Vec<f64> = table.cells.values().chain([&table.rest]).map(share).collect();
    // In a fixed order, as floating-point sums depend on it.
    shares.sort_by(f64::total_cmp);
    shares.iter().sum::<f64>().max(0.0)
}

fn name(value: Value) -> String {
    value.name().replace('-', "_")
}

fn values(of: &Measurement, cell: &Cell, seconds: f64) -> Map<String, serde_json::Value> {
    of.values.iter().filter_map(|one| Some((name(*one), value(of, *one, cell, seconds)?))).collect()
}

impl Shown {
    /// Result of a table whose time is over.
    pub(crate) fn new(of: &Measurement, table: &Table, interval: Interval, total: bool) -> Shown {
        let (packets, bytes) = table.sum();
        let seconds_long = interval.seconds();
        let keyed = !of.key.is_empty();
        let asked = of.values.iter().copied().find(|value| value.is_number() && !value.is_of_all());
        let first = asked.unwrap_or(Value::Packets);
        let mut order: Vec<(f64, &Key, &Cell)> = table
            .cells
            .iter()
            .map(|(key, cell)| (number(of, first, cell, seconds_long), key, cell))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.2.packets.cmp(&a.2.packets)).then(a.1.cmp(b.1)));
        let row = |(_, key, cell): &(f64, &Key, &Cell)| Row {
            key: key::json(of, key),
            text: key::text(of, key),
            sum: (cell.packets, cell.bytes),
            values: values(of, cell, seconds_long),
        };
        let mut rows: Vec<Row> = order.iter().take(of.show).map(row).collect();
        if !keyed {
            let mut values = values(of, &table.rest, seconds_long);
            if of.plugin.is_some() {
                values.insert(name(Value::Counters), json!(table.counters));
            }
            rows.push(Row { key: Map::new(), text: String::new(), sum: (packets, bytes), values });
        }
        let estimates = of.values.iter().any(|value| value.distinct().is_some());
        Shown {
            measurement: of.name.clone(),
            total,
            start: seconds(interval.start_ns),
            end: seconds(interval.end_ns),
            packets,
            bytes,
            keys: keyed.then_some(table.cells.len()),
            without_key: table.without_key.0,
            entropy: of.values.contains(&Value::Entropy).then(|| entropy(table)),
            error_percent: estimates.then(|| (Distinct::error(of.precision) * 1e4).round() / 100.0),
            rows,
            other: (keyed && table.rest.packets > 0).then(|| values(of, &table.rest, seconds_long)),
            other_sum: (table.rest.packets, table.rest.bytes),
            columns: of.values.iter().copied().chain(of.plugin.map(|_| Value::Counters)).map(name).collect(),
            first: asked.map(name),
            interval,
        }
    }
}
