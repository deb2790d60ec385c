//! The buffer that a batch of records is built in: aligned, reused, and as large as the largest packet requires.

use std::mem::offset_of;

use wirelane_bpf::layout::{Found, Hits, Ip, RECORD_HEADER, RecordHeader, Tail};

use crate::batch::{Said, body_size, said_size};

/// Maximum size in bytes of the rule results of a record.
const LONGEST_END: usize = size_of::<Tail>() + size_of::<Found>() + size_of::<Hits>();

/// Packed records in the layout of the ring: header, bytes, padding to 8.
#[derive(Debug)]
pub(super) struct Arena {
    /// Up to 7 bytes longer than its content, so that records can begin at a multiple of 8 in it.
    memory: Vec<u8>,
    /// Offset of that multiple of 8.
    base: usize,
    /// Records that were not released yet, relative to `base`.
    start: usize,
    end: usize,
    /// Bytes of records at which a batch is full.
    limit: usize,
}

impl Arena {
    /// An arena for `capacity` bytes of records, or for more if a packet needs more.
    pub(super) fn new(capacity: usize) -> Arena {
        let mut arena = Arena { memory: Vec::new(), base: 0, start: 0, end: 0, limit: capacity };
        arena.resize(capacity + LONGEST_END);
        arena
    }

    fn resize(&mut self, capacity: usize) {
        self.memory = vec![0; capacity + align_of::<RecordHeader>() - 1];
        let address = self.memory.as_ptr().addr();
        self.base = address.next_multiple_of(align_of::<RecordHeader>()) - address;
    }

    fn capacity(&self) -> usize {
        self.memory.len() - (align_of::<RecordHeader>() - 1)
    }

    /// Discards all records.
    pub(super) fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Releases the first bytes: records that were read.
    pub(super) fn release(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// The records that were not released.
    pub(super) fn records(&self) -> &[u8] {
        &self.memory[self.base + self.start..self.base + self.end]
    }

    /// Whether all records have been released.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory of the arena.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.memory.capacity()
    }

    /// Whether a packet of this many captured bytes fits into the batch. An empty arena takes any packet.
    pub(super) fn has_room(&self, cap_len: usize) -> bool {
        self.end == 0 || self.end + body_size(cap_len) <= self.limit
    }

    /// Whether a whole record of this many bytes fits into the batch. An empty arena takes any record.
    pub(super) fn takes(&self, size: usize) -> bool {
        self.end == 0 || self.end + size <= self.limit
    }

    /// Appends a whole record, which the arena [takes](Arena::takes).
    pub(super) fn push_record(&mut self, record: &[u8]) {
        if self.end == 0 && record.len() > self.capacity() {
            self.resize(record.len());
        }
        let start = self.base + self.end;
        self.memory[start..start + record.len()].copy_from_slice(record);
        self.end += record.len();
    }

    /// Appends a record, for which there must be room, and its rule results, which also set flags in the header. That
    /// may take some bytes more than the limit.
    pub(super) fn push(&mut self, header: &RecordHeader, data: &[u8], said: &Said) {
        debug_assert!(self.has_room(data.len()));
        let body = body_size(data.len());
        let size = body + said.size();
        if self.end == 0 && size > self.capacity() {
            self.resize(size);
        }
        let record = &mut self.memory[self.base + self.end..self.base + self.end + size];
        said.write(&mut record[body..]);
        record[..RECORD_HEADER].copy_from_slice(header_bytes(header));
        record[RECORD_HEADER..RECORD_HEADER + data.len()].copy_from_slice(data);
        self.end += size;
    }
}

/// The timestamp and the size of the record that begins here; `None` at the end.
pub(super) fn stamp_and_size(records: &[u8]) -> Option<(u64, usize)> {
    fn field<const N: usize>(records: &[u8], at: usize) -> Option<[u8; N]> {
        records.get(at..at + N)?.try_into().ok()
    }
    let ts_ns = u64::from_ne_bytes(field(records, offset_of!(RecordHeader, ts_ns))?);
    let cap_len = u32::from_ne_bytes(field(records, offset_of!(RecordHeader, cap_len))?);
    let flags = u16::from_ne_bytes(field(records, offset_of!(RecordHeader, flags))?);
    let body = body_size(cap_len as usize);
    Some((ts_ns, body + said_size(flags, records.get(body..)?)?))
}

/// The bytes of a header, as in a ring.
fn header_bytes(header: &RecordHeader) -> &[u8; RECORD_HEADER] {
    // SAFETY: the reference is valid for reads of size_of::<RecordHeader>() bytes, which is RECORD_HEADER, as
    // long as the result lives. RecordHeader is repr(C), its fields are integers in descending alignment whose
    // sizes add up to RECORD_HEADER (asserted below), so there is no padding and every byte is initialised. u8
    // has alignment 1.
    unsafe { &*std::ptr::from_ref(header).cast::<[u8; RECORD_HEADER]>() }
}

/// The bytes of a digest, as in a ring.
pub(super) fn digest_bytes(digest: &Ip) -> &[u8; size_of::<Ip>()] {
    // SAFETY: as in header_bytes, for an Ip.
    unsafe { &*std::ptr::from_ref(digest).cast::<[u8; size_of::<Ip>()]>() }
}

const _: () = assert!(size_of::<Ip>() == 32 + 2 * 2 + 8 + 4 * 2 + 4 * 4 + 2 * 2, "Ip has padding");
const _: () = assert!(RECORD_HEADER == 8 + 4 * 4 + 6 * 2 + 4, "RecordHeader has padding");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_aligned_and_packed() {
        let mut arena = Arena::new(256);
        let header = RecordHeader { cap_len: 3, ..RecordHeader::default() };
        arena.push(&header, b"abc", &Said::default());
        arena.push(&header, b"def", &Said::default());
        assert_eq!(arena.records().len(), 2 * 48);
        assert!(arena.records().as_ptr().addr().is_multiple_of(8));
        arena.release(48);
        assert_eq!(&arena.records()[40..43], b"def");
        assert!(arena.has_room(256 - 2 * 48 - 40));
        assert!(!arena.has_room(256 - 2 * 48 - 39), "one byte more does not fit behind the others");
        arena.clear();
        assert!(arena.has_room(5000), "an empty arena takes any record");
        arena.push(&header, &[7; 5000], &Said::default());
        assert!(arena.records().as_ptr().addr().is_multiple_of(8));
        assert_eq!(arena.records().len(), 5040);
    }
}
