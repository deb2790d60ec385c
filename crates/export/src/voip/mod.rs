//! Calls to receivers and files.
//!
//! ```text
//! CallRecord, Stream -> Exporters -> lines (JSON, CSV) -> a file
//! Signal (a message) ->           -> hep (HEP v3)      -> UDP
//! ```
//!
//! As with flows: nothing blocks for a receiver, and everything is counted once for each output.
mod exporters;
mod hep;
mod lines;

pub use exporters::{Exporters, OutputCounts, Settings, Target};
pub use lines::{CSV_HEADER, call_csv, call_json, stream_json};
