//! Analysis of packets (flows, HTTP, VoIP) over records of any engine.
//!
//! * [`flows`]: who talked to whom, how much, from when to when.
//! * [`http`]: HTTP requests and their responses.
//! * [`voip`]: calls, their streams, and how they sound.
pub mod flows;
mod fragments;
pub mod http;
mod outbox;
pub mod voip;

pub use outbox::Outbox;
