//! Rules in their simplest form, and their compilation to flat tables: a builder for these tests, which prefers evident
//! correctness over small tables.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use wirelane_bpf::layout::{Ip, Parsed, flags, ip_flags, l3};
use wirelane_bpf::members::Members;
use wirelane_bpf::rules::{self, Class, Facts, Field, FlatSet, LEAF, Node, Rule, Set, dim, kind};
use wirelane_bpf::search::Search;

/// A field's value: the tree of its lookup (6 for IPv6 addresses, else 4), and the number.
pub type Value = (u8, u128);

/// Condition of a clause on one dimension: the value is one of these, or (negated) none of them.
#[derive(Clone, Debug)]
pub struct Condition {
    pub dim: usize,
    pub ranges: Vec<(u8, RangeInclusive<u128>)>,
    pub negated: bool,
}

impl Condition {
    /// A missing field has none of the values.
    pub fn accepts(&self, value: Option<Value>) -> bool {
        let found = value.is_some_and(|(tree, number)| {
            self.ranges.iter().any(|(of, range)| *of == tree && range.contains(&number))
        });
        found != self.negated
    }
}

/// A wildcard rule: it accepts packets that satisfy all conditions of one of its clauses.
#[derive(Clone, Debug)]
pub struct ModelRule {
    pub rule: Rule,
    pub clauses: Vec<Vec<Condition>>,
}

/// Bytes of a dimension's values.
pub const fn width(dim: usize, tree: u8) -> u32 {
    match (dim, tree) {
        (dim::SRC | dim::DST, 6) => 16,
        (dim::SRC | dim::DST, _) => 4,
        (dim::PROTO | dim::KIND | dim::TCP_FLAGS | dim::TOS | dim::ICMP_TYPE, _) => 1,
        (dim::SETS | dim::PAYLOAD, _) => 1,
        _ => 2,
    }
}

/// The chosen headers.
pub fn chosen(parsed: &Parsed, inner: bool) -> &Ip {
    if inner && parsed.flags & flags::TUNNEL != 0 { &parsed.inner } else { &parsed.outer }
}

pub fn address(ip: &Ip, bytes: &[u8; 16]) -> Option<Value> {
    match ip.l3 {
        l3::IPV4 => Some((4, u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into())),
        l3::IPV6 => Some((6, u128::from_be_bytes(*bytes))),
        _ => None,
    }
}

pub fn vlan(parsed: &Parsed) -> u16 {
    if parsed.flags & flags::VLAN != 0 { parsed.vlan_tci[0] & 0xfff } else { rules::NO_VLAN }
}

/// The value of a packet in a dimension.
pub fn value(dim: usize, parsed: &Parsed, inner: bool, facts: &Facts) -> Option<Value> {
    let ip = chosen(parsed, inner);
    let is_ip = ip.l3 == l3::IPV4 || ip.l3 == l3::IPV6;
    let has = |flag: u8| ip.flags & flag != 0;
    let number: Option<u128> = match dim {
        dim::SRC => return address(ip, &ip.src),
        dim::DST => return address(ip, &ip.dst),
        dim::SRC_PORT => has(ip_flags::PORTS).then(|| u16::from_be(ip.src_port).into()),
        dim::DST_PORT => has(ip_flags::PORTS).then(|| u16::from_be(ip.dst_port).into()),
        dim::PROTO => is_ip.then(|| ip.proto.into()),
        dim::KIND => {
            let mut byte = match ip.l3 {
                l3::IPV4 => kind::L3_IPV4,
                l3::IPV6 => kind::L3_IPV6,
                l3::ARP => kind::L3_ARP,
                _ => kind::L3_NONE,
            };
            for (is, bit) in [
                (has(ip_flags::FRAGMENT), kind::FRAGMENT),
                (has(ip_flags::LATER), kind::LATER),
                (facts.egress != 0, kind::EGRESS),
                (parsed.flags & flags::TUNNEL != 0, kind::TUNNEL),
            ] {
                byte |= if is { bit } else { 0 };
            }
            Some(byte.into())
        }
        dim::TCP_FLAGS => has(ip_flags::TCP).then(|| ip.tcp_flags.into()),
        dim::VLAN => Some(vlan(parsed).into()),
        dim::TOS => is_ip.then(|| ip.tos.into()),
        dim::LENGTH => Some(facts.wire_len.min(0xffff).into()),
        dim::QUEUE => Some(facts.queue.into()),
        dim::ETHERTYPE => (parsed.eth_type != 0).then(|| parsed.eth_type.into()),
        dim::ICMP_TYPE => has(ip_flags::ICMP).then(|| ip.icmp_type.into()),
        // No named sets: every test fails.
        dim::SETS => Some(0),
        // No patterns: there are no matches.
        dim::PAYLOAD => Some(0),
        _ => None,
    };
    number.map(|number| (4, number))
}

/// Compiles rules, in the order of the set, and fills in the clauses and dimensions.
pub fn flatten(rules: &[ModelRule], default_verdict: u8, shapes: &[u32]) -> FlatSet {
    let mut set = Set::empty();
    let mut clauses: Vec<&[Condition]> = Vec::new();
    for (index, model) in rules.iter().enumerate() {
        for clause in &model.clauses {
            set.rule_of[clauses.len()] = index as u16;
            clauses.push(clause);
        }
        set.rule[index] = Rule { last_clause: clauses.len() as u16 - 1, ..model.rule };
    }
    set.clauses = clauses.len() as u32;
    set.rules = rules.len() as u32;
    set.default_verdict = default_verdict.into();
    set.shapes = shapes.len() as u32;
    set.shape[..shapes.len()].copy_from_slice(shapes);

    let mut tables =
        Tables { nodes: Vec::new(), classes: Vec::new(), known: HashMap::new(), of: HashMap::new() };
    tables.class((0..clauses.len()).collect());
    for dim in 0..rules::DIMS_USED {
        let asked: Vec<Option<&Condition>> =
            clauses.iter().map(|clause| clause.iter().find(|condition| condition.dim == dim)).collect();
        if asked.iter().all(Option::is_none) {
            set.dims[dim] = Field { root: LEAF, root6: LEAF, absent: 0, pad: 0 };
            continue;
        }
        set.used |= 1 << dim;
        let lacking = |at: &usize| match asked[*at] {
            of if dim == dim::PAYLOAD => of.is_some(),
            of => of.is_none_or(|of| of.negated),
        };
        let lacking = (0..asked.len()).filter(lacking).collect();
        set.dims[dim] = Field {
            root: tables.tree(&asked, 4, width(dim, 4)),
            root6: tables.tree(&asked, 6, width(dim, 6)),
            absent: tables.class(lacking) & !LEAF,
            pad: 0,
        };
    }
    FlatSet {
        set,
        nodes: tables.nodes,
        classes: tables.classes,
        members: Members::default(),
        search: Arc::new(Search::none()),
    }
}

struct Tables {
    nodes: Vec<Node>,
    classes: Vec<Class>,
    /// Classes by their clauses.
    known: HashMap<Vec<usize>, u32>,
    /// Nodes by their children: equal nodes are shared.
    of: HashMap<Vec<u32>, u32>,
}

impl Tables {
    fn class(&mut self, clauses: Vec<usize>) -> u32 {
        if let Some(known) = self.known.get(&clauses) {
            return *known;
        }
        let mut class = Class::EMPTY;
        clauses.iter().for_each(|clause| class.add(*clause));
        let leaf = self.classes.len() as u32 | LEAF;
        self.classes.push(class);
        self.known.insert(clauses, leaf);
        leaf
    }

    /// The tree of one dimension, for values of `width` bytes.
    fn tree(&mut self, asked: &[Option<&Condition>], tree: u8, width: u32) -> u32 {
        let all: Vec<usize> = (0..asked.len()).collect();
        self.part(asked, tree, 0, width, Vec::new(), &all)
    }

    /// The part of the tree below `low`, with `left` undetermined bytes: the clauses in `sure` accept all of it; the
    /// values that those in `open` accept are not determined yet.
    fn part(
        &mut self,
        asked: &[Option<&Condition>],
        tree: u8,
        low: u128,
        left: u32,
        mut sure: Vec<usize>,
        open: &[usize],
    ) -> u32 {
        let high = if left == 16 { u128::MAX } else { low + ((1u128 << (8 * left)) - 1) };
        let mut undecided = Vec::new();
        for &clause in open {
            let Some(condition) = asked[clause] else {
                sure.push(clause);
                continue;
            };
            let mut ranges = condition.ranges.iter().filter(|(of, _)| *of == tree).map(|(_, range)| range);
            let touched = ranges.clone().any(|range| *range.start() <= high && *range.end() >= low);
            let covered = ranges.any(|range| *range.start() <= low && *range.end() >= high);
            if covered || !touched {
                if covered != condition.negated {
                    sure.push(clause);
                }
            } else {
                undecided.push(clause);
            }
        }
        if undecided.is_empty() {
            sure.sort_unstable();
            return self.class(sure);
        }
        assert!(left > 0, "a single value is within a range or without");
        // Positions where the result changes; between two of these, all bytes are equivalent.
        let mut cuts: Vec<u128> = undecided
            .iter()
            .filter_map(|clause| asked[*clause])
            .flat_map(|condition| &condition.ranges)
            .filter(|(of, _)| *of == tree)
            .flat_map(|(_, range)| [*range.start(), range.end().saturating_add(1)])
            .collect();
        cuts.sort_unstable();
        let size = 1u128 << (8 * (left - 1));
        let mut next: Vec<u32> = Vec::with_capacity(256);
        for byte in 0..256u128 {
            let below = low + byte * size;
            let before = cuts.partition_point(|cut| *cut <= below.saturating_sub(size));
            let same = cuts.get(before).is_none_or(|cut| *cut > below + (size - 1));
            match next.last() {
                Some(last) if same => next.push(*last),
                _ => next.push(self.part(asked, tree, below, left - 1, sure.clone(), &undecided)),
            }
        }
        if let Some(known) = self.of.get(&next) {
            return *known;
        }
        let at = self.nodes.len() as u32;
        let mut node = Node { next: [0; 256] };
        node.next.copy_from_slice(&next);
        self.nodes.push(node);
        self.of.insert(next, at);
        at
    }
}
