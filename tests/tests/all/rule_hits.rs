//! The ids of all rules that a packet hit, in its record: by every engine and hook, and from a file.

use std::collections::BTreeMap;

use serde_json::Value;
use wirelane_tests::frames::{ethernet, udp};
use wirelane_tests::numbers::{LIMIT, number_of, send, wirelane};
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::ruled::{KERNEL, PORTS, SENT, TURNS, WORKER, drain, hits, open, rules};
use wirelane_tests::{Lab, require_root};

/// Rules of which packets hit several, by their source port; numbered packets contain the pattern.
fn text() -> String {
    let many: String =
        (1..=20).map(|id| format!("[[rule]]\nid = {id}\nsrc-port = 1000\naction = \"none\"\n")).collect();
    many + r#"
    [[patterns]]
    name = "magic"
    id = 900
    text = "wln1"
    nocase = true

    [[rule]]
    id = 31
    src-port = "1001-1002"
    action = "none"
    tag = 5

    [[rule]]
    id = 32
    src-port = "1001-1003"
    payload = "magic"
    action = "pass"

    [[rule]]
    id = 33
    src-port = "1001-1004"
    action = "pass"

    [[exact]]
    id = 500
    src-port = 1002
    protocol = "udp"
    action = "none"
"#
}

/// The rule that decided about the packets of a source port, its tag, all rules that they hit, whether there are more,
/// and the patterns.
type Outcome = (Option<u32>, Option<u32>, Vec<u32>, bool, Vec<u32>);

fn expected(port: u64) -> Outcome {
    match port {
        1000 => (Some(1), None, (1..=16).collect(), true, vec![]),
        1001 => (Some(32), Some(5), vec![31, 32], false, vec![900]),
        1002 => (Some(32), Some(5), vec![500, 31, 32], false, vec![900]),
        1003 => (Some(32), None, vec![32], false, vec![900]),
        1004 => (Some(33), None, vec![33], false, vec![]),
        _ => (None, None, vec![], false, vec![]),
    }
}

#[test]
fn a_record_has_all_rules_that_its_packet_hit() {
    if !require_root("a_record_has_all_rules_that_its_packet_hit") {
        return;
    }
    for at in KERNEL.into_iter().chain(WORKER) {
        let lab = Lab::new(1).unwrap();
        let mut capture = open(&lab, at, |builder| builder.rules(rules(&text()))).unwrap();
        let mut worker = capture.workers().remove(0);
        let mut by_port = BTreeMap::<u64, u64>::new();
        send(&lab, SENT, &PORTS).unwrap();
        drain(&capture, &mut worker, SENT, |record| {
            let port = 1000 + number_of(record).expect("a packet that nobody sent") % 256;
            let outcome = (
                record.rule(),
                record.tag(),
                record.rules().collect(),
                record.has_more_rules(),
                record.patterns().collect(),
            );
            assert_eq!(outcome, expected(port), "{at:?} port {port}");
            *by_port.entry(port).or_default() += 1;
        });
        drop(worker);
        assert!(capture.close().unwrap().balances(), "{at:?}");
        assert_eq!(by_port, (1000..1256).map(|port| (port, TURNS)).collect(), "{at:?}");
    }
}

/// The same packets from a file, as text and as JSON.
#[test]
fn packets_shows_all_rules_that_a_packet_hit() {
    if !require_root("packets_shows_all_rules_that_a_packet_hit") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (capture, file) = (folder.path().join("capture.pcap"), folder.path().join("rules.toml"));
    std::fs::write(&file, text()).unwrap();
    let mut output = std::fs::File::create(&capture).unwrap();
    write_header(&mut output).unwrap();
    for port in 1000..1006 {
        let frame = ethernet(0x0800, &udp([192, 0, 2, 1], [192, 0, 2, 2], (port, 9), b"WLN1"));
        write_packet(&mut output, u64::from(port) * 1000, &frame).unwrap();
    }
    let (capture, file) = (capture.to_str().unwrap(), file.to_str().unwrap());
    let words = ["packets", "-r", capture, "--rules", file];
    let run = |words: &[&str]| {
        let finished = wirelane(&lab, &lab.receiver().namespace, words).unwrap().finish(LIMIT).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        finished
    };
    let objects = run(&[&words[..], &["--json"]].concat()).json().unwrap();
    let records: Vec<&Value> = objects.iter().filter(|object| object.get("record").is_some()).collect();
    assert_eq!(records.len(), 6);
    for (record, port) in records.iter().zip(1000..) {
        let (rule, _, hits, more, _) = expected(port);
        let shown: Vec<u64> = match record.get("rules") {
            Some(ids) => ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect(),
            None => record.get("rule").and_then(Value::as_u64).into_iter().collect(),
        };
        assert_eq!(record.get("rule").and_then(Value::as_u64), rule.map(u64::from), "{record}");
        assert_eq!(shown, hits.into_iter().map(u64::from).collect::<Vec<_>>(), "{record}");
        let marked = record.get("marks").is_some_and(|marks| marks.to_string().contains("more-rules"));
        assert_eq!(marked, more, "{record}");
    }
    let shown = run(&words).lines;
    let ends: Vec<&str> = shown.iter().map(|line| line.split_once(" bytes").unwrap().1).collect();
    let expected = [
        " more-rules rule 1 hits 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
        " rule 32 hits 31,32 tag 5 patterns 900",
        " rule 32 hits 500,31,32 tag 5 patterns 900",
        " rule 32 patterns 900",
        " rule 33",
        "",
    ];
    assert_eq!(ends, expected, "{shown:?}");
}

/// Rules that ask for earlier hits, by the source port of numbered packets.
const AFTER: &str = r#"
    [[patterns]]
    name = "magic"
    id = 900
    text = "wln1"
    nocase = true

    [[rule]]
    id = 1
    src-port = "1000-1009"
    action = "none"

    [[rule]]
    id = 2
    src-port = "1005-1014"
    payload = "magic"
    action = "none"

    [[rule]]
    id = 3
    after = [2, 500]
    src-port = "1000-1009"
    action = "pass"

    [[rule]]
    id = 4
    not.after = 1
    src-port = "1010-1014"
    payload = "magic"
    action = "pass"

    [[rule]]
    id = 5
    not.after = [1, 500]
    src-port = "1020-1021"
    action = "drop"

    [[rule]]
    id = 6
    after = 500
    action = "pass"

    [[exact]]
    id = 500
    src-port = 1020
    protocol = "udp"
    action = "none"
"#;

/// The rules that packets of a source port hit; `None`: rule 5 drops them.
fn hits_after(port: u64) -> Option<&'static [u32]> {
    match port {
        1000..=1004 => Some(&[1]),
        1005..=1009 => Some(&[1, 2, 3]),
        1010..=1014 => Some(&[2, 4]),
        1020 => Some(&[500, 6]),
        1021 => None,
        _ => Some(&[]),
    }
}

/// A rule that asks for hits of others is hit after these only, by every engine and hook.
#[test]
fn a_rule_is_hit_only_after_the_rules_that_it_asks_for() {
    if !require_root("a_rule_is_hit_only_after_the_rules_that_it_asks_for") {
        return;
    }
    for at in KERNEL.into_iter().chain(WORKER) {
        let lab = Lab::new(1).unwrap();
        let mut capture = open(&lab, at, |builder| builder.rules(rules(AFTER))).unwrap();
        let mut worker = capture.workers().remove(0);
        let mut by_port = BTreeMap::<u64, u64>::new();
        send(&lab, SENT, &PORTS).unwrap();
        drain(&capture, &mut worker, SENT, |record| {
            let port = 1000 + number_of(record).expect("a packet that nobody sent") % 256;
            assert_eq!(record.rules().collect::<Vec<u32>>(), hits_after(port).unwrap(), "{at:?} port {port}");
            *by_port.entry(port).or_default() += 1;
        });
        drop(worker);
        capture.stop().unwrap();
        let counts = hits(&capture.rule_stats().unwrap().unwrap());
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{at:?}");
        assert_eq!(ledger.total.filtered, TURNS, "{at:?}");
        assert_eq!(
            by_port,
            (1000..1256).filter(|port| *port != 1021).map(|port| (port, TURNS)).collect(),
            "{at:?}"
        );
        let expected = [(1, 10), (2, 10), (3, 5), (4, 5), (5, 1), (6, 1)];
        assert_eq!(counts, expected.map(|(id, ports)| (id, ports * TURNS)).into(), "{at:?}");
    }
}
