//! VoIP monitor: correlates SIP and RTP into calls.

use std::collections::{BTreeSet, VecDeque};

use ahash::RandomState;
use hashbrown::HashMap;
use wirelane::{Ip, LinkType, Record, flags};
use wirelane_bpf::layout::ip_flags;
use wirelane_bpf::native;

use super::call::{Call, CallRecord, Ending, Way};
use super::calls::Early;
use super::content::{Content, address, is_keep_alive, is_media, is_sip_port, read, stated};
use super::counts::Counts;
use super::kept::{AtHand, Keep, Kept};
use super::lent::Lent;
use super::media::{self, Endpoint, StreamKey};
use super::offloaded::Kernel;
use super::settings::{LEAST_MEMORY, Settings};
use super::sip;
use super::stream::{MediaAddress, Stream};
use super::table::Table;
use super::tcp::{Framed, Path, Segment, Streams};
use crate::Outbox;
use crate::fragments::{Fragments, Joined};

/// Lists of calls.
pub(super) const OVER: u8 = 0;
pub(super) const WAITING: u8 = 1;
pub(super) const QUIET: u8 = 2;
pub(super) const TALKING: u8 = 3;

/// Result of a monitor.
#[derive(Clone, Debug)]
pub enum Finished {
    /// A call, with its streams.
    Call(Box<CallRecord>),
    /// A stream without a call, and the reason for its end.
    Stream(Box<Stream>, Ending),
    /// A message, if the settings request messages.
    Signal(Signal),
    /// A packet of a call, if the settings request packets. It precedes its call.
    Kept(Kept),
}

impl Finished {
    /// Memory in bytes.
    fn memory(&self) -> usize {
        match self {
            Finished::Call(record) => record.call.cost() + record.streams.len() * Stream::cost(),
            Finished::Stream(..) => Stream::cost(),
            Finished::Signal(signal) => size_of::<Signal>() + signal.bytes.len() + signal.call_id.len(),
            Finished::Kept(kept) => size_of::<Kept>() + kept.packet.memory(),
        }
    }
}

/// A SIP message, unchanged.
#[derive(Clone, Debug)]
pub struct Signal {
    /// Path and time.
    pub way: Way,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its Call-ID.
    pub call_id: Box<str>,
}

/// Class of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Signalling,
    Rtp,
    Rtcp,
    Fragment,
    Other,
    /// Possible RTP: it is counted with its stream.
    Later,
}

/// Calls and streams, from packets.
#[derive(Debug)]
pub struct Monitor {
    pub(super) settings: Settings,
    pub(super) random: RandomState,
    pub(super) calls: Table<u128, Call>,
    /// List, time and index of each call: the longest silent ones first.
    pub(super) silence: BTreeSet<(u8, u64, u32)>,
    pub(super) streams: Table<StreamKey, Stream>,
    pub(super) places: HashMap<MediaAddress, Endpoint, RandomState>,
    /// Messages that wait for their calls, in the order in which they came.
    pub(super) early: VecDeque<Early>,
    /// Memory of these messages in bytes.
    pub(super) early_bytes: usize,
    tcp: Streams,
    fragments: Fragments,
    pub(super) counts: Counts,
    pub(super) finished: Outbox<Finished>,
    pub(super) at_hand: AtHand,
    /// Number of calls so far.
    pub(super) serial: u64,
    /// Number of active calls.
    pub(super) active: u64,
    /// Memory of calls and streams in bytes.
    pub(super) used: usize,
    pub(super) budget: usize,
    pub(super) now_ns: u64,
    /// Time of the last check for calls and streams that are over.
    pub(super) looked_ns: u64,
    /// Number of packets that the capture has lost so far.
    pub(super) capture_lost: u64,
    /// Measurement of streams in the kernel, if enabled.
    pub(super) kernel: Option<Kernel>,
    /// The workers that measure streams, if there are several.
    pub(super) lent: Option<Lent>,
}

impl Monitor {
    /// A monitor without calls.
    pub fn new(settings: Settings) -> Monitor {
        let memory = settings.memory.max(LEAST_MEMORY);
        Monitor {
            settings,
            random: RandomState::new(),
            calls: Table::new(),
            silence: BTreeSet::new(),
            streams: Table::new(),
            places: HashMap::with_hasher(RandomState::new()),
            early: VecDeque::new(),
            early_bytes: 0,
            tcp: Streams::new(memory / 8),
            // Always large enough for the longest datagram.
            fragments: Fragments::new((memory / 8).max(256 << 10)),
            counts: Counts::default(),
            finished: Outbox::default(),
            at_hand: AtHand::default(),
            serial: 0,
            active: 0,
            used: 0,
            // The rest is for messages that wait for their calls.
            budget: memory / 4 * 3,
            now_ns: 0,
            looked_ns: 0,
            capture_lost: 0,
            kernel: None,
            lent: None,
        }
    }

    /// Results that were not taken yet: take them after each packet once a batch is full.
    pub fn finished(&mut self) -> &mut Outbox<Finished> {
        &mut self.finished
    }

    pub(super) fn hand_out(&mut self, one: Finished) {
        let memory = one.memory();
        self.finished.push(one, memory);
    }

    /// All counters. Active calls and streams are not included.
    pub fn counts(&self) -> Counts {
        let (gaps, evicted, given_up) = (self.tcp.gaps, self.tcp.evicted, self.fragments.given_up);
        let [rtp, other] = self.counted_by_workers();
        Counts {
            tcp_gaps: gaps,
            tcp_evicted: evicted,
            datagrams_given_up: given_up,
            rtp_packets: self.counts.rtp_packets + rtp,
            other_packets: self.counts.other_packets + other,
            ..self.counts
        }
    }

    /// Memory of active calls and streams in bytes: after each packet, at most three quarters of the limit.
    pub fn memory(&self) -> usize {
        self.used
    }

    /// Memory of messages, segments and fragments that wait for others, in bytes.
    pub fn held(&self) -> usize {
        self.early_bytes + self.tcp.held() + self.fragments.held()
    }

    /// Number of selected calls that are not over.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// Number of selected calls that are over, and have not been handed out because of repetitions that may come.
    pub fn lingering(&self) -> u64 {
        self.calls.iter().filter(|(_, call)| call.chosen && !call.active).count() as u64
    }

    /// Current time in nanoseconds since 1970: of the latest packet or tick.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Current state of selected calls that have not been handed out, up to this number: those that are not over, then
    /// those that are, the newest first.
    pub fn at_hand(&self, most: usize) -> Vec<CallRecord> {
        let mut calls: Vec<&Call> =
            self.calls.iter().map(|(_, call)| call).filter(|call| call.chosen).collect();
        calls.sort_unstable_by_key(|call| std::cmp::Reverse((call.active, call.serial)));
        let record = |call: &Call| CallRecord {
            call: call.clone(),
            streams: call.streams.iter().filter_map(|at| self.current(*at)).collect(),
            ending: Ending::Forced,
        };
        calls.into_iter().take(most).map(record).collect()
    }

    /// Sets the number of packets that the capture has lost so far.
    pub fn lost_by_capture(&mut self, packets: u64) {
        self.capture_lost = packets;
    }

    /// Adds a record with this time in UTC.
    pub fn record(&mut self, record: &Record<'_>, ts_ns: u64) {
        if record.is_measured() {
            self.counts.rtp_beside += u64::from(record.segments());
            return;
        }
        // A digest has no packet bytes.
        let link = if record.digest().is_some() { LinkType::Other } else { record.link_type() };
        self.at_hand.length = record.wire_len();
        self.arrives(record);
        self.add_packet(link, record.data(), ts_ns, record.segments().into());
    }

    /// Adds a packet of this link type, in the same way.
    pub fn packet(&mut self, link: LinkType, data: &[u8], ts_ns: u64) {
        self.at_hand.length = data.len() as u32;
        self.add_packet(link, data, ts_ns, 1);
    }

    /// Adds a packet, or an aggregate of this many packets on the wire.
    pub(super) fn add_packet(&mut self, link: LinkType, data: &[u8], ts_ns: u64, packets: u64) {
        if self.settings.keep > Keep::Nothing {
            self.at_hand.is(link, data);
        }
        self.arrive(ts_ns);
        let parsed = native::parse(link, data, self.settings.inner);
        let inside = self.settings.inner && parsed.flags & flags::TUNNEL != 0;
        let class = self.network(if inside { &parsed.inner } else { &parsed.outer }, data, ts_ns);
        self.count(class, packets);
    }

    /// Counts packets of a class, and evicts what exceeds the memory.
    pub(super) fn count(&mut self, class: Class, packets: u64) {
        match class {
            Class::Signalling => self.counts.signalling_packets += packets,
            Class::Rtp => self.counts.rtp_packets += packets,
            Class::Rtcp => self.counts.rtcp_packets += packets,
            Class::Fragment => self.counts.fragment_packets += packets,
            Class::Other => self.counts.other_packets += packets,
            Class::Later => {}
        }
        while self.used + self.early_bytes > self.budget && self.evict() {}
    }

    fn network(&mut self, ip: &Ip, data: &[u8], ts_ns: u64) -> Class {
        self.at_hand.whole = ip.flags & ip_flags::FRAGMENT == 0;
        match read(ip, data) {
            Content::Other => Class::Other,
            Content::Fragment { bytes, end } => self.fragment(ip, bytes, end, ts_ns),
            Content::Datagram { from, to, payload, len } => self.datagram(from, to, payload, len, ts_ns),
            Content::Segment { from, to, seq, flags, payload } => {
                self.segment(from, to, seq, flags, payload, ts_ns)
            }
        }
    }

    fn fragment(&mut self, ip: &Ip, there: &[u8], end: usize, ts_ns: u64) -> Class {
        match self.fragments.packet(ip, there, end, ts_ns) {
            None | Some(Joined::Waits | Joined::Refused) => Class::Fragment,
            Some(Joined::Whole(datagram)) => {
                let [a, b, c, d, high, low, _, _, ..] = datagram[..] else { return Class::Other };
                let from = (address(&ip.src, ip.l3), u16::from_be_bytes([a, b]));
                let to = (address(&ip.dst, ip.l3), u16::from_be_bytes([c, d]));
                if ip.proto == 17 {
                    let (payload, len) = stated(&datagram[8..], usize::from(u16::from_be_bytes([high, low])));
                    return self.datagram(from, to, payload, len, ts_ns);
                }
                let Some(header) = datagram.first_chunk::<20>() else { return Class::Other };
                let size = usize::from(header[12] >> 4) * 4;
                let Some(payload) = datagram.get(size.max(20)..) else { return Class::Other };
                let [_, _, _, _, s0, s1, s2, s3, ..] = *header;
                let flags = header[13];
                self.segment(from, to, u32::from_be_bytes([s0, s1, s2, s3]), flags, payload, ts_ns)
            }
        }
    }

    /// A segment of TCP.
    fn segment(
        &mut self,
        from: MediaAddress,
        to: MediaAddress,
        seq: u32,
        flags: u8,
        data: &[u8],
        ts_ns: u64,
    ) -> Class {
        let segment = Segment { seq, syn: flags & 0x02 != 0, end: flags & 0x05 != 0, data };
        let sip = is_sip_port(from.1) || is_sip_port(to.1);
        let Some(framed) = self.tcp.segment(Path { from, to }, segment, sip, ts_ns) else {
            return Class::Other;
        };
        let way = Way { from, to, tcp: true, ts_ns };
        for framed in framed {
            match framed {
                Framed::Message(bytes) => self.message(&bytes, bytes.len(), &way),
                Framed::Malformed(fault) => self.counts.fault(fault),
            }
        }
        Class::Signalling
    }

    /// A datagram of UDP with this payload, of `len` bytes on the wire.
    fn datagram(
        &mut self,
        from: MediaAddress,
        to: MediaAddress,
        payload: &[u8],
        len: usize,
        ts_ns: u64,
    ) -> Class {
        let way = Way { from, to, tcp: false, ts_ns };
        match payload.first() {
            None => Class::Other,
            Some(_) if is_media(payload) => {
                let class = self.media(payload, len, &way);
                if let Some(call) = self.at_hand.heard.take()
                    && self.settings.keep == Keep::All
                {
                    let captured = self.at_hand.captured(&way, payload);
                    self.keep(call, &way, captured);
                }
                class
            }
            Some(_) if sip::begins(payload) => {
                self.message(payload, len, &way);
                Class::Signalling
            }
            Some(_) if is_sip_port(from.1) || is_sip_port(to.1) => {
                if is_keep_alive(payload) {
                    return Class::Other;
                }
                match media::behind_junk(payload) {
                    Some(at) => self.message(&payload[at..], len - at, &way),
                    None if payload.len() < len => self.counts.cut_messages += 1,
                    None => self.counts.fault(sip::Fault::StartLine),
                }
                Class::Signalling
            }
            Some(_) => Class::Other,
        }
    }
    /// Ends everything that waits for further packets, at the end of the capture.
    pub(super) fn end_of_buffers(&mut self) {
        self.fragments.finish();
        self.tcp.finish();
    }
}
