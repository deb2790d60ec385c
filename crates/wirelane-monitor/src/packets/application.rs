//! Fields of an application message, as a line of `packets` shows them.

use std::fmt::Write as _;
use std::ops::Range;

use serde::Serialize;
use wirelane::application::{Application, Start};

/// Fields of a message of HTTP, SIP or RTP. Offsets are those in the packet.
#[derive(Debug, Serialize)]
pub(super) struct Fields<'a> {
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sdp: Option<usize>,
    #[serde(flatten)]
    rtp: Option<Rtp>,
}

/// A part of a packet.
#[derive(Clone, Copy, Debug, Serialize)]
struct Span {
    offset: usize,
    length: usize,
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Span {
        Span { offset: range.start, length: range.len() }
    }
}

/// An RTP header.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rtp {
    payload_type: u8,
    marker: bool,
    sequence: u16,
    timestamp: u32,
    ssrc: u32,
    payload: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(application: Application<'a>) -> Option<Fields<'a>> {
        let mut fields = Fields {
            protocol: "",
            method: None,
            status: None,
            head: None,
            host: None,
            from: None,
            to: None,
            via: None,
            call_id: None,
            body: None,
            sdp: None,
            rtp: None,
        };
        let mut begins = |start, head| {
            match start {
                Start::Method(method) => fields.method = Some(method),
                Start::Status(status) => fields.status = Some(status),
            }
            fields.head = Some(head);
        };
        match application {
            Application::Http(http) => {
                begins(http.start, http.head);
                let host = http.host.map(Span::from);
                Some(Fields { protocol: "http", host, body: http.body, ..fields })
            }
            Application::Sip(sip) => {
                begins(sip.start, sip.head);
                let [from, to, via, call_id] =
                    [sip.from, sip.to, sip.via, sip.call_id].map(|field| field.map(Span::from));
                Some(Fields { protocol: "sip", from, to, via, call_id, sdp: sip.sdp, ..fields })
            }
            Application::Rtp(rtp) => {
                let rtp = Rtp {
                    payload_type: rtp.payload_type,
                    marker: rtp.marker,
                    sequence: rtp.sequence,
                    timestamp: rtp.timestamp,
                    ssrc: rtp.ssrc,
                    payload: rtp.payload,
                };
                Some(Fields { protocol: "rtp", rtp: Some(rtp), ..fields })
            }
            _ => None,
        }
    }

    /// The words of a line for people: values of header fields as `offset+length`.
    pub(super) fn text(&self, into: &mut String) {
        let _ = write!(into, " {}", self.protocol);
        if let Some(method) = self.method {
            let _ = write!(into, " {method}");
        }
        if let Some(status) = self.status {
            let _ = write!(into, " {status}");
        }
        let spans = [
            ("host", self.host),
            ("from", self.from),
            ("to", self.to),
            ("via", self.via),
            ("call-id", self.call_id),
        ];
        let offsets = [("head", self.head), ("body", self.body), ("sdp", self.sdp)];
        let offset = |into: &mut String, (name, offset): (&str, Option<usize>)| {
            if let Some(offset) = offset {
                let _ = write!(into, " {name} {offset}");
            }
        };
        offset(into, offsets[0]);
        for (name, span) in spans {
            if let Some(Span { offset, length }) = span {
                let _ = write!(into, " {name} {offset}+{length}");
            }
        }
        offsets[1..].iter().for_each(|one| offset(into, *one));
        if let Some(rtp) = self.rtp {
            let Rtp { payload_type, marker, sequence, timestamp, ssrc, payload } = rtp;
            let marker = if marker { " marker" } else { "" };
            let _ = write!(
                into,
                " type {payload_type}{marker} seq {sequence} time {timestamp} ssrc {ssrc:#010x} payload {payload}"
            );
        }
    }
}
