//! Captures with their analyses and outputs: what the `wirelane` command runs, without its options.
//!
//! ```text
//! run_loop: workers -> Handler (wirelane_export::pipeline) -> exporting thread (flows, http, voip, probe)
//!           ledger  -> Reporter -> report -> out                    `-> logs, exports, store, out
//! ```
pub mod advice;
pub mod analysis;
pub mod asked;
pub mod control;
pub mod extcap;
pub mod files;
pub mod flows;
pub mod helper;
pub mod http;
pub mod instance;
pub mod kept_ledger;
pub mod live_view;
pub mod metrics;
pub mod out;
pub mod packets;
pub mod page;
pub mod probe;
pub mod receive;
pub mod record;
pub mod reload;
pub mod report;
pub mod rules;
pub mod run_loop;
pub mod send;
pub mod service;
pub mod shares;
pub mod ship;
#[cfg(feature = "ship")]
pub mod shipping;
pub mod site;
pub mod status;
pub mod store;
pub mod voip;
pub mod wait;
