//! Counter slots: a rule owns a slot as long as it is active.
//!
//! A rule that is the same in the old and in the new set keeps its slot, and with it its counts. A new rule gets a slot
//! that has not been used since it was cleared; so never a slot of the old set, by which packets are still evaluated
//! while the new one takes over. There are twice as many slots as a set can have rules, so there is always one.

use std::collections::BTreeMap;

use wirelane_rules::Rule;

/// The slots of a set, by the rules' ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CounterSlots {
    of: BTreeMap<u32, (usize, Rule)>,
}

impl CounterSlots {
    /// The slots of the set that follows this one, and the slots that have to be cleared before. `None`: there are more
    /// rules than `slots` permit.
    pub(super) fn next(&self, rules: &[Rule], slots: usize) -> Option<(CounterSlots, Vec<usize>)> {
        let mut taken = vec![false; slots];
        for (slot, _) in self.of.values() {
            *taken.get_mut(*slot)? = true;
        }
        let mut free = (0..slots).filter(|slot| !taken[*slot]);
        let mut fresh = Vec::new();
        let mut of = BTreeMap::new();
        for rule in rules {
            let slot = match self.of.get(&rule.id) {
                Some((slot, same)) if same == rule => *slot,
                _ => {
                    let slot = free.next()?;
                    fresh.push(slot);
                    slot
                }
            };
            of.insert(rule.id, (slot, rule.clone()));
        }
        Some((CounterSlots { of }, fresh))
    }

    /// The slot of a rule of the set.
    pub(super) fn of(&self, id: u32) -> Option<usize> {
        self.of.get(&id).map(|(slot, _)| *slot)
    }

    /// All rules of the set with their slots, in the order of their ids.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &Rule)> {
        self.of.values().map(|(slot, rule)| (*slot, rule))
    }

    /// The rules whose counts the next set does not continue, with their slots.
    pub(super) fn ended(&self, next: &CounterSlots) -> impl Iterator<Item = (usize, &Rule)> {
        self.all().filter(|(slot, rule)| next.of(rule.id) != Some(*slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirelane_rules::Action;

    fn rules(ids: impl IntoIterator<Item = u32>, action: Action) -> Vec<Rule> {
        ids.into_iter().map(|id| Rule::new(id, action)).collect()
    }

    #[test]
    fn a_rule_that_stays_keeps_its_counters_and_others_get_fresh_ones() {
        let (first, fresh) = CounterSlots::default().next(&rules([5, 1, 9], Action::Pass), 8).unwrap();
        assert_eq!(fresh.len(), 3);
        // Rule 1 stays, rule 5 changes its action, rule 9 is removed, rule 2 is added.
        let wanted = [rules([1, 2], Action::Pass), rules([5], Action::Drop)].concat();
        let (second, fresh) = first.next(&wanted, 8).unwrap();
        assert_eq!(second.of(1), first.of(1));
        assert_eq!(fresh.len(), 2);
        let old: Vec<usize> = first.all().map(|(slot, _)| slot).collect();
        assert!(fresh.iter().all(|slot| !old.contains(slot)), "nobody counts there");
        let ended: Vec<usize> = first.ended(&second).map(|(slot, _)| slot).collect();
        assert_eq!(ended, [first.of(5).unwrap(), first.of(9).unwrap()]);
        assert_eq!(second.all().map(|(_, rule)| rule.id).collect::<Vec<_>>(), [1, 2, 5]);
    }

    #[test]
    fn twice_as_many_as_a_set_has_rules_are_always_enough() {
        const MOST: u32 = 64;
        let mut slots = CounterSlots::default();
        for turn in 0..10 {
            let all = rules(turn * MOST + 1..(turn + 1) * MOST + 1, Action::Count);
            let (next, fresh) = slots.next(&all, 2 * MOST as usize).unwrap();
            assert_eq!(fresh.len(), MOST as usize);
            slots = next;
        }
        assert!(slots.next(&rules(1..MOST + 2, Action::Pass), 2 * MOST as usize).is_none());
    }
}
