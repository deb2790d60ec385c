//! Fields of HTTP, SIP and RTP in the payload of a record: what conditions of rules on these protocols compare.
//!
//! They are computed from the record's bytes when an application asks for them, by the same code for every engine; a
//! capture does no work for records that nobody asks about. All ranges and offsets are those in `Record::data`.

use std::ops::Range;

/// Maximum length of a method.
const LONGEST_METHOD: usize = 100;
/// The first port that is not a system port (RFC 6335): below are other protocols, as DNS, which may begin like RTP.
const FIRST_PORT: u16 = 1024;
/// Forms of an HTTP request's target; `CONNECT` has a fifth.
const HTTP_TARGETS: [&[u8]; 4] = [b"/", b"http://", b"https://", b"*"];
/// The URI schemes of a SIP request's target.
const SIP_TARGETS: [&[u8]; 3] = [b"sip:", b"sips:", b"tel:"];

/// The message of an application protocol that begins in a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Application<'a> {
    /// HTTP/1 (RFC 9112).
    Http(Http<'a>),
    /// SIP (RFC 3261).
    Sip(Sip<'a>),
    /// RTP (RFC 3550) between two ports from 1024 on. RTP has no mark except its version: other payloads of UDP may begin
    /// like RTP.
    Rtp(Rtp),
}

/// The first line of an HTTP or SIP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start<'a> {
    /// The method of a request: capital letters and hyphens.
    Method(&'a str),
    /// The status code of a response.
    Status(u16),
}

/// An HTTP message, as far as it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http<'a> {
    /// Method or status.
    pub start: Start<'a>,
    /// The offset of the head: the first byte of the payload.
    pub head: usize,
    /// The value of the first field `Host`.
    pub host: Option<Range<usize>>,
    /// The offset of the body, if the head is complete and at least one byte follows it.
    pub body: Option<usize>,
}

/// A SIP message, as far as it was captured. Header fields are found by their names and compact forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sip<'a> {
    /// Method or status.
    pub start: Start<'a>,
    /// The offset of the head: the first byte of the payload.
    pub head: usize,
    /// The value of the first field `From` or `f`.
    pub from: Option<Range<usize>>,
    /// The value of the first field `To` or `t`.
    pub to: Option<Range<usize>>,
    /// The value of the first field `Via` or `v`.
    pub via: Option<Range<usize>>,
    /// The value of the first field `Call-ID` or `i`.
    pub call_id: Option<Range<usize>>,
    /// The offset of the body, if the first `Content-Type` or `c` is `application/sdp` (RFC 8866).
    pub sdp: Option<usize>,
}

/// The header of an RTP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtp {
    /// Payload type, 0 to 127.
    pub payload_type: u8,
    /// Marker.
    pub marker: bool,
    /// Sequence number.
    pub sequence: u16,
    /// RTP timestamp.
    pub timestamp: u32,
    /// Synchronization source.
    pub ssrc: u32,
    /// The offset of the media, behind contributing sources and the header extension.
    pub payload: usize,
}

/// The fields of the message that begins at `from` in the bytes of a packet with this IP protocol.
pub(crate) fn of(data: &[u8], from: usize, protocol: u8) -> Option<Application<'_>> {
    let udp = protocol == 17;
    // The bytes behind a datagram are padding of its frame.
    let stated =
        from.checked_sub(8).filter(|_| udp).and_then(|at| Some(at + usize::from(be16(data, at + 4)?)));
    let data = data.get(..stated.unwrap_or(data.len()).min(data.len()))?;
    let payload = data.get(from..).filter(|payload| !payload.is_empty())?;
    if let Some(start) = sip_start(payload) {
        return Some(Application::Sip(sip(data, from, start)));
    }
    if udp {
        return rtp(data, from, stated?).map(Application::Rtp);
    }
    let start = http_start(payload).filter(|_| protocol == 6)?;
    let fields = Fields::new(data, from);
    let (mut host, body) = (None, fields.body());
    for (name, value) in fields {
        if name.eq_ignore_ascii_case(b"host") {
            host = host.or(Some(value));
        }
    }
    Some(Application::Http(Http { start, head: from, host, body }))
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn be32(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// The method that the payload begins with, and what follows its blank.
fn method(payload: &[u8]) -> Option<(&str, &[u8])> {
    let is_end = |byte: &u8| !(byte.is_ascii_uppercase() || *byte == b'-');
    let length = payload.iter().take(LONGEST_METHOD + 1).position(is_end).filter(|length| *length > 0)?;
    let (method, rest) = payload.split_at(length);
    Some((std::str::from_utf8(method).ok()?, rest.strip_prefix(b" ")?))
}

/// A status that these bytes begin with, whose class is at most `last`.
fn status(bytes: &[u8], last: u8) -> Option<u16> {
    let digits: &[u8; 3] = bytes.first_chunk()?;
    let valid = digits.iter().all(u8::is_ascii_digit) && (b'1'..=last).contains(&digits[0]);
    valid.then(|| digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0')))
}

fn http_start(payload: &[u8]) -> Option<Start<'_>> {
    if let Some(rest) = [b"HTTP/1.0 ", b"HTTP/1.1 "].iter().find_map(|one| payload.strip_prefix(*one)) {
        return status(rest, b'5').map(Start::Status);
    }
    let (method, rest) = method(payload)?;
    let is_target = method == "CONNECT" || HTTP_TARGETS.iter().any(|target| rest.starts_with(target));
    is_target.then_some(Start::Method(method))
}

fn sip_start(payload: &[u8]) -> Option<Start<'_>> {
    if let Some(rest) = payload.strip_prefix(b"SIP/2.0 ") {
        return status(rest, b'6').map(Start::Status);
    }
    let (method, rest) = method(payload)?;
    SIP_TARGETS.iter().any(|target| rest.starts_with(target)).then_some(Start::Method(method))
}

fn sip<'a>(data: &[u8], from: usize, start: Start<'a>) -> Sip<'a> {
    let fields = Fields::new(data, from);
    let (body, mut kind) = (fields.body(), None);
    let mut sip = Sip { start, head: from, from: None, to: None, via: None, call_id: None, sdp: None };
    for (name, value) in fields {
        let is = |names: [&[u8]; 2]| names.iter().any(|one| name.eq_ignore_ascii_case(one));
        let place = if is([b"from", b"f"]) {
            &mut sip.from
        } else if is([b"to", b"t"]) {
            &mut sip.to
        } else if is([b"via", b"v"]) {
            &mut sip.via
        } else if is([b"call-id", b"i"]) {
            &mut sip.call_id
        } else if is([b"content-type", b"c"]) {
            &mut kind
        } else {
            continue;
        };
        if place.is_none() {
            *place = Some(value);
        }
    }
    let sdp = b"application/sdp";
    let is_sdp =
        |kind: Range<usize>| data[kind].get(..sdp.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(sdp));
    sip.sdp = body.filter(|_| kind.is_some_and(is_sdp));
    sip
}

/// Reads an RTP header. `end`: where the datagram ends, which may be behind the captured bytes.
fn rtp(data: &[u8], from: usize, end: usize) -> Option<Rtp> {
    let [first, second] = *data.get(from..)?.first_chunk()?;
    let is_system = |at: usize| be16(data, at).is_none_or(|port| port < FIRST_PORT);
    // Second bytes of 192 to 223 are packet types of RTCP (RFC 5761, 4).
    if first >> 6 != 2 || (192..=223).contains(&second) || is_system(from - 8) || is_system(from - 6) {
        return None;
    }
    let mut payload = from + 12 + 4 * usize::from(first & 0xf);
    if first & 0x10 != 0 {
        payload += 4 + 4 * usize::from(be16(data, payload + 2)?);
    }
    let padding = match (first & 0x20 != 0, data.get(end.checked_sub(1)?)) {
        (false, _) => 0,
        (true, Some(padding)) => usize::from(*padding).max(1),
        // The end was not captured.
        (true, None) => 1,
    };
    (payload + padding <= end).then_some(())?;
    Some(Rtp {
        payload_type: second & 0x7f,
        marker: second & 0x80 != 0,
        sequence: be16(data, from + 2)?,
        timestamp: be32(data, from + 4)?,
        ssrc: be32(data, from + 8)?,
        payload,
    })
}

/// Header fields behind the first line of a message, with their values: without blanks around them, and with the lines
/// that continue them.
struct Fields<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the message that begins at `from`.
    fn new(data: &'a [u8], from: usize) -> Fields<'a> {
        let mut fields = Fields { data, at: from };
        fields.line();
        fields
    }

    /// The offset of the body: behind the first empty line, if a byte is there.
    fn body(&self) -> Option<usize> {
        let mut fields = Fields { ..*self };
        while let Some(line) = fields.line() {
            if line.is_empty() {
                return Some(fields.at).filter(|at| *at < self.data.len());
            }
        }
        None
    }

    /// The next line, without its end, which may be `\r\n` or `\n`.
    fn line(&mut self) -> Option<Range<usize>> {
        let rest = self.data.get(self.at..).filter(|rest| !rest.is_empty())?;
        let (length, skipped) = match rest.iter().position(|byte| *byte == b'\n') {
            Some(length) => (length, length + 1),
            None => (rest.len(), rest.len()),
        };
        let length = length - usize::from(rest[..length].last() == Some(&b'\r'));
        let line = self.at..self.at + length;
        self.at += skipped;
        Some(line)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let data = self.data;
        loop {
            let line = self.line().filter(|line| !line.is_empty())?;
            let mut value = line.clone();
            while matches!(data.get(self.at), Some(b' ' | b'\t')) {
                let Some(more) = self.line() else { break };
                value.end = more.end;
            }
            let text = &data[value.clone()];
            let Some(colon) = text.iter().position(|byte| *byte == b':') else { continue };
            let behind = &text[colon + 1..];
            value.start += colon + 1 + (behind.len() - behind.trim_ascii_start().len());
            value.end -= behind.len() - behind.trim_ascii_end().len();
            value.end = value.end.max(value.start);
            return Some((text[..colon].trim_ascii_end(), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP header, and a payload behind it.
    fn datagram(payload: &[u8]) -> Vec<u8> {
        let mut data = vec![4, 0, 4, 1];
        data.extend_from_slice(&(payload.len() as u16 + 8).to_be_bytes());
        data.extend_from_slice(&[0, 0]);
        data.extend_from_slice(payload);
        data
    }

    fn sip_of(data: &[u8]) -> Sip<'_> {
        match of(data, 8, 17) {
            Some(Application::Sip(sip)) => sip,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fields_of_a_sip_message_are_found_by_both_names_and_over_lines() {
        let mut data = datagram(
            b"INVITE sip:b@b SIP/2.0\r\nv: SIP/2.0/UDP h\r\nVia: second\r\nFROM\t:\r\n \"A\" <sip:a>\r\n\t;tag=1 \r\nX-To: x\r\nTo:b\n\
              i :4711\r\nc:application/SDP\r\n\r\nv=0\r\nTo: c\r\n",
        );
        // Padding of the frame.
        data.extend_from_slice(&[0; 9]);
        let sip = sip_of(&data);
        let text = |range: Option<Range<usize>>| std::str::from_utf8(&data[range.unwrap()]).unwrap();
        assert_eq!(sip.start, Start::Method("INVITE"));
        assert_eq!(text(sip.via), "SIP/2.0/UDP h");
        assert_eq!(text(sip.from), "\"A\" <sip:a>\r\n\t;tag=1");
        assert_eq!(text(sip.to), "b");
        assert_eq!(text(sip.call_id), "4711");
        assert!(data[sip.sdp.unwrap()..].starts_with(b"v=0\r\n"));
    }

    #[test]
    fn messages_that_are_cut_or_malformed_have_the_fields_that_are_there() {
        let data = datagram(b"SIP/2.0 404 Not Found\r\nTo:\r\nFrom");
        let sip = sip_of(&data);
        assert_eq!((sip.start, sip.from, sip.sdp), (Start::Status(404), None, None));
        assert!(sip.to.is_some_and(|to| to.is_empty()));
        for other in
            [&b"SIP/2.0 4x4"[..], b"INVITE  sip:b", b"invite sip:b", b" BYE sip:b", b"BYE", b"", b"-"]
        {
            assert_eq!(of(&datagram(other), 8, 17), None, "{other:?}");
        }
        let http = of(b"GET /a HTTP/1.1\r\nHost: x", 0, 6);
        assert!(
            matches!(http, Some(Application::Http(Http { host: Some(host), body: None, .. })) if host == (23..24))
        );
        let text = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody";
        assert!(matches!(of(text, 0, 6), Some(Application::Http(Http { body: Some(25), host: None, .. }))));
        for other in [&b"HTTP/2 200"[..], b"HTTP/1.1 600", b"GET x", b"CONNECTS a:443", b"\r\n"] {
            assert_eq!(of(other, 0, 6), None, "{other:?}");
        }
    }

    #[test]
    fn an_rtp_header_must_fit_into_its_datagram() {
        let header = |first: u8, second: u8| {
            let mut data = vec![first, second, 0x12, 0x34, 0, 0, 1, 0, 0xde, 0xad, 0xbe, 0xef];
            data.extend_from_slice(&[0, 0, 0, 1, 9, 9, 9, 2]);
            datagram(&data)
        };
        let of = |data: &[u8]| match of(data, 8, 17) {
            Some(Application::Rtp(rtp)) => Some(rtp),
            None => None,
            other => panic!("{other:?}"),
        };
        let expected = Rtp {
            payload_type: 0,
            marker: true,
            sequence: 0x1234,
            timestamp: 256,
            ssrc: 0xdead_beef,
            payload: 20,
        };
        assert_eq!(of(&header(0x80, 0x80)), Some(expected));
        // An extension of one word; two contributing sources; padding of two bytes.
        assert_eq!(of(&header(0x90, 0x80)), Some(Rtp { payload: 28, ..expected }));
        assert_eq!(of(&header(0x82, 0x80)), Some(Rtp { payload: 28, ..expected }));
        assert_eq!(of(&header(0xa0, 0x80)), Some(expected));
        // Version 1; RTCP; three sources; an extension behind a source; padding where no byte is left.
        for (first, second) in [(0x40, 0), (0x80, 200), (0x83, 0), (0x91, 0), (0xa2, 0)] {
            assert_eq!(of(&header(first, second)), None, "{first:#x} {second}");
        }
        assert_eq!(of(&datagram(&[0x80; 11])), None);
        // A system port, as of DNS.
        let mut data = header(0x80, 0x80);
        data[2..4].copy_from_slice(&[0, 53]);
        assert_eq!(of(&data), None);
    }
}
