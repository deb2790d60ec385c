//! Streams of numbered packets: loss, order, duplicates, latency and jitter.
//!
//! Order is that of arrival (RFC 4737): a packet is *reordered* if a packet of a higher number came before it. A packet
//! whose number has come before is a *duplicate* (RFC 5560), and neither reordered nor measured. *Lost* are the numbers
//! that did not come, of those between the lowest and the highest that came, or of those that were expected (RFC 7680).
//!
//! ```text
//!        lowest              highest - WINDOW              highest
//!   -------|-----------------------|--------------------------|------> numbers
//!              too old to tell         a bit for each number
//! ```
//!
//! Memory is bounded: numbers up to [`WINDOW`] behind the highest are told apart, and there are at most [`MOST_STREAMS`]
//! streams.

mod latency;
mod sequence;

use std::collections::BTreeMap;

pub use latency::{Latency, Measured};
pub use sequence::{Counts, Sequence, WINDOW};

/// Maximum number of streams. A stream takes 0.4 MB.
pub const MOST_STREAMS: usize = 128;

/// One stream.
#[derive(Debug)]
pub struct Stream {
    /// Its numbers.
    pub sequence: Sequence,
    /// Bytes of its packets on the wire, without FCS.
    pub bytes: u64,
    /// Its times.
    pub latency: Latency,
}

/// All streams of a capture.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<u16, Stream>,
    /// Packets that the streams received.
    packets: u64,
    /// Packets of further streams.
    left_out: u64,
}

impl Streams {
    /// Adds a packet in the order of arrival. Times are UTC in nanoseconds.
    pub fn add(&mut self, stream: u16, number: u64, sent_ns: Option<u64>, arrived_ns: u64, wire_bytes: u32) {
        if !self.streams.contains_key(&stream) && self.streams.len() >= MOST_STREAMS {
            self.left_out += 1;
            return;
        }
        let stream = self.streams.entry(stream).or_insert_with(|| Stream {
            sequence: Sequence::new(number),
            bytes: 0,
            latency: Latency::default(),
        });
        self.packets += 1;
        stream.bytes += u64::from(wire_bytes);
        if stream.sequence.add(number)
            && let Some(sent_ns) = sent_ns
        {
            stream.latency.add(sent_ns, arrived_ns);
        }
    }

    /// The streams by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Stream)> {
        self.streams.iter().map(|(id, stream)| (*id, stream))
    }

    /// Packets of all streams.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets of streams beyond [`MOST_STREAMS`].
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_streams_are_counted_and_take_no_memory() {
        let mut streams = Streams::default();
        for id in 0..200 {
            streams.add(id, 0, None, 0, 60);
        }
        streams.add(7, 1, None, 0, 60);
        assert_eq!((streams.iter().count(), streams.packets(), streams.left_out()), (128, 129, 72));
    }
}
