//! Escaping of untrusted text: names, addresses and contents of packets on their way to terminals, tables, CSV and JSON.
//!
//! Every output of the project uses this module, so that there is one list of characters that are escaped.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal, an editor or a spreadsheet may act on a character instead of showing it: control characters (C0,
/// DEL, C1), those that change the direction of text, line and paragraph separators, and other zero-width characters.
pub fn is_unsafe(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

fn escape_where(text: &str, escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Most text is printable ASCII, which this check passes fast.
    if !text.chars().any(&escaped) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if escaped(character) { safe.extend(character.escape_default()) } else { safe.push(character) }
    }
    safe.into()
}

/// Escapes the [unsafe characters](is_unsafe) of a text as in Rust, so that it is on one line: `\n`, `\u{1b}`. A
/// backslash is not escaped, so that a text that was escaped before is not escaped twice.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_where(text, is_unsafe)
}

/// Escapes a text of several lines as [`printable`] does, but keeps line ends.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape_where(text, |character| character != '\n' && is_unsafe(character))
}

/// Escapes the unsafe characters of JSON as `\uXXXX`. Serializers escape C0 only; outside of strings, JSON has no other
/// unsafe characters than line ends, which stay.
pub fn json(text: &str) -> Cow<'_, str> {
    let escaped = |character: char| character >= '\x7f' && is_unsafe(character);
    if !text.chars().any(escaped) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if escaped(character) { push_json(&mut safe, character) } else { safe.push(character) }
    }
    safe.into()
}

/// Appends a character to a JSON string as `\uXXXX`, in UTF-16 (RFC 8259, 7).
pub fn push_json(out: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a String does not fail.
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// [`json`] of a value, without a line end.
///
/// # Errors
/// If the value has no JSON representation: for example, a map with keys other than strings.
pub fn to_json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    Ok(match json(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(safe) => safe,
    })
}

/// A cell of CSV (RFC 4180): [printable], and in quotes where needed. A formula, which a spreadsheet would run, gets an
/// apostrophe before it, which the spreadsheet does not show; a number does not.
pub fn csv_cell(text: &str) -> Cow<'_, str> {
    let safe = printable(text);
    let formula = is_formula(text);
    if !formula && !safe.contains([',', '"']) {
        return safe;
    }
    let safe = if formula { format!("'{safe}") } else { safe.into_owned() };
    if safe.contains([',', '"']) { format!("\"{}\"", safe.replace('"', "\"\"")).into() } else { safe.into() }
}

/// Whether a spreadsheet would take a cell for a formula (OWASP, CSV Injection), also by a full-width character.
fn is_formula(text: &str) -> bool {
    const FIRST: [char; 11] =
        ['=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'];
    let is_number = || {
        text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
            && text.parse::<f64>().is_ok()
    };
    text.starts_with(FIRST) && !is_number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_unsafe_character_is_left() {
        let unsafe_ones = "\0\n\r\t\x1b\x7f\u{85}\u{9b}\u{61c}\u{200b}\u{200d}\u{200e}\u{200f}\u{2028}\u{2029}\u{202a}\
                           \u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{fff9}\u{e0041}";
        for c in unsafe_ones.chars() {
            let text = format!("a{c}b");
            assert!(is_unsafe(c), "{c:?}");
            assert_eq!(printable(&text), format!("a{}b", c.escape_default()));
            for safe in [printable(&text).into_owned(), csv_cell(&text).into_owned(), to_json(&text).unwrap()]
            {
                assert!(!safe.contains(is_unsafe), "{safe:?}");
            }
            assert_eq!(serde_json::from_str::<String>(&to_json(&text).unwrap()).unwrap(), text, "{c:?}");
        }
        assert_eq!(printable_lines("a\nb\x1b\n"), "a\nb\\u{1b}\n");
        assert_eq!(json("\"\u{e0041}\u{9b}\"\n"), "\"\\udb40\\udc41\\u009b\"\n");
    }

    #[test]
    fn safe_text_is_the_same_text() {
        for text in ["", "eth1", "it's \\u{1b} \"x\"", "Grüße, 日本語 🦀", "a=b"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
            assert!(matches!(json(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn cells_are_quoted_and_no_formulas() {
        for (text, cell) in [
            ("", ""),
            ("a b", "a b"),
            ("a,\"b\"", "\"a,\"\"b\"\"\""),
            ("a\r\nb", "a\\r\\nb"),
            ("=1+1", "'=1+1"),
            ("@SUM(A1,A2)", "\"'@SUM(A1,A2)\""),
            ("\t=1", "'\\t=1"),
            ("\r=1", "'\\r=1"),
            ("-1.5e3", "-1.5e3"),
            ("+4930123456", "+4930123456"),
            ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
            ("-", "'-"),
            ("-inf", "'-inf"),
            ("\u{ff1d}1", "'\u{ff1d}1"),
        ] {
            assert_eq!(csv_cell(text), cell, "{text:?}");
        }
    }
}
