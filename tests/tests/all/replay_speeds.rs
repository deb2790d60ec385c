//! Real captures on the wire at several speeds: flows, transactions and calls equal those of the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, wirelane};
use wirelane_tests::{Capture, Lab, LabOptions, corpus, require_root, wirelane_binary};

/// Time limit for the longest recording at ten times its speed.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Number of occurrences of each result.
type Bag = BTreeMap<String, u64>;

/// Facts of a result that do not depend on the speed, with numbers that add up; times are left out. A flow ends some
/// seconds after a FIN, and later packets belong to another flow, so packets and bytes are summed over all flows with
/// the same ends.
fn essence(command: &str, line: &Value) -> Vec<(String, u64)> {
    let text = |fields: &[&str]| {
        let mut text: Vec<String> = fields.iter().map(|field| line[field].to_string()).collect();
        for stream in line["streams"].as_array().into_iter().flatten() {
            text.extend(["codec", "packets", "lost", "duplicate"].map(|field| stream[field].to_string()));
        }
        text.join(" ")
    };
    match command {
        "flows" if line.get("flow").is_some() => {
            let ends = text(&["src", "src_port", "dst", "dst_port", "protocol"]);
            ["packets", "bytes"].map(|number| (format!("{ends} {number}"), column(line, number))).into()
        }
        "http" if line.get("transaction").is_some() => {
            // The waiting time for a gap is measured in time of the wire, so other fields of an incomplete transaction
            // may differ.
            let whole = line.get("marks").is_none_or(|marks| marks.as_array().is_some_and(Vec::is_empty));
            let more: &[&str] = if whole { &["request_body", "response_body"] } else { &[] };
            vec![(text(&[&["method", "host", "uri", "status"], more].concat()), 1)]
        }
        "voip" if line.get("call_id").is_some() => {
            vec![(text(&["call_id", "from_uri", "to_uri", "status", "messages"]), 1)]
        }
        _ => Vec::new(),
    }
}

fn bag<'a>(command: &str, lines: impl Iterator<Item = &'a Value>) -> Bag {
    let mut bag = Bag::new();
    for (text, number) in lines.flat_map(|line| essence(command, line)) {
        *bag.entry(text).or_default() += number;
    }
    bag
}

/// Time-outs beyond the last packet at any speed.
const PATIENT: [(&str, &[&str]); 3] = [
    ("flows", &["--inactive-timeout", "86400", "--active-timeout", "86400"]),
    ("http", &["--idle-timeout", "86400"]),
    ("voip", &["--answer-timeout", "86400", "--silence-timeout", "86400", "--linger", "86400"]),
];

/// Writes the frames of a capture that fit on a wire to a file.
fn on_wire(capture: &Capture, path: &Path) -> bool {
    let whole = path.with_extension("whole");
    std::fs::write(&whole, capture.bytes().unwrap()).unwrap();
    // Complete Ethernet frames.
    let output = Command::new("tshark")
        .args(["-n", "-r", whole.to_str().unwrap(), "-F", "nsecpcap", "-w", path.to_str().unwrap()])
        .args(["-Y", "eth && frame.len == frame.cap_len && frame.len >= 60 && frame.len < 65000"])
        .output()
        .expect("tshark is there: scripts/setup");
    output.status.success() && wirelane_tests::recordings::count_packets(path).unwrap() > 0
}

/// Battery: L7
#[test]
fn results_at_high_speeds_are_those_of_the_file() {
    replay("results_at_high_speeds_are_those_of_the_file", &["1000x", "max"]);
}

/// Battery: L7
#[test]
#[ignore = "takes as long as the recordings: make test-all"]
fn results_at_any_speed_are_those_of_the_file() {
    replay("results_at_any_speed_are_those_of_the_file", &["10x", "100x", "max"]);
}

fn replay(test: &str, speeds: &[&str]) {
    let (true, Some(corpus)) = (require_root(test), corpus(test)) else { return };
    let lab = Lab::with(&LabOptions { queues: 1, mtu: 65_000, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let captures = Capture::all(&corpus).unwrap();
    let mixed = captures.iter().filter(|capture| capture.category == "mixed");
    let largest = |category: &str| {
        let of = captures.iter().filter(|capture| capture.category == category);
        of.max_by_key(|capture| capture.bytes().unwrap().len()).unwrap()
    };
    let chosen: Vec<&Capture> = mixed.chain([largest("http"), largest("voip")]).collect();
    let device = lab.receiver().device.clone();
    let mut found = Bag::new();
    for source in chosen {
        let path = folder.path().join("in.pcap");
        assert!(on_wire(source, &path), "{}: no whole frames", source.id);
        let file = path.to_str().unwrap();
        let expected: Vec<Bag> = PATIENT
            .iter()
            .map(|(command, patience)| {
                let mut program = Command::new(wirelane_binary().unwrap());
                let output = program.args([command, "-r", file, "--json"]).args(*patience).output().unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let lines: Vec<Value> =
                    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                bag(command, lines.iter())
            })
            .collect();
        for (expected, (command, _)) in expected.iter().zip(PATIENT) {
            *found.entry(command.into()).or_default() += expected.len() as u64;
        }
        for speed in speeds {
            let words = |command: &'static str, patience: &'static [&'static str]| {
                let options =
                    ["-i", &device, "--direction", "rx", "--json", "--ring-size", "64", "--interval", "60"];
                capture(&lab, &[&[command], &options[..], patience].concat()).unwrap()
            };
            let children: Vec<_> =
                PATIENT.map(|(command, patience)| (command, words(command, patience))).into();
            let send = ["send", "-i", &lab.sender().device, "--replay", file, "--speed", speed, "--json"];
            let sent =
                last_of(&wirelane(&lab, &lab.sender().namespace, &send).unwrap().finish(PATIENCE).unwrap())
                    .unwrap();
            assert_eq!(sent["sent"], sent["read"], "{sent}");
            for ((command, child), expected) in children.into_iter().zip(&expected) {
                let finished = child.terminate(LIMIT).unwrap();
                let last = last_of(&finished).unwrap();
                let lines: Vec<Value> = finished.json().unwrap();
                let live = bag(command, lines.iter());
                let case = format!("{}, {command} at {speed}", source.id);
                assert_eq!(column(&last, "seen"), column(&sent, "sent"), "{case}");
                if column(&last, "lost") == 0 {
                    assert!(live == *expected, "{case}: {}", difference(&live, expected));
                } else {
                    // Results of lost packets may be missing, but there are no others.
                    let more =
                        live.iter().any(|(text, number)| expected.get(text).is_none_or(|most| number > most));
                    assert!(command != "flows" || !more, "{case}: {}", difference(&live, expected));
                }
            }
        }
    }
    println!("{found:?}");
    assert!(found["flows"] > 500 && found["http"] > 50 && found["voip"] > 3, "{found:?}");
}

/// Results that only one of the two has.
fn difference(live: &Bag, file: &Bag) -> String {
    let only = |one: &Bag, other: &Bag| {
        let missing = one.iter().filter(|(text, number)| other.get(*text) != Some(number));
        missing.take(5).map(|(text, number)| format!("{number} x {text}")).collect::<Vec<_>>().join("\n  ")
    };
    format!("live:\n  {}\nfile:\n  {}", only(live, file), only(file, live))
}
