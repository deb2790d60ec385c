//! Escapes untrusted bytes for log lines.

use std::io::Write as _;

use wirelane::escape::{is_unsafe, push_json};

/// As Apache's mod_log_config does (`ap_escape_logitem()`): quotes and backslashes behind a backslash, five control
/// characters by their letters in C, all else that is not printable ASCII as `\xhh`.
pub fn apache(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            8 => out.extend(*b"\\b"),
            b'\n' => out.extend(*b"\\n"),
            b'\r' => out.extend(*b"\\r"),
            b'\t' => out.extend(*b"\\t"),
            11 => out.extend(*b"\\v"),
            b' '..=b'~' => out.push(*byte),
            _ => push(out, format_args!("\\x{byte:02x}")),
        }
    }
}

/// The same for a word of its own, in which blanks are escaped, too.
pub fn apache_word(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.split_inclusive(|byte| *byte == b' ') {
        let word = part.strip_suffix(b" ");
        apache(out, word.unwrap_or(part));
        if word.is_some() {
            out.extend(*b"\\x20");
        }
    }
}

/// As in URLs: what is not printable ASCII, and blanks, as `%XX`.
pub fn percent(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'!'..=b'~' => out.push(*byte),
            _ => push(out, format_args!("%{byte:02X}")),
        }
    }
}

/// As IIS does: a blank is a plus, what is not printable ASCII is `%XX`. Nothing at all is `-`.
pub fn iis(out: &mut Vec<u8>, bytes: &[u8]) {
    if bytes.is_empty() {
        out.push(b'-');
    }
    for byte in bytes {
        match byte {
            b' ' => out.push(b'+'),
            b'!'..=b'~' => out.push(*byte),
            _ => push(out, format_args!("%{byte:02X}")),
        }
    }
}

/// Appends bytes as a JSON string, with its quotes: UTF-8 stays, but for unsafe characters, which are `\uXXXX`; other bytes
/// are the four characters `\xhh`.
pub fn json(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' => out.extend(*b"\\\""),
                '\\' => out.extend(*b"\\\\"),
                _ if is_unsafe(character) => {
                    let mut escaped = String::new();
                    push_json(&mut escaped, character);
                    out.extend(escaped.into_bytes());
                }
                _ => push(out, format_args!("{character}")),
            }
        }
        for byte in chunk.invalid() {
            push(out, format_args!("\\\\x{byte:02x}"));
        }
    }
    out.push(b'"');
}

/// As plain text: what is UTF-8 stays, other bytes are the four characters `\xhh`. What JSON's escapes have, read back.
pub fn plain(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text += &format!("\\x{byte:02x}"));
    }
    text
}

/// Writes to memory, which does not fail.
pub fn push(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
