//! Flows: the exporting thread, and the report.

pub mod report;
pub mod show;
