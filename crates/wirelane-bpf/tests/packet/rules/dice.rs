//! Random rules and packets, with so few values that they match.

use wirelane_bpf::layout::LinkType;
use wirelane_bpf::rules::{
    DIMS_USED, ExactKey, ExactValue, Facts, MAX_AFTERS, MAX_EGRESS_DEVICES, Rule, dim, rule_flags, shape,
    verdict,
};

use super::model::{Condition, ModelRule, width};
use crate::build::*;

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn once_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn mask(&mut self) -> u32 {
        self.next() as u32
    }
}

const NETWORKS: [[u8; 3]; 4] = [[10, 0, 0], [10, 0, 1], [10, 200, 0], [192, 168, 7]];
const PORTS: [u16; 8] = [0, 53, 80, 443, 1000, 1024, 40000, 65535];
const PROTOCOLS: [u8; 8] = [1, 2, 6, 17, 50, 58, 132, 255];
const VLANS: [u16; 4] = [0, 1, 7, 0xfff];

fn address4(dice: &mut Dice) -> [u8; 4] {
    let [a, b, c] = *dice.pick(&NETWORKS);
    [a, b, c, dice.below(6) as u8]
}

fn any_address6(dice: &mut Dice) -> [u8; 16] {
    let mut address = address6(dice.below(6) as u8);
    address[7] = dice.below(3) as u8;
    address
}

/// A packet with an Ethernet header: mostly TCP and UDP, with all other kinds between.
pub fn packet(dice: &mut Dice) -> Vec<u8> {
    let inside = |dice: &mut Dice, proto: u8| -> Vec<u8> {
        let (from, to) = (*dice.pick(&PORTS), *dice.pick(&PORTS));
        match proto {
            6 => {
                let mut packet = tcp(from, to, &[], b"payload");
                packet[4..12].copy_from_slice(&dice.next().to_be_bytes());
                packet[13] = dice.next() as u8;
                packet
            }
            17 => {
                let mut packet = udp(from, to, b"payload");
                packet[6..8].copy_from_slice(&(dice.next() as u16).to_be_bytes());
                packet
            }
            1 | 58 => vec![*dice.pick(&[0, 3, 8, 128, 135]), dice.next() as u8, 0, 0, 0, 0, 0, 0],
            132 => [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0; 12]].concat(),
            _ => vec![dice.next() as u8; 30],
        }
    };
    let network = |dice: &mut Dice| -> (u16, Vec<u8>) {
        let proto = if dice.once_in(4) { *dice.pick(&PROTOCOLS) } else { *dice.pick(&[6, 17]) };
        let payload = inside(dice, proto);
        match dice.below(12) {
            0 => (0x0806, arp()),
            1 => (*dice.pick(&[0x88cc, 0x05ff, 0x9999]), vec![0; 50]),
            2..7 => {
                let fragment = if dice.once_in(6) { *dice.pick(&[0x2000, 0x2010, 0x0010]) } else { 0x4000 };
                let (from, to) = (address4(dice), address4(dice));
                let mut packet = ipv4_full(proto, fragment, &[], from, to, &payload);
                packet[1] = dice.next() as u8;
                packet[4..6].copy_from_slice(&(dice.next() as u16).to_be_bytes());
                (0x0800, packet)
            }
            _ => {
                let (next, payload) = if dice.once_in(6) {
                    (44, fragment6(proto, *dice.pick(&[1, 0x11, 0x10]), &payload))
                } else {
                    (proto, payload)
                };
                let mut packet = ipv6(next, &payload);
                packet[8..24].copy_from_slice(&any_address6(dice));
                packet[24..40].copy_from_slice(&any_address6(dice));
                packet[1] = dice.next() as u8 & 0xf0;
                (0x86dd, packet)
            }
        }
    };
    let (ether_type, mut packet) = network(dice);
    // In a tunnel.
    let (ether_type, packet) = match dice.below(8) {
        0 => {
            packet = ethernet(ether_type, &packet);
            (0x0800, ipv4(17, &udp(1000, 4789, &vxlan(1 + dice.below(3) as u32, &packet))))
        }
        1 if ether_type == 0x0800 => (0x86dd, ipv6(4, &packet)),
        _ => (ether_type, packet),
    };
    match dice.below(6) {
        0 => ethernet(0x8100, &tag(*dice.pick(&VLANS) | 0x6000, ether_type, &packet)),
        1 => ethernet(0x8847, &mpls(dice.below(4) as u32, true, &packet)),
        _ => ethernet(ether_type, &packet),
    }
}

/// Facts with a time that advances by up to `most_ns`.
pub fn facts(dice: &mut Dice, now_ns: &mut u64, most_ns: u64) -> Facts {
    *now_ns += dice.next() % most_ns;
    Facts {
        now_ns: *now_ns,
        wire_len: *dice.pick(&[14, 60, 64, 255, 256, 1514, 65535, 65536, 200_000]),
        queue: dice.below(5) as u32 * 63,
        egress: dice.once_in(4).into(),
        seed: 0x5eed,
        ..Facts::default()
    }
}

/// Ranges of a dimension, around values that occur in packets.
fn condition(dice: &mut Dice, dim: usize) -> Condition {
    let count = 1 + dice.below(3);
    let ranges = (0..count)
        .map(|_| {
            let tree = if [dim::SRC, dim::DST].contains(&dim) && dice.once_in(2) { 6 } else { 4 };
            let bits = width(dim, tree) * 8;
            let value: u128 = match dim {
                dim::SRC | dim::DST if tree == 6 => u128::from_be_bytes(any_address6(dice)),
                dim::SRC | dim::DST => u32::from_be_bytes(address4(dice)).into(),
                dim::SRC_PORT | dim::DST_PORT => (*dice.pick(&PORTS)).into(),
                dim::PROTO => (*dice.pick(&PROTOCOLS)).into(),
                dim::KIND => dice.below(0x40) as u128,
                dim::VLAN => (*dice.pick(&[0u16, 1, 7, 0xfff, 0x1000])).into(),
                dim::LENGTH => *dice.pick(&[60, 64, 255, 256, 1514, 65535]),
                dim::QUEUE => dice.below(5) as u128 * 63,
                dim::ETHERTYPE => *dice.pick(&[0x0800, 0x86dd, 0x0806, 0x88cc]),
                dim::ICMP_TYPE => *dice.pick(&[0, 3, 8, 128, 135]),
                _ => u128::from(dice.next() as u8),
            };
            let most = if bits == 128 { u128::MAX } else { (1 << bits) - 1 };
            let range = match dice.below(4) {
                // A prefix.
                0 => {
                    let open = dice.below(bits as usize) as u32;
                    let low = value >> open << open;
                    low..=low + ((1u128 << open) - 1)
                }
                // From a value to a random end.
                1 => value..=value.saturating_add(u128::from(dice.mask()) % (most / 4 + 1)).min(most),
                _ => value..=value,
            };
            (tree, range)
        })
        .collect();
    Condition { dim, ranges, negated: dice.once_in(5) }
}

pub const SHAPES: [u32; 6] = [
    shape::SRC | shape::DST | shape::SRC_PORT | shape::DST_PORT | shape::PROTO | shape::BOTH,
    shape::SRC,
    shape::DST | shape::DST_PORT | shape::PROTO | shape::VLAN,
    shape::MPLS,
    shape::TUNNEL | shape::SRC,
    shape::VLAN,
];

/// A random action. Without `shapes`, it inserts no exact-match rules.
pub fn action(dice: &mut Dice, id: u32, slot: u32, shapes: &[u32]) -> Rule {
    let mut rule = Rule {
        id,
        slot,
        verdict: *dice.pick(&[
            verdict::NONE,
            verdict::PASS,
            verdict::PASS,
            verdict::DROP,
            verdict::ABSORB,
            verdict::DIGEST,
            verdict::REDIRECT,
        ]),
        ..Rule::default()
    };
    if rule.verdict == verdict::NONE || dice.once_in(3) {
        rule.flags |= rule_flags::CONTINUE;
    }
    if dice.once_in(4) {
        rule.truncate = 1 + dice.below(200) as u32;
    }
    if dice.once_in(4) {
        rule.sample = *dice.pick(&[1, 2, 3, 10]);
        rule.flags |= if dice.once_in(2) { rule_flags::SAMPLE_PACKET } else { 0 };
    }
    if dice.once_in(4) {
        rule.flags |= rule_flags::TAG;
        rule.tag = dice.next() as u32;
    }
    if rule.verdict == verdict::REDIRECT {
        rule.to = 1 << dice.below(MAX_EGRESS_DEVICES);
    }
    if dice.once_in(4) {
        rule.mirror = dice.next() as u8 & dice.next() as u8;
    }
    if !shapes.is_empty() && dice.once_in(3) {
        rule.flags |= rule_flags::INSERT;
        rule.insert_shape = *dice.pick(shapes);
        rule.insert_idle_s = *dice.pick(&[0, 1, 3]);
        rule.insert_hard_s = *dice.pick(&[0, 0, 5]);
        rule.insert_verdict =
            *dice.pick(&[verdict::NONE, verdict::PASS, verdict::DROP, verdict::ABSORB, verdict::DIGEST]);
        rule.insert_flags = *dice.pick(&[0, rule_flags::CONTINUE, rule_flags::TAG]);
    }
    rule
}

/// Random rules with ascending ids, each of up to three clauses of up to four conditions.
pub fn rules(dice: &mut Dice, count: usize, shapes: &[u32]) -> Vec<ModelRule> {
    (0..count)
        .map(|at| {
            let clauses = if dice.once_in(4) { 1 + dice.below(3) } else { 1 };
            let clauses = (0..clauses)
                .map(|_| {
                    let mut clause: Vec<Condition> = Vec::new();
                    for _ in 0..1 + dice.below(4) {
                        let dim = dice.below(DIMS_USED);
                        if clause.iter().all(|condition| condition.dim != dim) {
                            clause.push(condition(dice, dim));
                        }
                    }
                    clause
                })
                .collect();
            let mut rule = action(dice, 10 * at as u32 + 1, at as u32, shapes);
            if (1..=MAX_AFTERS).contains(&at) && dice.once_in(4) {
                rule.after = std::array::from_fn(|_| 10 * dice.below(at) as u32 + 1);
                rule.flags |= if dice.once_in(3) { rule_flags::AFTER_NONE } else { 0 };
            }
            ModelRule { rule, clauses }
        })
        .collect()
}

/// An exact-match rule that was inserted by a user.
pub fn entry(dice: &mut Dice, now_ns: u64) -> ExactValue {
    let id = 1_000_000 + dice.below(1000) as u32;
    let rule = action(dice, id, 0, &[]);
    ExactValue {
        made_ns: now_ns,
        id: rule.id,
        verdict: rule.verdict,
        flags: rule.flags,
        truncate: rule.truncate,
        sample: rule.sample,
        tag: rule.tag,
        mirror: rule.mirror,
        to: rule.to,
        idle_s: *dice.pick(&[0, 0, 1, 2]),
        hard_s: *dice.pick(&[0, 0, 4]),
        ..ExactValue::default()
    }
}

/// A key of a shape, with values that occur in packets.
pub fn keyed(dice: &mut Dice, shape: u32) -> ExactKey {
    let mut key = ExactKey { shape, ..ExactKey::default() };
    let six = dice.once_in(2);
    let address = |dice: &mut Dice| {
        let mut bytes = [0; 16];
        if six {
            bytes = any_address6(dice);
        } else {
            bytes[..4].copy_from_slice(&address4(dice));
        }
        bytes
    };
    if shape & shape::SRC != 0 {
        key.src = address(dice);
    }
    if shape & shape::DST != 0 {
        key.dst = address(dice);
    }
    if shape & (shape::SRC | shape::DST) != 0 {
        key.l3 = if six { 6 } else { 4 };
    }
    if shape & shape::SRC_PORT != 0 {
        key.src_port = dice.pick(&PORTS).to_be();
    }
    if shape & shape::DST_PORT != 0 {
        key.dst_port = dice.pick(&PORTS).to_be();
    }
    if shape & shape::PROTO != 0 {
        key.proto = *dice.pick(&[6, 17]);
    }
    if shape & shape::VLAN != 0 {
        key.vlan = *dice.pick(&[0, 1, 7, 0xfff, 0x1000]);
    }
    if shape & shape::MPLS != 0 {
        key.mpls = dice.below(4) as u32;
    }
    if shape & shape::TUNNEL != 0 {
        key.tunnel = 1 + dice.below(3) as u32;
    }
    key
}

pub const LINK: LinkType = LinkType::Ethernet;
