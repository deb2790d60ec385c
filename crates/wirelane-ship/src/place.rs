//! Places that stores are shipped to.

use std::time::Duration;

use serde::Serialize;
use wirelane_store::Table;
use wirelane_store::shipping::Rows;

use crate::kafka::KafkaTarget;
use crate::s3::S3Target;
use crate::{Client, Error, Result, Secrets, Target};

/// A place, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A database of a ClickHouse server.
    ClickHouse(Target),
    /// A topic of Kafka.
    Kafka(KafkaTarget),
    /// A bucket of S3.
    S3(S3Target),
}

/// A row of the table of batches.
#[derive(Debug, Serialize)]
pub struct Shipment<'a> {
    /// Name of the probe.
    pub probe: &'a str,
    /// Seconds since 1970.
    pub time: f64,
    /// Start of the hour of the rows, in seconds since 1970.
    pub hour: i64,
    /// Name of the table.
    pub table: &'a str,
    /// `shipped`, `unshipped`, `damaged` or `interrupted`.
    pub kind: &'a str,
    /// Token of the batch.
    pub batch: &'a str,
    /// Number of files.
    pub files: u64,
    /// Number of rows.
    pub rows: u64,
}

/// The rows as lines of JSON.
///
/// # Errors
/// [`Error::Bug`] if a row cannot be serialised.
pub(crate) fn json_lines(shipments: &[Shipment<'_>]) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for row in shipments {
        serde_json::to_writer(&mut text, row).map_err(|error| Error::Bug(error.to_string()))?;
        text.push(b'\n');
    }
    Ok(text)
}

/// A destination of the batches of a store. Each call may be repeated after an error, or by another process.
pub trait Destination: std::fmt::Debug + Send {
    /// Applies the schema, before the first batch.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses.
    fn create(&mut self) -> Result<()>;

    /// Checks that it takes all that this version sends.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses.
    fn check(&mut self) -> Result<()>;

    /// Sends the rows of a batch of a table. A repetition has the same rows and token. `probe`: the name for rows of files that
    /// do not name theirs.
    ///
    /// # Errors
    /// If it is not known to have arrived.
    fn send(&mut self, table: Table, rows: &Rows, probe: &str, token: &str) -> Result<()>;

    /// Adds rows to the table of batches, under a batch's token.
    ///
    /// # Errors
    /// If it is not known to have arrived.
    fn describe(&mut self, shipments: &[Shipment<'_>], token: &str) -> Result<()>;
}

impl Place {
    /// Parses a place.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn parse(text: &str) -> Result<Place> {
        match text.split_once("://").map(|(scheme, _)| scheme) {
            Some("kafka" | "kafka+tls") => KafkaTarget::parse(text).map(Place::Kafka),
            Some("s3") => S3Target::parse(text).map(Place::S3),
            Some("clickhouse+https" | "clickhouse+http") => Target::parse(text).map(Place::ClickHouse),
            _ => Err(Error::Target {
                target: text.to_owned(),
                reason: "an unknown kind of target".to_owned(),
                expected: "clickhouse+https://USER@HOST:PORT/DATABASE, kafka://BROKER,BROKER/TOPIC or \
                           s3://BUCKET/PREFIX"
                    .to_owned(),
            }),
        }
    }

    /// Name of the folder of its state.
    pub fn name(&self) -> String {
        match self {
            Place::ClickHouse(target) => target.name(),
            Place::Kafka(target) => target.name(),
            Place::S3(target) => target.name(),
        }
    }

    /// TCP ports that are connected to.
    pub fn ports(&self) -> Vec<u16> {
        match self {
            Place::ClickHouse(target) => vec![target.port],
            Place::Kafka(target) => target.brokers.iter().map(|(_, port)| *port).collect(),
            Place::S3(target) => vec![target.port()],
        }
    }

    /// Whether names are resolved while it is shipped: brokers name one another.
    pub fn resolves_names(&self) -> bool {
        matches!(self, Place::Kafka(_))
    }

    /// Prepares connections; none is opened yet, and no thread is started. `patience`: the limit of a request.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the host cannot be resolved, [`Error::File`], [`Error::NotBuilt`].
    pub fn open(self, secrets: &Secrets, patience: Duration) -> Result<Box<dyn Destination>> {
        match self {
            Place::ClickHouse(target) => Ok(Box::new(Client::new(target, secrets, patience)?)),
            #[cfg(feature = "kafka")]
            Place::Kafka(target) => Ok(Box::new(crate::kafka::Kafka::new(target, secrets, patience)?)),
            #[cfg(not(feature = "kafka"))]
            Place::Kafka(_) => Err(Error::NotBuilt { what: "Kafka", feature: "kafka" }),
            #[cfg(feature = "s3")]
            Place::S3(target) => Ok(Box::new(crate::s3::Bucket::new(target, secrets, patience)?)),
            #[cfg(not(feature = "s3"))]
            Place::S3(_) => Err(Error::NotBuilt { what: "S3", feature: "s3" }),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::ClickHouse(target) => target.fmt(f),
            Place::Kafka(target) => target.fmt(f),
            Place::S3(target) => target.fmt(f),
        }
    }
}
