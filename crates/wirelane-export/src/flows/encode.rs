//! Common part of the formats: messages of records in sets, limited to the transport's size.

use std::time::{Duration, Instant};

use wirelane_analysis::flows::{FlowRecord, reverse_key};
use wirelane_analysis::http::Transaction;

use super::{Naming, OutputCounts};
use crate::OutputLimit;

/// How flows are exported, whatever the format.
#[derive(Clone, Debug)]
pub struct ExportSettings {
    /// Observation domain (IPFIX), source (NetFlow 9) or engine (NetFlow 5, its low 16 bits): tells probes of one host
    /// apart.
    pub domain: u32,
    /// One packet of how many was looked at.
    pub sampling: u32,
    /// Whether both directions are one flow.
    pub biflow: bool,
    /// Whether what is exported are HTTP transactions, as IPFIX, and no flows.
    pub transactions: bool,
    /// Whether addresses are those inside tunnels.
    pub inner: bool,
    /// Seconds after which templates are sent again by UDP; after 20 messages in any case.
    pub refresh: Duration,
    /// Messages a second to each collector by UDP, which has no flow control; 0: as they come.
    pub rate: u32,
    /// Bytes of messages that wait for a collector at most.
    pub backlog: usize,
    /// What each output may write.
    pub limit: OutputLimit,
    /// Whether the time is now. Of a file it is the latest in it.
    pub live: bool,
    /// Whether to wait for room in the backlog: nobody loses packets for it, as in reading a file.
    pub patient: bool,
    /// How long collectors are waited for at the end.
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

/// Templates are sent again after so many messages.
const REFRESH_MESSAGES: u32 = 20;

/// A message, ready to be sent.
#[derive(Debug, Default)]
pub(crate) struct Message {
    /// All of it. Of IPFIX the sequence number is filled in again where it is sent by TCP.
    pub bytes: Vec<u8>,
    /// What the sequence counts: records of data, options included.
    pub records: u32,
    /// Flows, and their packets and bytes.
    pub flows: u64,
    /// See [`Message::flows`].
    pub packets: u64,
    /// See [`Message::flows`].
    pub octets: u64,
    /// By UDP the next message waits until the collector has read this one. A collector with several threads (goflow2
    /// has two) would read data before the templates, and drop the data.
    pub settles: bool,
}

/// What every format does with a flow.
pub(super) trait Encoder: Send {
    /// Puts a flow into a message; messages that are full go to `out`. False: the format has no place for it.
    fn flow(&mut self, flow: &FlowRecord, context: &Context<'_>, out: &mut Vec<Message>) -> bool;
    /// The same with an HTTP transaction, where it is these that are exported.
    fn transaction(&mut self, _: &Transaction, _: &Context<'_>, _: &mut Vec<Message>) -> bool {
        false
    }
    /// Ends the message that is being made, if there is one.
    fn end(&mut self, context: &Context<'_>, out: &mut Vec<Message>);
    /// What a new connection begins with; nothing where the format has no templates.
    fn preamble(&mut self, context: &Context<'_>) -> Option<Message>;
}

/// What encoders are told beside the flow.
pub(super) struct Context<'a> {
    pub settings: &'a ExportSettings,
    pub naming: &'a Naming,
    pub counts: &'a OutputCounts,
    /// UTC.
    pub now_ns: u64,
}

/// Templates are sent again so long after the first time, and from then on as [`ExportSettings::refresh`] says: the first
/// datagrams may be lost, as where the collector starts at the same time.
const EARLY: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// When templates are due.
#[derive(Debug)]
pub(crate) struct Refresh {
    /// Sent once: by TCP, and in files.
    once: bool,
    messages: u32,
    /// When they were sent for the first time, and for the last time.
    sent: Option<(Instant, Instant)>,
    alone: bool,
}

impl Refresh {
    pub fn new(once: bool) -> Refresh {
        Refresh { once, messages: 0, sent: None, alone: false }
    }

    /// Whether the message that begins now has to have them; counts it.
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

    /// Whether those that are due have messages of their own, which [settle](Message::settles): the first ones by UDP.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// They were sent otherwise: at the start of a connection.
    pub fn done(&mut self) {
        let now = Instant::now();
        (self.messages, self.sent) = (1, Some((now, now)));
    }
}

/// A message that is being made: a header, which its format fills in at the end, and sets of records (NetFlow 9 and IPFIX).
#[derive(Debug)]
pub(crate) struct Sets {
    header: usize,
    most: usize,
    message: Message,
    set: Option<(u16, usize)>,
    /// All records in it, templates included: what NetFlow 9 counts in its header.
    pub all: u16,
}

impl Sets {
    pub fn new(header: usize, most: usize) -> Sets {
        Sets { header, most, message: Message::default(), set: None, all: 0 }
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.message.bytes.is_empty()
    }

    /// Whether a record of this many bytes fits into it, in this set.
    pub fn fits(&self, set: u16, record: usize) -> bool {
        let same = self.set.is_some_and(|(open, _)| open == set);
        let (header, pad) = (if same { 0 } else { 4 + 3 }, 3);
        self.is_empty() || self.message.bytes.len() + header + record + pad <= self.most
    }

    /// Appends a record to this set. It counts in the sequence where it is of data.
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

    /// What comes next begins a set of its own: some collectors (nfdump 1.7.1) read one template of options of a set.
    pub fn separate(&mut self) {
        self.close();
    }

    /// A flow is in it now.
    pub fn count(&mut self, flow: &FlowRecord) {
        self.message.flows += 1;
        self.message.packets += flow.packets();
        self.message.octets += flow.bytes();
    }

    /// A transaction is.
    pub fn count_one(&mut self) {
        self.message.flows += 1;
    }

    /// Ends the open set: pads it to 4 bytes and fills its length in.
    fn close(&mut self) {
        let Some((_, at)) = self.set.take() else { return };
        let bytes = &mut self.message.bytes;
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = (bytes.len() - at) as u16;
        bytes[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// The message, whose header is still to be filled in; begins another.
    pub fn take(&mut self) -> Message {
        self.close();
        self.all = 0;
        std::mem::take(&mut self.message)
    }

    /// The message with IPFIX's header (RFC 7011, 3.1), as exported at this second; the sequence number goes on by its
    /// records.
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

/// A flow in both directions as two, where the format has one-way flows only.
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
            // Fewer than REFRESH_MESSAGES.
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
