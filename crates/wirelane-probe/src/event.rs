//! Events of a reader: results, alarms, and actions.

use serde::Serialize;

use crate::alarm::AlarmEvent;
use crate::config::Recording;
use crate::packet_buffer::Wanted;
use crate::result::Shown;

/// An event that is to be shown or acted on.
#[derive(Clone, Debug)]
pub enum Event {
    /// Result of a measurement.
    Shown(Shown),
    /// An alarm is raised or cleared.
    Alarm(AlarmEvent),
    /// Log line for people.
    Log(String),
    /// Send an event to the target of the action with this index.
    Export(usize, AlarmEvent),
    /// Record packets around an event.
    Record(Box<Recorded>),
    /// Run a program with these arguments.
    Run {
        /// The program and its arguments.
        words: Vec<String>,
        /// Time limit in nanoseconds.
        timeout_ns: u64,
    },
}

/// An event around which packets are to be recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Index of the action.
    pub action: usize,
    /// Parameters of the recording.
    pub recording: Recording,
    /// Alarm event.
    pub alarm: AlarmEvent,
    /// Requested packets.
    pub wanted: Wanted,
}

/// Totals of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Packets that workers have counted.
    #[serde(rename = "probed")]
    pub packets: u64,
    /// Their bytes on the wire.
    #[serde(rename = "probed_bytes")]
    pub bytes: u64,
    /// Packets that were counted in a later interval than their own, as they arrived late.
    pub late: u64,
    /// Intervals.
    pub intervals: u64,
    /// Intervals without packets that were not evaluated, as there were too many of them.
    pub skipped_intervals: u64,
    /// Configurations that were adopted after the first.
    pub reloads: u64,
    /// Alarms that were raised.
    pub alarms_raised: u64,
    /// Alarms that were cleared.
    pub alarms_cleared: u64,
    /// Number of times that an alarm was not raised, as too many keys were raised.
    pub alarms_untracked: u64,
}

/// An event as a line: names consist of letters, digits and a few signs, keys of addresses and numbers.
pub(crate) fn log_line(event: &AlarmEvent) -> String {
    let key = if event.key_text.is_empty() { String::new() } else { format!(" of {}", event.key_text) };
    let AlarmEvent { alarm, state, value_name, value, time, .. } = event;
    format!("alarm {alarm} {}{key}: {value_name} {value} at {time}", state.name())
}

/// An argument with its placeholders in braces filled in. The result is always a single argument.
pub(crate) fn filled(word: &str, event: &AlarmEvent) -> String {
    let mut text = String::new();
    let mut parts = word.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        match name {
            "alarm" => text.push_str(&event.alarm),
            "measurement" => text.push_str(&event.measurement),
            "state" => text.push_str(event.state.name()),
            "key" => text.push_str(&event.key_text),
            "value" => text.push_str(&event.value.to_string()),
            _ => text.push_str(&event.time),
        }
        text.push_str(rest);
    }
    text
}
