//! Worker side of engine `xsk`: the sockets of its RX queues.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wirelane_afxdp::rings::{CONTINUES, Descriptor, Ring};
use wirelane_afxdp::{FRAME, XskSocket};
use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::{LinkType, RecordHeader, flags, record_kind};
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, FlatSet};

use crate::active_rules::{Evaluator, Fate, fate};
use crate::batch::{Batch, Digests, Progress, Slot};
use crate::clock::monotonic_ns;
use crate::engine::Source;
use crate::engine::poll::Poller;
use crate::engine::ring::source::Shared;
use crate::error::{Error, Result};
use crate::tally::DeviceTally;

/// Maximum number of records in one batch: their headers stay in the first-level cache.
const BATCH: usize = 64;
/// Size in bytes of the buffer in which packets of several buffers are assembled, for one batch.
const ASSEMBLY: usize = 1 << 20;
/// Bytes of `struct wl_xsk_stamp`, before a stamped packet.
const STAMP: usize = 16;

/// Settings for making a record of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) link: LinkType,
    pub(super) queue: u16,
    pub(super) inner: bool,
    pub(super) snap_len: usize,
    pub(super) seed: u32,
}

/// A socket, and the number of packets that its worker has taken from it. A reader sees both change together.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) socket: XskSocket,
    /// Odd while the worker takes packets.
    version: AtomicU64,
    taken: AtomicU64,
}

impl Lane {
    /// A lane over a new socket.
    pub(super) fn new(socket: XskSocket) -> Lane {
        Lane { socket, version: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }

    /// Packets that the kernel has put into the RX ring since the beginning: those that were taken, and those that wait
    /// in the ring.
    pub(super) fn delivered(&self) -> u64 {
        let Some(rx) = &self.socket.rx else { return 0 };
        loop {
            let version = self.version.load(Ordering::SeqCst);
            let taken = self.taken.load(Ordering::SeqCst);
            let (from, to) = (rx.consumer(), rx.producer());
            // More than the ring holds: the worker moved on between the two loads.
            let waiting = to.wrapping_sub(from);
            if version.is_multiple_of(2) && waiting <= rx.entries() {
                let ends = (0..waiting).filter(|at| rx.read(from.wrapping_add(*at)).options & CONTINUES == 0);
                let packets = ends.count() as u64;
                if self.version.load(Ordering::SeqCst) == version {
                    return taken + packets;
                }
            }
            std::thread::yield_now();
        }
    }

    /// Accounts for `packets` packets that the worker has taken, with all descriptors before this position.
    fn take(&self, rx: &Ring<Descriptor>, packets: u64, position: u32) {
        // One writer: stores are enough. SeqCst keeps the four in order for delivered().
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::SeqCst);
        self.taken.store(self.taken.load(Ordering::Relaxed) + packets, Ordering::SeqCst);
        rx.release(position);
        self.version.store(version + 2, Ordering::SeqCst);
    }
}

/// One socket of a worker.
#[derive(Debug)]
pub(super) struct End {
    pub(super) lane: Arc<Lane>,
    pub(super) recipe: Recipe,
    pub(super) device: u16,
    pub(super) tally: Arc<DeviceTally>,
    /// Evaluator of the rules; `None`: no rules.
    pub(super) evaluate: Option<Evaluator>,
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct XskSource {
    ends: Vec<End>,
    slots: Vec<Slot>,
    digests: Digests,
    /// Frames of the borrowed batch.
    frames: Vec<u64>,
    assembly: Box<[u8]>,
    /// Bytes of `assembly` that the borrowed batch uses.
    assembled: usize,
    /// The socket of the borrowed batch.
    current: Option<usize>,
    progress: Progress,
    /// Start of the next round.
    next: usize,
    shared: Arc<Shared>,
    poller: Poller,
    busy: bool,
    /// Counters for empty batches.
    nothing: DeviceTally,
}

impl XskSource {
    /// A source over these sockets; `busy`: they poll the card from our system calls; `immediate`: the worker is woken
    /// for every packet.
    pub(super) fn new(ends: Vec<End>, shared: Arc<Shared>, busy: bool, immediate: bool) -> XskSource {
        XskSource {
            poller: Poller::new(ends.iter().map(|end| end.lane.socket.raw()), immediate),
            slots: Vec::with_capacity(BATCH),
            digests: Digests::new(BATCH),
            // A packet has at most as many buffers as a socket buffer has pages, plus one.
            frames: Vec::with_capacity(BATCH * 18),
            assembly: vec![0; ASSEMBLY].into_boxed_slice(),
            assembled: 0,
            ends,
            current: None,
            progress: Progress::default(),
            next: 0,
            shared,
            busy,
            nothing: DeviceTally::new(1),
        }
    }

    /// Discards the yielded slots of the last batch, and returns its frames; false while some slots are not yet
    /// yielded.
    fn release(&mut self) -> bool {
        let yielded = self.progress.take();
        self.slots.drain(..yielded);
        if let (true, Some(at)) = (self.slots.is_empty(), self.current) {
            self.current = None;
            self.digests.clear();
            let fill = &self.ends[at].lane.socket.fill;
            // The ring has an entry for every frame, so there is room.
            let mut position = fill.producer();
            for frame in self.frames.drain(..) {
                fill.write(position, frame);
                position = position.wrapping_add(1);
            }
            fill.submit(position);
            if fill.needs_wakeup() {
                self.ends[at].lane.socket.kick_rx();
            }
            self.assembled = 0;
        }
        self.slots.is_empty()
    }

    /// Makes records of the next packets, if there are any now.
    fn fill(&mut self) -> Result<bool> {
        let ends = self.ends.len();
        for turn in 0..ends {
            let at = (self.next + turn) % ends;
            if self.take(at)? {
                self.current = Some(at);
                self.next = at + 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes packets from one socket.
    fn take(&mut self, at: usize) -> Result<bool> {
        let XskSource { ends, slots, digests, frames, assembly, assembled, .. } = self;
        let End { lane, recipe, tally, evaluate, .. } = &mut ends[at];
        let Some(rx) = &lane.socket.rx else { return Ok(false) };
        let (start, end) = (rx.consumer(), rx.producer());
        if start == end {
            return Ok(false);
        }
        let now = monotonic_ns();
        let set = evaluate.as_mut().and_then(|evaluate| evaluate.begin(""));
        let mut taken = 0;
        let mut position = start;
        while position != end && taken < BATCH as u64 {
            let first = rx.read(position);
            let (data, length, next) = if first.options & CONTINUES == 0 {
                let Some(data) = lane.socket.umem.at(first.address, first.length as usize) else {
                    return Err(damage());
                };
                frames.push(first.address & !(FRAME as u64 - 1));
                (data, first.length as usize, position.wrapping_add(1))
            } else {
                match assemble(&lane.socket, rx, position, end, &mut assembly[*assembled..], frames)? {
                    Assembled::Whole { data, length, next } => {
                        *assembled += length;
                        (data, length, next)
                    }
                    // The next batch begins with this packet.
                    Assembled::NoRoom | Assembled::Unfinished => break,
                }
            };
            let stamp = stamp(&lane.socket, first, now);
            let evaluate = evaluate.as_mut().zip(set.as_deref());
            // SAFETY: the bytes are in frames that the kernel has given to us with their descriptors, or in the
            // assembly; both stay ours until `release`, when no slot is left.
            match unsafe { record(data, length, stamp, recipe, evaluate, digests) } {
                Made::Slot(slot) => slots.push(slot),
                Made::Refused => tally.refuse(recipe.queue, 1),
                Made::Absorbed => tally.absorb(recipe.queue, 1),
            }
            position = next;
            taken += 1;
        }
        evaluate.iter_mut().for_each(Evaluator::end);
        lane.take(rx, taken, position);
        // If rules refused all packets, the batch is empty, and its frames are returned with the next call.
        Ok(taken > 0)
    }

    fn is_drained(&self) -> bool {
        self.ends
            .iter()
            .all(|end| end.lane.socket.rx.as_ref().is_none_or(|rx| rx.consumer() == rx.producer()))
    }

    fn wait(&mut self, left: Duration) -> Result<()> {
        if self.busy {
            self.ends.iter().for_each(|end| end.lane.socket.kick_rx());
            return Ok(());
        }
        let ends = &self.ends;
        self.poller.wait(left, &self.shared, |at| ends[at].lane.socket.take_error())
    }
}

/// Result of assembling a packet of several buffers.
enum Assembled {
    Whole {
        data: NonNull<u8>,
        length: usize,
        next: u32,
    },
    /// The packet does not fit any more.
    NoRoom,
    /// The kernel is still adding buffers to the packet.
    Unfinished,
}

/// Copies the buffers of a packet into `room`, one after the other.
fn assemble(
    socket: &XskSocket,
    rx: &Ring<Descriptor>,
    start: u32,
    end: u32,
    room: &mut [u8],
    frames: &mut Vec<u64>,
) -> Result<Assembled> {
    let before = frames.len();
    let (mut length, mut position) = (0, start);
    while position != end {
        let part = rx.read(position);
        let bytes = part.length as usize;
        let Some(from) = socket.umem.at(part.address, bytes) else { return Err(damage()) };
        let Some(to) = room.get_mut(length..length + bytes) else {
            frames.truncate(before);
            return Ok(Assembled::NoRoom);
        };
        // SAFETY: `from` is within the memory, in a frame that the kernel has given to us; `to` is ours.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), bytes) };
        frames.push(part.address & !(FRAME as u64 - 1));
        length += bytes;
        position = position.wrapping_add(1);
        if part.options & CONTINUES == 0 {
            let data = NonNull::from(&mut room[0]);
            return Ok(Assembled::Whole { data, length, next: position });
        }
    }
    frames.truncate(before);
    Ok(Assembled::Unfinished)
}

/// A packet's timestamp and the flag of its clock: the program's stamp where there is one, else `now`.
fn stamp(socket: &XskSocket, first: Descriptor, now: u64) -> (u64, u16) {
    let place = first.address.checked_sub(STAMP as u64).and_then(|place| socket.umem.at(place, STAMP));
    let Some(place) = place else { return (now, flags::BATCH_CLOCK) };
    // SAFETY: within the memory (checked), and in the packet's own frame or the one before it where a packet starts
    // a frame, which it never does: the kernel leaves headroom. The frame is ours.
    unsafe {
        let words = place.cast::<[u64; 2]>();
        let [ns, check] = words.read_unaligned();
        if check != !ns {
            return (now, flags::BATCH_CLOCK);
        }
        // Invalidate the stamp, or the next packet in this frame might inherit it.
        words.write_unaligned([ns, ns]);
        (ns, 0)
    }
}

/// Result of making a record.
enum Made {
    Slot(Slot),
    /// A rule refuses the packet.
    Refused,
    /// A rule only counts the packet.
    Absorbed,
}

/// Makes a record of a packet, parsed in place.
///
/// # Safety
/// `length` bytes at `data` are ours and unchanged for as long as the slot exists.
unsafe fn record(
    data: NonNull<u8>,
    length: usize,
    stamp: (u64, u16),
    recipe: &Recipe,
    evaluate: Option<(&mut Evaluator, &FlatSet)>,
    digests: &mut Digests,
) -> Made {
    // SAFETY: the caller's contract.
    let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr(), length) };
    let parsed = native::parse(recipe.link, bytes, true);
    let mut captured = length.min(recipe.snap_len);
    let evaluated = evaluate.map(|(evaluate, set)| {
        let facts = Facts {
            now_ns: stamp.0,
            wire_len: length as u32,
            queue: recipe.queue.into(),
            egress: 0,
            seed: recipe.seed,
            ..Facts::default()
        };
        let packet = Packet { parsed: &parsed, data: bytes, inner: recipe.inner };
        evaluate.evaluate(set, packet, &facts)
    });
    let mut digested = false;
    if let Some(evaluated) = &evaluated {
        match fate(evaluated) {
            Fate::Delivered { at_most } => captured = captured.min(at_most),
            Fate::Digested => digested = true,
            Fate::Filtered => return Made::Refused,
            Fate::Absorbed => return Made::Absorbed,
        }
    }
    let mut header = RecordHeader {
        ts_ns: stamp.0,
        cap_len: captured as u32,
        wire_len: length as u32,
        queue: recipe.queue,
        kind: record_kind::PACKET,
        ..RecordHeader::default()
    };
    native::fill_record(&mut header, &parsed, recipe.inner, recipe.seed);
    header.flags |= stamp.1;
    if captured < length {
        header.flags |= flags::SNAPPED;
    }
    let slot = if digested {
        digests.slot(header, &parsed)
    } else {
        // SAFETY: there are `captured` bytes, which stay (the caller's contract).
        unsafe { Slot::new(header, data) }
    };
    Made::Slot(evaluated.map_or(slot, |evaluated| slot.evaluated(&evaluated)))
}

fn damage() -> Error {
    Error::kernel(
        "reading an AF_XDP socket's ring: a descriptor points outside of the packet memory",
        std::io::ErrorKind::InvalidData.into(),
    )
}

impl Source for XskSource {
    fn next_batch(&mut self, wait: Duration) -> Result<Option<Batch<'_>>> {
        let mut deadline = None;
        if self.release() {
            loop {
                // Load this before looking: packets that were handed over by then are found by the look.
                let closed = self.shared.closed.load(Ordering::Acquire);
                if self.fill()? {
                    break;
                }
                if closed && self.is_drained() {
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
        let (device, tally) = match self.current {
            Some(at) => (self.ends[at].device, &*self.ends[at].tally),
            None => (0, &self.nothing),
        };
        Ok(Some(Batch::apart(&self.slots, device, &self.progress, tally)))
    }
}
