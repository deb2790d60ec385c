//! Wildcard rules for both ways.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, dim};

use super::evaluate::{Both, START_NS, Said};
use super::generator::{self, Values};
use super::mistakes;
use crate::compile::clauses;
use crate::{Action, Condition, Reference, Room, Rule, RuleSet, Test};
use wirelane_testing::Dice;

/// A call's media: RTP and RTCP, in both directions.
const CALL: &str = r#"
    [[rule]]
    id = 1
    protocol = "udp"
    src = "192.0.2.1"
    src-port = "6000-6001"
    dst = "198.51.100.7"
    dst-port = "7000-7001"
    both-ways = true
    action = "count"
"#;

/// RTP in one direction.
const ONE_OF_FOUR: &str = r#"
    [[rule]]
    id = 1
    protocol = "udp"
    src = "192.0.2.1"
    src-port = 6000
    dst = "198.51.100.7"
    dst-port = 7000
    action = "count"
"#;

/// An IPv4 packet of UDP.
fn datagram(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend(from.0.into_iter().chain(to.0));
    packet.extend([from.1, to.1, 8, 0].iter().flat_map(|number: &u16| number.to_be_bytes()));
    packet
}

#[test]
fn a_call_takes_one_rule_instead_of_four() {
    let one = super::set(CALL);
    let mut text = String::new();
    for (id, ports) in [(1, (6000, 7000)), (2, (6001, 7001))] {
        let forth = ONE_OF_FOUR.replace("6000", &ports.0.to_string()).replace("7000", &ports.1.to_string());
        let back = forth
            .replace("192.0.2.1", "x")
            .replace("198.51.100.7", "192.0.2.1")
            .replace('x', "198.51.100.7")
            .replace(&format!("src-port = {}", ports.0), &format!("src-port = {}", ports.1))
            .replace(&format!("dst-port = {}", ports.1), &format!("dst-port = {}", ports.0));
        text += &forth.replace("id = 1", &format!("id = {}", id * 2));
        text += &back.replace("id = 1", &format!("id = {}", id * 2 + 1));
    }
    let four = super::set(&text);
    assert_eq!((one.rules.len(), four.rules.len()), (1, 4));
    let flat = one.compile("eth0", &[], Room::UNLIMITED).unwrap();
    assert_eq!(flat.set.clauses, 2);
    let mut said = Said::default();
    let (mut one, mut four) = (Both::new(&one, "eth0"), Both::new(&four, "eth0"));
    let ends = [[192, 0, 2, 1], [198, 51, 100, 7], [192, 0, 2, 2]];
    let ports = [5999, 6000, 6001, 6002, 7000, 7001];
    let all = ends.into_iter().flat_map(|address| ports.map(|port| (address, port)));
    for (from, to) in all.clone().flat_map(|from| all.clone().map(move |to| (from, to))) {
        // RTP to a port for RTCP is matched by the one rule only.
        if matches!((from.1, to.1), (6000, 7001) | (6001, 7000) | (7000, 6001) | (7001, 6000)) {
            continue;
        }
        let data = datagram(from, to);
        let parsed = native::parse(LinkType::Raw, &data, true);
        let packet = Packet { parsed: &parsed, data: &data, inner: false };
        let facts = Facts { now_ns: START_NS, wire_len: 28, ..Facts::default() };
        let verdicts = [&mut one, &mut four].map(|set| set.evaluate(packet, &facts, &mut said).verdict);
        assert_eq!(verdicts[0], verdicts[1], "{from:?} {to:?}");
    }
    assert_eq!((one.hits(), four.hits()), (4, 4));
}

/// One rule for both ways hits what the rule and its mirror image hit, whatever conditions they have.
#[test]
fn a_rule_for_both_ways_is_the_rule_and_its_mirror_image() {
    let (mut dice, mut hit, mut only_back) = (Dice(77), 0, 0);
    for _ in 0..400 {
        let values = Values::few(&mut dice);
        let sets = generator::sets(&mut dice, &values);
        let patterns = generator::patterns(&mut dice, &values);
        let conditions: Vec<Condition> = (0..1 + dice.below(3))
            .map(|_| Condition { negated: dice.once_in(4), test: generator::test(&mut dice, &values) })
            .collect();
        let rule = |id: u32, conditions: Vec<Condition>, both_ways: bool| {
            let rule = Rule { conditions, both_ways, ..Rule::new(id, Action::Count) };
            let (sets, patterns) = (sets.clone(), patterns.clone());
            RuleSet { rules: vec![rule], sets, patterns, ..RuleSet::default() }
        };
        let mirrored: Vec<Condition> = conditions.iter().cloned().map(mirrored).collect();
        let (both, forth, back) =
            (rule(1, conditions.clone(), true), rule(1, conditions, false), rule(1, mirrored, false));
        if both.check().is_err() {
            continue;
        }
        let mut said = Said::default();
        let mut compiled = Both::new(&both, "eth0");
        for _ in 0..40 {
            let parsed = generator::parsed(&mut dice, &values);
            let facts = generator::facts(&mut dice, &values, START_NS);
            let data = generator::payload(&mut dice, &values);
            let packet = Packet { parsed: &parsed, data: &data, inner: dice.once_in(2) };
            let hits = |set| Reference::new(set, START_NS).evaluate(packet, &facts, "eth0").hits;
            let ways = (hits(&forth), hits(&back));
            let ours = compiled.evaluate(packet, &facts, &mut said).hits;
            assert_eq!(ours, ways.0 | ways.1, "{both:?} {packet:?}");
            hit += ours;
            only_back += u32::from(ways == (0, 1));
        }
    }
    assert!(hit > 500 && only_back > 100, "{hit} {only_back}");
}

/// The condition on the other side.
fn mirrored(condition: Condition) -> Condition {
    let test = match condition.test {
        Test::Src(list) => Test::Dst(list),
        Test::Dst(list) => Test::Src(list),
        Test::SrcPort(ranges) => Test::DstPort(ranges),
        Test::DstPort(ranges) => Test::SrcPort(ranges),
        Test::SrcIn(names) => Test::DstIn(names),
        Test::DstIn(names) => Test::SrcIn(names),
        other => other,
    };
    Condition { test, ..condition }
}

#[test]
fn both_ways_is_read_written_and_explained() {
    let set = super::set(CALL);
    assert!(set.rules[0].both_ways);
    assert_eq!(set.rules[0].asks().last().map(String::as_str), Some("both-ways = true"));
    let words = "id=1 protocol=udp src=192.0.2.1 src-port=6000-6001 dst=198.51.100.7 dst-port=7000-7001 both-ways=true \
                 action=count";
    assert_eq!(Rule::from_words(words).unwrap(), set.rules[0]);
    let json = serde_json::to_string(&set).unwrap();
    assert!(json.contains("\"both-ways\":true"), "{json}");
    assert_eq!(serde_json::from_str::<RuleSet>(&json).unwrap(), set);
    assert!(!serde_json::to_string(&Rule::new(1, Action::Drop)).unwrap().contains("both-ways"));
    let explained = |from, to| {
        let data = datagram(from, to);
        let parsed = native::parse(LinkType::Raw, &data, true);
        let packet = Packet { parsed: &parsed, data: &data, inner: false };
        set.explain(packet, &Facts { wire_len: 28, ..Facts::default() }, "eth0").to_string()
    };
    let (here, there) = (([192, 0, 2, 1], 6000), ([198, 51, 100, 7], 7001));
    assert!(
        explained(here, there)
            .contains("rule 1: hit: count (protocol = udp: the packet has udp; src = 192.0.2.1: ")
    );
    let back = explained(there, here);
    assert!(
        back.contains(
            "rule 1: hit: count, in the other direction (protocol = udp: the packet has udp; src = 192.0.2.1: the packet has \
             192.0.2.1 at the other side; "
        ),
        "{back}"
    );
    let missed = explained(there, ([192, 0, 2, 1], 80));
    assert!(
        missed.contains("src-port = 6000-6001: the packet has 80 at the other side")
            && missed.contains("src = 192.0.2.1: the packet has 198.51.100.7;")
            && !missed.contains("dst = 198.51.100.7: the packet has 198.51.100.7"),
        "{missed}"
    );
}

#[test]
fn what_is_wrong_with_both_ways_is_found() {
    for (fields, expected) in [
        ("both-ways = 1\nsrc = \"10.0.0.1\"", "4:13: this is a number, not true or false"),
        ("both-ways = true", "1:1: the rule is for both ways, and has no condition on one side: src,"),
        (
            "both-ways = true\nhost = \"10.0.0.1\"",
            "1:1: the rule is for both ways, and has no condition on one side",
        ),
        ("both = true\nsrc = \"10.0.0.1\"", "4:1: unknown field 'both'; did you mean 'both-ways'?"),
        (
            "both-ways = true\nsrc = \"10.0.0.1\"\ndst = \"::1\"",
            "1:1: no packet can hit this rule: `src = 10.0.0.1` and `dst = ::1` cannot hold together",
        ),
    ] {
        let text = format!("[[rule]]\nid = 1\naction = \"drop\"\n{fields}\n");
        let found = mistakes(&text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
    // A rule for both ways has two clauses, and the tests of named sets on both sides.
    let text = |rules: u32| -> String {
        let rule =
            |id| format!("[[rule]]\nid = {id}\nsrc-port = {id}\nboth-ways = true\naction = \"drop\"\n");
        (1..=rules).map(rule).collect()
    };
    let most = super::set(&text(2048));
    assert_eq!(most.rules.iter().map(clauses::count).sum::<usize>(), 4096);
    assert_eq!(most.compile("eth0", &[], Room::UNLIMITED).unwrap().set.clauses, 4096);
    let found = mistakes(&text(2049));
    assert!(found[0].starts_with("0:0: the wildcard rules make 4098 clauses, more than 4096"), "{found:?}");
    let sets = |sets: usize| -> String {
        let set = |at| {
            format!(
                "[[sets]]\nname = \"s{at}\"\nentries = \"192.0.2.{at}\"\n[[rule]]\nid = {}\nsrc-in = \"s{at}\"\nboth-ways = \
                 true\naction = \"drop\"\n",
                at + 1
            )
        };
        (0..sets).map(set).collect()
    };
    let four = super::set(&sets(4));
    assert_eq!(four.named_tests().len(), 8);
    assert_eq!(four.compile("eth0", &[], Room::UNLIMITED).unwrap().set.used, 1 << dim::SETS);
    let found = mistakes(&sets(5));
    assert!(found[0].contains("the rules have 10 different tests of named sets, more than 8"), "{found:?}");
}
