//! Counters of rules of a capture.

use std::ops::Range;

use wirelane_bpf::rules::{Counts, ExactKey, ExactValue};

use wirelane_rules::{ExactLine, Hits, PluginLine, RuleLine, RuleStats, Searches, add_counts as add};

use super::target::Target;
use super::{ActiveRuleset, Times, entry};
use crate::error::Result;

/// A position among the exact-match rules of a capture: a device, and the start of its next page.
type PageStart = (usize, Option<u32>);

impl ActiveRuleset {
    /// Counts of all rules. While packets flow, counts are read one after the other.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn stats(&self) -> Result<RuleStats> {
        let offset = self.utc_offset();
        let mut stats = {
            let state = self.lock();
            let rules = state.slots.all().map(|(slot, rule)| {
                let counts = self.counts(slot);
                let hits = hits(&counts, offset);
                RuleLine { rule: rule.clone(), hits, inserted: counts.inserted, refused: counts.refused }
            });
            let active_rules = state.set(state.rules().cloned().collect());
            RuleStats {
                version: state.version,
                devices: self.devices().into_iter().map(str::to_owned).collect(),
                default: state.default,
                rules: rules.collect(),
                exact: 0,
                exact_hits: Hits::default(),
                exact_gone: hits(&state.exact_gone, offset),
                rules_gone: hits(&state.rules_gone, offset),
                exact_capacity: self.targets.iter().map(|target| target.room().exact).min().unwrap_or(0)
                    as u64,
                sets: active_rules.set_lines(),
                patterns: active_rules.pattern_lines(),
                searches: searches(&self.searched()),
                plugins: self.plugin_lines(),
            }
        };
        // Without the lock: summing a million rules takes a while.
        let mut sum = Counts::default();
        for (at, target) in self.targets.iter().enumerate() {
            let now = target.now_ns();
            each(target.as_ref(), |key, value| {
                if !entry::has_expired(value, now) && self.is_first(at, key, now)? {
                    stats.exact += 1;
                }
                add(&mut sum, &counts_of(value));
                Ok(())
            })?;
        }
        stats.exact_hits = hits(&sum, offset);
        Ok(stats)
    }

    /// Counts of plug-ins, over all devices. Read from the memory that lanes write, without a system call.
    pub(crate) fn plugin_lines(&self) -> Vec<PluginLine> {
        let mut sum: Vec<PluginLine> = Vec::new();
        for line in self.targets.iter().flat_map(|target| target.plugin_lines()) {
            match sum.iter_mut().find(|one| one.name == line.name) {
                Some(one) => one.add(&line),
                None => sum.push(line),
            }
        }
        sum
    }

    /// Some of the exact-match rules in force, from the beginning or from the end of another call; and the start of the
    /// next call, if there are more. A rule for both directions of a device is one line.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn exact(&self, from: PageStart) -> Result<(Vec<ExactLine>, Option<PageStart>)> {
        let (at, position) = from;
        let Some(target) = self.targets.get(at) else { return Ok((Vec::new(), None)) };
        let device = self.devices().iter().position(|device| *device == target.device()).unwrap_or(at);
        let epoch = self.lock().epoch;
        let (page, now, offset) = (target.page(position)?, target.now_ns(), self.utc_offset());
        let mut lines = Vec::new();
        for (key, value) in &page.rules {
            let counts = entry::epoch_of(key) == epoch && !entry::has_expired(value, now);
            if !counts || !self.is_first(at, key, now)? {
                continue;
            }
            let mut sum = counts_of(value);
            for peer in self.peers(at, at + 1..self.targets.len()) {
                peer.get(key)?.iter().for_each(|value| add(&mut sum, &counts_of(value)));
            }
            lines.push(ExactLine {
                device,
                rule: entry::rule(key, value, target.egress_devices()),
                made: entry::is_made(value),
                age_s: now.saturating_sub(value.made_ns) / 1_000_000_000,
                hits: hits(&sum, offset),
            });
        }
        let next = match page.next {
            Some(position) => Some((at, Some(position))),
            None => (at + 1 < self.targets.len()).then_some((at + 1, None)),
        };
        Ok((lines, next))
    }

    /// Names of the devices, each once: a device of which both directions are captured has two targets.
    fn devices(&self) -> Vec<&str> {
        let mut devices = Vec::new();
        for target in &self.targets {
            if !devices.contains(&target.device()) {
                devices.push(target.device());
            }
        }
        devices
    }

    /// The other targets of the same device in this range.
    pub(super) fn peers(&self, at: usize, among: Range<usize>) -> impl Iterator<Item = &dyn Target> {
        let device = self.targets[at].device();
        self.targets[among].iter().map(AsRef::as_ref).filter(move |target| target.device() == device)
    }

    /// Whether no earlier target of the same device has this rule.
    fn is_first(&self, at: usize, key: &ExactKey, now_ns: u64) -> Result<bool> {
        for peer in self.peers(at, 0..at) {
            if peer.get(key)?.is_some_and(|value| !entry::has_expired(&value, now_ns)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Nanoseconds to add to a packet's time for UTC.
    fn utc_offset(&self) -> i128 {
        match self.times {
            Times::Utc => 0,
            Times::Monotonic => i128::from(crate::clock::utc_minus_monotonic_ns()),
        }
    }
}

/// Calls `then` for every exact-match rule of a device.
fn each(target: &dyn Target, mut then: impl FnMut(&ExactKey, &ExactValue) -> Result<()>) -> Result<()> {
    let mut from = None;
    loop {
        let page = target.page(from)?;
        page.rules.iter().try_for_each(|(key, value)| then(key, value))?;
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
}

/// Counts of an exact-match rule.
pub(super) fn counts_of(value: &ExactValue) -> Counts {
    Counts {
        packets: value.packets,
        bytes: value.bytes,
        first_ns: value.first_ns,
        last_ns: value.last_ns,
        ..Counts::default()
    }
}

/// Counts of payload searches, under the names that they have for a search.
fn searches(counts: &Counts) -> Searches {
    let Counts { packets, bytes, inserted, refused, .. } = *counts;
    Searches { packets, bytes, found: inserted, half: refused }
}

/// Converts counts to the public type, with times in UTC.
fn hits(counts: &Counts, offset: i128) -> Hits {
    let utc = |ns: u64| (ns != 0).then(|| u64::try_from(i128::from(ns) + offset).unwrap_or(0));
    Hits {
        packets: counts.packets,
        bytes: counts.bytes,
        first_ns: utc(counts.first_ns),
        last_ns: utc(counts.last_ns),
    }
}
