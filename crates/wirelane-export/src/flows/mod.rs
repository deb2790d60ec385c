//! Flows to collectors and files.
//!
//! ```text
//! FlowRecord -> Exporters -> Lines (JSON, CSV)             -> a file
//!                         -> Encoder (NetFlow 5, 9, IPFIX) -> Carrier: a file, UDP, TCP
//! ```
//!
//! HTTP transactions go the same way as IPFIX, with an encoder of their own (`transactions.rs`).
//!
//! An encoder makes messages that fit the way to the collector; a carrier takes them there, or says what became of them.
//! Every flow is counted once for each output: sent, not exportable (the format has no place for it), or unsent. UDP tells nobody
//! what has arrived: there "sent" means that the network took it, and sequence numbers let the collector count the rest.
//! Over TCP, messages wait for a collector that is away, up to a bound.
//!
//! Nothing here blocks for a collector, and nothing resolves names or opens sockets later on but TCP, which has to
//! connect again: outputs are opened before rights are given up.
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
