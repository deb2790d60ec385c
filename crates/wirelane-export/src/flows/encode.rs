//! Common part of the formats: messages of records in sets, limited to the transport's size.

use std::time::{Duration, Instant};

use wirelane_analysis::flows::{FlowRecord, reverse_key};
use wirelane_analysis::http::Transaction;

use super::{Naming, OutputCounts};
use crate::OutputLimit;

/// Export settings common to all formats.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// Observation domain (IPFIX), source (NetFlow 9) or engine (NetFlow 5, the low 16 bits): distinguishes probes on
    /// one host.
    pub domain: u32,
    /// Sampling interval: one of this many packets was analysed.
    pub sampling: u32,
    /// Whether both directions are one flow.
    pub biflow: bool,
    /// Whether HTTP transactions are exported as IPFIX, instead of flows.
    pub transactions: bool,
    /// Whether addresses are those inside tunnels.
    pub inner: bool,
    /// Time after which templates are sent again over UDP; after 20 messages in any case.
    pub refresh: Duration,
    /// Maximum messages per second to each UDP collector, since UDP has no flow control; 0: no limit.
    pub rate: u32,
    /// Maximum bytes of messages that wait for a collector.
    pub backlog: usize,
    /// Write limit of each output.
    pub limit: OutputLimit,
    /// Whether the input is live. For a file, the current time is the latest time in it.
    pub live: bool,
    /// Whether to wait for space in the backlog: when reading a file, waiting loses no packets.
    pub patient: bool,
    /// How long to wait for collectors at the end.
    pub wait: Duration,
}

impl Default for ExportSettings {
    fn default() -> ExportSettings {
        ExportSettings {
            domain: std::process::id(),
            sampling: 1,
            biflow: false,
            transactions: false,
            inner: false,
            refresh: Duration::from_secs(60),
            rate: 2000,
            backlog: 16 << 20,
            limit: OutputLimit::None,
            live: true,
            patient: false,
            wait: Duration::from_secs(5),
        }
    }
}

/// Number of messages after which templates are sent again.
const REFRESH_MESSAGES: u32 = 20;

/// A message that is ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct Message {
    /// All bytes. For IPFIX over TCP the sequence number is overwritten when the message is sent.
    pub bytes: Vec<u8>,
    /// Records that the sequence number counts: data records, including options.
    pub records: u32,
    /// Number of flows; `packets` and `octets` are their sums.
    pub flows: u64,
    /// See [`Message::flows`].
    pub packets: u64,
    /// See [`Message::flows`].
    pub octets: u64,
    /// Over UDP, the next message waits until the collector has read this one. A collector with several threads
    /// (goflow2 has two) could read data before the templates, and drop the data.
    pub settles: bool,
}

/// Operations that each format implements.
pub(super) trait Encoder: Send {
    /// Adds a flow to the message; full messages are appended to `out`. False: the format cannot represent the flow.
    fn flow(&mut self, flow: &FlowRecord, context: &Context<'_>, out: &mut Vec<Message>) -> bool;
    /// Adds an HTTP transaction, if transactions are exported.
    fn transaction(&mut self, _: &Transaction, _: &Context<'_>, _: &mut Vec<Message>) -> bool {
        false
    }
    /// Ends the current message, if there is one.
    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>);
    /// The first message of a new connection; `None` if the format has no templates.
    fn preamble(&mut self, context: &Context<'_>) -> Option<Message>;
}

/// Inputs of encoders besides the flow.
pub(super) struct Context<'a> {
    pub settings: &'a ExportSettings,
    pub naming: &'a Naming,
    pub counts: &'a OutputCounts,
    /// Current time, in UTC nanoseconds.
    pub now_ns: u64,
}

/// Delays after the first templates at which they are repeated, before [`ExportSettings::refresh`] applies: the first
/// datagrams may be lost, for example if the collector starts at the same time.
const EARLY: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// Schedule of the templates.
#[derive(Debug)]
pub(crate) struct Refresh {
    /// Templates are sent only once: over TCP, and in files.
    once: bool,
    messages: u32,
    /// First and last time that they were sent.
    sent: Option<(Instant, Instant)>,
    alone: bool,
}

impl Refresh {
    pub fn new(once: bool) -> Refresh {
        Refresh { once, messages: 0, sent: None, alone: false }
    }

    /// Whether the message that begins now must contain the templates; counts the message.
    pub fn is_due(&mut self, every: Duration) -> bool {
        self.is_due_at(Instant::now(), every)
    }

    fn is_due_at(&mut self, now: Instant, every: Duration) -> bool {
        self.messages += 1;
        let due = match self.sent {
            None => true,
            Some(_) if self.once => false,
            Some((first, last)) => {
                let early = |after: &Duration| last - first < *after && now - first >= *after;
                self.messages > REFRESH_MESSAGES || now - last >= every || EARLY.iter().any(early)
            }
        };
        if due {
            self.alone = self.sent.is_none() && !self.once;
            self.messages = 1;
            self.sent = Some((self.sent.map_or(now, |(first, _)| first), now));
        }
        due
    }

    /// Whether due templates get separate messages, which [settle](Message::settles): the first templates over UDP.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Records that the templates were sent in another way: at the start of a connection.
    pub fn done(&mut self) {
        let now = Instant::now();
        (self.messages, self.sent) = (1, Some((now, now)));
    }
}

/// A message under construction: a header, which its format fills in at the end, and sets of records (NetFlow 9 and
/// IPFIX).
#[derive(Debug)]
pub(crate) struct Sets {
    header: usize,
    most: usize,
    message: Message,
    set: Option<(u16, usize)>,
    /// Number of all records, including templates: the count in the NetFlow 9 header.
    pub all: u16,
}

impl Sets {
    pub fn new(header: usize, most: usize) -> Sets {
        Sets { header, most, message: Message::default(), set: None, all: 0 }
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.message.bytes.is_empty()
    }

    /// Whether a record of this many bytes fits into the message, in this set.
    pub fn fits(&self, set: u16, record: usize) -> bool {
        let same = self.set.is_some_and(|(open, _)| open == set);
        let (header, pad) = (if same { 0 } else { 4 + 3 }, 3);
        self.is_empty() || self.message.bytes.len() + header + record + pad <= self.most
    }

    /// Appends a record to this set. Data records count in the sequence number.
    pub fn put(&mut self, set: u16, record: &[u8]) {
        if self.is_empty() {
            self.message.bytes.resize(self.header, 0);
        }
        if self.set.is_none_or(|(open, _)| open != set) {
            self.close();
            self.set = Some((set, self.message.bytes.len()));
            self.message.bytes.extend(set.to_be_bytes());
            self.message.bytes.extend([0, 0]);
        }
        self.message.bytes.extend_from_slice(record);
        self.message.records += u32::from(set >= 256);
        self.all += 1;
    }

    /// Starts a new set for the next record: some collectors (nfdump 1.7.1) read only one options template per set.
    pub fn separate(&mut self) {
        self.close();
    }

    /// Counts a flow in the message.
    pub fn count(&mut self, flow: &FlowRecord) {
        self.message.flows += 1;
        self.message.packets += flow.packets();
        self.message.octets += flow.bytes();
    }

    /// Counts a transaction in the message.
    pub fn count_one(&mut self) {
        self.message.flows += 1;
    }

    /// Ends the open set: pads it to 4 bytes and fills in its length.
    fn close(&mut self) {
        let Some((_, at)) = self.set.take() else { return };
        let bytes = &mut self.message.bytes;
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = (bytes.len() - at) as u16;
        bytes[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Takes the message, whose header is still to be filled in, and begins another.
    pub fn take(&mut self) -> Message {
        self.close();
        self.all = 0;
        std::mem::take(&mut self.message)
    }

    /// Takes the message with the IPFIX header (RFC 7011, 3.1) and this export time in seconds; advances the sequence
    /// number by its records.
    pub fn ipfix(&mut self, seconds: u32, sequence: &mut u32, domain: u32) -> Message {
        let mut message = self.take();
        let length = message.bytes.len() as u32;
        for (place, word) in
            message.bytes.chunks_exact_mut(4).zip([(10 << 16) | length, seconds, *sequence, domain])
        {
            place.copy_from_slice(&word.to_be_bytes());
        }
        *sequence = sequence.wrapping_add(message.records);
        message
    }
}

/// Splits a flow in both directions into two, for formats with one-way flows.
pub(super) fn one_way(flow: &FlowRecord) -> impl Iterator<Item = FlowRecord> {
    let forward = FlowRecord { reverse: None, ..*flow };
    let back = flow.reverse.zip(reverse_key(&flow.key));
    let back = back.map(|(of, key)| FlowRecord { key, flow: of, reverse: None, reason: flow.reason });
    std::iter::once(forward).chain(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Templates are due at the start, after 1, 5 and 20 seconds, and then as configured; alone only at the start.
    #[test]
    fn templates_are_repeated_soon_after_the_start() {
        let (begun, every) = (Instant::now(), Duration::from_secs(60));
        let due = |once| {
            let mut refresh = Refresh::new(once);
            // Fewer messages than REFRESH_MESSAGES.
            let seconds = [0u64, 0, 1, 2, 4, 5, 6, 19, 20, 21, 79, 80, 81];
            let found = seconds.map(|at| {
                let due = refresh.is_due_at(begun + Duration::from_secs(at), every);
                due.then_some((at, refresh.is_alone()))
            });
            found.into_iter().flatten().collect::<Vec<_>>()
        };
        assert_eq!(due(false), [(0, true), (1, false), (5, false), (20, false), (80, false)]);
        assert_eq!(due(true), [(0, false)]);
    }
}
