//! The time of a recording in the name of its file.

use std::time::SystemTime;

/// A file name with strftime's conversions of numbers replaced. Other percent signs stay as they are.
pub fn time_in_name(name: &str, now: SystemTime) -> String {
    // 2026-03-01T12:00:00Z
    let date = humantime::format_rfc3339_seconds(now).to_string();
    let epoch = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut text = String::with_capacity(name.len() + 16);
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.clone().next() {
            Some('Y') => text.push_str(&date[..4]),
            Some('y') => text.push_str(&date[2..4]),
            Some('m') => text.push_str(&date[5..7]),
            Some('d') => text.push_str(&date[8..10]),
            Some('H') => text.push_str(&date[11..13]),
            Some('M') => text.push_str(&date[14..16]),
            Some('S') => text.push_str(&date[17..19]),
            Some('F') => text.push_str(&date[..10]),
            Some('T') => text.push_str(&date[11..19]),
            Some('s') => text.push_str(&epoch.to_string()),
            Some('%') => text.push('%'),
            _ => {
                text.push('%');
                continue;
            }
        }
        letters.next();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn names_have_the_time() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_772_366_645);
        for (name, expected) in [
            ("a-%Y%m%d-%H%M%S.pcap", "a-20260301-120405.pcap"),
            ("%F_%T_%y_%s", "2026-03-01_12:04:05_26_1772366645"),
            ("100%.pcap", "100%.pcap"),
            ("%%Y %q %", "%Y %q %"),
            ("plain.pcap", "plain.pcap"),
        ] {
            assert_eq!(time_in_name(name, now), expected);
        }
    }
}
