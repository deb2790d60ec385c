//! The bytes of a packet: hexadecimal digits, characters, or both, in tcpdump's columns.

use std::fmt::Write as _;

use wirelane::Record;
use wirelane::escape::printable;

/// Form in which bytes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// 16 bytes a line, in hexadecimal digits.
    Hex,
    /// Characters beside the digits.
    HexAndText,
    /// Characters only; line ends are kept.
    Text,
}

/// Lines with the bytes of a packet, from its network header on or, with `link`, from the first byte on. Each line
/// begins with a tab, so that no content looks like the line of a packet.
pub fn dump(record: &Record<'_>, style: Dump, link: bool) -> String {
    let data = record.data();
    let start = if link { 0 } else { super::network_offset(record).unwrap_or(0) };
    let bytes = &data[start..];
    if style == Dump::Text { characters(bytes) } else { digits(bytes, style == Dump::HexAndText) }
}

fn digits(bytes: &[u8], with_text: bool) -> String {
    let mut text = String::with_capacity(bytes.len() * 5);
    for (row, line) in bytes.chunks(16).enumerate() {
        let mut columns = String::with_capacity(40);
        for pair in line.chunks(2) {
            columns.push(' ');
            pair.iter().for_each(|byte| _ = write!(columns, "{byte:02x}"));
        }
        let _ = write!(text, "\n\t{:#06x}: ", row * 16);
        if with_text {
            let shown: String = line
                .iter()
                .map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '.' })
                .collect();
            let _ = write!(text, "{columns:<40}  {shown}");
        } else {
            text.push_str(&columns);
        }
    }
    text
}

fn characters(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 16);
    for line in bytes.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        text.push_str("\n\t");
        text.extend(line.iter().map(|&byte| match byte {
            b'\t' | b' ' => ' ',
            byte if byte.is_ascii_graphic() => char::from(byte),
            _ => '.',
        }));
    }
    debug_assert!(text.split("\n\t").all(|line| printable(line) == line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_packet_acts_on_the_terminal() {
        let all: Vec<u8> = (0..=255).collect();
        for text in [digits(&all, false), digits(&all, true), characters(&all)] {
            let lines: Vec<&str> = text.split("\n\t").collect();
            assert_eq!(lines.concat(), printable(&lines.concat()));
            assert!(!lines.concat().contains('\t'));
        }
        assert_eq!(digits(b"\x45\x00abc", true), format!("\n\t0x0000:  {:<40} E.abc", "4500 6162 63"));
    }
}
