//! Decides which measurements can use in-kernel sums by flow (`bpf/lib/flow.h`).
//!
//! A part has what its packets have in common: addresses, ports, protocol, VLAN, device, direction. What is told of each
//! packet alone, its length, time, TCP flags, payload, is not in it.

use wirelane::rules::{Action, Kind, Rule, RuleSet, Test, Then};

use super::{Action as ActionOf, Analysis, Config, Field, Measurement, Value, recordings};

/// Where a measurement is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the workers, of packets; and why not in the kernel, where that was left open.
    Workers(Option<String>),
    /// In the kernel.
    Kernel,
}

impl Config {
    /// Whether any measurement is to be made in the kernel and nowhere else.
    pub fn asks_for_kernel(&self) -> bool {
        self.measurements.iter().any(|one| one.analysis == Analysis::Kernel)
    }

    /// Whether any measurement is made in the kernel.
    pub fn is_in_kernel(&self) -> bool {
        of_packets(&self.measurements).any(|one| self.place(one) == Location::Kernel)
    }

    /// Whether a measurement of it is the same of packets that have been added up by what they have in common. Of the RX
    /// queue that is so for workers, who get each packet with its own.
    pub(crate) fn is_of_parts(&self, one: &Measurement) -> bool {
        of_each_packet(&self.rules, one).is_none()
    }

    /// Where one of its measurements is made.
    pub fn place(&self, one: &Measurement) -> Location {
        if one.analysis == Analysis::User {
            return Location::Workers(None);
        }
        match obstacle(&self.measurements, &self.rules, &self.actions, one) {
            Some(why) => Location::Workers(Some(why)),
            None => Location::Kernel,
        }
    }

    /// The rules whose packets come up, beside what the kernel adds up: those of the measurements that are made in the
    /// workers. They pass what they accept, and have ids from 1 on. `None`: all packets come up.
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
            // Others may have something to ask of the packet.
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

/// Measurements that are made of packets: not those of what plug-ins have counted, whichever way packets go.
fn of_packets(all: &[Measurement]) -> impl Iterator<Item = &Measurement> {
    all.iter().filter(|one| one.plugin.is_none())
}

/// What keeps a measurement from being made in the kernel: itself, or what has every packet come up, so that there is
/// nothing left to be added up.
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

/// Whether a measurement has every packet come up, and why.
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

/// What keeps it from that by itself.
fn alone(rules: &RuleSet, of: &Measurement) -> Option<String> {
    if of.key.contains(&Field::Queue) {
        return every_packet("queue");
    }
    of_each_packet(rules, of)
}

fn every_packet(what: &str) -> Option<String> {
    Some(format!("\"{what}\" depends on single packets, and the kernel delivers sums"))
}

/// What of it is told of each packet alone.
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

/// Whether a value is known of packets that have been added up.
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

/// Whether all packets of a part, or none, fulfil a condition.
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
        | Test::Plugin(_) => false,
    }
}
