//! Cost of rules per packet in the kernel, by the kernel's own statistics of program run times.

use std::net::Ipv4Addr;

use libbpf_rs::query::ProgInfoIter;
use wirelane::rules::{Action, ExactFields, ExactRule, RuleSet};
use wirelane::{Capture, Engine, HookChoice, RulesCapacity, Worker};
use wirelane_tests::numbers::send;
use wirelane_tests::ruled::{drain, open, rules};
use wirelane_tests::{Lab, LabOptions, program_statistics, require_root};

/// Packets of one measurement.
const PACKETS: u64 = 20_000;
/// Most measurements of each kind, of which the least counts: others use the processors, too.
const TIMES: usize = 20;

/// Id, run time in nanoseconds and number of runs of each loaded program; tail calls count for the entered program.
fn runs() -> Vec<(u32, u64, u64)> {
    ProgInfoIter::default().map(|program| (program.id, program.run_time_ns, program.run_cnt)).collect()
}

/// Nanoseconds per packet of the generator, of the program that ran exactly once for each packet.
fn cost(lab: &Lab, capture: &Capture, worker: &mut Worker) -> f64 {
    let seen = capture.ledger().unwrap().total.seen;
    let before = runs();
    send(lab, PACKETS, &["--flows", "4096", "--pattern", "sources", "--rate", "100k"]).unwrap();
    drain(capture, worker, seen + PACKETS, |_| {});
    let spent = runs().into_iter().filter_map(|(id, time, count)| {
        let (_, time_before, count_before) = before.iter().find(|(other, ..)| *other == id)?;
        (count - count_before == PACKETS).then(|| (time - time_before) as f64 / PACKETS as f64)
    });
    let spent: Vec<f64> = spent.collect();
    assert_eq!(spent.len(), 1, "programs that ran once for each packet: {spent:?}");
    spent[0]
}

/// The least cost of a packet with each of these sets of rules, measured in turns until it is as `expected`.
fn costs(prepare: &[&dyn Fn(&mut Capture)], expected: impl Fn(&[f64]) -> bool) -> Vec<f64> {
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let room = RulesCapacity { rules: 2000, exact: 20_000, ..RulesCapacity::default() };
    let mut least = vec![f64::INFINITY; prepare.len()];
    for _ in 0..TIMES {
        for (prepare, least) in prepare.iter().zip(&mut least) {
            let at = (Engine::Ring, HookChoice::Native);
            let mut capture =
                open(&lab, at, |builder| builder.rules_capacity(room).ring_size(16 << 20)).unwrap();
            let mut worker = capture.workers().remove(0);
            prepare(&mut capture);
            *least = least.min(cost(&lab, &capture, &mut worker));
            drop(worker);
            capture.close().unwrap();
        }
        if expected(&least) {
            break;
        }
    }
    least
}

/// Adds exact-match rules of this many source addresses that do not occur.
fn exact(capture: &mut Capture, number: u32) {
    let rules = (0..number).map(|number| {
        let src = Some(Ipv4Addr::from_bits(0x0b00_0000 + number).into());
        ExactRule::new(number + 1, ExactFields { src, ..ExactFields::default() }, Action::Drop)
    });
    capture.add_rules(Vec::new(), rules.collect()).unwrap();
}

/// Adds wildcard rules of this many source ports that do not occur.
fn wildcard(capture: &mut Capture, number: u32) {
    let text: String = (1..=number)
        .map(|id| {
            format!(
                "[[rule]]\nid = {id}\nprotocol = \"udp\"\nsrc-port = {}\naction = \"drop\"\n",
                30_000 + id
            )
        })
        .collect();
    capture.add_rules(rules(&text).rules, Vec::new()).unwrap();
}

/// A rule that uses a named set of this many source addresses that do not occur.
fn named_set(number: u32, more: &str) -> RuleSet {
    let entries: Vec<String> =
        (0..number).map(|number| format!("\"{}\"", Ipv4Addr::from_bits(0x0b00_0000 + number))).collect();
    rules(&format!(
        "[[sets]]\nname = \"those\"\nentries = [{}]\n{more}\n\
         [[rule]]\nid = 1\nsrc-in = \"those\"\naction = \"drop\"\n",
        entries.join(", ")
    ))
}

/// A rule that searches the payload for this many patterns that do not occur.
fn patterns(number: u32) -> RuleSet {
    // Multiplied by an odd number, so that the patterns differ from their first byte on.
    let hex: Vec<String> = (1..=number)
        .map(|number| format!("\"{:08x}ffff\"", number.wrapping_mul(0x9e37_79b1) | 0x0101_0101))
        .collect();
    rules(&format!(
        "[[patterns]]\nname = \"those\"\nid = 1\nhex = [{}]\n\
         [[rule]]\nid = 1\npayload = \"those\"\naction = \"drop\"\n",
        hex.join(", ")
    ))
}

/// Battery: L10
#[test]
fn large_sets_and_many_patterns_cost_a_packet_little_more_than_one_entry() {
    if !require_root("large_sets_and_many_patterns_cost_a_packet_little_more_than_one_entry") {
        return;
    }
    let _statistics = program_statistics().unwrap();
    let kinds = [
        ("set", [named_set(1, ""), named_set(20_000, "")]),
        ("confirmed set", [named_set(1, "confirm = true"), named_set(20_000, "confirm = true")]),
        ("patterns", [patterns(1), patterns(1000)]),
    ];
    let load = |set: &RuleSet, capture: &mut Capture| {
        capture.set_rules(set).unwrap();
    };
    let closures: Vec<_> = kinds
        .iter()
        .flat_map(|(_, sets)| sets)
        .map(|set| move |capture: &mut Capture| load(set, capture))
        .collect();
    let sets: Vec<&dyn Fn(&mut Capture)> = closures.iter().map(|one| one as _).collect();
    let costs = costs(&sets, |costs| costs.chunks(2).all(|two| two[1] < 2.0 * two[0]));
    for (two, (name, _)) in costs.chunks(2).zip(&kinds) {
        println!("{name}: ns a packet with one entry and with many: {two:.0?}");
        assert!(two[1] < 2.0 * two[0], "{name}: one: {:.0} ns, many: {:.0} ns", two[0], two[1]);
    }
}

/// Battery: L10
#[test]
fn ten_thousand_exact_rules_cost_a_packet_little_more_than_one() {
    if !require_root("ten_thousand_exact_rules_cost_a_packet_little_more_than_one") {
        return;
    }
    let _statistics = program_statistics().unwrap();
    let sets: [&dyn Fn(&mut Capture); 5] = [
        &|_| {},
        &|capture| exact(capture, 1),
        &|capture| exact(capture, 10_000),
        &|capture| wildcard(capture, 1),
        &|capture| wildcard(capture, 1000),
    ];
    let costs = costs(&sets, |costs| costs[2] < 1.2 * costs[1] && costs[4] < 2.0 * costs[3]);
    println!("ns a packet: none, 1 exact, 10,000 exact, 1 wildcard, 1000 wildcard: {costs:.0?}");
    let [_, one, many, one_wildcard, many_wildcard] = costs[..] else { panic!("{costs:?}") };
    assert!(many < 1.2 * one, "10,000 exact-match rules: {many:.0} ns, one: {one:.0} ns");
    assert!(
        many_wildcard < 2.0 * one_wildcard,
        "1000 wildcard rules: {many_wildcard:.0} ns, one: {one_wildcard:.0} ns"
    );
}
