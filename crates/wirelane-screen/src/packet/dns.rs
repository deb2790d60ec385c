//! DNS messages: the question, and the answers.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use wirelane::escape::is_unsafe;

use super::{long, word};

/// Names of record types.
const TYPES: [(u16, &str); 18] = [
    (1, "A"),
    (2, "NS"),
    (5, "CNAME"),
    (6, "SOA"),
    (12, "PTR"),
    (13, "HINFO"),
    (15, "MX"),
    (16, "TXT"),
    (28, "AAAA"),
    (33, "SRV"),
    (35, "NAPTR"),
    (41, "OPT"),
    (43, "DS"),
    (46, "RRSIG"),
    (48, "DNSKEY"),
    (64, "SVCB"),
    (65, "HTTPS"),
    (255, "ANY"),
];
/// Names of response codes from 1 on.
const CODES: [&str; 5] = [" FormErr", " ServFail", " NXDomain", " NotImp", " Refused"];
/// Maximum number of answers that are shown.
const ANSWERS: u16 = 16;
/// Maximum length of a name, RFC 1035.
const LONGEST_NAME: usize = 255;

fn type_name(number: u16) -> String {
    TYPES
        .iter()
        .find(|(known, _)| *known == number)
        .map_or_else(|| format!("Type{number}"), |(_, name)| (*name).to_owned())
}

/// The text of a message; `None` if it is no DNS message or cut before its answers.
pub(super) fn message(message: &[u8]) -> Option<String> {
    let (id, bits) = (word(message, 0)?, word(message, 2)?);
    let counts = [word(message, 4)?, word(message, 6)?, word(message, 8)?, word(message, 10)?];
    let is_set = |bit: u16| bits & bit != 0;
    let opcode = bits >> 11 & 0xf;
    if opcode > 6 {
        return None;
    }
    let mut text = id.to_string();
    let mut at = 12;
    if !is_set(0x8000) {
        text.push_str(if is_set(0x0100) { "+" } else { "" });
        text.push_str(if is_set(0x0010) { "%" } else { "" });
        if counts[3] > 0 {
            let _ = write!(text, " [{}au]", counts[3]);
        }
        for _ in 0..counts[0].min(ANSWERS) {
            let (name, next) = name(message, at)?;
            let _ = write!(text, " {}? {name}", type_name(word(message, next)?));
            at = next + 4;
        }
        return Some(text);
    }
    text.push_str(match bits & 0xf {
        0 => "",
        code => CODES.get(usize::from(code) - 1).copied().unwrap_or(" Resp"),
    });
    for (shown, letter) in
        [(is_set(0x0400), '*'), (!is_set(0x0080), '-'), (is_set(0x0200), '|'), (is_set(0x0020), '$')]
    {
        if shown {
            text.push(letter);
        }
    }
    let _ = write!(text, " {}/{}/{}", counts[1], counts[2], counts[3]);
    for _ in 0..counts[0].min(ANSWERS) {
        let (question, next) = name(message, at)?;
        let _ = write!(text, " q: {}? {question}", type_name(word(message, next)?));
        at = next + 4;
    }
    for number in 0..counts[1].min(ANSWERS) {
        let Some((answer, next)) = answer(message, at) else {
            text.push_str(" [cut]");
            break;
        };
        let _ = write!(text, "{} {answer}", if number == 0 { "" } else { "," });
        at = next;
    }
    Some(text)
}

/// The type and value of the resource record at this offset, and the offset of the next one.
fn answer(message: &[u8], at: usize) -> Option<(String, usize)> {
    let (_, at) = name(message, at)?;
    let (kind, size) = (word(message, at)?, usize::from(word(message, at + 8)?));
    let start = at + 10;
    let value = message.get(start..start + size)?;
    let shown = match kind {
        1 => Some(Ipv4Addr::from(long(value, 0)?).to_string()),
        28 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).to_string()),
        2 | 5 | 12 => Some(name(message, start)?.0),
        15 => Some(format!("{} {}", name(message, start + 2)?.0, word(value, 0)?)),
        _ => None,
    };
    let kind = type_name(kind);
    Some((shown.map_or_else(|| kind.clone(), |shown| format!("{kind} {shown}")), start + size))
}

/// The name at this offset, with a dot at its end, and the offset after it. Bytes that are not printable ASCII are
/// escaped.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let (mut after, mut bytes) = (None, 0);
    loop {
        let length = usize::from(*message.get(at)?);
        if length == 0 {
            text.push_str(if text.is_empty() { "." } else { "" });
            return Some((text, after.unwrap_or(at + 1)));
        }
        if length & 0xc0 == 0xc0 {
            let target = usize::from(word(message, at)? & 0x3fff);
            after.get_or_insert(at + 2);
            // A pointer leads backwards, so that no chain of them is endless.
            if target >= at {
                return None;
            }
            at = target;
            continue;
        }
        bytes += length + 1;
        if length > 63 || bytes > LONGEST_NAME {
            return None;
        }
        for &byte in message.get(at + 1..at + 1 + length)? {
            let character = char::from(byte);
            if byte.is_ascii_graphic() && byte != b'\\' && !is_unsafe(character) {
                text.push(character);
            } else {
                let _ = write!(text, "\\{byte:03}");
            }
        }
        text.push('.');
        at += 1 + length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_end_and_are_escaped() {
        let header = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let with = |name: &[u8]| message(&[&header[..], name, &[0, 1, 0, 1]].concat());
        assert_eq!(with(b"\x01a\x02\x1b \x00").as_deref(), Some("7+ A? a.\\027\\032."));
        // Pointers to themselves, forwards, and in a circle.
        for name in [&b"\xc0\x0c"[..], b"\xc0\x0e", b"\x01a\xc0\x0c\xc0\x0c", b"\x41a\x00", b"\x3fa"] {
            assert_eq!(with(name), None, "{name:?}");
        }
        let long = [&[63u8][..], &[b'a'; 63]].concat().repeat(5);
        assert_eq!(with(&[&long[..], &[0]].concat()), None);
    }
}
