//! `wirelane packets`: a line for each packet, as text and as JSON, from a device and from a file.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, send};
use wirelane_tests::ruled::{PORTS, SENT, TURNS};
use wirelane_tests::{Child, Lab, corpus, require_root, wirelane_binary};

/// A different kind of rule for the packets of each port.
const RULES: &str = r#"
    [[patterns]]
    name = "magic"
    id = 20
    text = ["WLn1", "W"]

    [[rule]]
    id = 1
    src-port = "1000-1003"
    action = "pass"
    tag = 5

    [[rule]]
    id = 2
    src-port = "1004-1005"
    payload = "magic"
    action = "pass"

    [[rule]]
    id = 3
    src-port = "1006"
    action = "digest"

    [[rule]]
    id = 4
    src-port = "1007"
    action = "pass"
    truncate = 60

    [[rule]]
    id = 5
    src-port = "1008-1099"
    action = "drop"
"#;

#[test]
fn each_packet_is_a_line_that_says_what_rules_said() {
    if !require_root("each_packet_is_a_line_that_says_what_rules_said") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let rules = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(rules.path(), RULES).unwrap();
    let device = lab.receiver().device.clone();
    let shown = SENT - 92 * TURNS;
    let words = [
        "packets",
        "-i",
        &device,
        "--hook",
        "native",
        "--rules",
        rules.path().to_str().unwrap(),
        "-c",
        &shown.to_string(),
    ];
    let child = capture(&lab, &[&words[..], &["--json"]].concat()).unwrap();
    send(&lab, SENT, &PORTS).unwrap();
    let finished = child.finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let objects = finished.json().unwrap();
    let (records, others): (Vec<&Value>, Vec<&Value>) =
        objects.iter().partition(|object| object.get("record").is_some());
    assert_eq!(column(others.last().unwrap(), "analysed"), shown);
    assert_eq!(column(others.last().unwrap(), "filtered"), 92 * TURNS);
    let mut ports: BTreeMap<u64, u64> = BTreeMap::new();
    for record in &records {
        let port = record["src_port"].as_u64().unwrap();
        *ports.entry(port).or_default() += 1;
        let (rule, tag, patterns) = match port {
            1000..=1003 => (Some(1), Some(5), None),
            1004..=1005 => (Some(2), None, Some(vec![21, 20])),
            1006 => (Some(3), None, None),
            1007 => (Some(4), None, None),
            _ => (None, None, None),
        };
        let number = |name: &str| record.get(name).map(|value| value.as_u64().unwrap());
        let found: Option<Vec<u64>> = record
            .get("patterns")
            .map(|ids| ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect());
        assert_eq!((number("rule"), number("tag"), found), (rule, tag, patterns), "{record}");
        let (kind, captured) = match port {
            1006 => ("digest", 0),
            1007 => ("packet", 60),
            _ => ("packet", 100),
        };
        assert_eq!((&record["record"], &record["cap_len"]), (&kind.into(), &captured.into()), "{record}");
        let fixed = ["device", "l3", "protocol", "wire_len"].map(|name| record[name].clone());
        assert_eq!(Value::from(fixed.to_vec()), serde_json::json!([device, "ipv4", 17, 100]), "{record}");
        assert!(record["time"].as_str().unwrap().starts_with("20"), "{record}");
    }
    let expected = (1000..1256).filter(|port| !(1008..1100).contains(port)).map(|port| (port, TURNS));
    assert_eq!(ports, expected.collect());

    // The same as text; the ledger is on standard error.
    let child = lab
        .command(&lab.receiver().namespace, wirelane_binary().unwrap())
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_program(&lab, &device);
    send(&lab, SENT, &PORTS).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let (text, aside) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let of = |end: &str| text.lines().filter(|line| line.ends_with(end)).count() as u64;
    assert_eq!(of(" 100 bytes rule 1 tag 5"), 4 * TURNS, "{text}");
    assert_eq!(of(" 100 bytes rule 2 patterns 21,20"), 2 * TURNS, "{text}");
    assert_eq!(of(" 100 bytes snapped rule 3"), TURNS, "{text}");
    assert_eq!(of(" 100 bytes snapped rule 4"), TURNS, "{text}");
    let digest = text.lines().find(|line| line.contains(" digest ")).unwrap();
    assert!(
        digest.contains(&format!(" {device}@0 digest ipv4 udp ")) && digest.contains(":1006 > "),
        "{digest}"
    );
    assert_eq!(text.lines().count() as u64, shown);
    assert!(aside.contains("the ledger balances"), "{aside}");
}

/// Waits until a capture runs on the receiver.
fn wait_for_program(lab: &Lab, device: &str) {
    let end = std::time::Instant::now() + LIMIT;
    let namespace = &lab.receiver().namespace;
    while !lab.exec(namespace, &["ip", "link", "show", device]).unwrap().contains("prog/xdp") {
        assert!(std::time::Instant::now() < end, "nothing captures on {device}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The program is attached before the group exists: only `groups` shows that the capture is ready.
    let groups = wirelane_binary().unwrap();
    let groups = groups.to_str().unwrap();
    while !lab.exec(namespace, &[groups, "groups", "--json"]).unwrap().contains(device) {
        assert!(std::time::Instant::now() < end, "no group on {device}");
    }
}

#[test]
fn a_file_is_shown_and_a_reader_may_go() {
    let Some(corpus) = corpus("a_file_is_shown_and_a_reader_may_go") else { return };
    let file = corpus.join("captures/voip");
    let mut files: Vec<_> = std::fs::read_dir(file)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let binary = wirelane_binary().unwrap();
    let mut all = 0;
    for file in files.iter().take(8) {
        let mut command = Command::new(&binary);
        let finished = Child::spawn(command.args(["packets", "--json", "-r"]).arg(file)).unwrap();
        let finished = finished.finish(LIMIT).unwrap();
        let records = finished.json().unwrap();
        let shown = records.iter().filter(|object| object.get("record").is_some()).count() as u64;
        assert_eq!(shown, column(records.last().unwrap(), "analysed"), "{}", file.display());
        all += shown;
    }
    assert!(all > 100, "{all}");
    // The largest file: more lines than fit into a pipe.
    let largest = files.iter().max_by_key(|file| std::fs::metadata(file).unwrap().len()).unwrap();
    let shell = format!("set -o pipefail; {} packets -r {} | head -n 1", binary.display(), largest.display());
    let output = Command::new("bash").args(["-c", &shell]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().count(), 1);
}
