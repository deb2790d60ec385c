//! `ends()` against sums computed row by row.

use std::collections::BTreeMap;
use std::net::IpAddr;

use datafusion::arrow::array::{AsArray, TimestampMicrosecondArray};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};

use super::*;

const BATCHES: i64 = 50;
const ROWS: i64 = 400;

/// A row: source, destination, bytes, reverse bytes; times follow from `bytes`.
type Flow = (Option<String>, Option<String>, i64, Option<i64>);

fn flow(number: i64) -> Flow {
    // The one form in which we write addresses to files.
    let address = |n: i64| match n % 7 {
        0 => format!("2001:db8:{:x}::{:x}", 1 + n % 3, n + 1),
        _ => format!("10.{}.{}.{}", n % 5, n % 11, n % 251),
    };
    let other = match number % 100 {
        0 => None,
        1 => Some("no address".to_owned()),
        _ => Some(address(number * 7 % 1000)),
    };
    (Some(address(number * 13 % 3001)), other, number, (number % 3 == 0).then_some(number * 2))
}

fn session(pool: Arc<dyn MemoryPool>) -> SessionContext {
    let time = DataType::Timestamp(TimeUnit::Microsecond, None);
    let fields = [
        ("src", DataType::Utf8View),
        ("dst", DataType::Utf8View),
        ("bytes", DataType::Int64),
        ("reverse_bytes", DataType::Int64),
        ("start_time", time.clone()),
        ("end_time", time),
    ];
    let fields: Vec<Field> = fields.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let batch = |number: i64| {
        let flows: Vec<Flow> = (number * ROWS..(number + 1) * ROWS).map(flow).collect();
        let text = |of: fn(&Flow) -> &Option<String>| -> ArrayRef {
            Arc::new(flows.iter().map(|flow| of(flow).as_deref()).collect::<StringViewArray>())
        };
        let time = |more: i64| -> ArrayRef {
            let times = flows.iter().map(|flow| flow.2 + more);
            Arc::new(TimestampMicrosecondArray::from_iter_values(times))
        };
        let columns = vec![
            text(|flow| &flow.0),
            text(|flow| &flow.1),
            Arc::new(flows.iter().map(|flow| Some(flow.2)).collect::<Int64Array>()),
            Arc::new(flows.iter().map(|flow| flow.3).collect::<Int64Array>()),
            time(0),
            time(5),
        ];
        RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()
    };
    let parts = [0..BATCHES / 2, BATCHES / 2..BATCHES].map(|part| part.map(batch).collect());
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().unwrap();
    let config = SessionConfig::new().with_target_partitions(2);
    let session = SessionContext::new_with_config_rt(config, runtime);
    let table = MemTable::try_new(Arc::clone(&schema), parts.into()).unwrap();
    let flows = session.read_table(Arc::new(table)).unwrap();
    session.register_udtf("ends", Arc::new(Ends::new(flows)));
    session
}

/// Sums by the name of an end.
type Found = BTreeMap<Option<String>, [i64; 5]>;

fn add(found: &mut Found, name: Option<String>, more: [i64; 5]) {
    let sums = found.entry(name).or_insert([0, 0, 0, i64::MAX, i64::MIN]);
    (0..3).for_each(|at| sums[at] += more[at]);
    (sums[3], sums[4]) = (sums[3].min(more[3]), sums[4].max(more[4]));
}

/// The summed rows of `ends(..)`, and the number of rows.
fn asked(pool: Arc<dyn MemoryPool>, arguments: &str) -> (Found, usize) {
    let session = session(pool);
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let batches = runtime
        .block_on(async { session.sql(&format!("SELECT * FROM ends({arguments})")).await?.collect().await });
    let (mut found, mut rows) = (Found::new(), 0);
    for batch in batches.unwrap() {
        let names = batch.column(0).as_string::<i32>();
        let number = |at: usize, row: usize| match batch.columns().get(at).map(|column| column.data_type()) {
            Some(DataType::Int64) => batch.column(at).as_primitive::<Int64Type>().value(row),
            Some(_) => batch.column(at).as_primitive::<TimestampMicrosecondType>().value(row),
            None => 0,
        };
        for row in 0..batch.num_rows() {
            let name = names.is_valid(row).then(|| names.value(row).to_owned());
            add(&mut found, name, [1, 2, 3, 4, 5].map(|at| number(at, row)));
        }
        rows += batch.num_rows();
    }
    (found, rows)
}

/// Name of an end, if it counts, from itself and the other end.
type Name<'f> = &'f dyn Fn(&str, Option<&str>) -> Option<Option<String>>;

/// Expected sums.
fn expected(timed: bool, name: Name<'_>) -> Found {
    let mut found = Found::new();
    for (src, dst, bytes, back) in (0..BATCHES * ROWS).map(flow) {
        let back = back.unwrap_or(0);
        let (first, last) = if timed { (bytes, bytes + 5) } else { (0, 0) };
        for (end, other, sent, received) in [(&src, &dst, bytes, back), (&dst, &src, back, bytes)] {
            let called = end.as_deref().and_then(|end| name(end, other.as_deref()));
            if let Some(called) = called {
                add(&mut found, called, [1, sent, received, first, last]);
            }
        }
    }
    found
}

fn plenty() -> Arc<dyn MemoryPool> {
    Arc::new(UnboundedMemoryPool::default())
}

#[test]
fn each_end_is_added_up_once() {
    let (found, rows) = asked(plenty(), "");
    assert!(found == expected(false, &|end, _| Some(Some(end.to_owned()))));
    assert!(found.len() > 2000 && rows <= 2 * found.len(), "{rows} of {}", found.len());
    let network = |end: &str, _: Option<&str>| {
        let address: Option<IpAddr> = end.parse().ok();
        let bits = |address: &IpAddr| if address.is_ipv4() { 16 } else { 48 };
        Some(address.map(|address| Network::of(address, bits(&address)).to_string()))
    };
    let (found, _) = asked(plenty(), "16, 48");
    assert_eq!(found, expected(false, &network));
    assert!(found.contains_key(&None) && found.contains_key(&Some("2001:db8:2::/48".into())));
}

#[test]
fn who_talked_to_whom_is_told_with_the_times() {
    for peer in ["10.1.0.0/16", "10.1.1.1", "2001:db8:1::/48", "2001:db8:2::104", "0.0.0.0/0"] {
        let network = Network::parse(peer).unwrap();
        let talked = |end: &str, other: Option<&str>| {
            let is_peer = other?.parse().is_ok_and(|other| network.contains(other));
            is_peer.then(|| Some(end.to_owned()))
        };
        let (found, _) = asked(plenty(), &format!("'{peer}'"));
        assert!(!found.is_empty(), "{peer}");
        assert!(found == expected(true, &talked), "{peer}");
    }
}

#[test]
fn what_there_is_no_memory_for_is_handed_on_and_not_lost() {
    let (found, rows) = asked(Arc::new(GreedyMemoryPool::new(100_000)), "");
    assert!(found == expected(false, &|end, _| Some(Some(end.to_owned()))));
    assert!(rows > 3 * found.len(), "{rows} of {}", found.len());
}

#[test]
fn other_words_are_refused() {
    let session = session(plenty());
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    for wrong in ["1", "33, 0", "0, 129", "-1, 0", "'10.0.0.0/33'", "'x'", "'10.0.0.1', 1", "NULL"] {
        let error = runtime.block_on(session.sql(&format!("SELECT * FROM ends({wrong})")));
        let error = error.err().unwrap_or_else(|| panic!("{wrong}")).to_string();
        assert!(error.contains("write ends()"), "{wrong}: {error}");
    }
}
