//! A store with made-up flows, for tests.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array,
};
use arrow::datatypes::DataType;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::AskSettings;
use crate::Table;

pub(super) const FILES: i64 = 4;
pub(super) const ROWS: i64 = 2000;

/// A row: source, destination, bytes, reverse bytes; all else follows from `bytes`.
pub(super) type Flow = (Option<String>, Option<String>, i64, Option<i64>);

pub(super) fn flow(number: i64) -> Flow {
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

/// A column of a file, from the number of a flow.
fn column(name: &str, kind: &DataType, flows: &[Flow]) -> ArrayRef {
    let text = |of: &dyn Fn(&Flow) -> Option<String>| -> ArrayRef {
        Arc::new(flows.iter().map(of).collect::<StringArray>())
    };
    let long = |of: &dyn Fn(&Flow) -> Option<i64>| -> ArrayRef {
        Arc::new(flows.iter().map(of).collect::<Int64Array>())
    };
    let int = |of: &dyn Fn(&Flow) -> Option<i64>| -> ArrayRef {
        Arc::new(flows.iter().map(|flow| of(flow).map(|number| number as i32)).collect::<Int32Array>())
    };
    match (name, kind) {
        ("src", _) => text(&|flow| flow.0.clone()),
        ("dst", _) => text(&|flow| flow.1.clone()),
        ("application", _) => text(&|flow| (flow.2 % 4 > 0).then(|| format!("app{}", flow.2 % 4))),
        ("device", _) => text(&|flow| Some(format!("eth{}", flow.2 % 2))),
        ("direction", _) => text(&|flow| (flow.2 % 5 > 0).then(|| "rx".to_owned())),
        ("bytes", _) => long(&|flow| Some(flow.2)),
        ("reverse_bytes", _) => long(&|flow| flow.3),
        ("packets", _) => long(&|flow| Some(flow.2 % 9)),
        ("reverse_packets", _) => long(&|flow| flow.3.map(|bytes| bytes % 3)),
        ("protocol", _) => int(&|flow| Some(flow.2 % 3)),
        ("ether_type", _) => text(&|flow| (flow.2 % 6 > 0).then(|| "0x0800".to_owned())),
        ("src_port", _) => int(&|flow| (flow.2 % 8 > 0).then_some(flow.2 % 50)),
        ("dst_port", _) => int(&|flow| (flow.2 % 8 > 0).then_some(40)),
        ("start_ns", _) => long(&|flow| Some(flow.2 * 1_000_000)),
        ("duration_ns", _) => long(&|_| Some(5000)),
        ("start_time" | "end_time", _) => {
            let more = if name == "end_time" { 5 } else { 0 };
            let times = flows.iter().map(|flow| flow.2 * 1000 + more);
            Arc::new(TimestampMicrosecondArray::from_iter_values(times))
        }
        (_, kind) => new_null_array(kind, flows.len()),
    }
}

/// A store with the flows.
pub(super) fn store(folder: &Path) {
    let schema = Table::Flows.schema();
    let schema = Arc::new(arrow::datatypes::Schema::new(
        schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect::<Vec<_>>(),
    ));
    for file in 0..FILES {
        let flows: Vec<Flow> = (file * ROWS..(file + 1) * ROWS).map(flow).collect();
        let columns = schema.fields().iter().map(|field| column(field.name(), field.data_type(), &flows));
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect()).unwrap();
        let hour = folder.join("flows/date=1970-01-01/hour=00");
        std::fs::create_dir_all(&hour).unwrap();
        let output = std::fs::File::create(hour.join(format!("{file}.parquet"))).unwrap();
        let groups = WriterProperties::builder().set_max_row_group_row_count(Some(999)).build();
        let mut writer = ArrowWriter::try_new(output, Arc::clone(&schema), Some(groups)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

pub(super) fn settings(folder: &Path, memory_mib: usize) -> AskSettings {
    AskSettings { folder: folder.to_owned(), memory_mib, from_ns: None, to_ns: None, probe: None }
}
