//! Counters of rules, as text and JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wirelane_bpf::rules::Counts;

use crate::{ExactRule, PatternLine, Policy, Rule, SetLine};

/// The packets that hit a rule, or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// How many.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// When the first of them came, UTC nanoseconds since 1970; `None`: none has.
    pub first_ns: Option<u64>,
    /// When the last of them came.
    pub last_ns: Option<u64>,
}

impl Hits {
    /// Both together.
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

/// What a change has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Changed {
    /// The number of the set that is in force, from 1.
    pub version: u64,
    /// Wildcard rules that are in force.
    pub rules: usize,
    /// Exact-match rules that were added.
    pub added: u64,
    /// Rules that were removed, of both kinds; an exact-match rule counts once for each device that had it.
    pub removed: u64,
}

/// A wildcard rule with what it has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleLine {
    /// The rule.
    pub rule: Rule,
    /// Packets that hit it.
    pub hits: Hits,
    /// Exact-match rules that it has made.
    pub inserted: u64,
    /// Exact-match rules that it could not make: there was no room for more.
    pub refused: u64,
}

/// An exact-match rule with what it has done, on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExactLine {
    /// The device, as in [`RuleStats::devices`].
    pub device: usize,
    /// The rule.
    pub rule: ExactRule,
    /// Whether a packet made it: its id is that of the wildcard rule.
    pub made: bool,
    /// Seconds since it was made.
    pub age_s: u64,
    /// Packets that hit it.
    pub hits: Hits,
}

/// Everything that the rules of a capture have counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleStats {
    /// The number of the set that is in force, from 1. Adding exact-match rules makes a new one only where none had these
    /// fields.
    pub version: u64,
    /// The devices that packets are evaluated on.
    pub devices: Vec<String>,
    /// What becomes of a packet that no rule decided about.
    pub default: Policy,
    /// Wildcard rules, in the order of their ids.
    pub rules: Vec<RuleLine>,
    /// Exact-match rules that are in force, each once for every device that has it.
    pub exact: u64,
    /// Packets that hit those.
    pub exact_hits: Hits,
    /// Packets that hit exact-match rules which were removed, or have ended by their age. Without those of a rule that has
    /// ended and was made anew by a packet before it was removed: that counts from 0.
    pub exact_gone: Hits,
    /// Packets that hit wildcard rules which were removed or replaced.
    pub rules_gone: Hits,
    /// Room for exact-match rules, on each device.
    pub exact_capacity: u64,
    /// Named sets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetLine>,
    /// Patterns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<PatternLine>,
    /// What searching payloads for them has done since the capture began.
    #[serde(default)]
    pub searches: Searches,
    /// Plug-ins of the capture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<PluginLine>,
}

/// A plug-in with what it has done since the capture began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginLine {
    /// What rules call it.
    pub name: String,
    /// Packets that it was asked about.
    pub asked: u64,
    /// Those that match it.
    pub matched: u64,
    /// Packets that it would have been asked about, had it not been switched off for being too slow
    /// (`Builder::plugin_budget` of the library). They do not match it, and their records say so
    /// (`Record::is_half_searched`).
    pub refused: u64,
    /// Its runs that were timed: one of 64.
    pub timed: u64,
    /// Nanoseconds that these took.
    pub timed_ns: u64,
    /// Lanes (RX queues or CPUs) in which it has been switched off.
    pub off: u64,
    /// Its own counters by their names.
    pub counters: BTreeMap<String, u64>,
}

impl PluginLine {
    /// Nanoseconds that a run takes on the average.
    pub fn mean_ns(&self) -> u64 {
        self.timed_ns / self.timed.max(1)
    }

    /// Adds what the same has done on another device.
    pub fn add(&mut self, other: &PluginLine) {
        self.asked += other.asked;
        self.matched += other.matched;
        self.refused += other.refused;
        self.timed += other.timed;
        self.timed_ns += other.timed_ns;
        self.off += other.off;
        for (name, value) in &other.counters {
            *self.counters.entry(name.clone()).or_default() += value;
        }
    }
}

/// Packets whose payload was searched for patterns, also those that rules have dropped then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searches {
    /// How many.
    pub packets: u64,
    /// Bytes that were searched.
    pub bytes: u64,
    /// Packets in which a pattern was found.
    pub found: u64,
    /// Packets of which not all was searched: longer than what is, with too many patterns in them, or cut before.
    pub half: u64,
}

/// Adds what one lane or worker has counted.
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
