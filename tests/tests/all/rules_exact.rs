//! Exact-match rules on devices: inserted by packets, with time-outs, and in large numbers.

use std::time::{Duration, Instant};

use wirelane::rules::{Action, ExactFields, ExactRule};
use wirelane::{Engine, HookChoice, RulesCapacity};
use wirelane_tests::numbers::{LIMIT, send};
use wirelane_tests::ruled::{KERNEL, PORTS, SENT, WORKER, drain, open, rules};
use wirelane_tests::{Lab, require_root};

/// A wildcard rule inserts exact-match rules by packets, which time out and are inserted again.
fn packets_make_rules_that_age(at: (Engine, HookChoice)) {
    let text = r#"
        [[rule]]
        id = 5
        protocol = "udp"
        action = "pass"
        insert = { fields = ["src-port", "dst-port", "protocol"], action = "drop", idle = 1 }
    "#;
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, at, |builder| builder.rules(rules(text))).unwrap();
    let mut worker = capture.workers().remove(0);
    for turn in 1..=2 {
        send(&lab, SENT, &PORTS).unwrap();
        drain(&capture, &mut worker, turn * SENT, |record| {
            assert_eq!(record.rule(), Some(5));
        });
        // The first packet of each port passes and inserts a rule, which drops the others.
        let total = capture.ledger().unwrap().total;
        assert_eq!((total.analysed, total.filtered), (256 * turn, turn * (SENT - 256)), "{at:?}");
        let stats = capture.rule_stats().unwrap().unwrap();
        assert_eq!((stats.rules[0].inserted, stats.rules[0].refused), (256 * turn, 0), "{at:?}");
        let deadline = Instant::now() + LIMIT;
        while capture.rule_stats().unwrap().unwrap().exact > 0 {
            assert!(Instant::now() < deadline, "{at:?}: they do not age");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // The counts of removed rules are kept.
    let deadline = Instant::now() + LIMIT;
    loop {
        let stats = capture.rule_stats().unwrap().unwrap();
        let (gone, left) = (stats.exact_gone.packets, stats.exact_hits.packets);
        if left == 0 && gone > 0 {
            assert!(gone <= 2 * (SENT - 256), "{at:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{at:?}: {stats:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn packets_make_rules_that_age_in_the_kernel() {
    if require_root("packets_make_rules_that_age_in_the_kernel") {
        KERNEL.into_iter().for_each(packets_make_rules_that_age);
    }
}

#[test]
fn packets_make_rules_that_age_in_the_worker() {
    if require_root("packets_make_rules_that_age_in_the_worker") {
        WORKER.into_iter().for_each(packets_make_rules_that_age);
    }
}

/// 200,000 exact-match rules added, looked up and removed while packets flow. The rate is printed: `cargo test
/// --release` of this test with `--nocapture` measures it on an otherwise idle machine.
fn exact_rules_come_and_go_at_speed(at: (Engine, HookChoice)) {
    const RULES: u32 = 200_000;
    let lab = Lab::new(1).unwrap();
    let room = RulesCapacity { exact: RULES as usize + 16, ..RulesCapacity::default() };
    let mut capture = open(&lab, at, |builder| builder.rules_capacity(room)).unwrap();
    let mut worker = capture.workers().remove(0);
    let fields = |number: u32| ExactFields {
        src: Some(std::net::Ipv4Addr::from_bits(0x0b00_0000 + number).into()),
        ..ExactFields::default()
    };
    let of = |numbers: std::ops::Range<u32>| {
        numbers.map(|number| ExactRule::new(number + 1, fields(number), Action::Drop)).collect::<Vec<_>>()
    };
    let chunks: Vec<_> = (0..RULES).step_by(5000).map(|first| of(first..first + 5000)).collect();
    // The generator's source address, so that one rule is hit.
    let sender = ExactFields { src: Some("10.0.0.1".parse().unwrap()), ..ExactFields::default() };
    let start = Instant::now();
    for chunk in chunks {
        capture.add_rules(Vec::new(), chunk).unwrap();
    }
    let added = f64::from(RULES) / start.elapsed().as_secs_f64();
    capture.add_rules(Vec::new(), vec![ExactRule::new(RULES + 1, sender, Action::Drop)]).unwrap();
    send(&lab, SENT, &PORTS).unwrap();
    drain(&capture, &mut worker, SENT, |_| panic!("all of it is dropped"));
    let stats = capture.rule_stats().unwrap().unwrap();
    assert_eq!((stats.exact, stats.exact_hits.packets), (u64::from(RULES) + 1, SENT), "{at:?}");
    let all: Vec<ExactFields> = (0..RULES).map(fields).chain([sender]).collect();
    let start = Instant::now();
    let removed: u64 = all.chunks(5000).map(|chunk| capture.remove_rules(&[], chunk).unwrap().removed).sum();
    let gone = f64::from(RULES) / start.elapsed().as_secs_f64();
    assert_eq!(removed, u64::from(RULES) + 1);
    println!("{at:?}: {added:.0} rules added and {gone:.0} removed a second");
    let stats = capture.rule_stats().unwrap().unwrap();
    assert_eq!((stats.exact, stats.exact_gone.packets), (0, SENT), "{at:?}");
    send(&lab, SENT, &PORTS).unwrap();
    let mut seen = 0;
    drain(&capture, &mut worker, 2 * SENT, |_| seen += 1);
    assert_eq!(seen, SENT, "{at:?}");
}

#[test]
fn exact_rules_come_and_go_at_speed_in_the_kernel() {
    if require_root("exact_rules_come_and_go_at_speed_in_the_kernel") {
        exact_rules_come_and_go_at_speed(KERNEL[0]);
    }
}

#[test]
fn exact_rules_come_and_go_at_speed_in_the_worker() {
    if require_root("exact_rules_come_and_go_at_speed_in_the_worker") {
        exact_rules_come_and_go_at_speed(WORKER[0]);
    }
}
