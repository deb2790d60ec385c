//! A worker: one consumer of a capture, for one thread.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::engine::Source;
use crate::{Batch, Error, Record, Result};

/// One consumer of a capture. Give each its own thread; it reads its rings without a lock, an allocation or a
/// system call per packet.
pub struct Worker {
    index: usize,
    core: Option<usize>,
    source: Box<dyn Source>,
    clock: Option<Arc<Clock>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).field("core", &self.core).finish_non_exhaustive()
    }
}

impl Worker {
    /// `clock`: what turns the records' monotonic time into UTC; `None` where they have UTC already.
    pub(crate) fn new(
        index: usize,
        core: Option<usize>,
        source: Box<dyn Source>,
        clock: Option<Arc<Clock>>,
    ) -> Worker {
        Worker { index, core, source, clock }
    }

    /// Its number in the capture, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The core that the capture gave it.
    pub fn core(&self) -> Option<usize> {
        self.core
    }

    /// Pins the calling thread to the worker's core; does nothing where it has none.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the core does not exist or is not allowed to this process.
    pub fn pin(&self) -> Result<()> {
        let Some(core) = self.core else { return Ok(()) };
        // SAFETY: a zeroed cpu_set_t is an empty set; CPU_SET checks the bounds; pid 0 is this thread.
        let status = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
        };
        if status == 0 {
            Ok(())
        } else {
            Err(Error::last_os(format!("pinning worker {} to core {core}", self.index)))
        }
    }

    /// The next records, waiting up to `wait` for them. An empty batch means that the wait ended first, `None`
    /// that there will be no more: the capture was stopped, or its file has ended.
    ///
    /// # Errors
    /// [`Error::CaptureFile`] where a file is damaged (what came before has been delivered); [`Error::Kernel`]
    /// where the kernel refuses to wait.
    #[inline]
    pub fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        self.source.next_batch(wait)
    }

    /// What turns the records' time into UTC, to keep beside the worker while its batches are borrowed.
    pub fn timebase(&self) -> Timebase {
        Timebase(self.clock.clone())
    }
}

/// Turns the time of a capture's records into UTC.
#[derive(Clone, Debug)]
pub struct Timebase(Option<Arc<Clock>>);

impl Timebase {
    /// UTC nanoseconds since 1970 of a record's timestamp. Records of files and of engine `packet` carry UTC. Those of
    /// other live captures carry `CLOCK_MONOTONIC` or the card's clock ([`Record::clock`]); the distance is read anew a few times a second, so steps and slew
    /// of the system's clock, and the drift of the card's, are followed.
    pub fn utc_ns(&self, record: &Record<'_>) -> u64 {
        let header = record.header();
        match &self.0 {
            Some(clock) => clock.utc_ns(header, record.device()),
            None => header.ts_ns,
        }
    }
}
