//! The flow caches of a group (`bpf/flows.h` has a diagram): created when it joins, switched to their other half by the
//! maintenance thread, read by the workers. A cache of another size takes the place of the one before with an epoch: both
//! are in the instance's map until the last half of the former one has been read.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `wl_group.flow_epoch`, `flow_sets` | [`GroupFlows::look`] | Release, and the kernel waits for all programs | the volatile load in `wl_keep_flow()` |
//! | `Turns::caches` | the same, before that | a mutex | [`LaneFlows::advance`], after the epoch was met or frozen |
//! | `Turns::settled` | the same, before the next | Relaxed | ordered by the next one |
//! | `Turns::frozen` | the same, after the wait | Release | Acquire in [`LaneFlows::is_due`] |
//! | `Turns::read` | the workers | Release | Acquire in [`GroupFlows::look`] |

use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags};
use wirelane_bpf::flow_cache::{FlowPart, FlowSet, Splits, WAYS};
use wirelane_bpf::instance::{FLOW_ELEMENT, FLOW_LEAST_SETS, FLOW_LISTED, FLOW_SECOND, FlowHalf, Group};
use wirelane_bpf::layout::{RecordHeader, record_kind};
use wirelane_privsep::broker::Broker;

use super::group::Token;
use super::instance::Instance;
use super::map_factory::{self, MapFactory, Wanted};
use super::memory::{Mapping, Word};
use super::reader::Reader;
use crate::batch;
use crate::clock::monotonic_ns;
use crate::error::{Error, Result};
use crate::flow_cache::{FlowCacheLine, KernelFlows};

/// The first epoch; 0 marks halves that were never filled.
pub(super) const FIRST_EPOCH: u32 = 1;
/// Maximum time that parts stay in the kernel, unless flow timeouts are shorter.
const LONGEST: Duration = Duration::from_secs(2);
/// Most times that the memory of the caches may be that of the start.
const MOST_TIMES: usize = 64;

/// The caches of all lanes and workers, in one map.
#[derive(Debug)]
struct Caches {
    map: OwnedFd,
    memory: Mapping,
    /// Number of sets of each.
    sets: usize,
}

/// State shared by the maintenance thread and the workers.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The caches that are filled in an epoch, by its lowest bit.
    caches: [Mutex<Arc<Caches>>; 2],
    /// Halves of epochs below this one are not filled any more.
    frozen: AtomicU64,
    /// Indexed by the lowest bit of an epoch: every packet that was stamped before this time is of that epoch or an
    /// earlier one.
    settled: [AtomicU64; 2],
    /// Halves that have been read, over all lanes and workers.
    read: AtomicU64,
    /// Number of parts in these halves.
    parts: AtomicU64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct GroupFlows {
    instance: Arc<Instance>,
    group: usize,
    workers: usize,
    /// Whether packets of the flows are delivered, too.
    pub(crate) delivers: bool,
    maps: MapFactory,
    /// Maximum bytes of caches.
    most: u64,
    turns: Arc<Turns>,
    state: Mutex<State>,
    place: Arc<Token>,
}

#[derive(Debug)]
struct State {
    /// The caches that lanes fill.
    caches: Arc<Caches>,
    /// Whether they are the second ones of the group in the instance's map.
    second: bool,
    /// Those that take their place with the next epoch.
    next: Option<Arc<Caches>>,
    /// Whether the other ones are still in the instance's map.
    former: bool,
    /// Maximum time that parts stay in the kernel.
    period: Duration,
    /// Epoch of the halves that lanes fill.
    epoch: u32,
    /// The epoch was raised, but program runs that saw the previous one have not been waited for yet.
    raised: bool,
    /// The group has left the instance.
    left: bool,
    /// Number of lanes times workers that read.
    readers: u64,
    last: Instant,
}

/// Number of elements in half of a cache.
fn half_elements(sets: usize) -> usize {
    1 + sets / FLOW_LEAST_SETS + sets
}

/// The key of a group's first or second caches in the instance's map.
pub(super) fn key_of(group: usize, second: bool) -> usize {
    group * 2 + usize::from(second)
}

/// Offset of the word of `struct wl_group` with the number of sets in its lower half and the epoch in the upper.
fn word_of(group: usize) -> usize {
    const { assert!(offset_of!(Group, flow_epoch) % 8 == 4 && offset_of!(Group, flow_sets) % 8 == 0) };
    group * size_of::<Group>() + offset_of!(Group, flow_sets)
}

/// Number of elements of the caches of all lanes and workers.
fn elements(instance: &Instance, workers: usize, sets: usize) -> usize {
    instance.lanes * workers * 2 * half_elements(sets)
}

/// Maximum bytes of the caches of a group that begins with this size.
fn most_bytes(instance: &Instance, wish: &KernelFlows, workers: usize) -> u64 {
    let most = KernelFlows { entries: KernelFlows::MOST_ENTRIES, ..*wish };
    let elements = elements(instance, workers, wish.sets(workers)) * MOST_TIMES;
    (elements.min(self::elements(instance, workers, most.sets(workers))) * FLOW_ELEMENT) as u64
}

/// The maximum time that parts stay in the kernel.
fn period(splits: &Splits) -> Duration {
    Duration::from_nanos(splits.gap_ns).min(LONGEST)
}

impl GroupFlows {
    /// Creates the caches of a group that is joining, and puts them into the instance's map for the lanes.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn new(
        (instance, group): (&Arc<Instance>, usize),
        wish: &KernelFlows,
        workers: usize,
        broker: Option<&Arc<Broker>>,
        place: Arc<Token>,
    ) -> Result<GroupFlows> {
        let most = most_bytes(instance, wish, workers);
        let maps = MapFactory::new(broker, most)?;
        // Not by the broker: the capture still has its rights.
        let caches = Arc::new(make(instance, workers, wish.sets(workers), &MapFactory::Here)?);
        let both = [Mutex::new(Arc::clone(&caches)), Mutex::new(Arc::clone(&caches))];
        let flows = GroupFlows {
            instance: Arc::clone(instance),
            group,
            workers,
            delivers: wish.deliver,
            maps,
            most,
            turns: Arc::new(Turns {
                caches: both,
                frozen: AtomicU64::default(),
                settled: Default::default(),
                read: AtomicU64::default(),
                parts: AtomicU64::default(),
            }),
            state: Mutex::new(State {
                caches,
                second: false,
                next: None,
                former: false,
                period: period(&wish.splits()),
                epoch: FIRST_EPOCH,
                raised: false,
                left: false,
                readers: 0,
                last: Instant::now(),
            }),
            place,
        };
        flows.hand_over(&flows.state().caches, false)?;
        Ok(flows)
    }

    /// Changes the capacity and the ends of parts; the other settings stay. Caches of another size are filled from one of the
    /// next epochs on. No packet is lost.
    ///
    /// # Errors
    /// [`Error::BadOption`] for caches of more bytes than [`most_bytes`]; [`Error::Kernel`] without memory for them.
    pub(crate) fn change(&self, wish: &KernelFlows) -> Result<()> {
        let sets = wish.sets(self.workers);
        let bytes = (elements(&self.instance, self.workers, sets) * FLOW_ELEMENT) as u64;
        if bytes > self.most {
            let [mib, most] = [bytes, self.most].map(|bytes| bytes.div_ceil(1 << 20));
            let reason = format!(
                "the caches would take {mib} MiB; while the capture runs they get up to {most}: start it again"
            );
            return Err(Error::BadOption { option: "--cache-entries", reason });
        }
        let mut state = self.state();
        if state.caches.sets == sets {
            state.next = None;
        } else if state.next.as_ref().is_none_or(|next| next.sets != sets) {
            state.next = Some(Arc::new(make(&self.instance, self.workers, sets, &self.maps)?));
        }
        let splits = wish.splits();
        state.period = period(&splits);
        // Intervals do not change. A program may find one new word and one former word: then a part ends by either.
        let word = |at: usize| {
            let group = self.group * size_of::<Group>() + offset_of!(Group, flow_splits);
            self.instance.groups.word(group + at)
        };
        word(offset_of!(Splits, gap_ns)).store(splits.gap_ns, Ordering::Relaxed);
        const { assert!(offset_of!(Splits, grid_shift) == 8) };
        word(offset_of!(Splits, grid_shift)).store(u64::from(splits.grid_shift), Ordering::Relaxed);
        Ok(())
    }

    /// The key of caches in the instance's map.
    fn key(&self, second: bool) -> [u8; 4] {
        (key_of(self.group, second) as u32).to_ne_bytes()
    }

    /// Puts caches into the instance's map; on return no program runs that ran before.
    fn hand_over(&self, caches: &Caches, second: bool) -> Result<()> {
        // If they are in the map already nothing changes, but the kernel waits all the same (maybe_wait_bpf_programs()
        // in kernel/bpf/syscall.c).
        self.instance
            .flows
            .update(&self.key(second), &caches.map.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("handing flow caches to the capture program", e))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the lanes fill the other halves, if the period has passed and those halves have been read.
    ///
    /// # Errors
    /// The error that the kernel returned; the next call tries again.
    pub(crate) fn look(&self) -> Result<()> {
        let mut state = self.state();
        let epoch = state.epoch;
        if state.left || !state.raised && state.last.elapsed() < state.period {
            return Ok(());
        }
        if !state.raised {
            // Acquire: pairs with the workers' Release, after which they no longer access their halves.
            if self.turns.read.load(Ordering::Acquire) < state.readers * u64::from(epoch - FIRST_EPOCH) {
                return Ok(());
            }
            if state.former {
                // All halves of the former caches have been read.
                self.remove(!state.second)?;
                state.former = false;
            }
            state.last = Instant::now();
            // Packets that were stamped before this time are finished once the kernel has waited: they are of this
            // epoch.
            let settled = monotonic_ns();
            self.hand_over(&state.caches, state.second)?;
            self.turns.settled[(epoch & 1) as usize].store(settled, Ordering::Relaxed);
            if let Some(next) = &state.next {
                self.hand_over(next, !state.second)?;
            }
            if let Some(next) = state.next.take() {
                (state.caches, state.second, state.former) = (next, !state.second, true);
            }
            *self.turns.of(epoch + 1) = Arc::clone(&state.caches);
            let word = self.instance.groups.word(word_of(self.group));
            let second = if state.second { FLOW_SECOND } else { 0 };
            let sets = state.caches.sets as u32 | second;
            word.store(u64::from(sets) | u64::from(epoch + 1) << 32, Ordering::Release);
            (state.epoch, state.raised) = (epoch + 1, true);
        }
        self.hand_over(&state.caches, state.second)?;
        state.raised = false;
        // Release: a worker that sees this epoch sees the time above, and the halves as the lanes have left them.
        self.turns.frozen.store(state.epoch.into(), Ordering::Release);
        Ok(())
    }

    /// Takes caches out of the instance's map.
    fn remove(&self, second: bool) -> Result<()> {
        let removed = self.instance.flows.delete(&self.key(second));
        removed.map_err(|e| Error::bpf("removing former flow caches", e))
    }

    /// Marks the group as leaving: its caches are not put into the instance's map any more.
    pub(super) fn leave(&self) {
        self.state().left = true;
    }

    /// Freezes all halves for reading, after the lanes have stopped writing.
    pub(crate) fn freeze(&self) {
        let mut state = self.state();
        state.left = true;
        let frozen = u64::from(state.epoch) + 1;
        if self.turns.frozen.load(Ordering::Relaxed) < frozen {
            self.turns.settled[(state.epoch & 1) as usize].store(monotonic_ns(), Ordering::Relaxed);
            // Release: as in `look`.
            self.turns.frozen.store(frozen, Ordering::Release);
        }
    }

    /// A worker's view of a lane's cache.
    pub(crate) fn lane(&self, lane: usize, worker: usize) -> LaneFlows {
        self.state().readers += 1;
        LaneFlows {
            place: lane * self.workers + worker,
            caches: Arc::clone(&self.turns.of(FIRST_EPOCH)),
            turns: Arc::clone(&self.turns),
            epoch: FIRST_EPOCH,
            due_at: None,
            at: 0,
            settled: 0,
            header: RecordHeader { kind: record_kind::FLOW, ..RecordHeader::default() },
            _place: Arc::clone(&self.place),
        }
    }

    /// Size of the caches, and number of parts read from them.
    pub(crate) fn line(&self) -> FlowCacheLine {
        let sets = self.state().caches.sets;
        FlowCacheLine {
            entries: (self.instance.lanes * self.workers * sets * WAYS) as u64,
            memory_bytes: (elements(&self.instance, self.workers, sets) * FLOW_ELEMENT) as u64,
            // Relaxed: a counter that orders no other data.
            parts: self.turns.parts.load(Ordering::Relaxed),
            ..FlowCacheLine::default()
        }
    }
}

impl Turns {
    /// The caches that are filled in this epoch, if it is the one that has been raised last, or the one before.
    fn of(&self, epoch: u32) -> std::sync::MutexGuard<'_, Arc<Caches>> {
        self.caches[(epoch & 1) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates caches of `sets` sets for each lane and worker.
fn make(instance: &Instance, workers: usize, sets: usize, maps: &MapFactory) -> Result<Caches> {
    let elements = elements(instance, workers, sets);
    let mib = (elements * FLOW_ELEMENT).div_ceil(1 << 20);
    let what = |why: &str| {
        let lanes = instance.lanes;
        format!(
            "allocating {mib} MiB for flow caches of {lanes} lanes: {why} (less is needed with smaller --cache-entries; a \
             control group's memory limit counts too)"
        )
    };
    let too_large = |_| Error::kernel(what("that is too large"), std::io::ErrorKind::OutOfMemory.into());
    let count = u32::try_from(elements).map_err(too_large)?;
    let map = maps.make(Wanted::Flows(count)).map_err(|e| Error::kernel(what(map_factory::why(&e)), e))?;
    let memory = Mapping::new(map.as_fd(), 0, elements * FLOW_ELEMENT, false).map_err(|e| {
        Error::kernel(format!("mapping {mib} MiB of flow caches (ulimit -v limits the address space)"), e)
    })?;
    Ok(Caches { map, memory, sets })
}

/// One worker's flow cache in one lane.
#[derive(Debug)]
pub(crate) struct LaneFlows {
    /// Those in which the epoch's half is.
    caches: Arc<Caches>,
    /// Index of the cache among them.
    place: usize,
    turns: Arc<Turns>,
    /// The first epoch that has not been read.
    epoch: u32,
    /// Ring position where that epoch's parts end, once it is known.
    due_at: Option<u64>,
    /// Number of parts of the half that have been yielded.
    at: usize,
    settled: u64,
    header: RecordHeader,
    /// Keeps the group's slot ours as long as its memory is read.
    _place: Arc<Token>,
}

/// Maximum number of parts of a half in one batch.
const TOGETHER: usize = 4096;

impl LaneFlows {
    /// Whether the half of the epoch comes next, as all of its parts in the ring have been read.
    pub(super) fn is_due(&mut self, reader: &Reader<Word>) -> bool {
        // Acquire: pairs with the Release of the thread that has waited for the lanes.
        if self.due_at.is_none() && self.turns.frozen.load(Ordering::Acquire) > self.epoch.into() {
            self.due_at = Some(reader.position() + reader.peek());
        }
        self.due_at.is_some_and(|at| reader.position() >= at)
    }

    /// Marks the half as due, because the ring's next part is of the next epoch: the lane, which is the only writer,
    /// has left the half.
    pub(super) fn meet(&mut self, reader: &Reader<Word>) {
        self.due_at = Some(reader.position());
    }

    /// The epoch of the ring's next parts.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The time before which all timestamps have been yielded, for this lane and worker.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// The remaining parts of the half for which [`LaneFlows::is_due`] is true.
    pub(super) fn half(&self) -> Half<'_> {
        let first = (self.place * 2 + (self.epoch & 1) as usize) * half_elements(self.caches.sets);
        let mut half = Half { flows: self, first, at: self.at, count: 0 };
        let word = |at: usize| half.words(0, at);
        let used = if word(offset_of!(FlowHalf, epoch)) == self.epoch {
            word(offset_of!(FlowHalf, used))
        } else {
            0
        };
        half.count = (used as usize).min(self.caches.sets * WAYS).saturating_sub(self.at);
        half
    }

    /// Accounts for `yielded` parts. True: the half is exhausted, and the next epoch's parts follow.
    pub(super) fn advance(&mut self, yielded: usize) -> bool {
        self.at += yielded;
        self.turns.parts.fetch_add(yielded as u64, Ordering::Relaxed);
        if self.half().count > 0 {
            return false;
        }
        // Relaxed: ordered by `frozen`, or by the ring's head; it does not change before we have read it.
        self.settled = self.turns.settled[(self.epoch & 1) as usize].load(Ordering::Relaxed);
        (self.epoch, self.at, self.due_at) = (self.epoch + 1, 0, None);
        // The next epoch was raised before this half could be read to its end, and its caches are those since.
        self.caches = Arc::clone(&self.turns.of(self.epoch));
        // Release: pairs with the Acquire in `GroupFlows::look`.
        self.turns.read.fetch_add(1, Ordering::Release);
        true
    }
}

/// A half of a cache that is not being filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half<'a> {
    flows: &'a LaneFlows,
    /// Index of the half's first element.
    first: usize,
    /// Parts before the first.
    at: usize,
    count: usize,
}

impl<'a> Half<'a> {
    /// Number of parts in the half that are not yielded yet.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Number of these parts that fit into one batch.
    pub(crate) fn together(&self) -> usize {
        self.count.min(TOGETHER)
    }

    /// The record header that all parts share.
    pub(crate) fn header(&self) -> &'a RecordHeader {
        &self.flows.header
    }

    /// A part; `None`: the element is not a part, which no lane writes.
    #[inline]
    pub(crate) fn part(&self, number: usize) -> Option<&'a FlowPart> {
        let number = self.at + number;
        let place = self.words(1 + number / FLOW_LISTED, number % FLOW_LISTED * 4) as usize;
        let sets = self.flows.caches.sets;
        if place >= sets * WAYS {
            return None;
        }
        let set = 1 + sets / FLOW_LEAST_SETS + place / WAYS;
        let at = offset_of!(FlowSet, parts) + place % WAYS * size_of::<FlowPart>();
        batch::flow_in(self.element(set).get(at..at + size_of::<FlowPart>())?)
    }

    fn words(&self, element: usize, at: usize) -> u32 {
        let bytes = self.element(element).get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    #[inline]
    fn element(&self, number: usize) -> &'a [u8] {
        // SAFETY: the half is frozen: no lane finds its epoch in the group any more, and lanes that had found it are
        // done (see `LaneFlows::is_due`); it is filled anew only after `LaneFlows::advance` has reported it as read,
        // when no borrow of it may live. Nothing else writes to the map except by a mistake.
        unsafe { self.flows.caches.memory.bytes((self.first + number) * FLOW_ELEMENT, FLOW_ELEMENT) }
    }
}
