//! Why a rule set says what it says of a packet.

use std::cell::{Cell, OnceCell};
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

/// The most patterns that are shown as text.
const SHOWN: usize = 16;

/// What a rule set says of a packet, and why. Its text form has a line for each rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The packet's fields, as rules see them.
    pub packet: String,
    /// How many exact-match rules there are.
    pub exact_rules: usize,
    /// Each rule in the order in which it is asked: of the exact ones only that which is hit.
    pub findings: Vec<Finding>,
    /// What becomes of the packet; not [`Action::None`].
    pub action: Action,
    /// The rule that its record names: the one whose action it is, else the first that was hit. 0: none.
    pub rule_id: u32,
    /// The action is the set's default.
    pub by_default: bool,
    /// At most so many bytes of it are delivered.
    pub truncate: Option<u32>,
    /// What its record is tagged with.
    pub tag: Option<u32>,
    /// The egress devices that get a copy of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirror: Vec<String>,
    /// The egress device that it is redirected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It hits more rules than are looked at; those behind were not asked.
    pub more: bool,
    /// The tests of named sets that rules ask, and whether they hold: exactly, where the kernel's may take what is in
    /// none for an entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetTest>,
    /// The payload was searched for patterns, as a rule asked for some that everything else fits.
    pub searched: bool,
    /// What was found there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<FoundPattern>,
    /// The plug-ins that would be asked. Here they are not: none is taken to match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub plugins: Vec<String>,
    /// Not all of it was searched: it is longer than what is, has too many patterns in it, or was not captured.
    pub half_searched: bool,
}

/// A test of a named set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SetTest {
    /// What is asked: `src-in`, `dst-in`, `host-in` or `flow-in`.
    pub field: &'static str,
    /// The set's name.
    pub set: String,
    /// Whether the packet's is in it.
    pub holds: bool,
}

/// What one rule has to do with the packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule.
    pub id: u32,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// It is an exact-match rule.
    pub exact: bool,
    /// Whether it is hit.
    pub found: Found,
    /// Its conditions, each with what the packet has: of a rule that is not hit those that do not hold.
    pub why: Vec<String>,
    /// What it does with the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub does: Option<String>,
}

/// Whether a rule is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// It is.
    Hit,
    /// It is not.
    Missed,
    /// An earlier rule ended the search.
    NotAsked,
}

impl RuleSet {
    /// What the set says of a packet that comes now, and why. The set has to be one that can be used
    /// ([`RuleSet::check`]). Nothing is counted, and no exact-match rule is made.
    pub fn explain(&self, packet: Packet<'_>, facts: &Facts, device: &str) -> Explanation {
        let patterns = self.patterns_in_use();
        let (sets, searched) = (&self.sets[..], OnceCell::new());
        let plugged = Cell::new(false);
        let seen = &Seen { packet, facts, device, sets, patterns: &patterns, searched, plugged };
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
            let holds = seen.satisfies(&Condition::is(test));
            SetTest { field: named::field_of(what), set: set.name.clone(), holds }
        });
        tests.collect()
    }
}

struct Explainer<'p, 'q> {
    seen: &'p Seen<'q>,
    findings: Vec<Finding>,
    /// A rule has said what becomes of the packet.
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
        let why = rule.conditions.iter().map(|condition| why(self.seen, condition)).collect();
        self.wildcard(rule, Found::Hit, why, Some(does));
    }

    fn missed(&mut self, rule: &Rule) {
        // What was not searched is not why.
        let asked = |condition: &&Condition| match &condition.test {
            Test::Plugin(_) => self.seen.asks_plugins(),
            test => self.seen.searched.get().is_some() || patterns::asked(test).is_none(),
        };
        let conditions = rule.conditions.iter().filter(asked);
        let failed = conditions.filter(|condition| !self.seen.satisfies(condition));
        let failed = failed.map(|condition| why(self.seen, condition)).collect();
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

/// What a rule does with a packet that hits it.
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

/// Why a condition holds, or does not.
fn why(seen: &Seen<'_>, condition: &Condition) -> String {
    if let Test::Plugin(_) = condition.test {
        return format!("{condition}: plug-ins run in the kernel only; taken as no match");
    }
    match seen.has(&condition.test) {
        Some(value) => format!("{condition}: the packet has {}", shown(&value)),
        None => format!("{condition}: the packet has none"),
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
