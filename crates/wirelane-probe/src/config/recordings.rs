//! Recordings of packets around an event.

use super::check::{Check, SECOND};
use super::raw::{self, Size, Time};
use super::{Action, ActionKind, Config, Measurement};
use crate::placed::At;

const HOUR: u64 = 3600 * SECOND;
const MIB: u64 = 1 << 20;
/// Maximum bytes that a worker buffers, and that a running recording takes.
const MOST_BYTES: u64 = 1 << 30;

/// Parameters of a recording action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Folder of the files.
    pub folder: String,
    /// Nanoseconds before the event.
    pub before_ns: u64,
    /// Nanoseconds after it.
    pub after_ns: u64,
    /// Buffer of each worker for packets before the event, in bytes.
    pub buffer: usize,
    /// Maximum bytes of a file. They are in memory until its time is over.
    pub most: u64,
    /// Index of the rule whose packets are recorded; `None`: those of the alarm's measurement.
    pub rule: Option<usize>,
    /// Nanoseconds after a recorded alarm during which the same alarm is not recorded again.
    pub cool_down_ns: u64,
    /// Maximum number of concurrent recordings.
    pub at_once: usize,
    /// Maximum number of files.
    pub files: u64,
    /// Whether a file's SHA-256 is written beside it.
    pub digest: bool,
}

impl Recording {
    /// Index of the rule whose packets are recorded for this measurement; `None`: all packets.
    pub fn rule_of(&self, measurement: &Measurement) -> Option<usize> {
        self.rule.or(measurement.rule)
    }
}

impl Action {
    /// Recording of the action, if it records packets.
    pub fn recording(&self) -> Option<&Recording> {
        match &self.kind {
            ActionKind::Record(recording) => Some(recording),
            _ => None,
        }
    }
}

impl Config {
    /// Recordings of all actions, with the indices of the actions.
    pub fn recordings(&self) -> Vec<(usize, &Recording)> {
        let actions = self.actions.iter().enumerate();
        actions.filter_map(|(place, action)| Some((place, action.recording()?))).collect()
    }
}

/// Reason why recordings prevent measurements in the kernel.
pub(super) fn obstacle(actions: &[Action]) -> Option<String> {
    let action = actions.iter().find(|action| action.recording().is_some())?;
    Some(format!("the action {} records packets, which the kernel does not deliver", action.name))
}

impl Check<'_> {
    pub(super) fn recording(&mut self, at: &At<raw::Record>, digest: bool, ruled: &[String]) -> Recording {
        let raw = at.get_ref();
        let folder = raw.folder.get_ref();
        if folder.is_empty() || folder.contains('\0') {
            self.fault(&raw.folder, "give a folder");
        }
        let mut time = |given: &Option<At<Time>>, otherwise: u64, most: u64, allowed: &str| {
            let ns = given.as_ref().map_or(otherwise, |time| time.get_ref().0);
            if let Some(at) = given.as_ref().filter(|_| ns > most) {
                self.fault(at, allowed);
            }
            ns.min(most)
        };
        let before_ns = time(&raw.before, 2 * SECOND, HOUR, "give \"0s\" to \"1h\"");
        let after_ns = time(&raw.after, 5 * SECOND, HOUR, "give \"0s\" to \"1h\"");
        let cool_down_ns = time(&raw.cool_down, 10 * SECOND, 24 * HOUR, "give \"0s\" to \"1day\"");
        let mut size = |given: &Option<At<Size>>, otherwise: u64| {
            let bytes = given.as_ref().map_or(otherwise, |size| size.get_ref().0);
            if let Some(at) = given.as_ref().filter(|_| !(4096..=MOST_BYTES).contains(&bytes)) {
                self.fault(at, "give \"4KiB\" to \"1GiB\"");
            }
            bytes.min(MOST_BYTES)
        };
        let (buffer, most) = (size(&raw.buffer, 16 * MIB), size(&raw.most, 64 * MIB));
        let at_once = raw.at_once.as_ref().map_or(4, |number| number.value);
        if let Some(at) = raw.at_once.as_ref().filter(|_| !(1..=64).contains(&at_once)) {
            self.fault(at, "give 1 to 64 recordings");
        }
        let files = raw.files.as_ref().map_or(1000, |number| number.value);
        if let Some(at) = raw.files.as_ref().filter(|_| !(1..=1_000_000).contains(&files)) {
            self.fault(at, "give 1 to 1000000 files");
        }
        Recording {
            folder: folder.clone(),
            before_ns,
            after_ns,
            buffer: buffer as usize,
            most,
            rule: raw.rule.as_ref().map(|name| self.named("rule", name, ruled)),
            cool_down_ns,
            at_once,
            files,
            digest,
        }
    }
}
