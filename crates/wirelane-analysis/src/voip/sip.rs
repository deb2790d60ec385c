//! Heads of SIP messages (RFC 3261): start line, the headers that the monitor uses, and the offset of the body.
//!
//! A monitor has to accept messages of any sender: compact names, folded lines, any bytes in values, bare line feeds.
//! Headers that it does not use are skipped. Nothing is copied, and a head is scanned once.

use wirelane::escape::printable;

/// Maximum bytes of a head: the capacity of UDP.
pub const LONGEST_HEAD: usize = 65_535;

/// The first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start<'a> {
    /// A request.
    Request {
        /// Its method.
        method: &'a [u8],
        /// Request-URI.
        uri: &'a [u8],
    },
    /// A response.
    Response {
        /// Its status code, 100 to 699.
        code: u16,
        /// Its reason phrase.
        reason: &'a [u8],
    },
}

/// Fault of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The first line is not a SIP 2.0 start line.
    StartLine,
    /// The head does not end, or has more than [`LONGEST_HEAD`] bytes.
    Head,
    /// Call-ID, CSeq, From or To is missing, empty or malformed.
    Header,
    /// Content-Length is not a number, differs from another one, or exceeds the available bytes.
    Length,
}

/// An address of a From or a To.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address<'a> {
    /// The whole value.
    pub whole: &'a [u8],
    /// The URI.
    pub uri: &'a [u8],
    /// The tag; empty if absent.
    pub tag: &'a [u8],
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The first line.
    pub start: Start<'a>,
    /// Call-ID.
    pub call_id: &'a [u8],
    /// From.
    pub from: Address<'a>,
    /// To.
    pub to: Address<'a>,
    /// The number of CSeq.
    pub cseq: u32,
    /// The method of CSeq.
    pub method: &'a [u8],
    /// User-Agent, else Server; empty if both are absent.
    pub agent: &'a [u8],
    /// Reason (RFC 3326).
    pub reason: &'a [u8],
    /// Content-Type.
    pub content_type: &'a [u8],
    /// Content-Length, if present.
    pub content_length: Option<u64>,
    /// Bytes of the head, including the empty line.
    pub head_len: usize,
    /// A fault that does not prevent the use of the message.
    pub fault: Option<Fault>,
}

/// Whether these bytes begin with the start line of a SIP message; cheap if not.
pub fn begins(data: &[u8]) -> bool {
    match data.first() {
        Some(b'A'..=b'Z') => start_line(line(data).0).is_some(),
        _ => false,
    }
}

/// A line without its end, and the offset of the next one.
fn line(data: &[u8]) -> (&[u8], usize) {
    match data.iter().position(|byte| *byte == b'\n') {
        Some(at) => (data[..at].strip_suffix(b"\r").unwrap_or(&data[..at]), at + 1),
        None => (data, data.len()),
    }
}

const VERSION: &[u8] = b"SIP/2.0";

fn start_line(line: &[u8]) -> Option<Start<'_>> {
    if let Some(rest) = line.strip_prefix(VERSION) {
        let rest = rest.strip_prefix(b" ")?;
        let (digits, reason) = rest.split_at_checked(3)?;
        let code = number(digits)?;
        let reason = reason.strip_prefix(b" ").or_else(|| reason.is_empty().then_some(reason))?;
        return (100..700).contains(&code).then_some(Start::Response { code: code as u16, reason });
    }
    let space = line.iter().take(33).position(|byte| *byte == b' ')?;
    let method = &line[..space];
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return None;
    }
    let uri = line[space + 1..].strip_suffix(VERSION)?.strip_suffix(b" ")?;
    (!uri.is_empty()).then_some(Start::Request { method, uri })
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(&byte)
}

/// A decimal number; saturates above `u64::MAX`.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, byte| match byte {
        b'0'..=b'9' => Some(sum.saturating_mul(10).saturating_add(u64::from(byte - b'0'))),
        _ => None,
    })
}

fn trimmed(value: &[u8]) -> &[u8] {
    value.trim_ascii()
}

/// Headers that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    CallId,
    From,
    To,
    CSeq,
    Agent,
    Server,
    Reason,
    ContentType,
    ContentLength,
}

/// Name of a header, compact or not (RFC 3261, 7.3.3).
fn name(text: &[u8]) -> Option<Name> {
    const LONG: [(&[u8], Name); 9] = [
        (b"call-id", Name::CallId),
        (b"from", Name::From),
        (b"to", Name::To),
        (b"cseq", Name::CSeq),
        (b"user-agent", Name::Agent),
        (b"server", Name::Server),
        (b"reason", Name::Reason),
        (b"content-type", Name::ContentType),
        (b"content-length", Name::ContentLength),
    ];
    match text {
        [byte] => match byte.to_ascii_lowercase() {
            b'i' => Some(Name::CallId),
            b'f' => Some(Name::From),
            b't' => Some(Name::To),
            b'c' => Some(Name::ContentType),
            b'l' => Some(Name::ContentLength),
            _ => None,
        },
        _ => LONG.iter().find(|(long, _)| text.eq_ignore_ascii_case(long)).map(|(_, name)| *name),
    }
}

/// Reads the address of a From or a To: `"Name" <uri>;tag=x`, `Name <uri>`, or a bare `uri;tag=x`.
fn address(value: &[u8]) -> Address<'_> {
    let value = trimmed(value);
    // A quoted name may contain '<' and ';'.
    let mut at = 0;
    if value.first() == Some(&b'"') {
        at = 1;
        while at < value.len() && value[at] != b'"' {
            at += if value[at] == b'\\' { 2 } else { 1 };
        }
        at = (at + 1).min(value.len());
    }
    let rest = &value[at..];
    let (uri, parameters) = match rest.iter().position(|byte| *byte == b'<') {
        Some(open) => match rest[open..].iter().position(|byte| *byte == b'>') {
            Some(close) => (&rest[open + 1..open + close], &rest[open + close + 1..]),
            None => (&rest[open + 1..], &rest[rest.len()..]),
        },
        None => {
            let end = rest.iter().position(|byte| *byte == b';').unwrap_or(rest.len());
            (&rest[..end], &rest[end..])
        }
    };
    let tag = parameters.split(|byte| *byte == b';').find_map(|parameter| {
        let parameter = trimmed(parameter);
        let equals = parameter.iter().position(|byte| *byte == b'=')?;
        let is_tag = trimmed(&parameter[..equals]).eq_ignore_ascii_case(b"tag");
        is_tag.then(|| trimmed(&parameter[equals + 1..]))
    });
    Address { whole: value, uri: trimmed(uri), tag: tag.unwrap_or_default() }
}

/// Parses the head of a message that begins at the first byte. `whole`: these bytes are all there are, so a head
/// without an empty line ends with them.
///
/// # Errors
/// [`Fault::Head`]: the head does not end here (more bytes may follow unless `whole` is set); any other: permanent.
pub fn parse(data: &[u8], whole: bool) -> Result<Message<'_>, Fault> {
    let within = &data[..data.len().min(LONGEST_HEAD)];
    let (first, mut at) = line(within);
    let start = start_line(first).ok_or(Fault::StartLine)?;
    let (mut call_id, mut cseq): (&[u8], Option<(u32, &[u8])>) = (&[], None);
    let (mut from, mut to) = (None, None);
    let (mut agent, mut reason, mut content_type): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
    let mut content_length = None;
    let mut fault = None;
    let mut ended = false;
    while at < within.len() {
        let (mut header, mut next) = line(&within[at..]);
        if header.is_empty() {
            at += next;
            ended = true;
            break;
        }
        // Folded lines begin with whitespace.
        let begin = at;
        while matches!(within.get(at + next), Some(b' ' | b'\t')) {
            let (more, length) = line(&within[at + next..]);
            header = &within[begin..at + next + more.len()];
            next += length;
        }
        at += next;
        let Some(colon) = header.iter().position(|byte| *byte == b':') else {
            fault = fault.or(Some(Fault::Header));
            continue;
        };
        let Some(name) = name(trimmed(&header[..colon])) else { continue };
        let value = trimmed(&header[colon + 1..]);
        match name {
            Name::CallId if call_id.is_empty() => call_id = value,
            Name::From if from.is_none() => from = Some(address(value)),
            Name::To if to.is_none() => to = Some(address(value)),
            Name::CSeq if cseq.is_none() => {
                let blank = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
                let method = trimmed(&value[blank..]);
                let known = number(&value[..blank]).and_then(|number| u32::try_from(number).ok());
                cseq = known.filter(|_| !method.is_empty()).map(|number| (number, method));
            }
            Name::Agent => agent = value,
            Name::Server if agent.is_empty() => agent = value,
            Name::Reason => reason = value,
            Name::ContentType => content_type = value,
            Name::ContentLength => match (number(value), content_length) {
                (Some(one), Some(other)) if one != other => fault = Some(Fault::Length),
                (Some(length), _) => content_length = Some(length),
                (None, _) => fault = Some(Fault::Length),
            },
            _ => {}
        }
    }
    if !ended && (!whole || data.len() > LONGEST_HEAD) {
        return Err(Fault::Head);
    }
    let (Some((cseq, method)), Some(from), Some(to)) = (cseq, from, to) else { return Err(Fault::Header) };
    if call_id.is_empty() {
        return Err(Fault::Header);
    }
    let head_len = at;
    Ok(Message {
        start,
        call_id,
        from,
        to,
        cseq,
        method,
        agent,
        reason,
        content_type,
        content_length,
        head_len,
        fault,
    })
}

/// Maximum bytes of a stored text.
pub const LONGEST_TEXT: usize = 256;

/// Text of a packet to store and show: at most [`LONGEST_TEXT`] bytes of it, with unsafe characters escaped.
pub fn text(bytes: &[u8]) -> Box<str> {
    let cut = &bytes[..bytes.len().min(LONGEST_TEXT)];
    printable(&String::from_utf8_lossy(cut)).into()
}

/// Title of a message for people: its method, or its status with the reason phrase, and whether it has a media
/// description. It contains no control characters.
pub fn title(bytes: &[u8]) -> String {
    let Ok(message) = parse(bytes, true) else { return "malformed".into() };
    let name = match message.start {
        Start::Request { method, .. } => text(method).into_string(),
        Start::Response { code, reason } => format!("{code} {}", text(reason)),
    };
    let described = message.content_type.to_ascii_lowercase().starts_with(b"application/sdp");
    if described { name + " (SDP)" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVITE: &[u8] = b"INVITE sip:bob@example.com SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9\r\n\
        f: \"A \\\" <;tag=no>\" <sip:alice@example.com;x=y> ;a=b; tag=one\r\nt: sip:bob@example.com;tag=two\r\n\
        i: 77@here\r\nCSeq: 1\r\n\t INVITE\r\nUser-Agent:x\r\nl: 4\r\n\r\nbody";

    #[test]
    fn compact_and_folded_headers_are_read() {
        let message = parse(INVITE, true).unwrap();
        assert_eq!(message.start, Start::Request { method: b"INVITE", uri: b"sip:bob@example.com" });
        assert_eq!((message.call_id, message.cseq, message.method), (&b"77@here"[..], 1, &b"INVITE"[..]));
        assert_eq!((message.from.uri, message.from.tag), (&b"sip:alice@example.com;x=y"[..], &b"one"[..]));
        assert_eq!((message.to.uri, message.to.tag), (&b"sip:bob@example.com"[..], &b"two"[..]));
        assert_eq!((message.agent, message.content_length), (&b"x"[..], Some(4)));
        assert_eq!((&INVITE[message.head_len..], message.fault), (&b"body"[..], None));
    }

    #[test]
    fn every_beginning_of_a_message_is_a_fault_until_its_end() {
        for length in 0..INVITE.len() - 4 {
            assert!(parse(&INVITE[..length], false).is_err(), "{length}");
        }
        assert!(parse(&INVITE[..INVITE.len() - 4], false).is_ok());
    }

    #[test]
    fn first_lines() {
        for good in
            ["SIP/2.0 200 OK", "SIP/2.0 486", "SIP/2.0 180 ", "ACK sip:x SIP/2.0\r\n", "X-1 tel:+1 SIP/2.0"]
        {
            assert!(begins(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "SIP/2.0 99 x",
            "SIP/2.0 700 x",
            "SIP/2.0 200OK",
            "GET / HTTP/1.1",
            "ACK  SIP/2.0",
            "invite x SIP/2.0",
            "NOTIFY * HTTP/1.1",
            "SIP/3.0 200 OK",
            "ACK sip:x SIP/2.0 ",
        ] {
            assert!(!begins(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn lengths_and_missing_headers_are_faults() {
        let with = |lines: &str| format!("BYE sip:x SIP/2.0\r\nFrom: sip:a\r\nTo: sip:b\r\n{lines}\r\n");
        let fault = |lines: &str| match parse(with(lines).as_bytes(), true) {
            Ok(message) => message.fault,
            Err(fault) => Some(fault),
        };
        assert_eq!(fault("Call-ID: 1\r\nCSeq: 1 BYE\r\n"), None);
        assert_eq!(fault("CSeq: 1 BYE\r\n"), Some(Fault::Header));
        assert_eq!(fault("Call-ID:\r\nCSeq: 1 BYE\r\n"), Some(Fault::Header));
        assert_eq!(fault("Call-ID: 1\r\nCSeq: 4294967296 BYE\r\n"), Some(Fault::Header));
        assert_eq!(fault("Call-ID: 1\r\nCSeq: BYE\r\n"), Some(Fault::Header));
        assert_eq!(fault("Call-ID: 1\r\nCSeq: 1 BYE\r\nl: 1\r\nContent-Length: 2\r\n"), Some(Fault::Length));
        assert_eq!(fault("Call-ID: 1\r\nCSeq: 1 BYE\r\nl: -1\r\n"), Some(Fault::Length));
        assert_eq!(fault("Call-ID: 1\r\nCSeq: 1 BYE\r\nno colon\r\n"), Some(Fault::Header));
        let long = with("Call-ID: 1\r\nCSeq: 1 BYE\r\nl: 99999999999999999999999\r\n");
        assert_eq!(parse(long.as_bytes(), true).unwrap().content_length, Some(u64::MAX));
    }

    /// Battery: I6
    #[test]
    fn headers_of_any_length_and_number() {
        let with = |lines: &str| {
            let head = "INVITE sip:b SIP/2.0\r\nFrom: sip:a\r\nTo: sip:b\r\nCall-ID: 1\r\nCSeq: 1 INVITE\r\n";
            format!("{head}{lines}\r\n").into_bytes()
        };
        for name in ["Warning", "Via", "User-Agent", "Contact", "X"] {
            for length in [0, 1, 8 << 10, 60_000] {
                let bytes = with(&format!("{name}: {}\r\n", "x".repeat(length)));
                let message = parse(&bytes, false).unwrap();
                assert_eq!((message.head_len, message.call_id), (bytes.len(), &b"1"[..]), "{name}: {length}");
                let agent = if name == "User-Agent" { length } else { 0 };
                assert_eq!((message.fault, message.agent.len()), (None, agent));
            }
            // More than UDP can carry.
            let long = with(&format!("{name}: {}\r\n", "x".repeat(64 << 10)));
            assert_eq!([true, false].map(|whole| parse(&long, whole)), [Err(Fault::Head); 2], "{name}");
        }
        let many = with(&"v: x\r\n".repeat(10_000));
        assert_eq!(parse(&many, true).unwrap().head_len, many.len());
    }

    #[test]
    fn texts_hold_no_controls() {
        assert_eq!(&*text(b"a\x1b[2J\x7f\xff"), "a\\u{1b}[2J\\u{7f}\u{fffd}");
        assert_eq!(text(&[b'x'; 999]).len(), LONGEST_TEXT);
    }
}
