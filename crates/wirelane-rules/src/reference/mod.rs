//! Reference evaluation of a rule set: conditions are evaluated directly, one rule after the other.
//!
//! It is far too slow for traffic. [`RuleSet::explain`] uses it, and tests compare it with the kernel's verdicts from
//! the compiled tables. The semantics are specified in `bpf/lib/rules.h`; no code from there is used here.

mod explain;
mod search;
mod seen;
mod sip;

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::rules::{Counts, Evaluated, Facts, MAX_HITS, evaluated_flags};

pub use self::explain::{Explanation, Finding, Found, SetTest};
pub use self::search::FoundPattern;
use self::seen::Seen;
use super::compile::{default_of, verdict_of};
use super::exact::own_shapes;
use super::patterns::Sought;
use super::{Action, ExactFields, ExactRule, Insert, Rule, RuleSet, Sample, Shape, Then};

/// The state of an evaluated rule set: its exact-match rules, including inserted ones, and the counters.
#[derive(Clone, Debug)]
pub struct Reference<'s> {
    set: &'s RuleSet,
    /// Sorted by id.
    rules: Vec<&'s Rule>,
    shapes: Vec<Shape>,
    /// Names of the devices that the set's rules send packets to, in the order of their bits.
    egress_devices: Vec<String>,
    counts: Vec<Counts>,
    exact: Vec<ExactEntry>,
    /// The patterns that rules use.
    patterns: Arc<[Sought]>,
    searched: Counts,
}

/// An exact-match rule with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct ExactEntry {
    /// The rule.
    pub rule: ExactRule,
    /// Whether a wildcard rule inserted it; the id is that of the wildcard rule.
    pub made: bool,
    /// Time of creation, in nanoseconds of the packets' clock.
    pub made_ns: u64,
    /// Packets and bytes that matched, with first and last time.
    pub counts: Counts,
}

/// The effect of a matching rule: the common part of wildcard and exact-match rules.
struct Effect {
    id: u32,
    action: Action,
    then: Then,
    truncate: Option<u32>,
    tag: Option<u32>,
    /// Bits of the mirror device and of the redirect device.
    sends: (u8, u8),
}

/// Observer of an evaluation.
trait Watch {
    /// An exact-match rule matches; `_chosen`: the packet is in its sample.
    fn exact(&mut self, _rule: &ExactRule, _exchanged: bool, _chosen: bool) {}
    /// A wildcard rule matches.
    fn hit(&mut self, _rule: &Rule, _chosen: bool) {}
    /// A wildcard rule does not match.
    fn missed(&mut self, _rule: &Rule) {}
    /// A wildcard rule is not evaluated any more.
    fn unasked(&mut self, _rule: &Rule) {}
}

/// No observer.
struct Unwatched;

impl Watch for Unwatched {}

impl<'s> Reference<'s> {
    /// An evaluation that starts at this time. The set must be valid ([`RuleSet::check`]).
    pub fn new(set: &'s RuleSet, now_ns: u64) -> Reference<'s> {
        let mut rules: Vec<&Rule> = set.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let entry = |rule: &ExactRule| ExactEntry {
            rule: rule.clone(),
            made: false,
            made_ns: now_ns,
            counts: Counts::default(),
        };
        Reference {
            set,
            counts: vec![Counts::default(); rules.len()],
            rules,
            shapes: own_shapes(set),
            egress_devices: set.egress_devices(),
            exact: set.exact.iter().map(entry).collect(),
            patterns: set.patterns_in_use().into(),
            searched: Counts::default(),
        }
    }

    /// The counters of the wildcard rules, in the order of their ids.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// The exact-match rules: those of the set, and those inserted since. Expired rules may be included.
    pub fn exact(&self) -> &[ExactEntry] {
        &self.exact
    }

    /// The counters of the payload search ([`wirelane_bpf::rules::Set::search_slot`]).
    pub fn searched(&self) -> Counts {
        self.searched
    }

    /// Evaluates a packet, and updates the counters.
    pub fn evaluate(&mut self, packet: Packet<'_>, facts: &Facts, device: &str) -> Evaluated {
        let patterns = Arc::clone(&self.patterns);
        let (sets, searched) = (&self.set.sets[..], OnceCell::new());
        let (plugged, hits) = (Cell::new(false), RefCell::default());
        let seen = Seen { packet, facts, device, sets, patterns: &patterns, searched, plugged, hits };
        self.evaluate_watched(&seen, &mut Unwatched)
    }

    fn evaluate_watched(&mut self, seen: &Seen<'_>, watch: &mut dyn Watch) -> Evaluated {
        let mut evaluated = Evaluated::default();
        let goes_on = match self.exact_hit(seen) {
            None => true,
            Some((index, exchanged)) => {
                let entry = &mut self.exact[index];
                count(&mut entry.counts, seen.facts);
                let chosen = is_chosen(seen, entry.rule.sample);
                watch.exact(&entry.rule, exchanged, chosen);
                seen.hits.borrow_mut().push(entry.rule.id);
                apply(&mut evaluated, &entry.rule.effect(&self.egress_devices), chosen) == Then::Continue
            }
        };
        let mut asked = goes_on;
        for index in 0..self.rules.len() {
            let rule = self.rules[index];
            if !asked {
                watch.unasked(rule);
                continue;
            }
            if !seen.fits(rule) {
                watch.missed(rule);
                continue;
            }
            if evaluated.hits == MAX_HITS {
                evaluated.flags |= evaluated_flags::MORE;
                asked = false;
                watch.unasked(rule);
                continue;
            }
            evaluated.hits += 1;
            count(&mut self.counts[index], seen.facts);
            let chosen = is_chosen(seen, rule.sample);
            watch.hit(rule, chosen);
            seen.hits.borrow_mut().push(rule.id);
            asked = apply(&mut evaluated, &rule.effect(&self.egress_devices), chosen) == Then::Continue;
            if let (true, Some(insert)) = (chosen, rule.insert) {
                self.counts[index].inserted += u64::from(self.insert(seen, rule, insert));
            }
        }
        if let Some(searched) = seen.searched.get() {
            evaluated.pattern = searched.ids;
            evaluated.flags |= if searched.half { evaluated_flags::HALF } else { 0 };
            evaluated.flags |= if searched.more { evaluated_flags::FOUND } else { 0 };
            count(&mut self.searched, &Facts { wire_len: searched.bytes as u32, ..*seen.facts });
            self.searched.inserted += u64::from(!searched.found.is_empty());
            self.searched.refused += u64::from(searched.half);
        }
        if evaluated.verdict == 0 {
            evaluated.verdict = default_of(self.set.default).into();
        }
        evaluated.egress_devices |= evaluated.to;
        evaluated
    }

    /// The exact-match rule that matches the packet, and whether it matches in the other direction.
    fn exact_hit(&self, seen: &Seen<'_>) -> Option<(usize, bool)> {
        self.shapes.iter().find_map(|shape| {
            let fields = seen.fields(*shape)?;
            let found = |fields| self.live(&fields, seen.facts.now_ns);
            let there = found(fields).map(|index| (index, false));
            let back = || found(seen.fields_back(*shape)?).map(|index| (index, true));
            there.or_else(|| if fields.both_ways { back() } else { None })
        })
    }

    /// The exact-match rule with these fields that has not expired.
    fn live(&self, fields: &ExactFields, now_ns: u64) -> Option<usize> {
        self.exact.iter().position(|entry| entry.rule.fields == *fields && !entry.has_expired(now_ns))
    }

    /// Inserts an exact-match rule for a packet, unless it exists. Returns whether a rule was inserted.
    fn insert(&mut self, seen: &Seen<'_>, rule: &Rule, insert: Insert) -> bool {
        let Some(fields) = seen.fields(insert.shape) else { return false };
        let now_ns = seen.facts.now_ns;
        let there = |fields: ExactFields| self.live(&fields, now_ns).is_some();
        let back = fields.both_ways && seen.fields_back(insert.shape).is_some_and(there);
        if back || self.live(&fields, now_ns).is_some() {
            return false;
        }
        self.exact.retain(|entry| entry.rule.fields != fields);
        let made = ExactRule {
            then: insert.then,
            tag: rule.tag,
            idle_s: insert.idle_s,
            hard_s: insert.hard_s,
            ..ExactRule::new(rule.id, fields, insert.action)
        };
        let counts = Counts::default();
        self.exact.push(ExactEntry { rule: made, made: true, made_ns: now_ns, counts });
        true
    }
}

impl ExactEntry {
    /// Whether the rule has expired by this time.
    pub fn has_expired(&self, now_ns: u64) -> bool {
        let over = |since_ns: u64, seconds: u32| {
            let passed = Duration::from_nanos(now_ns.saturating_sub(since_ns));
            seconds > 0 && passed >= Duration::from_secs(seconds.into())
        };
        over(self.made_ns.max(self.counts.last_ns), self.rule.idle_s) || over(self.made_ns, self.rule.hard_s)
    }
}

impl Rule {
    fn effect(&self, egress_devices: &[String]) -> Effect {
        let Rule { id, action, then, truncate, tag, .. } = *self;
        Effect { id, action, then, truncate, tag, sends: self.sends().bits(egress_devices) }
    }
}

impl ExactRule {
    fn effect(&self, egress_devices: &[String]) -> Effect {
        let ExactRule { id, action, then, truncate, tag, .. } = *self;
        Effect { id, action, then, truncate, tag, sends: self.sends().bits(egress_devices) }
    }
}

fn is_chosen(seen: &Seen<'_>, sample: Option<Sample>) -> bool {
    sample.is_none_or(|sample| seen.is_chosen(sample.one_in, sample.by))
}

/// Applies a match to the verdict; returns whether evaluation continues.
fn apply(evaluated: &mut Evaluated, effect: &Effect, chosen: bool) -> Then {
    evaluated.add_hit(effect.id);
    if !chosen {
        evaluated.verdict = verdict_of(Action::Drop).into();
        evaluated.to = 0;
        evaluated.rule_id = effect.id;
        return Then::Stop;
    }
    if let Some(bytes) = effect.truncate {
        evaluated.truncate = if evaluated.truncate == 0 { bytes } else { evaluated.truncate.min(bytes) };
    }
    if let Some(tag) = effect.tag {
        evaluated.tag = tag;
        evaluated.flags |= evaluated_flags::TAGGED;
    }
    let (mirror, to) = effect.sends;
    evaluated.egress_devices |= u32::from(mirror);
    if effect.action != Action::None {
        evaluated.verdict = verdict_of(effect.action).into();
        evaluated.to = to.into();
        evaluated.rule_id = effect.id;
    } else if evaluated.rule_id == 0 {
        evaluated.rule_id = effect.id;
    }
    effect.then
}

fn count(counts: &mut Counts, facts: &Facts) {
    if counts.packets == 0 {
        counts.first_ns = facts.now_ns;
    }
    counts.last_ns = facts.now_ns;
    counts.packets += 1 + u64::from(facts.more_packets);
    counts.bytes += u64::from(facts.wire_len) + u64::from(facts.more_bytes);
}
