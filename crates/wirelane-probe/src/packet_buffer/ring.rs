//! The last packets of a worker, as many as find room.

use std::collections::VecDeque;

/// What is known of a packet beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// When it came, UTC nanoseconds since 1970.
    pub ts_ns: u64,
    /// Bytes that were captured of it.
    pub captured: u32,
    /// Bytes that it had on the wire.
    pub wire_len: u32,
    /// Device, by its number in the capture.
    pub device: u16,
    /// RX queue.
    pub queue: u16,
    /// It was sent, not received.
    pub egress: bool,
}

/// What a packet takes beside its bytes.
const ASIDE: usize = size_of::<(Head, u32)>();

/// The oldest make place for new ones.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: VecDeque<u8>,
    /// With the rules that each fits, a bit each.
    packets: VecDeque<(Head, u32)>,
    most: usize,
    /// The latest time of what is not here any more.
    gone_ns: Option<u64>,
}

impl Ring {
    /// Empty, with room for so many bytes in all.
    pub fn new(most: usize) -> Ring {
        // Pages that are not touched are none yet.
        Ring { bytes: VecDeque::with_capacity(most), packets: VecDeque::new(), most, gone_ns: None }
    }

    /// Keeps a packet.
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

    /// Whether something of this time or a later one had to make place.
    pub fn lacks(&self, from_ns: u64) -> bool {
        self.gone_ns.is_some_and(|gone| gone >= from_ns)
    }

    /// Its packets in the order in which they came, each with the rules that it fits and its bytes, in two parts.
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
}
