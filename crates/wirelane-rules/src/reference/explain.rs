//! Explains the verdict of a rule set on a packet.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;

use serde::Serialize;
use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::rules::{Facts, evaluated_flags};

use super::{FoundPattern, Reference, Seen, Watch};
use crate::compile::action_of;
use crate::egress_devices::named as named_egress_devices;
use crate::named;
use crate::names::shown;
use crate::patterns;
use crate::{Action, Condition, ExactRule, Rule, RuleSet, Sample, Test, Then};

/// Maximum number of patterns in the text form.
const SHOWN: usize = 16;

/// A rule set's verdict on a packet, with the reasons. The text form has a line for each rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The packet's fields as evaluated by rules.
    pub packet: String,
    /// Number of exact-match rules.
    pub exact_rules: usize,
    /// The rules in the order of evaluation; of the exact-match rules only the one that matches.
    pub findings: Vec<Finding>,
    /// Final action on the packet; not [`Action::None`].
    pub action: Action,
    /// Id of the rule that is reported in the record: the one that decided, otherwise the first that matched. 0: none.
    pub rule_id: u32,
    /// Whether the action is the set's default policy.
    pub by_default: bool,
    /// Maximum number of bytes of the packet that are delivered.
    pub truncate: Option<u32>,
    /// Tag in the packet's record.
    pub tag: Option<u32>,
    /// Egress devices that get a copy of the packet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirror: Vec<String>,
    /// Egress device that the packet is redirected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The packet matches more than `MAX_HITS` rules; the remaining rules were not evaluated.
    pub more: bool,
    /// The tests of named sets in the rules, with their exact results; the kernel's bloom filters may have false
    /// positives.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetTest>,
    /// The payload was searched, because a packet matched all other conditions of a rule with patterns.
    pub searched: bool,
    /// The patterns that were found in the payload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<FoundPattern>,
    /// The plug-ins that would be called. They are not called here, and count as not matching.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// The payload was searched incompletely: it is too long, has too many matches, or was not captured completely.
    pub half_searched: bool,
}

/// A test of a named set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetTest {
    /// Field of the test: `src-in`, `dst-in`, `host-in` or `flow-in`.
    pub field: &'static str,
    /// Name of the set.
    pub set: String,
    /// Whether the packet's field is in the set.
    pub holds: bool,
}

/// The result of one rule for the packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Id of the rule.
    pub id: u32,
    /// Name of the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the rule is an exact-match rule.
    pub exact: bool,
    /// Whether the rule matches.
    pub found: Found,
    /// The rule's conditions, each with the packet's value; if the rule does not match, only the conditions that fail.
    pub why: Vec<String>,
    /// The rule's effect on the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub does: Option<String>,
}

/// Whether a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// The rule matches.
    Hit,
    /// The rule does not match.
    Missed,
    /// An earlier rule ended the evaluation.
    NotAsked,
}

impl RuleSet {
    /// Explains the set's verdict on a packet at the time of `facts`. The set must be valid ([`RuleSet::check`]). No
    /// counter changes, and no exact-match rule is inserted.
    pub fn explain(&self, packet: Packet<'_>, facts: &Facts, device: &str) -> Explanation {
        let patterns = self.patterns_in_use();
        let (sets, searched) = (&self.sets[..], OnceCell::new());
        let (plugged, hits) = (Cell::new(false), RefCell::default());
        let seen = &Seen { packet, facts, device, sets, patterns: &patterns, searched, plugged, hits };
        let mut watch = Explainer { seen, findings: Vec::new(), decided: false };
        let evaluated = Reference::new(self, seen.facts.now_ns).evaluate_watched(seen, &mut watch);
        let action = action_of(evaluated.verdict as u8);
        let egress_devices = self.egress_devices();
        Explanation {
            mirror: named_egress_devices(&egress_devices, evaluated.egress_devices & !evaluated.to),
            to: named_egress_devices(&egress_devices, evaluated.to).pop(),
            packet: seen.words(),
            exact_rules: self.exact.len(),
            action,
            rule_id: evaluated.rule_id,
            by_default: !watch.decided,
            truncate: Some(evaluated.truncate).filter(|bytes| *bytes > 0),
            tag: (evaluated.flags & evaluated_flags::TAGGED != 0).then_some(evaluated.tag),
            more: evaluated.flags & evaluated_flags::MORE != 0,
            sets: self.set_tests(seen),
            searched: seen.searched.get().is_some(),
            patterns: seen.searched.get().map(|searched| searched.found.clone()).unwrap_or_default(),
            plugins: if seen.asks_plugins() { self.plugins() } else { Vec::new() },
            half_searched: evaluated.flags & evaluated_flags::HALF != 0,
            findings: watch.findings,
        }
    }
}

impl RuleSet {
    fn set_tests(&self, seen: &Seen<'_>) -> Vec<SetTest> {
        let tests = self.named_tests().into_iter().map(|(what, set)| {
            let names = vec![set.name.clone()];
            let test = named::test_of(what, names);
            let holds = seen.satisfies(&Condition::is(test), false);
            SetTest { field: named::field_of(what), set: set.name.clone(), holds }
        });
        tests.collect()
    }
}

struct Explainer<'p, 'q> {
    seen: &'p Seen<'q>,
    findings: Vec<Finding>,
    /// Whether a rule has decided about the packet.
    decided: bool,
}

impl Watch for Explainer<'_, '_> {
    fn exact(&mut self, rule: &ExactRule, exchanged: bool, chosen: bool) {
        let mut does = does(&rule.does(), rule.then, rule.sample, chosen);
        if exchanged {
            does.push_str(", in the other direction");
        }
        self.decided |= rule.action != Action::None || !chosen;
        self.findings.push(Finding {
            id: rule.id,
            name: None,
            exact: true,
            found: Found::Hit,
            why: vec![rule.fields.to_string()],
            does: Some(does),
        });
    }

    fn hit(&mut self, rule: &Rule, chosen: bool) {
        let mut does = does(&rule.does(), rule.then, rule.sample, chosen);
        if chosen {
            let mut also = |what: Option<String>| {
                if let Some(what) = what {
                    does.push_str(", ");
                    does.push_str(&what);
                }
            };
            also(rule.truncate.map(|bytes| format!("truncated to {bytes} bytes")));
            also(rule.tag.map(|tag| format!("tagged {tag}")));
            let inserted =
                rule.insert.map(|insert| self.seen.fields(insert.shape).map(|fields| (insert, fields)));
            also(inserted.map(|inserted| match inserted {
                Some((insert, fields)) => format!("makes an exact-match rule: {fields}: {}", insert.action),
                None => "makes no exact-match rule, as the packet lacks a field of it".to_owned(),
            }));
        }
        self.decided |= rule.action != Action::None || !chosen;
        let exchanged = !self.seen.fits_as(rule, false);
        if exchanged {
            does.push_str(", in the other direction");
        }
        let why = rule.conditions.iter().map(|condition| why(self.seen, condition, exchanged)).collect();
        self.wildcard(rule, Found::Hit, why, Some(does));
    }

    fn missed(&mut self, rule: &Rule) {
        // Conditions that were not evaluated are not a reason.
        let asked = |condition: &&Condition| match &condition.test {
            Test::Plugin(_) => self.seen.asks_plugins(),
            test => self.seen.searched.get().is_some() || patterns::asked(test).is_none(),
        };
        let conditions = || rule.conditions.iter().filter(asked);
        let failed = conditions().filter(|condition| !self.seen.satisfies(condition, false));
        let mut failed: Vec<String> = failed.map(|condition| why(self.seen, condition, false)).collect();
        if rule.both_ways {
            // The conditions on no side are the same in both directions.
            let back = conditions().filter(|condition| condition.test.is_of_one_side());
            let back = back.filter(|condition| !self.seen.satisfies(condition, true));
            failed.extend(back.map(|condition| why(self.seen, condition, true)));
        }
        self.wildcard(rule, Found::Missed, failed, None);
    }

    fn unasked(&mut self, rule: &Rule) {
        self.wildcard(rule, Found::NotAsked, Vec::new(), None);
    }
}

impl Explainer<'_, '_> {
    fn wildcard(&mut self, rule: &Rule, found: Found, why: Vec<String>, does: Option<String>) {
        let (id, name) = (rule.id, rule.name.clone());
        self.findings.push(Finding { id, name, exact: false, found, why, does });
    }
}

/// The effect of a rule on a matching packet, in words.
fn does(action: &str, then: Then, sample: Option<Sample>, chosen: bool) -> String {
    match sample {
        Some(sample) if !chosen => return format!("drop, as the sample of {sample} does not have it"),
        _ => {}
    }
    let sampled = sample.map_or_else(String::new, |sample| format!(", as the sample of {sample} has it"));
    match then {
        Then::Stop => format!("{action}{sampled}"),
        Then::Continue => format!("{action}{sampled}, then continue"),
    }
}

/// The reason why a condition holds or fails, with source and destination exchanged or not.
fn why(seen: &Seen<'_>, condition: &Condition, exchanged: bool) -> String {
    if let Test::Plugin(_) = condition.test {
        return format!("{condition}: plug-ins run in the kernel only; taken as no match");
    }
    let back = if exchanged && condition.test.is_of_one_side() { " at the other side" } else { "" };
    match seen.has(&condition.test, exchanged) {
        None if matches!(condition.test, Test::After(_)) => {
            format!("{condition}: the packet has hit no rule")
        }
        Some(value) => format!("{condition}: the packet has {}{back}", shown(&value)),
        None => format!("{condition}: the packet has none{back}"),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packet: {}", self.packet)?;
        if self.exact_rules > 0 && !self.findings.iter().any(|finding| finding.exact) {
            writeln!(f, "exact-match rules: none of {} is hit", self.exact_rules)?;
        }
        if !self.sets.is_empty() {
            let test = |test: &SetTest| {
                format!("{} = {}: {}", test.field, test.set, if test.holds { "yes" } else { "no" })
            };
            writeln!(f, "sets: {}", self.sets.iter().map(test).collect::<Vec<_>>().join("; "))?;
        }
        if self.searched {
            let found =
                |found: &FoundPattern| format!("{} ({}) at byte {}", found.words(), found.pattern, found.at);
            let all: Vec<String> = self.patterns.iter().map(found).collect();
            let (shown, more) = (all.len().min(SHOWN), all.len().saturating_sub(SHOWN));
            write!(
                f,
                "payload: {}",
                if all.is_empty() { "no pattern".to_owned() } else { all[..shown].join("; ") }
            )?;
            if more > 0 {
                write!(f, "; and {more} more")?;
            }
            writeln!(f, "{}", if self.half_searched { "; not all of it was searched" } else { "" })?;
        }
        if !self.plugins.is_empty() {
            writeln!(f, "plug-ins: {} would be asked", self.plugins.join(", "))?;
        }
        for finding in &self.findings {
            let kind = if finding.exact { "exact-match rule" } else { "rule" };
            write!(f, "{kind} {}", finding.id)?;
            if let Some(name) = &finding.name {
                write!(f, " ({})", shown(name))?;
            }
            let why = finding.why.join("; ");
            match (finding.found, &finding.does) {
                (Found::NotAsked, _) => writeln!(f, ": not asked")?,
                (Found::Missed, _) => writeln!(f, ": not hit: {why}")?,
                (Found::Hit, does) => {
                    write!(f, ": hit: {}", does.as_deref().unwrap_or_default())?;
                    if why.is_empty() { writeln!(f)? } else { writeln!(f, " ({why})")? }
                }
            }
        }
        write!(f, "=> {}", self.action)?;
        if let Some(to) = &self.to {
            write!(f, " to {}", shown(to))?;
        }
        match (self.by_default, self.rule_id) {
            (true, _) => write!(f, ", by default")?,
            (false, id) => write!(f, ", by rule {id}")?,
        }
        if let Some(bytes) = self.truncate {
            write!(f, ", truncated to {bytes} bytes")?;
        }
        if let Some(tag) = self.tag {
            write!(f, ", tagged {tag}")?;
        }
        if !self.mirror.is_empty() {
            write!(f, ", mirrored to {}", shown(&self.mirror.join(", ")))?;
        }
        if self.more {
            write!(f, "; it hits more rules than are looked at")?;
        }
        Ok(())
    }
}
