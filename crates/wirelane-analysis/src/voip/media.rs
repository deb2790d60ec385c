//! Media part of the monitor: assigns RTP and RTCP packets to streams.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use wirelane_bpf::rtp::{ReadResult, RtpPacket};

use super::call::{Ending, Way};
use super::calls::know;
use super::monitor::{Class, Finished, Monitor};
use super::stream::{MediaAddress, Party, Stream};
use super::{rtcp, sip};

/// Lists of streams: unconfirmed RTP without signalling, confirmed RTP without signalling, and streams of calls.
pub(super) const CANDIDATES: u8 = 0;
pub(super) const ALONE: u8 = 1;
const OWNED: u8 = 2;

/// Maximum number of streams of one call.
const MOST_STREAMS: usize = 64;
/// Packets in order that confirm a stream without signalling.
const PROOF: u64 = 3;
/// Maximum delay until a stream is moved to the end of its list.
const TOUCH_NS: u64 = 1_000_000_000;

/// A place where media of a call is received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    pub call: u32,
    /// Receiving party.
    pub party: Party,
    pub media: usize,
    /// Whether it receives only RTCP.
    pub rtcp: bool,
    /// Whether a stream shows the place, and no message named it.
    pub learned: bool,
}

/// Key of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamKey {
    pub from: MediaAddress,
    pub to: MediaAddress,
    pub ssrc: u32,
}

impl Hash for StreamKey {
    /// Hashes three words: the derived function hashes twelve values, one after the other.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = |address| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        state.write_u128(bits(self.from.0));
        state.write_u128(bits(self.to.0));
        state.write_u64(u64::from(self.ssrc) << 32 | u64::from(self.from.1) << 16 | u64::from(self.to.1));
    }
}

/// Offset of a message after other bytes, at the start of a line.
pub(super) fn behind_junk(payload: &[u8]) -> Option<usize> {
    let mut at = 0;
    // A datagram that consists of line ends is scanned once.
    while let Some(end) = payload[at..].iter().position(|byte| *byte == b'\n') {
        at += end + 1;
        if sip::begins(&payload[at..]) {
            return Some(at);
        }
    }
    None
}

impl Monitor {
    /// Processes a datagram that may be RTP or RTCP.
    pub(super) fn media(&mut self, payload: &[u8], len: usize, way: &Way) -> Class {
        if rtcp::may_be(payload) {
            let [to, from] = self.ends(way);
            if to.is_some() || from.is_some() || self.settings.heuristic {
                return self.rtcp(payload, len, way, to.or(from).map(|endpoint| endpoint.call));
            }
        }
        let (result, packet) = RtpPacket::read(payload, len);
        self.rtp(result, &packet, way)
    }

    /// Destination and source of a packet, as far as they are places of calls.
    fn ends(&self, way: &Way) -> [Option<Endpoint>; 2] {
        [&way.to, &way.from].map(|place| self.places.get(place).copied())
    }

    /// Processes an RTP packet, valid or not.
    pub(super) fn rtp(&mut self, result: ReadResult, packet: &RtpPacket, way: &Way) -> Class {
        let known = |result| matches!(result, ReadResult::Ok | ReadResult::Malformed);
        let key = StreamKey { from: way.from, to: way.to, ssrc: packet.ssrc };
        let found = if known(result) { self.streams.find(&key) } else { None };
        if let (ReadResult::Ok, Some(at)) = (result, found)
            && self.is_of_active_call(at)
        {
            // The stream stays with its call, whoever owns its ends: these look-ups are left out.
            return self.add(at, packet, way.ts_ns);
        }
        let [to, from] = self.ends(way);
        // A place for RTCP alone has no streams.
        let (to, from) = (to.filter(|to| !to.rtcp), from.filter(|from| !from.rtcp));
        let owner = self.owner(to, from, way);
        let found = found.filter(|at| !self.is_of_old_call(*at, owner));
        match (result, found, owner) {
            (ReadResult::Malformed, Some(at), _) => {
                self.spoil(at, way.ts_ns);
                self.counts.rtp_malformed += 1;
                Class::Rtp
            }
            (ReadResult::Malformed | ReadResult::Not | ReadResult::Cut, None, Some((endpoint, _))) => {
                if let Some(call) = self.calls.get_mut(endpoint.call) {
                    call.rtp_malformed += 1;
                }
                self.counts.rtp_malformed += 1;
                Class::Rtp
            }
            (ReadResult::Ok, Some(at), owner) => {
                self.adopt(at, owner);
                self.add(at, packet, way.ts_ns)
            }
            (ReadResult::Ok, None, Some((endpoint, named))) => match self.begin(key, way, endpoint, named) {
                Some(at) => self.add(at, packet, way.ts_ns),
                None => {
                    self.counts.rtp_left_out += 1;
                    Class::Rtp
                }
            },
            (ReadResult::Ok, None, None) if self.settings.heuristic && is_plausible(packet, way) => {
                let stream = Stream::new(way.from, way.to, self.settings.interval_ns, way.ts_ns);
                let at = self.insert(key, stream, CANDIDATES);
                self.add(at, packet, way.ts_ns)
            }
            _ => Class::Other,
        }
    }

    /// Call to which a packet belongs, and whether its destination says so. Calls may share a place, for example if one
    /// process answers all of them: then the active call is preferred, then the call that named both ends, then that of
    /// the sender, whose port is more likely to be its own.
    fn owner(&self, to: Option<Endpoint>, from: Option<Endpoint>, way: &Way) -> Option<(Endpoint, bool)> {
        match (to, from) {
            (Some(to), Some(from)) if to.call != from.call => {
                let weight = |endpoint: Endpoint, other: &MediaAddress| {
                    let call = self.calls.get(endpoint.call);
                    call.map_or((false, false), |call| (!call.state.is_over(), call.places.contains(other)))
                };
                let by_sender = weight(from, &way.to) >= weight(to, &way.from);
                Some(if by_sender { (from, false) } else { (to, true) })
            }
            (Some(to), _) => Some((to, true)),
            (None, from) => from.map(|from| (from, false)),
        }
    }

    /// Whether a stream belongs to a finished call while another call now uses its ends; then hands out the old call.
    fn is_of_old_call(&mut self, at: u32, owner: Option<(Endpoint, bool)>) -> bool {
        let call = self.streams.get(at).and_then(|stream| stream.call);
        let (Some(old), Some((endpoint, _))) = (call, owner) else { return false };
        let over = self.calls.get(old).is_some_and(|call| call.state.is_over());
        if old == endpoint.call || !over {
            return false;
        }
        self.end_call(old, Ending::Ended);
        true
    }

    fn is_of_active_call(&self, at: u32) -> bool {
        let call = self.streams.get(at).and_then(|stream| self.calls.get(stream.call?));
        call.is_some_and(|call| !call.state.is_over())
    }

    fn insert(&mut self, key: StreamKey, mut stream: Stream, list: u8) -> u32 {
        self.used += self.stream_cost();
        stream.capture_lost = self.capture_lost;
        self.streams.insert(key, stream, list)
    }

    /// Begins a stream that a call has announced.
    fn begin(&mut self, key: StreamKey, way: &Way, endpoint: Endpoint, named: bool) -> Option<u32> {
        self.room(endpoint.call)?;
        let toward = if named { endpoint.party } else { endpoint.party.other() };
        // The other end is learned if the other party has not named it.
        let other = if named { way.from } else { way.to };
        if !self.places.contains_key(&other) {
            let party = endpoint.party.other();
            self.announce(endpoint.call, other, Endpoint { party, rtcp: false, learned: true, ..endpoint });
        }
        let learned = self.is_learned(&key);
        let call = self.calls.get_mut(endpoint.call)?;
        for at in &call.streams {
            let Some(known) = self.streams.get(*at) else { continue };
            if known.to == key.to && known.from == key.from {
                call.ssrc_changes += 1;
                break;
            }
            if known.to == key.to && known.rtp.ssrc == key.ssrc {
                call.ssrc_collisions += 1;
                break;
            }
        }
        let mut stream = Stream::new(way.from, way.to, self.settings.interval_ns, way.ts_ns);
        (stream.toward, stream.media, stream.learned) = (Some(toward), endpoint.media, learned);
        (stream.call, stream.confirmed) = (Some(endpoint.call), true);
        know(&mut stream, call);
        let at = self.insert(key, stream, OWNED);
        self.calls.get_mut(endpoint.call)?.streams.push(at);
        Some(at)
    }

    /// Whether no message has named one of the ends of a stream, yet.
    fn is_learned(&self, key: &StreamKey) -> bool {
        let learned = |place| self.places.get(place).is_none_or(|endpoint| endpoint.learned);
        learned(&key.from) || learned(&key.to)
    }

    /// A message may have named the ends of streams that began before it.
    pub(super) fn named(&mut self, at: u32) {
        let Some(call) = self.calls.get(at) else { return };
        for at in call.streams.clone() {
            let Some(stream) = self.streams.get(at).filter(|stream| stream.learned) else { continue };
            let key = StreamKey { from: stream.from, to: stream.to, ssrc: stream.rtp.ssrc };
            let learned = self.is_learned(&key);
            self.streams.get_mut(at).into_iter().for_each(|stream| stream.learned = learned);
        }
    }

    /// Assigns a stream that began before its call to the call.
    fn adopt(&mut self, at: u32, owner: Option<(Endpoint, bool)>) {
        let Some((endpoint, named)) = owner else { return };
        let Some(stream) = self.streams.get(at) else { return };
        let key = StreamKey { from: stream.from, to: stream.to, ssrc: stream.rtp.ssrc };
        if stream.call.is_some() || self.room(endpoint.call).is_none() {
            return;
        }
        let learned = self.is_learned(&key);
        let (Some(stream), Some(call)) = (self.streams.get_mut(at), self.calls.get_mut(endpoint.call)) else {
            return;
        };
        call.streams.push(at);
        stream.toward = Some(if named { endpoint.party } else { endpoint.party.other() });
        (stream.media, stream.call, stream.learned) = (endpoint.media, Some(endpoint.call), learned);
        know(stream, call);
        if !std::mem::replace(&mut stream.confirmed, true) {
            // Its packets are not counted yet.
            self.counts.rtp_packets += stream.rtp.packets;
        }
        self.streams.touch(at, OWNED);
    }

    /// Makes room for one more stream of a call: evicts the one with the fewest packets if there are too many.
    fn room(&mut self, call: u32) -> Option<()> {
        if self.calls.get(call)?.streams.len() < MOST_STREAMS {
            return Some(());
        }
        for at in self.calls.get(call)?.streams.clone() {
            self.look_offloaded(at);
            self.look_lent(at);
        }
        let streams = &self.calls.get(call)?.streams;
        let packets = |at: &u32| self.streams.get(*at).map_or(0, |stream| stream.rtp.packets);
        let lightest = streams.iter().copied().min_by_key(packets)?;
        let gone = self.take_stream(lightest)?;
        self.counts.rtp_left_out += gone.rtp.packets;
        let call = self.calls.get_mut(call)?;
        call.streams.retain(|at| *at != lightest);
        call.rtp_left_out += gone.rtp.packets;
        Some(())
    }

    /// Counts a packet of a stream with a broken header.
    fn spoil(&mut self, at: u32, ts_ns: u64) {
        self.own(at);
        let Some(ts_ns) = self.takes_turn(at, None, ts_ns) else { return };
        if let Some(stream) = self.streams.get_mut(at) {
            stream.rtp.malformed += 1;
        }
        self.hand_down(at, ts_ns);
        self.lend(at);
    }

    fn add(&mut self, at: u32, packet: &RtpPacket, ts_ns: u64) -> Class {
        self.own(at);
        let Some(ts_ns) = self.takes_turn(at, Some(packet), ts_ns) else { return Class::Rtp };
        let Some(stream) = self.streams.get_mut(at) else { return Class::Other };
        stream.take(packet, ts_ns);
        if let Some(call) = stream.call {
            self.at_hand.heard = Some(call);
            self.hand_down(at, ts_ns);
            self.lend(at);
            self.heard(call, ts_ns);
            return Class::Rtp;
        }
        let proved = stream.rtp.received() >= PROOF && stream.rtp.stray == 0;
        let late = ts_ns.saturating_sub(stream.touched_ns) >= TOUCH_NS;
        stream.touched_ns = stream.touched_ns.max(if late { ts_ns } else { 0 });
        if proved && !stream.confirmed {
            stream.confirmed = true;
            self.counts.rtp_packets += stream.rtp.packets - 1;
            self.streams.touch(at, ALONE);
            return Class::Rtp;
        }
        let confirmed = stream.confirmed;
        if late {
            self.streams.touch(at, if confirmed { ALONE } else { CANDIDATES });
        }
        if confirmed { Class::Rtp } else { Class::Later }
    }

    fn rtcp(&mut self, payload: &[u8], len: usize, way: &Way, call: Option<u32>) -> Class {
        let Some(reports) = rtcp::parse(payload).filter(|_| payload.len() == len) else {
            if call.is_none() {
                return Class::Other;
            }
            self.counts.rtcp_malformed += 1;
            return Class::Rtcp;
        };
        self.at_hand.heard = call;
        // Without a call, the reports cannot be assigned.
        let Some(call) = call.and_then(|at| self.calls.get(at)) else { return Class::Rtcp };
        for at in &call.streams {
            let Some(stream) = self.streams.get_mut(*at) else { continue };
            // Check the source address, too: the SSRC alone is ambiguous if two streams share it.
            for sent in reports.sent.iter().filter(|sent| sent.ssrc == stream.rtp.ssrc) {
                if stream.from.0 == way.from.0 {
                    stream.reported.sender(sent.ntp_middle, sent.packets, way.ts_ns);
                }
            }
            for received in reports.received.iter().filter(|received| received.ssrc == stream.rtp.ssrc) {
                if stream.to.0 == way.from.0 {
                    stream.reported.receiver(received, way.ts_ns);
                }
            }
        }
        Class::Rtcp
    }

    /// Removes a stream, with its statistics complete.
    pub(super) fn take_stream(&mut self, at: u32) -> Option<Stream> {
        self.close_offloaded(at);
        self.take_back(at);
        let mut stream = self.streams.remove(at)?;
        self.used -= self.stream_cost();
        stream.finish();
        stream.capture_lost = self.capture_lost.saturating_sub(stream.capture_lost);
        Some(stream)
    }

    /// Hands out a stream without a call; drops it if it was never confirmed as RTP.
    pub(super) fn end_stream(&mut self, at: u32, ending: Ending) {
        let Some(stream) = self.take_stream(at) else { return };
        if !stream.confirmed {
            self.counts.other_packets += stream.rtp.packets;
            return;
        }
        self.counts.streams += 1;
        self.counts.streams_without_call += 1;
        self.counts.streams_evicted += u64::from(ending == Ending::Resources);
        self.hand_out(Finished::Stream(Box::new(stream), ending));
    }
}

/// Whether an RTP header is plausible: a fixed or dynamic payload type, and ports above the well-known ones.
fn is_plausible(packet: &RtpPacket, way: &Way) -> bool {
    let kind = matches!(packet.pt, 0..=34 | 96..=127);
    kind && packet.ssrc != 0 && packet.payload_len > 0 && way.from.1 >= 1024 && way.to.1 >= 1024
}
