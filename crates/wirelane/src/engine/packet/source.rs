//! Worker side of engine `packet`: its sockets, one per device, direction and RX queue.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use wirelane_bpf::judge;
use wirelane_bpf::layout::{LinkType, Parsed, RecordHeader, flags, record_kind};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, FlatSet};

use super::block::{self, Blocks, Packet};
use crate::active_rules::{Fate, Judge, fate};
use crate::batch::{Batch, Digests, Progress, Slot};
use crate::clock::monotonic_ns;
use crate::engine::Source;
use crate::engine::poll::Poller;
use crate::engine::ready::Ready;
use crate::engine::ring::source::Shared;
use crate::error::{Error, Result};
use crate::tally::DeviceTally;
use wirelane_filter::View;

/// Most records of one batch: their headers stay in the first-level cache.
const BATCH: usize = 64;

/// What a record needs to be made of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) link: LinkType,
    pub(super) queue: u16,
    /// Flags that all records get.
    pub(super) flags: u16,
    pub(super) inner: bool,
    pub(super) snap_len: usize,
    pub(super) seed: u32,
}

/// One socket that leads to the worker.
#[derive(Debug)]
pub(super) struct End {
    pub(super) blocks: Blocks,
    pub(super) recipe: Recipe,
    pub(super) device: u16,
    pub(super) tally: Arc<DeviceTally>,
    /// Which packets are wanted.
    wanted: View,
    /// What becomes of those, where there are rules.
    judge: Option<Judge>,
    /// Packets that were taken.
    taken: u64,
    /// How many there will have been, once the capture has stopped.
    total: Option<u64>,
}

impl End {
    /// The reading end of a fresh socket.
    pub(super) fn new(
        blocks: Blocks,
        recipe: Recipe,
        device: u16,
        tally: Arc<DeviceTally>,
        wanted: View,
        judge: Option<Judge>,
    ) -> End {
        End { blocks, recipe, device, tally, wanted, judge, taken: 0, total: None }
    }

    /// Whether everything has been taken that will ever come. Asked once the capture has stopped.
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
    /// The socket whose batch is out.
    current: Option<usize>,
    progress: Progress,
    /// Where the next round starts.
    next: usize,
    shared: Arc<Shared>,
    poller: Poller,
    damaged: bool,
    /// For whoever waits elsewhere.
    ready: Option<Ready>,
    /// What an empty batch counts into.
    nothing: DeviceTally,
}

impl PacketSource {
    /// A source over these sockets; `immediate`: it is woken for every block.
    pub(super) fn new(ends: Vec<End>, shared: Arc<Shared>, immediate: bool) -> PacketSource {
        PacketSource {
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

    /// Throws away what the last batch has yielded; false while some of it is left.
    fn release(&mut self) -> bool {
        let yielded = self.progress.take();
        self.slots.drain(..yielded);
        if let (true, Some(at)) = (self.slots.is_empty(), self.current) {
            self.current = None;
            self.digests.clear();
            self.ends[at].blocks.hand_back();
        }
        self.slots.is_empty()
    }

    /// Makes records of the next packets that are wanted. False: none are there now.
    fn fill(&mut self) -> Result<bool> {
        let ends = self.ends.len();
        for turn in 0..ends {
            let at = (self.next + turn) % ends;
            let end = &mut self.ends[at];
            if !end.blocks.is_ready() {
                // An empty block, if ever there is one, is nobody's.
                end.blocks.hand_back();
                continue;
            }
            end.wanted.refresh();
            let now_ns = end.judge.as_ref().map_or(0, |_| monotonic_ns());
            let set = end.judge.as_mut().and_then(|judge| judge.begin(""));
            while self.slots.len() < BATCH {
                let Ok(packet) = end.blocks.take() else {
                    self.damaged = true;
                    break;
                };
                let Some(packet) = packet else { break };
                end.taken += 1;
                let judge = end.judge.as_mut().zip(set.as_deref());
                // SAFETY: the packet's block stays ours until `hand_back`, which `release` calls when no slot of it
                // is left. Nobody has seen the packet yet.
                match unsafe { record(packet, &end.recipe, &end.wanted, judge, now_ns, &mut self.digests) } {
                    Made::Slot(slot) => self.slots.push(slot),
                    Made::Refused => end.tally.refuse(end.recipe.queue),
                    Made::Absorbed => end.tally.absorb(end.recipe.queue),
                }
            }
            end.judge.iter_mut().for_each(Judge::end);
            self.current = Some(at);
            // Stay until the block is done: it is in the cache, and the kernel wants it back.
            self.next = at;
            if !end.blocks.is_ready() {
                self.next = at + 1;
            }
            if !self.slots.is_empty() {
                return Ok(true);
            }
            if self.damaged {
                return Err(damage());
            }
            // None of the block was wanted: the batch is empty, so that whoever waits can do something else.
            self.current = None;
            self.ends[at].blocks.hand_back();
            return Ok(true);
        }
        Ok(false)
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

/// What has become of a packet.
enum Made {
    Slot(Slot),
    /// A filter or a rule does not want it.
    Refused,
    /// A rule has counted it, and no more.
    Absorbed,
}

/// Makes a record of a packet: parsed where it lies, its tag put back.
///
/// # Safety
/// The packet's block stays ours for as long as the slot exists, and nobody has a reference to the packet.
unsafe fn record(
    mut packet: Packet,
    recipe: &Recipe,
    wanted: &View,
    judge: Option<(&mut Judge, &FlatSet)>,
    now_ns: u64,
    digests: &mut Digests,
) -> Made {
    if recipe.link == LinkType::Ethernet {
        // SAFETY: the caller's part.
        unsafe { block::put_tag_back(&mut packet) };
    }
    // SAFETY: the caller's part.
    let data = unsafe { block::bytes(&packet) };
    let egress = recipe.flags & flags::EGRESS != 0;
    if !wanted.accepts(data, packet.length, egress) {
        return Made::Refused;
    }
    let parsed: Parsed = native::parse(recipe.link, data, true);
    let mut captured = data.len().min(recipe.snap_len);
    let judged = judge.map(|(judge, set)| {
        let facts = Facts {
            now_ns,
            wire_len: packet.length,
            queue: recipe.queue.into(),
            egress: egress.into(),
            seed: recipe.seed,
            ..Facts::default()
        };
        judge.judge(set, judge::Packet { parsed: &parsed, data, inner: recipe.inner }, &facts)
    });
    let mut digested = false;
    if let Some(judged) = &judged {
        match fate(judged) {
            Fate::Delivered { at_most } => captured = captured.min(at_most),
            Fate::Digested => digested = true,
            Fate::Filtered => return Made::Refused,
            Fate::Absorbed => return Made::Absorbed,
        }
    }
    let mut header = RecordHeader {
        ts_ns: packet.ns,
        cap_len: captured as u32,
        wire_len: packet.length,
        queue: recipe.queue,
        kind: record_kind::PACKET,
        ..RecordHeader::default()
    };
    native::fill_record(&mut header, &parsed, recipe.inner, recipe.seed);
    header.flags |= recipe.flags;
    if captured < packet.length as usize {
        header.flags |= flags::SNAPPED;
    }
    if packet.gso {
        header.flags |= flags::GSO;
    }
    let slot = if digested {
        digests.slot(header, &parsed)
    } else {
        // SAFETY: `captured` bytes are there, and stay (the caller's part).
        unsafe { Slot::new(header, packet.data) }
    };
    Made::Slot(judged.map_or(slot, |judged| slot.judged(&judged)))
}

fn damage() -> Error {
    Error::kernel(
        "reading a packet socket's ring: invalid packet header",
        std::io::ErrorKind::InvalidData.into(),
    )
}

impl Source for PacketSource {
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
                // Before looking: what was accepted by then is found by the look.
                let closed = self.shared.closed.load(Ordering::Acquire);
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
                let ends = &self.ends;
                self.poller.wait(left, &self.shared, |at| ends[at].blocks.socket().take_error())?;
            }
        }
        let (device, tally) = match self.current {
            Some(at) => (self.ends[at].device, &*self.ends[at].tally),
            None => (0, &self.nothing),
        };
        if let Some(ready) = &mut self.ready {
            if self.slots.is_empty() { ready.empty()? } else { ready.full()? }
        }
        Ok(Some(Batch::apart(&self.slots, device, &self.progress, tally)))
    }
}

impl Drop for PacketSource {
    fn drop(&mut self) {
        // What was not yielded stays in the ledger as in flight; the ring goes with the socket.
        self.slots.clear();
        self.digests.clear();
    }
}
