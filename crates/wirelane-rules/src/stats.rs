//! Counters of rules, as text and JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wirelane_bpf::rules::Counts;

use crate::{ExactRule, PatternLine, Policy, Rule, SetLine};

/// Packets that matched one or several rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// Number of packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Time of the first packet, UTC nanoseconds since 1970; `None`: no packet.
    pub first_ns: Option<u64>,
    /// Time of the last packet.
    pub last_ns: Option<u64>,
}

impl Hits {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Hits) -> Hits {
        Hits {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            first_ns: self.first_ns.into_iter().chain(other.first_ns).min(),
            last_ns: self.last_ns.max(other.last_ns),
        }
    }
}

/// Result of a change of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Changed {
    /// Version of the active rule set, from 1.
    pub version: u64,
    /// Number of active wildcard rules.
    pub rules: usize,
    /// Number of exact-match rules added.
    pub added: u64,
    /// Number of rules removed, of both kinds; an exact-match rule counts once for each device that had it.
    pub removed: u64,
}

/// A wildcard rule with its counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleLine {
    /// The rule.
    pub rule: Rule,
    /// Packets that matched the rule.
    pub hits: Hits,
    /// Number of exact-match rules inserted by the rule.
    pub inserted: u64,
    /// Number of exact-match rules that could not be inserted, because the capacity was exhausted.
    pub refused: u64,
}

/// An exact-match rule with its counters, on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExactLine {
    /// Index of the device in [`RuleStats::devices`].
    pub device: usize,
    /// The rule.
    pub rule: ExactRule,
    /// Whether the rule was inserted for a packet: the id is that of the wildcard rule.
    pub made: bool,
    /// Age in seconds.
    pub age_s: u64,
    /// Packets that matched the rule.
    pub hits: Hits,
}

/// Counters of all rules of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleStats {
    /// Version of the active rule set, from 1. Adding exact-match rules makes a new version only if their shape is new.
    pub version: u64,
    /// The devices on which packets are evaluated.
    pub devices: Vec<String>,
    /// Policy for a packet that no rule decided about.
    pub default: Policy,
    /// Wildcard rules, sorted by id.
    pub rules: Vec<RuleLine>,
    /// Number of active exact-match rules, each counted once for every device that has it.
    pub exact: u64,
    /// Packets that matched active exact-match rules.
    pub exact_hits: Hits,
    /// Packets that matched exact-match rules which were removed or have expired. Packets of a rule that expired and
    /// was inserted again before it was removed are not included: its counters restart at 0.
    pub exact_gone: Hits,
    /// Packets that matched wildcard rules which were removed or replaced.
    pub rules_gone: Hits,
    /// Capacity for exact-match rules, on each device.
    pub exact_capacity: u64,
    /// Named sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetLine>,
    /// Patterns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternLine>,
    /// Counters of the payload search since the start of the capture.
    #[serde(default)]
    pub searches: Searches,
    /// Plug-ins of the capture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginLine>,
}

/// A plug-in with its counters since the start of the capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginLine {
    /// The name that rules use.
    pub name: String,
    /// Packets for which the plug-in was called.
    pub asked: u64,
    /// Packets that matched.
    pub matched: u64,
    /// Packets for which the plug-in was not called because it was switched off for being too slow
    /// (`Builder::plugin_budget` of the library). They do not match the plug-in, and their records are marked
    /// (`Record::is_half_searched`).
    pub refused: u64,
    /// Number of timed runs: one of 64.
    pub timed: u64,
    /// Nanoseconds of the timed runs.
    pub timed_ns: u64,
    /// Number of lanes (RX queues or CPUs) in which the plug-in is switched off.
    pub off: u64,
    /// Records that the plug-in has written (`Builder::plugin_records` of the library).
    #[serde(default)]
    pub records: u64,
    /// Records for which a ring had no space, or that the capture has not asked for.
    #[serde(default)]
    pub unwritten: u64,
    /// The plug-in's own counters by name.
    pub counters: BTreeMap<String, u64>,
}

impl PluginLine {
    /// Mean run time in nanoseconds.
    pub fn mean_ns(&self) -> u64 {
        self.timed_ns / self.timed.max(1)
    }

    /// Adds the counters of the same plug-in on another device.
    pub fn add(&mut self, other: &PluginLine) {
        self.asked += other.asked;
        self.matched += other.matched;
        self.refused += other.refused;
        self.timed += other.timed;
        self.timed_ns += other.timed_ns;
        self.off += other.off;
        self.records += other.records;
        self.unwritten += other.unwritten;
        for (name, value) in &other.counters {
            *self.counters.entry(name.clone()).or_default() += value;
        }
    }
}

/// Packets whose payload was searched for patterns, including packets that rules then dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searches {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes searched.
    pub bytes: u64,
    /// Packets in which a pattern was found.
    pub found: u64,
    /// Packets that were searched incompletely: too long, too many matches, or truncated.
    pub half: u64,
}

/// Adds the counters of one lane or worker.
pub fn add(sum: &mut Counts, line: &Counts) {
    sum.packets += line.packets;
    sum.bytes += line.bytes;
    sum.inserted += line.inserted;
    sum.refused += line.refused;
    if line.first_ns != 0 && (sum.first_ns == 0 || line.first_ns < sum.first_ns) {
        sum.first_ns = line.first_ns;
    }
    sum.last_ns = sum.last_ns.max(line.last_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_add_up_and_a_line_without_hits_has_no_times() {
        let mut sum = Counts::default();
        add(&mut sum, &Counts::default());
        assert_eq!(sum, Counts::default());
        add(&mut sum, &Counts { packets: 2, bytes: 200, first_ns: 7, last_ns: 9, ..Counts::default() });
        add(&mut sum, &Counts { packets: 1, bytes: 60, first_ns: 5, last_ns: 5, ..Counts::default() });
        assert_eq!((sum.packets, sum.bytes, sum.first_ns, sum.last_ns), (3, 260, 5, 9));

        let none = Hits::default();
        let some = Hits { packets: 1, bytes: 60, first_ns: Some(5), last_ns: Some(5) };
        assert_eq!(none.and(some), some);
        assert_eq!(some.and(none).and(none).first_ns, Some(5));
    }
}
