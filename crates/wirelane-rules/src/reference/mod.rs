//! Reference evaluation of a rule set: from its conditions, one rule after the other.
//!
//! It is far too slow for traffic. [`RuleSet::explain`] is made of it, and tests compare it with what the kernel decides
//! from the compiled tables. `bpf/lib/rules.h` says what is decided; nothing of the code there is used here.

mod explain;
mod search;
mod seen;
mod sip;

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use wirelane_bpf::judge::Packet;
use wirelane_bpf::rules::{Counts, Facts, Judged, MAX_HITS, judged_flags};

pub use self::explain::{Explanation, Finding, Found, SetTest};
pub use self::search::FoundPattern;
use self::seen::Seen;
use super::compile::{default_of, verdict_of};
use super::patterns::Sought;
use super::precise::own_shapes;
use super::{Action, Insert, PreciseFields, PreciseRule, Rule, RuleSet, Sample, Shape, Then};

/// A rule set at work, with the precise rules that came of it and the counts.
#[derive(Clone, Debug)]
pub struct Reference<'s> {
    set: &'s RuleSet,
    /// In the order of their ids.
    rules: Vec<&'s Rule>,
    shapes: Vec<Shape>,
    /// The numbers of the devices that its rules send packets to.
    exits: Vec<String>,
    counts: Vec<Counts>,
    precise: Vec<PreciseEntry>,
    /// The patterns that rules ask for.
    patterns: Arc<[Sought]>,
    searched: Counts,
}

/// A precise rule at work.
#[derive(Clone, Debug, PartialEq)]
pub struct PreciseEntry {
    /// The rule.
    pub rule: PreciseRule,
    /// It was made by the wildcard rule whose id it has.
    pub made: bool,
    /// When it was made, in nanoseconds of the packets' clock.
    pub made_ns: u64,
    /// Packets and bytes that hit it, and when.
    pub counts: Counts,
}

/// What a rule does once a packet has hit it: what wildcard and precise rules have in common.
struct Effect {
    id: u32,
    action: Action,
    then: Then,
    truncate: Option<u32>,
    tag: Option<u32>,
    /// Bits of exits: of its copy, and of that which it redirects to.
    sends: (u8, u8),
}

/// What is asked while a packet is judged.
trait Watch {
    /// A precise rule is hit; a sample has the packet, or not.
    fn precise(&mut self, _rule: &PreciseRule, _exchanged: bool, _chosen: bool) {}
    /// A wildcard rule is hit.
    fn hit(&mut self, _rule: &Rule, _chosen: bool) {}
    /// A wildcard rule is not hit.
    fn missed(&mut self, _rule: &Rule) {}
    /// A wildcard rule is not asked any more.
    fn unasked(&mut self, _rule: &Rule) {}
}

/// Nobody asks.
struct Unwatched;

impl Watch for Unwatched {}

impl<'s> Reference<'s> {
    /// The set at work from this time on. It has to be one that can be used ([`RuleSet::check`]).
    pub fn new(set: &'s RuleSet, now_ns: u64) -> Reference<'s> {
        let mut rules: Vec<&Rule> = set.rules.iter().collect();
        rules.sort_by_key(|rule| rule.id);
        let entry = |rule: &PreciseRule| PreciseEntry {
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
            exits: set.exits(),
            precise: set.precise.iter().map(entry).collect(),
            patterns: set.patterns_in_use().into(),
            searched: Counts::default(),
        }
    }

    /// The counts of the wildcard rules, in the order of their ids.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// The precise rules: the set's, and those that were made since. Those that have expired are still there.
    pub fn precise(&self) -> &[PreciseEntry] {
        &self.precise
    }

    /// What searching payloads has done ([`wirelane_bpf::rules::Set::search_slot`]).
    pub fn searched(&self) -> Counts {
        self.searched
    }

    /// Judges a packet, and counts it.
    pub fn judge(&mut self, packet: Packet<'_>, facts: &Facts, device: &str) -> Judged {
        let patterns = Arc::clone(&self.patterns);
        let (sets, searched) = (&self.set.sets[..], OnceCell::new());
        let seen =
            Seen { packet, facts, device, sets, patterns: &patterns, searched, plugged: Cell::new(false) };
        self.judge_watched(&seen, &mut Unwatched)
    }

    fn judge_watched(&mut self, seen: &Seen<'_>, watch: &mut dyn Watch) -> Judged {
        let mut judged = Judged::default();
        let goes_on = match self.precise_hit(seen) {
            None => true,
            Some((index, exchanged)) => {
                let entry = &mut self.precise[index];
                count(&mut entry.counts, seen.facts);
                let chosen = is_chosen(seen, entry.rule.sample);
                watch.precise(&entry.rule, exchanged, chosen);
                apply(&mut judged, &entry.rule.effect(&self.exits), chosen) == Then::Continue
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
            if judged.hits == MAX_HITS {
                judged.flags |= judged_flags::MORE;
                asked = false;
                watch.unasked(rule);
                continue;
            }
            judged.hits += 1;
            count(&mut self.counts[index], seen.facts);
            let chosen = is_chosen(seen, rule.sample);
            watch.hit(rule, chosen);
            asked = apply(&mut judged, &rule.effect(&self.exits), chosen) == Then::Continue;
            if let (true, Some(insert)) = (chosen, rule.insert) {
                self.counts[index].inserted += u64::from(self.insert(seen, rule, insert));
            }
        }
        if let Some(searched) = seen.searched.get() {
            judged.pattern = searched.ids;
            judged.flags |= if searched.half { judged_flags::HALF } else { 0 };
            judged.flags |= if searched.more { judged_flags::FOUND } else { 0 };
            count(&mut self.searched, &Facts { wire_len: searched.bytes as u32, ..*seen.facts });
            self.searched.inserted += u64::from(!searched.found.is_empty());
            self.searched.refused += u64::from(searched.half);
        }
        if judged.verdict == 0 {
            judged.verdict = default_of(self.set.default).into();
        }
        judged.exits |= judged.to;
        judged
    }

    /// The precise rule that the packet hits, and whether it does so in the other direction.
    fn precise_hit(&self, seen: &Seen<'_>) -> Option<(usize, bool)> {
        self.shapes.iter().find_map(|shape| {
            let fields = seen.fields(*shape)?;
            let found = |fields| self.live(&fields, seen.facts.now_ns);
            let there = found(fields).map(|index| (index, false));
            let back = || found(seen.fields_back(*shape)?).map(|index| (index, true));
            there.or_else(|| if fields.both_ways { back() } else { None })
        })
    }

    /// The precise rule with these fields that has not expired.
    fn live(&self, fields: &PreciseFields, now_ns: u64) -> Option<usize> {
        self.precise.iter().position(|entry| entry.rule.fields == *fields && !entry.has_expired(now_ns))
    }

    /// Makes a precise rule of a packet, unless it is there. Whether one was made.
    fn insert(&mut self, seen: &Seen<'_>, rule: &Rule, insert: Insert) -> bool {
        let Some(fields) = seen.fields(insert.shape) else { return false };
        let now_ns = seen.facts.now_ns;
        let there = |fields: PreciseFields| self.live(&fields, now_ns).is_some();
        let back = fields.both_ways && seen.fields_back(insert.shape).is_some_and(there);
        if back || self.live(&fields, now_ns).is_some() {
            return false;
        }
        self.precise.retain(|entry| entry.rule.fields != fields);
        let made = PreciseRule {
            then: insert.then,
            tag: rule.tag,
            idle_s: insert.idle_s,
            hard_s: insert.hard_s,
            ..PreciseRule::new(rule.id, fields, insert.action)
        };
        let counts = Counts::default();
        self.precise.push(PreciseEntry { rule: made, made: true, made_ns: now_ns, counts });
        true
    }
}

impl PreciseEntry {
    /// Whether it is over by this time.
    pub fn has_expired(&self, now_ns: u64) -> bool {
        let over = |since_ns: u64, seconds: u32| {
            let passed = Duration::from_nanos(now_ns.saturating_sub(since_ns));
            seconds > 0 && passed >= Duration::from_secs(seconds.into())
        };
        over(self.made_ns.max(self.counts.last_ns), self.rule.idle_s) || over(self.made_ns, self.rule.hard_s)
    }
}

impl Rule {
    fn effect(&self, exits: &[String]) -> Effect {
        let Rule { id, action, then, truncate, tag, .. } = *self;
        Effect { id, action, then, truncate, tag, sends: self.sends().bits(exits) }
    }
}

impl PreciseRule {
    fn effect(&self, exits: &[String]) -> Effect {
        let PreciseRule { id, action, then, truncate, tag, .. } = *self;
        Effect { id, action, then, truncate, tag, sends: self.sends().bits(exits) }
    }
}

fn is_chosen(seen: &Seen<'_>, sample: Option<Sample>) -> bool {
    sample.is_none_or(|sample| seen.is_chosen(sample.one_in, sample.by))
}

/// What a hit changes, and whether later rules are asked.
fn apply(judged: &mut Judged, effect: &Effect, chosen: bool) -> Then {
    if !chosen {
        judged.verdict = verdict_of(Action::Drop).into();
        judged.to = 0;
        judged.rule_id = effect.id;
        return Then::Stop;
    }
    if let Some(bytes) = effect.truncate {
        judged.truncate = if judged.truncate == 0 { bytes } else { judged.truncate.min(bytes) };
    }
    if let Some(tag) = effect.tag {
        judged.tag = tag;
        judged.flags |= judged_flags::TAGGED;
    }
    let (mirror, to) = effect.sends;
    judged.exits |= u32::from(mirror);
    if effect.action != Action::None {
        judged.verdict = verdict_of(effect.action).into();
        judged.to = to.into();
        judged.rule_id = effect.id;
    } else if judged.rule_id == 0 {
        judged.rule_id = effect.id;
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
