//! Sorting of a file's records by time stamp.
//!
//! Analyses need records in time order. Most files are in order; merged files, and files that a capture program wrote
//! from several queues, are not. Records therefore wait in a window of [`WINDOW`] bytes, and leave it in the order of
//! their timestamps, records with equal timestamps in the order of the file.
//!
//! As long as the file is in order, a record that enters the window is the latest in it, and the window is a queue.
//! From the first out-of-order record on, the window is a heap until it has been emptied.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::FileSource;
use super::arena::{self, Arena};
use crate::error::Result;

/// Maximum memory of the window with its entries, in bytes, or one record where that is larger.
const WINDOW: usize = 16 << 20;
/// Bytes of a chunk of the window. Its memory is freed when all of its records have left.
const CHUNK: usize = 256 << 10;

/// A record in the window. Ordered by timestamp, then by the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    ts_ns: u64,
    /// Number of the chunk, from the start of the file.
    chunk: u32,
    /// Offset in the chunk, in bytes.
    start: u32,
    len: u32,
    device: u16,
}

/// Memory of an entry: the queue and the heap double when they are full.
const ENTRY: usize = 2 * size_of::<Entry>();

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Records that have not left the window.
    left: usize,
}

/// Records that were out of order in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disorder {
    /// Records with a timestamp before that of an earlier record.
    pub(crate) records: u64,
    /// Of these, records that came too late for the window, and were not sorted.
    pub(crate) beyond: u64,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    queue: VecDeque<Entry>,
    heap: BinaryHeap<Reverse<Entry>>,
    chunks: VecDeque<Chunk>,
    /// Number of the first chunk.
    first: u32,
    /// Bytes of memory of the chunks.
    held: usize,
    spare: Vec<Vec<u8>>,
    /// Latest timestamp that has entered, and latest that has left.
    entered: u64,
    left: u64,
    disorder: Disorder,
}

impl Sorter {
    /// Whether the window is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.heap.is_empty()
    }

    /// Whether records have to leave before others may enter.
    pub(super) fn is_full(&self) -> bool {
        self.held + (self.queue.len() + self.heap.len()) * ENTRY >= WINDOW
    }

    /// Records that were out of order so far.
    pub(super) fn disorder(&self) -> Disorder {
        self.disorder
    }

    /// Moves all records of an arena, which are of one device, into the window.
    pub(super) fn put(&mut self, arena: &mut Arena, device: u16) {
        let mut rest = arena.records();
        while let Some((ts_ns, size)) = arena::stamp_and_size(rest) {
            let (record, behind) = rest.split_at(size);
            let (chunk, start) = self.store(record);
            self.enter(Entry { ts_ns, chunk, start, len: size as u32, device });
            rest = behind;
        }
        arena.clear();
    }

    /// Moves the earliest records, of one device, into an empty arena, as many as fill a batch; returns their device.
    pub(super) fn take(&mut self, arena: &mut Arena) -> Option<u16> {
        let mut device = None;
        while let Some(entry) = self.queue.front().copied().or_else(|| self.heap.peek().map(|entry| entry.0))
        {
            let chunk = &mut self.chunks[(entry.chunk - self.first) as usize];
            let record = &chunk.bytes[entry.start as usize..][..entry.len as usize];
            if device.is_some_and(|device| device != entry.device) || !arena.takes(record.len()) {
                break;
            }
            device = Some(entry.device);
            arena.push_record(record);
            chunk.left -= 1;
            self.left = self.left.max(entry.ts_ns);
            if self.queue.pop_front().is_none() {
                self.heap.pop();
            }
            self.free(entry.chunk);
        }
        device
    }

    fn enter(&mut self, entry: Entry) {
        let late = entry.ts_ns < self.entered;
        self.entered = self.entered.max(entry.ts_ns);
        self.disorder.records += u64::from(late);
        self.disorder.beyond += u64::from(entry.ts_ns < self.left);
        if late {
            self.heap.extend(self.queue.drain(..).map(Reverse));
        }
        if late || !self.heap.is_empty() {
            self.heap.push(Reverse(entry));
        } else {
            self.queue.push_back(entry);
        }
    }

    /// Copies a record into the last chunk, or into a new one; returns its location.
    fn store(&mut self, record: &[u8]) -> (u32, u32) {
        let fits =
            self.chunks.back().is_some_and(|last| last.bytes.len() + record.len() <= last.bytes.capacity());
        if !fits {
            let full = self.first + self.chunks.len() as u32;
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.reserve_exact(record.len().max(CHUNK));
            self.held += bytes.capacity();
            self.chunks.push_back(Chunk { bytes, left: 0 });
            // The previous chunk may have been kept only because more records could enter.
            if let Some(before) = full.checked_sub(1) {
                self.free(before);
            }
        }
        let number = self.first + self.chunks.len() as u32 - 1;
        let Some(last) = self.chunks.back_mut() else { unreachable!("a chunk was just added") };
        let start = last.bytes.len() as u32;
        last.bytes.extend_from_slice(record);
        last.left += 1;
        (number, start)
    }

    /// Frees the memory of a chunk if all of its records have left and no more will enter.
    fn free(&mut self, number: u32) {
        let Some(at) = number.checked_sub(self.first).map(|at| at as usize) else { return };
        if at + 1 < self.chunks.len() && self.chunks[at].left == 0 {
            let mut bytes = std::mem::take(&mut self.chunks[at].bytes);
            self.held -= bytes.capacity();
            // A chunk of a large record is not kept for reuse.
            if bytes.capacity() == CHUNK && self.spare.len() < WINDOW / CHUNK {
                bytes.clear();
                self.spare.push(bytes);
            }
        }
        while self.chunks.len() > 1 && self.chunks[0].bytes.capacity() == 0 {
            self.chunks.pop_front();
            self.first += 1;
        }
    }
}

impl FileSource {
    /// Records that were out of order so far.
    pub(crate) fn disorder(&self) -> Disorder {
        self.sorter.as_ref().map(Sorter::disorder).unwrap_or_default()
    }

    /// Fills the arena with the earliest records. False: the file has ended.
    pub(super) fn build_ordered(&mut self, wait: Duration) -> Result<bool> {
        loop {
            let Some(sorter) = &mut self.sorter else { return self.build(wait) };
            // No record enters at the end, or before the error that ends the file.
            let last = self.ended || self.failure.is_some();
            if sorter.is_full() || last && !sorter.is_empty() {
                return Ok(self.take_earliest());
            }
            // Do not wait for more input from a pipe while there are records.
            let waiting = !sorter.is_empty();
            let built = self.build(if waiting { Duration::ZERO } else { wait });
            match built {
                Ok(true) if self.arena.is_empty() => {
                    if self.reader.is_pipe() {
                        self.take_earliest();
                    }
                    return Ok(true);
                }
                Ok(true) => {
                    if let Some(sorter) = &mut self.sorter {
                        sorter.put(&mut self.arena, self.device);
                    }
                }
                Ok(false) if waiting => {}
                Ok(false) => return Ok(false),
                Err(error) if waiting => (self.failure, self.ended) = (Some(error), false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the earliest records into the arena. False: the window is empty.
    fn take_earliest(&mut self) -> bool {
        self.arena.clear();
        let device = self.sorter.as_mut().and_then(|sorter| sorter.take(&mut self.arena));
        self.device = device.unwrap_or(self.device);
        device.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wirelane_bpf::layout::RecordHeader;

    use super::*;
    use crate::batch::Said;

    /// Puts records with these timestamps, which carry their number, into a sorter and takes all; returns the records
    /// that left, in order.
    fn sorted(stamps: &[u64], bytes: usize) -> (Vec<(u64, u32)>, Disorder) {
        let (mut sorter, mut arena, mut out) = (Sorter::default(), Arena::new(4096), Vec::new());
        let take = |sorter: &mut Sorter, out: &mut Vec<(u64, u32)>| {
            let mut arena = Arena::new(4096);
            sorter.take(&mut arena);
            let mut rest = arena.records();
            while let Some((ts_ns, size)) = arena::stamp_and_size(rest) {
                out.push((ts_ns, u32::from_ne_bytes(rest[40..44].try_into().expect("four bytes"))));
                rest = &rest[size..];
            }
        };
        for (number, &ts_ns) in stamps.iter().enumerate() {
            let mut data = vec![0; bytes.max(4)];
            data[..4].copy_from_slice(&(number as u32).to_ne_bytes());
            let header = RecordHeader { ts_ns, cap_len: data.len() as u32, ..RecordHeader::default() };
            arena.push(&header, &data, &Said::default());
            sorter.put(&mut arena, 0);
            while sorter.is_full() {
                take(&mut sorter, &mut out);
            }
            assert!(sorter.held <= WINDOW + CHUNK, "{} bytes", sorter.held);
        }
        while !sorter.is_empty() {
            take(&mut sorter, &mut out);
        }
        assert!(sorter.chunks.len() <= 1, "all memory but the last chunk's is free");
        (out, sorter.disorder())
    }

    proptest! {
        #[test]
        fn records_leave_in_the_order_of_stamps_and_then_of_the_file(stamps in prop::collection::vec(0u64..50, 0..300)) {
            let (out, disorder) = sorted(&stamps, 100);
            let mut expected: Vec<(u64, u32)> = stamps.iter().zip(0..).map(|(&stamp, number)| (stamp, number)).collect();
            let mut latest = 0;
            let late = stamps.iter().filter(|&&stamp| { let late = stamp < latest; latest = latest.max(stamp); late });
            prop_assert_eq!(disorder, Disorder { records: late.count() as u64, beyond: 0 });
            expected.sort();
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_record_that_is_later_than_the_window_is_counted_and_kept() {
        // 2,000 records of 10 KiB are more than the window, so the first have left when the last one enters.
        let stamps: Vec<u64> = (1000..3000).chain([5]).collect();
        let (out, disorder) = sorted(&stamps, 10 << 10);
        assert_eq!(disorder, Disorder { records: 1, beyond: 1 });
        assert_eq!(out.len(), 2001);
        let place = out.iter().position(|&(stamp, _)| stamp == 5).expect("it is there");
        assert!(out[place + 1..].is_sorted() && out[..place].is_sorted());
    }

    #[test]
    fn a_stamp_in_the_far_future_does_not_keep_the_memory_of_others() {
        // One record in each chunk stays to the end.
        let stamps: Vec<u64> =
            (0..4000u64).map(|n| if n % 20 == 0 { u64::MAX - 4000 + n } else { n }).collect();
        let (out, disorder) = sorted(&stamps, 10 << 10);
        assert_eq!(out.len(), 4000);
        assert!(disorder.records > 0);
    }
}
