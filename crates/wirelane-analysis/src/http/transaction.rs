//! A transaction, as logs get it.

use std::net::IpAddr;

/// What is to be known of a transaction beside its numbers. Each has a name ([`MARKS`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Marks(u32);

/// One of [`Marks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mark {
    /// No request was seen for this response.
    NoRequest = 1,
    /// No response was seen to this request.
    NoResponse = 1 << 1,
    /// Some of the request was not captured.
    RequestLost = 1 << 2,
    /// Some of the response was not captured.
    ResponseLost = 1 << 3,
    /// It is the first that was found after a loss: what was before it in its direction may be missing.
    Resynchronised = 1 << 4,
    /// The connection ended before the request was whole.
    RequestUnfinished = 1 << 5,
    /// The connection ended before the response was whole.
    ResponseUnfinished = 1 << 6,
    /// A head is longer than is kept; fields at its end are not known.
    HeadCut = 1 << 7,
    /// A head is not what RFC 9112 allows; what could be read of it is logged.
    Malformed = 1 << 8,
    /// Content-Length is no number, too large, or several numbers.
    BadLength = 1 << 9,
    /// Content-Length and Transfer-Encoding together (request smuggling; RFC 9112, 6.3).
    LengthAndCoding = 1 << 10,
    /// A Transfer-Encoding that does not end in `chunked`.
    BadCoding = 1 << 11,
    /// The size of a chunk is no number or too large, or its end is not where it should be.
    BadChunk = 1 << 12,
    /// A field was folded over several lines (RFC 9112, 5.2).
    Folded = 1 << 13,
    /// A line of a head ends without a carriage return.
    BareLf = 1 << 14,
    /// A zero byte is in a head.
    Nul = 1 << 15,
    /// Behind it the connection is no HTTP any more: CONNECT, or an upgrade.
    Tunnel = 1 << 16,
    /// The connection was reset.
    Reset = 1 << 17,
    /// Nothing came for the idle timeout.
    Timeout = 1 << 18,
    /// Its place was needed.
    Evicted = 1 << 19,
    /// The capture ended.
    Forced = 1 << 20,
    /// Bytes were sent twice, and not the same: the first ones count.
    Conflict = 1 << 21,
}

/// All marks, with their names in logs.
pub const MARKS: [(Mark, &str); 22] = [
    (Mark::NoRequest, "no_request"),
    (Mark::NoResponse, "no_response"),
    (Mark::RequestLost, "request_lost"),
    (Mark::ResponseLost, "response_lost"),
    (Mark::Resynchronised, "resynchronised"),
    (Mark::RequestUnfinished, "request_unfinished"),
    (Mark::ResponseUnfinished, "response_unfinished"),
    (Mark::HeadCut, "head_cut"),
    (Mark::Malformed, "malformed"),
    (Mark::BadLength, "bad_length"),
    (Mark::LengthAndCoding, "length_and_coding"),
    (Mark::BadCoding, "bad_coding"),
    (Mark::BadChunk, "bad_chunk"),
    (Mark::Folded, "folded"),
    (Mark::BareLf, "bare_lf"),
    (Mark::Nul, "nul"),
    (Mark::Tunnel, "tunnel"),
    (Mark::Reset, "reset"),
    (Mark::Timeout, "timeout"),
    (Mark::Evicted, "evicted"),
    (Mark::Forced, "forced"),
    (Mark::Conflict, "conflict"),
];

impl Marks {
    /// Adds a mark.
    pub fn set(&mut self, mark: Mark) {
        self.0 |= mark as u32;
    }

    /// Whether it has this one.
    pub fn has(self, mark: Mark) -> bool {
        self.0 & mark as u32 != 0
    }

    /// All of both.
    #[must_use]
    pub fn and(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }

    /// The names of those that it has.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        MARKS.iter().filter(move |(mark, _)| self.has(*mark)).map(|(_, name)| *name)
    }
}

/// Which fields of heads are kept, by their numbers in [`Message::field`]: these, and what was asked for behind them.
pub mod fields {
    /// `Host`.
    pub const HOST: u8 = 0;
    /// `Referer`.
    pub const REFERER: u8 = 1;
    /// `User-Agent`.
    pub const USER_AGENT: u8 = 2;
    /// `Content-Type`.
    pub const CONTENT_TYPE: u8 = 3;
    /// Their names, in lower case.
    pub const KEPT: [&str; 4] = ["host", "referer", "user-agent", "content-type"];
}

/// A request or a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The request line or the status line, as it was sent, without its end.
    pub line: Box<[u8]>,
    /// Of a request: the method. Of a malformed one whatever stands before the first blank.
    pub method: Box<[u8]>,
    /// Of a request: its target.
    pub target: Box<[u8]>,
    /// The minor version of HTTP/1; 255: not known.
    pub minor: u8,
    /// Of a response: its status; 0: not known.
    pub status: u16,
    /// Fields that are kept, in order, with their numbers.
    pub fields: Vec<(u8, Box<[u8]>)>,
    /// Content-Length, as it was stated.
    pub stated: Option<u64>,
    /// Whether the body came in chunks.
    pub chunked: bool,
    /// Bytes of the head.
    pub head: u64,
    /// Bytes of the body, without what chunks are packed in, by sequence numbers: also those that were not captured.
    pub body: u64,
    /// Bytes of all of it on the wire, head and packing too, by sequence numbers.
    pub bytes: u64,
    /// Of these, not captured.
    pub missing: u64,
    /// Time of its first byte, in UTC nanoseconds.
    pub start_ns: u64,
    /// Time of the last byte of its head.
    pub head_ns: u64,
    /// Time of its last byte.
    pub end_ns: u64,
    /// What is to be known of it.
    pub marks: Marks,
}

impl Message {
    /// The first field of this number.
    pub fn field(&self, number: u8) -> Option<&[u8]> {
        self.fields.iter().find(|(known, _)| *known == number).map(|(_, value)| &**value)
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        let fields: usize = self.fields.iter().map(|(_, value)| value.len() + 48).sum();
        size_of::<Message>() + self.line.len() + self.method.len() + self.target.len() + fields + 64
    }
}

/// A request with its response, or one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Who asked.
    pub client: (IpAddr, u16),
    /// Who was asked.
    pub server: (IpAddr, u16),
    /// The outermost VLAN id.
    pub vlan: Option<u16>,
    /// Which one of its connection it is, from 1 on.
    pub number: u64,
    /// The request.
    pub request: Option<Message>,
    /// The final response.
    pub response: Option<Message>,
    /// Responses of status 1xx that came before it.
    pub informational: u32,
    /// What is to be known of it, or of one of the two.
    pub marks: Marks,
}

impl Transaction {
    /// Memory that it takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        let messages = [&self.request, &self.response];
        size_of::<Transaction>() + messages.into_iter().flatten().map(Message::memory).sum::<usize>()
    }

    /// Time of its first byte, in UTC nanoseconds.
    pub fn start_ns(&self) -> u64 {
        let of = |message: &Option<Message>| message.as_ref().map(|message| message.start_ns);
        of(&self.request).or(of(&self.response)).unwrap_or(0)
    }

    /// Time of its last byte.
    pub fn end_ns(&self) -> u64 {
        let of = |message: &Option<Message>| message.as_ref().map_or(0, |message| message.end_ns);
        of(&self.request).max(of(&self.response))
    }

    /// From the last byte of the request to the first one of the final response, in nanoseconds; 0 where that came before.
    pub fn first_byte_ns(&self) -> Option<u64> {
        let (request, response) = (self.request.as_ref()?, self.response.as_ref()?);
        Some(response.start_ns.saturating_sub(request.end_ns))
    }
}
