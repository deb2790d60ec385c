//! Compiled sets, judged by the code of the kernel, against the reference: the same verdict, rule, tag and counts for
//! every packet.

use std::collections::HashMap;

use wirelane_datapath::judge::{Inserted, PreciseTable, judge};
use wirelane_datapath::layout::Parsed;
use wirelane_datapath::native;
use wirelane_datapath::rules::{
    Counts, Facts, FlatSet, Judged, LiveCounts, Precise, PreciseKey, judged_flags, rule_flags, verdict,
};

use super::generator::{self, Values};
use crate::linktype;
use crate::rules::{Reference, Room, RuleSet};
use crate::testing::Dice;
use crate::testing::packets::captures;

/// The time of the first packet.
const START_NS: u64 = 1_000_000_000_000;

/// Precise rules as any hash table has them.
#[derive(Default)]
struct Table(HashMap<PreciseKey, Precise>);

impl PreciseTable for Table {
    fn find(&mut self, key: &PreciseKey) -> Option<&mut Precise> {
        self.0.get_mut(key)
    }

    fn insert(&mut self, key: &PreciseKey, value: &Precise) -> Inserted {
        self.0.insert(*key, *value);
        Inserted::Yes
    }
}

/// A set twice: compiled, and as it is.
struct Both<'s> {
    set: &'s RuleSet,
    device: &'static str,
    flat: FlatSet,
    counts: Vec<LiveCounts>,
    precise: Table,
    reference: Reference<'s>,
}

/// What was decided of how many packets.
#[derive(Debug, Default)]
struct Said {
    verdicts: [u64; 5],
    sent: u64,
    hits: u64,
    precise: u64,
    made: u64,
    tagged: u64,
    truncated: u64,
    more: u64,
    by_default: u64,
}

impl<'s> Both<'s> {
    fn new(set: &'s RuleSet, device: &'static str) -> Both<'s> {
        let flat =
            set.compile(device, &[], Room::UNLIMITED).unwrap_or_else(|error| panic!("{error}: {set:#?}"));
        let counts = set.rules.iter().map(|_| LiveCounts::default()).collect();
        let precise = Table(set.precise.iter().map(|rule| rule.entry(START_NS, &set.exits())).collect());
        assert_eq!(precise.0.len(), set.precise.len(), "each precise rule has a key of its own");
        Both { set, device, flat, counts, precise, reference: Reference::new(set, START_NS) }
    }

    /// Judges a packet in both ways.
    fn judge(&mut self, parsed: &Parsed, inner: bool, facts: &Facts, said: &mut Said) {
        let ours = judge(&self.flat, &self.counts, &mut self.precise, parsed, inner, facts);
        let expected = self.reference.judge(parsed, inner, facts, self.device);
        let of = |judged: Judged| {
            // Without the flag, the tag says nothing.
            let tagged = judged.flags & judged_flags::TAGGED != 0;
            Judged { tag: if tagged { judged.tag } else { 0 }, ..judged }
        };
        assert_eq!(
            of(ours),
            of(expected),
            "on {:?}, inner {inner}, {facts:?}: {parsed:#?} and {:#?}",
            self.device,
            self.set
        );
        said.verdicts[ours.verdict as usize] += 1;
        said.hits += u64::from(ours.hits);
        said.tagged += u64::from(ours.flags & judged_flags::TAGGED != 0);
        said.more += u64::from(ours.flags & judged_flags::MORE != 0);
        said.truncated += u64::from(ours.truncate > 0);
        said.sent += u64::from(ours.exits & !ours.to > 0);
        said.by_default += u64::from(ours.rule_id == 0);
    }

    /// Both have counted the same, and made the same rules.
    fn same_counts(&self, said: &mut Said) {
        let ours: Vec<Counts> = self.counts.iter().map(LiveCounts::read).collect();
        assert_eq!(ours, self.reference.counts(), "{:#?}", self.set);
        let exits = self.set.exits();
        let expected: HashMap<PreciseKey, Precise> = self
            .reference
            .precise()
            .iter()
            .map(|entry| {
                let (key, mut value) = entry.rule.entry(entry.made_ns, &exits);
                if entry.made {
                    value.flags |= rule_flags::MADE;
                    said.made += 1;
                }
                let counts = entry.counts;
                said.precise += counts.packets;
                (value.packets, value.bytes) = (counts.packets, counts.bytes);
                (value.first_ns, value.last_ns) = (counts.first_ns, counts.last_ns);
                (key, value)
            })
            .collect();
        assert_eq!(self.precise.0, expected, "{:#?}", self.set);
    }
}

/// Everything that can be decided was, often.
fn all_was_said(said: &Said) {
    println!("{said:?}");
    let Said { verdicts, hits, precise, made, tagged, truncated, by_default, sent, .. } = said;
    let [_, pass, drop, absorb, redirect] = verdicts;
    assert_eq!(verdicts[usize::from(verdict::NONE)], 0);
    for often in [pass, drop, absorb, redirect, sent, hits, precise, made, tagged, truncated, by_default] {
        assert!(*often > 500, "{said:?}");
    }
}

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
            // Sometimes none passes, sometimes most of the seconds in which rules end.
            now_ns += dice.next() % 700_000_000;
            let parsed = generator::parsed(&mut dice, &values);
            let facts = generator::facts(&mut dice, &values, now_ns);
            both.judge(&parsed, dice.once_in(2), &facts, &mut said);
        }
        both.same_counts(&mut said);
    }
    all_was_said(&said);
}

#[test]
fn random_sets_and_the_packets_of_the_corpus() {
    let Some(captures) = captures("random_sets_and_the_packets_of_the_corpus", 60) else { return };
    let packets: Vec<(Parsed, u32)> = captures
        .iter()
        .flat_map(|capture| &capture.packets)
        .map(|packet| {
            let link = linktype::from_number(packet.link);
            (native::parse(link, &packet.data, true), packet.wire_len)
        })
        .collect();
    let mut said = Said::default();
    let mut dice = Dice(6);
    for _ in 0..80 {
        // Values of some packets, so that these are met.
        let mut values = Values::none();
        values.tcp_flags.push(0x10);
        while values.addresses.len() < 40 {
            let (parsed, wire_len) = dice.pick(&packets);
            values.take(parsed, *wire_len);
        }
        let rules = dice.below(60);
        let set = generator::set(&mut dice, &values, rules);
        let mut both = Both::new(&set, "eth0");
        let mut now_ns = START_NS;
        for _ in 0..400 {
            let (parsed, wire_len) = dice.pick(&packets);
            now_ns += dice.next() % 500_000_000;
            let facts = Facts { wire_len: *wire_len, ..generator::facts(&mut dice, &values, now_ns) };
            both.judge(parsed, dice.once_in(2), &facts, &mut said);
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
    both.judge(&Parsed::default(), false, &Facts { wire_len: 60, ..Facts::default() }, &mut said);
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
    // One clause more than there is room for: a port on either side is two.
    assert!(RuleSet::parse(&text).is_err());
    let set = super::set(&text.replace("\nport", "\ndst-port"));
    let mut both = Both::new(&set, "eth0");
    let mut said = Said::default();
    let mut parsed = Parsed::default();
    parsed.outer.l3 = wirelane_datapath::layout::l3::IPV4;
    parsed.outer.flags = wirelane_datapath::layout::ip_flags::PORTS;
    parsed.outer.dst_port = 53u16.to_be();
    let facts = Facts { wire_len: 60, ..Facts::default() };
    for (address, expected) in [([10, 15, 255, 9], 4095), ([10, 0, 1, 9], 1), ([10, 16, 0, 9], u32::MAX)] {
        parsed.outer.src[..4].copy_from_slice(&address);
        both.judge(&parsed, false, &facts, &mut said);
        let judged = judge(&both.flat, &both.counts, &mut Table::default(), &parsed, false, &facts);
        assert_eq!((judged.rule_id, judged.hits), (expected, 1));
    }
}
