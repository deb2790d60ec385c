//! Text form of conditions and rules.

use std::fmt;
use std::ops::RangeInclusive;

use super::names::{self, name_of, shown};
use super::{
    Action, Condition, ExactFields, ExactVlan, Policy, Rule, Sample, SampleBy, TcpTest, Test, Vlan, Way,
};

/// Maximum number of values of a condition in the text form.
const SHOWN: usize = 8;

/// The form of a rule file: `not.port = 22, 80`.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.negated { "not." } else { "" };
        write!(f, "{not}{} = {}", self.test.field(), self.test.values())
    }
}

impl Rule {
    /// The conditions in words; a rule without conditions has none.
    pub fn asks(&self) -> Vec<String> {
        let both_ways = self.both_ways.then(|| "both-ways = true".to_owned());
        self.conditions.iter().map(ToString::to_string).chain(both_ways).collect()
    }
}

impl Test {
    /// The name of the field in a rule file.
    pub fn field(&self) -> &'static str {
        match self {
            Test::Src(_) => "src",
            Test::Dst(_) => "dst",
            Test::Host(_) => "host",
            Test::SrcPort(_) => "src-port",
            Test::DstPort(_) => "dst-port",
            Test::Port(_) => "port",
            Test::Protocol(_) => "protocol",
            Test::Ethertype(_) => "ethertype",
            Test::Kind(_) => "kind",
            Test::Direction(_) => "direction",
            Test::TcpFlags(_) => "tcp-flags",
            Test::IcmpType(_) => "icmp-type",
            Test::Vlan(_) => "vlan",
            Test::Dscp(_) => "dscp",
            Test::Length(_) => "length",
            Test::Queue(_) => "queue",
            Test::Device(_) => "device",
            Test::SrcIn(_) => "src-in",
            Test::DstIn(_) => "dst-in",
            Test::HostIn(_) => "host-in",
            Test::FlowIn(_) => "flow-in",
            Test::Payload(_) => "payload",
            Test::Application(application) => application.field(),
            Test::Plugin(_) => "plugin",
            Test::After(_) => "after",
        }
    }

    /// The values; only the first ones of a long list.
    fn values(&self) -> String {
        match self {
            Test::Src(list) | Test::Dst(list) | Test::Host(list) => list.to_string(),
            Test::SrcPort(ranges) | Test::DstPort(ranges) | Test::Port(ranges) | Test::Queue(ranges) => {
                joined(ranges, range)
            }
            Test::Protocol(ranges) => joined(ranges, |one| named(one, names::PROTOCOLS)),
            Test::Ethertype(ranges) => joined(ranges, |one| match (one.start(), one.end()) {
                (first, last) if first == last => ethertype(*first),
                (first, last) => format!("{first:#06x}-{last:#06x}"),
            }),
            Test::Kind(kinds) => joined(kinds, |kind| name_of(names::KINDS, kind).unwrap_or("?").to_owned()),
            Test::Direction(way) => direction(*way).to_owned(),
            Test::TcpFlags(tests) => joined(tests, TcpTest::to_string),
            Test::IcmpType(ranges) => joined(ranges, range),
            Test::Vlan(tags) => joined(tags, |tag| match tag {
                Vlan::Untagged => "none".to_owned(),
                Vlan::Ids(first, last) => range(&(*first..=*last)),
            }),
            Test::Dscp(ranges) => joined(ranges, |one| named(one, names::DSCPS)),
            Test::Length(ranges) => joined(ranges, range),
            Test::Device(names)
            | Test::SrcIn(names)
            | Test::DstIn(names)
            | Test::HostIn(names)
            | Test::FlowIn(names)
            | Test::Payload(names)
            | Test::Plugin(names) => joined(names, |name| shown(name)),
            Test::Application(application) => application.to_string(),
            Test::After(ids) => joined(ids, u32::to_string),
        }
    }
}

/// Values as text; only the first ones of a long list.
pub(super) fn joined<T>(values: &[T], one: impl Fn(&T) -> String) -> String {
    let first: Vec<String> = values.iter().take(SHOWN).map(one).collect();
    let more = values.len().saturating_sub(SHOWN);
    if more > 0 { format!("{} and {more} more", first.join(", ")) } else { first.join(", ") }
}

/// `7`, or `7-9`.
pub(super) fn range<T: fmt::Display + PartialEq>(range: &RangeInclusive<T>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}-{}", range.start(), range.end())
    }
}

/// A range of numbers, some of which have names.
fn named(one: &RangeInclusive<u8>, table: &[(&'static str, u8)]) -> String {
    match name_of(table, one.start()).filter(|_| one.start() == one.end()) {
        Some(name) => name.to_owned(),
        None => range(one),
    }
}

/// The name of an IP protocol, or its number.
pub(super) fn protocol(number: u8) -> String {
    named(&(number..=number), names::PROTOCOLS)
}

/// The name of a code point, or its number.
pub(super) fn dscp(point: u8) -> String {
    named(&(point..=point), names::DSCPS)
}

/// An EtherType in the usual hexadecimal form.
pub(super) fn ethertype(number: u16) -> String {
    format!("{number:#06x}")
}

/// Name of a direction.
pub(super) fn direction(way: Way) -> &'static str {
    match way {
        Way::Rx => "rx",
        Way::Tx => "tx",
    }
}

/// The letters of TCP flags, in the order of their bits.
pub(super) fn tcp_flags(flags: u8) -> String {
    names::TCP_FLAGS.iter().filter(|(_, _, bit)| flags & bit != 0).map(|(letter, _, _)| letter).collect()
}

/// The form of a rule file: `S/SA`.
impl fmt::Display for TcpTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", tcp_flags(self.set), tcp_flags(self.mask))
    }
}

/// The form of a rule file.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Pass => "pass",
            Action::Drop => "drop",
            Action::Count => "count",
            Action::Digest => "digest",
            Action::None => "none",
            Action::Redirect => "redirect",
            Action::Plugin => "plugin",
            Action::Measure => "measure",
        })
    }
}

/// The form of a rule file.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Policy::Pass => "pass",
            Policy::Drop => "drop",
        })
    }
}

/// `1 in 10 flows`.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.by {
            SampleBy::Flow => "flows",
            SampleBy::Packet => "packets",
        };
        write!(f, "1 in {} {what}", self.one_in)
    }
}

/// Words that [`super::ExactRule::from_words`] reads: `src=192.0.2.1 dst-port=53 both-ways=true`.
impl fmt::Display for ExactFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vlan = self.vlan.map(|vlan| match vlan {
            ExactVlan::Untagged => "none".to_owned(),
            ExactVlan::Id(id) => id.to_string(),
        });
        let words = [
            ("src", self.src.map(|address| address.to_string())),
            ("dst", self.dst.map(|address| address.to_string())),
            ("src-port", self.src_port.map(|port| port.to_string())),
            ("dst-port", self.dst_port.map(|port| port.to_string())),
            ("protocol", self.protocol.map(protocol)),
            ("vlan", vlan),
            ("mpls", self.mpls.map(|label| label.to_string())),
            ("tunnel", self.tunnel.map(|id| id.to_string())),
            ("both-ways", self.both_ways.then(|| "true".to_owned())),
        ];
        let there = words.iter().filter_map(|(field, value)| value.as_ref().map(|value| (field, value)));
        for (position, (field, value)) in there.enumerate() {
            write!(f, "{}{field}={value}", if position > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}
