//! Flows to collectors and files.
//!
//! ```text
//! FlowRecord -> Exporters -> Lines (JSON, CSV)             -> a file
//!                         -> Encoder (NetFlow 5, 9, IPFIX) -> Carrier: a file, UDP, TCP
//! ```
//!
//! HTTP transactions are exported in the same way as IPFIX, with their own encoder (`transactions.rs`).
//!
//! An encoder makes messages that fit the transport to the collector; a carrier sends them, or counts them as unsent.
//! Every flow is counted once for each output: sent, not exportable (the format cannot represent it), or unsent. UDP
//! does not confirm delivery: there "sent" means accepted by the network, and sequence numbers let the collector count
//! the rest. Over TCP, messages wait for an unreachable collector, up to a limit.
//!
//! No function here blocks for a collector, or resolves names or opens sockets later, except TCP, which has to connect
//! again: outputs are opened before privileges are dropped.
pub(crate) mod carrier;
pub(crate) mod encode;
pub(crate) mod exporters;
pub(crate) mod fields;
mod ipfix;
pub(crate) mod lines;
mod netflow5;
mod netflow9;
pub(crate) mod target;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
mod transactions;

pub use encode::ExportSettings;
pub use exporters::{Exporters, OutputCounts};
pub use lines::{
    CSV_HEADER, Naming, csv_line, evidence, has_ports, json_line, protocol, reason, tcp_flags, tunnel_name,
};
pub use target::{Format, Target, Transport};
