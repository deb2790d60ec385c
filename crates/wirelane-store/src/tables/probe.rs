//! The tables of probes: `measurements`, `alarms` and `ledgers`.
//!
//! A measurement's interval becomes several rows, distinguished by `kind`. `all` is the total, without a key or with.
//! `key` is one of the shown keys, as many as `show` says, and `other` the rest of the keys. `list` is one entry of a
//! top-list or a histogram, with its name in `list` and its item in `item`. Totals of the whole capture are not stored:
//! they are the sums of the counts.
//!
//! Differences from JSON: `packets` and `bytes` are always present, and ports, VLANs, queues and devices are numbers.
//! `ledgers` has the growth of a capture's ledger since the row before; `in_flight` is omitted.

use serde_json::{Map, Value, json};
use wirelane_probe::{AlarmEvent, Entry, LedgerPart, Shown};

use super::{Described, Put, Row, Storable, Table, Type};

/// Columns of `measurements`.
pub(super) const MEASUREMENTS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("measurement", Type::Text, false),
    ("kind", Type::Text, false),
    ("key", Type::Text, true),
    ("list", Type::Text, true),
    ("item", Type::Text, true),
    ("src", Type::Text, true),
    ("dst", Type::Text, true),
    ("src_net", Type::Text, true),
    ("dst_net", Type::Text, true),
    ("src_port", Type::Int, true),
    ("dst_port", Type::Int, true),
    ("port", Type::Int, true),
    ("protocol", Type::Text, true),
    ("vlan", Type::Int, true),
    ("queue", Type::Int, true),
    ("device", Type::Int, true),
    ("application", Type::Text, true),
    ("packets", Type::Long, false),
    ("bytes", Type::Long, true),
    ("error", Type::Long, true),
    ("keys", Type::Long, true),
    ("without_key", Type::Long, true),
    ("entropy", Type::Real, true),
    ("error_percent", Type::Real, true),
    ("pps", Type::Real, true),
    ("bps", Type::Real, true),
    ("flows", Type::Long, true),
    ("distinct_src", Type::Long, true),
    ("distinct_dst", Type::Long, true),
    ("distinct_src_port", Type::Long, true),
    ("distinct_dst_port", Type::Long, true),
    ("peak_packets", Type::Long, true),
    ("peak_bytes", Type::Long, true),
    ("one_way", Type::Long, true),
    ("macs", Type::Long, true),
    ("segments", Type::Long, true),
    ("retransmissions", Type::Long, true),
    ("retransmitted_percent", Type::Real, true),
];

/// Columns of `alarms`.
pub(super) const ALARMS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("alarm", Type::Text, false),
    ("measurement", Type::Text, false),
    ("state", Type::Text, false),
    ("key", Type::Text, true),
    ("value_name", Type::Text, false),
    ("value", Type::Real, false),
    ("recording", Type::Text, true),
];

/// Columns of `ledgers`.
pub(super) const LEDGERS: &[Described] = &[
    ("start_time", Type::Time, false),
    ("end_time", Type::Time, false),
    ("start_ns", Type::Long, false),
    ("duration_ns", Type::Long, false),
    ("seen", Type::Long, false),
    ("filtered", Type::Long, false),
    ("absorbed", Type::Long, false),
    ("shed", Type::Long, false),
    ("lost", Type::Long, false),
    ("delivered", Type::Long, false),
    ("analysed", Type::Long, false),
    ("bytes", Type::Long, false),
    ("nic_missed", Type::Long, true),
    ("unstored", Type::Long, true),
];

/// Number of columns that all tables begin with.
const SPAN: usize = 4;
/// Fields of keys that are stored as numbers.
const NUMBERS: [&str; 6] = ["src_port", "dst_port", "port", "vlan", "queue", "device"];

/// A row of `measurements`, by column name.
type Named = Map<String, Value>;

/// The rows of a measurement's interval.
fn rows(shown: &Shown) -> Vec<Named> {
    let mut all = named(shown, "all", (shown.packets, shown.bytes));
    all.insert("without_key".into(), json!(shown.keys.map(|_| shown.without_key)));
    all.insert("keys".into(), json!(shown.keys));
    all.insert("entropy".into(), json!(shown.entropy));
    all.insert("error_percent".into(), json!(shown.error_percent));
    let mut rows = Vec::new();
    let mut lists = Vec::new();
    for row in &shown.rows {
        if shown.keys.is_none() {
            // Without a key there is one row, which is the total.
            put_values(&mut all, &row.values);
            lists.extend(listed(shown, None, &row.values));
            continue;
        }
        let mut one = named(shown, "key", row.sum);
        one.insert("key".into(), json!(row.text));
        for (name, value) in &row.key {
            let number = || value.as_str().and_then(|text| text.parse::<u32>().ok());
            let value = if NUMBERS.contains(&name.as_str()) { json!(number()) } else { value.clone() };
            one.insert(name.clone(), value);
        }
        put_values(&mut one, &row.values);
        rows.push(one);
        lists.extend(listed(shown, Some(&row.text), &row.values));
    }
    if let Some(values) = &shown.other {
        let mut other = named(shown, "other", shown.other_sum);
        put_values(&mut other, values);
        rows.push(other);
        lists.extend(listed(shown, Some("other"), values));
    }
    std::iter::once(all).chain(rows).chain(lists).collect()
}

fn named(shown: &Shown, kind: &str, (packets, bytes): (u64, u64)) -> Named {
    let columns = [
        ("measurement", json!(shown.measurement)),
        ("kind", json!(kind)),
        ("packets", json!(packets)),
        ("bytes", json!(bytes)),
    ];
    columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Adds numeric values. Those of packets and bytes already exist.
fn put_values(row: &mut Named, values: &Map<String, Value>) {
    for (name, value) in values.iter().filter(|(_, value)| value.is_number()) {
        row.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

/// A row for each entry of lists and histograms.
fn listed<'s>(
    shown: &'s Shown,
    key: Option<&'s str>,
    values: &'s Map<String, Value>,
) -> impl Iterator<Item = Named> + 's {
    let entry = move |list: &str, item: Value, packets: Value, error: Option<Value>| {
        let mut row = named(shown, "list", (0, 0));
        row.remove("bytes");
        row.insert("packets".into(), packets);
        row.insert("key".into(), json!(key));
        row.insert("list".into(), json!(list));
        row.insert("item".into(), item);
        row.insert("error".into(), json!(error));
        row
    };
    let entries = move |(name, value): (&'s String, &'s Value)| -> Vec<Named> {
        match value {
            Value::Object(classes) => classes
                .iter()
                .map(|(class, packets)| entry(name, json!(class), packets.clone(), None))
                .collect(),
            Value::Array(top) => top
                .iter()
                .map(|one| {
                    let error = Some(one["error"].clone());
                    entry(name, one["key"].clone(), one["packets"].clone(), error)
                })
                .collect(),
            _ => Vec::new(),
        }
    };
    values.iter().flat_map(entries)
}

impl Storable for Entry {
    const TABLES: &'static [Table] = &[Table::Measurements, Table::Alarms, Table::Ledgers];
    type Naming = ();
    type Names = ();

    fn rows(&self, table: Table) -> u64 {
        match (self, table) {
            (Entry::Measured(shown), Table::Measurements) => rows(shown).len() as u64,
            (Entry::Alarm(..), Table::Alarms) | (Entry::Ledger(_), Table::Ledgers) => 1,
            _ => 0,
        }
    }

    fn put(&self, (): &mut (), put: &mut Put<'_>) {
        match self {
            Entry::Measured(shown) => {
                let (start_ns, end_ns) = (shown.interval.start_ns, shown.interval.end_ns);
                for named in rows(shown) {
                    let object = Value::Object(named);
                    put(Table::Measurements, end_ns, &mut |row| {
                        row.span(start_ns, end_ns);
                        row.values(&object, &MEASUREMENTS[SPAN..]);
                    });
                }
            }
            Entry::Alarm(alarm, file) => {
                put(Table::Alarms, alarm.end_ns, &mut |row| put_alarm(row, alarm, file.as_deref()));
            }
            Entry::Ledger(part) => put(Table::Ledgers, part.end_ns, &mut |row| put_ledger(row, part)),
        }
    }
}

fn put_alarm(row: &mut Row<'_>, alarm: &AlarmEvent, recording: Option<&str>) {
    row.span(alarm.end_ns, alarm.end_ns);
    row.text(Some(&alarm.alarm));
    row.text(Some(&alarm.measurement));
    row.text(Some(alarm.state.name()));
    row.text(Some(alarm.key_text.as_str()).filter(|key| !key.is_empty()));
    row.text(Some(&alarm.value_name));
    row.real(alarm.value);
    row.text(recording);
}

fn put_ledger(row: &mut Row<'_>, LedgerPart { start_ns, end_ns, counters, unstored }: &LedgerPart) {
    row.span(*start_ns, *end_ns);
    let packets = [
        counters.seen,
        counters.filtered,
        counters.absorbed,
        counters.shed,
        counters.lost,
        counters.delivered,
        counters.analysed,
        counters.bytes,
    ];
    packets.into_iter().for_each(|number| row.wide(Some(number)));
    row.wide(counters.nic_missed);
    row.wide(Some(*unstored));
}
