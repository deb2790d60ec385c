//! Calls to receivers and files.
//!
//! ```text
//! CallRecord, Stream -> Exporters -> lines (JSON, CSV) -> a file
//! Signal (a message) ->           -> hep (HEP v3)      -> UDP
//! Stream              ->           -> ipfix             -> UDP, a file
//! Kept (a packet) -> SavedCalls, rebuilt, parts -> a file (pcapng) for each call
//! ```
//!
//! As with flows: nothing blocks for a receiver, and every item is counted once for each output.
mod exporters;
mod hep;
mod ipfix;
mod lines;
mod rebuilt;
mod saved;

pub use exporters::{Exporters, OutputCounts, Settings, Target};
pub use lines::{CSV_HEADER, call_csv, call_json, call_object, stream_json, stream_object};
pub use saved::{SavedCalls, SavedCounts};
