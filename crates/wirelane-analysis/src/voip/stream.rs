//! An RTP stream: statistics, payload types, RTCP reports.

use std::net::IpAddr;

use wirelane_bpf::rtp::{NO_TYPE, RtpPacket, RtpPayload, RtpStream, kind};

use super::offloaded::Offloaded;
use super::quality::{self, Measured, Quality};
use super::rtcp::Received;
use super::sdp::Payload;

/// An address and a port.
pub type MediaAddress = (IpAddr, u16);

/// Intervals that are kept of a stream: where there would be more, two become one.
pub const MOST_INTERVALS: usize = 32;
/// Reports of senders that are remembered, to know the round trip by their answers.
const REMEMBERED: usize = 4;

/// One side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// Who called.
    Caller,
    /// Who was called.
    Callee,
}

impl Party {
    /// The other one.
    pub fn other(self) -> Party {
        match self {
            Party::Caller => Party::Callee,
            Party::Callee => Party::Caller,
        }
    }

    /// Its name in outputs.
    pub fn name(self) -> &'static str {
        match self {
            Party::Caller => "caller",
            Party::Callee => "callee",
        }
    }
}

/// A part of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// Its beginning.
    pub start_ns: u64,
    /// Its end.
    pub end_ns: u64,
    /// Packets that should have come.
    pub expected: u64,
    /// Packets that came, without duplicates and strays.
    pub received: u64,
    /// The greatest jitter at its ends.
    pub jitter_ns: u64,
}

impl Interval {
    /// Packets that did not come. One that came late is of the interval in which it came.
    pub fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }
}

/// What RTCP says of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Reports of its sender.
    pub sender_reports: u64,
    /// Packets that its sender says it has sent, in the last of them.
    pub packets_sent: u32,
    /// Reports of its receivers.
    pub receiver_reports: u64,
    /// The last of them.
    pub last: Option<Received>,
    /// The greatest fraction that was lost between two, in 1/256.
    pub max_fraction: u8,
    /// The greatest jitter, in units of the timestamp.
    pub max_jitter: u32,
    /// Round trips between here and the receiver: how many, their sum and the greatest, in nanoseconds.
    pub round_trips: u64,
    /// See [`Reported::round_trips`].
    pub round_trip_sum_ns: u64,
    /// See [`Reported::round_trips`].
    pub max_round_trip_ns: u64,
    sent: [(u32, u64); REMEMBERED],
}

impl Reported {
    /// Mean round trip between here and the receiver, in milliseconds.
    pub fn round_trip_ms(&self) -> Option<f64> {
        (self.round_trips > 0).then(|| self.round_trip_sum_ns as f64 / self.round_trips as f64 / 1e6)
    }

    /// The sender has reported.
    pub fn sender(&mut self, ntp_middle: u32, packets: u32, now_ns: u64) {
        self.sent[(self.sender_reports % REMEMBERED as u64) as usize] = (ntp_middle, now_ns);
        self.sender_reports += 1;
        self.packets_sent = packets;
    }

    /// A receiver has reported.
    pub fn receiver(&mut self, report: &Received, now_ns: u64) {
        self.receiver_reports += 1;
        self.last = Some(*report);
        self.max_fraction = self.max_fraction.max(report.fraction);
        self.max_jitter = self.max_jitter.max(report.jitter);
        let known = self.sent.iter().find(|(middle, at)| *at != 0 && *middle == report.last_sr);
        let Some((_, sent_ns)) = known.filter(|_| report.last_sr != 0) else { return };
        let waited = u64::from(report.delay) * 1_000_000_000 / 65_536;
        // A receiver that says that it waited for longer than that is wrong.
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
    /// Where it comes from.
    pub from: MediaAddress,
    /// Where it goes.
    pub to: MediaAddress,
    /// Its statistics; after its end, all of them.
    pub rtp: RtpStream,
    /// Who of the call receives it; `None`: it is of no call.
    pub toward: Option<Party>,
    /// Whether one of its ends is none that SDP named: it was learned from the stream, as behind NAT.
    pub learned: bool,
    /// Which media of the description it is.
    pub media: usize,
    /// What RTCP says of it.
    pub reported: Reported,
    /// Packets of any kind that the capture lost while it lasted.
    pub capture_lost: u64,
    /// Its parts.
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
    /// Where it is measured in the kernel.
    pub(super) offloaded: Option<Box<Offloaded>>,
    /// It is measured there, or was, or there was no room.
    pub(super) stays_here: bool,
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
        }
    }

    /// Bytes that a stream takes at most.
    pub fn cost() -> usize {
        size_of::<Stream>() + size_of::<Offloaded>() + MOST_INTERVALS * size_of::<Interval>() + 16 * 40
    }

    /// Knows payload types as a description has them. What was known before goes where there is no room.
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

    /// A packet of this payload type comes: knows what it means, where its number is fixed (RFC 3551).
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

    /// When the interval at hand is over.
    pub(super) fn closes_at_ns(&self) -> u64 {
        self.interval_start_ns.saturating_add(self.interval_ns)
    }

    /// After a packet: ends an interval that is over.
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
            // A late first packet makes it grow, never shrink.
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

    /// It is over.
    pub fn finish(&mut self) {
        self.rtp.finish();
        if self.rtp.packets > 0 {
            self.close_interval(self.rtp.last_ns);
        }
    }

    /// The name of its media's codec, or of what there is where there is no media; empty where nobody says.
    pub fn codec(&self) -> &str {
        self.codec_of(if self.rtp.media_pt == NO_TYPE { self.rtp.pt } else { self.rtp.media_pt })
    }

    /// The name of a payload type; empty where nobody says.
    pub fn codec_of(&self, pt: u8) -> &str {
        self.codecs.iter().find(|(known, _)| *known == pt).map_or("", |(_, name)| name)
    }

    /// Payload types that came.
    pub fn payload_types(&self) -> impl Iterator<Item = u8> + '_ {
        (0..128u8).filter(|pt| self.rtp.payload_types[usize::from(pt >> 6)] >> (pt & 63) & 1 != 0)
    }

    /// How it sounds, all of it; `None` of codecs that the model does not know.
    pub fn quality(&self) -> Option<Quality> {
        let rtp = &self.rtp;
        let mean = rtp.jitter_sum_ns.checked_div(rtp.jitters).unwrap_or(0);
        let expected = rtp.expected();
        self.evaluate(expected, expected.saturating_sub(rtp.received()), u64::from(rtp.bursts), mean)
    }

    /// How a part of it sounds: with the length of bursts of the whole.
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

/// Payload types with fixed numbers (RFC 3551, 6): name and rate of the timestamp.
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
