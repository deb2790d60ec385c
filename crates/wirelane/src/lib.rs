//! Multi-core packet capture for stock Linux.
pub mod batch;
pub mod engine;
pub mod error;
pub mod linktype;
pub mod record;
pub mod send;

pub use batch::Batch;
pub use error::{Error, Result};
pub use record::Record;
pub use wirelane_datapath::layout::{LinkType, RecordHeader};
/// placeholder
#[derive(Debug)]
pub struct Capture;
