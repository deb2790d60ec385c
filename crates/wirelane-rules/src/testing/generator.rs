//! Generates rule sets and packets from a small set of values, so that rules match often.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use wirelane_bpf::layout::{Parsed, l3};
use wirelane_bpf::rules::{MAX_AFTER, MAX_AFTERS};

pub use super::packets::{facts, parsed, payload};
use crate::{
    Action, Addresses, Application, Condition, Ends, Entries, ExactFields, ExactRule, ExactVlan, Flows,
    Insert, Kind, NamedSet, Networks, Pattern, Patterns, Policy, Rule, RuleSet, Sample, SampleBy, Shape,
    TcpTest, Test, Then, Vlan, Way,
};
use wirelane_testing::Dice;

/// The values that rules and packets are made of.
pub struct Values {
    pub addresses: Vec<IpAddr>,
    pub ports: Vec<u16>,
    pub protocols: Vec<u8>,
    pub ethertypes: Vec<u16>,
    pub lengths: Vec<u32>,
    pub vlans: Vec<u16>,
    pub tcp_flags: Vec<u8>,
    /// Endpoints and a protocol.
    pub flows: Vec<([SocketAddr; 2], u8)>,
    /// Parts of payloads.
    pub words: Vec<Vec<u8>>,
}

/// All actions except redirect, which inserted exact-match rules cannot have.
const ACTIONS: [Action; 5] = [Action::Pass, Action::Drop, Action::Count, Action::Digest, Action::None];

/// Names of the sets that tests use: of sides, and of flows. All combinations of a set and a field are eight tests.
const SETS: [&[&str]; 2] = [&["hosts", "more-hosts"], &["flows", "more_flows"]];

impl Values {
    /// A small number of values, so that rules match.
    pub fn few(dice: &mut Dice) -> Values {
        let mut values = Values::none();
        let base = dice.next() as u32;
        for _ in 0..12 {
            // Neighbouring and distant addresses, so that trees have common and separate parts.
            let four = Ipv4Addr::from_bits(base ^ (dice.word() & dice.word()));
            let six = u128::from(dice.next()) << 64 | u128::from(dice.word());
            values.addresses.push(four.into());
            values.addresses.push(Ipv6Addr::from_bits(six >> dice.below(100)).into());
            values.ports.push(dice.next() as u16 >> dice.below(12));
            values.lengths.push(dice.word());
            values.vlans.push(dice.below(4096) as u16);
        }
        values.protocols.extend([1, 6, 17, 58, 132, dice.next() as u8]);
        values.ethertypes.extend([0x0800, 0x0806, 0x86dd, dice.next() as u16]);
        for _ in 0..12 {
            // Words of few letters, so that they are parts of each other.
            values.words.push((0..1 + dice.below(5)).map(|_| *dice.pick(b"abAB\x00")).collect());
        }
        values.words.extend([b"\n".to_vec(), b"a:".to_vec()]);
        values.tcp_flags.extend([0x02, 0x12, 0x10, 0x18, 0x11, 0x04, dice.next() as u8]);
        for _ in 0..6 {
            let one = *dice.pick(&values.addresses);
            let like = |other: &&IpAddr| other.is_ipv4() == one.is_ipv4();
            let others: Vec<IpAddr> = values.addresses.iter().filter(like).copied().collect();
            let other = *dice.pick(&others);
            let ends = [one, other].map(|address| SocketAddr::new(address, *dice.pick(&values.ports)));
            values.flows.push((ends, *dice.pick(&[6, 17])));
        }
        values
    }

    pub fn none() -> Values {
        Values {
            addresses: Vec::new(),
            ports: Vec::new(),
            protocols: Vec::new(),
            ethertypes: Vec::new(),
            lengths: Vec::new(),
            vlans: Vec::new(),
            tcp_flags: Vec::new(),
            flows: Vec::new(),
            words: Vec::new(),
        }
    }

    /// Adds parts of a packet to the words.
    pub fn take_words(&mut self, dice: &mut Dice, data: &[u8]) {
        for _ in 0..2 {
            let from = dice.below(data.len());
            let length = 1 + (dice.next() % if dice.once_in(3) { 40 } else { 5 }) as usize;
            self.words.push(data[from..data.len().min(from + length)].to_vec());
        }
    }

    /// Adds the values of a packet.
    pub fn take(&mut self, parsed: &Parsed, wire_len: u32) {
        for ip in [&parsed.outer, &parsed.inner] {
            if ip.l3 != l3::IPV4 && ip.l3 != l3::IPV6 {
                continue;
            }
            let ends = [(&ip.src, ip.src_port), (&ip.dst, ip.dst_port)];
            let ends = ends.map(|(bytes, port)| SocketAddr::new(address(ip.l3, bytes), u16::from_be(port)));
            self.addresses.extend(ends.map(|end| end.ip()));
            self.flows.push((ends, ip.proto));
            self.ports.extend([u16::from_be(ip.src_port), u16::from_be(ip.dst_port)]);
            self.protocols.push(ip.proto);
            self.tcp_flags.push(ip.tcp_flags);
        }
        self.ethertypes.push(parsed.eth_type);
        self.vlans.push(parsed.vlan_tci[0] & 0xfff);
        self.lengths.push(wire_len);
    }
}

fn address(layer: u8, bytes: &[u8; 16]) -> IpAddr {
    if layer == l3::IPV6 {
        return Ipv6Addr::from(*bytes).into();
    }
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()
}

/// A valid rule set.
pub fn set(dice: &mut Dice, values: &Values, rules: usize) -> RuleSet {
    let default = *dice.pick(&[Policy::Pass, Policy::Drop]);
    let shapes: Vec<Shape> = (0..1 + dice.below(5)).map(|_| shape(dice)).collect();
    let (sets, patterns) = (sets(dice, values), patterns(dice, values));
    let mut set = RuleSet { default, sets, patterns, ..RuleSet::default() };
    let mut id = 1;
    for _ in 0..rules {
        let mut rule = rule(dice, values, id, &shapes);
        rule.conditions.extend(after(dice, &set.rules));
        id += 1 + dice.below(3) as u32;
        let (sets, patterns) = (set.sets.clone(), set.patterns.clone());
        let whole = RuleSet { rules: vec![rule.clone()], sets, patterns, ..RuleSet::default() };
        // Most of the invalid rules are rules that no packet can match.
        if whole.check().is_ok() {
            set.rules.push(rule);
        }
    }
    for _ in 0..dice.below(20) {
        let Some(rule) = exact(dice, values, id, &shapes) else { continue };
        id += 1;
        set.exact.push(rule);
        if set.check().is_err() {
            set.exact.pop();
        }
    }
    // Shuffle the rules: their order in the set is arbitrary.
    for place in (1..set.rules.len()).rev() {
        set.rules.swap(place, dice.below(place + 1));
    }
    set.check().unwrap_or_else(|error| panic!("{error}: {set:?}"));
    set
}

/// Sometimes a condition on hits of rules that are evaluated before.
fn after(dice: &mut Dice, rules: &[Rule]) -> Option<Condition> {
    let asking = rules.iter().filter(|rule| rule.asked_hits().next().is_some()).count();
    let ids: Vec<u32> = rules.iter().filter(|rule| rule.then == Then::Continue).map(|rule| rule.id).collect();
    if ids.is_empty() || asking == MAX_AFTERS || !dice.once_in(4) {
        return None;
    }
    let ids = (0..1 + dice.below(MAX_AFTER)).map(|_| *dice.pick(&ids)).collect();
    Some(Condition { negated: dice.once_in(3), test: Test::After(ids) })
}

/// Named sets, of these values and of others.
pub fn sets(dice: &mut Dice, values: &Values) -> Vec<NamedSet> {
    let mut all = Vec::new();
    for name in SETS[0] {
        all.push((*name, sides(dice, values)));
    }
    for name in SETS[1] {
        let flow = |(ends, protocol): &([SocketAddr; 2], u8)| match ends.map(|end| end.port()) {
            [0, 0] => format!("{protocol} {} {}", ends[1].ip(), ends[0].ip()),
            _ => format!("{protocol} {} {}", ends[0], ends[1]),
        };
        let flows: Vec<String> = (0..1 + dice.below(6)).map(|_| flow(dice.pick(&values.flows))).collect();
        all.push((*name, Entries::Flow(Flows::of(flows).expect("flows").into())));
    }
    let set = |(name, entries): (&str, Entries)| NamedSet {
        name: name.to_owned(),
        entries,
        false_positives: *dice.pick(&[0.5, 0.001]),
        confirm: true,
    };
    all.into_iter().map(set).collect()
}

/// Maximum number of networks of a set: tests store them in the kernel.
const MOST_NETWORKS: u64 = 2000;

/// Entries of one side of packets, of any kind.
fn sides(dice: &mut Dice, values: &Values) -> Entries {
    let number = 1 + dice.below(6);
    let mut ends = || -> Vec<SocketAddr> {
        let mut one = |_| match dice.once_in(2) || values.flows.is_empty() {
            true => SocketAddr::new(*dice.pick(&values.addresses), *dice.pick(&values.ports)),
            false => dice.pick(&values.flows).0[dice.below(2)],
        };
        (0..number).map(&mut one).collect()
    };
    let ends = ends();
    match dice.below(4) {
        0 => {
            let mut list = Addresses::default();
            ends.iter().for_each(|end| list.insert(&end.ip().to_string()).expect("an address"));
            Entries::Address(list.into())
        }
        1 => Entries::AddressPort(Ends::of(ends.iter().map(SocketAddr::to_string)).expect("ends").into()),
        2 => {
            let end = |end: &SocketAddr| format!("{} {end}", dice.one(&["udp", "tcp", "sctp"]));
            let ends: Vec<String> = ends.iter().map(end).collect();
            Entries::AddressPortProtocol(Ends::of(ends).expect("ends").into())
        }
        _ => loop {
            let networks = Networks::from(Arc::unwrap_or_clone(addresses(dice, values)));
            if networks.entries() <= MOST_NETWORKS {
                return Entries::Network(networks.into());
            }
        },
    }
}

/// Names of patterns.
const PATTERNS: &[&str] = &["words", "more-words", "others"];

/// Patterns, of these words and of others; one name has two tables.
pub fn patterns(dice: &mut Dice, values: &Values) -> Vec<Patterns> {
    let mut id = 1;
    let mut table = |name: &str| {
        let mut all = Vec::new();
        for _ in 0..1 + dice.below(4) {
            let mut word = dice.pick(&values.words).clone();
            if dice.once_in(3) {
                word.extend_from_slice(dice.pick(&values.words).as_slice());
            }
            word.truncate(128);
            all.push(Pattern(word));
        }
        let longest = all.iter().map(|pattern| pattern.0.len()).max().unwrap_or(0);
        id += dice.below(3) as u32 + all.len() as u32;
        Patterns {
            name: name.to_owned(),
            id: id - all.len() as u32,
            patterns: all.into(),
            nocase: dice.once_in(2),
            offset: if dice.once_in(3) { dice.below(60) as u32 } else { 0 },
            depth: dice.once_in(3).then(|| (longest + dice.below(100)) as u32),
        }
    };
    [PATTERNS, &PATTERNS[..1]].concat().into_iter().map(&mut table).collect()
}

/// A random shape, sometimes with both directions.
fn shape(dice: &mut Dice) -> Shape {
    loop {
        let shape = Shape(dice.below(256) as u32 & dice.below(256) as u32);
        let sides = Shape::SRC.with(Shape::DST).with(Shape::SRC_PORT).with(Shape::DST_PORT);
        if shape.0 & sides.0 != 0 && dice.once_in(3) {
            return shape.with(Shape::BOTH_WAYS);
        }
        if shape.0 != 0 {
            return shape;
        }
    }
}

pub fn rule(dice: &mut Dice, values: &Values, id: u32, shapes: &[Shape]) -> Rule {
    let action = action(dice);
    let mut rule = Rule::new(id, action);
    (rule.mirror, rule.to) = egress_devices(dice, action);
    rule.conditions = (0..dice.below(4)).map(|_| condition(dice, values)).collect();
    let of_one_side = rule.conditions.iter().any(|condition| condition.test.is_of_one_side());
    rule.both_ways = of_one_side && dice.once_in(3);
    if dice.once_in(3) {
        rule.then = Then::Continue;
    }
    rule.truncate = dice.once_in(4).then(|| 1 + dice.below(1500) as u32);
    rule.sample = sample(dice);
    rule.tag = dice.once_in(4).then(|| dice.word());
    if dice.once_in(6) {
        rule.insert = Some(Insert {
            shape: *dice.pick(shapes),
            action: *dice.pick(&ACTIONS),
            then: *dice.pick(&[Then::Stop, Then::Continue]),
            idle_s: dice.below(3) as u32,
            hard_s: dice.below(4) as u32,
        });
    }
    rule
}

fn action(dice: &mut Dice) -> Action {
    if dice.once_in(5) { Action::Redirect } else { *dice.pick(&ACTIONS) }
}

/// The egress devices of a rule with this action: for a mirror copy, and for a redirect.
fn egress_devices(dice: &mut Dice, action: Action) -> (Option<String>, Option<String>) {
    let names = ["eth2", "eth3", "eth10", "tap0", "wan", "x", "y", "zz"];
    let mirror = dice.once_in(4).then(|| dice.one(&names).to_owned());
    (mirror, (action == Action::Redirect).then(|| dice.one(&names).to_owned()))
}

fn sample(dice: &mut Dice) -> Option<Sample> {
    let by = *dice.pick(&[SampleBy::Flow, SampleBy::Packet]);
    dice.once_in(5).then(|| Sample { one_in: 1 + dice.below(4) as u32, by })
}

fn condition(dice: &mut Dice, values: &Values) -> Condition {
    Condition { negated: dice.once_in(4), test: test(dice, values) }
}

pub fn test(dice: &mut Dice, values: &Values) -> Test {
    match dice.below(29) {
        0 => Test::Src(addresses(dice, values)),
        1 => Test::Dst(addresses(dice, values)),
        2 | 3 => Test::Host(addresses(dice, values)),
        4 => Test::SrcPort(ranges(dice, &values.ports, u16::MAX)),
        5 => Test::DstPort(ranges(dice, &values.ports, u16::MAX)),
        6 | 7 => Test::Port(ranges(dice, &values.ports, u16::MAX)),
        8 => Test::Protocol(ranges(dice, &values.protocols, u8::MAX)),
        9 => Test::Ethertype(ranges(dice, &values.ethertypes, u16::MAX)),
        10 => Test::Kind(several(dice, |dice| {
            *dice.pick(&[
                Kind::Ipv4,
                Kind::Ipv6,
                Kind::Arp,
                Kind::Fragment,
                Kind::FirstFragment,
                Kind::LaterFragment,
                Kind::Tunnel,
            ])
        })),
        11 => Test::Direction(*dice.pick(&[Way::Rx, Way::Tx])),
        12 => Test::TcpFlags(several(dice, |dice| {
            let mask =
                (*dice.pick(&values.tcp_flags) | 1 << dice.below(8)) & (dice.next() | dice.next()) as u8;
            let mask = mask.max(1);
            TcpTest { set: *dice.pick(&values.tcp_flags) & mask, mask }
        })),
        13 => Test::IcmpType(ranges(dice, &[0, 3, 8, 11, 128, 135], u8::MAX)),
        14 => Test::Vlan(several(dice, |dice| match dice.below(3) {
            0 => Vlan::Untagged,
            _ => {
                let range = range(dice, &values.vlans, 4095);
                Vlan::Ids(*range.start(), *range.end())
            }
        })),
        15 => Test::Dscp(ranges(dice, &[0, 8, 46, 34], 63)),
        16 => {
            let lengths: Vec<u32> = values.lengths.iter().map(|length| (*length).min(0xffff)).collect();
            Test::Length(ranges(dice, &lengths, u32::MAX))
        }
        17 => Test::Queue(ranges(dice, &[0, 1, 2, 7], u16::MAX)),
        18 => Test::SrcIn(named(dice, SETS[0])),
        19 => Test::DstIn(named(dice, SETS[0])),
        20 => Test::HostIn(named(dice, SETS[0])),
        21 | 22 => Test::FlowIn(named(dice, SETS[1])),
        23..27 => Test::Payload(named(dice, PATTERNS)),
        27 => Test::Application(application(dice)),
        _ => Test::Device(several(dice, |dice| dice.one(&["eth0", "eth1", ""]).to_owned())),
    }
}

/// One of five fields: rules can use at most eight names.
fn application(dice: &mut Dice) -> Application {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    match dice.below(7) {
        0 => Application::SipField(texts(&["Via", "from"])),
        1 => Application::SipVia(texts(&["ab", "sip"])),
        2 | 3 => Application::SipFrom(texts(&["ab", "m:", " b"])),
        4 => Application::SipTo(texts(&["A"])),
        _ => Application::RtpType(vec![0..=3, 97..=98]),
    }
}

fn named(dice: &mut Dice, names: &[&str]) -> Vec<String> {
    let first = dice.below(names.len());
    let number = 1 + dice.below(names.len() - first);
    names[first..first + number].iter().map(|name| (*name).to_owned()).collect()
}

fn several<T>(dice: &mut Dice, mut one: impl FnMut(&mut Dice) -> T) -> Vec<T> {
    (0..1 + dice.below(3)).map(|_| one(dice)).collect()
}

fn addresses(dice: &mut Dice, values: &Values) -> Arc<Addresses> {
    let mut set = Addresses::default();
    for _ in 0..1 + dice.below(4) {
        let part = match dice.pick(&values.addresses) {
            address if dice.once_in(3) => address.to_string(),
            IpAddr::V4(address) => {
                let (first, last) = ends(dice, address.to_bits().into(), u32::MAX.into());
                format!("{}-{}", Ipv4Addr::from_bits(first as u32), Ipv4Addr::from_bits(last as u32))
            }
            IpAddr::V6(address) => {
                let (first, last) = ends(dice, address.to_bits(), u128::MAX);
                format!("{}-{}", Ipv6Addr::from_bits(first), Ipv6Addr::from_bits(last))
            }
        };
        set.insert(&part).expect("made as an address");
    }
    set.into()
}

/// The bounds of a range around a value: a prefix, or any range.
fn ends(dice: &mut Dice, value: u128, most: u128) -> (u128, u128) {
    let bits = 128 - most.leading_zeros();
    let rest = most.checked_shr(dice.below(bits as usize + 1) as u32).unwrap_or(0);
    let (first, last) = (value & !rest & most, (value | rest) & most);
    match dice.below(3) {
        0 => (first.saturating_add(dice.below(3) as u128).min(last), last),
        1 => (first, last.saturating_sub(dice.below(3) as u128).max(first)),
        _ => (first, last),
    }
}

fn range<T: Copy + Into<u128> + TryFrom<u128>>(dice: &mut Dice, values: &[T], most: T) -> RangeInclusive<T> {
    let value = (*dice.pick(values)).into().min(most.into());
    let (first, last) = if dice.once_in(2) { (value, value) } else { ends(dice, value, most.into()) };
    let back = |number: u128| T::try_from(number).unwrap_or(most);
    back(first)..=back(last)
}

fn ranges<T: Copy + Into<u128> + TryFrom<u128>>(
    dice: &mut Dice,
    values: &[T],
    most: T,
) -> Vec<RangeInclusive<T>> {
    several(dice, |dice| range(dice, values, most))
}

fn exact(dice: &mut Dice, values: &Values, id: u32, shapes: &[Shape]) -> Option<ExactRule> {
    let shape = *dice.pick(shapes);
    let src = *dice.pick(&values.addresses);
    let near: Vec<IpAddr> =
        values.addresses.iter().copied().filter(|address| address.is_ipv4() == src.is_ipv4()).collect();
    let value = |bit: Shape, number: u32| shape.has(bit).then_some(number);
    let fields = ExactFields {
        src: shape.has(Shape::SRC).then_some(src),
        dst: shape.has(Shape::DST).then_some(*dice.pick(&near)),
        src_port: value(Shape::SRC_PORT, (*dice.pick(&values.ports)).into()).map(|port| port as u16),
        dst_port: value(Shape::DST_PORT, (*dice.pick(&values.ports)).into()).map(|port| port as u16),
        protocol: value(Shape::PROTOCOL, (*dice.pick(&values.protocols)).into()).map(|number| number as u8),
        vlan: shape.has(Shape::VLAN).then(|| match dice.once_in(2) {
            true => ExactVlan::Untagged,
            false => ExactVlan::Id(*dice.pick(&values.vlans)),
        }),
        mpls: value(Shape::MPLS, dice.below(3) as u32),
        tunnel: value(Shape::TUNNEL, dice.below(3) as u32),
        both_ways: shape.has(Shape::BOTH_WAYS),
    };
    let action = action(dice);
    let (mirror, to) = egress_devices(dice, action);
    Some(ExactRule {
        mirror,
        to,
        then: *dice.pick(&[Then::Stop, Then::Continue]),
        truncate: dice.once_in(4).then(|| 1 + dice.below(1500) as u32),
        sample: sample(dice),
        tag: dice.once_in(3).then(|| dice.word()),
        idle_s: dice.below(3) as u32,
        hard_s: dice.below(4) as u32,
        ..ExactRule::new(id, fields, action)
    })
}
