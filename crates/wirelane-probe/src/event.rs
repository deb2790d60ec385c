//! Events of a reader: results, alarms, and actions.

use serde::Serialize;

use crate::alarm::AlarmEvent;
use crate::config::Recording;
use crate::packet_buffer::Wanted;
use crate::result::Shown;

/// What is to be shown or done.
#[derive(Clone, Debug)]
pub enum Event {
    /// What a measurement has come to.
    Shown(Shown),
    /// An alarm is raised or cleared.
    Alarm(AlarmEvent),
    /// A line for people.
    Log(String),
    /// An event is to be sent to the target of this action, by its place.
    Export(usize, AlarmEvent),
    /// Packets around an event are to be recorded.
    Record(Box<Recorded>),
    /// A program is to be run, with these arguments.
    Run {
        /// The program and its arguments.
        words: Vec<String>,
        /// When it is ended, nanoseconds.
        timeout_ns: u64,
    },
}

/// An event around which packets are to be recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The action, by its place.
    pub action: usize,
    /// What is to be done.
    pub recording: Recording,
    /// The event.
    pub alarm: AlarmEvent,
    /// The packets.
    pub wanted: Wanted,
}

/// What everything has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Packets that workers have counted.
    #[serde(rename = "probed")]
    pub packets: u64,
    /// Their bytes on the wire.
    #[serde(rename = "probed_bytes")]
    pub bytes: u64,
    /// Of the packets, those that were counted in a later interval than theirs, as they came late.
    pub late: u64,
    /// Intervals.
    pub intervals: u64,
    /// Intervals without packets that nobody has looked at, as there were too many of them.
    pub skipped_intervals: u64,
    /// Configurations that were taken up after the first.
    pub reloads: u64,
    /// Alarms that were raised.
    pub alarms_raised: u64,
    /// Alarms that were cleared.
    pub alarms_cleared: u64,
    /// Times that an alarm was not raised, as too many others were.
    pub alarms_untracked: u64,
}

/// An event on a line: names are of letters, digits and a few signs, keys of addresses and numbers.
pub(crate) fn log_line(event: &AlarmEvent) -> String {
    let key = if event.key_text.is_empty() { String::new() } else { format!(" of {}", event.key_text) };
    let AlarmEvent { alarm, state, value_name, value, time, .. } = event;
    format!("alarm {alarm} {}{key}: {value_name} {value} at {time}", state.name())
}

/// An argument with what stands in braces filled in. It is one argument, whatever that is.
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
