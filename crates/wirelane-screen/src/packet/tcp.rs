//! TCP headers.

use std::fmt::Write as _;

use super::{long, word};

/// Flags by their bits, in tcpdump's order.
const FLAGS: [(u8, char); 8] =
    [(0x01, 'F'), (0x02, 'S'), (0x04, 'R'), (0x08, 'P'), (0x10, '.'), (0x20, 'U'), (0x40, 'E'), (0x80, 'W')];

/// The fields of a segment whose header and payload have `length` bytes on the wire.
pub(super) fn segment(segment: &[u8], length: usize) -> Option<String> {
    let (seq, ack, window) = (long(segment, 4)?, long(segment, 8)?, word(segment, 14)?);
    let header = usize::from(segment[12] >> 4) * 4;
    let bits = segment[13];
    let payload = length.checked_sub(header).filter(|_| header >= 20);
    let mut text = String::from("Flags [");
    text.extend(FLAGS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, letter)| letter));
    if bits == 0 {
        text.push_str("none");
    }
    text.push(']');
    let Some(payload) = payload else {
        text.push_str(", bad header length");
        return Some(text);
    };
    if payload > 0 {
        // Sequence numbers wrap around.
        let _ = write!(text, ", seq {seq}:{}", seq.wrapping_add(payload as u32));
    } else if bits & 0x07 != 0 {
        let _ = write!(text, ", seq {seq}");
    }
    if bits & 0x10 != 0 {
        let _ = write!(text, ", ack {ack}");
    }
    let _ = write!(text, ", win {window}");
    if bits & 0x20 != 0 {
        let _ = write!(text, ", urg {}", word(segment, 18)?);
    }
    if header > 20 {
        let found = segment.get(20..header).map(options);
        let _ = write!(text, ", options [{}]", found.as_deref().unwrap_or("cut"));
    }
    let _ = write!(text, ", length {payload}");
    Some(text)
}

/// Options, with commas. Padding after the end is not shown.
fn options(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some(&kind) = bytes.first() {
        text.push_str(if text.is_empty() { "" } else { "," });
        if kind < 2 {
            text.push_str(if kind == 0 { "eol" } else { "nop" });
            if kind == 0 {
                break;
            }
            bytes = &bytes[1..];
            continue;
        }
        let size = bytes.get(1).map_or(0, |&size| usize::from(size));
        let Some(value) = bytes.get(2..size) else {
            text.push_str("bad");
            break;
        };
        text.push_str(&option(kind, value));
        bytes = &bytes[size..];
    }
    text
}

/// An option with its value.
fn option(kind: u8, value: &[u8]) -> String {
    match (kind, value.len()) {
        (2, 2) => format!("mss {}", u16::from_be_bytes([value[0], value[1]])),
        (3, 1) => format!("wscale {}", value[0]),
        (4, 0) => "sackOK".to_owned(),
        (5, length) if length > 0 && length % 8 == 0 => {
            let mut text = format!("sack {} ", length / 8);
            for block in value.chunks_exact(8) {
                let (from, to) = (long(block, 0).unwrap_or_default(), long(block, 4).unwrap_or_default());
                let _ = write!(text, "{{{from}:{to}}}");
            }
            text
        }
        (8, 8) => {
            let (sent, echoed) = (long(value, 0).unwrap_or_default(), long(value, 4).unwrap_or_default());
            format!("TS val {sent} ecr {echoed}")
        }
        _ => {
            let mut text = format!("unknown-{kind}");
            if !value.is_empty() {
                text.push_str(" 0x");
                value.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
            }
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_and_wrong_headers_give_shorter_text() {
        let mut whole = vec![0u8; 32];
        whole[12..20].copy_from_slice(&[0x80, 0x12, 0, 9, 0, 0, 0, 0]);
        whole[20..].copy_from_slice(&[2, 4, 5, 0xb4, 3, 3, 7, 5, 200, 0, 0, 0]);
        let text = segment(&whole, 32).unwrap();
        assert_eq!(text, "Flags [S.], seq 0, ack 0, win 9, options [mss 1460,wscale 7,bad], length 0");
        for cut in 0..whole.len() {
            let text = segment(&whole[..cut], 32);
            assert_eq!(text.is_some(), cut >= 16, "{cut}: {text:?}");
            assert!(text.is_none_or(|text| text.contains("options [cut]")), "{cut}");
        }
        whole[12] = 0x40;
        assert_eq!(segment(&whole, 32).unwrap(), "Flags [S.], bad header length");
    }
}
