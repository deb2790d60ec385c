//! A running probe: results to alarms, actions, exports, recordings, the store and the screen; changes while it runs.

pub mod analysis;
pub mod change;
pub mod controller;
pub mod exporter;
pub mod helper;
pub mod keep;
pub mod recorder;
pub mod report;
pub mod show;
mod standing;
pub mod worker;
