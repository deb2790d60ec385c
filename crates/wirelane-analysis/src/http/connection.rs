//! A TCP connection: two directions, each read in order, and each no further than the other direction has caused.
//!
//! The acknowledgement of a packet tells how much of the other direction its sender had received. The payload is read
//! after that part of the other direction: so a request is known when its response is read, in whatever order the two
//! were captured. Missing bytes are waited for, for a limited time on the clock of the packets.

use super::exchange::Exchanges;
use super::parser::{Parser, Span};
use super::segment::{FIN, RST, SYN, Segment};
use super::stream::{Piece, Stream};

/// After this time the connection stops waiting for bytes that the receiver has acknowledged, and for a direction
/// without any captured packet.
pub const SOON_NS: u64 = 200_000_000;
/// After this time the connection stops waiting for any bytes.
const LATE_NS: u64 = 3_000_000_000;
/// Maximum bytes that are held of one direction, including the overhead of holding them.
const HELD_MOST: usize = 8 << 20;
/// An acknowledgement further away than this is ignored.
const AWAY_MOST: u64 = 1 << 30;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    streams: [Stream; 2],
    parsers: [Parser; 2],
    /// Requests and responses.
    pub exchanges: Exchanges,
    /// Whether a RST was seen.
    pub reset: bool,
    /// Whether it is over; later packets are retransmissions.
    pub over: bool,
    /// Whether a call of [`Connection::look`] is scheduled.
    pub queued: bool,
    /// Retransmitted bytes, in packets.
    pub again: u64,
    /// Maximum memory of its messages before the oldest requests are evicted.
    messages_most: usize,
}

impl Connection {
    /// A connection without packets, with messages of at most this many bytes.
    pub fn new(messages_most: usize) -> Connection {
        Connection {
            streams: [Stream::default(), Stream::default()],
            parsers: [Parser::new(0, false), Parser::new(1, false)],
            exchanges: Exchanges::default(),
            reset: false,
            over: false,
            queued: false,
            again: 0,
            messages_most,
        }
    }

    /// Memory in addition to the struct itself, in bytes.
    pub fn memory(&self) -> usize {
        let streams: usize = self.streams.iter().map(Stream::memory).sum();
        let parsers: usize = self.parsers.iter().map(Parser::memory).sum();
        streams + parsers + self.exchanges.memory()
    }

    /// Whether a packet begins another connection between the same two ends.
    pub fn is_another(&self, dir: usize, segment: &Segment<'_>) -> bool {
        let stream = &self.streams[dir];
        // A repeated or late SYN has the sequence number of the existing connection.
        segment.flags & SYN != 0
            && stream.seen
            && stream.place(segment.seq.wrapping_add(1)) != stream.first_place()
    }

    /// Whether retransmitted bytes differed from the first ones, since the last call.
    pub fn take_conflict(&mut self) -> bool {
        self.streams.iter_mut().fold(false, |any, stream| any | std::mem::take(&mut stream.conflict))
    }

    /// Bytes outside of messages in both directions, since the last call.
    pub fn take_strays(&mut self) -> [super::parser::Strays; 2] {
        [0, 1].map(|dir| std::mem::take(&mut self.parsers[dir].strays))
    }

    /// Processes a packet of a direction; `order`: its number among all packets.
    pub fn packet(&mut self, dir: usize, segment: &Segment<'_>, order: u64, extra: &[Box<str>]) {
        if self.over {
            return;
        }
        let mut seq = segment.seq;
        if segment.flags & SYN != 0 {
            seq = seq.wrapping_add(1);
        }
        if !self.streams[dir].seen {
            let syn = segment.flags & SYN != 0;
            self.streams[dir].begin(seq);
            self.parsers[dir] = Parser::new(dir, syn);
            self.exchanges.one_way = false;
        }
        if let Some(ack) = segment.ack {
            let other = &mut self.streams[1 - dir];
            if other.seen {
                let place = other.place(ack);
                if place < other.next + AWAY_MOST {
                    other.acked = other.acked.max(place);
                }
            } else {
                self.streams[dir].hears(ack);
            }
        }
        let at = self.streams[dir].place(seq);
        let end = at + u64::from(segment.len);
        if segment.flags & FIN != 0 {
            self.streams[dir].fin.get_or_insert(end);
        }
        if segment.flags & RST != 0 {
            self.reset = true;
        }
        if segment.len > 0 {
            if end <= self.streams[dir].next {
                self.again += 1;
            } else if at > self.streams[dir].next + AWAY_MOST {
                // Not part of this connection.
            } else {
                self.payload(dir, at, segment, order, extra);
            }
        }
        self.run(extra);
        while self.streams[dir].memory() > HELD_MOST {
            self.force(segment.ts_ns, extra);
            self.run(extra);
        }
        while self.exchanges.memory() > self.messages_most && self.exchanges.evict() {}
    }

    /// Processes captured bytes of a direction that stayed in the kernel: from this sequence number on, the last of
    /// them at this time.
    pub fn offloaded(&mut self, dir: usize, seq: u32, len: u32, ts_ns: u64, order: u64, extra: &[Box<str>]) {
        let stream = &self.streams[dir];
        // An unknown direction begins with its next packet.
        if self.over || !stream.seen {
            return;
        }
        let (at, next) = (stream.place(seq), stream.next);
        if at + u64::from(len) <= next || at > next + AWAY_MOST {
            return;
        }
        let place = Span { ts_ns, at, acked: None, begins: false };
        let empty = stream.is_empty();
        if empty && at >= next && self.parsers[dir].is_adrift() {
            self.parsers[dir].gap(at - next, &mut self.exchanges, extra);
            self.streams[dir].advance(at);
            self.deliver(dir, &[], len, true, place, extra);
        } else if empty && at == next {
            self.deliver(dir, &[], len, true, place, extra);
        } else {
            let data = Box::default();
            let piece = Piece { len, data, captured: true, ts_ns, ack: None, order, begins: false };
            self.streams[dir].hold(at, piece);
        }
        self.run(extra);
    }

    fn payload(&mut self, dir: usize, at: u64, segment: &Segment<'_>, order: u64, extra: &[Box<str>]) {
        let next = self.streams[dir].next;
        let place = Span { ts_ns: segment.ts_ns, at, acked: self.acked(dir, segment.ack), begins: true };
        let ready = at == next && self.may_pass(dir, segment.ack, segment.data);
        if self.parsers[dir].is_adrift() && at >= next && self.streams[dir].is_empty() {
            // The missing bytes would not be used, and no packet is held.
            let head = matches!(
                wirelane_bpf::http::first(segment.data),
                wirelane_bpf::http::First::Response | wirelane_bpf::http::First::Short
            );
            if ready || !head || self.exchanges.tunnel {
                self.parsers[dir].gap(at - next, &mut self.exchanges, extra);
                self.streams[dir].advance(at);
                self.deliver(dir, segment.data, segment.len, false, place, extra);
                return;
            }
        }
        if ready && self.streams[dir].is_empty() {
            self.deliver(dir, segment.data, segment.len, false, place, extra);
            return;
        }
        // Only the length of a body is needed.
        let indifferent = self.parsers[dir].indifferent();
        let whole = segment.data.len() == segment.len as usize;
        let hollow = whole && (at - next.min(at)).saturating_add(u64::from(segment.len)) <= indifferent;
        let piece = Piece {
            len: segment.len,
            data: if hollow { Box::default() } else { segment.data.into() },
            captured: whole,
            ts_ns: segment.ts_ns,
            ack: segment.ack,
            order,
            begins: true,
        };
        self.streams[dir].hold(at, piece);
    }

    /// Position in the other direction that the sender of a packet has acknowledged.
    fn acked(&self, dir: usize, ack: Option<u32>) -> Option<u64> {
        let other = &self.streams[1 - dir];
        if other.seen { ack.map(|ack| other.place(ack)) } else { None }
    }

    /// Whether the other direction was read up to the position that the sender of a packet had received.
    fn may_pass(&self, dir: usize, ack: Option<u32>, data: &[u8]) -> bool {
        let other = &self.streams[1 - dir];
        let Some(ack) = ack else { return true };
        if !other.seen {
            use wirelane_bpf::http::{First, first};
            // A request does not depend on the other direction, and neither do bytes that are not HTTP.
            return self.exchanges.one_way
                || self.exchanges.client == Some(dir)
                || !matches!(first(data), First::Response | First::Short) && self.exchanges.client.is_none();
        }
        let had = other.place(ack);
        let there = other.next + u64::from(other.ended);
        had <= there || had > there + AWAY_MOST || self.parsers[1 - dir].is_adrift() && other.is_empty()
    }

    /// Reads all that is ready.
    fn run(&mut self, extra: &[Box<str>]) {
        loop {
            let before = [self.streams[0].next, self.streams[1].next, self.ended()];
            for dir in [0, 1] {
                while let Some((at, piece)) = self.streams[dir].first() {
                    if at > self.streams[dir].next || !self.may_pass(dir, piece.ack, &piece.data) {
                        break;
                    }
                    self.take(dir, extra);
                }
                let stream = &mut self.streams[dir];
                if stream.fin.is_some_and(|fin| stream.next >= fin) && !stream.ended {
                    stream.ended = true;
                    self.parsers[dir].finish(true, &mut self.exchanges, extra);
                }
            }
            if before == [self.streams[0].next, self.streams[1].next, self.ended()] {
                return;
            }
        }
    }

    fn ended(&self) -> u64 {
        u64::from(self.streams[0].ended) + u64::from(self.streams[1].ended)
    }

    /// Removes the first held piece of a direction, which begins at or before the current position.
    fn take(&mut self, dir: usize, extra: &[Box<str>]) {
        let Some((at, piece)) = self.streams[dir].take() else { return };
        self.streams[dir].since_ns = piece.ts_ns.max(self.streams[dir].since_ns);
        if piece.len == 0 || at != self.streams[dir].next {
            return;
        }
        let acked = self.acked(dir, piece.ack);
        let place = Span { ts_ns: piece.ts_ns, at, acked, begins: piece.begins };
        self.deliver(dir, &piece.data, piece.len, piece.captured, place, extra);
    }

    /// Delivers the next `len` bytes of a direction: these, and others that were captured without data or are missing.
    fn deliver(
        &mut self,
        dir: usize,
        data: &[u8],
        len: u32,
        captured: bool,
        place: Span,
        extra: &[Box<str>],
    ) {
        let parser = &mut self.parsers[dir];
        parser.data(data, place, &mut self.exchanges, extra);
        let rest = u64::from(len).saturating_sub(data.len() as u64);
        if rest > 0 && captured {
            parser.pass(rest, place.ts_ns, &mut self.exchanges);
        } else if rest > 0 {
            parser.gap(rest, &mut self.exchanges, extra);
        }
        let next = self.streams[dir].next;
        self.streams[dir].advance(next + u64::from(len));
        if self.exchanges.tunnel {
            for parser in &mut self.parsers {
                parser.tunnel(&mut self.exchanges);
            }
        }
    }

    /// Stops waiting for the missing bytes before the piece that arrived first. False: no piece is held.
    fn force(&mut self, now_ns: u64, extra: &[Box<str>]) -> bool {
        let order = |dir: usize| self.streams[dir].first().map(|(_, piece)| piece.order);
        let dir = match (order(0), order(1)) {
            (Some(one), Some(other)) => usize::from(other < one),
            (Some(_), None) => 0,
            (None, Some(_)) => 1,
            (None, None) => return false,
        };
        if let Some((at, _)) = self.streams[dir].first() {
            let next = self.streams[dir].next;
            if at > next {
                self.parsers[dir].gap(at - next, &mut self.exchanges, extra);
                self.streams[dir].advance(at);
            }
            self.take(dir, extra);
        }
        self.streams[dir].since_ns = now_ns;
        true
    }

    /// Whether it waits for bytes that may never arrive.
    pub fn waits(&self) -> bool {
        let held = self.streams.iter().any(|stream| !stream.is_empty());
        let alone = self.streams.iter().any(|stream| stream.heard_more)
            && self.streams.iter().any(|stream| !stream.seen);
        !self.over
            && (held
                || self.reset
                || self.ended() > 0
                || alone && !self.exchanges.one_way && self.exchanges.waits())
    }

    /// Advances the time: gives up bytes that were waited for long enough.
    pub fn look(&mut self, now_ns: u64, extra: &[Box<str>]) {
        let late =
            |stream: &Stream, ns: u64| !stream.is_empty() && now_ns.saturating_sub(stream.since_ns) >= ns;
        let alone = self.streams.iter().any(|stream| !stream.seen);
        if alone
            && !self.exchanges.one_way
            && self.streams.iter().any(|stream| stream.heard_more || late(stream, SOON_NS))
        {
            self.exchanges.one_way = true;
            self.exchanges.give_up(true, true);
            self.run(extra);
        }
        loop {
            let acknowledged = |stream: &Stream| {
                stream.first().is_some_and(|(at, _)| at > stream.next && stream.acked >= at)
            };
            let over = self.streams.iter().any(|stream| {
                late(stream, LATE_NS) || late(stream, SOON_NS) && (acknowledged(stream) || self.reset)
            });
            if !over || !self.force(now_ns, extra) {
                break;
            }
            self.run(extra);
        }
        // A direction that has ended sends no more bytes.
        for dir in [0, 1] {
            if self.streams[dir].ended && self.streams[1 - dir].is_empty() {
                let client = self.exchanges.client == Some(dir);
                self.exchanges.give_up(!client, client);
            }
        }
    }

    /// Whether both directions have ended and no piece is held, or the connection was reset.
    pub fn has_ended(&self) -> bool {
        let held = self.streams.iter().any(|stream| !stream.is_empty());
        !held && (self.ended() == 2 || self.reset)
    }

    /// Ends the connection: reads the held pieces and ends open messages. Returns whether its ends closed it.
    pub fn finish(&mut self, now_ns: u64, extra: &[Box<str>]) -> bool {
        loop {
            self.run(extra);
            if !self.force(now_ns, extra) {
                break;
            }
        }
        for dir in [0, 1] {
            self.parsers[dir].finish(false, &mut self.exchanges, extra);
            self.streams[dir].clear();
        }
        self.exchanges.give_up(true, true);
        self.over = true;
        self.reset || self.ended() == 2
    }
}
