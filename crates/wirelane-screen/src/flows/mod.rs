//! `wirelane flows --top`: a live view on a terminal's screen.
//!
//! ```text
//! workers  -> Shared (their busiest flows, how many they hold) -> TopModel -> terminal::Top
//! exports  -> Shared (what became of flows at the outputs)        |
//! ledger   ------------------------------------------------------>
//! ```
//! Once per interval, the main thread makes a [`view::View`] of all that, and the terminal shows it as keys say
//! ([`TopModel`]). Workers scan their flows once per interval too, only those with packets since the last scan.

mod devices;
mod model;
mod names;
mod shared;
mod sums;
mod view;

use std::net::IpAddr;

use wirelane_analysis::flows::FlowRecord;

pub use model::TopModel;
pub use names::Names;
pub use shared::{Shared, Watcher};

/// Source and destination, as a row has them.
pub fn ends(record: &FlowRecord) -> (String, String) {
    match (record.source(), record.destination(), record.icmp()) {
        (Some(source), Some(destination), Some((kind, code))) => {
            (source.to_string(), format!("{destination} {kind}.{code}"))
        }
        (Some(source), Some(destination), None) => {
            (end(source, record.source_port()), end(destination, record.destination_port()))
        }
        _ => (format!("EtherType 0x{:04x}", record.key.eth_type), "-".to_owned()),
    }
}

fn end(address: IpAddr, port: u16) -> String {
    match (address, port) {
        (_, 0) => address.to_string(),
        (IpAddr::V4(address), port) => format!("{address}:{port}"),
        (IpAddr::V6(address), port) => format!("[{address}]:{port}"),
    }
}
