//! Notices of changes of rules, for plug-ins that keep state by rule (`PLUGIN_RULE()` of
//! `wirelane-bpf/include/wirelane/plugin.h`).
//!
//! An exact-match rule has an entry in the table of each device and direction. Its end is told when the last entry is
//! gone, with the sum of their counts.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use wirelane_bpf::rules::{Counts, ExactKey, ExactValue};
use wirelane_rules::{Condition, ExactRule, Rule, Test};

use super::counter_slots::CounterSlots;
use super::{ActiveRuleset, State, add, entry, show};

/// A kind of change of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Added,
    Removed,
    Expired,
}

/// A change of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) event: Event,
    pub(crate) id: u32,
    /// The fields of an exact-match rule, and the seconds without a hit after which it expires; `None`: a wildcard rule.
    pub(crate) exact: Option<(ExactKey, u32)>,
    /// Whether a packet made the rule.
    pub(crate) is_made: bool,
    /// Plug-ins that the rule names, or the one that asked for it.
    pub(crate) plugins: Vec<String>,
    /// The time, on the clock by which rules expire.
    pub(crate) now_ns: u64,
    pub(crate) counts: Counts,
}

/// Hears of changes of rules. Called under the lock of the rules, one notice after the other.
pub(crate) trait Observer: Send + Sync + fmt::Debug {
    fn hear(&self, notice: &Notice);
}

/// An entry that was removed from the table of one device.
#[derive(Clone, Copy, Debug)]
struct Gone {
    key: ExactKey,
    value: ExactValue,
    has_expired: bool,
}

/// Changes that observers have not heard of yet.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// Whether somebody hears of changes.
    is_heard: bool,
    gone: Vec<Gone>,
    /// Counts of removed entries of rules that have entries on other devices.
    parts: HashMap<ExactKey, Counts>,
    /// Plug-ins that the wildcard rules name which are, or were, in force.
    plugins: BTreeMap<u32, Vec<String>>,
}

impl Untold {
    pub(super) fn new(is_heard: bool) -> Untold {
        Untold { is_heard, ..Untold::default() }
    }

    /// Remembers an entry that was removed from a table at this time.
    pub(super) fn has_gone(&mut self, key: &ExactKey, value: &ExactValue, now_ns: u64) {
        if self.is_heard {
            let has_expired = entry::has_expired(value, now_ns);
            self.gone.push(Gone { key: *key, value: *value, has_expired });
        }
    }
}

/// The rules with an id that a former rule had: they are told after its end.
#[derive(Debug, Default)]
pub(super) struct Successors {
    ids: HashSet<u32>,
    before: CounterSlots,
}

impl Successors {
    /// For rules that replace all that are in force.
    pub(super) fn of(state: &State) -> Successors {
        if !state.untold.is_heard {
            return Successors::default();
        }
        let ids = state.ids.keys().copied().chain(state.rules().map(|rule| rule.id)).collect();
        Successors { ids, before: state.slots.clone() }
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// Whether a wildcard rule of these slots replaces another rule.
    fn replaces(&self, rule: &Rule, slots: &CounterSlots) -> bool {
        self.has(rule.id) && slots.of(rule.id) != self.before.of(rule.id)
    }
}

impl ActiveRuleset {
    fn tell(&self, notice: &Notice) {
        self.observers.iter().for_each(|observer| observer.hear(notice));
    }

    /// Whether somebody hears of changes.
    pub(crate) fn has_observers(&self) -> bool {
        !self.observers.is_empty()
    }

    fn now_ns(&self) -> u64 {
        self.targets.first().map_or(0, |target| target.now_ns())
    }

    /// Tells of a wildcard rule.
    pub(super) fn tell_rule(&self, event: Event, rule: &Rule, counts: Counts) {
        if !self.observers.is_empty() {
            let (plugins, now_ns) = (plugins_of(rule), self.now_ns());
            self.tell(&Notice { event, id: rule.id, exact: None, is_made: false, plugins, now_ns, counts });
        }
    }

    /// Tells of an exact-match rule that a user has added, or that was taken back because its change was refused.
    pub(super) fn tell_exact(&self, event: Event, rule: &ExactRule) {
        if !self.observers.is_empty() {
            self.tell(&Notice {
                event,
                id: rule.id,
                exact: Some((rule.fields.key(), rule.idle_s)),
                is_made: false,
                plugins: Vec::new(),
                now_ns: self.now_ns(),
                counts: Counts::default(),
            });
        }
    }

    /// Tells of the exact-match rules that have gone from the tables of all devices.
    pub(super) fn tell_gone(&self, state: &mut State) {
        for Gone { key, value, has_expired } in std::mem::take(&mut state.untold.gone) {
            let back = entry::turned(&key);
            let first = back.map_or(key, |back| back.min(key));
            let mut counts = state.untold.parts.remove(&first).unwrap_or_default();
            add(&mut counts, &show::counts_of(&value));
            if [Some(key), back].into_iter().flatten().any(|key| self.is_anywhere(&key, &value)) {
                state.untold.parts.insert(first, counts);
                continue;
            }
            let is_made = entry::is_made(&value);
            let plugins = state.untold.plugins.get(&value.id).filter(|_| is_made).cloned();
            self.tell(&Notice {
                event: if has_expired { Event::Expired } else { Event::Removed },
                id: value.id,
                exact: Some((entry::fields(&key).key(), value.idle_s)),
                is_made,
                plugins: plugins.unwrap_or_default(),
                now_ns: self.now_ns(),
                counts,
            });
        }
    }

    /// Tells of the rules of a new set that have the id of a former rule, whose end has been told.
    pub(super) fn tell_successors(&self, state: &State, exact: &[ExactRule], successors: &Successors) {
        for rule in state.rules().filter(|rule| successors.replaces(rule, &state.slots)) {
            self.tell_rule(Event::Added, rule, Counts::default());
        }
        exact
            .iter()
            .filter(|rule| successors.has(rule.id))
            .for_each(|rule| self.tell_exact(Event::Added, rule));
    }

    /// Whether the table of a device has the rule that this entry was of.
    fn is_anywhere(&self, key: &ExactKey, value: &ExactValue) -> bool {
        let is_same =
            |other: &ExactValue| other.id == value.id && entry::is_made(other) == entry::is_made(value);
        self.targets.iter().any(|target| match target.get(key) {
            Ok(other) => other.is_some_and(|other| is_same(&other)),
            Err(e) => {
                tracing::warn!("{}: looking for exact-match rule {}: {e}", target.device(), value.id);
                false
            }
        })
    }

    /// Ends a change: tells the rest, and remembers the plug-ins that the rules in force name.
    pub(super) fn told(&self, state: &mut State) {
        self.tell_gone(state);
        if state.untold.is_heard {
            let named = state.rules().map(|rule| (rule.id, plugins_of(rule)));
            state.untold.plugins = named.filter(|(_, plugins)| !plugins.is_empty()).collect();
        }
    }
}

/// The plug-ins that a rule names.
fn plugins_of(rule: &Rule) -> Vec<String> {
    let named = rule.conditions.iter().filter_map(|Condition { test, .. }| match test {
        Test::Plugin(names) => Some(names),
        _ => None,
    });
    named.flatten().cloned().collect()
}
