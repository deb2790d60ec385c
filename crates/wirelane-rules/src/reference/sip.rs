//! Finds the value of a SIP header field, line by line.

use std::ops::Range;

use crate::patterns::{METHODS, RESPONSE, SCHEMES, SipHeader};

/// The first bytes of the lines of a SIP message's head, behind its first line. Empty unless the payload begins like a SIP
/// message.
pub(super) fn lines(payload: &[u8]) -> Vec<usize> {
    if !begins(payload) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    let mut at = 0;
    for (number, line) in payload.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if number > 0 && matches!(line, b"\n" | b"\r\n") {
            break;
        }
        if number > 0 {
            lines.push(at);
        }
        at += line.len();
    }
    lines
}

/// Whether the payload begins like a SIP message.
fn begins(payload: &[u8]) -> bool {
    let begins = |text: &str| {
        payload.get(..text.len()).is_some_and(|first| first.eq_ignore_ascii_case(text.as_bytes()))
    };
    let request = |method: &&str| SCHEMES.iter().any(|scheme| begins(&format!("{method} {scheme}")));
    begins(RESPONSE) || METHODS.iter().any(request)
}

/// The ranges of this payload that are values of the field, without line ends and folding. Empty unless the payload
/// begins like a SIP message.
pub(super) fn values(payload: &[u8], header: SipHeader) -> Vec<Range<usize>> {
    let mut values = Vec::new();
    if !begins(payload) {
        return values;
    }
    let (mut at, mut within) = (0, false);
    for (number, line) in payload.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let start = at;
        at += line.len();
        if number == 0 {
            continue;
        }
        let text = line.strip_suffix(b"\n");
        if matches!(text, Some(b"" | b"\r")) {
            // The body follows.
            break;
        }
        let text = text.unwrap_or(line);
        let skipped = match text.first() {
            Some(b' ' | b'\t') => within.then_some(1),
            _ => behind_name(text, header),
        };
        within = skipped.is_some();
        values.extend(skipped.map(|skipped| start + skipped..start + text.len()));
    }
    values
}

/// The length of the field's name with its colon, if the line begins with it.
fn behind_name(line: &[u8], header: SipHeader) -> Option<usize> {
    header.names().into_iter().find_map(|name| {
        let rest = line.get(name.len()..)?;
        let blank = usize::from(matches!(rest.first(), Some(b' ' | b'\t')));
        let is_name = line[..name.len()].eq_ignore_ascii_case(name.as_bytes());
        (is_name && rest.get(blank) == Some(&b':')).then_some(name.len() + blank + 1)
    })
}
