//! Multi-core packet capture for stock Linux.
pub mod batch;
pub mod device;
pub mod engine;
pub mod error;
pub mod privilege;
pub mod record;

pub use batch::Batch;
pub use device::{Device, Selector};
pub use error::{Error, Result};
pub use record::Record;
pub use wirelane_datapath::layout::{LinkType, RecordHeader};
/// placeholder
#[derive(Debug)]
pub struct Capture;
