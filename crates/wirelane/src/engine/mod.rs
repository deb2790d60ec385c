//! How packets reach user space. Every engine is a [`Source`] of batches; applications see only that.

use std::time::Duration;

use crate::{Batch, Result};

pub(crate) mod choose;
pub(crate) mod fence;
pub(crate) mod file;
pub(crate) mod packet;
pub(crate) mod poll;
pub(crate) mod ring;
pub(crate) mod seed;
pub(crate) mod uninterrupted;
pub(crate) mod xsk;

/// One worker's end of an engine.
pub(crate) trait Source: Send {
    /// The next records, waiting up to `wait` for them. An empty batch: the wait ended first. `None`: there
    /// will be no more. An error ends the source; everything before it has been delivered.
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>>;
}
