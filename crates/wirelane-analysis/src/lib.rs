//! Analysis of packets (flows, HTTP, VoIP) over records of any engine.
//!
//! * [`flows`]: conversations with their packets, bytes and times.
//! * [`http`]: HTTP requests and their responses.
//! * [`numbered`]: numbered packets: loss, order, duplicates, latency and jitter.
//! * [`voip`]: calls, their streams, and their quality.
pub mod flows;
mod fragments;
pub mod http;
mod index;
pub mod numbered;
mod outbox;
pub mod voip;

pub use outbox::Outbox;
