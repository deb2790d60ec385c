//! Counters of rules of a capture.

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
                devices: self.targets.iter().map(|target| target.device().to_owned()).collect(),
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
        for target in &self.targets {
            let now = target.now_ns();
            each(target.as_ref(), |_, value| {
                if !entry::has_expired(value, now) {
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
    /// next call, if there are more.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn exact(&self, from: PageStart) -> Result<(Vec<ExactLine>, Option<PageStart>)> {
        let (device, position) = from;
        let Some(target) = self.targets.get(device) else { return Ok((Vec::new(), None)) };
        let epoch = self.lock().epoch;
        let (page, now, offset) = (target.page(position)?, target.now_ns(), self.utc_offset());
        let lines = page
            .rules
            .iter()
            .filter(|(key, value)| entry::epoch_of(key) == epoch && !entry::has_expired(value, now))
            .map(|(key, value)| ExactLine {
                device,
                rule: entry::rule(key, value, target.egress_devices()),
                made: entry::is_made(value),
                age_s: now.saturating_sub(value.made_ns) / 1_000_000_000,
                hits: hits(&counts_of(value), offset),
            })
            .collect();
        let next = match page.next {
            Some(position) => Some((device, Some(position))),
            None => (device + 1 < self.targets.len()).then_some((device + 1, None)),
        };
        Ok((lines, next))
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
