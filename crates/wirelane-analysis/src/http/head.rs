//! Heads: their fields, and the length of the body after them (RFC 9112, sections 2, 3, 4 and 6).

use httparse::{EMPTY_HEADER, Header, ParserConfig, Status};

use wirelane_bpf::http::HEAD_MOST;

use super::transaction::{Mark, Marks, Message, fields};

/// Maximum stored bytes of a line.
const LINE_MOST: usize = 16 << 10;
/// Maximum number of fields of most heads.
const FEW: usize = 64;

/// Role of the sender in a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This many bytes; 0: no body.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Up to the end of the connection.
    UntilClose,
    /// Unknown: up to the next packet that begins with a head.
    Unknown,
    /// The following bytes are not HTTP.
    Tunnel,
}

/// Fields that determine the framing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lengths {
    stated: Option<u64>,
    length_bad: bool,
    coding: Coding,
    upgrade: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Coding {
    #[default]
    None,
    Chunked,
    Other,
}

/// Whether a first line, without its end, is a line of HTTP/1.
pub fn is_line(line: &[u8], role: Role) -> bool {
    match role {
        Role::Server => {
            let known = line.len() >= 12 && line.starts_with(b"HTTP/1.") && line[7].is_ascii_digit();
            known && line[8] == b' ' && line[9..12].iter().all(u8::is_ascii_digit)
        }
        Role::Client => {
            let line = line.trim_ascii_end();
            let version = line.len().checked_sub(9).map(|at| &line[at..]);
            version.is_some_and(|version| version.starts_with(b" HTTP/1.") && version[8].is_ascii_digit())
        }
    }
}

/// Parses a head, or the beginning of one: then (`broken`, or as many bytes as the limit) a fault at the end of `bytes`
/// is ignored. `extra`: names of fields that are stored in addition to [`fields::KEPT`], in lower case.
pub fn read(bytes: &[u8], role: Role, broken: bool, extra: &[Box<str>]) -> (Message, Lengths) {
    let cut = broken || bytes.len() >= HEAD_MOST;
    let mut message = Message { minor: 255, ..Message::default() };
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    message.line = line[..line.len().min(LINE_MOST)].into();
    if line.len() > LINE_MOST {
        message.marks.set(Mark::HeadCut);
    }
    if bytes.contains(&0) {
        message.marks.set(Mark::Nul);
    }
    if bytes.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r')) {
        message.marks.set(Mark::BareLf);
    }
    words(&mut message, role);
    let mut behind = bytes[(end + 1).min(bytes.len())..].to_vec();
    if unfold(&mut behind) {
        message.marks.set(Mark::Folded);
    }
    let mut lengths = Lengths::default();
    let line_end = (end + 1).min(bytes.len());
    if !is_strict(&bytes[..line_end], role) && !cut {
        message.marks.set(Mark::Malformed);
    }
    let good = each_field(&behind, |name, value| {
        note(&mut message.marks, &mut lengths, name, value);
        let known = fields::KEPT.iter().copied().chain(extra.iter().map(|name| &**name));
        if let Some(number) = known.into_iter().position(|known| name.eq_ignore_ascii_case(known)) {
            message.fields.push((number as u8, value.into()));
        }
    });
    if !good && !cut {
        message.marks.set(Mark::Malformed);
    }
    message.stated = lengths.stated;
    message.chunked = lengths.coding == Coding::Chunked;
    (message, lengths)
}

/// Splits the first line into its words.
fn words(message: &mut Message, role: Role) {
    let line = message.line.trim_ascii_end();
    let minor = |version: &[u8]| match version {
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor] if minor.is_ascii_digit() => minor - b'0',
        _ => 255,
    };
    match role {
        Role::Client => {
            let (method, rest) = split(line);
            let last = rest.iter().rposition(|byte| *byte == b' ');
            let (target, version) = last.map_or((rest, &b""[..]), |at| (&rest[..at], &rest[at + 1..]));
            let (target, version) = if minor(version) == 255 { (rest, &b""[..]) } else { (target, version) };
            let (method, target, minor) = (method.into(), target.trim_ascii().into(), minor(version));
            (message.method, message.target, message.minor) = (method, target, minor);
        }
        Role::Server => {
            let (version, rest) = split(line);
            message.minor = minor(version);
            let digits = rest.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit));
            message.status =
                digits.map_or(0, |digits| digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0')));
        }
    }
}

fn split(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, b""),
    }
}

/// Whether httparse accepts the first line.
fn is_strict(line: &[u8], role: Role) -> bool {
    let mut none = [];
    let head = [line, b"\r\n"].concat();
    let config = ParserConfig::default();
    match role {
        Role::Client => {
            let mut request = httparse::Request::new(&mut none);
            matches!(config.parse_request(&mut request, &head), Ok(Status::Complete(_)))
        }
        Role::Server => {
            let mut response = httparse::Response::new(&mut none);
            matches!(config.parse_response(&mut response, &head), Ok(Status::Complete(_)))
        }
    }
}

/// Calls `each` for each complete field of these lines. False: some lines are not valid fields.
fn each_field(lines: &[u8], mut each: impl FnMut(&str, &[u8])) -> bool {
    let mut few = [EMPTY_HEADER; FEW];
    let mut give = |headers: &[Header<'_>]| {
        for header in headers.iter().filter(|header| !header.name.is_empty()) {
            each(header.name, header.value);
        }
    };
    match httparse::parse_headers(lines, &mut few) {
        Ok(Status::Complete((_, headers))) => {
            give(headers);
            return true;
        }
        // It may still be valid: more fields, or a truncated head.
        Ok(Status::Partial) | Err(_) => {}
    }
    // Line by line: a fault in one line does not affect the others.
    let mut good = true;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if matches!(line, b"\r\n" | b"\n") {
            return good;
        }
        let mut one = [EMPTY_HEADER; 1];
        let whole = [line, b"\r\n"].concat();
        match httparse::parse_headers(&whole, &mut one) {
            Ok(Status::Complete((_, headers))) => give(headers),
            // The value has bytes that are not allowed: it was sent, so it is logged, and its name still counts.
            _ => {
                good = false;
                let colon = line.iter().position(|byte| *byte == b':');
                let name = colon.and_then(|at| std::str::from_utf8(&line[..at]).ok());
                if let (Some(name), Some(at)) = (name.filter(|name| is_name(name)), colon) {
                    give(&[Header { name, value: line[at + 1..].trim_ascii() }]);
                }
            }
        }
    }
    // No empty line: the head is truncated.
    good
}

/// Whether it is a valid field name (RFC 9110, 5.1).
fn is_name(name: &str) -> bool {
    let sign = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(sign)
}

/// Replaces the line ends of folded lines by blanks (RFC 9112, 5.2). Returns whether there were any.
fn unfold(lines: &mut [u8]) -> bool {
    let mut folded = false;
    for at in 0..lines.len() {
        if lines[at] == b'\n' && at > 0 && matches!(lines.get(at + 1), Some(b' ' | b'\t')) {
            lines[at] = b' ';
            if lines[at - 1] == b'\r' {
                lines[at - 1] = b' ';
            }
            folded = true;
        }
    }
    folded
}

fn note(marks: &mut Marks, lengths: &mut Lengths, name: &str, value: &[u8]) {
    if name.eq_ignore_ascii_case("content-length") {
        // A list that repeats one number counts as that number (RFC 9110, 8.6).
        for number in value.split(|byte| *byte == b',') {
            match (length(number.trim_ascii()), lengths.stated) {
                (Some(length), None) => lengths.stated = Some(length),
                (Some(length), Some(before)) if length == before => {}
                _ => {
                    lengths.length_bad = true;
                    marks.set(Mark::BadLength);
                }
            }
        }
    } else if name.eq_ignore_ascii_case("transfer-encoding") {
        let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default().trim_ascii();
        let chunked = last.eq_ignore_ascii_case(b"chunked");
        lengths.coding = if chunked { Coding::Chunked } else { Coding::Other };
    } else if name.eq_ignore_ascii_case("upgrade") {
        lengths.upgrade = true;
    }
}

/// A decimal number below 2^63.
fn length(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digit = |sum: u64, digit: &u8| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'));
    digits.iter().try_fold(0, digit).filter(|length| *length < 1 << 63)
}

/// Framing of the body after the head of a request (RFC 9112, 6.3).
pub fn of_request(message: &mut Message, lengths: Lengths) -> Framing {
    match (lengths.coding, lengths.stated) {
        (Coding::None, _) if lengths.length_bad => Framing::Unknown,
        // The missing part of a truncated head may contain framing fields.
        (Coding::None, None) if message.marks.has(Mark::HeadCut) => Framing::Unknown,
        (Coding::None, length) => Framing::Length(length.unwrap_or(0)),
        (Coding::Chunked, length) => {
            if length.is_some() {
                message.marks.set(Mark::LengthAndCoding);
            }
            Framing::Chunked
        }
        (Coding::Other, _) => {
            message.marks.set(Mark::BadCoding);
            Framing::Unknown
        }
    }
}

/// Framing of the body after the head of a response. `method`: method of the request, if known.
pub fn of_response(message: &mut Message, lengths: Lengths, method: Option<&[u8]>) -> Framing {
    match message.status {
        101 => return Framing::Tunnel,
        200..=299 if method == Some(b"CONNECT") => return Framing::Tunnel,
        100..=199 | 204 | 304 => return Framing::Length(0),
        _ if method == Some(b"HEAD") => return Framing::Length(0),
        _ => {}
    }
    match (lengths.coding, lengths.stated) {
        (Coding::None, _) if lengths.length_bad => Framing::Unknown,
        (Coding::None, Some(length)) => Framing::Length(length),
        (Coding::None, None) if message.marks.has(Mark::HeadCut) => Framing::Unknown,
        (Coding::None, None) => Framing::UntilClose,
        (Coding::Chunked, length) => {
            if length.is_some() {
                message.marks.set(Mark::LengthAndCoding);
            }
            Framing::Chunked
        }
        (Coding::Other, _) => {
            message.marks.set(Mark::BadCoding);
            Framing::UntilClose
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(head: &str) -> (Message, Framing) {
        let (mut message, lengths) = read(head.as_bytes(), Role::Client, false, &[]);
        let framing = of_request(&mut message, lengths);
        (message, framing)
    }

    fn names(message: &Message) -> Vec<&'static str> {
        message.marks.names().collect()
    }

    #[test]
    fn a_request_is_read() {
        let head =
            "POST /a?b=c HTTP/1.1\r\nHost: example.org\r\nUser-Agent:  x y \r\nContent-Length: 12\r\n\r\n";
        let (message, framing) = request(head);
        assert_eq!((&*message.method, &*message.target, message.minor), (&b"POST"[..], &b"/a?b=c"[..], 1));
        assert_eq!(message.field(fields::HOST), Some(&b"example.org"[..]));
        assert_eq!(message.field(fields::USER_AGENT), Some(&b"x y"[..]));
        assert_eq!((framing, message.stated), (Framing::Length(12), Some(12)));
        assert!(names(&message).is_empty(), "{:?}", names(&message));
    }

    #[test]
    fn lengths_that_contradict_each_other_are_marked() {
        let line = "POST / HTTP/1.1\r\n";
        for (fields, framing, marks) in [
            ("Content-Length: 5\r\nContent-Length: 5\r\n", Framing::Length(5), vec![]),
            ("Content-Length: 5, 5\r\n", Framing::Length(5), vec![]),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length: 5, 6\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length: +5\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length: 0x5\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length:\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length: 4294967328\r\n", Framing::Length(4_294_967_328), vec![]),
            ("Content-Length: 9223372036854775807\r\n", Framing::Length(i64::MAX as u64), vec![]),
            ("Content-Length: 9223372036854775808\r\n", Framing::Unknown, vec!["bad_length"]),
            ("Content-Length: 18446744073709551648\r\n", Framing::Unknown, vec!["bad_length"]),
            (
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                Framing::Chunked,
                vec!["length_and_coding"],
            ),
            ("Transfer-Encoding: gzip, Chunked\r\n", Framing::Chunked, vec![]),
            ("Transfer-Encoding: chunked, identity\r\n", Framing::Unknown, vec!["bad_coding"]),
            ("Transfer-Encoding: xchunked\r\n", Framing::Unknown, vec!["bad_coding"]),
            ("Transfer-Encoding:\r\n chunked\r\n", Framing::Chunked, vec!["folded"]),
            ("Transfer-Encoding : chunked\r\n", Framing::Length(0), vec!["malformed"]),
            ("Content-Length: 5\n", Framing::Length(5), vec!["bare_lf"]),
            ("A: \0\r\nContent-Length: 5\r\n", Framing::Length(5), vec!["malformed", "nul"]),
        ] {
            let (message, found) = request(&format!("{line}{fields}\r\n"));
            assert_eq!((found, names(&message)), (framing, marks), "{fields:?}");
        }
    }

    #[test]
    fn a_head_of_many_fields_is_read_to_its_end() {
        let many: String = (0..2000).map(|n| format!("x-{n}: y\r\n")).collect();
        let (message, framing) = request(&format!("POST / HTTP/1.1\r\n{many}Content-Length: 9\r\n\r\n"));
        assert_eq!((framing, names(&message)), (Framing::Length(9), vec![]));
    }

    #[test]
    fn odd_first_lines_are_logged_as_they_are() {
        for (line, method, target, minor) in [
            ("GET  /two HTTP/1.1", "GET", "/two", 1),
            ("GET /a b c HTTP/1.0", "GET", "/a b c", 0),
            ("GET / HTTP/2.0", "GET", "/ HTTP/2.0", 255),
            ("GET", "GET", "", 255),
        ] {
            let (message, _) = request(&format!("{line}\r\nHost: a\r\n\r\n"));
            assert_eq!((&*message.line, &*message.method), (line.as_bytes(), method.as_bytes()));
            assert_eq!((&*message.target, message.minor), (target.as_bytes(), minor), "{line}");
            assert_eq!(message.field(fields::HOST), Some(&b"a"[..]));
            assert_eq!(names(&message), ["malformed"], "{line}");
        }
    }

    #[test]
    fn bodies_of_responses_follow_the_request() {
        let response = |status: u16, fields: &str, method: &[u8]| {
            let head = format!("HTTP/1.1 {status} Text\r\n{fields}\r\n");
            let (mut message, lengths) = read(head.as_bytes(), Role::Server, false, &[]);
            assert_eq!(message.status, status);
            of_response(&mut message, lengths, Some(method))
        };
        let length = "Content-Length: 7\r\n";
        assert_eq!(response(200, length, b"GET"), Framing::Length(7));
        assert_eq!(response(200, length, b"HEAD"), Framing::Length(0));
        assert_eq!(response(304, length, b"GET"), Framing::Length(0));
        assert_eq!(response(204, length, b"GET"), Framing::Length(0));
        assert_eq!(response(100, length, b"GET"), Framing::Length(0));
        assert_eq!(response(101, "", b"GET"), Framing::Tunnel);
        assert_eq!(response(200, length, b"CONNECT"), Framing::Tunnel);
        assert_eq!(response(407, length, b"CONNECT"), Framing::Length(7));
        assert_eq!(response(200, "", b"GET"), Framing::UntilClose);
        assert_eq!(response(200, "Transfer-Encoding: chunked\r\n", b"GET"), Framing::Chunked);
    }
}
