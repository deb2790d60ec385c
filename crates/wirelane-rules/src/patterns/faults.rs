//! Checks of patterns, and of rules that use them.

use std::collections::HashMap;

use wirelane_bpf::rules::MAX_PATTERNS;
use wirelane_bpf::search::{AT_ONCE, MAX_BYTES};

use super::{LAST_ID, MOST_PATTERNS, Patterns, automaton, bytes_of, names};
use crate::check::{Fault, Which};
use crate::named::may_be_named;
use crate::names::{nearest, shown};
use crate::{RuleSet, Test};

/// Maximum number of states of the automata of one rule set: a GiB.
const MOST_STATES: u64 = 1 << 20;
/// Maximum number of tables of patterns.
const MOST_TABLES: usize = 1024;

impl RuleSet {
    /// Reports faults of the patterns, and of the rules that use them. `elsewhere`: unknown names refer to patterns of
    /// the capture that will use the rules.
    pub(crate) fn pattern_faults(&self, elsewhere: bool, faults: &mut Vec<Fault>) {
        let mut fault = |rule, reason| faults.push(Fault { rule, reason, other: None });
        let all = names(&self.rules);
        if let Some(one) = all.get(MAX_PATTERNS) {
            let what = if self.plugins().is_empty() { "patterns" } else { "patterns and plug-ins" };
            fault(
                None,
                format!(
                    "the rules ask for {what} of {} names, more than {MAX_PATTERNS} ('{}' is one too many); put patterns \
                     together under one name",
                    all.len(),
                    shown(one)
                ),
            );
        }
        if !elsewhere {
            for (index, rule) in self.rules.iter().enumerate() {
                let asked = rule.conditions.iter().filter_map(|condition| match &condition.test {
                    Test::Payload(names) => Some(names),
                    _ => None,
                });
                for name in asked.flatten() {
                    if let Some(reason) = self.unknown_patterns(name) {
                        fault(Some(Which::Wildcard(index)), reason);
                    }
                }
            }
        }
        let count: usize = self.patterns.iter().map(|patterns| patterns.patterns.len()).sum();
        if count > MOST_PATTERNS {
            fault(None, format!("there are {count} patterns, more than {MOST_PATTERNS}"));
        }
        if self.patterns.len() > MOST_TABLES {
            fault(
                None,
                format!("there are {} tables of patterns, more than {MOST_TABLES}", self.patterns.len()),
            );
            return;
        }
        for (index, patterns) in self.patterns.iter().enumerate() {
            patterns.faults(&mut |reason| fault(Some(Which::Patterns(index)), reason));
        }
        if count <= MOST_PATTERNS {
            self.large_patterns(&mut fault);
        }
        self.same_patterns(faults);
    }

    /// Checks the memory for the patterns, and the number of patterns that may end at one position.
    fn large_patterns(&self, fault: &mut dyn FnMut(Option<Which>, String)) {
        let applications = self.application_patterns();
        let of_applications = applications.iter().map(|(patterns, _)| patterns);
        let all: Vec<&Patterns> = self.patterns.iter().chain(of_applications).collect();
        let states = automaton::states(&all);
        if states > MOST_STATES {
            let mib = |states| bytes_of(states).div_ceil(1 << 20);
            fault(
                None,
                format!(
                    "the patterns are too many for memory: they need {states} states ({} MiB), and there can be {MOST_STATES} \
                     ({} MiB); fewer or shorter ones need less",
                    mib(states),
                    mib(MOST_STATES)
                ),
            );
        }
        let mut ends: HashMap<(bool, Vec<u8>), usize> = HashMap::new();
        let folded = |patterns: &Patterns, bytes: &[u8]| {
            (patterns.nocase, if patterns.nocase { bytes.to_ascii_lowercase() } else { bytes.to_vec() })
        };
        for patterns in &all {
            for pattern in patterns.patterns.iter() {
                *ends.entry(folded(patterns, &pattern.0)).or_default() += 1;
            }
        }
        for (index, patterns) in all.iter().enumerate() {
            for (id, pattern) in patterns.ids() {
                let (_, bytes) = folded(patterns, &pattern.0);
                let suffixes = (0..bytes.len()).map(|from| (patterns.nocase, bytes[from..].to_vec()));
                let count: usize = suffixes.filter_map(|suffix| ends.get(&suffix)).sum();
                if count > AT_ONCE {
                    let (which, what) = match self.patterns.get(index) {
                        Some(_) => (Some(Which::Patterns(index)), format!("pattern {id} does")),
                        None => (None, format!("{pattern} of an application's fields does")),
                    };
                    let reason =
                        format!("{count} patterns end where {what}, more than {AT_ONCE}; leave some out");
                    return fault(which, reason);
                }
            }
        }
    }

    /// Reports ids of two patterns that collide.
    fn same_patterns(&self, faults: &mut Vec<Fault>) {
        let mut all: Vec<(u32, usize)> =
            self.patterns.iter().enumerate().map(|(index, patterns)| (patterns.id, index)).collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            let ((_, first), (id, second)) = (pair[0], pair[1]);
            let end = u64::from(self.patterns[first].id) + self.patterns[first].patterns.len() as u64;
            if u64::from(id) < end {
                // The fault is reported for the later one.
                let (first, second) = (first.min(second), first.max(second));
                faults.push(Fault {
                    rule: Some(Which::Patterns(second)),
                    reason: format!("the pattern id {id} is taken"),
                    other: Some(Which::Patterns(first)),
                });
            }
        }
    }

    fn unknown_patterns(&self, name: &str) -> Option<String> {
        let known: Vec<&str> = self.patterns.iter().map(|patterns| patterns.name.as_str()).collect();
        if known.contains(&name) {
            return None;
        }
        let hint = match nearest(name, &known) {
            Some(near) => format!("did you mean '{}'?", shown(near)),
            None if known.is_empty() => "write them under [[patterns]]".to_owned(),
            None => format!("defined: {}", shown(&known.join(", "))),
        };
        Some(format!("there are no patterns '{}'; {hint}", shown(name)))
    }
}

impl Patterns {
    /// Reports faults of the patterns on their own.
    fn faults(&self, fault: &mut dyn FnMut(String)) {
        if let Err(reason) = may_be_named(&self.name) {
            fault(reason);
        }
        if self.patterns.is_empty() {
            fault("there is no pattern".to_owned());
        }
        let last = u64::from(self.id) + self.patterns.len().saturating_sub(1) as u64;
        if self.id == 0 || last > LAST_ID.into() {
            fault(format!("ids of patterns are 1 to {LAST_ID}"));
        }
        for (id, pattern) in self.ids() {
            let length = pattern.0.len();
            let reason = pattern.fault().or_else(|| match self.depth {
                Some(depth) if length > depth as usize => {
                    Some(format!("it has {length} bytes, and would have to lie within depth = {depth}"))
                }
                _ if self.offset as usize + length > MAX_BYTES => Some(format!(
                    "it would begin at byte {} or later, and {MAX_BYTES} bytes of a payload are searched",
                    self.offset
                )),
                _ => None,
            });
            if let Some(reason) = reason {
                // One fault is enough.
                return fault(format!("pattern {id}: {reason}"));
            }
        }
    }
}
