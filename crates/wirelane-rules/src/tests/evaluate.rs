//! Compiled sets, evaluated by the kernel's code, compared to the reference: the same verdict, rule, tag and counters
//! for every packet.

use std::collections::HashMap;

use wirelane_bpf::evaluate::{ExactTable, Inserted, Packet, evaluate};
use wirelane_bpf::layout::Parsed;
use wirelane_bpf::native;
use wirelane_bpf::rules::{
    Counts, Evaluated, ExactKey, ExactValue, Facts, FlatSet, LiveCounts, evaluated_flags, rule_flags, verdict,
};

use super::generator::{self, Values};
use crate::{Reference, Room, RuleSet};
use wirelane_bpf::linktype;
use wirelane_testing::Dice;
use wirelane_testing::packets::captures;

/// The time of the first packet.
pub(super) const START_NS: u64 = 1_000_000_000_000;

/// Exact-match rules in an ordinary hash table.
#[derive(Default)]
struct Table(HashMap<ExactKey, ExactValue>);

impl ExactTable for Table {
    fn find(&mut self, key: &ExactKey) -> Option<&mut ExactValue> {
        self.0.get_mut(key)
    }

    fn insert(&mut self, key: &ExactKey, value: &ExactValue) -> Inserted {
        self.0.insert(*key, *value);
        Inserted::Yes
    }
}

/// A set in two forms: compiled, and as the reference.
pub(super) struct Both<'s> {
    set: &'s RuleSet,
    device: &'static str,
    flat: FlatSet,
    counts: Vec<LiveCounts>,
    exact: Table,
    reference: Reference<'s>,
}

/// Number of packets by verdict and other results.
#[derive(Debug, Default)]
pub(super) struct Said {
    verdicts: [u64; 6],
    sent: u64,
    hits: u64,
    exact: u64,
    made: u64,
    tagged: u64,
    truncated: u64,
    more: u64,
    by_default: u64,
    searched: u64,
    found: u64,
    half: u64,
}

impl<'s> Both<'s> {
    pub(super) fn new(set: &'s RuleSet, device: &'static str) -> Both<'s> {
        let flat =
            set.compile(device, &[], Room::UNLIMITED).unwrap_or_else(|error| panic!("{error}: {set:#?}"));
        let counts = (0..flat.set.slots).map(|_| LiveCounts::default()).collect();
        let exact = Table(set.exact.iter().map(|rule| rule.entry(START_NS, &set.egress_devices())).collect());
        assert_eq!(exact.0.len(), set.exact.len(), "each exact-match rule has a key of its own");
        Both { set, device, flat, counts, exact, reference: Reference::new(set, START_NS) }
    }

    /// Packets that hit wildcard rules.
    pub(super) fn hits(&self) -> u64 {
        self.counts[..self.set.rules.len()].iter().map(|counts| counts.read().packets).sum()
    }

    /// Evaluates a packet with both implementations.
    pub(super) fn evaluate(&mut self, packet: Packet<'_>, facts: &Facts, said: &mut Said) -> Evaluated {
        let ours = evaluate(&self.flat, &self.counts, &mut self.exact, packet, facts);
        let expected = self.reference.evaluate(packet, facts, self.device);
        let of = |evaluated: Evaluated| {
            // The tag is only valid with the flag.
            let tagged = evaluated.flags & evaluated_flags::TAGGED != 0;
            Evaluated { tag: if tagged { evaluated.tag } else { 0 }, ..evaluated }
        };
        assert_eq!(
            of(ours),
            of(expected),
            "on {:?}, {facts:?}: {packet:#?} and {:#?}",
            self.device,
            self.set
        );
        said.verdicts[ours.verdict as usize] += 1;
        said.hits += u64::from(ours.hits);
        said.tagged += u64::from(ours.flags & evaluated_flags::TAGGED != 0);
        said.more += u64::from(ours.flags & evaluated_flags::MORE != 0);
        said.truncated += u64::from(ours.truncate > 0);
        said.sent += u64::from(ours.egress_devices & !ours.to > 0);
        said.by_default += u64::from(ours.rule_id == 0);
        said.found += u64::from(ours.pattern[0] != 0);
        said.half += u64::from(ours.flags & evaluated_flags::HALF != 0);
        ours
    }

    /// Both implementations have counted the same, and inserted the same rules.
    fn same_counts(&self, said: &mut Said) {
        let mut ours: Vec<Counts> = self.counts.iter().map(LiveCounts::read).collect();
        let searched = ours.drain(self.set.rules.len()..).next().unwrap_or_default();
        assert_eq!(ours, self.reference.counts(), "{:#?}", self.set);
        assert_eq!(searched, self.reference.searched(), "{:#?}", self.set);
        said.searched += searched.packets;
        let egress_devices = self.set.egress_devices();
        let expected: HashMap<ExactKey, ExactValue> = self
            .reference
            .exact()
            .iter()
            .map(|entry| {
                let (key, mut value) = entry.rule.entry(entry.made_ns, &egress_devices);
                if entry.made {
                    value.flags |= rule_flags::MADE;
                    said.made += 1;
                }
                let counts = entry.counts;
                said.exact += counts.packets;
                (value.packets, value.bytes) = (counts.packets, counts.bytes);
                (value.first_ns, value.last_ns) = (counts.first_ns, counts.last_ns);
                (key, value)
            })
            .collect();
        assert_eq!(self.exact.0, expected, "{:#?}", self.set);
    }
}

/// Every possible result occurred, and often.
fn all_was_said(said: &Said) {
    println!("{said:?}");
    let Said { verdicts, hits, exact, made, tagged, truncated, by_default, searched, found, sent, .. } = said;
    let [_, pass, drop, absorb, digest, redirect] = verdicts;
    assert_eq!(verdicts[usize::from(verdict::NONE)], 0);
    let kinds = [pass, drop, absorb, digest, redirect, hits, exact, made];
    for often in kinds.into_iter().chain([tagged, truncated, by_default, searched, found, sent]) {
        assert!(*often > 500, "{said:?}");
    }
}

/// Battery: I8
#[test]
fn random_sets_and_packets() {
    let mut said = Said::default();
    let mut dice = Dice(5);
    for turn in 0..240 {
        let values = Values::few(&mut dice);
        let rules = if turn % 40 == 0 { 300 } else { dice.below(40) };
        let set = generator::set(&mut dice, &values, rules);
        let mut both = Both::new(&set, dice.one(&["eth0", "eth1", "eth2", ""]));
        let mut now_ns = START_NS;
        for _ in 0..150 {
            // Sometimes no time passes, sometimes most of the seconds after which rules expire.
            now_ns += dice.next() % 700_000_000;
            let parsed = generator::parsed(&mut dice, &values);
            let facts = generator::facts(&mut dice, &values, now_ns);
            let data = generator::payload(&mut dice, &values);
            let packet = Packet { parsed: &parsed, data: &data, inner: dice.once_in(2) };
            both.evaluate(packet, &facts, &mut said);
        }
        both.same_counts(&mut said);
    }
    all_was_said(&said);
    assert!(said.half > 500, "{said:?}");
}

/// Battery: I8
#[test]
fn random_sets_and_the_packets_of_the_corpus() {
    let Some(captures) = captures("random_sets_and_the_packets_of_the_corpus", 60) else { return };
    let packets: Vec<(Parsed, &[u8], u32)> = captures
        .iter()
        .flat_map(|capture| &capture.packets)
        .map(|packet| {
            let link = linktype::from_number(packet.link);
            (native::parse(link, &packet.data, true), &packet.data[..], packet.wire_len)
        })
        .filter(|(_, data, _)| !data.is_empty())
        .collect();
    let mut said = Said::default();
    let mut dice = Dice(6);
    for _ in 0..80 {
        // Values of some packets, so that rules match them.
        let mut values = Values::none();
        values.tcp_flags.push(0x10);
        while values.addresses.len() < 40 {
            let (parsed, data, wire_len) = dice.pick(&packets);
            values.take(parsed, *wire_len);
            values.take_words(&mut dice, data);
        }
        let rules = dice.below(60);
        let set = generator::set(&mut dice, &values, rules);
        let mut both = Both::new(&set, "eth0");
        let mut now_ns = START_NS;
        for _ in 0..400 {
            let (parsed, data, wire_len) = dice.pick(&packets);
            now_ns += dice.next() % 500_000_000;
            let facts = Facts { wire_len: *wire_len, ..generator::facts(&mut dice, &values, now_ns) };
            both.evaluate(Packet { parsed, data, inner: dice.once_in(2) }, &facts, &mut said);
        }
        both.same_counts(&mut said);
    }
    all_was_said(&said);
}

#[test]
fn more_hits_than_are_looked_at() {
    let text: String =
        (1..=20).map(|id| format!("[[rule]]\nid = {id}\naction = \"none\"\ntag = {id}\n")).collect();
    let set = super::set(&text);
    let mut both = Both::new(&set, "eth0");
    let mut said = Said::default();
    let packet = Packet { parsed: &Parsed::default(), data: &[], inner: false };
    both.evaluate(packet, &Facts { wire_len: 60, ..Facts::default() }, &mut said);
    both.same_counts(&mut said);
    assert_eq!((said.more, said.hits), (1, 16));
    let counted: Vec<u64> = both.reference.counts().iter().map(|counts| counts.packets).collect();
    assert_eq!(counted, [[1; 16].as_slice(), &[0; 4]].concat());
}

#[test]
fn the_last_of_4096_rules_is_found_and_those_between_are_not_asked() {
    let mut text: String = (1..4096)
        .map(|id| {
            format!("[[rule]]\nid = {id}\nsrc = \"10.{}.{}.0/24\"\naction = \"drop\"\n", id >> 8, id & 0xff)
        })
        .collect();
    text.push_str("[[rule]]\nid = 4294967295\nport = 53\naction = \"count\"\n");
    // One clause too many: a port on either side makes two clauses.
    assert!(RuleSet::parse(&text).is_err());
    let set = super::set(&text.replace("\nport", "\ndst-port"));
    let mut both = Both::new(&set, "eth0");
    let mut said = Said::default();
    let mut parsed = Parsed::default();
    parsed.outer.l3 = wirelane_bpf::layout::l3::IPV4;
    parsed.outer.flags = wirelane_bpf::layout::ip_flags::PORTS;
    parsed.outer.dst_port = 53u16.to_be();
    let facts = Facts { wire_len: 60, ..Facts::default() };
    for (address, expected) in [([10, 15, 255, 9], 4095), ([10, 0, 1, 9], 1), ([10, 16, 0, 9], u32::MAX)] {
        parsed.outer.src[..4].copy_from_slice(&address);
        let packet = Packet { parsed: &parsed, data: &[], inner: false };
        both.evaluate(packet, &facts, &mut said);
        let evaluated = evaluate(&both.flat, &both.counts, &mut Table::default(), packet, &facts);
        assert_eq!((evaluated.rule_id, evaluated.hits), (expected, 1));
    }
}
