//! Worker side of engine `ring`: its rings over all lanes and devices.
//!
//! While its rings have packets, the worker reads them without a system call. When they are empty it sleeps until a
//! watermark of unread bytes rings its bell or a time-out expires. Where the capture owns the device (`exclusive`), it
//! spins first, for as long as spinning has paid off lately; on a device that the host uses, that would take a core
//! from the host. A lone packet rings the bell (the lane publishes a packet at once after a millisecond without
//! publication); the time-out bounds how long the last packets of a burst can wait.
//!
//! Ringing is work for the lane, and in a virtual machine, where an interrupt from core to core goes through the
//! hypervisor, some 30 us of it. So the bells of a capture ring about 200 times a second at most, whatever the
//! number of its workers, and in steady traffic not at all: the watermark grows until the time-out comes first, and
//! stays while each sleep brings something to read; the time-out grows while sleeps bring little.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::bell::{self, Bell};
use super::flows::LaneFlows;
use super::lane_end::LaneEnd;
use super::order::{self, Merge, Run};
use crate::batch::{Batch, Progress};
use crate::engine::Source;
use crate::engine::ready::Ready;
use crate::error::{Error, Result};

/// Longest sleep: the last packet of a burst is seen within this time plus the scheduler's delay.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);
/// Longest sleep of a worker that has nothing to read and would be woken by any packet. It bounds the cost of a bell
/// that was not rung because the worker fell asleep at that moment (`wl_ring_publish()`), and the delay until the
/// worker notices the end.
const LONGEST_IDLE_SLEEP: Duration = Duration::from_millis(50);
/// First sleep after work; longer sleeps follow while no packet comes.
const SHORTEST_SLEEP: Duration = Duration::from_micros(500);
/// Most empty rounds before a sleep. A round with its pause takes some tens of nanoseconds.
const MOST_SPINS: u32 = 1 << 9;
/// A longer spin was interrupted by another thread that needed the core; if packets came meanwhile, that was the lane,
/// and spinning keeps it from working.
const LONGEST_SPIN: Duration = Duration::from_micros(100);
/// Longest sleep while records are held back, which become due without a bell. In a steady trickle some always are, so
/// this decides how often the worker takes a core from the host: 200 times a second delay fewer than 1 % of the requests
/// of a server that answers more than 20,000 a second.
const LONGEST_HELD_SLEEP: Duration = LONGEST_SLEEP;
/// Sleep while records are held back from a reader that wants each record at once.
const NAP: Duration = Duration::from_micros(100);
/// Most bytes of one batch: bounds how long the lane waits for memory that has been read.
const BATCH: u64 = 128 * 1024;
/// Watermark of a worker that has been idle: any published record wakes it.
const LOWEST_WATERMARK: u64 = 1;
/// Watermark of a worker that is woken often; it doubles from here. Fewer bytes than this after a sleep are a trickle,
/// for which a bell is the better alarm.
const FIRST_WATERMARK: u64 = 4096;
/// A watermark this many times higher than the bytes that a sleep brings is lowered.
const TOO_HIGH: u64 = 16;
/// Sleeps grow longer while they bring less than this part (one n-th) of the highest watermark.
const LITTLE: u64 = 8;
/// Bells in shorter succession than this times the number of workers raise the watermark.
const BETWEEN_BELLS: Duration = LONGEST_SLEEP;
/// A ring that has published nothing is still peeked at once per this many rounds while others are busy.
const PEEK_EVERY: u32 = 16;

/// Replacement for a wait that is too long to be added to a time.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86400);

/// Limit of a worker's watermark, in unread bytes of one ring: a quarter of the smallest. `immediate`: the lowest
/// watermark, so that every record rings.
pub(crate) fn highest_watermark(ring_size: u64, immediate: bool) -> u64 {
    if immediate { LOWEST_WATERMARK } else { (ring_size / 4).max(FIRST_WATERMARK) }
}

/// State shared by a worker and its capture.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set (Release) after the lanes have stopped writing: the rings then contain the last records.
    pub(crate) closed: AtomicBool,
    /// Number of times the worker went to sleep, and of times it was woken by its bell.
    pub(crate) sleeps: AtomicU64,
    pub(crate) wakes: AtomicU64,
    /// Set (Release) when the worker has ended: the remaining records will not be read.
    pub(crate) ended: AtomicBool,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct RingSource {
    lanes: Vec<LaneEnd>,
    bells: Vec<Bell>,
    shared: Arc<Shared>,
    /// The lane of the borrowed batch, and whether the batch is from the lane's flow cache.
    current: Option<usize>,
    half: bool,
    /// See [`crate::Worker::settled`].
    settled: Arc<AtomicU64>,
    progress: Progress,
    /// Start of the next round: the lane after the one served last.
    next: usize,
    round: u32,
    /// `None`: the worker does not spin.
    spins: Option<u32>,
    sleep: Duration,
    /// Remaining looks beyond the published heads since the last sleep.
    peeks: u32,
    watermark: u64,
    highest_watermark: u64,
    /// Time for which packets may gather, if set: the worker sleeps this long, or until a ring reaches the highest watermark.
    patience: Option<Duration>,
    last_wake: Instant,
    between_bells: Duration,
    polls: Vec<libc::pollfd>,
    /// Merges records by timestamp; `None`: each ring is read in turn.
    merge: Option<Merge>,
    /// See [`crate::Worker::caught_up`].
    caught_up: Arc<AtomicU64>,
    /// The timestamp up to which the found lane may be read.
    bound: u64,
    /// For threads that wait on a descriptor.
    ready: Option<Ready>,
}

impl RingSource {
    /// A source over these rings, with the result of [`highest_watermark`], for one of `workers` workers. `merge`:
    /// merges records by timestamp. `patience`: [`crate::Builder::patience`].
    pub(crate) fn new(
        lanes: Vec<LaneEnd>,
        bells: Vec<Bell>,
        shared: Arc<Shared>,
        highest_watermark: u64,
        workers: u32,
        merge: Option<Merge>,
        patience: Option<Duration>,
    ) -> RingSource {
        RingSource {
            merge,
            caught_up: Arc::default(),
            bound: u64::MAX,
            ready: None,
            polls: Vec::with_capacity(bells.len()),
            lanes,
            bells,
            shared,
            current: None,
            half: false,
            settled: Arc::default(),
            progress: Progress::default(),
            next: 0,
            round: 0,
            spins: None,
            sleep: patience.unwrap_or(SHORTEST_SLEEP),
            peeks: 0,
            watermark: if patience.is_some() { highest_watermark } else { LOWEST_WATERMARK },
            highest_watermark,
            patience,
            last_wake: Instant::now(),
            between_bells: BETWEEN_BELLS * workers,
        }
    }

    /// Enables spinning before sleep, where `spin` is set.
    pub(crate) fn spinning(mut self, spin: bool) -> RingSource {
        self.spins = spin.then_some(MOST_SPINS);
        self
    }

    /// Returns the memory of the yielded records of the last batch.
    fn release(&mut self) {
        let Some(at) = self.current.take() else { return };
        let lane = &mut self.lanes[at];
        if std::mem::take(&mut self.half) {
            if let Some(flows) = &mut lane.flows {
                flows.advance(self.progress.take());
            }
            return;
        }
        lane.reader.release(self.progress.take() as u64);
        if self.progress.take_barrier() {
            lane.meet_barrier();
        }
        if let Some(merge) = &mut self.merge {
            merge.refresh(at, lane);
        }
    }

    /// Publishes the time up to which everything has been yielded.
    fn settle(&self) {
        let settled = self.lanes.iter().filter_map(|lane| lane.flows.as_ref()).map(LaneFlows::settled).min();
        if let Some(settled) = settled {
            // Relaxed: the reader is in this thread.
            self.settled.store(settled, Ordering::Relaxed);
        }
    }

    /// The next lane with something to read, and the number of bytes. `peek`: look beyond the published heads too.
    fn find(&mut self, peek: bool) -> Option<(usize, u64)> {
        if self.merge.is_some() {
            return self.find_earliest(peek);
        }
        let lanes = self.lanes.len();
        for turn in 0..lanes {
            let lane = (self.next + turn) % lanes;
            if self.lanes[lane].is_blocked() {
                continue;
            }
            if self.lanes[lane].half_is_due() {
                self.next = lane + 1;
                return Some((lane, 0));
            }
            let reader = &self.lanes[lane].reader;
            let mut unread = reader.published();
            if unread == 0 && peek {
                unread = reader.peek();
            }
            if unread != 0 {
                self.next = lane + 1;
                return Some((lane, unread));
            }
        }
        None
    }

    /// The lane whose next record is the earliest, and how many of its bytes the snapshot has. `now`: take a new
    /// snapshot even shortly after the last one.
    fn find_earliest(&mut self, now: bool) -> Option<(usize, u64)> {
        let merge = self.merge.as_mut()?;
        let run = merge.next(&mut self.lanes).or_else(|| {
            // Acquire: pairs with the Release of the thread that has stopped the lanes. Before the heads.
            let closed = self.shared.closed.load(Ordering::Acquire);
            let may_have = now || closed || merge.holds();
            if may_have || self.lanes.iter().any(|lane| lane.reader.published() != 0) {
                merge.look(&mut self.lanes, closed, now);
            }
            merge.next(&mut self.lanes)
        });
        run.map(|Run { lane, unread, bound }| {
            self.bound = bound;
            (lane, unread)
        })
    }

    /// Whether records are held back until no lane can publish an earlier one.
    fn holds_back(&self) -> bool {
        self.merge.as_ref().is_some_and(Merge::holds)
    }

    /// Looks at the published heads `spins` times, or until there is something to read.
    fn spin(&mut self, spins: u32) -> Option<(usize, u64)> {
        let start = Instant::now();
        for spin in 0..spins {
            if let Some(found) = self.find(false) {
                // The spin was useful: spin longer next time.
                let longer = if start.elapsed() < LONGEST_SPIN { (spins * 2).min(MOST_SPINS) } else { 1 };
                self.spins = Some(longer);
                return Some(found);
            }
            if spin % 64 == 63 && self.shared.closed.load(Ordering::Relaxed) {
                break;
            }
            std::hint::spin_loop();
        }
        // The spin was useless: spin less next time.
        self.spins = Some((spins / 2).max(1));
        None
    }

    /// Waits for something to read until `deadline`.
    fn wait(&mut self, deadline: Instant) -> Result<Option<(usize, u64)>> {
        loop {
            // The packets that came during a sleep can be in several lanes, and in two parts where the memory of a ring
            // wraps. Without a look beyond the published heads the second part would wait for another sleep.
            if self.peeks > 0 {
                self.peeks -= 1;
                if let Some(found) = self.find(true) {
                    return Ok(Some(found));
                }
            }
            // Held-back records become due by the clock: spinning does not help.
            if let Some(spins) = self.spins
                && !self.holds_back()
                && let Some(found) = self.spin(spins)
            {
                return Ok(Some(found));
            }
            if self.shared.closed.load(Ordering::Acquire) {
                return Ok(self.find(true));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(self.find(true));
            }
            if self.holds_back() && self.highest_watermark == LOWEST_WATERMARK {
                std::thread::sleep(left.min(NAP));
                if let Some(found) = self.find(true) {
                    return Ok(Some(found));
                }
                continue;
            }
            let longest = if self.holds_back() { LONGEST_HELD_SLEEP } else { FOR_EVER };
            let whole = self.sleep <= left.min(longest);
            let (found, came) = self.sleep(left.min(self.sleep).min(longest))?;
            if found.is_some() || came != 0 {
                self.sleep = if let Some(patience) = self.patience {
                    patience
                } else if came < self.highest_watermark / LITTLE {
                    (self.sleep * 2).min(LONGEST_SLEEP)
                } else {
                    (self.sleep / 2).max(SHORTEST_SLEEP)
                };
            } else if whole && self.patience.is_none() {
                self.sleep = (self.sleep * 2).min(self.longest_sleep());
            }
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Signals to threads that wait on the descriptor whether there is something to read.
    fn tell(&mut self, found: bool) -> Result<()> {
        let Some(ready) = &mut self.ready else { return Ok(()) };
        if found {
            return ready.full();
        }
        self.bells.iter().for_each(Bell::silence);
        for lane in &self.lanes {
            lane.reader.arm(LOWEST_WATERMARK);
        }
        // Records since the look would not ring any more. Records that wait at a barrier have no bell.
        if self.lanes.iter().any(|lane| lane.barrier.is_some() || lane.reader.peek() != 0)
            || self.shared.closed.load(Ordering::Acquire)
        {
            return ready.full();
        }
        ready.empty()
    }

    /// Maximum sleep when the last sleep brought nothing.
    fn longest_sleep(&self) -> Duration {
        // After that long without a record, the next one is published at once (WL_PUBLISH_NS) and rings. No bell
        // signals that another worker has passed a barrier.
        let idle = self.sleep >= LONGEST_SLEEP && self.watermark == LOWEST_WATERMARK;
        if idle && self.has_no_barrier() { LONGEST_IDLE_SLEEP } else { LONGEST_SLEEP }
    }

    fn has_no_barrier(&self) -> bool {
        self.lanes.iter().all(|lane| lane.barrier.is_none())
    }

    /// Sleeps until the bell rings or the time is up, then looks everywhere. Returns the lane and bytes to read, and
    /// the unread bytes of a lane, which may be held back.
    fn sleep(&mut self, time: Duration) -> Result<(Option<(usize, u64)>, u64)> {
        // Held-back records exceed a low watermark and are not a reason to wake up.
        let watermark = if self.holds_back() { self.highest_watermark } else { self.watermark };
        for lane in &self.lanes {
            lane.reader.arm(watermark);
        }
        // Records since the last look that exceed the watermark would not ring any more.
        let above = self.lanes.iter().any(|lane| lane.barrier.is_none() && lane.reader.peek() >= watermark);
        let rang = if above {
            true
        } else {
            self.shared.sleeps.fetch_add(1, Ordering::Relaxed);
            let rang = bell::sleep(&self.bells, &mut self.polls, time)
                .map_err(|e| Error::kernel("waiting for packets", e))?;
            self.shared.wakes.fetch_add(rang.into(), Ordering::Relaxed);
            rang
        };
        for lane in &self.lanes {
            lane.reader.disarm();
        }
        // Read up to the very last record: an unpublished record would wait for another sleep.
        self.peeks = 2 * self.lanes.len() as u32;
        let found = self.find(true);
        let lanes = self.lanes.iter().filter(|lane| lane.barrier.is_none());
        let came = match found {
            Some((lane, _)) => self.lanes[lane].reader.peek(),
            None => lanes.map(|lane| lane.reader.peek()).max().unwrap_or(0),
        };
        if self.patience.is_some() {
            return Ok((found, came));
        }
        if rang {
            let now = Instant::now();
            let soon = now.duration_since(self.last_wake) < self.between_bells;
            self.last_wake = now;
            if soon {
                self.watermark = (self.watermark * 2).max(FIRST_WATERMARK).min(self.highest_watermark);
            }
        } else {
            if came < FIRST_WATERMARK.max(self.watermark / TOO_HIGH) {
                self.watermark = (self.watermark / 2).max(LOWEST_WATERMARK);
            }
        }
        Ok((found, came))
    }
}

impl Source for RingSource {
    fn is_ordered(&self) -> bool {
        self.merge.is_some()
    }

    fn settled(&self) -> Option<Arc<AtomicU64>> {
        self.lanes.iter().any(|lane| lane.flows.is_some()).then(|| Arc::clone(&self.settled))
    }

    fn caught_up(&self) -> Option<Arc<AtomicU64>> {
        self.merge.is_some().then(|| Arc::clone(&self.caught_up))
    }

    fn readiness(&mut self) -> Result<BorrowedFd<'_>> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => Ready::new(self.bells.iter().map(AsFd::as_fd))?,
        };
        let ready: &Ready = self.ready.insert(ready);
        Ok(ready.as_fd())
    }

    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        if self.progress.is_damaged() {
            // Neither a lane nor we write such a header; but every root process can open our maps.
            return Err(Error::kernel(
                "reading a ring: invalid record header; did another process write to it?",
                std::io::ErrorKind::InvalidData.into(),
            ));
        }
        self.release();
        self.settle();
        if self.ready.is_some() {
            self.lanes.iter().for_each(|lane| lane.reader.disarm());
        }
        self.round = self.round.wrapping_add(1);
        let found = match self.find(self.round.is_multiple_of(PEEK_EVERY)) {
            Some(found) => Some(found),
            None => {
                let now = Instant::now();
                // The longest possible wait exceeds the range of an Instant.
                self.wait(now.checked_add(wait).unwrap_or(now + FOR_EVER))?
            }
        };
        self.tell(found.is_some())?;
        match found {
            Some((lane, unread)) => {
                self.current = Some(lane);
                self.half = self.lanes[lane].half_is_due();
                let LaneEnd { reader, memory, device, tally, flows, .. } = &self.lanes[lane];
                if self.half
                    && let Some(flows) = flows
                {
                    return Ok(Some(Batch::kept(flows.half(), *device, &self.progress, tally)));
                }
                if let Some(flows) = flows {
                    self.progress.expect(flows.epoch());
                }
                let (bytes, end) = memory.run(reader.position(), unread);
                let mut end = end.min(BATCH as usize);
                if let Some(merge) = &self.merge {
                    end = merge.until(&self.lanes[lane], bytes, end, self.bound);
                }
                Ok(Some(Batch::new(bytes, end, *device, &self.progress, tally)))
            }
            None if self.shared.closed.load(Ordering::Acquire)
                && self.find(true).is_none()
                && self.has_no_barrier() =>
            {
                // Empty halves may have been skipped since.
                self.settle();
                Ok(None)
            }
            None => {
                self.settle();
                // A lane that waits at a barrier may have earlier records behind it.
                if let Some(merge) = self.merge.as_ref().filter(|_| self.has_no_barrier()) {
                    // Relaxed: the reader is in this thread.
                    self.caught_up.store(merge.caught_up(), Ordering::Relaxed);
                }
                let tally = &self.lanes[0].tally;
                Ok(Some(Batch::new(&[], 0, 0, &self.progress, tally)))
            }
        }
    }
}

impl Drop for RingSource {
    fn drop(&mut self) {
        self.release();
        if let late @ 1.. = self.merge.as_ref().map_or(0, Merge::late) {
            tracing::warn!(
                "{late} packets came out of time order: a CPU held a packet for more than {} s while others went on",
                order::LONGEST_HOLD.as_secs()
            );
        }
        if let Some(merge) = &self.merge {
            let gap = merge.longest_gap();
            tracing::info!("time order: a packet at hand held others back for {gap:?} at most");
        }
        // Release: pairs with the Acquire in LaneEnd::is_blocked.
        self.shared.ended.store(true, Ordering::Release);
    }
}
