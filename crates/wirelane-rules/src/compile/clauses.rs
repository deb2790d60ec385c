//! Converts conditions to clauses.

use std::collections::HashMap;
use std::sync::Arc;

use wirelane_bpf::rules::{DIMS_USED, MAX_MEMBERS, MAX_PATTERNS, NO_VLAN, dim, kind};

use super::ranges::Ranges;
use crate::{Addresses, Condition, Kind, Rule, Test, Vlan, Way};
use crate::{named, patterns};

/// The condition of a clause on one dimension.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    values: Arc<Ranges>,
    values6: Arc<Ranges>,
    /// Whether packets without the field are accepted.
    pub absent: bool,
}

impl Demand {
    /// The accepted values; for an address dimension, the IPv4 addresses.
    pub fn values(&self) -> &Arc<Ranges> {
        &self.values
    }

    /// The accepted IPv6 addresses.
    pub fn values6(&self) -> &Arc<Ranges> {
        &self.values6
    }
}

/// A conjunction of demands, one per dimension, made of one rule.
#[derive(Clone, Debug)]
pub(crate) struct Clause {
    /// Index of the rule.
    pub rule: usize,
    /// By dimension; `None`: any value.
    pub demands: [Option<Demand>; DIMS_USED],
}

/// The highest value of each dimension; for address dimensions, of IPv4 addresses.
const LAST: [u128; DIMS_USED] = {
    let mut last = [0xff; DIMS_USED];
    last[dim::SRC] = u32::MAX as u128;
    last[dim::DST] = u32::MAX as u128;
    last[dim::SRC_PORT] = 0xffff;
    last[dim::DST_PORT] = 0xffff;
    last[dim::VLAN] = NO_VLAN as u128;
    last[dim::LENGTH] = 0xffff;
    last[dim::QUEUE] = 0xffff;
    last[dim::ETHERTYPE] = 0xffff;
    last
};

/// The highest value of a dimension; for an address dimension, of IPv4 addresses.
pub(super) fn last(dim: usize) -> u128 {
    LAST[dim]
}

/// Bytes of a value of a dimension; for an address dimension, of an IPv4 address.
pub(super) fn bytes(dim: usize) -> u32 {
    (128 - LAST[dim].leading_zeros()).div_ceil(8)
}

/// Number of clauses of a rule if no device is excluded.
pub(crate) fn count(rule: &Rule) -> usize {
    let sides =
        rule.conditions.iter().filter(|condition| !condition.negated && sides(&condition.test).is_some());
    u32::try_from(sides.count() + usize::from(rule.both_ways))
        .ok()
        .and_then(|sides| 1usize.checked_shl(sides))
        .unwrap_or(usize::MAX)
}

/// The two dimensions of a test that accepts either side.
fn sides(test: &Test) -> Option<[usize; 2]> {
    match test {
        Test::Host(_) => Some([dim::SRC, dim::DST]),
        Test::Port(_) => Some([dim::SRC_PORT, dim::DST_PORT]),
        _ => None,
    }
}

/// Converts rules to clauses. Caches the sets made of address lists, which rules may share.
#[derive(Default)]
pub(crate) struct Clauses<'r> {
    addresses: HashMap<(*const Addresses, bool), Values>,
    /// Tests of named sets, one bit each, in this order.
    tests: Vec<(u8, &'r str)>,
    /// Names of patterns and plug-ins, one bit each, in this order.
    patterns: Vec<String>,
    /// Keeps the rules borrowed: `addresses` is keyed by the addresses of their lists.
    _rules: std::marker::PhantomData<&'r Rule>,
}

/// Accepted values, and accepted IPv6 addresses.
type Values = (Arc<Ranges>, Arc<Ranges>);

impl<'r> Clauses<'r> {
    /// A converter for the rules of one set, in the order in which their tests of named sets are numbered.
    pub fn new(rules: impl IntoIterator<Item = &'r Rule> + Clone) -> Clauses<'r> {
        let patterns = patterns::names(rules.clone());
        Clauses { tests: named::tests(rules), patterns, ..Clauses::default() }
    }

    /// Bits of pattern names, in dimension `PAYLOAD`.
    fn pattern_bits(&self, names: &[String]) -> u8 {
        let of = |name: &String| self.patterns.iter().position(|known| known == name);
        let bits = names.iter().filter_map(of).filter(|bit| *bit < MAX_PATTERNS);
        bits.fold(0, |bits, bit| bits | 1 << bit)
    }

    /// Bits of a test of named sets, in dimension `SETS`.
    fn bits(&self, what: u8, names: &[String]) -> u8 {
        let of = |name: &String| self.tests.iter().position(|test| *test == (what, name.as_str()));
        let bits = names.iter().filter_map(of).filter(|bit| *bit < MAX_MEMBERS);
        bits.fold(0, |bits, bit| bits | 1 << bit)
    }

    /// The clauses of a rule on this device; on any device if `None`. Empty if the rule is for other devices.
    pub fn of(&mut self, index: usize, rule: &'r Rule, device: Option<&str>) -> Vec<Clause> {
        let mut clauses = self.one_way(index, rule, device, false);
        if rule.both_ways {
            clauses.extend(self.one_way(index, rule, device, true));
        }
        clauses
    }

    /// The clauses of a rule for packets as they are, or with source and destination `exchanged`.
    fn one_way(
        &mut self,
        index: usize,
        rule: &'r Rule,
        device: Option<&str>,
        exchanged: bool,
    ) -> Vec<Clause> {
        let mut clauses = vec![Clause { rule: index, demands: Default::default() }];
        for condition in &rule.conditions {
            let Condition { negated, test } = condition;
            if let Test::Device(names) = test {
                let here = device.is_none_or(|device| names.iter().any(|name| name == device) != *negated);
                if !here {
                    return Vec::new();
                }
                continue;
            }
            if let Test::After(_) = test {
                // Evaluated for the rule, behind its clauses.
                continue;
            }
            let values = self.values(test, *negated, exchanged);
            match sides(test) {
                // Either side: one clause for each.
                Some(dims) if !negated => {
                    let narrowed = |dim| clauses.iter().map(move |clause| (dim, clause.clone()));
                    clauses = narrowed(dims[0])
                        .chain(narrowed(dims[1]))
                        .map(|(dim, clause)| narrow(clause, dim, &values, false))
                        .collect();
                }
                // Neither side.
                Some(dims) => {
                    for dim in dims {
                        clauses =
                            clauses.into_iter().map(|clause| narrow(clause, dim, &values, true)).collect();
                    }
                }
                None => {
                    let dim = if exchanged { opposite(dim_of(test)) } else { dim_of(test) };
                    clauses =
                        clauses.into_iter().map(|clause| narrow(clause, dim, &values, *negated)).collect();
                }
            }
        }
        clauses
    }

    /// The values that a test accepts; their complement if negated. `exchanged`: those of the other side.
    fn values(&mut self, test: &'r Test, negated: bool, exchanged: bool) -> Values {
        let both = |values: Ranges, values6: Ranges, last: u128| {
            if negated {
                (Arc::new(values.complement(last)), Arc::new(values6.complement(u128::MAX)))
            } else {
                (Arc::new(values), Arc::new(values6))
            }
        };
        if let Test::Src(list) | Test::Dst(list) | Test::Host(list) = test {
            let made = || both(Ranges::of_v4(list), Ranges::of_v6(list), LAST[dim::SRC]);
            return self.addresses.entry((Arc::as_ptr(list), negated)).or_insert_with(made).clone();
        }
        if let Some(names) = patterns::asked(test) {
            let bits = self.pattern_bits(&names);
            return both(Ranges::of_bytes(|held| held & bits != 0), Ranges::default(), LAST[dim::PAYLOAD]);
        }
        if let Some((what, names)) = named::asked(test) {
            let bits = self.bits(if exchanged { named::opposite(what) } else { what }, names);
            return both(Ranges::of_bytes(|held| held & bits != 0), Ranges::default(), LAST[dim::SETS]);
        }
        both(numbers(test), Ranges::default(), LAST[dim_of(test)])
    }
}

/// Adds a demand to a clause.
fn narrow(mut clause: Clause, dim: usize, (values, values6): &Values, absent: bool) -> Clause {
    let demand = &mut clause.demands[dim];
    *demand = Some(match demand.take() {
        None => Demand { values: values.clone(), values6: values6.clone(), absent },
        Some(before) => Demand {
            values: Arc::new(before.values.intersection(values)),
            values6: Arc::new(before.values6.intersection(values6)),
            absent: before.absent && absent,
        },
    });
    clause
}

/// The dimension of a test; for a test of either side, that of the source.
fn dim_of(test: &Test) -> usize {
    match test {
        Test::Src(_) | Test::Host(_) => dim::SRC,
        Test::Dst(_) => dim::DST,
        Test::SrcPort(_) | Test::Port(_) => dim::SRC_PORT,
        Test::DstPort(_) => dim::DST_PORT,
        Test::Protocol(_) => dim::PROTO,
        Test::Ethertype(_) => dim::ETHERTYPE,
        Test::Kind(_) | Test::Direction(_) => dim::KIND,
        Test::TcpFlags(_) => dim::TCP_FLAGS,
        Test::IcmpType(_) => dim::ICMP_TYPE,
        Test::Vlan(_) => dim::VLAN,
        Test::Dscp(_) => dim::TOS,
        Test::Length(_) => dim::LENGTH,
        Test::Queue(_) => dim::QUEUE,
        Test::SrcIn(_) | Test::DstIn(_) | Test::HostIn(_) | Test::FlowIn(_) => dim::SETS,
        Test::Payload(_) | Test::Application(_) | Test::Plugin(_) => dim::PAYLOAD,
        Test::Device(_) | Test::After(_) => unreachable!("no dimension: decided before, or behind"),
    }
}

/// The dimension of the same field of the other side; the dimension itself where it is of no side.
fn opposite(dim: usize) -> usize {
    match dim {
        dim::SRC => dim::DST,
        dim::DST => dim::SRC,
        dim::SRC_PORT => dim::DST_PORT,
        dim::DST_PORT => dim::SRC_PORT,
        other => other,
    }
}

/// The values that a test accepts, except for addresses.
fn numbers(test: &Test) -> Ranges {
    match test {
        Test::SrcPort(ranges)
        | Test::DstPort(ranges)
        | Test::Port(ranges)
        | Test::Ethertype(ranges)
        | Test::Queue(ranges) => Ranges::of_numbers(ranges),
        Test::Protocol(ranges) | Test::IcmpType(ranges) => Ranges::of_numbers(ranges),
        Test::Kind(kinds) => Ranges::of_bytes(|byte| kinds.iter().any(|kind| is_kind(byte, *kind))),
        Test::Direction(way) => Ranges::of_bytes(|byte| (byte & kind::EGRESS != 0) == (*way == Way::Tx)),
        Test::TcpFlags(tests) => {
            Ranges::of_bytes(|flags| tests.iter().any(|test| flags & test.mask == test.set))
        }
        Test::Vlan(tags) => Ranges::of(tags.iter().map(|tag| match tag {
            Vlan::Untagged => (NO_VLAN.into(), NO_VLAN.into()),
            Vlan::Ids(first, last) => ((*first).into(), (*last).into()),
        })),
        // The two lowest bits of the byte are ECN (RFC 3168).
        Test::Dscp(points) => {
            let tos = |point: u8| u128::from(point) << 2;
            Ranges::of(points.iter().map(|range| (tos(*range.start()), tos(*range.end()) + 3)))
        }
        Test::Length(lengths) => Ranges::of(lengths.iter().map(|range| {
            let longest = |length: u32| u128::from(length.min(0xffff));
            (longest(*range.start()), longest(*range.end()))
        })),
        Test::Src(_) | Test::Dst(_) | Test::Host(_) => unreachable!("addresses are of two families"),
        Test::SrcIn(_)
        | Test::DstIn(_)
        | Test::HostIn(_)
        | Test::FlowIn(_)
        | Test::Payload(_)
        | Test::Application(_)
        | Test::Plugin(_) => {
            unreachable!("which bits a name has, only the tests of all rules say")
        }
        Test::Device(_) | Test::After(_) => unreachable!("no dimension: decided before, or behind"),
    }
}

/// Whether a packet with this byte in dimension `KIND` is of a kind.
fn is_kind(byte: u8, of: Kind) -> bool {
    match of {
        Kind::Ipv4 => byte & kind::L3 == kind::L3_IPV4,
        Kind::Ipv6 => byte & kind::L3 == kind::L3_IPV6,
        Kind::Arp => byte & kind::L3 == kind::L3_ARP,
        Kind::Fragment => byte & kind::FRAGMENT != 0,
        Kind::FirstFragment => byte & kind::FRAGMENT != 0 && byte & kind::LATER == 0,
        Kind::LaterFragment => byte & kind::LATER != 0,
        Kind::Tunnel => byte & kind::TUNNEL != 0,
    }
}
