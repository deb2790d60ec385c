//! The last packets of a worker, in a ring of bounded size.

use std::collections::VecDeque;

/// Metadata of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Time of arrival, UTC nanoseconds since 1970.
    pub ts_ns: u64,
    /// Captured bytes.
    pub captured: u32,
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// Device, by its number in the capture.
    pub device: u16,
    /// RX queue.
    pub queue: u16,
    /// Whether it was sent by this host.
    pub egress: bool,
}

/// Bytes per packet in addition to its data.
const ASIDE: usize = size_of::<(Head, u32)>();

/// Ring of packets; the oldest are evicted for new ones.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    /// Metadata, with one bit for each rule that the packet matches.
    packets: VecDeque<(Head, u32)>,
    most: usize,
    /// Latest time of an evicted packet.
    gone_ns: Option<u64>,
}

impl Ring {
    /// Empty, with a limit of this many bytes in all.
    pub fn new(most: usize) -> Ring {
        // Pages that are not touched take no memory.
        Ring { bytes: VecDeque::with_capacity(most), packets: VecDeque::new(), most, gone_ns: None }
    }

    /// Buffers a packet, and evicts old ones.
    pub fn push(&mut self, head: Head, fits: u32, data: &[u8]) {
        let size = |bytes: usize, packets: usize| bytes + packets * ASIDE;
        while size(self.bytes.len() + data.len(), self.packets.len() + 1) > self.most {
            let Some((oldest, _)) = self.packets.pop_front() else {
                self.goes(head.ts_ns);
                return;
            };
            self.bytes.drain(..oldest.captured as usize);
            self.goes(oldest.ts_ns);
        }
        self.bytes.extend(data);
        self.packets.push_back((head, fits));
    }

    fn goes(&mut self, ts_ns: u64) {
        self.gone_ns = self.gone_ns.max(Some(ts_ns));
    }

    /// Whether a packet of this time or later was evicted.
    pub fn lacks(&self, from_ns: u64) -> bool {
        self.gone_ns.is_some_and(|gone| gone >= from_ns)
    }

    /// Packets in order of arrival, each with its matching rules and its data in two slices.
    pub fn packets(&self) -> impl Iterator<Item = (&Head, u32, [&[u8]; 2])> {
        let (first, second) = self.bytes.as_slices();
        let mut at = 0;
        self.packets.iter().map(move |(head, fits)| {
            let (start, end) = (at, at + head.captured as usize);
            at = end;
            let part = |slice: &[u8], offset: usize| {
                let within = |place: usize| place.saturating_sub(offset).min(slice.len());
                within(start)..within(end)
            };
            let (one, other) = (part(first, 0), part(second, first.len()));
            (head, *fits, [&first[one], &second[other]])
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(ts_ns: u64, captured: usize) -> Head {
        Head { ts_ns, captured: captured as u32, wire_len: 100, device: 0, queue: 0, egress: false }
    }

    #[test]
    fn the_last_packets_are_kept_whole_and_memory_is_bounded() {
        let most = 10_000;
        let mut ring = Ring::new(most);
        let data = |number: u64| vec![number as u8; number as usize % 97];
        for number in 0..5000u64 {
            let bytes = data(number);
            ring.push(head(number, bytes.len()), number as u32, &bytes);
            let kept: Vec<_> =
                ring.packets().map(|(head, fits, parts)| (head.ts_ns, fits, parts.concat())).collect();
            let first = kept[0].0;
            let expected: Vec<_> = (first..=number).map(|one| (one, one as u32, data(one))).collect();
            assert_eq!(kept, expected);
            let size: usize = kept.iter().map(|(_, _, data)| data.len() + ASIDE).sum();
            assert!(size <= most && ring.bytes.capacity() < 2 * most);
            assert_eq!((ring.lacks(first), ring.lacks(first.saturating_sub(1))), (false, first > 0));
        }
        assert!(ring.packets().count() > 50);
    }

    #[test]
    fn a_packet_that_is_too_long_is_told() {
        let mut ring = Ring::new(100);
        ring.push(head(5, 200), 0, &[0; 200]);
        assert_eq!((ring.packets().count(), ring.lacks(5), ring.lacks(6)), (0, true, false));
    }

    proptest! {
        /// Battery: L6
        #[test]
        fn evicted_packets_take_no_bytes(lengths in prop::collection::vec(0..400usize, 0..300), most in 0..3000usize) {
            let mut ring = Ring::new(most);
            for (number, length) in lengths.into_iter().enumerate() {
                ring.push(head(number as u64, length), 0, &vec![7; length]);
                let captured: usize = ring.packets.iter().map(|(head, _)| head.captured as usize).sum();
                prop_assert_eq!(ring.bytes.len(), captured);
                prop_assert!(captured + ring.packets.len() * ASIDE <= most);
            }
            // A packet that is longer than the ring evicts all others.
            ring.push(head(1000, most + 1), 0, &vec![7; most + 1]);
            prop_assert!(ring.bytes.is_empty() && ring.packets.is_empty());
        }
    }
}
