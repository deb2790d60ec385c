//! Rules: comparison of the kernel's compilation of the evaluator, the native one, and a plain walk over the rules.

mod cost;
mod dice;
mod hostile;
mod model;
mod probe;
mod reference;

use wirelane_bpf::evaluate::{Packet, evaluate};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::native;
use wirelane_bpf::rules::{
    Counts, Evaluated, Facts, FlatSet, LiveCounts, MAX_HITS, MAX_RULES, Rule, dim, evaluated_flags,
    rule_flags, verdict,
};

use self::dice::{Dice, LINK, SHAPES};
use self::model::{Condition, ModelRule, flatten};
use self::probe::Probe;
use self::reference::{Entries, Reference};
use crate::captures::{captures, corpus, packets};
use crate::probe::{LONGEST, SHORTEST};

/// Capacities of the probe's tables.
const ROOM: [usize; 3] = [8192, 8192, 40];

/// One rule set in three implementations.
struct Trio<'a> {
    flat: FlatSet,
    reference: Reference,
    counts: Vec<LiveCounts>,
    entries: Entries,
    probe: Option<&'a Probe>,
}

/// Number of packets with the same result in all three, by verdict.
#[derive(Default, Debug)]
struct Said {
    verdicts: [u64; 6],
    hits: u64,
    more: u64,
    tagged: u64,
    truncated: u64,
    in_kernel: u64,
}

impl<'a> Trio<'a> {
    fn new(rules: Vec<ModelRule>, default_verdict: u8, shapes: &[u32], probe: Option<&'a Probe>) -> Trio<'a> {
        let flat = flatten(&rules, default_verdict, shapes);
        assert!(
            flat.nodes.len() <= ROOM[0] && flat.classes.len() <= ROOM[1],
            "a larger set than there is room for"
        );
        if let Some(probe) = probe {
            probe.use_set(&flat);
        }
        let entries = Entries { room: ROOM[2], ..Entries::default() };
        let counts = (0..rules.len()).map(|_| LiveCounts::default()).collect();
        let reference = Reference {
            rules,
            default_verdict,
            shapes: shapes.to_vec(),
            counts: Default::default(),
            entries: entries.clone(),
        };
        Trio { flat, reference, counts, entries, probe }
    }

    fn evaluate(
        &mut self,
        link: LinkType,
        data: &[u8],
        inner: bool,
        facts: &Facts,
        said: &mut Said,
    ) -> Evaluated {
        let parsed = native::parse(link, data, true);
        let context = || format!("inner {inner}, {facts:?}, {data:02x?}, {parsed:?}");
        let expected = self.reference.evaluate(&parsed, inner, facts);
        let evaluated = evaluate(
            &self.flat,
            &self.counts,
            &mut self.entries,
            Packet { parsed: &parsed, data, inner },
            facts,
        );
        assert_eq!(evaluated, expected, "native left, reference right: {}", context());
        if let Some(probe) = self.probe {
            let kernel = probe.evaluate(link, data, inner, facts);
            assert_eq!(kernel, expected, "kernel left, reference right: {}", context());
            said.in_kernel += 1;
        }
        said.verdicts[expected.verdict as usize] += 1;
        said.hits += u64::from(expected.hits);
        said.more += u64::from(expected.flags & evaluated_flags::MORE != 0);
        said.tagged += u64::from(expected.flags & evaluated_flags::TAGGED != 0);
        said.truncated += u64::from(expected.truncate != 0);
        expected
    }

    /// Compares the counters of rules and the exact-match rules.
    fn compare_counts(&self) {
        assert_eq!(self.entries.of, self.reference.entries.of, "native left, reference right");
        for slot in 0..self.counts.len() as u32 {
            let expected = self.reference.counts.get(&slot).copied().unwrap_or_default();
            assert_eq!(self.counts[slot as usize].read(), expected, "slot {slot}, native left");
            if let Some(probe) = self.probe {
                assert_eq!(probe.counts(slot), expected, "slot {slot}, kernel left");
            }
        }
        if let Some(probe) = self.probe {
            let mut kernel = probe.entries();
            kernel.sort_by_key(|(key, _)| *key);
            let expected: Vec<_> =
                self.reference.entries.of.iter().map(|(key, entry)| (*key, *entry)).collect();
            assert_eq!(kernel, expected, "kernel left, reference right");
        }
    }
}

#[test]
fn kernel_native_and_reference_agree_on_wildcard_rules() {
    let probe = Probe::load("kernel side of wildcard rules", ROOM);
    let (mut dice, mut said) = (Dice(1), Said::default());
    for round in 0..150 {
        let count = *dice.pick(&[1, 2, 5, 20, 60]);
        let rules = dice::rules(&mut dice, count, &[]);
        let default = *dice.pick(&[verdict::PASS, verdict::DROP]);
        let mut trio = Trio::new(rules, default, &[], probe.as_ref());
        let mut now = round;
        for _ in 0..80 {
            let packet = dice::packet(&mut dice);
            let facts = dice::facts(&mut dice, &mut now, 1_000_000);
            let inner = dice.once_in(2);
            trio.evaluate(LINK, &packet, inner, &facts, &mut said);
        }
        trio.compare_counts();
    }
    println!("wildcard rules: {said:?}");
    assert!(said.verdicts[1..].iter().all(|count| *count > 500) && said.tagged > 500 && said.truncated > 500);
}

#[test]
fn kernel_native_and_reference_agree_on_exact_rules() {
    let probe = Probe::load("kernel side of exact-match rules", ROOM);
    let (mut dice, mut said) = (Dice(2), Said::default());
    let (mut expired, mut refused, mut made) = (0, 0, 0);
    for round in 0..150 {
        let count = *dice.pick(&[0, 1, 5, 20]);
        let shapes: Vec<u32> = SHAPES.into_iter().filter(|_| dice.once_in(2)).collect();
        let rules = dice::rules(&mut dice, count, &shapes);
        let mut trio = Trio::new(rules, verdict::PASS, &shapes, probe.as_ref());
        let mut now = 1_000_000_000_000 + round;
        for _ in 0..120 {
            if !shapes.is_empty() && dice.once_in(3) && trio.entries.of.len() < ROOM[2] {
                let shape = *dice.pick(&shapes);
                let (key, entry) = (dice::keyed(&mut dice, shape), dice::entry(&mut dice, now));
                trio.entries.of.insert(key, entry);
                trio.reference.entries.of.insert(key, entry);
                if let Some(probe) = trio.probe {
                    probe.add(&key, &entry);
                }
            }
            let packet = dice::packet(&mut dice);
            let facts = dice::facts(&mut dice, &mut now, 200_000_000);
            let inner = dice.once_in(2);
            trio.evaluate(LINK, &packet, inner, &facts, &mut said);
        }
        trio.compare_counts();
        expired += trio
            .entries
            .of
            .values()
            .filter(|entry| entry.idle_s != 0 && now > entry.last_ns.max(entry.made_ns) + 3_000_000_000)
            .count();
        refused += trio.reference.counts.values().map(|counts| counts.refused).sum::<u64>();
        made += trio.reference.counts.values().map(|counts| counts.inserted).sum::<u64>();
    }
    println!(
        "exact-match rules: {said:?}, {made} made by rules, {refused} refused, {expired} expired at the end"
    );
    assert!(made > 200 && refused > 50 && expired > 50);
}

#[test]
fn kernel_native_and_reference_agree_on_the_corpus() {
    let what = "rules on the corpus";
    let Some(corpus) = corpus(what) else { return };
    let Some(probe) = Probe::load(what, ROOM) else { return };
    let (mut dice, mut said) = (Dice(3), Said::default());
    for capture in captures(&corpus) {
        let rules = dice::rules(&mut dice, 40, &SHAPES);
        let mut trio = Trio::new(rules, verdict::PASS, &SHAPES, Some(&probe));
        let mut now = 1_000_000_000_000;
        for packet in packets(&capture.path).iter().take(400) {
            let mut facts = dice::facts(&mut dice, &mut now, 10_000_000);
            facts.wire_len = packet.wire_len;
            if (SHORTEST..=LONGEST).contains(&packet.data.len()) && packet.link.is_of_devices() {
                trio.evaluate(packet.link, &packet.data, true, &facts, &mut said);
            }
        }
        trio.compare_counts();
    }
    println!("{what}: {said:?}");
    assert!(said.in_kernel > 5_000);
}

/// Rules that accept everything, with and without a condition, all with the flag `continue`.
fn going_on(count: usize) -> Vec<ModelRule> {
    (0..count)
        .map(|at| {
            let rule = Rule {
                id: at as u32 + 1,
                slot: at as u32,
                flags: rule_flags::CONTINUE | rule_flags::TAG,
                tag: at as u32,
                ..Rule::default()
            };
            let any_length = Condition { dim: dim::LENGTH, ranges: vec![(4, 0..=65535)], negated: false };
            ModelRule { rule, clauses: vec![if at % 2 == 0 { vec![any_length] } else { vec![] }] }
        })
        .collect()
}

#[test]
fn hits_beyond_the_limit_are_said_to_be_there() {
    let probe = Probe::load("kernel side of the limit of hits", ROOM);
    let mut said = Said::default();
    let facts = Facts { now_ns: 5, wire_len: 60, ..Facts::default() };
    let packet = dice::packet(&mut Dice(4));
    for (rules, more) in [(15, false), (16, false), (17, true), (200, true)] {
        let mut trio = Trio::new(going_on(rules), verdict::DROP, &[], probe.as_ref());
        let evaluated = trio.evaluate(LINK, &packet, false, &facts, &mut said);
        let last = (rules as u32).min(MAX_HITS);
        assert_eq!(
            (evaluated.verdict, evaluated.rule_id, evaluated.tag),
            (verdict::DROP.into(), 1, last - 1)
        );
        assert_eq!(
            (evaluated.hits, evaluated.flags & evaluated_flags::MORE != 0),
            (last, more),
            "{rules} rules"
        );
        trio.compare_counts();
    }
}

#[test]
fn the_largest_set_works_to_its_last_rule() {
    let probe = Probe::load("kernel side of the largest set", ROOM);
    let mut said = Said::default();
    let rules = (0..MAX_RULES)
        .map(|at| ModelRule {
            rule: Rule { id: at as u32 + 1, slot: at as u32, verdict: verdict::ABSORB, ..Rule::default() },
            clauses: vec![vec![Condition {
                dim: dim::DST_PORT,
                ranges: vec![(4, 2 * at as u128..=2 * at as u128)],
                negated: false,
            }]],
        })
        .collect();
    let mut trio = Trio::new(rules, verdict::PASS, &[], probe.as_ref());
    for port in [0u16, 2, 126, 128, 4094, 8188, 8190, 8191, 8192, 3] {
        let packet =
            crate::build::ethernet(0x0800, &crate::build::ipv4(17, &crate::build::udp(1, port, b"")));
        let facts = Facts { now_ns: u64::from(port) + 1, wire_len: 60, ..Facts::default() };
        let evaluated = trio.evaluate(LINK, &packet, false, &facts, &mut said);
        let rule = if port % 2 == 0 && port < 8192 { u32::from(port / 2) + 1 } else { 0 };
        assert_eq!(evaluated.rule_id, rule, "port {port}");
    }
    trio.compare_counts();
    let last = trio.counts[MAX_RULES - 1].read();
    assert_eq!(last, Counts { packets: 1, bytes: 60, first_ns: 8191, last_ns: 8191, ..Counts::default() });
}

#[test]
fn sampling_takes_its_share_and_whole_flows() {
    let mut dice = Dice(6);
    for (by_packet, sample) in [(false, 4), (true, 4), (false, 100), (true, 100)] {
        let flags = if by_packet { rule_flags::SAMPLE_PACKET } else { 0 };
        let rule = Rule { id: 1, verdict: verdict::PASS, sample, flags, ..Rule::default() };
        let rules = vec![ModelRule { rule, clauses: vec![vec![]] }];
        let mut trio = Trio::new(rules, verdict::DROP, &[], None);
        let (mut passed, flows, each) = (0, 2000, 10);
        for flow in 0..flows {
            let mut of_flow = 0;
            for _ in 0..each {
                let mut udp = crate::build::udp(flow, 53, b"");
                udp[6..8].copy_from_slice(&(dice.next() as u16).to_be_bytes());
                let packet = crate::build::ethernet(0x0800, &crate::build::ipv4(17, &udp));
                let facts = Facts { now_ns: 1, wire_len: 60, ..Facts::default() };
                let evaluated = trio.evaluate(LINK, &packet, false, &facts, &mut Said::default());
                of_flow += u32::from(evaluated.verdict == u32::from(verdict::PASS));
            }
            assert!(by_packet || of_flow == 0 || of_flow == each, "a flow is taken whole or not");
            passed += of_flow;
        }
        let expected = f64::from(u32::from(flows) * each) / f64::from(sample);
        let share = f64::from(passed) / expected;
        println!("1 in {sample}, by packet {by_packet}: {passed} passed, {share:.2} of what is expected");
        assert!((0.6..1.4).contains(&share), "1 in {sample}, by packet {by_packet}: {passed}");
    }
}
