//! An RTP stream: statistics, payload types, RTCP reports.

use std::net::IpAddr;

use wirelane_bpf::rtp::{NO_TYPE, RtpPacket, RtpPayload, RtpStream, kind};

use super::lent::Borrower;
use super::offloaded::Offloaded;
use super::quality::{self, Measured, Quality};
use super::rtcp::Received;
use super::sdp::Payload;

/// An address and a port.
pub type MediaAddress = (IpAddr, u16);

/// Maximum number of intervals of a stream: above it, pairs of intervals are merged.
pub const MOST_INTERVALS: usize = 32;
/// Number of sender reports that are kept, to compute round trips from the reports that refer to them.
const REMEMBERED: usize = 4;

/// One side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The calling party.
    Caller,
    /// The called party.
    Callee,
}

impl Party {
    /// The opposite party.
    pub fn other(self) -> Party {
        match self {
            Party::Caller => Party::Callee,
            Party::Callee => Party::Caller,
        }
    }

    /// Name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Party::Caller => "caller",
            Party::Callee => "callee",
        }
    }
}

/// An interval of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// Expected packets.
    pub expected: u64,
    /// Received packets, without duplicates and strays.
    pub received: u64,
    /// Maximum of the jitter at the end of an interval.
    pub jitter_ns: u64,
}

impl Interval {
    /// Packets that did not arrive. A late packet belongs to the interval in which it arrived.
    pub fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }
}

/// RTCP reports about a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Number of sender reports.
    pub sender_reports: u64,
    /// Packets sent according to the last sender report.
    pub packets_sent: u32,
    /// Number of receiver reports.
    pub receiver_reports: u64,
    /// Last receiver report.
    pub last: Option<Received>,
    /// Maximum of the fraction lost between two reports, in 1/256.
    pub max_fraction: u8,
    /// Maximum jitter, in timestamp units.
    pub max_jitter: u32,
    /// Round trips between the capture point and the receiver: number, sum and maximum in nanoseconds.
    pub round_trips: u64,
    /// See [`Reported::round_trips`].
    pub round_trip_sum_ns: u64,
    /// See [`Reported::round_trips`].
    pub max_round_trip_ns: u64,
    sent: [(u32, u64); REMEMBERED],
}

impl Reported {
    /// Mean round trip between the capture point and the receiver, in milliseconds.
    pub fn round_trip_ms(&self) -> Option<f64> {
        (self.round_trips > 0).then(|| self.round_trip_sum_ns as f64 / self.round_trips as f64 / 1e6)
    }

    /// Adds a sender report.
    pub fn sender(&mut self, ntp_middle: u32, packets: u32, now_ns: u64) {
        self.sent[(self.sender_reports % REMEMBERED as u64) as usize] = (ntp_middle, now_ns);
        self.sender_reports += 1;
        self.packets_sent = packets;
    }

    /// Adds a receiver report.
    pub fn receiver(&mut self, report: &Received, now_ns: u64) {
        self.receiver_reports += 1;
        self.last = Some(*report);
        self.max_fraction = self.max_fraction.max(report.fraction);
        self.max_jitter = self.max_jitter.max(report.jitter);
        let known = self.sent.iter().find(|(middle, at)| *at != 0 && *middle == report.last_sr);
        let Some((_, sent_ns)) = known.filter(|_| report.last_sr != 0) else { return };
        let waited = u64::from(report.delay) * 1_000_000_000 / 65_536;
        // A delay that exceeds the time since the sender report is wrong.
        if let Some(trip) = now_ns.saturating_sub(*sent_ns).checked_sub(waited) {
            self.round_trips += 1;
            self.round_trip_sum_ns += trip;
            self.max_round_trip_ns = self.max_round_trip_ns.max(trip);
        }
    }
}

/// A stream: one SSRC between two ends.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Source of the packets.
    pub from: MediaAddress,
    /// Destination of the packets.
    pub to: MediaAddress,
    /// Its statistics; after its end, all of them.
    pub rtp: RtpStream,
    /// Receiving party of the call; `None`: the stream belongs to no call.
    pub toward: Option<Party>,
    /// Whether one of its ends is missing in all SDP and was learned from a stream, as behind NAT. It does not depend on
    /// the order in which packets of the two directions, and messages, arrive.
    pub learned: bool,
    /// Index of the media in the description.
    pub media: usize,
    /// RTCP reports.
    pub reported: Reported,
    /// Packets of any kind that the capture lost during the stream.
    pub capture_lost: u64,
    /// Intervals.
    pub intervals: Vec<Interval>,
    /// Names of payload types.
    codecs: Vec<(u8, Box<str>)>,
    interval_ns: u64,
    interval_start_ns: u64,
    expected_before: u64,
    received_before: u64,
    pub(super) call: Option<u32>,
    pub(super) touched_ns: u64,
    pub(super) confirmed: bool,
    /// State of the measurement in the kernel.
    pub(super) offloaded: Option<Box<Offloaded>>,
    /// Whether measurement in the kernel was started before, or found no room.
    pub(super) stays_here: bool,
    /// The worker that has it, if one has.
    pub(super) borrower: Option<Borrower>,
    /// Number of times that it was lent.
    pub(super) lendings: u8,
}

impl Stream {
    /// A stream without packets.
    pub fn new(from: MediaAddress, to: MediaAddress, interval_ns: u64, now_ns: u64) -> Stream {
        Stream {
            from,
            to,
            rtp: RtpStream::default(),
            toward: None,
            learned: false,
            media: 0,
            reported: Reported::default(),
            capture_lost: 0,
            intervals: Vec::new(),
            codecs: Vec::new(),
            interval_ns,
            interval_start_ns: now_ns,
            expected_before: 0,
            received_before: 0,
            call: None,
            touched_ns: now_ns,
            confirmed: false,
            offloaded: None,
            stays_here: false,
            borrower: None,
            lendings: 0,
        }
    }

    /// Maximum memory of a stream in bytes.
    pub fn cost() -> usize {
        size_of::<Stream>() + size_of::<Offloaded>() + MOST_INTERVALS * size_of::<Interval>() + 16 * 40
    }

    /// A copy for a worker that adds its packets.
    pub(super) fn for_worker(&self) -> Box<Stream> {
        Box::new(Stream { offloaded: None, ..self.clone() })
    }

    /// Adopts what another copy has measured.
    pub(super) fn adopt(&mut self, other: &Stream) {
        self.rtp = other.rtp;
        self.intervals.clone_from(&other.intervals);
        self.codecs.clone_from(&other.codecs);
        self.interval_ns = other.interval_ns;
        self.interval_start_ns = other.interval_start_ns;
        self.expected_before = other.expected_before;
        self.received_before = other.received_before;
    }

    /// Adopts the payload types of another copy.
    pub(super) fn adopt_types(&mut self, other: &Stream) {
        self.rtp.payload = other.rtp.payload;
        self.codecs.clone_from(&other.codecs);
    }

    /// Adopts the payload types of a description. Old ones are evicted if there are too many.
    pub fn know(&mut self, payloads: &[Payload]) {
        for payload in payloads {
            let (name, clock) = match (&*payload.name, payload.clock) {
                ("", _) | (_, 0) => match fixed(payload.pt) {
                    Some((name, clock)) => (name, clock),
                    None => (&*payload.name, payload.clock),
                },
                (name, clock) => (name, clock),
            };
            if !name.is_empty() {
                self.learn(payload.pt, name, clock);
            }
        }
    }

    fn learn(&mut self, pt: u8, name: &str, clock: u32) {
        let kind = match name {
            name if name.eq_ignore_ascii_case("telephone-event") => kind::DIGIT,
            name if name.eq_ignore_ascii_case("CN") => kind::NOISE,
            _ => kind::MEDIA,
        };
        let fresh = RtpPayload { clock, pt, kind, ..RtpPayload::default() };
        let table = &mut self.rtp.payload;
        let place = table
            .iter()
            .position(|known| known.kind != 0 && known.pt == pt)
            .or_else(|| table.iter().position(|known| known.kind == 0));
        let Some(at) = place else { return };
        table[at] = fresh;
        self.codecs.retain(|(known, _)| *known != pt);
        self.codecs.push((pt, name.into()));
    }

    /// Adopts the meaning of a payload type with a fixed number (RFC 3551) when a packet of it arrives.
    pub fn meet(&mut self, pt: u8) {
        let unknown = self.rtp.payload_of(pt).is_none();
        if let Some((name, clock)) = fixed(pt).filter(|_| unknown) {
            self.learn(pt, name, clock);
        }
    }

    /// Adds a packet.
    pub fn take(&mut self, packet: &RtpPacket, ts_ns: u64) {
        if self.rtp.packets == 0 || self.rtp.pt != packet.pt {
            self.meet(packet.pt);
        }
        self.rtp.update(packet, ts_ns);
        self.passed(ts_ns);
    }

    /// Time at which the current interval ends.
    pub(super) fn closes_at_ns(&self) -> u64 {
        self.interval_start_ns.saturating_add(self.interval_ns)
    }

    /// Ends the current interval after a packet, if it is over.
    pub fn passed(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.interval_start_ns) >= self.interval_ns {
            self.close_interval(now_ns);
        }
    }

    fn close_interval(&mut self, now_ns: u64) {
        let (expected, received) = (self.rtp.expected(), self.rtp.received());
        let interval = Interval {
            start_ns: self.interval_start_ns,
            end_ns: now_ns,
            // A late first packet increases the number, and nothing decreases it.
            expected: expected.saturating_sub(self.expected_before),
            received: received.saturating_sub(self.received_before),
            jitter_ns: self.rtp.jitter_ns(),
        };
        (self.expected_before, self.received_before, self.interval_start_ns) = (expected, received, now_ns);
        if interval.expected == 0 && interval.received == 0 {
            return;
        }
        self.intervals.push(interval);
        if self.intervals.len() == MOST_INTERVALS {
            let merged = self.intervals.chunks(2).map(|pair| match pair {
                [one, other] => Interval {
                    start_ns: one.start_ns,
                    end_ns: other.end_ns,
                    expected: one.expected + other.expected,
                    received: one.received + other.received,
                    jitter_ns: one.jitter_ns.max(other.jitter_ns),
                },
                _ => pair[0],
            });
            self.intervals = merged.collect();
            self.interval_ns = self.interval_ns.saturating_mul(2);
        }
    }

    /// Completes the statistics.
    pub fn finish(&mut self) {
        self.rtp.finish();
        if self.rtp.packets > 0 {
            self.close_interval(self.rtp.last_ns);
        }
    }

    /// Name of the codec of its media, or of another payload type if there is no media; empty if unknown.
    pub fn codec(&self) -> &str {
        self.codec_of(if self.rtp.media_pt == NO_TYPE { self.rtp.pt } else { self.rtp.media_pt })
    }

    /// Name of a payload type; empty if unknown.
    pub fn codec_of(&self, pt: u8) -> &str {
        self.codecs.iter().find(|(known, _)| *known == pt).map_or("", |(_, name)| name)
    }

    /// Payload types that occurred.
    pub fn payload_types(&self) -> impl Iterator<Item = u8> + '_ {
        (0..128u8).filter(|pt| self.rtp.payload_types[usize::from(pt >> 6)] >> (pt & 63) & 1 != 0)
    }

    /// Quality of the whole stream; `None` for codecs that the model does not include.
    pub fn quality(&self) -> Option<Quality> {
        let rtp = &self.rtp;
        let mean = rtp.jitter_sum_ns.checked_div(rtp.jitters).unwrap_or(0);
        let expected = rtp.expected();
        self.evaluate(expected, expected.saturating_sub(rtp.received()), u64::from(rtp.bursts), mean)
    }

    /// Quality of an interval, with the burst length of the whole stream.
    pub fn quality_of(&self, interval: &Interval) -> Option<Quality> {
        let lost = interval.lost();
        let bursts = (lost * u64::from(self.rtp.bursts)).checked_div(self.rtp.lost).unwrap_or(lost);
        self.evaluate(interval.expected, lost, bursts.max(u64::from(lost > 0)), interval.jitter_ns)
    }

    fn evaluate(&self, expected: u64, lost: u64, bursts: u64, jitter_ns: u64) -> Option<Quality> {
        let codec = quality::impairment(self.codec())?;
        let jitter_ms = jitter_ns as f64 / 1e6;
        let round_trip_ms = self.reported.round_trip_ms();
        quality::evaluate(&codec, &Measured { expected, lost, bursts, jitter_ms, round_trip_ms })
    }
}

/// Payload types with fixed numbers (RFC 3551, 6): name and clock rate.
fn fixed(pt: u8) -> Option<(&'static str, u32)> {
    Some(match pt {
        0 => ("PCMU", 8000),
        2 => ("G721", 8000),
        3 => ("GSM", 8000),
        4 => ("G723", 8000),
        5 => ("DVI4", 8000),
        6 => ("DVI4", 16_000),
        7 => ("LPC", 8000),
        8 => ("PCMA", 8000),
        9 => ("G722", 8000),
        10 | 11 => ("L16", 44_100),
        12 => ("QCELP", 8000),
        13 | 19 => ("CN", 8000),
        14 => ("MPA", 90_000),
        15 => ("G728", 8000),
        16 => ("DVI4", 11_025),
        17 => ("DVI4", 22_050),
        18 => ("G729", 8000),
        25 => ("CelB", 90_000),
        26 => ("JPEG", 90_000),
        28 => ("nv", 90_000),
        31 => ("H261", 90_000),
        32 => ("MPV", 90_000),
        33 => ("MP2T", 90_000),
        34 => ("H263", 90_000),
        _ => return None,
    })
}
