//! Worker side of engine `packet`: its sockets, one per device, direction and RX queue.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::block::Blocks;
use super::order::{self, Merge, Next, Run};
use super::record::{Made, Recipe, record};
use crate::active_rules::Evaluator;
use crate::batch::{Batch, Digests, Progress, Slot};
use crate::clock::monotonic_ns;
use crate::engine::Source;
use crate::engine::poll::Poller;
use crate::engine::ready::Ready;
use crate::engine::ring::source::Shared;
use crate::error::{Error, Result};
use crate::tally::DeviceTally;
use wirelane_filter::View;

/// Maximum number of records in one batch: their headers stay in the first-level cache.
const BATCH: usize = 64;
/// Assumed number of CPUs where the machine does not report it.
const MOST_CPUS: usize = 512;
/// Maximum turns without a record before an empty batch, so that the caller can do something else.
const TURNS: usize = 64;

/// One socket of a worker.
#[derive(Debug)]
pub(super) struct End {
    pub(super) blocks: Blocks,
    pub(super) recipe: Recipe,
    pub(super) device: u16,
    pub(super) tally: Arc<DeviceTally>,
    /// The filter that the worker evaluates.
    wanted: View,
    /// Evaluator of the rules for packets that the filter accepts; `None`: no rules.
    evaluate: Option<Evaluator>,
    /// Number of packets that were taken.
    taken: u64,
    /// Final number of packets, once the capture has stopped.
    total: Option<u64>,
    /// Whether [`Ready`] waits for the socket.
    heeded: bool,
}

impl End {
    /// The reading end of a new socket.
    pub(super) fn new(
        blocks: Blocks,
        recipe: Recipe,
        device: u16,
        tally: Arc<DeviceTally>,
        wanted: View,
        evaluate: Option<Evaluator>,
    ) -> End {
        End { blocks, recipe, device, tally, wanted, evaluate, taken: 0, total: None, heeded: true }
    }

    /// Whether all packets have been taken that will ever come. To be called once the capture has stopped.
    fn is_drained(&mut self) -> Result<bool> {
        let total = match self.total {
            Some(total) => total,
            None => {
                let counts = self.blocks.socket().counts()?;
                *self.total.insert(counts.seen - counts.lost)
            }
        };
        Ok(self.taken >= total)
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct PacketSource {
    ends: Vec<End>,
    slots: Vec<Slot>,
    digests: Digests,
    /// The socket of the borrowed batch.
    current: Option<usize>,
    progress: Progress,
    /// Start of the next round.
    next: usize,
    shared: Arc<Shared>,
    poller: Poller,
    damaged: bool,
    /// For threads that wait on a descriptor.
    ready: Option<Ready>,
    /// Merges packets by timestamp; `None`: each block is read in turn.
    merge: Option<Merge>,
    ordered: bool,
    /// See [`crate::Worker::caught_up`].
    caught_up: Arc<AtomicU64>,
    /// Maximum time for which packets are held back, if they are.
    held: Option<Duration>,
    /// Counters for empty batches.
    nothing: DeviceTally,
}

impl PacketSource {
    /// A source over these sockets; `immediate`: the worker is woken for every block; `ordered`: packets come in the
    /// order of their timestamps. Packets of a single socket are sorted within each block, and not held back.
    pub(super) fn new(
        mut ends: Vec<End>,
        shared: Arc<Shared>,
        immediate: bool,
        ordered: bool,
    ) -> PacketSource {
        if ordered {
            // A CPU writes one packet at a time; twice as many, because of interrupts.
            let cpus = libbpf_rs::num_possible_cpus().unwrap_or(MOST_CPUS);
            ends.iter_mut().for_each(|end| end.blocks.sort_blocks(2 * cpus));
        }
        PacketSource {
            merge: (ordered && ends.len() > 1).then(|| Merge::new(ends.len())),
            ordered,
            caught_up: Arc::default(),
            held: None,
            poller: Poller::new(ends.iter().map(|end| end.blocks.socket().raw()), immediate),
            ends,
            slots: Vec::with_capacity(BATCH),
            digests: Digests::new(BATCH),
            current: None,
            progress: Progress::default(),
            next: 0,
            shared,
            damaged: false,
            ready: None,
            nothing: DeviceTally::new(1),
        }
    }

    /// Discards the yielded slots of the last batch; false while some slots are not yet yielded.
    fn release(&mut self) -> bool {
        let yielded = self.progress.take();
        self.held = None;
        self.slots.drain(..yielded);
        if let (true, Some(at)) = (self.slots.is_empty(), self.current) {
            self.current = None;
            self.digests.clear();
            self.ends[at].blocks.hand_back();
        }
        self.slots.is_empty()
    }

    /// Makes records of the next accepted packets. False: there are no packets now, or they are held back.
    fn fill(&mut self) -> Result<bool> {
        for _ in 0..TURNS {
            let at = match self.merge {
                None => self.next_ready()?.map(|at| (at, None)),
                Some(_) => self.next_run()?.map(|run| (run.socket, Some(run))),
            };
            let Some((at, run)) = at else { return Ok(false) };
            self.take(at, run);
            if !self.slots.is_empty() {
                self.current = Some(at);
                return Ok(true);
            }
            if self.damaged {
                return Err(damage());
            }
            // All of these packets were refused.
            self.ends[at].blocks.hand_back();
        }
        Ok(true)
    }

    /// The next socket that has packets, if packets may come in any order.
    fn next_ready(&mut self) -> Result<Option<usize>> {
        let ends = self.ends.len();
        for turn in 0..ends {
            let at = (self.next + turn) % ends;
            let blocks = &mut self.ends[at].blocks;
            match blocks.is_ready() {
                Ok(true) => {
                    self.next = at;
                    return Ok(Some(at));
                }
                // An empty block, should there be one, goes back to the kernel.
                Ok(false) => blocks.hand_back(),
                Err(_) => {
                    self.damaged = true;
                    return Err(damage());
                }
            }
        }
        Ok(None)
    }

    /// The socket whose packet is the earliest, if that is certain.
    fn next_run(&mut self) -> Result<Option<Run>> {
        if let Some(Next::Run(run)) = self.merge.as_ref().map(Merge::next) {
            return Ok(Some(run));
        }
        self.look()?;
        match self.merge.as_ref().map(Merge::next) {
            Some(Next::Run(run)) => Ok(Some(run)),
            Some(Next::Held(time)) => {
                self.held = Some(time);
                Ok(None)
            }
            Some(Next::Nothing) | None => Ok(None),
        }
    }

    /// Opens the blocks that were handed over; checks for the other sockets whether they have packets. See `order.rs`.
    fn look(&mut self) -> Result<()> {
        let Some(merge) = &mut self.merge else { return Ok(()) };
        for end in &mut self.ends {
            if end.blocks.is_ready().is_err() {
                self.damaged = true;
                return Err(damage());
            }
        }
        let utc = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        merge.looked(monotonic_ns(), utc.map_or(0, |utc| utc.as_nanos() as u64));
        for (at, end) in self.ends.iter_mut().enumerate() {
            if end.blocks.were_stamped_before() {
                merge.loosen();
            }
            if let (true, Some(head)) = (merge.has_none(at), end.blocks.head()) {
                merge.opened(at, head);
            } else if !end.blocks.is_open() && end.blocks.is_quiet() {
                merge.quiet(at);
            }
        }
        Ok(())
    }

    /// Makes records of packets of a socket: of its block, or of a run within it.
    fn take(&mut self, at: usize, run: Option<Run>) {
        let end = &mut self.ends[at];
        end.wanted.refresh();
        let now_ns = end.evaluate.as_ref().map_or(0, |_| monotonic_ns());
        let set = end.evaluate.as_mut().and_then(|evaluate| evaluate.begin(""));
        let within = |stamp: u64| run.is_none_or(|run| run.has(stamp));
        while self.slots.len() < BATCH {
            let Ok(packet) = end.blocks.take(&within) else {
                self.damaged = true;
                break;
            };
            let Some(packet) = packet else { break };
            end.taken += 1;
            if let Some(merge) = &mut self.merge {
                merge.took(packet.ns);
            }
            let evaluate = end.evaluate.as_mut().zip(set.as_deref());
            let queue = end.recipe.queue;
            // SAFETY: the packet's block stays ours until `hand_back`, which `release` calls when no slot of it is
            // left, and `fill` where there is no slot. No reference to the packet exists yet.
            let (made, packets) =
                unsafe { record(packet, &end.recipe, &end.wanted, evaluate, now_ns, &mut self.digests) };
            if packets > 1 {
                end.tally.aggregate(queue, packets);
            }
            match made {
                Made::Slot(slot) => self.slots.push(slot),
                Made::Refused => end.tally.refuse(queue, packets),
                Made::Absorbed => end.tally.absorb(queue, packets),
            }
        }
        end.evaluate.iter_mut().for_each(Evaluator::end);
        if let Some(merge) = &mut self.merge {
            merge.goes_on(at, end.blocks.head());
        } else if !end.blocks.has_packets() {
            // Stay with this socket until the block is done: it is in the cache, and the kernel wants it back.
            self.next = at + 1;
        }
    }

    /// Sleeps until a socket has a block that may be read, or for at most `left`.
    fn wait(&mut self, mut left: Duration) -> Result<()> {
        let ends = &self.ends;
        if self.merge.is_some() {
            // A socket with an open block would wake the worker at once.
            self.poller.only(|at| !ends[at].blocks.is_open());
            left = self.held.map_or(left, |held| left.min(held));
        }
        self.poller.wait(left, &self.shared, |at| ends[at].blocks.socket().take_error())
    }

    /// Signals to threads that wait on the descriptor whether there is something to read.
    fn tell(&mut self) -> Result<()> {
        let Some(ready) = &mut self.ready else { return Ok(()) };
        if !self.slots.is_empty() {
            return ready.full();
        }
        if self.merge.is_none() {
            return ready.empty();
        }
        let (held, mut open) = (self.held.is_some(), false);
        for end in &mut self.ends {
            open |= end.blocks.is_open();
            // A socket whose packets are held back would be readable at once.
            let heeded = !held || !end.blocks.is_open();
            if end.heeded != heeded {
                ready.heed(end.blocks.socket().fd(), heeded)?;
                end.heeded = heeded;
            }
        }
        match (held, open) {
            (true, _) => ready.held(),
            (false, true) => ready.full(),
            (false, false) => ready.empty(),
        }
    }

    /// Notes that nothing is left from before this time, if no socket has a packet.
    fn tell_caught_up(&self) {
        // Read before the counts: packets that a count does not include are stamped later, or, where the kernel stamps them
        // when it takes them from the driver, by at most LOOSE earlier.
        let utc = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let before_ns = utc.map_or(0, |utc| utc.saturating_sub(order::LOOSE).as_nanos() as u64);
        if self.ends.iter().all(|end| !end.blocks.is_open() && end.blocks.is_quiet()) {
            // Relaxed: the reader is in this thread.
            self.caught_up.store(before_ns, Ordering::Relaxed);
        }
    }

    fn is_drained(&mut self) -> Result<bool> {
        for end in &mut self.ends {
            if !end.is_drained()? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn damage() -> Error {
    Error::kernel(
        "reading a packet socket's ring: invalid packet header",
        std::io::ErrorKind::InvalidData.into(),
    )
}

impl Source for PacketSource {
    fn is_ordered(&self) -> bool {
        self.ordered
    }

    fn caught_up(&self) -> Option<Arc<AtomicU64>> {
        self.ordered.then(|| Arc::clone(&self.caught_up))
    }

    fn readiness(&mut self) -> Result<BorrowedFd<'_>> {
        let ready = match self.ready.take() {
            Some(ready) => ready,
            None => Ready::new(self.ends.iter().map(|end| end.blocks.socket().fd()))?,
        };
        let ready: &Ready = self.ready.insert(ready);
        Ok(ready.as_fd())
    }

    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        let mut deadline = None;
        if self.release() {
            if self.damaged {
                return Err(damage());
            }
            loop {
                // Load this before looking: packets that were accepted by then are found by the look.
                let closed = self.shared.closed.load(Ordering::Acquire);
                self.held = None;
                if self.fill()? {
                    break;
                }
                if closed && self.is_drained()? {
                    return Ok(None);
                }
                let now = Instant::now();
                let end = *deadline.get_or_insert_with(|| now.checked_add(wait));
                let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(now));
                if left.is_zero() {
                    break;
                }
                self.wait(left)?;
            }
        }
        self.tell()?;
        if self.slots.is_empty() && self.ordered {
            self.tell_caught_up();
        }
        let (device, tally) = match self.current {
            Some(at) => (self.ends[at].device, &*self.ends[at].tally),
            None => (0, &self.nothing),
        };
        Ok(Some(Batch::apart(&self.slots, device, &self.progress, tally)))
    }
}

impl Drop for PacketSource {
    fn drop(&mut self) {
        // Packets that were not yielded stay in the ledger as in flight; the ring is freed with the socket.
        self.slots.clear();
        self.digests.clear();
        let late = self.merge.as_ref().map_or(0, Merge::late);
        if late != 0 {
            tracing::warn!(
                "{late} packets came out of time order: they were stamped before their socket saw them, or a CPU held a \
                 packet for more than {} s while others went on",
                order::LONGEST_HOLD.as_secs()
            );
        }
    }
}
