//! Flows: the exporting thread, and the report.

pub mod analysis;
pub mod report;
pub mod show;
