//! SIP messages from TCP: segments in order, messages by Content-Length, and a new start after missing bytes.

use std::net::IpAddr;

use super::sip::{self, Fault, LONGEST_HEAD};
use super::table::Table;

/// Maximum bytes of one direction that wait: for the rest of a message, or after a gap.
const MOST_BYTES: usize = 128 << 10;
/// Maximum segments that wait after a gap.
const MOST_LATER: usize = 32;
/// Maximum time to wait for the bytes of a gap.
const PATIENCE_NS: u64 = 2_000_000_000;
/// A direction is removed after this time without packets.
const IDLE_NS: u64 = 600_000_000_000;
/// Maximum number of directions.
pub(super) const MOST: usize = 8192;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Source.
    pub from: (IpAddr, u16),
    /// Destination.
    pub to: (IpAddr, u16),
}

/// A segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Its sequence number.
    pub seq: u32,
    /// Whether it begins a connection.
    pub syn: bool,
    /// Whether it ends one: a FIN or a RST.
    pub end: bool,
    /// Its payload.
    pub data: &'a [u8],
}

/// Result of a segment, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Framed {
    /// A message, head and body.
    Message(Vec<u8>),
    /// Bytes that are not a valid message.
    Malformed(Fault),
}

#[derive(Debug, Default)]
struct Direction {
    /// Sequence number of the byte after `buffer`.
    next: u32,
    buffer: Vec<u8>,
    /// End of the part of `buffer` that was searched for the end of a head.
    searched: usize,
    /// Length of the message at the start of `buffer` once its head is complete, else 0.
    whole: usize,
    /// Segments after a gap.
    later: Vec<(u32, Vec<u8>)>,
    gap_ns: u64,
    /// Whether bytes up to the next message are skipped.
    lost: bool,
    last_ns: u64,
}

/// Directions of connections.
#[derive(Debug)]
pub struct Streams {
    table: Table<Path, Direction>,
    held: usize,
    budget: usize,
    /// Gaps that were never filled.
    pub gaps: u64,
    /// Directions that were evicted for lack of memory.
    pub evicted: u64,
}

impl Direction {
    fn held(&self) -> usize {
        self.buffer.capacity() + self.later.iter().map(|(_, data)| data.capacity()).sum::<usize>()
    }

    fn append(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
        self.next = self.next.wrapping_add(data.len() as u32);
    }

    /// Adds a segment; true: a gap before it was given up.
    fn take(&mut self, seq: u32, data: &[u8], now_ns: u64) -> bool {
        let ahead = seq.wrapping_sub(self.next);
        if ahead == 0 {
            self.append(data);
        } else if ahead > u32::MAX / 2 {
            // Retransmitted, as far as its bytes are known.
            let known = self.next.wrapping_sub(seq) as usize;
            if let Some(fresh) = data.get(known..).filter(|fresh| !fresh.is_empty()) {
                self.append(fresh);
            }
        } else {
            if self.later.is_empty() {
                self.gap_ns = now_ns;
            }
            let next = self.next;
            let at = self.later.partition_point(|(known, _)| known.wrapping_sub(next) < ahead);
            if self.later.get(at).is_none_or(|(known, old)| *known != seq || old.len() < data.len()) {
                self.later.insert(at, (seq, data.to_vec()));
            }
        }
        let waiting: usize = self.later.iter().map(|(_, data)| data.len()).sum();
        let skip = !self.later.is_empty()
            && (self.later.len() > MOST_LATER
                || waiting > MOST_BYTES / 2
                || now_ns.saturating_sub(self.gap_ns) > PATIENCE_NS);
        if skip {
            self.next = self.later[0].0;
            self.buffer.clear();
            self.lose();
        }
        // Segments that the buffer has reached.
        while let Some((seq, _)) = self.later.first() {
            let behind = self.next.wrapping_sub(*seq);
            if behind > u32::MAX / 2 {
                break;
            }
            let (_, data) = self.later.remove(0);
            if let Some(fresh) = data.get(behind as usize..) {
                self.append(fresh);
            }
            self.gap_ns = now_ns;
        }
        skip
    }

    /// Skips bytes until a message begins.
    fn lose(&mut self) {
        (self.searched, self.whole, self.lost) = (0, 0, true);
    }

    /// Extracts the messages that are complete and in order.
    fn messages(&mut self, out: &mut Vec<Framed>) {
        let mut at = 0;
        loop {
            let rest = &self.buffer[at..];
            if self.lost {
                match next_start(rest) {
                    Some(begin) => {
                        at += begin;
                        self.lost = false;
                        continue;
                    }
                    None => {
                        // A start line may have begun in the last line.
                        let last = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
                        at += if rest.len() - last > 1024 { rest.len() } else { last };
                        break;
                    }
                }
            }
            // Keep-alives (RFC 5626).
            if let [b'\r' | b'\n', ..] = rest {
                at += 1;
                continue;
            }
            if rest.is_empty() {
                break;
            }
            // The message waits for its body; its head is not parsed again for each segment.
            if rest.len() < self.whole {
                break;
            }
            let searched = self.searched.max(3) - 3;
            // In one pass up to the first end of a head: many messages may wait in the buffer.
            let ends = rest.get(searched..).is_some_and(|part| {
                part.ends_with(b"\n\n")
                    || part.windows(3).any(|three| three == b"\n\r\n" || three.starts_with(b"\n\n"))
            });
            if !ends && rest.len() < LONGEST_HEAD {
                self.searched = rest.len();
                break;
            }
            let parsed = sip::parse(rest, false);
            let message = match parsed {
                Ok(message) => message,
                Err(fault) => {
                    out.push(Framed::Malformed(fault));
                    // After its first line: without its first letter that line could still be a valid start line.
                    at += rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
                    self.lose();
                    continue;
                }
            };
            let body = message.content_length.unwrap_or(0);
            if body > LONGEST_HEAD as u64 || message.fault == Some(Fault::Length) {
                out.push(Framed::Malformed(Fault::Length));
                at += message.head_len;
                self.lose();
                continue;
            }
            let whole = message.head_len + body as usize;
            if rest.len() < whole {
                self.whole = whole;
                break;
            }
            out.push(Framed::Message(rest[..whole].to_vec()));
            at += whole;
            (self.searched, self.whole) = (0, 0);
        }
        if at > 0 {
            self.buffer.drain(..at);
            self.buffer.shrink_to(4096);
        }
    }
}

/// Offset of the first start line of a message, at the start of a line.
fn next_start(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = &data[at..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        if sip::begins(&rest[..=end]) {
            return Some(at);
        }
        at += end + 1;
    }
}

impl Streams {
    /// No directions; `budget` limits their bytes.
    pub fn new(budget: usize) -> Streams {
        Streams { table: Table::new(), held: 0, budget, gaps: 0, evicted: 0 }
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Removes all connections at the end of the capture.
    pub fn finish(&mut self) {
        while let Some(at) = self.table.first(0) {
            self.remove(at);
        }
    }

    /// Adds a segment. `sip`: one of its ports is a SIP port, so the connection is tracked whatever its first bytes
    /// are. `None`: not a SIP connection.
    pub fn segment(
        &mut self,
        path: Path,
        segment: Segment<'_>,
        sip: bool,
        now_ns: u64,
    ) -> Option<Vec<Framed>> {
        self.expire(now_ns);
        let first = segment.seq.wrapping_add(u32::from(segment.syn));
        let at = match self.table.find(&path) {
            Some(at) => at,
            None if segment.data.is_empty() || !(sip || sip::begins(segment.data)) => {
                return sip.then(Vec::new);
            }
            None => {
                if self.table.len() >= MOST {
                    self.evict();
                }
                let lost = !sip::begins(segment.data);
                let fresh = Direction { next: first, lost, ..Direction::default() };
                self.table.insert(path, fresh, 0)
            }
        };
        self.table.touch(at, 0);
        let direction = self.table.get_mut(at)?;
        let before = direction.held();
        direction.last_ns = now_ns;
        let mut framed = Vec::new();
        if segment.syn {
            // A new connection between the same ports.
            *direction = Direction { next: first, last_ns: now_ns, ..Direction::default() };
        }
        if !segment.data.is_empty() && direction.take(first, segment.data, now_ns) {
            self.gaps += 1;
        }
        direction.messages(&mut framed);
        let after = direction.held();
        self.held = self.held - before + after;
        if segment.end {
            self.remove(at);
        }
        while self.held > self.budget && self.table.len() > 0 {
            self.evict();
        }
        Some(framed)
    }

    fn remove(&mut self, at: u32) {
        if let Some(direction) = self.table.remove(at) {
            self.held -= direction.held();
        }
    }

    fn evict(&mut self) {
        if let Some(at) = self.table.first(0) {
            self.remove(at);
            self.evicted += 1;
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some(at) = self.table.first(0) {
            match self.table.get(at) {
                Some(direction) if now_ns.saturating_sub(direction.last_ns) > IDLE_NS => self.remove(at),
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        Path { from: ([192, 0, 2, 1].into(), 5060), to: ([192, 0, 2, 2].into(), 5060) }
    }

    fn bye(body: &str) -> Vec<u8> {
        format!(
            "BYE sip:x SIP/2.0\r\nFrom: sip:a\r\nTo: sip:b\r\nCall-ID: 1\r\nCSeq: 1 BYE\r\nl: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    }

    fn feed(streams: &mut Streams, parts: &[(u32, &[u8])]) -> Vec<Framed> {
        let mut all = Vec::new();
        for (seq, data) in parts {
            let segment = Segment { seq: *seq, syn: false, end: false, data };
            all.extend(streams.segment(path(), segment, true, 0).unwrap());
        }
        all
    }

    #[test]
    fn messages_over_segments_of_one_byte_and_several_in_one() {
        let all = [bye("one"), b"\r\n\r\n".to_vec(), bye(""), bye("three")].concat();
        let expected = [bye("one"), bye(""), bye("three")].map(Framed::Message);
        let mut streams = Streams::new(1 << 20);
        assert_eq!(feed(&mut streams, &[(u32::MAX - 20, &all)]), expected);
        let bytes: Vec<(u32, &[u8])> = all
            .chunks(1)
            .enumerate()
            .map(|(at, byte)| ((u32::MAX - 20).wrapping_add(at as u32), byte))
            .collect();
        let mut streams = Streams::new(1 << 20);
        assert_eq!(feed(&mut streams, &bytes), expected);
        assert_eq!(streams.gaps, 0);
    }

    #[test]
    fn segments_out_of_order_and_again() {
        let all = [bye("one"), bye("two")].concat();
        let mut parts: Vec<(u32, &[u8])> =
            all.chunks(20).enumerate().map(|(at, part)| (at as u32 * 20, part)).collect();
        parts[1..].reverse();
        let again = parts.clone();
        parts.extend(again);
        assert_eq!(feed(&mut Streams::new(1 << 20), &parts), [bye("one"), bye("two")].map(Framed::Message));
    }

    #[test]
    fn what_is_missing_costs_its_message_only() {
        // Descriptions end with a line feed, after which the next message is searched.
        let all = [bye("one"), bye("two\r\n"), bye("three")].concat();
        let one = bye("one").len();
        let mut streams = Streams::new(1 << 20);
        let mut parts: Vec<(u32, &[u8])> = vec![(0, &all[..one + 5])];
        let rest: Vec<(u32, &[u8])> = all[one + 10..]
            .chunks(4)
            .enumerate()
            .map(|(at, part)| ((one + 10 + at * 4) as u32, part))
            .collect();
        parts.extend(rest);
        assert_eq!(feed(&mut streams, &parts), [bye("one"), bye("three")].map(Framed::Message));
        assert_eq!(streams.gaps, 1);
    }

    #[test]
    fn lengths_that_lie_are_malformed_and_bounded() {
        let lie = b"BYE sip:x SIP/2.0\r\nFrom: sip:a\r\nTo: sip:b\r\nCall-ID: 1\r\nCSeq: 1 BYE\r\nl: 4294967328\r\n\r\n";
        let all = [lie.to_vec(), bye("two")].concat();
        let framed = feed(&mut Streams::new(1 << 20), &[(0, &all)]);
        assert_eq!(framed, [Framed::Malformed(Fault::Length), Framed::Message(bye("two"))]);
        let mut streams = Streams::new(1 << 20);
        let endless = vec![b'x'; 60_000];
        feed(&mut streams, &[(0, b"BYE sip:x SIP/2.0\r\n")]);
        for turn in 0..100u32 {
            feed(&mut streams, &[(19 + turn * 60_000, &endless)]);
            assert!(streams.held <= 4 * MOST_BYTES, "{}", streams.held);
        }
    }

    /// Battery: I6
    #[test]
    fn heads_of_64_kib_are_malformed_and_what_follows_is_read() {
        let with = |length: usize| {
            let text = String::from_utf8(bye("")).unwrap();
            text.replace("\r\n\r\n", &format!("\r\nX: {}\r\n\r\n", "x".repeat(length))).into_bytes()
        };
        for (length, first) in
            [(60_000, Framed::Message(with(60_000))), (65_536, Framed::Malformed(Fault::Head))]
        {
            let all = [with(length), bye("two")].concat();
            for size in [1000, 1460, 65_000] {
                let parts = all.chunks(size).enumerate();
                let parts: Vec<(u32, &[u8])> = parts.map(|(at, part)| ((at * size) as u32, part)).collect();
                let framed = feed(&mut Streams::new(1 << 20), &parts);
                assert_eq!(framed.len(), 2, "{length} bytes in segments of {size}");
                assert!(framed[0] == first && framed[1] == Framed::Message(bye("two")));
            }
        }
    }

    /// Battery: I6
    #[test]
    fn connections_are_bounded() {
        let mut streams = Streams::new(1 << 20);
        for port in 0..60_000u16 {
            let path = Path { from: ([192, 0, 2, 1].into(), port), to: ([192, 0, 2, 2].into(), 5060) };
            let segment = Segment { seq: 0, syn: false, end: false, data: b"BYE sip:x SIP/2.0\r\n" };
            streams.segment(path, segment, true, 0);
        }
        assert!(streams.table.len() <= MOST && streams.held <= 1 << 20);
        assert!(streams.evicted >= 60_000 - MOST as u64);
    }
}
