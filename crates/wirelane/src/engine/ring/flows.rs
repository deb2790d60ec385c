//! The flow caches of a group (`bpf/flows.h` has a diagram): created when it joins, switched to their other half by the
//! maintenance thread, read by the workers.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `wl_group.flow_epoch` | [`GroupFlows::look`] | Release, and the kernel waits for all programs | the volatile load in `wl_keep_flow()` |
//! | `Turns::settled` | the same, before the next | Relaxed | ordered by the next one |
//! | `Turns::frozen` | the same, after the wait | Release | Acquire in [`LaneFlows::is_due`] |
//! | `Turns::read` | the workers | Release | Acquire in [`GroupFlows::look`] |

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::flow_cache::{FlowPart, FlowSet, WAYS};
use wirelane_bpf::instance::{FLOW_ELEMENT, FLOW_LEAST_SETS, FLOW_LISTED, FlowHalf, Group};
use wirelane_bpf::layout::{RecordHeader, record_kind};

use super::group::Token;
use super::instance::Instance;
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

/// State shared by the maintenance thread and the workers.
#[derive(Debug, Default)]
pub(crate) struct Turns {
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
    map: MapHandle,
    memory: Arc<Mapping>,
    sets: usize,
    workers: usize,
    period: Duration,
    turns: Arc<Turns>,
    state: Mutex<State>,
    place: Arc<Token>,
}

#[derive(Debug)]
struct State {
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

/// Offset of the word of `struct wl_group` with the number of sets in its lower half and the epoch in the upper.
fn word_of(group: usize) -> usize {
    const { assert!(offset_of!(Group, flow_epoch) % 8 == 4 && offset_of!(Group, flow_sets) % 8 == 0) };
    group * size_of::<Group>() + offset_of!(Group, flow_sets)
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
        place: Arc<Token>,
    ) -> Result<GroupFlows> {
        let sets = wish.sets(workers);
        let elements = instance.lanes * workers * 2 * half_elements(sets);
        let mib = (elements * FLOW_ELEMENT).div_ceil(1 << 20);
        let what = || {
            format!(
                "allocating {mib} MiB for flow caches of {} lanes (less is needed with smaller --cache-entries; a \
                 control group's memory limit counts too)",
                instance.lanes
            )
        };
        let count = u32::try_from(elements)
            .map_err(|_| Error::kernel(what(), std::io::ErrorKind::OutOfMemory.into()))?;
        let opts = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as _,
            map_flags: sys::BPF_F_MMAPABLE | sys::BPF_F_INNER_MAP,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::Array, Some("wl_flow"), 4, FLOW_ELEMENT as u32, count, &opts)
            .map_err(|e| Error::bpf(what(), e))?;
        let memory = Mapping::new(map.as_fd(), 0, elements * FLOW_ELEMENT, false).map_err(|e| {
            Error::kernel(format!("mapping {mib} MiB of flow caches (ulimit -v limits the address space)"), e)
        })?;
        let flows = GroupFlows {
            instance: Arc::clone(instance),
            group,
            map,
            memory: Arc::new(memory),
            sets,
            workers,
            period: Duration::from_nanos(wish.splits().gap_ns).min(LONGEST),
            turns: Arc::default(),
            state: Mutex::new(State {
                epoch: FIRST_EPOCH,
                raised: false,
                left: false,
                readers: 0,
                last: Instant::now(),
            }),
            place,
        };
        flows.hand_over()?;
        Ok(flows)
    }

    /// Puts the caches into the instance's map; on return no program runs that ran before.
    fn hand_over(&self) -> Result<()> {
        let key = (self.group as u32).to_ne_bytes();
        let map = self.map.as_fd().as_raw_fd().to_ne_bytes();
        // If they are in the map already nothing changes, but the kernel waits all the same (maybe_wait_bpf_programs()
        // in kernel/bpf/syscall.c).
        self.instance
            .flows
            .update(&key, &map, MapFlags::ANY)
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
        if state.left || !state.raised && state.last.elapsed() < self.period {
            return Ok(());
        }
        if !state.raised {
            // Acquire: pairs with the workers' Release, after which they no longer access their halves.
            if self.turns.read.load(Ordering::Acquire) < state.readers * u64::from(epoch - FIRST_EPOCH) {
                return Ok(());
            }
            state.last = Instant::now();
            // Packets that were stamped before this time are finished once the kernel has waited: they are of this
            // epoch.
            let settled = monotonic_ns();
            self.hand_over()?;
            self.turns.settled[(epoch & 1) as usize].store(settled, Ordering::Relaxed);
            let word = self.instance.groups.word(word_of(self.group));
            let sets = word.load(Ordering::Relaxed) & u64::from(u32::MAX);
            word.store(sets | u64::from(epoch + 1) << 32, Ordering::Release);
            (state.epoch, state.raised) = (epoch + 1, true);
        }
        self.hand_over()?;
        state.raised = false;
        // Release: a worker that sees this epoch sees the time above, and the halves as the lanes have left them.
        self.turns.frozen.store(state.epoch.into(), Ordering::Release);
        Ok(())
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
            first: (lane * self.workers + worker) * 2 * half_elements(self.sets),
            memory: Arc::clone(&self.memory),
            sets: self.sets,
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
        FlowCacheLine {
            entries: (self.instance.lanes * self.workers * self.sets * WAYS) as u64,
            memory_bytes: (self.instance.lanes * self.workers * 2 * half_elements(self.sets) * FLOW_ELEMENT)
                as u64,
            // Relaxed: a counter that orders no other data.
            parts: self.turns.parts.load(Ordering::Relaxed),
            ..FlowCacheLine::default()
        }
    }
}

/// One worker's flow cache in one lane.
#[derive(Debug)]
pub(crate) struct LaneFlows {
    memory: Arc<Mapping>,
    /// Index of the first half's first element.
    first: usize,
    sets: usize,
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
        let first = self.first + (self.epoch & 1) as usize * half_elements(self.sets);
        let mut half = Half { flows: self, first, at: self.at, count: 0 };
        let word = |at: usize| half.words(0, at);
        let used = if word(offset_of!(FlowHalf, epoch)) == self.epoch {
            word(offset_of!(FlowHalf, used))
        } else {
            0
        };
        half.count = (used as usize).min(self.sets * WAYS).saturating_sub(self.at);
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
        if place >= self.flows.sets * WAYS {
            return None;
        }
        let set = 1 + self.flows.sets / FLOW_LEAST_SETS + place / WAYS;
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
        unsafe { self.flows.memory.bytes((self.first + number) * FLOW_ELEMENT, FLOW_ELEMENT) }
    }
}
