//! Ships a store to ClickHouse: every row arrives once, whoever is killed meanwhile.
//!
//! ```text
//! store (complete files) -> batch (claimed on disk, with a token) -> one Parquet file -> INSERT by HTTP -> noted on disk
//! ```
//!
//! The store is the outbox: its files are complete, durable and never change. A batch is a claim of files of a table that
//! ended on the same day, so that it becomes one block of one partition: the server takes it as a whole, and drops a
//! repetition by its token (`insert_deduplication_token`). The row of `shipments` that describes the batch has a token of
//! its own, derived from the batch's.
pub mod ddl;
mod error;
mod http;
mod shipper;
mod target;

pub use error::{Error, Result};
pub use http::Client;
pub use shipper::{Settings, Shipper, Status};
pub use target::{Secrets, Target};
