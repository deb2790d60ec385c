//! Sums over flows for ready questions, without SQL: one scan on all processors, and a hash table in each thread.
//!
//! Questions about flows have as many rows as the store has flows; SQLite would hand each of them on by itself. Where the
//! sums do not fit into the memory limit, SQLite answers, which uses temporary files ([`Question::sql`]).

mod ends;
mod keyed;

use std::cmp::Reverse;

use arrow::array::cast::AsArray as _;
use arrow::array::types::{Int64Type, TimestampMicrosecondType};
use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};

use super::cell::{Cell, Column, Kind, Row};
use super::functions::Network;
use super::questions::{Peer, Question};
use super::scan::{Failure, Scan, Source};
use ends::{By, End};
use keyed::{Groups, KeyKind, Keys, Total};

/// Reasons for a missing answer.
#[derive(Debug)]
pub(super) enum Without {
    /// The question is one for SQL, or its sums exceed the memory limit.
    Sql,
    /// A file cannot be read.
    File(String),
}

impl From<Failure> for Without {
    fn from(why: Failure) -> Without {
        match why {
            Failure::Memory => Without::Sql,
            Failure::File(why) => Without::File(why),
        }
    }
}

/// The answer to a question about flows.
///
/// # Errors
/// [`Without`].
pub(super) fn answer(
    question: &Question,
    limit: u64,
    flows: &Source,
    memory: usize,
) -> Result<(Vec<Column>, Vec<Row>), Without> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let (names, keys): (&[&str], Keys) = match question {
        Question::Talkers => return sums_of_ends(By::Address, None, "address", limit, flows, memory),
        Question::Networks { bits4, bits6 } => {
            return sums_of_ends(By::Network(*bits4, *bits6), None, "network", limit, flows, memory);
        }
        Question::WhoTalkedTo(Peer(peer)) => {
            return sums_of_ends(By::Address, Some(*peer), "address", limit, flows, memory);
        }
        Question::Ports => (
            &["protocol", "port", "application"],
            Keys::new(&[
                ("protocol", KeyKind::Number),
                ("src_port", KeyKind::Lower("dst_port")),
                ("application", KeyKind::Text),
            ]),
        ),
        Question::Pairs => (&["src", "dst"], Keys::new(&[("src", KeyKind::Known), ("dst", KeyKind::Text)])),
        Question::Applications => (&["application"], Keys::new(&[("application", KeyKind::Text)])),
        Question::Protocols => (
            &["protocol", "ether_type"],
            Keys::new(&[("protocol", KeyKind::Number), ("ether_type", KeyKind::Text)]),
        ),
        Question::Devices => {
            (&["device", "direction"], Keys::new(&[("device", KeyKind::Text), ("direction", KeyKind::Text)]))
        }
        Question::OverTime { step } => {
            let us = i64::try_from(*step).unwrap_or(i64::MAX).saturating_mul(1_000_000).max(1);
            (&["time"], Keys::new(&[("end_time", KeyKind::Step(us))]))
        }
        _ => return Err(Without::Sql),
    };
    let kinds = keys.kinds().map(|kind| match kind {
        KeyKind::Text | KeyKind::Known => Kind::Text,
        KeyKind::Step(_) => Kind::Time,
        _ => Kind::Number,
    });
    let mut columns: Vec<Column> =
        names.iter().zip(kinds).map(|(name, kind)| Column::new(name, kind)).collect();
    columns.extend(["flows", "packets", "bytes"].map(|name| Column::new(name, Kind::Number)));
    let groups = summed(&keys, flows, memory)?;
    let is_over_time = matches!(question, Question::OverTime { .. });
    let rank = |total: &Total| if is_over_time { Reverse(0) } else { Reverse(total.bytes) };
    let limit = if is_over_time { usize::MAX } else { limit };
    let totals = groups.into_totals();
    let rows = best(
        totals,
        limit,
        |(_, total)| rank(total),
        |(cells, total)| {
            let numbers = [total.flows, total.packets, total.bytes].map(Cell::Int);
            cells.iter().cloned().chain(numbers).collect()
        },
        names.len(),
    );
    Ok((columns, rows))
}

/// Flows and bytes by step of their ends, in nanoseconds: number of the step, flows, bytes.
///
/// # Errors
/// [`Without`].
pub(super) fn steps(step_ns: i64, flows: &Source, memory: usize) -> Result<Vec<[i64; 3]>, Without> {
    let keys = Keys::new(&[("start_ns", KeyKind::EndStep("duration_ns", step_ns.max(1)))]);
    let mut steps: Vec<[i64; 3]> = summed(&keys, flows, memory)?
        .into_totals()
        .filter_map(|(cells, total)| match cells.first() {
            Some(Cell::Int(step)) => Some([*step, total.flows, total.bytes]),
            _ => None,
        })
        .collect();
    steps.sort_unstable();
    Ok(steps)
}

/// Number of rows of a table, the first start, the last end and the longest duration; `None`: no rows.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn span(source: &Source) -> Result<Option<[i64; 4]>, Without> {
    let wanted = ["start_ns", "duration_ns"].into_iter().filter_map(|name| source.column(name)).collect();
    let scan = Scan::new(source, wanted, Vec::new());
    let parts = scan.collect(
        || None::<[i64; 4]>,
        |span, batch| {
            let (starts, lengths) = (number(batch, 0), number(batch, 1));
            for row in 0..batch.num_rows() {
                let (start, length) = (value(starts, row), value(lengths, row));
                let one = [1, start, start.saturating_add(length), length];
                *span = Some(span.map_or(one, |known| joined(known, one)));
            }
            Ok(())
        },
    )?;
    Ok(parts.into_iter().flatten().reduce(joined))
}

fn joined(a: [i64; 4], b: [i64; 4]) -> [i64; 4] {
    [a[0] + b[0], a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])]
}

/// Totals of all flows by these keys.
fn summed(keys: &Keys, flows: &Source, memory: usize) -> Result<Groups, Without> {
    let names = keys.columns().chain(["packets", "bytes", "reverse_packets", "reverse_bytes"]);
    let scan = Scan::new(flows, names.filter_map(|name| flows.column(name)).collect(), Vec::new());
    let share = memory / super::scan::threads();
    let parts = scan.collect(
        || Groups::new(keys.clone()),
        |groups, batch| {
            groups.add(batch);
            if groups.size() > share { Err(Failure::Memory) } else { Ok(()) }
        },
    )?;
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_else(|| Groups::new(keys.clone()));
    parts.for_each(|part| all.merge(part));
    Ok(all)
}

/// Both ends of all flows, by address or network.
fn sums_of_ends(
    by: By,
    peer: Option<Network>,
    name: &str,
    limit: usize,
    flows: &Source,
    memory: usize,
) -> Result<(Vec<Column>, Vec<Row>), Without> {
    let mut names = vec!["src", "dst", "bytes", "reverse_bytes"];
    names.extend(peer.iter().flat_map(|_| ["start_time", "end_time"]));
    let scan =
        Scan::new(flows, names.into_iter().filter_map(|name| flows.column(name)).collect(), Vec::new());
    let share = memory / super::scan::threads();
    let parts = scan.with_peer(peer).collect(
        || ends::Table::new(by),
        |table, batch| {
            add_ends(table, batch, peer);
            if table.size() > share { Err(Failure::Memory) } else { Ok(()) }
        },
    )?;
    let mut parts = parts.into_iter();
    let mut all = parts.next().unwrap_or_else(|| ends::Table::new(by));
    parts.for_each(|part| all.merge(part));
    let mut columns = vec![Column::new(name, Kind::Text)];
    columns.extend(["flows", "sent_bytes", "received_bytes"].map(|name| Column::new(name, Kind::Number)));
    if peer.is_some() {
        columns.extend(["first_time", "last_time"].map(|name| Column::new(name, Kind::Time)));
    }
    let rank = |sums: &ends::Sums| match peer {
        Some(_) => Reverse(sums.sent.wrapping_add(sums.received)),
        None => Reverse(sums.sent),
    };
    let rows = best(
        all.into_sums(),
        limit,
        |(_, sums)| rank(sums),
        |(end, sums)| {
            let mut row = vec![end.name(by).map_or(Cell::Null, |name| Cell::Text(name.into()))];
            row.extend([sums.flows, sums.sent, sums.received].map(Cell::Int));
            if peer.is_some() {
                row.extend([sums.first, sums.last].map(Cell::Time));
            }
            row
        },
        1,
    );
    Ok((columns, rows))
}

/// Adds both ends of these flows.
fn add_ends(table: &mut ends::Table, flows: &RecordBatch, peer: Option<Network>) {
    let (src, dst) = (flows.column(0).as_string::<i32>(), flows.column(1).as_string::<i32>());
    let (bytes, back) = (number(flows, 2), number(flows, 3));
    let time = |at: usize| flows.column(at).as_primitive::<TimestampMicrosecondType>();
    let times = peer.map(|_| (time(4), time(5)));
    for row in 0..flows.num_rows() {
        let (source, destination) = (end(src, row), end(dst, row));
        let (sent, received) = (value(bytes, row), value(back, row));
        let (first, last) = times.map_or((0, 0), |(first, last)| (first.value(row), last.value(row)));
        let sums = ends::Sums { flows: 1, sent, received, first, last };
        let wanted =
            |other: Option<End<'_>>| peer.is_none_or(|peer| other.is_some_and(|other| other.is_in(&peer)));
        if let Some(end) = source.filter(|_| wanted(destination)) {
            table.add(end, &sums);
        }
        if let Some(end) = destination.filter(|_| wanted(source)) {
            table.add(end, &ends::Sums { sent: received, received: sent, ..sums });
        }
    }
}

/// The end of the flow in this row.
fn end(column: &StringArray, row: usize) -> Option<End<'_>> {
    column.is_valid(row).then(|| End::read(column.value(row)))
}

fn number(batch: &RecordBatch, column: usize) -> &Int64Array {
    batch.column(column).as_primitive::<Int64Type>()
}

/// The number in this row; 0 for NULL.
fn value(column: &Int64Array, row: usize) -> i64 {
    if column.is_valid(row) { column.value(row) } else { 0 }
}

/// The first rows by rank, then by their first cells in ascending order, NULL last.
fn best<T, R: Ord>(
    sums: impl Iterator<Item = T>,
    limit: usize,
    rank: impl Fn(&T) -> R,
    row: impl Fn(T) -> Row,
    keys: usize,
) -> Vec<Row> {
    let mut sums: Vec<T> = sums.collect();
    // Names are made for those that may be shown: all of the last rank compete.
    if limit > 0 && sums.len() > limit {
        let (_, last, _) = sums.select_nth_unstable_by_key(limit - 1, &rank);
        let last = rank(last);
        sums.retain(|sum| rank(sum) <= last);
    }
    let mut rows: Vec<(R, Row)> = sums.into_iter().map(|sum| (rank(&sum), row(sum))).collect();
    rows.sort_by(|(rank_a, a), (rank_b, b)| {
        rank_a.cmp(rank_b).then_with(|| {
            let pairs = a.iter().zip(b).take(keys);
            pairs.map(|(a, b)| order(a, b)).find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        })
    });
    rows.truncate(limit);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Ascending, NULL last.
fn order(a: &Cell<'_>, b: &Cell<'_>) -> std::cmp::Ordering {
    match (a, b) {
        (Cell::Int(a), Cell::Int(b)) | (Cell::Time(a), Cell::Time(b)) => a.cmp(b),
        (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
        (a, b) => matches!(a, Cell::Null).cmp(&matches!(b, Cell::Null)),
    }
}

/// A column as whole numbers.
fn whole(column: &ArrayRef) -> Option<Int64Array> {
    let column = arrow::compute::cast(column, &arrow::datatypes::DataType::Int64).ok()?;
    Some(column.as_primitive::<Int64Type>().clone())
}

#[cfg(test)]
mod tests;
