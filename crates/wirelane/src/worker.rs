//! A worker: one consumer of a capture, for one thread.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use wirelane_bpf::instance::MAX_QUEUES;

use crate::batch::Batch;
use crate::clock::{Clock, monotonic_ns};
use crate::engine::Source;
use crate::error::{Error, Result};
use crate::http_heads::HttpOffload;
use crate::record::Record;

/// One consumer of a capture. Give each its own thread; it reads its rings without a lock, an allocation or a system
/// call per packet.
pub struct Worker {
    index: usize,
    core: Option<usize>,
    source: Box<dyn Source>,
    clock: Option<Arc<Clock>>,
    offloaded: Option<HttpOffload>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).field("core", &self.core).finish_non_exhaustive()
    }
}

impl Worker {
    /// `clock`: converts the records' monotonic time to UTC; `None` where records carry UTC already.
    pub(crate) fn new(
        index: usize,
        core: Option<usize>,
        source: Box<dyn Source>,
        clock: Option<Arc<Clock>>,
    ) -> Worker {
        Worker { index, core, source, clock, offloaded: None }
    }

    /// Attaches the kernel-side HTTP state to the worker.
    pub(crate) fn over(mut self, offloaded: Option<HttpOffload>) -> Worker {
        self.offloaded = offloaded;
        self
    }

    /// The worker's number in the capture, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The core that the capture assigned to the worker.
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
    /// [`wirelane_pcapng::Error::CaptureFile`] where a file is damaged (records before the damage have been delivered);
    /// [`Error::Kernel`] where the kernel refuses to wait.
    #[inline]
    pub fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        self.source.next_batch(wait)
    }

    /// A descriptor for poll(2) and the like, to wait for packets and other events at once: once [`Worker::next_batch`]
    /// has returned an empty batch, the descriptor is readable as soon as there may be something to read, and it stays
    /// readable until there is another empty batch. Spurious readiness is possible. The worker keeps the descriptor;
    /// nothing else may read from it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of files and engine `xsk`; [`Error::Kernel`] where the kernel cannot create one.
    pub fn readiness(&mut self) -> Result<BorrowedFd<'_>> {
        self.source.readiness()
    }

    /// The time up to which everything has been yielded, where the kernel aggregates flows
    /// ([`crate::Builder::kernel_flows`]): no part of a flow that is still to come has a packet from before that time,
    /// of [`Timebase::steady_ns`]. `None` without flows in the kernel. For the worker's own thread; 0 at first.
    pub fn settled(&self) -> Option<Arc<AtomicU64>> {
        self.source.settled()
    }

    /// The time up to which everything has been yielded, where records come in the order of time: no record that is still
    /// to come has an earlier one, of [`Timebase::steady_ns`]. Updated by each empty batch. `None` for files and engine
    /// `xsk`, and where a worker has a single ring, unless [`crate::Builder::across_workers`] is set. For the worker's own
    /// thread; 0 at first.
    pub fn caught_up(&self) -> Option<Arc<AtomicU64>> {
        self.source.caught_up()
    }

    /// Access to the skipped bytes of connections, where the kernel examines HTTP ([`crate::Builder::kernel_http`]):
    /// for connections that end without another packet. It may be kept beside the worker, and stays valid when the
    /// capture has stopped.
    pub fn http_offload(&self) -> Option<HttpOffload> {
        self.offloaded.clone()
    }

    /// Converter from record timestamps to UTC, to keep beside the worker while its batches are borrowed.
    pub fn timebase(&self) -> Timebase {
        Timebase::new(self.clock.clone(), self.source.is_ordered())
    }
}

/// Turns the time of a capture's records into UTC; one for each worker.
#[derive(Clone, Debug)]
pub struct Timebase {
    clock: Option<Arc<Clock>>,
    /// Whether the records of all devices and RX queues come in the order of their stamps.
    ordered: bool,
    /// The latest record of each device and RX queue, or of all where they are ordered: its stamp and its UTC.
    latest: RefCell<Vec<(u64, u64)>>,
}

/// A clock that goes back by less than this between two looks was slewed, or read less precisely: NTP slews by up to
/// 500 ppm, 0.1 ms in the time between two looks.
const STEP_NS: u64 = 1_000_000;

impl Timebase {
    fn new(clock: Option<Arc<Clock>>, ordered: bool) -> Timebase {
        Timebase { clock, ordered, latest: RefCell::default() }
    }

    /// A record's timestamp on a clock that is never set: the kernel's monotonic nanoseconds; UTC where records carry
    /// UTC already ([`Timebase::utc_ns`]). For measuring time between packets.
    pub fn steady_ns(&self, record: &Record<'_>) -> u64 {
        match &self.clock {
            Some(clock) => clock.monotonic_of_ns(record.header(), record.device()),
            None => record.header().ts_ns,
        }
    }

    /// The time now, on the clock of [`Timebase::steady_ns`].
    pub fn steady_now_ns(&self) -> u64 {
        match &self.clock {
            Some(_) => monotonic_ns(),
            None => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                now.map_or(0, |now| now.as_nanos() as u64)
            }
        }
    }

    /// UTC nanoseconds since 1970 of a time of [`Timebase::steady_ns`], by the system's clock now.
    pub fn utc_of_steady_ns(&self, ns: u64) -> u64 {
        self.clock.as_ref().map_or(ns, |clock| clock.utc_of_monotonic_ns(ns))
    }

    /// UTC nanoseconds since 1970 of a record's timestamp. Records of files and of engine `packet` carry UTC. Those of
    /// other live captures carry `CLOCK_MONOTONIC` or the card's clock ([`Record::clock`]); the distance is read anew a
    /// few times a second, so steps and slew of the system's clock, and the drift of the card's, are followed.
    ///
    /// No record is earlier than the one before it, of one RX queue or, where the worker merges them, of all queues and
    /// devices, unless the system's clock was set back by a millisecond or more.
    #[inline]
    pub fn utc_ns(&self, record: &Record<'_>) -> u64 {
        let header = record.header();
        match &self.clock {
            Some(clock) => {
                let utc = clock.utc_ns(header, record.device());
                if self.ordered {
                    return self.in_order(0, clock.monotonic_of_ns(header, record.device()), utc);
                }
                self.in_order(record.device() * MAX_QUEUES + usize::from(record.queue()), header.ts_ns, utc)
            }
            None => header.ts_ns,
        }
    }

    /// `utc`, or that of the latest record of the same source where that has an earlier stamp and a slightly later UTC.
    #[inline]
    fn in_order(&self, source: usize, ts_ns: u64, utc: u64) -> u64 {
        let mut latest = self.latest.borrow_mut();
        if source >= latest.len() {
            // Grow for a whole device at once: this happens at its first record only.
            latest.resize((source + 1).next_multiple_of(MAX_QUEUES), (0, 0));
        }
        let (last_ts_ns, last_utc) = latest[source];
        if ts_ns < last_ts_ns {
            // Lanes that are CPUs may bring one queue's packets out of order: this record did come earlier.
            return utc;
        }
        let slewed = utc < last_utc && last_utc - utc < STEP_NS;
        let utc = if slewed { last_utc } else { utc };
        latest[source] = (ts_ns, utc);
        utc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slewed_back_stands_still_and_what_is_set_back_goes_back() {
        let time = Timebase::new(None, false);
        let hour = 3_600_000_000_000;
        let distance = 1_700_000_000_000_000_000u64;
        assert_eq!(time.in_order(5, 1_000, distance + 1_000), distance + 1_000);
        // The clock turned out to be 100 us behind the estimate, and goes on from there.
        assert_eq!(time.in_order(5, 1_001, distance + 1_001 - 100_000), distance + 1_000);
        assert_eq!(time.in_order(5, 50_000, distance + 50_000 - 100_000), distance + 1_000);
        assert_eq!(time.in_order(5, 200_000, distance + 200_000 - 100_000), distance + 100_000);
        // Other queues and other devices are independent.
        assert_eq!(time.in_order(4, 1, distance - 100_000), distance - 100_000);
        assert_eq!(time.in_order(5 + MAX_QUEUES, 1, distance - 100_000), distance - 100_000);
        // Out of order by its stamp: its UTC is not later than before.
        assert_eq!(time.in_order(5, 199_000, distance + 99_000), distance + 99_000);
        // Set back by an hour, and by a millisecond.
        assert_eq!(time.in_order(5, 300_000, distance + 300_000 - hour), distance + 300_000 - hour);
        let back = distance + 400_000 - hour - STEP_NS - 200_000;
        assert_eq!(time.in_order(5, 400_000, back), back);
        // Set forward.
        assert_eq!(time.in_order(5, 500_000, distance + hour), distance + hour);
    }
}
