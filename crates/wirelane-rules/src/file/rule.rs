//! `[[rule]]`: wildcard rules.

use std::ops::RangeInclusive;

use super::node::{Entry, Node, Value};
use super::values::{self, number, range8, range16, text, word};
use super::{Document, Reader};
use crate::egress_devices::unknown_egress_device;
use crate::names::{self, look_up, shown};
use crate::patterns::{OF_TEXTS, RTP_TYPE};
use crate::plugins::{may_be_named, no_plugin};
use crate::{Action, Application, Condition, Insert, Rule, Sample, SampleBy, Shape, Test, Then};

/// The fields that are conditions.
const CONDITIONS: &[&str] = &[
    "src",
    "dst",
    "host",
    "src-port",
    "dst-port",
    "port",
    "protocol",
    "ethertype",
    "kind",
    "direction",
    "tcp-flags",
    "icmp-type",
    "vlan",
    "dscp",
    "length",
    "queue",
    "device",
    "src-in",
    "dst-in",
    "host-in",
    "flow-in",
    "payload",
    "http-method",
    "http-host",
    "http-status",
    "sip-method",
    "sip-call-id",
    "sip-from",
    "sip-to",
    "sip-via",
    "sip-status",
    "sip-field",
    RTP_TYPE,
    "plugin",
    "after",
];

/// The other fields of a rule.
const OTHERS: &[&str] = &[
    "id",
    "name",
    "not",
    "both-ways",
    "action",
    "then",
    "truncate",
    "sample",
    "sample-by",
    "tag",
    "insert",
    "mirror",
    "to",
];

pub(super) const ACTIONS: &[(&str, Action)] = &[
    ("pass", Action::Pass),
    ("drop", Action::Drop),
    ("count", Action::Count),
    ("digest", Action::Digest),
    ("none", Action::None),
    ("redirect", Action::Redirect),
    ("plugin", Action::Plugin),
];

const THEN: &[(&str, Then)] = &[("stop", Then::Stop), ("continue", Then::Continue)];

/// The fields that wildcard and exact-match rules have in common, while they are read.
#[derive(Clone, Default)]
pub(super) struct Common {
    pub id: Option<u32>,
    pub action: Option<Action>,
    pub then: Option<Then>,
    pub truncate: Option<u32>,
    pub tag: Option<u32>,
    pub mirror: Option<String>,
    pub to: Option<String>,
    one_in: Option<u32>,
    by: Option<SampleBy>,
}

impl Common {
    /// Reads a field if it is one of these; `None` otherwise.
    pub fn read(&mut self, key: &str, node: &Node) -> Option<values::Read<()>> {
        let all = 1..=u32::MAX;
        Some(match key {
            "id" => number(node, all).map(|id| self.id = Some(id)),
            "action" => action(node).map(|action| self.action = Some(action)),
            "then" => word(node, THEN).map(|then| self.then = Some(then)),
            "truncate" => number(node, all).map(|bytes| self.truncate = Some(bytes)),
            "tag" => number(node, 0..=u32::MAX).map(|tag| self.tag = Some(tag)),
            "mirror" => values::device(node).map(|device| self.mirror = Some(device)),
            "to" => values::device(node).map(|device| self.to = Some(device)),
            "sample" => number(node, all).map(|one_in| self.one_in = Some(one_in)),
            "sample-by" => word(node, &[("flow", SampleBy::Flow), ("packet", SampleBy::Packet)])
                .map(|by| self.by = Some(by)),
            _ => return None,
        })
    }

    /// The requested sampling.
    ///
    /// # Errors
    /// `sample-by` without `sample`.
    pub fn sample(&self) -> values::Read<Option<Sample>> {
        match (self.one_in, self.by) {
            (Some(one_in), by) => Ok(Some(Sample { one_in, by: by.unwrap_or_default() })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err("sample-by is there, but not sample: which share?".to_owned()),
        }
    }
}

/// An action.
pub(super) fn action(node: &Node) -> values::Read<Action> {
    word(node, ACTIONS)
}

/// Error message for a rule without an action.
pub(super) const NO_ACTION: &str = "the rule has no action: pass, drop, count, digest, redirect or none";

impl Reader {
    /// Reads a table of `[[rule]]`.
    pub(super) fn rule(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        let (mut common, mut conditions, mut name, mut insert) = (Common::default(), Vec::new(), None, None);
        let mut both_ways = false;
        for Entry { key, at, node } in node.entries() {
            let here = document.place(node);
            if let Some(read) = common.read(key, node) {
                let read = read.and_then(|()| self.egress_device(key, node));
                self.mistakes.take(here, read);
            } else if CONDITIONS.contains(&key.as_str()) {
                conditions.extend(self.test(document, key, node).map(Condition::is));
            } else {
                match key.as_str() {
                    "name" => name = self.mistakes.take(here, text(node)).map(str::to_owned),
                    "not" => self.negated(document, node, &mut conditions),
                    "both-ways" => both_ways = self.mistakes.take(here, values::truth(node)).unwrap_or(false),
                    "insert" => insert = Some(node),
                    _ => {
                        let known: Vec<&str> = OTHERS.iter().chain(CONDITIONS).copied().collect();
                        self.unknown(document, key, *at, &known);
                    }
                }
            }
        }
        let has = |key| node.entry(key).is_some();
        let sample = common.sample();
        // A sample that cannot be read is not reported as missing.
        let sample = if has("sample") { sample.ok() } else { self.mistakes.take(place, sample) }.flatten();
        let insert =
            insert.and_then(|node| self.insert(document, node, common.action.unwrap_or(Action::None)));
        if !has("id") {
            self.mistakes.add_if_readable(place, "the rule has no id");
        }
        if !has("action") {
            self.mistakes.add_if_readable(place, NO_ACTION);
        }
        let (Some(id), Some(action)) = (common.id, common.action) else { return };
        if has("to") && common.to.is_none() {
            return;
        }
        let rule = Rule {
            id,
            name,
            conditions,
            both_ways,
            action,
            then: common.then.unwrap_or(Then::after(action)),
            truncate: common.truncate,
            sample,
            tag: common.tag,
            insert,
            mirror: common.mirror,
            to: common.to,
        };
        self.set.rules.push(rule);
        self.rules_at.push(place);
    }

    /// Reads a table of `[[rule]]` that has conditions only, without an action.
    pub(super) fn conditions(&mut self, document: &Document, node: &Node) {
        let place = document.place(node);
        let (mut conditions, mut name, mut both_ways) = (Vec::new(), None, false);
        for Entry { key, at, node } in node.entries() {
            let here = document.place(node);
            match key.as_str() {
                "name" => name = self.mistakes.take(here, text(node)).map(str::to_owned),
                "not" => self.negated(document, node, &mut conditions),
                "both-ways" => both_ways = self.mistakes.take(here, values::truth(node)).unwrap_or(false),
                "after" => {
                    let reason = "'after' asks for hits of rules by their ids, and the rules here have none";
                    self.mistakes.add(document.lines.place(*at), reason);
                }
                _ if CONDITIONS.contains(&key.as_str()) => {
                    conditions.extend(self.test(document, key, node).map(Condition::is));
                }
                _ if OTHERS.contains(&key.as_str()) => {
                    let reason = format!(
                        "'{key}' says what becomes of packets; a rule here only says which: it has a name and conditions"
                    );
                    self.mistakes.add(document.lines.place(*at), reason);
                }
                _ => {
                    let known: Vec<&str> =
                        ["name", "not", "both-ways"].iter().chain(CONDITIONS).copied().collect();
                    self.unknown(document, key, *at, &known);
                }
            }
        }
        if node.entry("name").is_none() {
            self.mistakes.add_if_readable(place, "the rule has no name, by which it is asked for");
        }
        if name.is_some() && self.set.rules.iter().any(|rule| rule.name == name) {
            self.mistakes.add(place, "another rule has this name");
        }
        let id = self.set.rules.len() as u32 + 1;
        self.set.rules.push(Rule { name, conditions, both_ways, ..Rule::new(id, Action::None) });
        self.rules_at.push(place);
    }

    /// Checks that a field that names an egress device names one of the capture, if these are known.
    pub(super) fn egress_device(&self, key: &str, node: &Node) -> values::Read<()> {
        let (Some(egress_devices), "mirror" | "to") = (&self.egress_devices, key) else { return Ok(()) };
        match text(node)? {
            name if egress_devices.iter().any(|device| device == name) => Ok(()),
            name => Err(unknown_egress_device(name, egress_devices)),
        }
    }

    /// `not`: conditions that must not hold.
    fn negated(&mut self, document: &Document, node: &Node, conditions: &mut Vec<Condition>) {
        if !matches!(node.value, Value::Table(_)) {
            let reason = format!("this is {}: write not.FIELD = VALUE", node.kind());
            self.mistakes.add(document.place(node), reason);
        }
        for Entry { key, at, node } in node.entries() {
            if CONDITIONS.contains(&key.as_str()) {
                conditions.extend(self.test(document, key, node).map(Condition::is_not));
            } else {
                self.unknown(document, key, *at, CONDITIONS);
            }
        }
    }

    /// Reads a condition, without its negation.
    fn test(&mut self, document: &Document, key: &str, node: &Node) -> Option<Test> {
        Some(match key {
            "src" => Test::Src(self.addresses(document, node)?),
            "dst" => Test::Dst(self.addresses(document, node)?),
            "host" => Test::Host(self.addresses(document, node)?),
            "src-port" => Test::SrcPort(self.each(document, node, range16)?),
            "dst-port" => Test::DstPort(self.each(document, node, range16)?),
            "port" => Test::Port(self.each(document, node, range16)?),
            "protocol" => Test::Protocol(self.each(document, node, protocol)?),
            "ethertype" => Test::Ethertype(self.each(document, node, ethertype)?),
            "kind" => Test::Kind(self.each(document, node, values::kind)?),
            "direction" => Test::Direction(self.mistakes.take(document.place(node), values::way(node))?),
            "tcp-flags" => Test::TcpFlags(self.each(document, node, values::tcp_test)?),
            "icmp-type" => Test::IcmpType(self.each(document, node, |node| range8(node, 255, |_| None))?),
            "vlan" => Test::Vlan(self.each(document, node, values::vlan)?),
            "dscp" => Test::Dscp(self.each(document, node, dscp)?),
            "length" => Test::Length(self.each(document, node, values::length)?),
            "queue" => Test::Queue(self.each(document, node, range16)?),
            "device" => Test::Device(self.each(document, node, values::device)?),
            "src-in" => Test::SrcIn(self.each(document, node, values::set_name)?),
            "dst-in" => Test::DstIn(self.each(document, node, values::set_name)?),
            "host-in" => Test::HostIn(self.each(document, node, values::set_name)?),
            "flow-in" => Test::FlowIn(self.each(document, node, values::set_name)?),
            "payload" => Test::Payload(self.each(document, node, values::set_name)?),
            "after" => Test::After(self.each(document, node, |node| number(node, 1..=u32::MAX))?),
            "plugin" => {
                let known = self.plugins.clone();
                Test::Plugin(self.each(document, node, |node| plugin(node, known.as_deref()))?)
            }
            RTP_TYPE => {
                let kinds = self.each(document, node, |node| range8(node, 127, |_| None))?;
                Test::Application(Application::RtpType(kinds))
            }
            _ => {
                let known = OF_TEXTS.iter().find(|(name, ..)| *name == key);
                let (_, of, fault) = known.expect("only names in CONDITIONS are asked for");
                let value = |node: &Node| {
                    let value = match &node.value {
                        // A status is a number.
                        Value::Number(number) => number.to_string(),
                        _ => text(node)?.to_owned(),
                    };
                    fault(&value).map_or(Ok(value), Err)
                };
                Test::Application(of(self.each(document, node, value)?))
            }
        })
    }

    /// Reads a value, or an array of values.
    pub(super) fn each<T>(
        &mut self,
        document: &Document,
        node: &Node,
        read: impl Fn(&Node) -> values::Read<T>,
    ) -> Option<Vec<T>> {
        if node.elements().is_empty() {
            self.mistakes.add(document.place(node), "the list is empty: no packet has one of no values");
            return None;
        }
        let (mut read_all, mut whole) = (Vec::new(), true);
        for element in node.elements() {
            match self.mistakes.take(document.place(element), read(element)) {
                Some(value) => read_all.push(value),
                None => whole = false,
            }
        }
        whole.then_some(read_all)
    }

    /// `insert`: the exact-match rule to insert for a packet.
    fn insert(&mut self, document: &Document, node: &Node, action: Action) -> Option<Insert> {
        const KNOWN: &[&str] = &["fields", "both-ways", "action", "then", "idle", "hard"];
        let flow =
            Shape::SRC.with(Shape::DST).with(Shape::SRC_PORT).with(Shape::DST_PORT).with(Shape::PROTOCOL);
        let (mut insert, mut then) =
            (Insert { shape: flow, action, then: Then::Stop, idle_s: 0, hard_s: 0 }, None);
        let mut both_ways = false;
        if !matches!(node.value, Value::Table(_)) {
            let reason = format!("this is {}: write insert = {{ idle = 60 }}", node.kind());
            self.mistakes.add(document.place(node), reason);
            return None;
        }
        for Entry { key, at, node } in node.entries() {
            let read = match key.as_str() {
                "fields" => {
                    let fields = self.each(document, node, |node| word(node, FIELDS))?;
                    insert.shape = fields.into_iter().fold(Shape::default(), Shape::with);
                    Ok(())
                }
                "both-ways" => values::truth(node).map(|both| both_ways = both),
                "action" => self::action(node).map(|action| insert.action = action),
                "then" => word(node, THEN).map(|read| then = Some(read)),
                "idle" => values::seconds(node).map(|seconds| insert.idle_s = seconds),
                "hard" => values::seconds(node).map(|seconds| insert.hard_s = seconds),
                _ => {
                    self.unknown(document, key, *at, KNOWN);
                    Ok(())
                }
            };
            self.mistakes.take(document.place(node), read);
        }
        if both_ways {
            insert.shape = insert.shape.with(Shape::BOTH_WAYS);
        }
        insert.then = then.unwrap_or(Then::after(insert.action));
        Some(insert)
    }
}

/// Reads the name of a plug-in, which must be one of `known` if these are known.
fn plugin(node: &Node, known: Option<&[String]>) -> values::Read<String> {
    let name = text(node)?;
    may_be_named(name)?;
    match known {
        Some(known) if !known.iter().any(|one| one == name) => Err(no_plugin(name, known)),
        _ => Ok(name.to_owned()),
    }
}

/// Fields of an exact-match rule.
pub(super) const FIELDS: &[(&str, Shape)] = &[
    ("src", Shape::SRC),
    ("dst", Shape::DST),
    ("src-port", Shape::SRC_PORT),
    ("dst-port", Shape::DST_PORT),
    ("protocol", Shape::PROTOCOL),
    ("vlan", Shape::VLAN),
    ("mpls", Shape::MPLS),
    ("tunnel", Shape::TUNNEL),
];

/// An IP protocol, by number or name, or a range of numbers.
pub(super) fn protocol(node: &Node) -> values::Read<RangeInclusive<u8>> {
    range8(node, 255, |name| look_up(names::PROTOCOLS, name)).map_err(|reason| {
        let known: Vec<&str> = names::PROTOCOLS.iter().map(|(name, _)| *name).collect();
        match &node.value {
            Value::Text(name) => match names::nearest(name, &known) {
                Some(near) => format!("'{}' is not a protocol; did you mean '{near}'?", shown(name)),
                None => reason,
            },
            _ => reason,
        }
    })
}

fn dscp(node: &Node) -> values::Read<RangeInclusive<u8>> {
    range8(node, 63, |name| look_up(names::DSCPS, name))
}

fn ethertype(node: &Node) -> values::Read<RangeInclusive<u16>> {
    let range = values::range(node, 0..=0xffff, |name| look_up(names::ETHERTYPES, name).map(u32::from))?;
    Ok(*range.start() as u16..=*range.end() as u16)
}
