//! Conditions on earlier hits: a rule that is hit only after other rules, or only if they were not hit.

use std::collections::HashMap;

use wirelane_bpf::rules::{MAX_AFTER, MAX_AFTERS};

use super::check::{Fault, Which};
use super::{Condition, Rule, RuleSet, Test, Then};
use crate::{Error, Result};

impl Rule {
    /// The conditions on earlier hits, each with its ids.
    fn afters(&self) -> impl Iterator<Item = (&Condition, &[u32])> {
        self.conditions.iter().filter_map(|condition| match &condition.test {
            Test::After(ids) => Some((condition, &ids[..])),
            _ => None,
        })
    }

    /// Ids of rules, one of which the packet must have hit before this rule; or none of them, with `not.after`.
    pub fn asked_hits(&self) -> impl Iterator<Item = u32> {
        self.afters().flat_map(|(_, ids)| ids.iter().copied())
    }

    /// The ids as stored in a compiled rule, and whether none of these rules may have been hit.
    pub(super) fn after(&self) -> ([u32; MAX_AFTER], bool) {
        let Some((condition, ids)) = self.afters().next() else { return ([0; MAX_AFTER], false) };
        // Unused places have the first id again.
        let mut places = [ids.first().copied().unwrap_or(0); MAX_AFTER];
        places.iter_mut().zip(ids).for_each(|(place, id)| *place = *id);
        (places, condition.negated)
    }

    /// Whether rules after this one are evaluated when a packet has hit this rule or one that it has made.
    fn goes_on(&self) -> bool {
        self.then == Then::Continue || self.insert.is_some_and(|insert| insert.then == Then::Continue)
    }
}

impl RuleSet {
    /// Reports faults of conditions on earlier hits, except ids that no rule has ([`RuleSet::unknown_hits`]).
    pub(super) fn after_faults(&self, faults: &mut Vec<Fault>) {
        let asking = self.rules.iter().filter(|rule| rule.afters().next().is_some()).count();
        if asking > MAX_AFTERS {
            let reason = format!("{asking} rules have `after`, more than {MAX_AFTERS}");
            faults.push(Fault { rule: None, reason, other: None });
        }
        let rules: HashMap<u32, &Rule> = self.rules.iter().map(|rule| (rule.id, rule)).collect();
        for (index, rule) in self.rules.iter().enumerate() {
            let mut fault = |reason| {
                faults.push(Fault { rule: Some(Which::Wildcard(index)), reason, other: None });
            };
            if rule.afters().count() > 1 {
                fault("a rule has `after` or `not.after` once: give another rule the second one".to_owned());
            }
            for (condition, ids) in rule.afters() {
                if ids.len() > MAX_AFTER {
                    fault(format!(
                        "`after` has {} ids, more than {MAX_AFTER}: give some of them to a rule with action = \"none\", and \
                         name that rule here",
                        ids.len()
                    ));
                }
                if ids.contains(&0) {
                    fault("`after` has the id 0, and ids begin at 1".to_owned());
                }
                for id in ids {
                    if *id == rule.id {
                        fault(format!("`after` has the rule's own id {id}"));
                    } else if *id > rule.id && rules.contains_key(id) {
                        let circle = if leads(&rules, *id, rule.id) { " in a circle" } else { "" };
                        fault(format!(
                            "`after` refers to rule {id}{circle}, which is evaluated later than rule {}: rules are evaluated in \
                             the order of their ids",
                            rule.id
                        ));
                    }
                }
                let ends = |id: &u32| *id < rule.id && rules.get(id).is_some_and(|rule| !rule.goes_on());
                if !condition.negated && !ids.is_empty() && ids.iter().all(ends) {
                    fault(format!(
                        "no packet can hit this rule: a packet that hits {} is not compared with later rules; give {} \
                         then = \"continue\"",
                        if ids.len() == 1 {
                            format!("rule {}", ids[0])
                        } else {
                            "one of its `after`".to_owned()
                        },
                        if ids.len() == 1 { "it" } else { "one of them" },
                    ));
                }
            }
        }
    }

    /// Faults of rules that ask for hits of rules that neither this set nor `elsewhere` has.
    pub(super) fn unknown_hits(&self, elsewhere: impl Fn(u32) -> bool) -> Vec<Fault> {
        let own = |id: u32| {
            self.rules.iter().any(|rule| rule.id == id) || self.exact.iter().any(|rule| rule.id == id)
        };
        let asked = self.rules.iter().enumerate();
        let asked = asked.flat_map(|(index, rule)| rule.asked_hits().map(move |id| (index, id)));
        let unknown = asked.filter(|(_, id)| !own(*id) && !elsewhere(*id));
        let fault = |(index, id)| Fault {
            rule: Some(Which::Wildcard(index)),
            reason: format!("`after` has the id {id}, which no rule has"),
            other: None,
        };
        unknown.map(fault).collect()
    }

    /// Checks that rules ask for hits of rules of this set only, or of those that `elsewhere` knows.
    ///
    /// # Errors
    /// [`Error::Rules`] with every rule that asks for a hit of another rule.
    pub fn check_hits(&self, elsewhere: impl Fn(u32) -> bool) -> Result<()> {
        let mistakes = self.mistakes(self.unknown_hits(elsewhere));
        if mistakes.is_empty() { Ok(()) } else { Err(Error::Rules { mistakes }) }
    }
}

/// Whether rule `from` asks for a hit of rule `to`, itself or by way of other rules.
fn leads(rules: &HashMap<u32, &Rule>, from: u32, to: u32) -> bool {
    let (mut next, mut known) = (vec![from], vec![from]);
    while let Some(id) = next.pop() {
        for asked in rules.get(&id).into_iter().flat_map(|rule| rule.asked_hits()) {
            if asked == to {
                return true;
            }
            if !known.contains(&asked) {
                known.push(asked);
                next.push(asked);
            }
        }
    }
    false
}
