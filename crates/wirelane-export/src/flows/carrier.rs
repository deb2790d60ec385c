//! Transports of messages: files and UDP here, TCP in `tcp.rs`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::OutputCounts;
use super::encode::{Context, Encoder, Message};
use super::tcp::Tcp;
use crate::AppendFile;

/// Maximum burst of UDP messages: smaller than the receive buffer of a collector.
const BURST: f64 = 32.0;

/// How long a message [settles](Message::settles).
const SETTLING: Duration = Duration::from_millis(200);

/// Maximum refusals in a row before other outputs are served.
const MOST_REFUSED: u32 = 8;

/// Messages that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    pub queue: VecDeque<Message>,
    pub bytes: usize,
}

impl Backlog {
    /// Appends a message if there is space, or counts it as unsent.
    pub fn push(&mut self, message: Message, most: usize, counts: &mut OutputCounts) {
        if self.bytes + message.bytes.len() > most {
            counts.unsent(&message);
            return;
        }
        self.bytes += message.bytes.len();
        self.queue.push_back(message);
    }

    /// Removes the first message.
    pub fn pop(&mut self) -> Option<Message> {
        let message = self.queue.pop_front()?;
        self.bytes -= message.bytes.len();
        Some(message)
    }
}

/// Transport of an output's messages.
pub(super) enum Carrier {
    File(Box<ExportFile>),
    Udp(Udp),
    Tcp(Box<Tcp>),
}

/// Event for which a carrier waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing: no messages are left to be sent.
    Idle,
    /// A point in time.
    Until(Instant),
    /// Space in the socket's send buffer.
    Room,
}

impl Carrier {
    /// Queues a message; [`Carrier::pump`] sends it.
    pub fn push(
        &mut self,
        message: Message,
        encoder: &mut dyn Encoder,
        context: &Context<'_>,
        counts: &mut OutputCounts,
    ) {
        let most = context.settings.backlog;
        match self {
            Carrier::File(file) => file.push(message, || encoder.preamble(context), counts),
            Carrier::Udp(udp) => udp.backlog.push(message, most, counts),
            Carrier::Tcp(tcp) => tcp.backlog.push(message, most, counts),
        }
    }

    /// Sends queued messages without blocking.
    pub fn pump(
        &mut self,
        encoder: &mut dyn Encoder,
        context: &Context<'_>,
        counts: &mut OutputCounts,
    ) -> Wait {
        match self {
            Carrier::File(file) => {
                file.file.flush();
                file.count(counts);
                Wait::Idle
            }
            Carrier::Udp(udp) => udp.pump(counts),
            Carrier::Tcp(tcp) => tcp.pump(encoder, context, counts),
        }
    }

    /// Number of waiting bytes.
    pub fn waiting(&self) -> usize {
        match self {
            Carrier::File(_) => 0,
            Carrier::Udp(udp) => udp.backlog.bytes,
            Carrier::Tcp(tcp) => tcp.backlog.bytes,
        }
    }

    /// Whether sending progresses: false for a collector that has taken nothing for this time.
    pub fn moves(&self, within: Duration) -> bool {
        match self {
            Carrier::File(_) | Carrier::Udp(_) => true,
            Carrier::Tcp(tcp) => tcp.moves(within),
        }
    }

    /// Gives up all waiting messages.
    pub fn give_up(&mut self, counts: &mut OutputCounts) {
        let backlog = match self {
            Carrier::File(_) => return,
            Carrier::Udp(udp) => &mut udp.backlog,
            Carrier::Tcp(tcp) => &mut tcp.backlog,
        };
        while let Some(message) = backlog.pop() {
            counts.unsent(&message);
        }
    }
}

/// IPFIX messages in a file (RFC 5655), each file with the templates at its beginning.
pub(crate) struct ExportFile {
    pub file: AppendFile,
    /// The message with the templates, once it exists.
    preamble: Option<Message>,
    /// Data records so far (RFC 7011, 3.1).
    sequence: u32,
}

impl ExportFile {
    /// An export to a file, empty or with earlier messages.
    pub fn new(file: AppendFile) -> ExportFile {
        ExportFile { file, preamble: None, sequence: 0 }
    }

    /// Appends a message. `preamble` makes the message with the templates.
    pub fn push(
        &mut self,
        mut message: Message,
        preamble: impl FnOnce() -> Option<Message>,
        counts: &mut OutputCounts,
    ) {
        if self.preamble.is_none() {
            self.preamble = preamble();
            self.sequence = self.preamble.as_ref().map_or(0, |preamble| preamble.records);
            self.describe(0);
        }
        message.bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
        if self.file.append(message.flows, |bytes| bytes.extend_from_slice(&message.bytes)) {
            self.sequence = self.sequence.wrapping_add(message.records);
        } else {
            counts.unsent(&message);
        }
        let records = self.preamble.as_ref().map_or(0, |preamble| preamble.records);
        self.describe(self.sequence.wrapping_sub(records));
        self.count(counts);
    }

    /// Makes the templates the file's header, with a sequence number that the next data message continues.
    fn describe(&mut self, sequence: u32) {
        if let Some(preamble) = &mut self.preamble {
            preamble.bytes[8..12].copy_from_slice(&sequence.to_be_bytes());
            self.file.set_header(preamble.bytes.clone());
        }
    }

    /// Updates the counts.
    pub fn count(&self, counts: &mut OutputCounts) {
        counts.of_file(&self.file);
        counts.messages = self.file.counts().records;
    }
}

/// UDP messages to one collector, at a limited rate.
pub(crate) struct Udp {
    socket: UdpSocket,
    pub backlog: Backlog,
    /// Maximum messages per second; 0: no limit.
    rate: u32,
    /// Messages that may be sent now.
    tokens: f64,
    filled: Instant,
    /// End of the time in which a message settles.
    until: Option<Instant>,
}

impl Udp {
    /// Creates the transport over a connected non-blocking socket.
    pub fn new(socket: UdpSocket, rate: u32) -> Udp {
        Udp { socket, backlog: Backlog::default(), rate, tokens: BURST, filled: Instant::now(), until: None }
    }

    fn may_send(&mut self) -> bool {
        if self.rate == 0 {
            return true;
        }
        let now = Instant::now();
        let earned = now.duration_since(self.filled).as_secs_f64() * f64::from(self.rate);
        (self.tokens, self.filled) = ((self.tokens + earned).min(BURST), now);
        self.tokens >= 1.0
    }

    /// Sends queued messages without blocking.
    pub fn pump(&mut self, counts: &mut OutputCounts) -> Wait {
        let mut refused = 0;
        while let Some(message) = self.backlog.queue.front() {
            let (length, settles) = (message.bytes.len(), message.settles);
            if let Some(until) = self.until.filter(|until| *until > Instant::now()) {
                return Wait::Until(until);
            }
            if !self.may_send() {
                let missing = (1.0 - self.tokens) / f64::from(self.rate);
                return Wait::Until(self.filled + Duration::from_secs_f64(missing));
            }
            let Some(message) = self.backlog.queue.front() else { break };
            match self.socket.send(&message.bytes) {
                Ok(_) => counts.sent(message),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Wait::Room,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // ICMP has reported that an earlier message was refused; this message has not been sent.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    refused += 1;
                    counts.refused += 1;
                    counts.failed(format!("no process listens there: {error}"));
                    if refused == MOST_REFUSED {
                        return Wait::Room;
                    }
                    continue;
                }
                Err(error) => {
                    counts.failed(error.to_string());
                    counts.unsent(message);
                }
            }
            self.tokens -= 1.0;
            self.until = settles.then(|| Instant::now() + SETTLING);
            self.backlog.queue.pop_front();
            self.backlog.bytes -= length;
        }
        Wait::Idle
    }
}
