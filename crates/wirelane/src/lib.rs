//! Multi-core packet capture for stock Linux.
mod batch;
mod capture;
mod clock;
pub mod device;
mod engine;
mod error;
mod file;
mod interfaces;
mod keeper;
pub mod ledger;
pub mod linktype;
mod live;
pub mod privilege;
mod record;
pub mod send;
mod tally;
mod worker;

pub use batch::Batch;
pub use capture::{Builder, Capture, CaptureDevice, DEFAULT_RING_SIZE, Steering};
pub use device::{Device, Selector, XdpMode};
pub use engine::file::{FileInterface, FileOptions, FileSource, InterfaceCounters, TimestampResolution};
pub use error::{Error, Result};
pub use interfaces::{Interface, Interfaces};
pub use ledger::Ledger;
pub use record::Record;
pub use wirelane_datapath::layout::{LinkType, RecordHeader};
pub use worker::{Timebase, Worker};
