//! Ships a store to ClickHouse, Kafka and S3, whoever is killed meanwhile.
//!
//! ```text
//! store (complete files) -> batch (claimed on disk, with a token) -> destination -> noted on disk
//! ```
//!
//! The store is the outbox: its files are complete, durable and never change. A batch is a claim of files of a table that
//! ended on the same day. It is sent with the same rows under the same token until it is acknowledged.
//!
//! | place | a batch is | a repetition |
//! | --- | --- | --- |
//! | ClickHouse | one block of one partition | is dropped by its token (`insert_deduplication_token`) |
//! | Kafka | a message for each row | has the same headers, token and number of the row, by which consumers drop it |
//! | S3 | an object for each probe and hour | finds the objects under their names, which have the token |
//!
//! The row of `shipments` that describes the batch follows it, under a token that is derived from the batch's.
pub mod ddl;
mod error;
mod http;
mod kafka;
mod place;
mod s3;
mod shipper;
mod target;

pub use error::{Error, Result};
pub use http::Client;
pub use kafka::KafkaTarget;
pub use place::{Destination, Place, Shipment};
pub use s3::S3Target;
#[cfg(feature = "s3")]
pub use s3::remote;
pub use shipper::{Settings, Shipper, Status};
pub use target::{Secrets, Target};

/// Schema of the messages of flows in Kafka (protobuf).
pub const PROTO: &str = include_str!("../proto/flow.proto");
