//! Checks of a rule set.

use std::collections::HashMap;

use super::compile::clauses;
use super::egress_devices;
use super::exact::{own_shapes, too_many_shapes};
use super::named;
use super::names::shown;
use super::patterns;
use super::plugins;
use super::possible::contradiction;
use super::{Action, ExactFields, ExactRule, Insert, MOST_RULES, Mistake, Rule, RuleSet, Shape, Test, Vlan};
use crate::{Error, Result};

/// Maximum number of characters of a rule's name.
const LONGEST_NAME: usize = 64;

/// A rule of a set, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Index into `RuleSet::rules`.
    Wildcard(usize),
    /// Index into `RuleSet::exact`.
    Exact(usize),
    /// Index into `RuleSet::sets` (named sets).
    Named(usize),
    /// Index into `RuleSet::patterns`.
    Patterns(usize),
}

/// A fault of a rule set.
#[derive(Debug)]
pub(super) struct Fault {
    /// The faulty rule; `None`: the set as a whole.
    pub rule: Option<Which>,
    /// Description of the fault. If `other` is set, its location has to be appended.
    pub reason: String,
    /// Another rule that conflicts with this one.
    pub other: Option<Which>,
}

impl RuleSet {
    /// Checks whether the set can be used. Sets that were read from files always can.
    ///
    /// # Errors
    /// [`Error::Rules`] with every fault, without positions in a file.
    pub fn check(&self) -> Result<()> {
        let mistakes = self.mistakes(self.faults(false));
        if mistakes.is_empty() { Ok(()) } else { Err(Error::Rules { mistakes }) }
    }

    /// Converts faults to mistakes without positions in a file.
    pub(super) fn mistakes(&self, faults: Vec<Fault>) -> Vec<Mistake> {
        let named = |which: Which| match which {
            Which::Wildcard(index) => format!("rule {}", self.rules[index].id),
            Which::Exact(index) => format!("exact-match rule {}", self.exact[index].id),
            Which::Named(index) => format!("set {}", shown(&self.sets[index].name)),
            Which::Patterns(index) => format!("patterns {}", shown(&self.patterns[index].name)),
        };
        let mistake = |fault: Fault| {
            let rule = fault.rule.map_or_else(String::new, |rule| format!("{}: ", named(rule)));
            let other = fault.other.map_or_else(String::new, |other| format!(" by {}", named(other)));
            let reason = format!("{rule}{}{other}", fault.reason);
            Mistake { path: Default::default(), line: 0, column: 0, reason }
        };
        faults.into_iter().map(mistake).collect()
    }

    /// All faults of the set; `elsewhere`: the set may refer to named sets that it does not contain.
    pub(super) fn faults(&self, elsewhere: bool) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut of_set = |reason: String| faults.push(Fault { rule: None, reason, other: None });
        if self.rules.len() > MOST_RULES {
            of_set(format!("there are {} wildcard rules, more than {MOST_RULES}", self.rules.len()));
        }
        let clauses = self.rules.iter().map(clauses::count).fold(0, usize::saturating_add);
        if clauses > MOST_RULES && self.rules.len() <= MOST_RULES {
            of_set(format!(
                "the wildcard rules make {clauses} clauses, more than {MOST_RULES}: each `host`, each `port` and `both-ways` \
                 doubles those of its rule, since either side may be meant; write src, dst, src-port or dst-port where \
                 one side will do"
            ));
        }
        let shapes = own_shapes(self).len();
        if shapes > wirelane_bpf::rules::MAX_SHAPES {
            of_set(too_many_shapes(shapes));
        }
        egress_devices::too_many(self.egress_devices().len()).into_iter().for_each(&mut of_set);
        self.too_many_plugins().into_iter().for_each(&mut of_set);
        self.same(&mut faults);
        self.after_faults(&mut faults);
        self.named_faults(elsewhere, &mut faults);
        self.pattern_faults(elsewhere, &mut faults);
        let tested = named::tests(&self.rules).len() <= wirelane_bpf::rules::MAX_MEMBERS
            && patterns::names(&self.rules).len() <= wirelane_bpf::rules::MAX_PATTERNS;
        let mut maker = clauses::Clauses::new(&self.rules);
        let mut of_rule = |which, reason| faults.push(Fault { rule: Some(which), reason, other: None });
        for (index, rule) in self.rules.iter().enumerate() {
            // Rules with too many clauses are not expanded to check whether they can match.
            let whole = rule.faults(&mut |reason| of_rule(Which::Wildcard(index), reason));
            if whole && tested && clauses <= MOST_RULES {
                contradiction(rule, &mut maker)
                    .into_iter()
                    .for_each(|reason| of_rule(Which::Wildcard(index), reason));
            }
        }
        for (index, rule) in self.exact.iter().enumerate() {
            rule.faults(&mut |reason| of_rule(Which::Exact(index), reason));
        }
        faults
    }

    /// Reports ids used by two rules, and fields used by two exact-match rules.
    fn same(&self, faults: &mut Vec<Fault>) {
        let wildcard = self.rules.iter().enumerate().map(|(index, rule)| (rule.id, Which::Wildcard(index)));
        let exact = self.exact.iter().enumerate().map(|(index, rule)| (rule.id, Which::Exact(index)));
        let mut ids = HashMap::with_capacity(self.rules.len() + self.exact.len());
        for (id, which) in wildcard.chain(exact) {
            if let Some(other) = ids.insert(id, which) {
                let reason = format!("id {id} is taken");
                faults.push(Fault { rule: Some(which), reason, other: Some(other) });
            }
        }
        let mut fields = HashMap::with_capacity(self.exact.len());
        for (index, rule) in self.exact.iter().enumerate() {
            // A rule for both directions is the same rule, whichever direction is written first.
            let exchanged = rule.fields.exchanged();
            let one = if rule.fields.both_ways && exchanged.key() < rule.fields.key() {
                exchanged
            } else {
                rule.fields
            };
            if let Some(other) = fields.insert(one, index) {
                let (rule, other) = (Some(Which::Exact(index)), Some(Which::Exact(other)));
                faults.push(Fault { rule, reason: "exactly these packets are taken".to_owned(), other });
            }
        }
    }
}

impl Rule {
    /// Reports faults of the rule on its own; returns whether there were no faults.
    fn faults(&self, found: &mut dyn FnMut(String)) -> bool {
        let mut whole = true;
        let mut fault = |reason: String| {
            whole = false;
            found(reason);
        };
        if self.name.as_ref().is_some_and(|name| name.chars().count() > LONGEST_NAME) {
            fault(format!("its name has more than {LONGEST_NAME} letters"));
        }
        numbers(self.id, self.truncate, self.sample.map(|sample| sample.one_in), &mut fault);
        for condition in &self.conditions {
            if let Some(reason) = test_fault(&condition.test) {
                fault(reason);
            }
        }
        if self.both_ways && !self.conditions.iter().any(|condition| condition.test.is_of_one_side()) {
            fault(
                "the rule is for both ways, and has no condition on one side: src, dst, src-port, dst-port, src-in or \
                 dst-in"
                    .to_owned(),
            );
        }
        self.sends().faults(&mut fault);
        self.plugin_faults(&mut fault);
        if let Some(Insert { shape, action, .. }) = self.insert {
            shape_faults(shape, "the rule to insert", &mut fault);
            if action == Action::Redirect {
                fault(
                    "a rule that is made of a packet cannot redirect: give insert an action of its own, as in \
                     insert = { action = \"drop\" }"
                        .to_owned(),
                );
            }
        }
        whole
    }
}

impl ExactRule {
    /// Reports faults of the rule on its own.
    fn faults(&self, fault: &mut dyn FnMut(String)) {
        numbers(self.id, self.truncate, self.sample.map(|sample| sample.one_in), fault);
        self.sends().faults(fault);
        if self.action == Action::Plugin {
            fault(
                "action = \"plugin\" is for rules with the condition plugin = \"NAME\", not for exact ones"
                    .to_owned(),
            );
        }
        let ExactFields { src, dst, src_port, dst_port, protocol, vlan, mpls, .. } = self.fields;
        shape_faults(self.fields.shape(), "it", fault);
        if let (Some(src), Some(dst)) = (src, dst)
            && src.is_ipv4() != dst.is_ipv4()
        {
            fault(format!("no packet goes from {src} to {dst}: one is IPv4, the other IPv6"));
        }
        let ported = src_port.is_some_and(|port| port > 0) || dst_port.is_some_and(|port| port > 0);
        if let (true, Some(protocol)) = (ported, protocol)
            && !super::possible::WITH_PORTS.contains(&protocol)
        {
            fault(format!("packets of protocol {protocol} have no ports"));
        }
        if let Some(super::ExactVlan::Id(id)) = vlan
            && id > 4095
        {
            fault(format!("no VLAN has the id {id}; they end at 4095"));
        }
        if mpls.is_some_and(|label| label > 0xf_ffff) {
            fault("an MPLS label has 20 bits".to_owned());
        }
    }
}

fn numbers(id: u32, truncate: Option<u32>, one_in: Option<u32>, fault: &mut dyn FnMut(String)) {
    if id == 0 {
        fault("ids begin at 1".to_owned());
    }
    if truncate == Some(0) {
        fault("truncate = 0 leaves nothing: action = \"count\" delivers nothing".to_owned());
    }
    if one_in == Some(0) {
        fault("sample = 0 takes nothing: action = \"drop\" does".to_owned());
    }
}

fn shape_faults(shape: Shape, what: &str, fault: &mut dyn FnMut(String)) {
    const SIDES: u32 = Shape::SRC.0 | Shape::DST.0 | Shape::SRC_PORT.0 | Shape::DST_PORT.0;
    const ALL: u32 = SIDES | Shape::PROTOCOL.0 | Shape::VLAN.0 | Shape::MPLS.0 | Shape::TUNNEL.0;
    if shape.0 & ALL == 0 {
        fault(format!("{what} has no field to find a packet by: src, dst, src-port, dst-port and others"));
    } else if shape.has(Shape::BOTH_WAYS) && shape.0 & SIDES == 0 {
        fault(format!("{what} is for both ways, and has no field of one side"));
    }
    if shape.0 & !(ALL | Shape::BOTH_WAYS.0) != 0 {
        fault(format!("{what} has fields that there are not (shape {:#x})", shape.0));
    }
}

/// The fault of a test on its own, if any.
fn test_fault(test: &Test) -> Option<String> {
    fn turned<T: PartialOrd>(ranges: &[std::ops::RangeInclusive<T>]) -> Option<String> {
        let backwards = ranges.iter().any(|range| range.start() > range.end());
        backwards.then(|| "a range ends before it begins".to_owned())
    }
    let (empty, fault) = match test {
        Test::Src(list) | Test::Dst(list) | Test::Host(list) => (list.is_empty(), None),
        Test::SrcPort(ranges)
        | Test::DstPort(ranges)
        | Test::Port(ranges)
        | Test::Ethertype(ranges)
        | Test::Queue(ranges) => (ranges.is_empty(), turned(ranges)),
        Test::Protocol(ranges) | Test::IcmpType(ranges) => (ranges.is_empty(), turned(ranges)),
        Test::Length(ranges) => {
            let beyond = ranges.iter().any(|range| *range.start() > 0xffff);
            let beyond =
                beyond.then(|| "no packet is longer than 65535 bytes: longer ones count as that".to_owned());
            (ranges.is_empty(), turned(ranges).or(beyond))
        }
        Test::Dscp(ranges) => {
            let beyond = ranges.iter().any(|range| *range.end() > 63);
            let beyond = beyond.then(|| "code points end at 63".to_owned());
            (ranges.is_empty(), turned(ranges).or(beyond))
        }
        Test::Vlan(tags) => {
            let wrong = |tag: &Vlan| matches!(tag, Vlan::Ids(first, last) if first > last || *last > 4095);
            let wrong = tags.iter().any(wrong).then(|| "VLAN ids are 0 to 4095, in order".to_owned());
            (tags.is_empty(), wrong)
        }
        Test::TcpFlags(tests) => {
            let wrong = tests.iter().any(|test| test.mask == 0 || test.set & !test.mask != 0);
            let wrong = wrong.then(|| "flags are asked for that are not looked at".to_owned());
            (tests.is_empty(), wrong)
        }
        Test::Kind(kinds) => (kinds.is_empty(), None),
        Test::Device(names)
        | Test::SrcIn(names)
        | Test::DstIn(names)
        | Test::HostIn(names)
        | Test::FlowIn(names)
        | Test::Payload(names) => (names.is_empty(), None),
        Test::Plugin(names) => {
            (names.is_empty(), names.iter().find_map(|name| plugins::may_be_named(name).err()))
        }
        Test::Application(application) => {
            let fault = application.fault();
            (fault.as_deref() == Some(""), fault)
        }
        Test::After(ids) => (ids.is_empty(), None),
        Test::Direction(_) => (false, None),
    };
    if empty { Some("a condition has no value, and no packet has one of none".to_owned()) } else { fault }
}
