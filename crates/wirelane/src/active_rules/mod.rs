//! The active rules of a capture: evaluation, counters, and changes while packets flow.
//!
//! ```text
//!   RuleSet -> PendingRuleset -- prepare: compile, for each device; switch, settle --> Target: the kernel's tables
//!      ^                                                                        |      (engine/ring/rules/), or those
//!      |                                                                        |      that workers evaluate by (native/)
//!   Capture::set_rules, control/ (wirelane rules)        stats, list <--counts--'
//! ```
//!
//! A change is all or nothing. All steps that can fail run first, beside the rules in force: the new set is checked and
//! compiled for each device, its exact-match rules are inserted into the tables in an epoch of their own (`entry.rs`),
//! and its tables are written. Then each device switches, by one store; a packet is evaluated either by the old or by
//! the new set. The counts of the old rules are final once no packet is evaluated by them any more
//! (`counter_slots.rs`).
//!
//! Expired exact-match rules have no effect, whether or not they are still in the table; [`ActiveRuleset::sweep`]
//! removes them, a part at a time.

mod capacity;
mod counter_slots;
mod entry;
mod exact;
mod explain;
mod named;
mod native;
mod notices;
mod pending;
mod show;
mod target;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirelane_bpf::rules::{Counts, ExactKey, ExactValue};

pub use self::capacity::RulesCapacity;
use self::counter_slots::CounterSlots;
pub use self::explain::PacketToExplain;
pub(crate) use self::native::{Evaluator, Fate, NativeRules, fate};
pub(crate) use self::notices::{Event, Notice, Observer};
use self::notices::{Successors, Untold};
#[cfg(test)]
pub(crate) use self::pending::OF_A_PLACE;
pub(crate) use self::pending::PendingRuleset;
pub(crate) use self::target::{InsertOutcome, Page, Target};
use crate::error::{Error, Result};
pub(crate) use wirelane_rules::add_counts as add;
use wirelane_rules::{
    self, ExactFields, ExactRule, Mistake, NamedSet, Parameter, Patterns, Policy, Rule, RuleSet, Shape,
};
pub use wirelane_rules::{Changed, ExactLine, Hits, PluginLine, RuleLine, RuleStats, Searches};

/// Clock of packet timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Times {
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// UTC.
    Utc,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct ActiveRuleset {
    targets: Vec<Arc<dyn Target>>,
    times: Times,
    /// Parameters of plug-ins and of the steering program, which are fixed when the capture starts.
    parameters: Vec<Parameter>,
    observers: Vec<Arc<dyn Observer>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    default: Policy,
    /// The wildcard rules, by counter slot.
    slots: CounterSlots,
    /// Shapes of exact-match rules, in lookup order.
    shapes: Vec<Shape>,
    /// Epoch of the exact-match rules in force.
    epoch: u32,
    version: u64,
    /// Named sets, including those that no rule uses so far.
    sets: Vec<NamedSet>,
    /// Patterns, including those that no rule uses so far.
    patterns: Vec<Patterns>,
    /// Whether there are, or may be, rules that expire.
    ages: bool,
    /// Ids of exact-match rules that were not made by packets, each with the number of devices that have it.
    ids: HashMap<u32, u32>,
    rules_gone: Counts,
    exact_gone: Counts,
    /// Position of the sweep of exact-match rules: the target, and the start of its next page.
    swept: (usize, Option<u32>),
    untold: Untold,
}

impl ActiveRuleset {
    /// Activates these rules on these devices, before a packet is evaluated. `observers` hear of all changes, this one
    /// included.
    ///
    /// # Errors
    /// As [`ActiveRuleset::replace`].
    pub(crate) fn new(
        targets: Vec<Arc<dyn Target>>,
        times: Times,
        rules: &RuleSet,
        observers: Vec<Arc<dyn Observer>>,
    ) -> Result<ActiveRuleset> {
        let state = Mutex::new(State { untold: Untold::new(!observers.is_empty()), ..State::default() });
        let parameters = rules.parameters.clone();
        let active_rules = ActiveRuleset { targets, times, parameters, observers, state };
        active_rules.replace(rules)?;
        Ok(active_rules)
    }

    /// Replaces all rules in force, including those that packets have made.
    ///
    /// # Errors
    /// [`Error::Rules`] for invalid rules, [`Error::BadOption`] where capacity is missing: the rules in force stay
    /// active. Otherwise the error that the kernel returned.
    pub(crate) fn replace(&self, rules: &RuleSet) -> Result<Changed> {
        rules.check()?;
        rules.check_hits(|_| false)?;
        self.check_names(rules)?;
        let mut state = self.lock();
        let epoch = entry::after(state.epoch);
        let shapes = wirelane_rules::shapes(rules, &[])?;
        let draft = self.draft(&state, rules, shapes, epoch)?;
        let added = self.put_all(&mut state, &rules.exact, epoch)?;
        let successors = Successors::of(&state);
        if let Err(e) = self.install(&mut state, draft, (&rules.exact, &successors)) {
            self.take_back(&rules.exact, epoch);
            return Err(e);
        }
        state.ids = rules.exact.iter().map(|rule| (rule.id, self.targets.len() as u32)).collect();
        state.ages = exact::age(rules);
        let removed = self.purge(&mut state, |key, _| entry::epoch_of(key) != epoch);
        self.tell_successors(&state, &rules.exact, &successors);
        self.told(&mut state);
        Ok(state.changed(added, removed?))
    }

    /// Adds rules to those in force.
    ///
    /// # Errors
    /// As [`ActiveRuleset::replace`]; an id in use is an error.
    pub(crate) fn extend(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Result<Changed> {
        let mut state = self.lock();
        let (sets, patterns) = (state.sets.clone(), state.patterns.clone());
        let new = RuleSet { rules, exact, sets, patterns, ..RuleSet::default() };
        new.check()?;
        new.check_hits(|id| state.ids.contains_key(&id) || state.slots.of(id).is_some())?;
        self.check_names(&new)?;
        let RuleSet { rules, exact, .. } = &new;
        let mut ids = rules.iter().map(|rule| rule.id).chain(exact.iter().map(|rule| rule.id));
        if let Some(id) = ids.find(|id| state.ids.contains_key(id) || state.slots.of(*id).is_some()) {
            return Err(refused(format!("rule {id}: this id is in use; remove the rule that has it first")));
        }
        let shapes = wirelane_rules::shapes(&new, &state.shapes)?;
        // Exact-match rules are in force as soon as they are in the table.
        exact.iter().for_each(|rule| self.tell_exact(Event::Added, rule));
        let added = self.put_and_install(&mut state, &new, shapes);
        if added.is_err() {
            exact.iter().for_each(|rule| self.tell_exact(Event::Removed, rule));
        }
        self.told(&mut state);
        let added = added?;
        state.ages |= exact::age(&new);
        let devices = self.targets.len() as u32;
        state.ids.extend(exact.iter().map(|rule| (rule.id, devices)));
        Ok(state.changed(added, 0))
    }

    /// Adds these rules; returns the number of exact-match rules.
    fn put_and_install(&self, state: &mut State, new: &RuleSet, shapes: Vec<Shape>) -> Result<u64> {
        let epoch = state.epoch;
        let added = self.put_all(state, &new.exact, epoch)?;
        if !new.rules.is_empty() || shapes != state.shapes {
            let all = state.set(state.rules().chain(&new.rules).cloned().collect());
            let installed = self
                .draft(state, &all, shapes, epoch)
                .and_then(|draft| self.install(state, draft, (&[], &Successors::default())));
            if let Err(e) = installed {
                self.take_back(&new.exact, epoch);
                return Err(e);
            }
        }
        Ok(added)
    }

    /// Removes the rules with these ids, including the rules that they have made, and exact-match rules with these
    /// fields. Ids and fields that match no rule are ignored.
    ///
    /// # Errors
    /// [`Error::Rules`] for an id that a remaining rule asks for (`after`); otherwise the error that the kernel returned.
    pub(crate) fn remove(&self, ids: &[u32], exact: &[ExactFields]) -> Result<Changed> {
        let ids: HashSet<u32> = ids.iter().copied().collect();
        let mut state = self.lock();
        let before = state.rules().count();
        let rules: Vec<Rule> = state.rules().filter(|rule| !ids.contains(&rule.id)).cloned().collect();
        if let Some((rule, id)) = rules
            .iter()
            .flat_map(|rule| rule.asked_hits().map(|id| (rule.id, id)))
            .find(|(_, id)| ids.contains(id))
        {
            return Err(refused(format!(
                "rule {id}: rule {rule} asks for its hits (after); remove that one first"
            )));
        }
        let mut removed = (before - rules.len()) as u64;
        if removed > 0 {
            let draft = self.draft(&state, &state.set(rules), state.shapes.clone(), state.epoch)?;
            self.install(&mut state, draft, (&[], &Successors::default()))?;
        }
        let taken = self.take_all(&mut state, &ids, exact);
        self.told(&mut state);
        removed += taken?;
        Ok(state.changed(0, removed))
    }

    /// Removes exact-match rules with these ids, and those with these fields; returns their number.
    fn take_all(&self, state: &mut State, ids: &HashSet<u32>, exact: &[ExactFields]) -> Result<u64> {
        let mut removed = 0;
        if !ids.is_empty() {
            removed += self.purge(state, |_, value| ids.contains(&value.id))?;
            // A packet may have made a rule in place of an expired one that had not been removed yet.
            for id in ids {
                state.ids.remove(id);
            }
        }
        for fields in exact {
            let key = entry::key(fields, state.epoch);
            for key in [Some(key), entry::turned(&key)].into_iter().flatten() {
                for (at, target) in self.targets.iter().enumerate().rev() {
                    if let Some(value) = target.take(&key)? {
                        state.has_gone(&key, &value, target.now_ns());
                        removed += u64::from(self.is_last(at, &key)?);
                    }
                }
            }
        }
        Ok(removed)
    }

    /// Removes all exact-match rules, and with `all` the wildcard rules too. The default stays.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn flush(&self, all: bool) -> Result<Changed> {
        let mut state = self.lock();
        let before = state.rules().count();
        let rules: Vec<Rule> = if all { Vec::new() } else { state.rules().cloned().collect() };
        let mut removed = (before - rules.len()) as u64;
        let epoch = entry::after(state.epoch);
        let mut set = state.set(rules);
        if all {
            set.sets.clear();
            set.patterns.clear();
        }
        let shapes = wirelane_rules::shapes(&set, &[])?;
        let draft = self.draft(&state, &set, shapes, epoch)?;
        self.install(&mut state, draft, (&[], &Successors::default()))?;
        state.ids.clear();
        let purged = self.purge(&mut state, |key, _| entry::epoch_of(key) != epoch);
        self.told(&mut state);
        removed += purged?;
        Ok(state.changed(0, removed))
    }

    /// A set that may follow the one in force; unchanged rules keep their counters.
    fn draft(
        &self,
        state: &State,
        set: &RuleSet,
        shapes: Vec<Shape>,
        epoch: u32,
    ) -> Result<(PendingRuleset, Vec<usize>)> {
        let rules = &set.rules;
        let room = self.targets.iter().map(|target| target.room().rules).min().unwrap_or(0);
        if rules.len() > room {
            return Err(Error::BadOption {
                option: "--rules-capacity",
                reason: format!(
                    "{} wildcard rules, and the capture has room for {room}: start it with --rules-capacity rules={}",
                    rules.len(),
                    rules.len()
                ),
            });
        }
        let search = named::fit(set, &state.set(state.rules().cloned().collect()), self.set_room())?;
        // There are twice as many slots as rules, which is always enough.
        let next = state.slots.next(rules, 2 * room);
        let (slots, fresh) = next.ok_or_else(|| refused("more rules than counters".to_owned()))?;
        let set = RuleSet {
            default: set.default,
            rules: rules.clone(),
            sets: set.sets.clone(),
            patterns: set.patterns.clone(),
            ..RuleSet::default()
        };
        Ok((PendingRuleset { set, shapes, epoch, version: state.version + 1, slots, _search: search }, fresh))
    }

    /// Switches to this set: on return all packets are evaluated by it. After an error nothing has changed. `exact`: the
    /// exact-match rules that come into force with it. Of rules with the id of a former one, the caller tells.
    fn install(
        &self,
        state: &mut State,
        (draft, fresh): (PendingRuleset, Vec<usize>),
        (exact, successors): (&[ExactRule], &Successors),
    ) -> Result<()> {
        for target in &self.targets {
            target.prepare(&draft)?;
        }
        for target in &self.targets {
            fresh.iter().for_each(|slot| target.clear(*slot));
        }
        for (slot, rule) in draft.slots.all() {
            if fresh.contains(&slot) && !successors.has(rule.id) {
                self.tell_rule(Event::Added, rule, Counts::default());
            }
        }
        exact
            .iter()
            .filter(|rule| !successors.has(rule.id))
            .for_each(|rule| self.tell_exact(Event::Added, rule));
        self.targets.iter().for_each(|target| target.switch());
        // All have switched: the change cannot be undone from here on, and a device that cannot wait now waits next
        // time.
        for target in &self.targets {
            if let Err(e) = target.settle() {
                tracing::warn!(
                    "{}: waiting for packets that are evaluated by the rules before: {e}",
                    target.device()
                );
            }
        }
        for (slot, rule) in state.slots.ended(&draft.slots) {
            let counts = self.counts(slot);
            add(&mut state.rules_gone, &counts);
            self.tell_rule(Event::Removed, rule, counts);
        }
        state.default = draft.set.default;
        state.sets = draft.set.sets;
        state.patterns = draft.set.patterns;
        state.slots = draft.slots;
        state.shapes = draft.shapes;
        state.epoch = draft.epoch;
        state.version = draft.version;
        Ok(())
    }

    /// Counts of a slot, over all devices.
    fn counts(&self, slot: usize) -> Counts {
        let mut sum = Counts::default();
        self.targets.iter().for_each(|target| add(&mut sum, &target.counts(slot)));
        sum
    }

    /// Checks that rules send packets only to known egress devices, and use only known plug-ins.
    fn check_names(&self, rules: &RuleSet) -> Result<()> {
        // All devices of a capture have the same egress devices and plug-ins.
        let (egress_devices, plugins) = self
            .targets
            .first()
            .map_or((&[][..], &[][..]), |target| (target.egress_devices(), target.plugins()));
        rules.check_egress_devices(egress_devices)?;
        let plugins: Vec<String> = plugins.iter().map(|one| one.name.clone()).collect();
        rules.check_plugins(&plugins)?;
        Ok(rules.check_fixed_parameters(&self.parameters)?)
    }

    /// Counts of payload searches, over all devices.
    fn searched(&self) -> Counts {
        let mut sum = Counts::default();
        for target in &self.targets {
            add(&mut sum, &target.counts(target.room().search_slot()));
        }
        sum
    }

    /// MiB for named sets and patterns in the kernel.
    fn set_room(&self) -> usize {
        self.targets.iter().map(|target| target.room().sets).min().unwrap_or(usize::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn changed(&self, added: u64, removed: u64) -> Changed {
        Changed { version: self.version, rules: self.rules().count(), added, removed }
    }

    /// A rule set of these wildcard rules with the default, the named sets and the patterns in force.
    fn set(&self, rules: Vec<Rule>) -> RuleSet {
        let (sets, patterns) = (self.sets.clone(), self.patterns.clone());
        RuleSet { default: self.default, rules, sets, patterns, ..RuleSet::default() }
    }

    /// The wildcard rules in force.
    fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.slots.all().map(|(_, rule)| rule)
    }

    /// Accounts for an exact-match rule that was removed from one device at this time.
    fn has_gone(&mut self, key: &ExactKey, value: &ExactValue, now_ns: u64) {
        add(&mut self.exact_gone, &show::counts_of(value));
        self.untold.has_gone(key, value, now_ns);
        // `ids` has those of the set in force only.
        if entry::is_made(value) || entry::epoch_of(key) != self.epoch {
            return;
        }
        if let Entry::Occupied(mut devices) = self.ids.entry(value.id) {
            *devices.get_mut() -= 1;
            if *devices.get() == 0 {
                devices.remove();
            }
        }
    }
}

/// The error for a change that is refused.
fn refused(reason: String) -> Error {
    wirelane_rules::Error::Rules {
        mistakes: vec![Mistake { path: Default::default(), line: 0, column: 0, reason }],
    }
    .into()
}
