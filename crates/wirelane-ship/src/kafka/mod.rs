//! A topic of Kafka as a place to ship to.
//!
//! A batch becomes a message for each row, in the order of its files, so that a repetition has the same messages. Each has
//! the batch's token and its own number as headers, by which a consumer drops repetitions. Within a session (an idempotent
//! producer of librdkafka) every message is written once, also where brokers restart; a session ends with the first
//! message that is not acknowledged in time, and the batch is repeated in a new one.

#[cfg(feature = "kafka")]
mod message;
#[cfg(feature = "kafka")]
mod producer;
mod target;

#[cfg(feature = "kafka")]
pub(crate) use producer::Kafka;
pub use target::KafkaTarget;
