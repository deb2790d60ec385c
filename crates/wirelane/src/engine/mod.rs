//! Engines: how packets reach user space. Every engine is a [`Source`] of batches.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::batch::Batch;
use crate::error::{Error, Result};

pub(crate) mod fence;
pub(crate) mod file;
pub(crate) mod packet;
pub(crate) mod poll;
pub(crate) mod ready;
pub(crate) mod ring;
pub(crate) mod seed;
pub(crate) mod sockets;
pub(crate) mod uninterrupted;
pub(crate) mod xsk;

/// One worker's end of an engine.
pub(crate) trait Source: Send {
    /// The next records, waiting up to `wait` for them. An empty batch: the wait ended first. `None`: there will be no
    /// more records. An error ends the source; everything before it has been delivered.
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>>;

    /// Whether records come in timestamp order, over all queues and devices.
    fn is_ordered(&self) -> bool {
        false
    }

    /// See [`crate::Worker::settled`].
    fn settled(&self) -> Option<Arc<AtomicU64>> {
        None
    }

    /// See [`crate::Worker::caught_up`].
    fn caught_up(&self) -> Option<Arc<AtomicU64>> {
        None
    }

    /// A descriptor that is readable while there may be something to read, from the first call on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of engines without such a descriptor; [`Error::Kernel`].
    fn readiness(&mut self) -> Result<BorrowedFd<'_>> {
        Err(Error::Unsupported {
            what: "a descriptor to wait for packets".into(),
            needs: "engine ring or packet".into(),
            instead: "wait in Worker::next_batch".into(),
        })
    }
}
