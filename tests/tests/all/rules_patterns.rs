//! Payload patterns with every engine that evaluates rules: the ids in records.

use wirelane::{Engine, HookChoice};
use wirelane_tests::numbers::{number_of, send};
use wirelane_tests::ruled::{KERNEL, PORTS, SENT, WORKER, drain, open, rules};
use wirelane_tests::{Lab, require_root};

/// Each payload begins with twelve bytes: the magic and the number. The other bytes are 0.
const RULES: &str = r#"
    [[patterns]]
    name = "numbers"
    id = 11
    hex = ["0a", "0b", "0c"]
    offset = 11
    depth = 1

    [[patterns]]
    name = "magic"
    id = 20
    text = ["W", "WL", "wln", "WLn1"]
    nocase = true
    depth = 12

    [[patterns]]
    name = "crowd"
    id = 30
    hex = ["0000", "00000000", "000000000000"]

    [[rule]]
    id = 1
    src-port = "1010-1012"
    payload = "numbers"
    action = "pass"
    tag = 5

    [[rule]]
    id = 2
    src-port = "1013-1020"
    payload = "numbers"
    action = "drop"

    [[rule]]
    id = 3
    src-port = "1021-1030"
    not.payload = "magic"
    action = "drop"

    [[rule]]
    id = 4
    src-port = "1031-1040"
    payload = "crowd"
    action = "count"
"#;

fn records_say_what_was_found((engine, hook): (Engine, HookChoice)) {
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, (engine, hook), |builder| builder.rules(rules(RULES))).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, SENT, &PORTS).unwrap();
    let mut all = 0;
    drain(&capture, &mut worker, SENT, |record| {
        let port = 1000 + number_of(record).expect("a packet that nobody sent") % 256;
        let said = (record.patterns().collect::<Vec<u32>>(), record.has_more_patterns());
        // Ids of all patterns that rules use; case-insensitive ones come last.
        let (tag, expected) = match port {
            1010..=1012 => (Some(5), (vec![30, 31, 32, port as u32 - 1010 + 11], true)),
            1013..1031 => (None, (vec![30, 31, 32, 20], true)),
            _ => (None, (Vec::new(), false)),
        };
        assert_eq!((record.tag(), said), (tag, expected), "{engine:?} {hook:?} port {port}");
        assert!(!record.is_half_searched() && record.data().len() == 100);
        all += 1;
    });
    drop(worker);
    capture.stop().unwrap();
    let stats = capture.rule_stats().unwrap().unwrap();
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    let turns = SENT / 256;
    assert_eq!((all, ledger.total.absorbed, ledger.total.lost), (SENT - 10 * turns, 10 * turns, 0));
    assert_eq!(
        (stats.searches.packets, stats.searches.found, stats.searches.half),
        (31 * turns, 31 * turns, 0)
    );
}

/// Battery: L1
#[test]
fn records_say_what_was_found_in_the_kernel() {
    if require_root("records_say_what_was_found_in_the_kernel") {
        KERNEL.into_iter().for_each(records_say_what_was_found);
    }
}

/// Battery: L1
#[test]
fn records_say_what_was_found_in_the_worker() {
    if require_root("records_say_what_was_found_in_the_worker") {
        WORKER.into_iter().for_each(records_say_what_was_found);
    }
}
