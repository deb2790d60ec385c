//! Calls of plug-ins when rules are added, removed or expire (`PLUGIN_RULE()` of `wirelane/plugin.h`).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::StateReader;
use wirelane::rules::RuleSet;
use wirelane_bpf::instance::{rule_event, rule_flags};
use wirelane_bpf::rules::shape;
use wirelane_tests::numbers::{LIMIT, send, wirelane};
use wirelane_tests::ruled::{KERNEL, drain, open, rules};
use wirelane_tests::{
    Lab, LabOptions, program_file, require_root, settled_bpf_objects, wait_for_bpf_objects,
};

/// A time budget that no plug-in exceeds, even on a busy machine.
const PATIENT: u32 = 1_000_000_000;
const SIZE: u64 = 100;
const PORTS: u64 = 4;

/// A change that the plug-in has heard of: id, event, flags, packets.
type Heard = (u32, u32, u32, u64);

const ADDED: u32 = rule_event::ADDED;
const REMOVED: u32 = rule_event::REMOVED;
const EXPIRED: u32 = rule_event::EXPIRED;
const NAMES: u32 = rule_flags::NAMES;
const EXACT: u32 = rule_flags::EXACT;
const MADE: u32 = rule_flags::MADE;

fn object(folder: &Path) -> String {
    program_file(folder, "plugin_rules").unwrap().to_str().unwrap().to_owned()
}

fn send_ports(lab: &Lab, packets: u64) {
    let (flows, size) = (PORTS.to_string(), SIZE.to_string());
    send(lab, packets, &["--pattern", "ports", "--flows", &flows, "--src-port", "1000", "--size", &size])
        .unwrap();
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {of}"))
}

/// All changes that a plug-in has heard of, in order.
fn changes(state: &StateReader, plugin: &str) -> Vec<Value> {
    let all = state.read(plugin, "changes").unwrap();
    assert_eq!(all.len(), 64);
    let values = all.iter().map(|entry| entry.json()["value"].clone());
    values.filter(|value| number(value, "event") != 0).collect()
}

fn heard(state: &StateReader) -> Vec<Heard> {
    let short = |of: &Value| {
        let word = |name| number(of, name) as u32;
        (word("id"), word("event"), word("flags"), number(of, "packets"))
    };
    changes(state, "life").iter().map(short).collect()
}

/// Packets by rule, of the rules that the plug-in knows.
fn present(state: &StateReader, plugin: &str) -> BTreeMap<u64, u64> {
    let all = state.read(plugin, "present").unwrap();
    all.iter().map(|entry| (number(&json(entry), "key"), number(&json(entry), "value"))).collect()
}

fn json(entry: &wirelane::StateEntry) -> Value {
    entry.json().clone()
}

/// Rule 5 is hit by half of the packets. Rule 6 asks the plug-in.
fn both() -> RuleSet {
    rules(
        r#"
        [[rule]]
        id = 5
        src-port = "1000-1001"
        action = "none"

        [[rule]]
        id = 6
        plugin = "life"
        action = "count"
        "#,
    )
}

/// Rules come, stay, change, go and expire while packets flow; state by rule follows them. Nothing remains.
#[test]
fn a_plug_in_hears_of_each_rule_that_comes_and_goes() {
    if !require_root("a_plug_in_hears_of_each_rule_that_comes_and_goes") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for at in KERNEL {
        let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
        let before = settled_bpf_objects();
        let plugin = object(folder.path());
        let mut capture =
            open(&lab, at, |builder| builder.plugin("life", plugin).plugin_budget(PATIENT).rules(both()))
                .unwrap();
        let mut worker = capture.workers().remove(0);
        let state = capture.state().unwrap();
        let mut expected: Vec<Heard> = vec![(5, ADDED, 0, 0), (6, ADDED, NAMES, 0)];
        assert_eq!(heard(&state), expected, "{at:?}");
        send_ports(&lab, 8);
        drain(&capture, &mut worker, 8, |_| {});
        assert_eq!(present(&state, "life"), BTreeMap::from([(5, 4), (6, 0)]), "{at:?}");

        // Rule 5 becomes another one, rule 6 stays, rule 7 comes first.
        let text = r#"
            [[exact]]
            id = 7
            src-port = 1003
            protocol = "udp"
            action = "none"

            [[rule]]
            id = 5
            src-port = "1000-1002"
            action = "none"
        "#;
        let mut next = rules(text);
        next.rules.extend(both().rules.into_iter().filter(|rule| rule.id == 6));
        capture.set_rules(&next).unwrap();
        expected.extend([(7, ADDED, EXACT, 0), (5, REMOVED, 0, 4), (5, ADDED, 0, 0)]);
        assert_eq!(heard(&state), expected, "{at:?}");
        send_ports(&lab, 8);
        drain(&capture, &mut worker, 16, |_| {});
        assert_eq!(present(&state, "life"), BTreeMap::from([(5, 6), (6, 0), (7, 2)]), "{at:?}");

        // Rule 7 is removed with its fields and its counts, rule 9 expires.
        capture.remove_rules(&[7], &[]).unwrap();
        let nine = "[[exact]]\nid = 9\nsrc-port = 1009\naction = \"none\"\nidle = 1\n";
        capture.add_rules(Vec::new(), rules(nine).exact).unwrap();
        expected.extend([(7, REMOVED, EXACT, 2), (9, ADDED, EXACT, 0), (9, EXPIRED, EXACT, 0)]);
        let deadline = Instant::now() + LIMIT;
        while heard(&state) != expected {
            assert!(Instant::now() < deadline, "{:?}", heard(&state));
            std::thread::sleep(Duration::from_millis(20));
        }
        let fields = [shape::SRC_PORT | shape::PROTO, shape::SRC_PORT].map(u64::from);
        let last = changes(&state, "life").split_off(expected.len() - 3);
        for (of, [fields, port, proto, idle, bytes]) in last.iter().zip([
            [fields[0], 1003, 17, 0, 2 * SIZE],
            [fields[1], 1009, 0, 1, 0],
            [fields[1], 1009, 0, 1, 0],
        ]) {
            for (name, value) in [
                ("fields", fields),
                ("src_port", port),
                ("proto", proto),
                ("l3", 0),
                ("idle_s", idle),
                ("bytes", bytes),
            ] {
                assert_eq!(number(of, name), value, "{name}, {at:?}");
            }
        }

        // A rule that packets make ends with the rule that asked for it.
        let make = "[[rule]]\nid = 8\nplugin = \"life\"\naction = \"count\"\n\
                    insert = { fields = [\"src-port\"], action = \"count\" }\n";
        capture.add_rules(rules(make).rules, Vec::new()).unwrap();
        capture.remove_rules(&[6], &[]).unwrap();
        expected.extend([(8, ADDED, NAMES, 0), (6, REMOVED, NAMES, 16)]);
        assert_eq!(heard(&state), expected, "{at:?}");
        send_ports(&lab, 12);
        drain(&capture, &mut worker, 28, |_| {});
        capture.remove_rules(&[8], &[]).unwrap();
        let mut told = heard(&state);
        let made = told.split_off(told.len() - PORTS as usize);
        expected.push((8, REMOVED, NAMES, 4));
        assert_eq!(told, expected, "{at:?}");
        // Of three packets of a port, the first one makes the rule.
        assert_eq!(made, [(8, REMOVED, NAMES | EXACT | MADE, 2); 4], "{at:?}");
        let list = changes(&state, "life");
        let mut ports: Vec<u64> = list[told.len()..].iter().map(|of| number(of, "src_port")).collect();
        ports.sort_unstable();
        assert_eq!(ports, [1000, 1001, 1002, 1003], "{at:?}");
        drop((worker, capture));
        assert_eq!(wait_for_bpf_objects(&before, LIMIT), before, "{at:?}");
    }
}

/// A capture without rights calls its plug-ins, too: here eight of them, which keep their state apart.
#[test]
fn eight_plug_ins_of_a_confined_capture_hear_of_changes() {
    if !require_root("eight_plug_ins_of_a_confined_capture_hear_of_changes") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let plugin = object(folder.path());
    let names: Vec<String> = (1..=8).map(|at| format!("life{at}")).collect();
    let parameters: String = names
        .iter()
        .zip(1..)
        .map(|(name, at)| format!("[plugins.{name}.parameters]\nfactor = {at}\n"))
        .collect();
    let list = names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let first = "[[rule]]\nid = 5\nsrc-port = \"1000-1001\"\naction = \"none\"\n";
    let text = format!("{first}[[rule]]\nid = 6\nplugin = [{list}]\naction = \"count\"\n{parameters}");
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, text).unwrap();
    let end = lab.receiver();
    let mut words =
        vec!["count".to_owned(), "-i".into(), end.device.clone(), "--plugin-budget".into(), "1s".into()];
    words.extend(names.iter().flat_map(|name| ["--plugin".to_owned(), format!("{name}={plugin}")]));
    words.extend(["--rules", file.to_str().unwrap(), "--json", "--interval", "0.1"].map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut capture = wirelane(&lab, &end.namespace, &words).unwrap();
    capture.wait_ready(LIMIT).unwrap();
    send_ports(&lab, 8);
    while number(&capture.next_json(LIMIT).unwrap().expect("it goes on"), "absorbed") != 0 {}
    let pid = capture.pid().to_string();
    let ask = |words: &[&str]| {
        let words = [&["rules"], words, &["--pid", &pid]].concat();
        let answer = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(answer.status.success(), "{words:?}: {}", answer.stderr);
        answer
    };
    let state = |name: &str, map: &str| {
        let mut all = ask(&["state", name, map, "--json"]).json().unwrap();
        all.retain(|line| line.get("value").is_some());
        all
    };
    for (name, factor) in names.iter().zip(1..) {
        let counts: Vec<u64> = state(name, "present")
            .iter()
            .filter(|entry| number(entry, "key") == 5)
            .map(|entry| number(entry, "value"))
            .collect();
        assert_eq!(counts, [4 * factor], "{name}");
    }
    ask(&["add", "id=9", "src-port=1003", "action=none"]);
    ask(&["del", "5"]);
    for name in &names {
        let short = |entry: &Value| {
            let of = &entry["value"];
            (number(of, "id"), number(of, "event") as u32, number(of, "packets"))
        };
        let told: Vec<_> = state(name, "changes").iter().map(short).filter(|of| of.1 != 0).collect();
        assert_eq!(told, [(5, ADDED, 0), (6, ADDED, 0), (9, ADDED, 0), (5, REMOVED, 4)], "{name}");
    }
    let end = capture.terminate(LIMIT).unwrap();
    assert!(!end.stderr.contains("calling its function"), "{}", end.stderr);
}
