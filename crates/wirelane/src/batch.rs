//! A run of records that lie one behind the other, and how far they have been read.

use std::cell::Cell;

use wirelane_datapath::layout::{RECORD_HEADER, RecordHeader, record_kind};

use crate::record::Record;
use crate::tally::DeviceTally;

/// Records in arrival order, all of one device (and, in the ring engine, of one lane).
///
/// A batch is an iterator. What it has yielded counts as analysed; the memory goes back to the lane when the
/// worker is asked for the next batch, not before, so records stay valid until then. A batch that is dropped
/// half-way continues with its rest in the next one.
#[derive(Debug)]
pub struct Batch<'a> {
    bytes: &'a [u8],
    end: usize,
    device: u16,
    progress: &'a Progress,
    tally: &'a DeviceTally,
}

/// How far the current batch has been yielded, and what stopped it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    yielded: Cell<usize>,
    damaged: Cell<bool>,
    barrier: Cell<bool>,
}

impl Progress {
    /// Bytes of whole records, from the start of the batch, that were yielded; resets the count.
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

/// Bytes that a record with this many captured bytes takes in a ring: header, data, padding to 8.
pub(crate) const fn record_size(cap_len: usize) -> usize {
    (RECORD_HEADER + cap_len + 7) & !7
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
        Batch { bytes, end, device, progress, tally }
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
        let parts = self.bytes.get(start..).and_then(|rest| rest.split_at_checked(RECORD_HEADER));
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
        self.progress.yielded.set(start + record_size(data.len()));
        self.tally.count(header.queue, header.wire_len);
        Some(Record::new(header, data, self.device))
    }
}
