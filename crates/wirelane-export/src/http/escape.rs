//! Escapes untrusted bytes for log lines.

use std::io::Write as _;

use wirelane::escape::{is_unsafe, push_json};

/// Escapes like Apache's mod_log_config (`ap_escape_logitem()`): a backslash before quotes and backslashes, five
/// control characters as their letters in C, everything else that is not printable ASCII as `\xhh`.
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

/// Escapes like nginx's log module (`ngx_http_log_escape()`): quotes, backslashes and everything else that is not
/// printable ASCII as `\xHH`.
pub fn nginx(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b' '..=b'~' if !b"\"\\".contains(byte) => out.push(*byte),
            _ => push(out, format_args!("\\x{byte:02X}")),
        }
    }
}

/// Like [`apache`], for a single word, in which blanks are escaped, too.
pub fn apache_word(out: &mut Vec<u8>, bytes: &[u8]) {
    for part in bytes.split_inclusive(|byte| *byte == b' ') {
        let word = part.strip_suffix(b" ");
        apache(out, word.unwrap_or(part));
        if word.is_some() {
            out.extend(*b"\\x20");
        }
    }
}

/// Escapes as in URLs: everything except printable ASCII, and blanks, as `%XX`.
pub fn percent(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'!'..=b'~' => out.push(*byte),
            _ => push(out, format_args!("%{byte:02X}")),
        }
    }
}

/// Escapes like IIS: a blank becomes a plus, everything except printable ASCII `%XX`. An empty value is `-`.
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

/// Appends bytes as a JSON string with quotes: UTF-8 is kept, except for unsafe characters, which become `\uXXXX`;
/// other bytes become the four characters `\xhh`.
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

/// Converts to plain text: UTF-8 is kept, other bytes become the four characters `\xhh`. Equals the text of [`json`]
/// after its escapes are decoded.
pub fn plain(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text += &format!("\\x{byte:02x}"));
    }
    text
}

/// Writes formatted text to memory, which does not fail.
pub fn push(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}
