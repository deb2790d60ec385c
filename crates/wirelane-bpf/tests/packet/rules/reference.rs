//! Reference implementation of rules: a walk over all rules in order.

use std::collections::BTreeMap;

use wirelane_bpf::evaluate::{ExactTable, Inserted};
use wirelane_bpf::layout::{Parsed, flags, ip_flags, l3};
use wirelane_bpf::native;
use wirelane_bpf::rules::{
    Counts, Evaluated, ExactKey, ExactValue, Facts, MAX_HITS, Rule, evaluated_flags, rule_flags, shape,
    verdict,
};

use super::model::{self, ModelRule};

/// A table of exact-match rules with a limited capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    pub of: BTreeMap<ExactKey, ExactValue>,
    pub room: usize,
}

impl ExactTable for Entries {
    fn find(&mut self, key: &ExactKey) -> Option<&mut ExactValue> {
        self.of.get_mut(key)
    }

    fn insert(&mut self, key: &ExactKey, value: &ExactValue) -> Inserted {
        if self.of.len() == self.room && !self.of.contains_key(key) {
            return Inserted::Full;
        }
        self.of.insert(*key, *value);
        Inserted::Yes
    }
}

/// A group's rules and their counters.
#[derive(Clone, Debug)]
pub struct Reference {
    pub rules: Vec<ModelRule>,
    pub default_verdict: u8,
    pub shapes: Vec<u32>,
    pub counts: BTreeMap<u32, Counts>,
    pub entries: Entries,
}

/// The current packet.
struct Packet<'a> {
    parsed: &'a Parsed,
    inner: bool,
    facts: &'a Facts,
}

impl Reference {
    pub fn evaluate(&mut self, parsed: &Parsed, inner: bool, facts: &Facts) -> Evaluated {
        let packet = Packet { parsed, inner, facts };
        let mut evaluated = Evaluated::default();
        if self.exact(&packet, &mut evaluated) {
            self.wildcard(&packet, &mut evaluated);
        }
        if evaluated.verdict == u32::from(verdict::NONE) {
            evaluated.verdict = self.default_verdict.into();
        }
        evaluated.egress_devices |= evaluated.to;
        evaluated
    }

    /// Evaluates exact-match rules; returns whether wildcard rules come next.
    fn exact(&mut self, packet: &Packet<'_>, evaluated: &mut Evaluated) -> bool {
        for shape in &self.shapes {
            let Some(key) = packet.key(*shape) else { continue };
            let back = || packet.turned(key);
            let keys = if shape & shape::BOTH != 0 { vec![key, back()] } else { vec![key] };
            for key in keys {
                let Some(entry) = self.entries.of.get_mut(&key) else { continue };
                if expired(entry, packet.facts.now_ns) {
                    continue;
                }
                entry.packets += 1;
                entry.bytes += u64::from(packet.facts.wire_len);
                if entry.first_ns == 0 {
                    entry.first_ns = packet.facts.now_ns;
                }
                entry.last_ns = packet.facts.now_ns;
                let rule = Rule {
                    id: entry.id,
                    verdict: entry.verdict,
                    flags: entry.flags,
                    truncate: entry.truncate,
                    sample: entry.sample,
                    tag: entry.tag,
                    mirror: entry.mirror,
                    to: entry.to,
                    ..Rule::default()
                };
                return packet.apply(&rule, evaluated) && entry.flags & rule_flags::CONTINUE != 0;
            }
        }
        true
    }

    fn wildcard(&mut self, packet: &Packet<'_>, evaluated: &mut Evaluated) {
        for at in 0..self.rules.len() {
            let ModelRule { rule, clauses } = &self.rules[at];
            let hit = clauses.iter().any(|clause| {
                clause.iter().all(|condition| {
                    let value = model::value(condition.dim, packet.parsed, packet.inner, packet.facts);
                    condition.accepts(value)
                })
            });
            let known = |id: &u32| evaluated.hit.contains(id);
            let none = rule.flags & rule_flags::AFTER_NONE != 0;
            if !hit || rule.after[0] != 0 && rule.after.iter().any(known) == none {
                continue;
            }
            if evaluated.hits == MAX_HITS {
                evaluated.flags |= evaluated_flags::MORE;
                return;
            }
            evaluated.hits += 1;
            let rule = *rule;
            let counts = self.counts.entry(rule.slot).or_default();
            if counts.packets == 0 {
                counts.first_ns = packet.facts.now_ns;
            }
            counts.last_ns = packet.facts.now_ns;
            counts.packets += 1;
            counts.bytes += u64::from(packet.facts.wire_len);
            if !packet.apply(&rule, evaluated) {
                return;
            }
            if rule.flags & rule_flags::INSERT != 0 {
                self.insert(&rule, packet);
            }
            if rule.flags & rule_flags::CONTINUE == 0 {
                return;
            }
        }
    }

    fn insert(&mut self, rule: &Rule, packet: &Packet<'_>) {
        let Some(key) = packet.key(rule.insert_shape) else { return };
        let now = packet.facts.now_ns;
        let there = |key: &ExactKey| self.entries.of.get(key).is_some_and(|entry| !expired(entry, now));
        if there(&key) || rule.insert_shape & shape::BOTH != 0 && there(&packet.turned(key)) {
            return;
        }
        let made = ExactValue {
            made_ns: now,
            id: rule.id,
            verdict: rule.insert_verdict,
            flags: rule.insert_flags & (rule_flags::CONTINUE | rule_flags::TAG) | rule_flags::MADE,
            tag: rule.tag,
            idle_s: rule.insert_idle_s,
            hard_s: rule.insert_hard_s,
            ..ExactValue::default()
        };
        let counts = self.counts.entry(rule.slot).or_default();
        match self.entries.insert(&key, &made) {
            Inserted::Yes => counts.inserted += 1,
            Inserted::Full => counts.refused += 1,
            Inserted::Late => unreachable!("there is nobody else"),
        }
    }
}

fn expired(entry: &ExactValue, now: u64) -> bool {
    let over = |since: u64, seconds: u32| {
        seconds != 0 && now > since && now - since >= u64::from(seconds) * 1_000_000_000
    };
    over(entry.made_ns.max(entry.last_ns), entry.idle_s) || over(entry.made_ns, entry.hard_s)
}

impl Packet<'_> {
    /// The key of the packet in the other direction, in the same shape.
    fn turned(&self, key: ExactKey) -> ExactKey {
        let ip = model::chosen(self.parsed, self.inner);
        let asks = |bits: u32| key.shape & bits != 0;
        ExactKey {
            src: if asks(shape::SRC) { ip.dst } else { [0; 16] },
            dst: if asks(shape::DST) { ip.src } else { [0; 16] },
            src_port: if asks(shape::SRC_PORT) { ip.dst_port } else { 0 },
            dst_port: if asks(shape::DST_PORT) { ip.src_port } else { 0 },
            ..key
        }
    }

    fn key(&self, shape: u32) -> Option<ExactKey> {
        let ip = model::chosen(self.parsed, self.inner);
        let asks = |bits: u32| shape & bits != 0;
        let ports = shape::SRC_PORT | shape::DST_PORT;
        let addresses = shape::SRC | shape::DST;
        let is_ip = ip.l3 == l3::IPV4 || ip.l3 == l3::IPV6;
        if asks(addresses | ports | shape::PROTO) && !is_ip
            || asks(ports) && ip.flags & ip_flags::LATER != 0
            || asks(shape::MPLS) && self.parsed.flags & flags::MPLS == 0
            || asks(shape::TUNNEL) && self.parsed.flags & flags::TUNNEL == 0
        {
            return None;
        }
        Some(ExactKey {
            src: if asks(shape::SRC) { ip.src } else { [0; 16] },
            dst: if asks(shape::DST) { ip.dst } else { [0; 16] },
            src_port: if asks(shape::SRC_PORT) { ip.src_port } else { 0 },
            dst_port: if asks(shape::DST_PORT) { ip.dst_port } else { 0 },
            vlan: if asks(shape::VLAN) { model::vlan(self.parsed) } else { 0 },
            proto: if asks(shape::PROTO) { ip.proto } else { 0 },
            l3: if asks(addresses) { ip.l3 } else { 0 },
            mpls: if asks(shape::MPLS) { self.parsed.mpls_label } else { 0 },
            tunnel: if asks(shape::TUNNEL) { self.parsed.tunnel_id } else { 0 },
            shape,
        })
    }

    /// Applies the rule if sampling selects the packet; returns whether it does.
    fn apply(&self, rule: &Rule, evaluated: &mut Evaluated) -> bool {
        evaluated.add_hit(rule.id);
        if !self.is_chosen(rule) {
            evaluated.verdict = verdict::DROP.into();
            evaluated.to = 0;
            evaluated.rule_id = rule.id;
            return false;
        }
        if rule.truncate != 0 {
            evaluated.truncate =
                if evaluated.truncate == 0 { rule.truncate } else { evaluated.truncate.min(rule.truncate) };
        }
        if rule.flags & rule_flags::TAG != 0 {
            evaluated.tag = rule.tag;
            evaluated.flags |= evaluated_flags::TAGGED;
        }
        evaluated.egress_devices |= u32::from(rule.mirror);
        if rule.verdict != verdict::NONE {
            evaluated.verdict = rule.verdict.into();
            evaluated.to = rule.to.into();
            evaluated.rule_id = rule.id;
        } else if evaluated.rule_id == 0 {
            evaluated.rule_id = rule.id;
        }
        true
    }

    fn is_chosen(&self, rule: &Rule) -> bool {
        let ip = model::chosen(self.parsed, self.inner);
        let mix = |value: u64| {
            let value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value ^ value >> 32
        };
        if rule.sample <= 1 {
            return true;
        }
        let hash = native::packet_hash(self.parsed, self.inner, self.facts.seed);
        let mut value = mix(0x94d0_49bb_1331_11eb ^ u64::from(hash));
        if rule.flags & rule_flags::SAMPLE_PACKET != 0 {
            let tcp = u64::from(ip.tcp_seq) << 32 | u64::from(ip.tcp_ack);
            let rest = u64::from(ip.frag_id) << 32 | u64::from(ip.frag_off) << 16 | u64::from(ip.ident);
            for part in [tcp, rest, self.facts.wire_len.into()] {
                value = mix(value.wrapping_add(part));
            }
        }
        value = (value ^ value >> 32).wrapping_mul(0x94d0_49bb_1331_11eb);
        value = (value ^ value >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((value >> 32) * u64::from(rule.sample)) >> 32 == 0
    }
}
