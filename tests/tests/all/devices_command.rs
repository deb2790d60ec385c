//! `wirelane devices`, as a person and as a script use it.

use std::time::Duration;

use serde_json::Value;
use wirelane_tests::{Child, Finished, ForeignXdp, Lab, require_root, wirelane_binary};

const LIMIT: Duration = Duration::from_secs(240);

fn devices(lab: &Lab, arguments: &[&str]) -> Finished {
    let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
    Child::spawn(command.arg("devices").args(arguments)).unwrap().finish(LIMIT).unwrap()
}

#[test]
fn the_table_shows_each_queue_as_a_virtual_device() {
    if !require_root("the_table_shows_each_queue_as_a_virtual_device") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let plain = devices(&lab, &[]);
    assert!(plain.status.success(), "{}", plain.stderr);
    let line = plain.lines.iter().find(|line| line.starts_with("rx0 ")).unwrap();
    for part in ["up", "veth", "10G", "1500", "rx0@0-3"] {
        assert!(line.split_whitespace().any(|word| word == part), "{part} in {line}");
    }
    assert!(plain.lines.iter().all(|line| line.chars().count() <= 80), "{:#?}", plain.lines);
    assert!(plain.lines.iter().all(|line| !line.contains('\u{1b}')), "no colour but on a terminal");

    let detail = devices(&lab, &["rx0@1-2"]);
    let shown = |queue: &str| detail.lines.iter().any(|line| line.trim_start().starts_with(queue));
    assert!(shown("rx0@1") && shown("rx0@2") && !shown("rx0@0") && !shown("rx0@3"), "{:#?}", detail.lines);
}

#[test]
fn json_is_one_object_a_line() {
    if !require_root("json_is_one_object_a_line") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let json = devices(&lab, &["--json"]).json().unwrap();
    let rx0 = json.iter().find(|line| line["device"] == "rx0").unwrap();
    let queues: Vec<&Value> =
        rx0["rx_queues"].as_array().unwrap().iter().map(|queue| &queue["virtual_device"]).collect();
    assert_eq!(queues, ["rx0@0", "rx0@1", "rx0@2", "rx0@3"]);
    let last = json.last().unwrap();
    assert_eq!(last["final"], true);
    assert!(last["kernel"]["features"].as_array().unwrap().iter().any(|one| one["feature"] == "xdp"));
    assert_eq!(last["kernel"]["missing_capabilities"], Value::Array(Vec::new()));

    let json = devices(&lab, &["--json", "rx0@3,lo"]).json().unwrap();
    assert_eq!(json.len(), 3);
    assert_eq!(json[0]["rx_queues"].as_array().unwrap().len(), 1);
    assert_eq!(json[1]["device"], "lo");
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    if !require_root("what_does_not_exist_is_refused_with_what_does") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let table = [
        ("rx0@9", "'rx0' has no RX queue 9; it has rx0@0 to rx0@3"),
        ("rx9", "no device 'rx9' in this network namespace; there are: lo, rx0"),
        ("rx0@x", "'x' is not a queue number"),
    ];
    for (argument, expected) in table {
        let refused = devices(&lab, &[argument]);
        assert!(!refused.status.success(), "{argument}");
        assert!(refused.stderr.contains(expected), "{argument}: {}", refused.stderr);
        assert!(refused.lines.is_empty(), "standard output holds results only: {:?}", refused.lines);
    }
}

#[test]
fn somebody_elses_program_is_shown() {
    if !require_root("somebody_elses_program_is_shown") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let foreign = ForeignXdp::attach(&lab, lab.receiver(), true).unwrap();
    let table = devices(&lab, &[]);
    assert!(table.lines.iter().any(|line| line.starts_with("rx0 ") && line.contains("native in use")));
    let detail = devices(&lab, &["rx0"]);
    let line = detail.lines.iter().find(|line| line.contains("XDP attached")).unwrap();
    assert!(line.contains("'other_program' id ") && line.ends_with(", native"), "{line}");
    assert!(foreign.is_attached().unwrap(), "looking changes nothing");
}
