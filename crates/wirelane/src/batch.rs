//! A run of records, and the reader's progress in it.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;

use wirelane_bpf::flow_cache::FlowPart;
use wirelane_bpf::http::SkippedBytes;
use wirelane_bpf::layout::{
    FOUND_HITS, FOUND_NOTE, Found, Hits, Ip, NOTE, Note, Parsed, RECORD_HEADER, RecordHeader, Tail, flags,
    record_kind,
};
use wirelane_bpf::rules::Evaluated;

use crate::engine::ring::flows::Half;
use crate::record::{DeviceNumber, FoundBytes, HitBytes, Record, found_id};
pub(crate) use crate::said::Said;
use crate::tally::DeviceTally;

/// Records in arrival order, all of one device (and, in the ring engine, of one lane).
///
/// A batch is an iterator. Yielded records count as analysed; their memory goes back to the lane when the worker is
/// asked for the next batch, not before, so records stay valid until then. If a batch is dropped half-way, its
/// remaining records are in the next one.
#[derive(Debug)]
pub struct Batch<'a> {
    records: Records<'a>,
    /// The progress at which the batch is exhausted.
    end: usize,
    device: DeviceNumber,
    progress: &'a Progress,
    tally: &'a DeviceTally,
}

/// Location of the records of a batch.
#[derive(Debug)]
enum Records<'a> {
    /// One record after the other, each with its header before it: rings, and the file engine.
    Packed(&'a [u8]),
    /// Headers in an array, packets wherever the kernel put them: sockets.
    Apart(&'a [Slot]),
    /// Parts of flows in a lane's cache.
    Kept(Half<'a>),
}

/// A record whose packet is stored elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    header: RecordHeader,
    data: NonNull<u8>,
    said: Said,
}

// SAFETY: plain integers, and a pointer to memory that belongs to no thread; the creator of the slot has argued that it
// stays valid.
unsafe impl Send for Slot {}

impl Slot {
    /// A record of the `header.cap_len` bytes at `data`.
    ///
    /// # Safety
    /// The bytes stay valid and are not written to for as long as the slot can be in a batch: until the source that
    /// owns it discards it.
    pub(crate) unsafe fn new(header: RecordHeader, data: NonNull<u8>) -> Slot {
        Slot { header, data, said: Said::default() }
    }

    /// Adds the rule results for the packet.
    pub(crate) fn evaluated(mut self, evaluated: &Evaluated) -> Slot {
        self.header.rule_id = evaluated.rule_id;
        self.said = Said::of(evaluated);
        self.header.flags |= self.said.flags;
        self
    }

    /// Marks the slot as an aggregate (GRO, GSO) with these sizes ([`Tail`]); call it after [`Slot::evaluated`].
    pub(crate) fn aggregated(mut self, segment_size: u16, headers: u16) -> Slot {
        self.said = self.said.of_aggregate(segment_size, headers);
        self.header.flags |= flags::GSO;
        self
    }
}

/// Turns a header into that of a digest, and returns the content of the digest.
pub(crate) fn digest<'p>(header: &mut RecordHeader, parsed: &'p Parsed) -> &'p Ip {
    header.kind = record_kind::DIGEST;
    header.cap_len = size_of::<Ip>() as u32;
    header.flags |= flags::SNAPPED;
    if header.flags & flags::INNER != 0 { &parsed.inner } else { &parsed.outer }
}

/// Storage of the digests that slots point to.
#[derive(Debug)]
pub(crate) struct Digests {
    room: Box<[UnsafeCell<Ip>]>,
    used: usize,
}

impl Digests {
    /// Storage for `most` digests.
    pub(crate) fn new(most: usize) -> Digests {
        Digests { room: (0..most).map(|_| UnsafeCell::default()).collect(), used: 0 }
    }

    /// Stores a packet's digest and returns a slot for it. The slot may be in a batch until [`Digests::clear`].
    ///
    /// # Panics
    /// If the storage is full.
    pub(crate) fn slot(&mut self, mut header: RecordHeader, parsed: &Parsed) -> Slot {
        let ip = digest(&mut header, parsed);
        let place = self.room[self.used].get();
        self.used += 1;
        // SAFETY: there is no other reference to the place, as no slot points to it yet.
        unsafe { place.write(*ip) };
        let data = NonNull::new(place.cast()).expect("a place in a box");
        // SAFETY: cap_len is the size of the Ip at `data`, which stays and is not written to before `clear`.
        unsafe { Slot::new(header, data) }
    }

    /// Discards all digests. None of their slots may be in a batch any more.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }
}

/// Progress in the current batch: yielded bytes of packed records, yielded slots of others.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    yielded: Cell<usize>,
    damaged: Cell<bool>,
    barrier: Cell<bool>,
    /// Epoch of the parts of flows that may come next.
    epoch: Cell<u32>,
}

impl Progress {
    /// Sets the epoch of the parts of flows that may come next; a batch ends before the first of the next epoch.
    pub(crate) fn expect(&self, epoch: u32) {
        self.epoch.set(epoch);
    }

    /// Progress from the start of the batch, in whole records; resets it.
    pub(crate) fn take(&self) -> usize {
        self.yielded.take()
    }

    /// Whether the batch ended at a barrier, or before another epoch; resets the mark.
    pub(crate) fn take_barrier(&self) -> bool {
        self.barrier.take()
    }

    /// Whether a batch contained bytes that do not form a whole record.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.get()
    }
}

/// Bytes that a record with this many captured bytes takes in a ring, without rule results: header, data, padding to 8.
pub(crate) const fn body_size(cap_len: usize) -> usize {
    (RECORD_HEADER + cap_len + 7) & !7
}

/// Size in bytes of the [`Tail`] of a record with these flags.
pub(crate) const fn tail_size(of: u16) -> usize {
    if of & (flags::TAGGED | flags::GSO) != 0 { size_of::<Tail>() } else { 0 }
}

/// Size in bytes of the rule results of a record with these flags, which begin at `end`; `None`: they are incomplete.
pub(crate) fn said_size(of: u16, end: &[u8]) -> Option<usize> {
    let tail = tail_size(of);
    if of & flags::FOUND == 0 {
        return Some(tail);
    }
    let found = end.get(tail..)?.first_chunk()?;
    let note = if has_note(found) { size_of::<Note>() } else { 0 };
    let hits = if has_hits(found) { size_of::<Hits>() } else { 0 };
    Some(tail + size_of::<Found>() + note + hits)
}

/// Rule results of a packed record, stored after its bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Behind<'a> {
    tag: Option<u32>,
    aggregate: Tail,
    found: Option<&'a FoundBytes>,
    note: Option<&'a [u8]>,
    hits: Option<&'a HitBytes>,
    /// Size in bytes of all results.
    size: usize,
}

/// Whether a plug-in's note follows these bytes of a [`Found`].
fn has_note(found: &FoundBytes) -> bool {
    found_id(found, 0) & FOUND_NOTE != 0
}

/// Whether the rules that the packet hit follow these bytes of a [`Found`], behind a note.
pub(crate) fn has_hits(found: &FoundBytes) -> bool {
    found_id(found, 1) & FOUND_HITS != 0
}

/// The rule results after the bytes of a packed record with these flags; `None`: the record is incomplete.
#[cold]
fn said_of(of: u16, mut end: &[u8]) -> Option<Behind<'_>> {
    let (all, mut said) = (end.len(), Behind::default());
    if of & (flags::TAGGED | flags::GSO) != 0 {
        let (tail, behind) = end.split_at_checked(size_of::<Tail>())?;
        let (tag, sizes) = tail.split_first_chunk()?;
        said.tag = (of & flags::TAGGED != 0).then_some(u32::from_ne_bytes(*tag));
        if of & flags::GSO != 0 {
            let (segment_size, headers) = sizes.split_first_chunk()?;
            said.aggregate.segment_size = u16::from_ne_bytes(*segment_size);
            said.aggregate.headers = headers.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes));
        }
        end = behind;
    }
    if of & flags::FOUND != 0 {
        let (found, behind) = end.split_first_chunk::<{ size_of::<Found>() }>()?;
        (said.found, end) = (Some(found), behind);
        if has_note(found) {
            let (note, behind) = end.split_first_chunk::<{ size_of::<Note>() }>()?;
            let length = note.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length));
            // A note longer than its field was not written by the program.
            said.note = Some(note[size_of::<Note>() - NOTE..].get(..length as usize)?);
            end = behind;
        }
        if has_hits(found) {
            let (hits, behind) = end.split_first_chunk()?;
            (said.hits, end) = (Some(hits), behind);
        }
    }
    said.size = all - end.len();
    Some(said)
}

/// The content of a digest, from the bytes after its header.
fn digest_in(data: &[u8]) -> Option<&Ip> {
    let whole = data.len() == size_of::<Ip>() && data.as_ptr().cast::<Ip>().is_aligned();
    // SAFETY: as long and as aligned as an Ip, which is plain integers, so that every bit pattern is valid; borrowed
    // for as long as `data`.
    whole.then(|| unsafe { &*data.as_ptr().cast::<Ip>() })
}

/// A part of a flow, from the bytes after its header or from a lane's cache.
pub(crate) fn flow_in(data: &[u8]) -> Option<&FlowPart> {
    let whole = data.len() == size_of::<FlowPart>() && data.as_ptr().cast::<FlowPart>().is_aligned();
    // SAFETY: as long and as aligned as a FlowPart, which is plain integers, so that every bit pattern is valid; borrowed
    // for as long as `data`.
    whole.then(|| unsafe { &*data.as_ptr().cast::<FlowPart>() })
}

/// Skipped bytes of HTTP, from the bytes after the header of such a record.
fn http_in(data: &[u8]) -> Option<&SkippedBytes> {
    let whole = data.len() == size_of::<SkippedBytes>() && data.as_ptr().cast::<SkippedBytes>().is_aligned();
    // SAFETY: as long and as aligned as a SkippedBytes, which is plain integers without padding, so that every bit
    // pattern is valid; borrowed for as long as `data`.
    whole.then(|| unsafe { &*data.as_ptr().cast::<SkippedBytes>() })
}

impl<'a> Batch<'a> {
    /// A batch over parts of flows in a lane's cache. Its records are not packets.
    pub(crate) fn kept(
        half: Half<'a>,
        device: DeviceNumber,
        progress: &'a Progress,
        tally: &'a DeviceTally,
    ) -> Batch<'a> {
        Batch { end: half.together(), records: Records::Kept(half), device, progress, tally }
    }

    /// A batch over packed records, of which those that start before `end` belong to it. `bytes` must start
    /// at a multiple of 8 and hold these records whole, as the lane or the file engine wrote them.
    pub(crate) fn new(
        bytes: &'a [u8],
        end: usize,
        device: impl Into<DeviceNumber>,
        progress: &'a Progress,
        tally: &'a DeviceTally,
    ) -> Batch<'a> {
        debug_assert!(end == 0 || bytes.as_ptr().addr().is_multiple_of(align_of::<RecordHeader>()));
        Batch { records: Records::Packed(bytes), end, device: device.into(), progress, tally }
    }

    /// A batch of records whose packets are stored elsewhere. Records that were yielded before, and not yet taken from
    /// `progress`, are not yielded again.
    pub(crate) fn apart(
        slots: &'a [Slot],
        device: impl Into<DeviceNumber>,
        progress: &'a Progress,
        tally: &'a DeviceTally,
    ) -> Batch<'a> {
        let device = device.into();
        Batch { records: Records::Apart(slots), end: slots.len(), device, progress, tally }
    }

    /// Whether the batch is exhausted or empty: the wait ended before a record came.
    pub fn is_empty(&self) -> bool {
        self.progress.barrier.get() || self.progress.yielded.get() >= self.end
    }

    /// A part of a flow in a ring; `None` where it is of the next epoch.
    fn flow(&self, header: &'a RecordHeader, data: &'a [u8]) -> Option<Record<'a>> {
        let expected = self.progress.epoch.get();
        if header.hash == expected.wrapping_add(1) && expected != 0 {
            self.progress.barrier.set(true);
            return None;
        }
        match flow_in(data) {
            Some(part) if header.hash == expected => {
                self.progress.yielded.set(self.progress.yielded.get() + body_size(data.len()));
                Some(Record::of_flow(header, part, self.device))
            }
            _ => self.damaged(),
        }
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
            Records::Kept(half) => {
                let Some(part) = half.part(start) else { return self.damaged() };
                self.progress.yielded.set(start + 1);
                return Some(Record::of_flow(half.header(), part, self.device));
            }
            Records::Apart(slots) => {
                let slot = slots.get(start)?;
                self.progress.yielded.set(start + 1);
                let (packets, bytes) = slot.said.on_wire(slot.header.wire_len);
                self.tally.count(slot.header.queue, packets, bytes);
                // SAFETY: valid and unchanged while the slot exists (Slot::new), and the batch borrows it.
                let data =
                    unsafe { std::slice::from_raw_parts(slot.data.as_ptr(), slot.header.cap_len as usize) };
                let has = |flag: u16| slot.header.flags & flag != 0;
                let tag = has(flags::TAGGED).then_some(slot.said.tag);
                let found = has(flags::FOUND).then_some(&slot.said.found);
                let record = match slot.header.kind {
                    record_kind::DIGEST => Record::of_digest(&slot.header, digest_in(data)?, self.device),
                    _ => Record::new(&slot.header, data, self.device),
                };
                let hits = found.filter(|found| has_hits(found)).map(|_| &slot.said.hits);
                return Some(record.said(tag, found).hit(hits).aggregated(slot.said.tail()));
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
        if header.kind == record_kind::FLOW {
            return self.flow(header, data);
        }
        if header.kind == record_kind::HTTP {
            let Some(told) = http_in(data) else { return self.damaged() };
            self.progress.yielded.set(start + body_size(data.len()));
            return Some(Record::of_http(header, told, self.device));
        }
        if header.kind == record_kind::PLUGIN {
            self.tally.plugin_record();
            self.progress.yielded.set(start + body_size(data.len()));
            return Some(Record::of_plugin(header, data, self.device));
        }
        let mut size = body_size(data.len());
        let mut said = Behind::default();
        if header.flags & (flags::TAGGED | flags::FOUND | flags::GSO) != 0 {
            let behind = bytes.get(start + size..).and_then(|end| said_of(header.flags, end));
            let Some(behind) = behind else { return self.damaged() };
            said = behind;
            size += said.size;
        }
        let record = if header.kind == record_kind::DIGEST {
            let Some(digest) = digest_in(data) else { return self.damaged() };
            Record::of_digest(header, digest, self.device)
        } else {
            Record::new(header, data, self.device)
        };
        self.progress.yielded.set(start + size);
        let record =
            record.said(said.tag, said.found).noted(said.note).hit(said.hits).aggregated(said.aggregate);
        self.tally.count(header.queue, record.segments(), record.wire_bytes());
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use wirelane_bpf::layout::FOUND_MORE;

    const BOTH: u16 = flags::TAGGED | flags::FOUND;

    /// A tag, patterns, and a note of `length` bytes, as the program writes them.
    fn behind(first: u32, length: u32) -> Vec<u8> {
        let words = [7, 0, first, 12, 0, FOUND_MORE, length, 0].into_iter().chain(100..108);
        words.flat_map(u32::to_ne_bytes).collect()
    }

    #[test]
    fn a_note_stands_behind_the_patterns_where_these_say_so() {
        let end = behind(11 | FOUND_NOTE, 5);
        let said = said_of(BOTH, &end).unwrap();
        assert_eq!((said.tag, said.size), (Some(7), 64));
        assert_eq!(said.note, Some(&end[32..37]));
        assert_eq!(said.found.map(|found| &found[..]), Some(&end[8..24]));
        // The following bytes belong to the next record then.
        let without = behind(11, 5);
        let said = said_of(BOTH, &without).unwrap();
        assert_eq!((said.tag, said.note, said.size), (Some(7), None, 24));
        // Patterns alone, and a tag alone.
        let said = said_of(flags::FOUND, &end[8..]).unwrap();
        assert_eq!((said.tag, said.note, said.size), (None, Some(&end[32..37]), 56));
        let said = said_of(flags::TAGGED, &end).unwrap();
        assert_eq!((said.tag, said.found.is_none(), said.size), (Some(7), true, 8));
        let all = behind(FOUND_NOTE, NOTE as u32);
        assert_eq!(said_of(BOTH, &all).unwrap().note, Some(&all[32..64]));
    }

    #[test]
    fn what_is_not_whole_is_damage() {
        let end = behind(11 | FOUND_NOTE, 5);
        for length in 0..end.len() {
            assert!(said_of(BOTH, &end[..length]).is_none(), "{length} bytes");
        }
        for length in [NOTE as u32 + 1, u32::MAX] {
            assert!(said_of(BOTH, &behind(FOUND_NOTE, length)).is_none(), "a note of {length} bytes");
        }
    }

    /// Parts of flows with these epochs, packed as a lane writes them.
    fn parts(epochs: &[u32]) -> Vec<u64> {
        let mut words = Vec::new();
        for epoch in epochs {
            let cap_len = size_of::<FlowPart>() as u32;
            let header =
                RecordHeader { kind: record_kind::FLOW, hash: *epoch, cap_len, ..RecordHeader::default() };
            let mut record = vec![0u64; body_size(cap_len as usize) / 8];
            // SAFETY: as long and as aligned as a header, which is plain integers.
            unsafe { record.as_mut_ptr().cast::<RecordHeader>().write(header) };
            words.extend(record);
        }
        words
    }

    #[test]
    fn a_batch_of_parts_ends_before_the_next_epoch() {
        let (progress, tally) = (Progress::default(), DeviceTally::new(1));
        let words = parts(&[7, 7, 8]);
        // SAFETY: the words' own bytes.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), words.len() * 8) };
        progress.expect(7);
        let of_seven = Batch::new(bytes, bytes.len(), 0, &progress, &tally);
        assert_eq!(of_seven.filter(|record| record.flow().is_some()).count(), 2);
        let read = progress.take();
        assert!(progress.take_barrier() && !progress.is_damaged());
        progress.expect(8);
        assert_eq!(Batch::new(&bytes[read..], bytes.len() - read, 0, &progress, &tally).count(), 1);
        assert_eq!((progress.take() + read, tally.sum()), (bytes.len(), (0, 0)), "parts are no packets");
        // Parts of a past epoch, or of an epoch that is invalid.
        for expected in [9, 0] {
            let progress = Progress::default();
            progress.expect(expected);
            assert_eq!(Batch::new(bytes, bytes.len(), 0, &progress, &tally).count(), 0);
            assert!(progress.is_damaged() && !progress.take_barrier(), "{expected}");
        }
    }
}
