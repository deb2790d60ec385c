//! Satisfiability: a rule that no packet can match is reported as a mistake.
//!
//! The check uses the rule's clauses, dimension by dimension, for each class of packets: the fields that a packet can
//! have depend only on its network layer, its protocol, and whether it is a later fragment.

use wirelane_bpf::rules::{dim, kind};

use super::compile::clauses::{Clause, Clauses, Demand};
use super::{Action, Condition, Rule};

/// The protocols whose ports the parser reads: TCP, UDP, DCCP, SCTP, UDP-Lite.
pub(super) const WITH_PORTS: [u8; 5] = [6, 17, 33, 132, 136];
const TCP: u8 = 6;
/// ICMP and ICMPv6.
const ICMPS: [u8; 2] = [1, 58];

/// A class of packets that can have the same fields.
#[derive(Clone, Copy)]
struct Sort {
    /// Byte of dimension `KIND`.
    kind: u8,
    /// IP protocol; `None` without IP.
    protocol: Option<u8>,
}

/// The reason why no packet can match a rule; `None` if one can. `clauses` makes the clauses of all rules of its set.
pub(super) fn contradiction<'r>(rule: &'r Rule, clauses: &mut Clauses<'r>) -> Option<String> {
    if clauses.of(0, rule, None).iter().any(possible) {
        return None;
    }
    // Find the smallest unsatisfiable subset for the message.
    let conditions = &rule.conditions;
    let one = conditions.iter().find(|one| !can_hold(std::slice::from_ref(*one)));
    let pairs = || {
        let behind = |(place, one)| conditions[place + 1..].iter().map(move |other| (one, other));
        conditions.iter().enumerate().flat_map(behind)
    };
    let pair = |(one, other): &(&Condition, &Condition)| !can_hold(&[(*one).clone(), (*other).clone()]);
    let why = match (one, pairs().find(pair)) {
        (Some(one), _) => format!("`{one}` leaves nothing"),
        (None, Some((one, other))) => format!("`{one}` and `{other}` cannot hold together"),
        (None, None) => "its conditions cannot all hold together".to_owned(),
    };
    Some(format!("no packet can hit this rule: {why}"))
}

/// Whether a packet can satisfy all of these conditions.
fn can_hold(conditions: &[Condition]) -> bool {
    let rule = Rule { conditions: conditions.to_vec(), ..Rule::new(1, Action::None) };
    Clauses::new(std::slice::from_ref(&rule)).of(0, &rule, None).iter().any(possible)
}

/// Whether a packet can satisfy a clause.
fn possible(clause: &Clause) -> bool {
    let asked = clause.demands.iter().enumerate();
    let demands: Vec<(usize, &Demand)> =
        asked.filter_map(|(dim, demand)| demand.as_ref().map(|demand| (dim, demand))).collect();
    sorts().any(|sort| demands.iter().all(|(dim, demand)| satisfies(sort, *dim, demand)))
}

/// All classes of packets.
fn sorts() -> impl Iterator<Item = Sort> {
    let kinds = (0..=kind::L3 | kind::FRAGMENT | kind::LATER | kind::EGRESS | kind::TUNNEL).filter(|kind| {
        let (fragment, later) = (kind & kind::FRAGMENT != 0, kind & kind::LATER != 0);
        (fragment || !later) && (is_ip(*kind) || !fragment)
    });
    kinds.flat_map(|kind| {
        let protocols = if is_ip(kind) { Some(0..=255) } else { None };
        let none = protocols.is_none().then_some(None);
        protocols.into_iter().flatten().map(Some).chain(none).map(move |protocol| Sort { kind, protocol })
    })
}

fn is_ip(kind: u8) -> bool {
    kind & kind::L3 == kind::L3_IPV4 || kind & kind::L3 == kind::L3_IPV6
}

/// Whether a packet of this class can satisfy a demand.
fn satisfies(sort: Sort, dim: usize, demand: &Demand) -> bool {
    let whole = sort.kind & kind::LATER == 0;
    let one_of =
        |protocols: &[u8]| whole && sort.protocol.is_some_and(|protocol| protocols.contains(&protocol));
    // Whether a packet can have the field, and can lack it. Packets may be truncated, so most fields can be missing
    // too.
    let (can_have, can_lack) = match dim {
        dim::KIND => return demand.values().contains(sort.kind.into()),
        dim::PROTO => {
            return match sort.protocol {
                Some(protocol) => demand.values().contains(protocol.into()),
                None => demand.absent,
            };
        }
        dim::SRC | dim::DST => {
            let values =
                if sort.kind & kind::L3 == kind::L3_IPV6 { demand.values6() } else { demand.values() };
            return if is_ip(sort.kind) { !values.is_empty() } else { demand.absent };
        }
        dim::TOS => (is_ip(sort.kind), !is_ip(sort.kind)),
        dim::SRC_PORT | dim::DST_PORT => (one_of(&WITH_PORTS), true),
        dim::TCP_FLAGS => (one_of(&[TCP]), true),
        dim::ICMP_TYPE => (one_of(&ICMPS), true),
        dim::ETHERTYPE => (true, true),
        // VLAN, LENGTH, QUEUE, SETS and PAYLOAD: every packet has one.
        _ => (true, false),
    };
    can_have && !demand.values().is_empty() || can_lack && demand.absent
}
