//! Decides which measurements can use in-kernel sums by flow (`bpf/lib/flow.h`).
//!
//! A flow part (in-kernel sum) holds the fields that its packets share: addresses, ports, protocol, VLAN, device,
//! direction. Fields of single packets, such as length, time, TCP flags and payload, are not in it.

use wirelane::rules::{Action, Kind, Rule, RuleSet, Test, Then};

use super::{Action as ActionOf, Analysis, Config, Field, Measurement, Value, recordings};

/// The place in which a measurement is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the workers, of packets; and why not in the kernel, where that was left open.
    Workers(Option<String>),
    /// In the kernel.
    Kernel,
}

impl Config {
    /// Whether any measurement requires analysis in the kernel.
    pub fn asks_for_kernel(&self) -> bool {
        self.measurements.iter().any(|one| one.analysis == Analysis::Kernel)
    }

    /// Whether any measurement is made in the kernel.
    pub fn is_in_kernel(&self) -> bool {
        of_packets(&self.measurements).any(|one| self.place(one) == Location::Kernel)
    }

    /// Whether a measurement gives the same result from sums of packets with common fields as from single packets. For
    /// the RX queue this holds in workers, where each packet has its own queue.
    pub(crate) fn is_of_parts(&self, one: &Measurement) -> bool {
        of_each_packet(&self.rules, one).is_none()
    }

    /// The place in which one of its measurements is made.
    pub fn place(&self, one: &Measurement) -> Location {
        if one.analysis == Analysis::User {
            return Location::Workers(None);
        }
        match obstacle(&self.measurements, &self.rules, &self.actions, one) {
            Some(why) => Location::Workers(Some(why)),
            None => Location::Kernel,
        }
    }

    /// Rules whose packets are delivered to user space in addition to the in-kernel sums: those of measurements that
    /// are made in the workers. They pass what they accept, and have ids from 1 on. `None`: all packets are delivered.
    pub fn whole(&self) -> Option<RuleSet> {
        if !self.is_in_kernel() {
            return None;
        }
        let mut places: Vec<usize> = of_packets(&self.measurements)
            .filter(|one| self.place(one) != Location::Kernel)
            .filter_map(|one| one.rule)
            .collect();
        places.sort_unstable();
        places.dedup();
        let passing = |(at, place): (usize, usize)| Rule {
            conditions: self.rules.rules[place].conditions.clone(),
            name: self.rules.rules[place].name.clone(),
            both_ways: self.rules.rules[place].both_ways,
            // Other programs on the device may still examine the packet.
            then: Then::Continue,
            ..Rule::new(at as u32 + 1, Action::Pass)
        };
        let rules: Vec<Rule> = places.into_iter().enumerate().map(passing).collect();
        if rules.is_empty() {
            return Some(RuleSet::default());
        }
        Some(RuleSet {
            rules,
            sets: self.rules.sets.clone(),
            patterns: self.rules.patterns.clone(),
            ..RuleSet::default()
        })
    }
}

/// Measurements that use packets or sums of packets, in contrast to those of plug-in counters.
fn of_packets(all: &[Measurement]) -> impl Iterator<Item = &Measurement> {
    all.iter().filter(|one| one.plugin.is_none())
}

/// Reason why a measurement cannot be made in the kernel: the measurement itself, or another one that needs every
/// packet in user space, so that no packets are left for in-kernel sums.
pub(super) fn obstacle(
    all: &[Measurement],
    rules: &RuleSet,
    actions: &[ActionOf],
    one: &Measurement,
) -> Option<String> {
    alone(rules, one)
        .or_else(|| recordings::obstacle(actions))
        .or_else(|| of_packets(all).find_map(|other| takes_all(rules, other)))
}

/// Reason why a measurement needs every packet in user space, if it does.
fn takes_all(rules: &RuleSet, one: &Measurement) -> Option<String> {
    let name = &one.name;
    let why = match (one.analysis, alone(rules, one)) {
        (Analysis::User, _) => {
            "is analysed in the workers (analysis = \"user\", which is so where nothing is said)".to_owned()
        }
        (_, Some(why)) => format!("is analysed in the workers, as {why}"),
        (_, None) => return None,
    };
    let by_name = one.key.contains(&Field::Application);
    match (one.rule, by_name) {
        (None, _) => Some(format!(
            "{name} {why}, and has no rule: it needs every packet, so none is left for the kernel"
        )),
        (_, true) => Some(format!(
            "{name} is by application, which needs every packet, so none is left for the kernel"
        )),
        (Some(_), false) => None,
    }
}

/// Reason in the measurement itself why it cannot be made in the kernel.
fn alone(rules: &RuleSet, of: &Measurement) -> Option<String> {
    if of.key.contains(&Field::Queue) {
        return every_packet("queue");
    }
    of_each_packet(rules, of)
}

fn every_packet(what: &str) -> Option<String> {
    Some(format!("\"{what}\" depends on single packets, and the kernel delivers sums"))
}

/// Reason why a measurement needs single packets, if it does.
fn of_each_packet(rules: &RuleSet, of: &Measurement) -> Option<String> {
    if of.key.contains(&Field::Application) {
        return Some("\"application\" is found in payloads, which the kernel does not deliver".to_owned());
    }
    if let Some(value) = of.values.iter().find(|value| !is_of_parts(**value)) {
        return every_packet(value.name());
    }
    let rule: &Rule = rules.rules.get(of.rule?)?;
    rule.conditions.iter().find(|condition| !is_common(&condition.test)).map(|_| {
        format!(
            "rule {} asks for more than addresses, ports, protocol, direction and VLAN, which packets are added up by",
            rule.name.as_deref().unwrap_or("without a name")
        )
    })
}

/// Whether a value can be computed from sums of packets.
fn is_of_parts(value: Value) -> bool {
    match value {
        Value::Packets
        | Value::Bytes
        | Value::Pps
        | Value::Bps
        | Value::Flows
        | Value::DistinctSrc
        | Value::DistinctDst
        | Value::DistinctSrcPort
        | Value::DistinctDstPort
        | Value::TopSrc
        | Value::TopDst
        | Value::TopPort
        | Value::TopFlow
        | Value::OneWay
        | Value::Keys
        | Value::Entropy
        | Value::Counters => true,
        Value::Lengths
        | Value::Gaps
        | Value::PeakPackets
        | Value::PeakBytes
        | Value::Macs
        | Value::Segments
        | Value::Retransmissions
        | Value::RetransmittedPercent => false,
    }
}

/// Whether a condition has the same result for all packets of a flow part.
fn is_common(test: &Test) -> bool {
    match test {
        Test::Src(_)
        | Test::Dst(_)
        | Test::Host(_)
        | Test::SrcPort(_)
        | Test::DstPort(_)
        | Test::Port(_)
        | Test::Protocol(_)
        | Test::Direction(_)
        | Test::Vlan(_)
        | Test::SrcIn(_)
        | Test::DstIn(_)
        | Test::HostIn(_)
        | Test::FlowIn(_) => true,
        Test::Kind(kinds) => kinds.iter().all(|kind| matches!(kind, Kind::Ipv4 | Kind::Ipv6 | Kind::Arp)),
        Test::Ethertype(_)
        | Test::TcpFlags(_)
        | Test::IcmpType(_)
        | Test::Dscp(_)
        | Test::Length(_)
        | Test::Queue(_)
        | Test::Device(_)
        | Test::Payload(_)
        | Test::Application(_)
        | Test::Plugin(_)
        | Test::After(_) => false,
    }
}
