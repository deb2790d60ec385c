//! Multi-core packet capture for stock Linux.
mod batch;
mod capture;
mod clock;
pub mod device;
mod engine;
mod error;
mod keeper;
pub mod ledger;
mod live;
pub mod privilege;
mod record;
mod tally;
mod worker;

pub use batch::Batch;
pub use capture::{Builder, Capture, CaptureDevice, DEFAULT_RING_SIZE, Steering};
pub use device::{Selector, XdpMode};
pub use error::{Error, Result};
pub use ledger::Ledger;
pub use record::Record;
pub use wirelane_datapath::layout::{LinkType, RecordHeader};
pub use worker::{Timebase, Worker};
