//! Changes of rules between packets that a worker evaluates.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::native;
use wirelane_bpf::rules::{Evaluated, Facts};

use super::*;
use wirelane_rules::RuleSet;

const SECOND: u64 = 1_000_000_000;

/// A UDP packet from this address to 198.51.100.1:53.
fn packet(from: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x02; 12];
    packet.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from);
    packet.extend([198, 51, 100, 1]);
    packet.extend([0x12, 0x34, 0, 53, 0, 8, 0, 0]);
    packet
}

/// Active rules on these devices, and an evaluator of one worker for each.
fn active_rules(devices: &[&str], rules: &str) -> (ActiveRuleset, Vec<Evaluator>) {
    observed(devices, rules, Vec::new())
}

/// The same, with these observers of changes.
pub(super) fn observed(
    devices: &[&str],
    rules: &str,
    observers: Vec<Arc<dyn Observer>>,
) -> (ActiveRuleset, Vec<Evaluator>) {
    let rules = RuleSet::parse(rules).unwrap();
    let room = RulesCapacity { rules: 4, exact: 8, ..RulesCapacity::default() }.for_rules(&rules).unwrap();
    let native: Vec<_> = devices.iter().map(|device| NativeRules::new(device, 1, room)).collect();
    let evaluates = native.iter().map(|native| Evaluator::new(Arc::clone(native), 0)).collect();
    let targets = native.into_iter().map(|native| -> Arc<dyn Target> { native }).collect();
    (ActiveRuleset::new(targets, Times::Utc, &rules, observers).unwrap(), evaluates)
}

/// Evaluates a packet from this address, at this time.
pub(super) fn evaluate(evaluate: &mut Evaluator, device: &str, from: [u8; 4], now_ns: u64) -> Evaluated {
    let data = packet(from);
    let parsed = native::parse(LinkType::Ethernet, &data, true);
    let facts = Facts { now_ns, wire_len: data.len() as u32, ..Facts::default() };
    let set = evaluate.begin(device).unwrap();
    let evaluated = evaluate.evaluate(&set, Packet { parsed: &parsed, data: &data, inner: false }, &facts);
    evaluate.end();
    evaluated
}

pub(super) fn set(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap()
}

fn hits(active_rules: &ActiveRuleset) -> Vec<(u32, u64)> {
    active_rules.stats().unwrap().rules.iter().map(|line| (line.rule.id, line.hits.packets)).collect()
}

const FIRST: &str = r#"
    [[rule]]
    id = 1
    src = "192.0.2.1"
    action = "drop"

    [[rule]]
    id = 2
    action = "count"
"#;

#[test]
fn a_rule_that_stays_goes_on_counting_through_a_change() {
    let (rules, mut evaluates) = active_rules(&[""], FIRST);
    let evaluate_one = |evaluates: &mut Vec<Evaluator>, from| evaluate(&mut evaluates[0], "", from, SECOND);
    assert_eq!(fate(&evaluate_one(&mut evaluates, [192, 0, 2, 1])), Fate::Filtered);
    assert_eq!(fate(&evaluate_one(&mut evaluates, [192, 0, 2, 2])), Fate::Absorbed);
    assert_eq!(hits(&rules), [(1, 1), (2, 1)]);
    // Rule 1 stays, rule 2 passes from now on, rule 3 matches before neither.
    let next = FIRST.replace("count", "pass") + "[[rule]]\nid = 3\naction = \"drop\"\n";
    let changed = rules.replace(&set(&next)).unwrap();
    assert_eq!((changed.version, changed.rules), (2, 3));
    assert_eq!(hits(&rules), [(1, 1), (2, 0), (3, 0)]);
    assert_eq!(fate(&evaluate_one(&mut evaluates, [192, 0, 2, 2])), Fate::Delivered { at_most: usize::MAX });
    assert_eq!(fate(&evaluate_one(&mut evaluates, [192, 0, 2, 1])), Fate::Filtered);
    assert_eq!(hits(&rules), [(1, 2), (2, 1), (3, 0)]);
    let stats = rules.stats().unwrap();
    assert_eq!((stats.rules_gone.packets, stats.rules_gone.first_ns), (1, Some(SECOND)));
}

#[test]
fn what_is_refused_changes_nothing() {
    let (rules, mut evaluates) = active_rules(&[""], FIRST);
    evaluate(&mut evaluates[0], "", [192, 0, 2, 1], SECOND);
    let many: String = (1..=5).map(|id| format!("[[rule]]\nid = {id}\naction = \"drop\"\n")).collect();
    let exact = |id: u32, from: u32| {
        let fields = ExactFields { src: Some(Ipv4Addr::from_bits(from).into()), ..ExactFields::default() };
        ExactRule::new(id, fields, wirelane_rules::Action::Drop)
    };
    let too_many: Vec<_> = (0..9).map(|number| exact(10 + number, number)).collect();
    let same = vec![exact(10, 1), exact(11, 1)];
    let taken = vec![exact(10, 1), exact(2, 2)];
    let refusals = [
        (rules.replace(&set(&many)), "rules=5"),
        (rules.replace(&RuleSet { exact: too_many.clone(), ..RuleSet::default() }), "exact=16"),
        (rules.extend(Vec::new(), too_many), "exact=16"),
        (rules.extend(Vec::new(), same), "exactly these packets"),
        (rules.extend(Vec::new(), taken), "rule 2: this id is in use"),
        (rules.extend(set(&many).rules[..1].to_vec(), Vec::new()), "rule 1: this id is in use"),
    ];
    for (refused, reason) in refusals {
        let refusal = refused.unwrap_err().to_string();
        assert!(refusal.contains(reason), "{refusal}");
    }
    assert_eq!(fate(&evaluate(&mut evaluates[0], "", [192, 0, 2, 1], SECOND)), Fate::Filtered);
    let stats = rules.stats().unwrap();
    assert_eq!((stats.version, stats.exact, hits(&rules)), (1, 0, vec![(1, 2), (2, 0)]));
    // The rules inserted before the refusal have been removed: there is room for these.
    assert_eq!(rules.extend(Vec::new(), (0..8).map(|n| exact(20 + n, n)).collect()).unwrap().added, 8);
    let refusal = rules.extend(Vec::new(), vec![exact(40, 3)]).unwrap_err().to_string();
    assert!(refusal.contains("exact-match rule 23 is for exactly these packets"), "{refusal}");
}

/// With two devices, the second one is swept too.
#[test]
fn every_device_is_swept() {
    let (rules, _evaluates) = active_rules(&["eth1", "eth2"], "");
    let mut rule = set(EXACT).exact.remove(0);
    rule.hard_s = 1;
    rules.extend(Vec::new(), vec![rule.clone()]).unwrap();
    assert_eq!(rules.stats().unwrap().exact, 2);
    std::thread::sleep(std::time::Duration::from_millis(1001));
    while rules.sweep().unwrap() {}
    assert_eq!(rules.targets.iter().map(|target| target.page(None).unwrap().rules.len()).sum::<usize>(), 0);
    // The id is free, as the rule has been removed from both devices.
    rules.extend(Vec::new(), vec![rule]).unwrap();
}

/// A set that follows one with the same exact-match rules: removing the old ones frees no id of the new set.
#[test]
fn ids_are_those_of_the_set_in_force() {
    let (rules, _evaluates) = active_rules(&[""], EXACT);
    rules.replace(&set(EXACT)).unwrap();
    let taken = rules.extend(Vec::new(), set(&EXACT.replace("192.0.2.", "192.0.3.")).exact);
    assert!(taken.unwrap_err().to_string().contains("rule 1: this id is in use"));
}

const EXACT: &str = r#"
    default = "drop"

    [[exact]]
    id = 1
    src = "192.0.2.1"
    action = "pass"

    [[exact]]
    id = 2
    src = "192.0.2.2"
    action = "count"
"#;

#[test]
fn a_new_set_has_its_own_exact_rules_and_no_others() {
    let (rules, mut evaluates) = active_rules(&[""], EXACT);
    let mut fates = |rules: &ActiveRuleset| {
        let evaluate = &mut evaluates[0];
        let verdicts: Vec<u32> = [1, 2, 3]
            .map(|last| super::tests::evaluate(evaluate, "", [192, 0, 2, last], SECOND).rule_id)
            .to_vec();
        (verdicts, rules.stats().unwrap().exact)
    };
    assert_eq!(fates(&rules), (vec![1, 2, 0], 2));
    // The same fields in both sets: for a moment, both entries are in the table.
    let changed =
        rules.replace(&set(&EXACT.replace("id = 1", "id = 7").replace("192.0.2.2", "192.0.2.3"))).unwrap();
    assert_eq!((changed.added, changed.removed), (2, 2));
    assert_eq!(fates(&rules), (vec![7, 0, 2], 2));
    let stats = rules.stats().unwrap();
    assert_eq!((stats.exact_gone.packets, stats.exact_hits.packets), (2, 2));
    // The id is free again.
    rules.extend(set(FIRST).rules[..1].to_vec(), Vec::new()).unwrap();
    assert_eq!(rules.remove(&[7], &[]).unwrap().removed, 1);
    assert_eq!(fates(&rules), (vec![1, 0, 2], 1));
    let fields = ExactFields { src: Some("192.0.2.3".parse().unwrap()), ..ExactFields::default() };
    assert_eq!(rules.remove(&[], &[fields, fields]).unwrap().removed, 1);
    assert_eq!(fates(&rules), (vec![1, 0, 0], 0));
    assert_eq!(rules.remove(&[99], &[]).unwrap().removed, 0, "one that is not there is no error");
}

/// Both directions of a device have the same exact-match rules: each is listed, counted and removed once.
#[test]
fn an_exact_rule_of_both_directions_is_one_rule() {
    let (rules, mut evaluates) = active_rules(&["eth1", "eth1", "eth2"], EXACT);
    for (evaluate, device) in evaluates.iter_mut().zip(["eth1", "eth1", "eth2"]) {
        self::evaluate(evaluate, device, [192, 0, 2, 1], SECOND);
    }
    let stats = rules.stats().unwrap();
    assert_eq!(stats.devices, ["eth1", "eth2"]);
    assert_eq!((stats.exact, stats.exact_hits.packets), (4, 3));
    let (mut lines, mut from) = (Vec::new(), Some((0, None)));
    while let Some(position) = from {
        let (some, next) = rules.exact(position).unwrap();
        lines.extend(some.into_iter().map(|line| (line.device, line.rule.id, line.hits.packets)));
        from = next;
    }
    lines.sort_unstable();
    assert_eq!(lines, [(0, 1, 2), (0, 2, 0), (1, 1, 1), (1, 2, 0)]);
    let fields = set(EXACT).exact[1].fields;
    assert_eq!(rules.remove(&[1], &[fields]).unwrap().removed, 4, "two rules on two devices");
    let stats = rules.stats().unwrap();
    assert_eq!((stats.exact, stats.exact_gone.packets), (0, 3));
    // Made for a packet of one direction, the rule is in one table.
    let made = "[[rule]]\nid = 5\naction = \"pass\"\ninsert = { fields = [\"src\"], action = \"count\" }\n";
    rules.replace(&set(made)).unwrap();
    self::evaluate(&mut evaluates[1], "eth1", [192, 0, 2, 1], SECOND);
    assert_eq!(rules.stats().unwrap().exact, 1);
    assert_eq!(rules.exact((1, None)).unwrap().0.len(), 1);
    assert_eq!(rules.flush(false).unwrap().removed, 1);
}

#[test]
fn rules_age_by_the_time_of_packets_and_are_swept() {
    let text = r#"
        [[rule]]
        id = 5
        src = "192.0.2.0/24"
        action = "pass"
        insert = { fields = ["src"], action = "count", idle = 10 }

        [[exact]]
        id = 6
        src = "198.51.100.7"
        action = "drop"
        hard = 30
    "#;
    let (rules, mut evaluates) = active_rules(&[""], text);
    let mut at = |seconds: u64, from: [u8; 4]| fate(&evaluate(&mut evaluates[0], "", from, seconds * SECOND));
    let delivered = Fate::Delivered { at_most: usize::MAX };
    assert_eq!(at(100, [192, 0, 2, 1]), delivered, "the first one makes a rule");
    assert_eq!(at(101, [192, 0, 2, 1]), Fate::Absorbed);
    assert_eq!(at(110, [192, 0, 2, 1]), Fate::Absorbed);
    assert_eq!(at(120, [192, 0, 2, 1]), delivered, "the rule has ended, swept or not, and is made anew");
    let stats = rules.stats().unwrap();
    assert_eq!((stats.rules[0].hits.packets, stats.rules[0].inserted, stats.exact), (2, 2, 2));
    at(131, [203, 0, 113, 1]);
    while rules.sweep().unwrap() {}
    let stats = rules.stats().unwrap();
    assert_eq!(stats.exact, 0, "both have ended");
    // The hits of the first one were removed with the rule that replaced it.
    assert_eq!((stats.exact_hits.packets, stats.exact_gone.packets), (0, 0));
    // The id of the rule that has ended can be used again.
    rules.extend(Vec::new(), set(text).exact).unwrap();
    assert_eq!(at(132, [198, 51, 100, 7]), Fate::Filtered);
    // Removing the rule removes the rules that it has made.
    at(133, [192, 0, 2, 9]);
    assert_eq!(rules.stats().unwrap().exact, 2);
    assert_eq!(rules.remove(&[5], &[]).unwrap().removed, 2);
    assert_eq!(at(134, [192, 0, 2, 9]), delivered);
    assert_eq!(rules.stats().unwrap().exact, 1);
    assert_eq!(rules.flush(true).unwrap().removed, 1);
    assert_eq!(at(135, [198, 51, 100, 7]), delivered);
}

#[test]
fn exact_rules_are_shown_a_page_at_a_time_on_each_device() {
    let (rules, mut evaluates) = active_rules(&["eth1", "eth2"], EXACT);
    evaluate(&mut evaluates[1], "", [192, 0, 2, 1], SECOND);
    let mut shown = Vec::new();
    let mut from = Some((0, None));
    while let Some(position) = from {
        let (lines, next) = rules.exact(position).unwrap();
        shown.extend(lines.into_iter().map(|line| (line.device, line.rule.id, line.hits.packets, line.made)));
        from = next;
    }
    shown.sort_unstable();
    assert_eq!(shown, [(0, 1, 0, false), (0, 2, 0, false), (1, 1, 1, false), (1, 2, 0, false)]);
    assert_eq!(rules.exact((7, Some(3))).unwrap().0.len(), 0, "a position that there is not");
}

#[test]
fn conditions_on_a_device_are_about_that_device() {
    let text = r#"
        [[rule]]
        id = 1
        device = "eth1"
        action = "drop"

        [[rule]]
        id = 2
        not.device = ["eth1", "eth2"]
        action = "count"
    "#;
    let expected = [("eth1", 1), ("eth2", 0), ("eth3", 2)];
    // Each device on its own, and interfaces of a file.
    let (_rules, mut evaluates) = active_rules(&["eth1", "eth2", "eth3"], text);
    for ((_, id), its) in expected.iter().zip(&mut evaluates) {
        assert_eq!(evaluate(its, "", [192, 0, 2, 1], SECOND).rule_id, *id);
    }
    let (_rules, mut evaluates) = active_rules(&[""], text);
    for (device, id) in expected {
        assert_eq!(evaluate(&mut evaluates[0], device, [192, 0, 2, 1], SECOND).rule_id, id, "{device}");
    }
}

/// Sets follow one another while a worker evaluates: each packet is evaluated by one of them, and hits are counted in
/// the right one.
#[test]
fn every_packet_is_evaluated_by_one_set_and_counted_there() {
    let text = |id: u32| format!("[[rule]]\nid = {id}\naction = \"count\"\n");
    let (rules, mut evaluates) = active_rules(&[""], &text(1));
    let over = AtomicBool::new(false);
    let evaluated = std::thread::scope(|scope| {
        let mut its = evaluates.remove(0);
        let over = &over;
        let worker = scope.spawn(move || {
            let mut by_rule = [0u64; 2];
            while !over.load(Ordering::Relaxed) {
                let evaluated = evaluate(&mut its, "", [192, 0, 2, 1], SECOND);
                assert_eq!(fate(&evaluated), Fate::Absorbed);
                by_rule[evaluated.rule_id as usize - 1] += 1;
            }
            by_rule
        });
        for turn in 0..300 {
            rules.replace(&set(&text(turn % 2 + 1))).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        worker.join().unwrap()
    });
    assert!(evaluated.iter().all(|count| *count > 0), "{evaluated:?}");
    let stats = rules.stats().unwrap();
    let counted = stats.rules_gone.packets + stats.rules[0].hits.packets;
    assert_eq!(counted, evaluated.iter().sum::<u64>());
}

/// Patterns in force can be used by a rule that is added later, and are removed when all rules are.
#[test]
fn patterns_stay_for_rules_that_come_later() {
    const PATTERNS: &str = "[[patterns]]\nname = \"zeros\"\nid = 4\nhex = \"0000\"\n\n";
    let text =
        format!("{PATTERNS}[[rule]]\nid = 9\nsrc = \"192.0.2.9\"\npayload = \"zeros\"\naction = \"drop\"\n");
    let (active_rules, mut evaluates) = active_rules(&[""], &text);
    let mut evaluate = |from| evaluate(&mut evaluates[0], "", from, SECOND);
    assert_eq!(evaluate([192, 0, 2, 9]).rule_id, 0, "there is no payload");
    let rule = |words: &str| Rule::from_words(words).unwrap();
    active_rules.extend(vec![rule("id=5 not.payload=zeros action=count")], Vec::new()).unwrap();
    assert_eq!(evaluate([192, 0, 2, 1]).rule_id, 5);
    let refusal = active_rules.extend(vec![rule("id=6 payload=zero action=count")], Vec::new()).unwrap_err();
    assert!(refusal.to_string().contains("there are no patterns 'zero'; did you mean 'zeros'?"), "{refusal}");
    let stats = active_rules.stats().unwrap();
    assert_eq!((stats.rules.len(), stats.patterns.len(), stats.searches.packets), (2, 1, 2), "{stats:?}");
    active_rules.remove(&[9, 5], &[]).unwrap();
    assert!(!active_rules.stats().unwrap().patterns[0].in_use);
    active_rules.flush(true).unwrap();
    assert_eq!(active_rules.stats().unwrap().patterns, []);
}
