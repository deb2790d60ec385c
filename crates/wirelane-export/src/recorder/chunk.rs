//! Chunks: sequences of whole blocks sent from a worker to its writer, and their pool.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use wirelane::checksum::{copy_with_sum, sum};

/// File format of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Interfaces, their statistics, any mix of link types.
    Pcapng,
    /// Packets only, of one link type.
    Pcap,
}

/// Enhanced Packet Block.
const PACKET: u32 = 6;

/// One block of a pcapng file, or one packet of a pcap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Length of the block in bytes.
    pub(crate) len: usize,
    /// Time of the packet in UTC nanoseconds; `None` for a block that is not a packet.
    pub(crate) ts_ns: Option<u64>,
}

impl Format {
    /// The first block of bytes from our writers; `None` if there is no whole block.
    pub(crate) fn first_block(self, bytes: &[u8]) -> Option<Block> {
        let word = |at: usize| bytes.get(at..at + 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let (len, ts_ns) = match self {
            Format::Pcapng => {
                let len = word(4)? as usize;
                let ts_ns = match word(0)? {
                    PACKET => Some(u64::from(word(12)?) << 32 | u64::from(word(16)?)),
                    _ => None,
                };
                (len.max(12), ts_ns)
            }
            Format::Pcap => {
                let ts_ns = u64::from(word(0)?) * 1_000_000_000 + u64::from(word(4)?);
                (16 + word(8)? as usize, Some(ts_ns))
            }
        };
        (len <= bytes.len()).then_some(Block { len, ts_ns })
    }

    /// Whole blocks in the first `limit` bytes, as `(bytes, packets)`.
    pub(crate) fn whole(self, bytes: &[u8], limit: usize) -> (usize, u64) {
        let (mut end, mut packets) = (0, 0);
        while let Some(block) = self.first_block(&bytes[end..])
            && end + block.len <= limit
        {
            end += block.len;
            packets += u64::from(block.ts_ns.is_some());
        }
        (end, packets)
    }
}

/// Whole packets, one after the other.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) packets: u64,
    /// The latest time of the packets, in UTC nanoseconds.
    pub(crate) latest_ns: u64,
    adding: Adding,
}

/// Progress of a sum over bytes of a packet that is written next.
#[derive(Debug, Default)]
enum Adding {
    #[default]
    Nothing,
    /// The next write of so many bytes is the packet; the range of these bytes is added up.
    Expected(usize, Range<usize>),
    Done(u64),
}

/// Minimum length in bytes of a packet that is added up while it is copied. Other writes are shorter, so that a write of
/// its length is the packet. A shorter packet stays in the first-level cache.
const ADDED_WHILE_COPIED: usize = 2048;

impl Chunk {
    fn new(capacity: usize) -> Chunk {
        Chunk { bytes: Vec::with_capacity(capacity), packets: 0, latest_ns: 0, adding: Adding::Nothing }
    }

    /// Adds up this range of the next packet, which has so many bytes, while it is written.
    pub(crate) fn add_up(&mut self, length: usize, range: Range<usize>) {
        // In any case, so that nothing is left of a packet that could not be written.
        self.adding = match length >= ADDED_WHILE_COPIED && range.end <= length {
            true => Adding::Expected(length, range),
            false => Adding::Nothing,
        };
    }

    /// The sum over the range that was announced, which is at this place of the chunk.
    pub(crate) fn sum_of(&mut self, place: Range<usize>) -> u64 {
        match std::mem::take(&mut self.adding) {
            Adding::Done(sum) => sum,
            _ => self.bytes.get(place).map_or(0, sum),
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.packets, self.latest_ns) = (0, 0);
    }
}

impl Write for Chunk {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.adding {
            Adding::Expected(length, range) if *length == bytes.len() => {
                let range = range.clone();
                self.bytes.extend_from_slice(&bytes[..range.start]);
                self.adding = Adding::Done(copy_with_sum(&bytes[range.clone()], &mut self.bytes));
                self.bytes.extend_from_slice(&bytes[range.end..]);
            }
            _ => self.bytes.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The empty chunks of one worker. The chunk returned last is taken first: it is still in the cache.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Mutex<Vec<Chunk>>,
    back: Condvar,
    chunk_bytes: usize,
}

impl Pool {
    /// Creates chunks of this size. Their memory is touched only when packets come.
    pub(crate) fn new(chunks: usize, chunk_bytes: usize) -> Pool {
        let free = (0..chunks).map(|_| Chunk::new(chunk_bytes)).collect();
        Pool { free: Mutex::new(free), back: Condvar::new(), chunk_bytes }
    }

    /// Capacity of a chunk in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Takes an empty chunk, if there is one.
    pub(crate) fn try_take(&self) -> Option<Chunk> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Takes an empty chunk, waiting for one if necessary.
    pub(crate) fn take(&self) -> Chunk {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(chunk) = free.pop() {
                return chunk;
            }
            free = self.back.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns a chunk. A chunk enlarged by a giant packet is replaced, so that memory stays bounded.
    pub(crate) fn give(&self, mut chunk: Chunk) {
        chunk.clear();
        if chunk.bytes.capacity() > 2 * self.chunk_bytes {
            chunk = Chunk::new(self.chunk_bytes);
        }
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(chunk);
        self.back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Interface, PcapWriter, PcapngWriter, SectionInfo};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_found_as_they_were_written(
            packets in proptest::collection::vec((0usize..200, any::<u32>(), any::<bool>()), 1..20),
            cut in 0usize..5000,
        ) {
            let mut pcapng = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
            pcapng.add_interface(&Interface { link_number: 1, ..Interface::default() }).unwrap();
            let mut pcap = PcapWriter::new(Vec::new(), 1, 0).unwrap();
            pcapng.get_mut().clear();
            pcap.get_mut().clear();
            let mut ends = [Vec::new(), Vec::new()];
            for &(len, ts_ns, out) in &packets {
                let data = vec![0xa5; len];
                let direction = out.then_some(Direction::Outbound);
                pcapng.write_packet(0, ts_ns.into(), &data, 9000, direction).unwrap();
                pcap.write_packet(1, ts_ns.into(), &data, 9000).unwrap();
                ends[0].push(pcapng.get_mut().len());
                ends[1].push(pcap.get_mut().len());
            }
            let written = [(Format::Pcapng, pcapng.finish().unwrap()), (Format::Pcap, pcap.finish().unwrap())];
            for ((format, bytes), ends) in written.iter().zip(&ends) {
                let mut at = 0;
                for (packet, &end) in packets.iter().zip(ends) {
                    let block = format.first_block(&bytes[at..]).unwrap();
                    prop_assert_eq!(block, Block { len: end - at, ts_ns: Some(packet.1.into()) });
                    at = end;
                }
                prop_assert_eq!(format.first_block(&bytes[at..]), None);
                let whole = ends.iter().filter(|&&end| end <= cut).count();
                let bytes_whole = ends[..whole].last().copied().unwrap_or(0);
                prop_assert_eq!(format.whole(bytes, cut), (bytes_whole, whole as u64));
                let there = cut.min(bytes.len());
                prop_assert_eq!(format.whole(&bytes[..there], there), (bytes_whole, whole as u64));
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_packet_whatever_became_of_the_one_before() {
        let mut chunk = Chunk::new(1 << 16);
        let packet: Vec<u8> = (0..5000u32).map(|n| (n * n) as u8).collect();
        for length in [100, ADDED_WHILE_COPIED, 5000] {
            // A packet that was announced and not written, and one of its length that nobody announced.
            chunk.add_up(4000, 20..4000);
            chunk.write_all(&[7; 4000]).unwrap();
            let start = chunk.bytes.len();
            chunk.add_up(length, 34..length);
            chunk.write_all(&[1; 28]).unwrap();
            chunk.write_all(&packet[..length]).unwrap();
            let place = start + 28 + 34..start + 28 + length;
            let expected = sum(&packet[34..length]);
            assert_eq!(chunk.bytes[place.clone()], packet[34..length]);
            assert_eq!(chunk.sum_of(place) % 0xffff, expected % 0xffff, "{length}");
        }
    }

    #[test]
    fn giant_packets_do_not_stay_in_memory() {
        let pool = Pool::new(1, 1024);
        let mut chunk = pool.take();
        assert!(pool.try_take().is_none());
        chunk.bytes.resize(1 << 20, 0);
        chunk.packets = 1;
        pool.give(chunk);
        let chunk = pool.take();
        assert!(chunk.bytes.is_empty() && chunk.packets == 0 && chunk.bytes.capacity() < 2048);
    }
}
