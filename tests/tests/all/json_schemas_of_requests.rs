//! The JSON schemas of commands that answer a request, or ask running captures.

use std::fs;
use std::path::Path;
use std::process::Command;

use wirelane_tests::calls::Scene;
use wirelane_tests::numbers::{LIMIT, capture, send, wirelane};
use wirelane_tests::{Child, Lab, repository, require_root, wirelane_binary};

use crate::application_outputs::scenes::{answered, web};
use crate::json_schemas::{check, check_all, lines, schema};

const RULES: &str = "default = \"pass\"\n[[sets]]\nname = \"s\"\nentries = [\"192.0.2.1\"]\n\
    [[rule]]\nid = 1\nsrc-in = \"s\"\naction = \"drop\"\n[[rule]]\nid = 2\nport = 53\naction = \"count\"\n\
    [[exact]]\nid = 3\nsrc = \"10.0.0.9\"\naction = \"drop\"\n";

/// Twelve seconds of packets, one per second.
fn write_capture(file: &Path) {
    let mut bytes: Vec<u8> =
        [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for second in 0..12u32 {
        let mut frame =
            vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        frame.extend([10, 0, 0, (second % 3) as u8, 192, 0, 2, 1, 16, 0, 0, 53, 0, 8, 0, 0]);
        let header = [1_772_366_400 + second, 0, frame.len() as u32, frame.len() as u32];
        bytes.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
    }
    fs::write(file, bytes).unwrap();
}

const PROBE: &str = "interval = \"1s\"\n\
    [[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bytes\", \"lengths\", \"top-src\", \"distinct-src\"]\n\
    [[measurement]]\nname = \"keys\"\nkey = [\"src\"]\nvalues = [\"packets\", \"entropy\"]\nkeys = 2\n\
    [[alarm]]\nname = \"any\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 0\n\
    [[alarm]]\nname = \"each\"\nmeasurement = \"keys\"\nvalue = \"packets\"\nabove = 0\n";

#[test]
fn answers_about_files_and_devices_are_what_the_schemas_say() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_capture(&here.join("in.pcap"));
    fs::write(here.join("rules.toml"), RULES).unwrap();
    fs::write(here.join("p.toml"), PROBE).unwrap();
    assert_eq!(check_all("devices", &lines(here, &["devices"])), ["device", "final"]);
    assert_eq!(check_all("rules", &lines(here, &["rules", "check", "rules.toml"])), ["table_bytes"]);
    let explained = lines(here, &["rules", "explain", "rules.toml", "in.pcap"]);
    assert_eq!(check_all("rules", &explained), ["findings"]);
    let probed = lines(here, &["probe", "p.toml", "-r", "in.pcap", "--store", "s.db"]);
    assert_eq!(check_all("probe", &probed), ["alarm", "final", "ready", "total"]);
    lines(here, &["flows", "-r", "in.pcap", "--store", "s.db"]);
    assert_eq!(check_all("report", &lines(here, &["report", "--store", "s.db"])), ["section"]);
    // Nobody listens there: the status says what waits.
    let mut ship = Command::new(wirelane_binary().unwrap());
    let words = ["ship", "s.db", "--to", "clickhouse+http://127.0.0.1:9/x", "--once", "--json"];
    let done = Child::spawn(ship.args(words).current_dir(here)).unwrap().finish(LIMIT).unwrap();
    assert_eq!(done.status.code(), Some(1), "{}", done.stderr);
    let status = done.json().unwrap();
    assert_eq!(check_all("ship", &status), ["to"]);
    assert!(status[0]["waiting_files"].as_u64() > Some(0), "{}", status[0]);
    let site = "[capture]\nread = \"in.pcap\"\n[flows]\nexport = [\"file:f.json\"]\n[http]\n[voip]\n\
                [record]\nwrite = \"out.pcapng\"\n[probe]\nconfig = \"p.toml\"\n";
    fs::write(here.join("site.toml"), site).unwrap();
    assert_eq!(check_all("monitor", &lines(here, &["monitor", "site.toml"])), ["final", "ready"]);
}

#[test]
fn answers_of_captures_and_the_generator_are_what_the_schemas_say() {
    if !require_root("answers_of_captures_and_the_generator_are_what_the_schemas_say") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (rules, pcap) = (place("rules.toml"), place("in.pcap"));
    fs::write(&rules, RULES).unwrap();
    write_capture(pcap.as_ref());
    let (asks, answers) = (lab.sender().clone(), lab.receiver().clone());
    let run = |namespace: &str, words: &[&str]| {
        let words = [words, &["--json"]].concat();
        let done = wirelane(&lab, namespace, &words).unwrap().finish(LIMIT).unwrap();
        assert!(done.status.success(), "{words:?}: {}", done.stderr);
        done.json().unwrap()
    };
    let here = |words: &[&str]| run(&answers.namespace, words);

    let counting = capture(&lab, &["count", "-i", &answers.device, "--json", "--rules", &rules]).unwrap();
    send(&lab, 100, &["--flows", "4"]).unwrap();
    assert_eq!(check_all("groups", &here(&["groups"])), ["device", "final"]);
    for (words, kinds) in [
        (&["instances"][..], &["final", "instances", "socket"][..]),
        (&["list", "--exact"], &["age_s", "exact_capacity", "final", "inserted"]),
        (&["stats"], &["exact_capacity"]),
        (&["add", "id=9", "port=99", "action=drop"], &["added"]),
        (&["del", "9"], &["added"]),
        (&["load", &rules], &["added"]),
        (&["flush"], &["added"]),
    ] {
        assert_eq!(check_all("rules", &here(&[&["rules"], words].concat())), kinds, "{words:?}");
    }
    counting.terminate(LIMIT).unwrap();

    let sends = |words: &[&str]| run(&asks.namespace, &[&["send", "-i", &asks.device], words].concat());
    let generated = sends(&["--packets", "500", "--rate", "1000", "--interval", "0.2"]);
    assert_eq!(check_all("send", &generated), ["interval", "threads"]);
    assert_eq!(check_all("send", &sends(&["--replay", &pcap, "--rate", "1000"])), ["read"]);

    for (what, kinds) in [("plan", ["changes", "final"]), ("status", ["entries", "final"])] {
        assert_eq!(check_all("tune", &here(&["tune", what, "-i", &answers.device])), kinds, "{what}");
    }

    fs::write(place("p.toml"), PROBE).unwrap();
    let probing = capture(&lab, &["probe", &place("p.toml"), "-i", &answers.device, "--json"]).unwrap();
    send(&lab, 100, &["--flows", "4"]).unwrap();
    assert_eq!(check_all("probe", &here(&["probe", "show"])), ["interval_ns"]);
    assert_eq!(check_all("probe", &here(&["probe", "set", "interval=2s"])), ["interval_ns"]);
    check_all("probe", &probing.terminate(LIMIT).unwrap().json().unwrap());

    let site = format!(
        "[capture]\ninterface = \"{}\"\ndirection = \"rx\"\n[flows]\nexport = [\"file:{}\"]\n",
        answers.device,
        place("f.json")
    );
    fs::write(place("site.toml"), site).unwrap();
    let monitor = capture(&lab, &["monitor", &place("site.toml"), "--json"]).unwrap();
    assert_eq!(check_all("status", &here(&["status"])), ["pid"]);
    assert_eq!(check_all("reload", &here(&["reload"])), ["pid"]);
    let kinds = check_all("monitor", &monitor.terminate(LIMIT).unwrap().json().unwrap());
    assert!(kinds.contains(&"final".to_owned()), "{kinds:?}");
}

/// Each ready-made question has the columns of its schema, in a store with flows, calls, transactions and a ledger.
#[test]
fn answers_of_questions_are_what_the_schema_says() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    write_capture(&here.join("in.pcap"));
    let mut scene = Scene::new();
    answered(&mut scene);
    scene.write(&here.join("calls.pcap")).unwrap();
    web(here);
    for (command, file) in [("flows", "in.pcap"), ("voip", "calls.pcap"), ("http", "web.pcap")] {
        lines(here, &[command, "-r", file, "--store", "s.db"]);
    }
    let asked = |words: &[&str]| {
        let mut query = Command::new(wirelane_binary().unwrap());
        query.arg("query").args(words).current_dir(here).output().unwrap()
    };
    let schema = schema("query");
    let mut questions = Vec::new();
    for question in schema["anyOf"].as_array().unwrap() {
        let title = question["title"].as_str().unwrap();
        questions.push(title);
        let words = title.replace("ADDRESS", "192.0.2.1");
        let words: Vec<&str> = words.split(' ').chain(["--store", "s.db"]).collect();
        let output = asked(&[&words[..], &["--csv"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let head = String::from_utf8(output.stdout).unwrap();
        let mut columns: Vec<&str> = head.lines().next().unwrap().split(',').collect();
        columns.sort_unstable();
        // The keys of an object of serde_json are in order.
        let known: Vec<&String> = question["properties"].as_object().unwrap().keys().collect();
        assert_eq!(known, columns, "{title}");
        let rows = lines(here, &[&["query"], &words[..]].concat());
        assert!(!rows.is_empty(), "{title}");
        for row in rows {
            assert_eq!(check(question, &row, title), Ok(()), "{row}");
        }
    }
    // Without a question, the command names all of them.
    let error = String::from_utf8(asked(&["--store", "s.db"]).stderr).unwrap();
    let (_, all) = error.trim_end().split_once("one of: ").unwrap();
    let mut all: Vec<&str> = all.split(", ").collect();
    all.sort_unstable();
    questions.sort_unstable();
    assert_eq!(questions, all);
}

/// Every command with `--json` has a schema, and every schema is named in the documents.
#[test]
fn every_command_with_json_has_a_schema() {
    let help = |words: &[&str]| {
        let output = Command::new(wirelane_binary().unwrap()).args(words).arg("--help").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = repository().join("docs/reference/schemas");
    let page = fs::read_to_string(repository().join("docs/reference/json.md")).unwrap();
    let commands = fs::read_to_string(repository().join("docs/reference/command-line.md")).unwrap();
    let table = commands.split("## ").next().unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let names =
        cells.flat_map(|cell| cell.split(", ").filter_map(|name| name.strip_prefix('`')?.strip_suffix('`')));
    let mut found = 0;
    for name in names {
        if !help(&[name]).contains("--json") {
            continue;
        }
        found += 1;
        assert!(folder.join(name).with_extension("json").exists(), "{name} has no schema");
    }
    assert!(found >= 15, "{found} commands");
    for file in fs::read_dir(&folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(page.contains(&format!("(schemas/{name})")), "{name} is not in docs/reference/json.md");
    }
}
