//! `--metrics` of every command that captures: the ledger, the load of workers, and the state of outputs.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Lab, program_file, require_root};

/// The metrics at this address in the receiver's namespace.
fn scrape(lab: &Lab, address: SocketAddr) -> String {
    let get = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    lab.enter(&lab.receiver().namespace, get).unwrap()
}

/// The words of a command, and the analysis and name of its output, if it has one.
type Case<'a> = (&'a [&'a str], Option<(&'a str, &'a str)>);

/// The value of a metric with these labels.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Plug-ins serve their packets, records and counters by name.
#[test]
fn plug_ins_serve_their_counters() {
    if !require_root("plug_ins_serve_their_counters") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("rules.toml");
    std::fs::write(&file, "[[rule]]\nid = 1\nplugin = \"turns\"\naction = \"count\"\n").unwrap();
    let plugin = format!("turns={}", program_file(folder.path(), "plugin_turns").unwrap().display());
    let address: SocketAddr = "127.0.0.1:9464".parse().unwrap();
    let (device, shown) = (&lab.receiver().device, address.to_string());
    let words =
        ["count", "-i", device, "--direction", "rx", "--interval", "0.1", "--json", "--metrics", &shown];
    let rules = ["--plugin", &plugin, "--plugin-budget", "1s", "--rules", file.to_str().unwrap()];
    let child = capture(&lab, &[&words[..], &rules].concat()).unwrap();
    // Every second packet of each of 8 ports matches; of these, 4 have no place in a map of 4 entries.
    send(&lab, 80, &["--pattern", "ports", "--flows", "8", "--src-port", "1000"]).unwrap();
    let begun = Instant::now();
    let of = |text: &str, name: &str, label: &str| {
        value(text, &format!("wirelane_plugin_{name}_total{{plugin=\"turns\",{label}}}"))
    };
    let text = loop {
        let text = scrape(&lab, address);
        if of(&text, "packets", "outcome=\"asked\"") == Some(80.0) {
            break text;
        }
        assert!(begun.elapsed() < LIMIT, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
    let line = &last["plugins"][0];
    assert_eq!((column(line, "asked"), column(line, "matched")), (80, 40), "{last}");
    for (name, label, number) in [
        ("packets", "outcome=\"matched\"", 40),
        ("packets", "outcome=\"refused\"", 0),
        ("records", "outcome=\"written\"", 0),
        ("records", "outcome=\"lost\"", 0),
        ("counter", "counter=\"refused\"", column(&line["counters"], "refused")),
        ("counter", "counter=\"removed\"", column(&line["counters"], "removed")),
    ] {
        assert_eq!(of(&text, name, label), Some(number as f64), "{name} {label}: {text}");
    }
    assert!(column(&line["counters"], "refused") > 0, "{last}");
}

/// Each command that captures serves its ledger and the load of its workers, and those with outputs to files serve
/// whether these work and what is in them, as the last object has it.
#[test]
fn every_capture_serves_its_ledger_workers_and_outputs() {
    if !require_root("every_capture_serves_its_ledger_workers_and_outputs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (recording, flows) = (at("all.pcapng"), format!("file:{}", at("flows.json")));
    let commands: [Case<'_>; 4] = [
        (&["count"], None),
        (&["packets"], None),
        (&["record", "-w", &recording], Some(("record", &recording))),
        (
            &["flows", "--quiet", "--inactive-timeout", "0.2", "--output-rate", "0", "--export", &flows],
            Some(("flows", &flows)),
        ),
    ];
    let lab = Lab::new(1).unwrap();
    let address: SocketAddr = "127.0.0.1:9464".parse().unwrap();
    let (device, shown) = (&lab.receiver().device, address.to_string());
    for (words, output) in commands {
        let options = ["-i", device, "--direction", "rx", "--interval", "0.1", "--json", "--metrics", &shown];
        let child = capture(&lab, &[words, &options].concat()).unwrap();
        send(&lab, 500, &["--flows", "5"]).unwrap();
        let begun = Instant::now();
        let text = loop {
            let text = scrape(&lab, address);
            let seen = value(&text, "wirelane_packets_total{column=\"seen\"}");
            let written = output.map(|(analysis, target)| {
                let labels = format!("analysis=\"{analysis}\",output=\"{target}\"");
                value(&text, &format!("wirelane_output_records_total{{{labels},outcome=\"written\"}}"))
            });
            let enough = |written: Option<f64>| written.is_some_and(|written| written >= 5.0);
            if seen == Some(500.0) && written.is_none_or(enough) {
                break text;
            }
            assert!(begun.elapsed() < LIMIT, "{words:?}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        };
        let busy = value(&text, "wirelane_worker_busy{worker=\"0\"}").unwrap_or_else(|| panic!("{text}"));
        assert!((0.0..=1.0).contains(&busy), "{text}");
        if let Some((analysis, target)) = output {
            let works = format!("wirelane_output_works{{analysis=\"{analysis}\",output=\"{target}\"}}");
            assert_eq!(value(&text, &works), Some(1.0), "{text}");
        }
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        assert_eq!(column(&last, "seen"), 500, "{words:?}: {last}");
    }
}
