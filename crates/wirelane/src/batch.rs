//! A run of records, and how far they have been read.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;

use wirelane_datapath::layout::{Ip, Parsed, RECORD_HEADER, RecordHeader, Tail, flags, record_kind};
use wirelane_datapath::rules::{Judged, judged_flags};

use crate::record::Record;
use crate::tally::DeviceTally;

/// Records in arrival order, all of one device (and, in the ring engine, of one lane).
///
/// A batch is an iterator. What it has yielded counts as analysed; the memory goes back to the lane when the
/// worker is asked for the next batch, not before, so records stay valid until then. A batch that is dropped
/// half-way continues with its rest in the next one.
#[derive(Debug)]
pub struct Batch<'a> {
    records: Records<'a>,
    /// The progress at which nothing is left.
    end: usize,
    device: u16,
    progress: &'a Progress,
    tally: &'a DeviceTally,
}

/// Where the records of a batch are.
#[derive(Debug)]
enum Records<'a> {
    /// One behind the other, each with its header before it: rings, and the file engine.
    Packed(&'a [u8]),
    /// The headers beside each other, the packets wherever the kernel put them: sockets.
    Apart(&'a [Slot]),
}

/// A record whose packet lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    header: RecordHeader,
    data: NonNull<u8>,
    /// Valid with [`flags::TAGGED`].
    tag: u32,
}

// SAFETY: plain integers, and a pointer to memory that belongs to no thread; who made the slot has argued that it
// stays valid.
unsafe impl Send for Slot {}

impl Slot {
    /// A record of the `header.cap_len` bytes at `data`.
    ///
    /// # Safety
    /// The bytes stay valid and are not written to for as long as the slot can be in a batch: until the source
    /// that owns it throws it away.
    pub(crate) unsafe fn new(header: RecordHeader, data: NonNull<u8>) -> Slot {
        Slot { header, data, tag: 0 }
    }

    /// The same with what rules have said of the packet: the rule, and a tag if there is one.
    pub(crate) fn judged(mut self, judged: &Judged) -> Slot {
        self.header.rule_id = judged.rule_id;
        if judged.flags & judged_flags::TAGGED != 0 {
            self.header.flags |= flags::TAGGED;
            self.tag = judged.tag;
        }
        self
    }
}

/// Turns a header into that of a digest, and gives what the record is of then.
pub(crate) fn digest<'p>(header: &mut RecordHeader, parsed: &'p Parsed) -> &'p Ip {
    header.kind = record_kind::DIGEST;
    header.cap_len = size_of::<Ip>() as u32;
    header.flags |= flags::SNAPPED;
    if header.flags & flags::INNER != 0 { &parsed.inner } else { &parsed.outer }
}

/// The digests that slots point to.
#[derive(Debug)]
pub(crate) struct Digests {
    room: Box<[UnsafeCell<Ip>]>,
    used: usize,
}

impl Digests {
    /// Room for so many.
    pub(crate) fn new(most: usize) -> Digests {
        Digests { room: (0..most).map(|_| UnsafeCell::default()).collect(), used: 0 }
    }

    /// A slot of a packet's digest. It may be in a batch until [`Digests::clear`].
    ///
    /// # Panics
    /// Where there is no room.
    pub(crate) fn slot(&mut self, mut header: RecordHeader, parsed: &Parsed) -> Slot {
        let ip = digest(&mut header, parsed);
        let place = self.room[self.used].get();
        self.used += 1;
        // SAFETY: nobody has a reference to the place, as no slot points to it yet.
        unsafe { place.write(*ip) };
        let data = NonNull::new(place.cast()).expect("a place in a box");
        // SAFETY: cap_len is the size of what lies there, which stays and is not written to before `clear`.
        unsafe { Slot::new(header, data) }
    }

    /// Forgets them. No slot of them may be in a batch any more.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }
}

/// How much of the current batch has been yielded: bytes of packed records, slots of others.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    yielded: Cell<usize>,
    damaged: Cell<bool>,
    barrier: Cell<bool>,
}

impl Progress {
    /// What was yielded, of whole records, from the start of the batch; resets the count.
    pub(crate) fn take(&self) -> usize {
        self.yielded.take()
    }

    /// Whether the batch has ended at a barrier; resets it.
    pub(crate) fn take_barrier(&self) -> bool {
        self.barrier.take()
    }

    /// Whether something stood in a batch that was no whole record.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.get()
    }
}

/// Bytes that a record with this many captured bytes takes in a ring: header, data, padding to 8, and a tag behind that
/// if there is one.
pub(crate) const fn record_size(cap_len: usize, tagged: bool) -> usize {
    ((RECORD_HEADER + cap_len + 7) & !7) + if tagged { size_of::<Tail>() } else { 0 }
}

/// The tag in the last bytes of a packed record.
fn tag_of(tail: &[u8]) -> Option<u32> {
    tail.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
}

/// What lies behind the header of a digest.
fn digest_in(data: &[u8]) -> Option<&Ip> {
    let whole = data.len() == size_of::<Ip>() && data.as_ptr().cast::<Ip>().is_aligned();
    // SAFETY: as long and as aligned as an Ip, which is plain integers, so that every bit pattern is valid; borrowed for
    // as long as `data`.
    whole.then(|| unsafe { &*data.as_ptr().cast::<Ip>() })
}

impl<'a> Batch<'a> {
    /// A batch over packed records, of which those that start before `end` belong to it. `bytes` must start
    /// at a multiple of 8 and hold these records whole, as the lane or the file engine wrote them.
    pub(crate) fn new(
        bytes: &'a [u8],
        end: usize,
        device: u16,
        progress: &'a Progress,
        tally: &'a DeviceTally,
    ) -> Batch<'a> {
        debug_assert!(end == 0 || bytes.as_ptr().addr().is_multiple_of(align_of::<RecordHeader>()));
        Batch { records: Records::Packed(bytes), end, device, progress, tally }
    }

    /// A batch of records whose packets lie apart. What has been yielded of them before, and was not taken from
    /// `progress`, is not yielded again.
    pub(crate) fn apart(
        slots: &'a [Slot],
        device: u16,
        progress: &'a Progress,
        tally: &'a DeviceTally,
    ) -> Batch<'a> {
        Batch { records: Records::Apart(slots), end: slots.len(), device, progress, tally }
    }

    /// Whether there is nothing (left) in it: the wait ended before a record came.
    pub fn is_empty(&self) -> bool {
        self.progress.barrier.get() || self.progress.yielded.get() >= self.end
    }

    #[cold]
    fn damaged(&self) -> Option<Record<'a>> {
        self.progress.damaged.set(true);
        None
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        let start = self.progress.yielded.get();
        if start >= self.end || self.progress.barrier.get() {
            return None;
        }
        let bytes = match self.records {
            Records::Packed(bytes) => bytes,
            Records::Apart(slots) => {
                let slot = slots.get(start)?;
                self.progress.yielded.set(start + 1);
                self.tally.count(slot.header.queue, slot.header.wire_len);
                // SAFETY: valid and unchanged while the slot exists (Slot::new), and the batch borrows it.
                let data =
                    unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), slot.header.cap_len as usize) };
                let tag = (slot.header.flags & flags::TAGGED != 0).then_some(slot.tag);
                return match slot.header.kind {
                    record_kind::DIGEST => {
                        Some(Record::of_digest(&slot.header, digest_in(data)?, self.device).tagged(tag))
                    }
                    _ => Some(Record::new(&slot.header, data, self.device).tagged(tag)),
                };
            }
        };
        let parts = bytes.get(start..).and_then(|rest| rest.split_at_checked(RECORD_HEADER));
        let Some((head, after)) = parts else { return self.damaged() };
        // SAFETY: `head` is RECORD_HEADER bytes long and starts at a multiple of 8: the batch does, and every
        // record's size is a multiple of 8. RecordHeader is plain integers, so every bit pattern is valid.
        // The bytes are not written to while the batch is borrowed (they are behind the tail's release).
        let header = unsafe { &*head.as_ptr().cast::<RecordHeader>() };
        if header.kind == record_kind::BARRIER {
            self.progress.barrier.set(true);
            return None;
        }
        let Some(data) = after.get(..header.cap_len as usize) else { return self.damaged() };
        let tagged = header.flags & flags::TAGGED != 0;
        let size = record_size(data.len(), tagged);
        let mut tag = None;
        if tagged {
            tag = bytes.get(start + size - size_of::<Tail>()..).and_then(tag_of);
            if tag.is_none() {
                return self.damaged();
            }
        }
        let record = if header.kind == record_kind::DIGEST {
            let Some(digest) = digest_in(data) else { return self.damaged() };
            Record::of_digest(header, digest, self.device)
        } else {
            Record::new(header, data, self.device)
        };
        self.progress.yielded.set(start + size);
        self.tally.count(header.queue, header.wire_len);
        Some(record.tagged(tag))
    }
}
