//! Rules on capture files, and the commands without a capture: `rules check` and `rules explain`. No root.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use wirelane_tests::calls::Scene;
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::wirelane_binary;

fn wirelane(words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last object of a successful command.
fn last(words: &[&str]) -> Value {
    let output = wirelane(words);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Time of the first packet of a capture.
const START_NS: u64 = 1_700_000_000_000_000_000;

/// A capture of so many UDP packets of 100 bytes, a millisecond apart.
fn captured(folder: &Path, packets: u64) -> String {
    let path = folder.join("capture.pcap");
    let mut output = Vec::new();
    write_header(&mut output).unwrap();
    for number in 0..packets {
        // From 192.0.2.1, port 4660, to 198.51.100.1, port 53.
        let mut packet = vec![0x02; 12];
        packet.extend([0x08, 0x00, 0x45, 0, 0, 86, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 1]);
        packet.extend([0x12, 0x34, 0, 53, 0, 66, 0, 0]);
        packet.resize(100, number as u8);
        write_packet(&mut output, START_NS + number * 1_000_000, &packet).unwrap();
    }
    fs::write(&path, output).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_counted_by_rules() {
    const PACKETS: u64 = 1000;
    let folder = tempfile::tempdir().unwrap();
    let capture = captured(folder.path(), PACKETS);
    for (rules, expected) in [
        ("[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"drop\"\n", (PACKETS, 0, 0)),
        ("[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"count\"\n", (0, PACKETS, 0)),
        ("default = \"drop\"\n[[rule]]\nid = 1\nprotocol = \"tcp\"\naction = \"pass\"\n", (PACKETS, 0, 0)),
        ("[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"none\"\n", (0, 0, PACKETS)),
        ("[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"digest\"\n", (0, 0, PACKETS)),
    ] {
        let rules = file(folder.path(), "rules.toml", rules);
        let last = last(&["count", "-r", &capture, "--json", "--rules", &rules]);
        let column = |name: &str| last[name].as_u64().unwrap();
        let (filtered, absorbed, analysed) = expected;
        assert_eq!(
            (column("filtered"), column("absorbed"), column("analysed")),
            (filtered, absorbed, analysed)
        );
        assert_eq!((column("seen"), column("delivered"), column("in_flight")), (PACKETS, analysed, 0));
        let line = &last["rule_stats"]["rules"][0];
        let hit = if last["rule_stats"]["default"] == "drop" { 0 } else { PACKETS };
        assert_eq!(line["hits"]["packets"].as_u64().unwrap(), hit);
        if hit > 0 {
            assert_eq!(line["hits"]["bytes"], hit * 100);
            assert_eq!(line["hits"]["first_ns"], START_NS);
            assert_eq!(line["hits"]["last_ns"], START_NS + (PACKETS - 1) * 1_000_000);
        }
    }
}

/// A rule inserted by packets that expires by packet time: the first packet of every second passes.
#[test]
fn packets_of_a_file_make_rules_that_age() {
    let folder = tempfile::tempdir().unwrap();
    let capture = captured(folder.path(), 5000);
    let rules = "[[rule]]\nid = 1\nprotocol = \"udp\"\naction = \"pass\"\n\
                 insert = { fields = [\"protocol\"], action = \"drop\", hard = 1 }\n";
    let rules = file(folder.path(), "rules.toml", rules);
    let last = last(&["count", "-r", &capture, "--json", "--rules", &rules]);
    assert_eq!((last["analysed"].as_u64(), last["filtered"].as_u64()), (Some(5), Some(4995)));
    assert_eq!(last["rule_stats"]["rules"][0]["inserted"], 5);
}

/// `record` with rules writes the packets that they pass, truncated as they say.
#[test]
fn a_file_is_recorded_by_rules() {
    let folder = tempfile::tempdir().unwrap();
    let capture = captured(folder.path(), 100);
    for (action, bytes) in [("action = \"pass\"\ntruncate = 70", 70), ("action = \"digest\"", 0)] {
        let out = folder.path().join(format!("{bytes}.pcapng"));
        let rules = format!("[[rule]]\nid = 1\nprotocol = \"udp\"\n{action}\ntag = 3\n");
        let rules = file(folder.path(), "rules.toml", &rules);
        let words = ["record", "-r", &capture, "-w", out.to_str().unwrap(), "--json", "--rules", &rules];
        let last = last(&words);
        assert_eq!(last["analysed"], 100);
        let mut records = 0;
        let mut source = wirelane::FileSource::open(&out, wirelane::FileOptions::as_written()).unwrap();
        while let Some(batch) = source.next_batch(std::time::Duration::ZERO).unwrap() {
            for record in batch {
                assert_eq!((record.data().len(), record.wire_len()), (bytes, 100));
                records += 1;
            }
        }
        assert_eq!(records, 100);
    }
}

#[test]
fn check_says_what_a_file_has_and_every_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let good = file(folder.path(), "good.toml", "[[rule]]\nid = 1\nport = 80\naction = \"drop\"\n");
    let output = wirelane(&["rules", "check", &good]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("1 wildcard rule, 0 exact-match rules"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(last(&["rules", "check", &good, "--json"])["rules"], 1);
    let bad =
        "[[rule]]\nid = 1\nprot = 80\naction = \"drop\"\n[[rule]]\nid = 1\nport = 99999\naction = \"dorp\"\n";
    let bad = file(folder.path(), "bad.toml", bad);
    let output = wirelane(&["rules", "check", &bad]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for place in ["bad.toml:3:1", "bad.toml:7:8", "bad.toml:8:10"] {
        assert!(said.contains(place), "{place} in {said}");
    }
    // The same error when a capture is started with the file, before anything is done.
    let capture = captured(folder.path(), 1);
    let output = wirelane(&["count", "-r", &capture, "--rules", &bad]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let output = wirelane(&["count", "-r", &capture, "--rules-capacity", "rules=0"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn explain_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let rules = "[[rule]]\nid = 1\nname = \"web\"\nport = 80\naction = \"drop\"\n\
                 [[rule]]\nid = 2\nprotocol = \"udp\"\naction = \"count\"\n\
                 [[rule]]\nid = 3\naction = \"pass\"\n";
    let rules = file(folder.path(), "rules.toml", rules);
    let capture = captured(folder.path(), 3);
    let output = wirelane(&["rules", "explain", &rules, &capture, "--number", "2"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in
        ["rule 1 (web): not hit: port = 80", "rule 2: hit: count", "rule 3: not asked", "=> count, by rule 2"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    // The same packet in hex digits.
    let bytes = fs::read(&capture).unwrap();
    let hex: String = bytes[24 + 16..24 + 16 + 100].iter().map(|byte| format!("{byte:02x}")).collect();
    let explained = last(&["rules", "explain", &rules, &hex, "--json"]);
    assert_eq!((&explained["action"], &explained["rule_id"]), (&"count".into(), &2.into()));
    for (words, reason) in [
        (["rules", "explain", &rules, &capture, "--number", "9"], "3 packets, and no number 9"),
        (["rules", "explain", &rules, "/no/such/file", "--number", "1"], "neither a capture file nor"),
    ] {
        let output = wirelane(&words);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(reason), "{}", text(&output.stderr));
    }
}

/// UDP packets from each of some ends to each of them.
fn between_ends(folder: &Path) -> String {
    let recording = folder.join("ends.pcap");
    let mut scene = Scene::new();
    let addresses = ["192.0.2.1", "192.0.2.200", "198.51.100.7", "203.0.113.1"];
    let ports = [53, 6000, 6001, 7000];
    let ends: Vec<String> = addresses
        .iter()
        .flat_map(|address| ports.map(|port| format!("{address}:{port}")))
        .chain(["[2001:db8::1]:6000", "[2001:db8::2]:7000"].map(str::to_owned))
        .collect();
    let mut at = 0;
    for from in &ends {
        for to in ends.iter().filter(|to| to.starts_with('[') == from.starts_with('[')) {
            scene.udp(at, from, to, &[0; 20]);
            at += 10;
        }
    }
    scene.write(&recording).unwrap();
    recording.to_str().unwrap().to_owned()
}

/// Asserts that a rule with this text counts the packets that tcpdump prints by an expression.
fn counts_as_tcpdump(folder: &Path, recording: &str, content: &str, expression: &str) {
    let rules = file(folder, "rules.toml", content);
    let ours = last(&["count", "-r", recording, "--json", "--rules", &rules])["absorbed"].as_u64();
    let theirs = Command::new("tcpdump").args(["-n", "-t", "-r", recording, expression]).output().unwrap();
    assert!(theirs.status.success(), "{}", text(&theirs.stderr));
    let theirs = text(&theirs.stdout).lines().count() as u64;
    assert!(theirs > 0, "{expression}");
    assert_eq!(ours, Some(theirs), "{expression}");
}

fn has_tcpdump(test: &str) -> bool {
    let there = Command::new("tcpdump").arg("--version").output().is_ok();
    if !there {
        println!("left out: {test} (no tcpdump)");
    }
    there
}

/// A rule for both ways counts the packets that tcpdump finds by the expression of both directions.
#[test]
fn a_rule_for_both_ways_counts_as_tcpdump_does() {
    if !has_tcpdump("a_rule_for_both_ways_counts_as_tcpdump_does") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recording = between_ends(folder.path());
    for (fields, forth, back) in [
        (
            "src = \"192.0.2.1\"\ndst = \"198.51.100.7\"",
            "src host 192.0.2.1 and dst host 198.51.100.7",
            "dst host 192.0.2.1 and src host 198.51.100.7",
        ),
        (
            "src = \"192.0.2.0/24\"\nsrc-port = \"6000-6001\"\ndst-port = [7000, 53]",
            "src net 192.0.2.0/24 and src portrange 6000-6001 and (dst port 7000 or dst port 53)",
            "dst net 192.0.2.0/24 and dst portrange 6000-6001 and (src port 7000 or src port 53)",
        ),
        (
            "src = \"192.0.2.0/24\"\nnot.dst-port = 53\nhost = \"203.0.113.1\"",
            "src net 192.0.2.0/24 and not dst port 53 and host 203.0.113.1",
            "dst net 192.0.2.0/24 and not src port 53 and host 203.0.113.1",
        ),
        (
            "src = \"2001:db8::1\"\ndst-port = 7000",
            "src host 2001:db8::1 and dst port 7000",
            "dst host 2001:db8::1 and src port 7000",
        ),
    ] {
        let content = format!("[[rule]]\nid = 1\n{fields}\nboth-ways = true\naction = \"count\"\n");
        counts_as_tcpdump(folder.path(), &recording, &content, &format!("({forth}) or ({back})"));
    }
}

/// Sets of every key contain the packets that tcpdump finds by the expression of their entries.
#[test]
fn sets_of_any_key_count_as_tcpdump_does() {
    if !has_tcpdump("sets_of_any_key_count_as_tcpdump_does") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let recording = between_ends(folder.path());
    let dns = "(src host 192.0.2.1 and udp src port 53)";
    let back = "(dst host 192.0.2.1 and udp dst port 53)";
    for (of, entries, condition, expression) in [
        ("address", "\"192.0.2.1\"", "src-in", "src host 192.0.2.1".to_owned()),
        (
            "network",
            "\"192.0.2.0/25\", \"198.51.0.0/16\", \"2001:db8::2/127\"",
            "src-in",
            "src net 192.0.2.0/25 or src net 198.51.0.0/16 or src host 2001:db8::2".to_owned(),
        ),
        ("network", "\"192.0.2.0/24\"", "host-in", "net 192.0.2.0/24".to_owned()),
        ("network", "\"0.0.0.0/0\"", "not.dst-in", "ip6".to_owned()),
        ("address-port", "\"192.0.2.1:53\"", "src-in", dns.to_owned()),
        (
            "address-port",
            "\"192.0.2.1:53\", \"[2001:db8::1]:6000\"",
            "host-in",
            format!("{dns} or {back} or (host 2001:db8::1 and port 6000)"),
        ),
        ("address-port-protocol", "\"udp 192.0.2.1:53\", \"tcp 192.0.2.200:53\"", "dst-in", back.to_owned()),
        (
            "address-port-protocol",
            "\"udp 192.0.2.1:53\", \"sctp 203.0.113.1:7000\"",
            "not.host-in",
            format!("not {dns} and not {back}"),
        ),
        ("flow", "\"udp 192.0.2.1:53 203.0.113.1:7000\"", "flow-in", {
            let there = "src host 192.0.2.1 and src port 53 and dst host 203.0.113.1 and dst port 7000";
            format!("({there}) or ({})", there.replace("src", "x").replace("dst", "src").replace('x', "dst"))
        }),
    ] {
        let content = format!(
            "[[sets]]\nname = \"set\"\nof = \"{of}\"\nentries = [{entries}]\n[[rule]]\nid = 1\n{condition} = \"set\"\n\
             action = \"count\"\n"
        );
        counts_as_tcpdump(folder.path(), &recording, &content, &expression);
    }
}
