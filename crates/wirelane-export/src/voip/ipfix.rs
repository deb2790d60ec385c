//! RTP streams as IPFIX records (RFC 7011), with IANA's elements only: ends, times, packets, and the interarrival
//! jitter of RFC 3550.
//!
//! The registry has no element for a Call-ID, the state of a call, the lost packets of a stream or a MOS, and we do not
//! define any: for a call, its streams are exported with these elements only.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use wirelane_analysis::voip::{Ending, Stream};

use crate::flows::encode::{Message, Refresh, Sets};
use crate::flows::fields::{Field, field, ie, integer, ntp, specifiers};

const HEADER: usize = 16;
const TEMPLATES: u16 = 2;
const IPV4: u16 = 400;
const IPV6: u16 = 401;
/// Bytes of a UDP message: fits every network's MTU.
const MESSAGE: usize = 1400;
/// Time after which templates are sent again over UDP.
const AGAIN: Duration = Duration::from_secs(60);
/// A message is sent after its first record has waited for this time, full or not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Fields of streams of both address families. Milliseconds are exported besides nanoseconds, which most collectors do
/// not read.
const COMMON: [Field; 11] = [
    field(ie::SRC_PORT, 2),
    field(ie::DST_PORT, 2),
    field(ie::PROTOCOL, 1),
    field(ie::PACKETS, 8),
    field(ie::START_MS, 8),
    field(ie::END_MS, 8),
    field(ie::START_NS, 8),
    field(ie::END_NS, 8),
    field(ie::JITTER_MS, 4),
    field(ie::JITTER_NS, 4),
    field(ie::END_REASON, 1),
];

fn fields_of(template: u16) -> Vec<Field> {
    let addresses = match template {
        IPV4 => [field(ie::SRC_IPV4, 4), field(ie::DST_IPV4, 4)],
        _ => [field(ie::SRC_IPV6, 16), field(ie::DST_IPV6, 16)],
    };
    [&addresses[..], &COMMON].concat()
}

/// Adds the templates to a message.
fn describe(sets: &mut Sets) {
    for id in [IPV4, IPV6] {
        let fields = fields_of(id);
        let mut template = [id, fields.len() as u16].map(u16::to_be_bytes).concat();
        specifiers(&mut template, &fields);
        sets.put(TEMPLATES, &template);
    }
}

/// Encodes messages of streams.
pub(super) struct StreamRecords {
    sets: Sets,
    refresh: Refresh,
    domain: u32,
    /// Number of data records before the current message.
    sequence: u32,
    /// Streams in the current message.
    streams: u64,
    since: Option<Instant>,
    /// Whether the input is live. For a file, the current time is the latest time in it.
    live: bool,
    latest_ns: u64,
}

impl StreamRecords {
    /// For a UDP collector, or for a file, which begins with the [preamble](Self::preamble). `domain`: distinguishes
    /// probes on one host.
    pub(super) fn new(file: bool, domain: u32, live: bool) -> StreamRecords {
        let most = if file { usize::from(u16::MAX) } else { MESSAGE };
        let (sets, mut refresh) = (Sets::new(HEADER, most), Refresh::new(file));
        if file {
            // The templates of a file are in the preamble.
            refresh.done();
        }
        StreamRecords { sets, refresh, domain, sequence: 0, streams: 0, since: None, live, latest_ns: 0 }
    }

    /// Adds a stream to the message; full messages are appended to `out`.
    pub(super) fn stream(&mut self, stream: &Stream, ending: Ending, out: &mut Vec<Message>) {
        let (rtp, mut record) = (&stream.rtp, Vec::with_capacity(96));
        self.latest_ns = self.latest_ns.max(rtp.last_ns);
        let set = match (stream.from.0, stream.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                record.extend(from.octets().into_iter().chain(to.octets()));
                IPV4
            }
            (from, to) => {
                for address in [from, to] {
                    let address = match address {
                        IpAddr::V4(address) => address.to_ipv6_mapped(),
                        IpAddr::V6(address) => address,
                    };
                    record.extend(address.octets());
                }
                IPV6
            }
        };
        // RFC 5102, 5.11.3: end of flow detected, forced end, lack of resources.
        let reason = match ending {
            Ending::Ended => 3,
            Ending::Forced => 4,
            Ending::Resources => 5,
        };
        let jitter_ns = rtp.jitter_ns();
        let values = [
            u64::from(stream.from.1),
            u64::from(stream.to.1),
            17,
            rtp.packets,
            rtp.first_ns / 1_000_000,
            rtp.last_ns / 1_000_000,
            ntp(rtp.first_ns),
            ntp(rtp.last_ns),
            (jitter_ns + 500_000) / 1_000_000,
            jitter_ns,
            reason,
        ];
        for (field, value) in COMMON.iter().zip(values) {
            integer(&mut record, value, field.bytes);
        }
        if !self.sets.fits(set, record.len()) {
            self.end(out);
        }
        if self.sets.is_empty() && self.refresh.is_due(AGAIN) {
            describe(&mut self.sets);
            if self.refresh.is_alone() {
                let before = out.len();
                self.end(out);
                out[before..].iter_mut().for_each(|message| message.settles = true);
            }
        }
        self.sets.put(set, &record);
        self.streams += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// The message with the templates at the beginning of a file.
    pub(super) fn preamble(&mut self) -> Option<Message> {
        let mut sets = Sets::new(HEADER, usize::from(u16::MAX));
        describe(&mut sets);
        Some(sets.ipfix(self.seconds(), &mut 0, self.domain))
    }

    /// Time of a message, in UTC seconds.
    fn seconds(&self) -> u32 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        (if self.live { now } else { self.latest_ns / 1_000_000_000 }) as u32
    }

    /// Whether the current message has waited long enough.
    pub(super) fn is_due(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// Ends the current message, if there is one.
    pub(super) fn end(&mut self, out: &mut Vec<Message>) {
        if self.sets.is_empty() {
            return;
        }
        let seconds = self.seconds();
        let mut message = self.sets.ipfix(seconds, &mut self.sequence, self.domain);
        (message.flows, self.since) = (std::mem::take(&mut self.streams), None);
        out.push(message);
    }
}
