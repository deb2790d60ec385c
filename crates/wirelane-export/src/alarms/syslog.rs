//! Syslog messages (RFC 5424).

use std::fmt::Write as _;

use wirelane::escape::printable;
use wirelane_probe::{AlarmEvent, State};

use crate::calendar::calendar;

/// Facility `daemon`, with severities warning and notice.
const WARNING: u32 = 3 * 8 + 4;
const NOTICE: u32 = 3 * 8 + 5;
/// The enterprise number reserved for documentation (RFC 5612): these elements are not registered.
const ENTERPRISE: u32 = 32_473;

/// The message for an alarm: its fields as structured data, and a line for people.
pub(super) fn message(alarm: &AlarmEvent, host: &str) -> String {
    let priority = match alarm.state {
        State::Raised => WARNING,
        State::Cleared => NOTICE,
    };
    let time = calendar(alarm.end_ns / 1_000_000_000);
    let mut text = format!(
        "<{priority}>1 {}.{:06}Z {} wirelane {} alarm [wirelane@{ENTERPRISE}",
        time.strftime("%Y-%m-%dT%H:%M:%S"),
        alarm.end_ns / 1000 % 1_000_000,
        name(host),
        std::process::id()
    );
    let value = alarm.value.to_string();
    for (field, what) in [
        ("alarm", alarm.alarm.as_str()),
        ("state", alarm.state.name()),
        ("measurement", &alarm.measurement),
        ("key", &alarm.key_text),
        ("valueName", &alarm.value_name),
        ("value", &value),
        ("end", &alarm.time),
    ] {
        // Writing to a String does not fail.
        let _ = write!(text, " {field}=\"{}\"", escaped(what));
    }
    let key =
        if alarm.key_text.is_empty() { String::new() } else { format!(" of {}", printable(&alarm.key_text)) };
    let _ = write!(
        text,
        "] alarm {} {}{key}: {} {value}",
        printable(&alarm.alarm),
        alarm.state.name(),
        printable(&alarm.value_name)
    );
    text
}

/// A host name of printable characters without blanks; `-` if it is empty.
fn name(host: &str) -> String {
    let host: String = host.chars().filter(char::is_ascii_graphic).take(255).collect();
    if host.is_empty() { "-".to_owned() } else { host }
}

/// A value of structured data: `"`, `\` and `]` are escaped with `\` (6.3.3).
fn escaped(text: &str) -> String {
    let mut value = String::new();
    for c in printable(text).chars() {
        if matches!(c, '"' | '\\' | ']') {
            value.push('\\');
        }
        value.push(c);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_stays_in_its_place() {
        let alarm = AlarmEvent {
            alarm: "a".into(),
            measurement: "m".into(),
            state: State::Cleared,
            key: serde_json::Map::new(),
            key_text: "x\"] [evil@1 a=\"b\\\n<0>1\u{1b}[2J".into(),
            value_name: "counter \"7]".into(),
            value: 1.5,
            time: "1700000000.000000000".into(),
            end_ns: 1_700_000_000_123_456_789,
        };
        let text = message(&alarm, "ho st\n");
        let id = std::process::id();
        assert_eq!(
            text,
            format!(
                "<29>1 2023-11-14T22:13:20.123456Z host wirelane {id} alarm [wirelane@32473 alarm=\"a\" state=\"cleared\" \
                 measurement=\"m\" key=\"x\\\"\\] [evil@1 a=\\\"b\\\\\\\\n<0>1\\\\u{{1b}}[2J\" valueName=\"counter \\\"7\\]\" \
                 value=\"1.5\" end=\"1700000000.000000000\"] alarm a cleared of x\"] [evil@1 a=\"b\\\\n<0>1\\u{{1b}}[2J: \
                 counter \"7] 1.5"
            )
        );
        assert!(!text.contains(['\n', '\u{1b}']));
        assert_eq!(name("\n "), "-");
    }
}
