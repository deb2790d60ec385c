//! A transaction, as it is logged.

use std::net::IpAddr;

/// Flags of a transaction. Each has a name ([`MARKS`]).
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
    /// A part of the request was not captured.
    RequestLost = 1 << 2,
    /// A part of the response was not captured.
    ResponseLost = 1 << 3,
    /// The first transaction after a loss: earlier ones in its direction may be missing.
    Resynchronised = 1 << 4,
    /// The connection ended before the request was complete.
    RequestUnfinished = 1 << 5,
    /// The connection ended before the response was complete.
    ResponseUnfinished = 1 << 6,
    /// A head is longer than the limit; fields at its end are unknown.
    HeadCut = 1 << 7,
    /// A head violates RFC 9112; the readable parts are logged.
    Malformed = 1 << 8,
    /// Content-Length is not a number, too large, or has several values.
    BadLength = 1 << 9,
    /// Content-Length and Transfer-Encoding together (request smuggling; RFC 9112, 6.3).
    LengthAndCoding = 1 << 10,
    /// A Transfer-Encoding that does not end in `chunked`.
    BadCoding = 1 << 11,
    /// A chunk size is not a number or too large, or the end of a chunk is missing.
    BadChunk = 1 << 12,
    /// A field was folded over several lines (RFC 9112, 5.2).
    Folded = 1 << 13,
    /// A line of a head ends without a carriage return.
    BareLf = 1 << 14,
    /// A zero byte is in a head.
    Nul = 1 << 15,
    /// The connection is not HTTP any more after it: CONNECT, or an upgrade.
    Tunnel = 1 << 16,
    /// The connection was reset.
    Reset = 1 << 17,
    /// No packet arrived during the idle timeout.
    Timeout = 1 << 18,
    /// It was evicted for lack of memory.
    Evicted = 1 << 19,
    /// The capture ended.
    Forced = 1 << 20,
    /// Retransmitted bytes differed: the first ones count.
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
    /// Sets a mark.
    pub fn set(&mut self, mark: Mark) {
        self.0 |= mark as u32;
    }

    /// Whether this mark is set.
    pub fn has(self, mark: Mark) -> bool {
        self.0 & mark as u32 != 0
    }

    /// Union of both.
    #[must_use]
    pub fn and(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }

    /// Names of the marks that are set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        MARKS.iter().filter(move |(mark, _)| self.has(*mark)).map(|(_, name)| *name)
    }
}

/// Stored fields, by their numbers in [`Message::field`]: these, followed by the additional ones of the settings.
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

/// A request or response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The request line or the status line, as it was sent, without its end.
    pub line: Box<[u8]>,
    /// For a request: the method. If malformed, the text before the first blank.
    pub method: Box<[u8]>,
    /// For a request: the target.
    pub target: Box<[u8]>,
    /// Minor version of HTTP/1; 255: unknown.
    pub minor: u8,
    /// For a response: the status; 0: unknown.
    pub status: u16,
    /// Stored fields, in order, with their numbers.
    pub fields: Vec<(u8, Box<[u8]>)>,
    /// Content-Length, as stated.
    pub stated: Option<u64>,
    /// Whether the body was chunked.
    pub chunked: bool,
    /// Bytes of the head.
    pub head: u64,
    /// Bytes of the body without chunk framing, by sequence numbers, including bytes that were not captured.
    pub body: u64,
    /// Bytes on the wire, including head and chunk framing, by sequence numbers.
    pub bytes: u64,
    /// Bytes that were not captured.
    pub missing: u64,
    /// Time of the first byte, in UTC nanoseconds.
    pub start_ns: u64,
    /// Time of the last byte of the head.
    pub head_ns: u64,
    /// Time of the last byte.
    pub end_ns: u64,
    /// Marks.
    pub marks: Marks,
}

impl Message {
    /// First field with this number.
    pub fn field(&self, number: u8) -> Option<&[u8]> {
        self.fields.iter().find(|(known, _)| *known == number).map(|(_, value)| &**value)
    }

    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let fields: usize = self.fields.iter().map(|(_, value)| value.len() + 48).sum();
        size_of::<Message>() + self.line.len() + self.method.len() + self.target.len() + fields + 64
    }
}

/// A request with its response, or one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Address and port of the client.
    pub client: (IpAddr, u16),
    /// Address and port of the server.
    pub server: (IpAddr, u16),
    /// Outermost VLAN id.
    pub vlan: Option<u16>,
    /// Number of the transaction in its connection, from 1 on.
    pub number: u64,
    /// The request.
    pub request: Option<Message>,
    /// The final response.
    pub response: Option<Message>,
    /// Number of 1xx responses before it.
    pub informational: u32,
    /// Marks of the transaction and of both messages.
    pub marks: Marks,
}

impl Transaction {
    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        let messages = [&self.request, &self.response];
        size_of::<Transaction>() + messages.into_iter().flatten().map(Message::memory).sum::<usize>()
    }

    /// Time of the first byte, in UTC nanoseconds.
    pub fn start_ns(&self) -> u64 {
        let of = |message: &Option<Message>| message.as_ref().map(|message| message.start_ns);
        of(&self.request).or(of(&self.response)).unwrap_or(0)
    }

    /// Time of the last byte.
    pub fn end_ns(&self) -> u64 {
        let of = |message: &Option<Message>| message.as_ref().map_or(0, |message| message.end_ns);
        of(&self.request).max(of(&self.response))
    }

    /// Time from the last byte of the request to the first byte of the final response, in nanoseconds; 0 if that came
    /// earlier.
    pub fn first_byte_ns(&self) -> Option<u64> {
        let (request, response) = (self.request.as_ref()?, self.response.as_ref()?);
        Some(response.start_ns.saturating_sub(request.end_ns))
    }
}
