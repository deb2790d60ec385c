//! Reading the file of a monitor again while it runs.
//!
//! ```text
//! SIGHUP, wirelane reload -> Reloader -- pipe --> helper process: reads and checks the file, and the rule file
//!                               |<------ Loaded -------'
//!                               `-> Mailbox -> the main thread changes the capture
//! ```
//! The sandbox forbids the capturing process to open files, so the helper is started before.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use wirelane::rules::RuleSet;
use wirelane_analysis::flows::Timeouts;
use wirelane_export::pipeline::flows::LiveTimeouts;

use crate::control::Reload;
use crate::helper::Helper;
use crate::probe::helper::ProbeHelper;
use crate::run_loop::{Change, FlowChange, FlowLimits, Mailbox};
use crate::service;
use crate::site::Entry;

/// Keys that can change while the monitor runs.
const LIVE: [(&str, &[&str]); 2] = [
    ("capture", &["filter", "filter-file", "rules", "interval"]),
    ("flows", &["active-timeout", "inactive-timeout", "cache-entries"]),
];

/// A configuration without mistakes, for comparisons.
#[derive(Debug, Serialize, Deserialize)]
pub struct Loaded {
    entries: Vec<Entry>,
    filter: String,
    /// The rules as JSON.
    rules: String,
    interval: Duration,
    flows: Option<Flows>,
}

/// The keys of [flows] that can change.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Flows {
    active_ns: u64,
    idle_ns: u64,
    ended_ns: u64,
    /// Capacity of each lane; `None`: flows are not made in the kernel.
    entries: Option<usize>,
}

impl From<FlowLimits> for Flows {
    fn from(limits: FlowLimits) -> Flows {
        let Timeouts { active_ns, idle_ns, ended_ns } = limits.timeouts;
        Flows { active_ns, idle_ns, ended_ns, entries: limits.entries }
    }
}

impl Flows {
    fn limits(&self) -> FlowLimits {
        let &Flows { active_ns, idle_ns, ended_ns, entries } = self;
        FlowLimits { timeouts: Timeouts { active_ns, idle_ns, ended_ns }, entries }
    }
}

impl Loaded {
    /// A configuration with these sections and keys, filter expression, rules, interval, and limits of flows.
    ///
    /// # Errors
    /// Rules that cannot be serialised.
    pub fn new(
        entries: Vec<Entry>,
        filter: String,
        rules: &RuleSet,
        interval: Duration,
        flows: Option<FlowLimits>,
    ) -> Result<Loaded> {
        let (rules, flows) = (serde_json::to_string(rules)?, flows.map(Flows::from));
        Ok(Loaded { entries, filter, rules, interval, flows })
    }

    /// Reasons why this configuration cannot replace another one while a monitor runs, a line each.
    fn refusals(&self, before: &Loaded, path: &Path) -> String {
        let same = |one: &Entry, other: &Entry| (&one.section, &one.key) == (&other.section, &other.key);
        let name = |entry: &Entry| match &entry.key {
            Some(key) => format!("{key} of [{}]", entry.section),
            None => format!("[{}]", entry.section),
        };
        let is_live = |entry: &&Entry| {
            let mut keys = LIVE.iter().filter(|(section, _)| *section == entry.section).map(|(_, keys)| keys);
            entry.key.as_deref().is_some_and(|key| keys.any(|keys| keys.contains(&key)))
        };
        let mut refusals = Vec::new();
        for entry in self.entries.iter().filter(|entry| !is_live(entry)) {
            let what = match before.entries.iter().find(|other| same(entry, other)) {
                Some(other) if other.value == entry.value => continue,
                Some(_) => "has changed",
                None => "is new",
            };
            refusals.push((entry.line, entry.column, format!("{} {what}", name(entry))));
        }
        for entry in before.entries.iter().filter(|entry| !is_live(entry)) {
            if !self.entries.iter().any(|other| same(entry, other)) {
                // The place of a key that is gone is its section, if that is still there.
                let section = self.entries.iter().find(|other| other.section == entry.section);
                let (line, column) = section.map_or((1, 1), |section| (section.line, section.column));
                refusals.push((line, column, format!("{} is missing", name(entry))));
            }
        }
        refusals.sort();
        let line = |(line, column, what): (usize, usize, String)| {
            let path = path.display();
            format!("{path}:{line}:{column}: {what}, which needs a restart of the monitor")
        };
        refusals.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Reads the file of a running monitor again.
pub struct Reloader {
    helper: ProbeHelper,
    /// The path as the user wrote it, for messages.
    path: PathBuf,
    active: Loaded,
    /// Timeouts of the workers' flows.
    timeouts: Arc<LiveTimeouts>,
}

impl Reloader {
    /// Starts to listen to the helper, after privileges are dropped. `active`: the configuration of the capture.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(helper: Helper, path: &Path, active: Loaded, timeouts: Arc<LiveTimeouts>) -> Result<Reloader> {
        Ok(Reloader { helper: ProbeHelper::listen(helper)?, path: path.to_owned(), active, timeouts })
    }
}

impl Reload for Reloader {
    fn reload(&mut self, mailbox: &Mailbox) -> std::result::Result<Vec<String>, String> {
        let text = self.helper.ask().wait()?;
        let loaded: Loaded = serde_json::from_str(&text).map_err(|error| format!("the helper: {error}"))?;
        let refusals = loaded.refusals(&self.active, &self.path);
        if !refusals.is_empty() {
            return Err(refusals);
        }
        let active = &self.active;
        let mut change = Change::default();
        let mut changed = Vec::new();
        if loaded.filter != active.filter {
            change.filter = Some((loaded.filter.clone(), active.filter.clone()));
            changed.push("filter".to_owned());
        }
        if loaded.rules != active.rules {
            let rules: RuleSet = serde_json::from_str(&loaded.rules).map_err(|error| error.to_string())?;
            change.rules = Some(rules);
            changed.push("rules".to_owned());
        }
        if loaded.interval != active.interval {
            service::fits_watchdog(loaded.interval).map_err(|error| error.to_string())?;
            change.interval = Some(loaded.interval);
            changed.push("interval".to_owned());
        }
        if loaded.flows != active.flows
            && let (Some(before), Some(after)) = (&active.flows, &loaded.flows)
        {
            let (before, after) = (before.limits(), after.limits());
            change.flows = Some(FlowChange { before, after, workers: Arc::clone(&self.timeouts) });
            changed.push("flows".to_owned());
        }
        if !changed.is_empty() {
            mailbox.change(change)?;
        }
        self.active = loaded;
        Ok(changed)
    }
}

/// The answer of the helper process, which has read the file: its contents as JSON.
///
/// # Errors
/// The mistakes of the file, a line each.
pub fn answer(loaded: Result<Loaded>) -> std::result::Result<String, String> {
    let text = loaded.and_then(|loaded| Ok(serde_json::to_string(&loaded)?));
    text.map_err(|error| {
        let user = rustix::process::geteuid().as_raw();
        let denied = error.chain().any(|cause| {
            let io = cause.downcast_ref::<std::io::Error>();
            io.is_some_and(|io| io.kind() == std::io::ErrorKind::PermissionDenied)
        });
        let who = if denied {
            format!(" (user {user}, which the monitor has become: user)")
        } else {
            String::new()
        };
        format!("{error:#}{who}")
    })
}
