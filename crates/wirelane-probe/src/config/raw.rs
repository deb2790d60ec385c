//! Tables of the file, as serde reads them.

use std::collections::BTreeMap;
use std::fmt;

use super::{Analysis, Capture, Field, Value};
use crate::placed::At;
use serde::de::{Deserializer, Error as _, IgnoredAny, IntoDeserializer as _};
use serde::{Deserialize, de};

/// The whole file. Rules, lists, sets and patterns are read by the rules reader.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Raw {
    pub interval: Option<At<Time>>,
    #[serde(default)]
    pub capture: Capture,
    #[serde(default)]
    pub rule: Vec<At<IgnoredAny>>,
    #[serde(rename = "lists")]
    pub _lists: Option<IgnoredAny>,
    #[serde(rename = "sets")]
    pub _sets: Option<IgnoredAny>,
    #[serde(rename = "patterns")]
    pub _patterns: Option<IgnoredAny>,
    #[serde(default)]
    pub plugin: Vec<At<Plugin>>,
    #[serde(default)]
    pub measurement: Vec<At<Measurement>>,
    #[serde(default)]
    pub alarm: Vec<At<Alarm>>,
    #[serde(default)]
    pub action: Vec<At<Action>>,
    #[serde(default)]
    pub schedule: Vec<At<Schedule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Plugin {
    pub name: At<String>,
    pub file: At<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Measurement {
    pub name: At<String>,
    pub rule: Option<At<String>>,
    #[serde(default)]
    pub key: Vec<At<Field>>,
    pub prefix: Option<At<u8>>,
    pub prefix6: Option<At<u8>>,
    pub values: Option<At<Vec<At<Value>>>>,
    pub keys: Option<At<usize>>,
    pub show: Option<usize>,
    pub precision: Option<At<u32>>,
    pub bin: Option<At<Time>>,
    pub analysis: Option<At<Analysis>>,
    pub plugin: Option<At<String>>,
    pub counters: Option<At<Vec<At<String>>>>,
    pub active: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Alarm {
    pub name: At<String>,
    pub measurement: At<String>,
    pub value: Option<At<Value>>,
    pub counter: Option<At<String>>,
    pub above: Option<At<f64>>,
    pub below: Option<At<f64>>,
    pub rises: Option<At<f64>>,
    pub falls: Option<At<f64>>,
    pub clear: Option<At<f64>>,
    pub least: Option<At<f64>>,
    pub over: Option<At<usize>>,
    pub raise_after: Option<At<u32>>,
    pub clear_after: Option<At<u32>>,
    #[serde(default)]
    pub actions: Vec<At<String>>,
    pub active: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Action {
    pub name: At<String>,
    pub on: Option<At<Vec<On>>>,
    pub log: Option<bool>,
    pub run: Option<At<Vec<At<String>>>>,
    pub timeout: Option<At<Time>>,
    #[serde(default)]
    pub activate: Vec<At<String>>,
    #[serde(default)]
    pub deactivate: Vec<At<String>>,
    #[serde(default)]
    pub retime: BTreeMap<String, At<Moment>>,
    pub record: Option<At<Record>>,
    pub digest: Option<At<String>>,
    pub export: Option<At<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Record {
    pub folder: At<String>,
    pub before: Option<At<Time>>,
    pub after: Option<At<Time>>,
    pub buffer: Option<At<Size>>,
    pub most: Option<At<Size>>,
    pub rule: Option<At<String>>,
    pub cool_down: Option<At<Time>>,
    pub at_once: Option<At<usize>>,
    pub files: Option<At<u64>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum On {
    Raise,
    Clear,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Schedule {
    pub name: At<String>,
    pub every: Option<At<Time>>,
    pub at: Option<At<Clock>>,
    pub days: Option<At<Vec<Day>>>,
    #[serde(default)]
    pub activate: Vec<At<String>>,
    #[serde(default)]
    pub deactivate: Vec<At<String>>,
    #[serde(default)]
    pub retime: BTreeMap<String, At<Moment>>,
    #[serde(default)]
    pub flush: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// A length of time, in nanoseconds: `"10s"`.
#[derive(Clone, Copy)]
pub(super) struct Time(pub u64);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let wanted = "a length of time as text, as in \"10s\", \"500ms\" or \"1h 30m\"";
        let text = deserializer.deserialize_str(Text(wanted))?;
        let time = humantime::parse_duration(&text);
        let time = time.map_err(|_| D::Error::custom(format_args!("write {wanted}")))?;
        u64::try_from(time.as_nanos()).map(Time).map_err(|_| D::Error::custom("this is too long"))
    }
}

/// A number of bytes: `"16MiB"`.
#[derive(Clone, Copy)]
pub(super) struct Size(pub u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        let wanted = "a size as text, as in \"16MiB\" (of 1024), \"500kB\" (of 1000) or \"1GiB\"";
        let text = deserializer.deserialize_str(Text(wanted))?;
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let factor: u64 = match text[digits..].trim() {
            "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "kB" => 1000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            _ => 0,
        };
        let bytes = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        let bytes = bytes.filter(|bytes| *bytes > 0);
        bytes.map(Size).ok_or_else(|| D::Error::custom(format_args!("write {wanted}")))
    }
}

/// A second of the day, UTC: `"22:00"` or `"22:00:30"`.
#[derive(Clone, Copy)]
pub(super) struct Clock(pub u32);

impl<'de> Deserialize<'de> for Clock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Clock, D::Error> {
        let wanted = "a time of the day as text, UTC, as in \"22:00\" or \"22:00:30\"";
        let text = deserializer.deserialize_str(Text(wanted))?;
        let mut parts = text.split(':');
        let mut next = |end: u32| {
            let part = parts.next()?;
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            part.parse().ok().filter(|number| digits && *number < end)
        };
        let read = next(24).zip(next(60));
        let rest = if text.len() > 5 { next(60) } else { Some(0) };
        match (read, rest, parts.next()) {
            (Some((hour, minute)), Some(second), None) => Ok(Clock(hour * 3600 + minute * 60 + second)),
            _ => Err(D::Error::custom(format_args!("write {wanted}"))),
        }
    }
}

/// Time of a schedule that another table gives: a period or a time of the day.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    /// Nanoseconds.
    Every(u64),
    /// Seconds of the day.
    At(u32),
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let wanted = "a length of time as text, as in \"10m\", or a time of the day (UTC), as in \"22:00\"";
        let text = deserializer.deserialize_str(Text(wanted))?;
        let of_text = || text.as_str().into_deserializer();
        let read: Result<Moment, de::value::Error> = if text.contains(':') {
            Clock::deserialize(of_text()).map(|Clock(second)| Moment::At(second))
        } else {
            Time::deserialize(of_text()).map(|Time(ns)| Moment::Every(ns))
        };
        read.map_err(|_| D::Error::custom(format_args!("write {wanted}")))
    }
}

/// Visitor for a text, with a description of the expected value for messages.
struct Text(&'static str);

impl de::Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}
