//! Other probes and collectors than those of `flows.rs`, over a capture of real traffic: softflowd finds the same
//! flows, and goflow2 receives all exported ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, last_of, send, wirelane};
use wirelane_tests::{Lab, corpus, repository, require_root};

/// Mixed real traffic as an uncompressed capture in this folder; `None` after a message that the test is skipped.
fn traffic(test: &str, folder: &Path) -> Option<PathBuf> {
    let corpus = corpus(test)?;
    let packed = fs::read(corpus.join("captures/mixed/mixed--traffic-a.pcap.gz")).unwrap();
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
    let path = folder.join("traffic.pcap");
    fs::write(&path, plain).unwrap();
    Some(path)
}

fn is_there(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !there.status.success() {
        println!("left out: what {program} makes of it (it is not installed)");
    }
    there.status.success()
}

/// Waits until this UDP port has a socket in the namespace with nothing in its queue.
fn wait_for_port(lab: &Lab, port: u16) {
    let end = Instant::now() + LIMIT;
    let (local, idle) = (format!(":{port:04X} "), ":00000000 00:");
    loop {
        let table = lab.exec(&lab.receiver().namespace, &["cat", "/proc/net/udp", "/proc/net/udp6"]).unwrap();
        if table.lines().any(|line| line.contains(&local) && line.contains(idle)) {
            return;
        }
        assert!(Instant::now() < end, "{table}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Flows, packets and bytes between the same ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    flows: u64,
    packets: u64,
    bytes: u64,
}

type Sums = BTreeMap<String, Sum>;

fn add(sums: &mut Sums, ends: String, packets: u64, bytes: u64) {
    let sum = sums.entry(ends).or_default();
    *sum = Sum { flows: sum.flows + 1, packets: sum.packets + packets, bytes: sum.bytes + bytes };
}

/// softflowd, of the same capture and without timeouts, has the same packets between the same ends. Where its numbers are
/// others, there are three reasons, each of which is held to:
///
/// * it counts frames without their Ethernet header, padding included; ours go by IP's length. Its bytes are our
///   wire bytes less the headers.
/// * it has no flow that ends with TCP's FIN or RST while it reads a file: what follows later is the same flow to it.
/// * it does not export types and codes of ICMPv6.
///
/// Battery: I10
#[test]
fn softflowd_has_the_same_flows() {
    let test = "softflowd_has_the_same_flows";
    if !require_root(test) || !is_there("softflowd") || !is_there("nfcapd") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = traffic(test, folder.path()) else { return };
    let file = file.to_str().unwrap();
    let lab = Lab::new(1).unwrap();
    let namespace = &lab.receiver().namespace;
    let theirs = folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    let words = ["nfcapd", "-b", "127.0.0.1", "-p", "9995", "-w", theirs.to_str().unwrap(), "-t", "3600"];
    let collector = lab.spawn(namespace, &words).unwrap();
    wait_for_port(&lab, 9995);
    let words = ["softflowd", "-r", file, "-n", "127.0.0.1:9995", "-v", "9", "-t", "maxlife=600000", "-d"];
    lab.exec(namespace, &words).unwrap();
    wait_for_port(&lab, 9995);
    collector.terminate(LIMIT).unwrap();
    let output = Command::new("nfdump")
        .args(["-R", theirs.to_str().unwrap(), "-q", "-N", "-6", "-o", "fmt:%pr %sa %sp %da %dp %pkt %byt"])
        .output()
        .unwrap();
    let mut expected = Sums::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [proto, source, source_port, destination, destination_port, packets, bytes] = words[..] else {
            panic!("{line}")
        };
        let port = if proto == "58" { "0.0" } else { destination_port };
        let ends = format!("{proto} {source} {source_port} {destination} {port}");
        add(&mut expected, ends, packets.parse().unwrap(), bytes.parse().unwrap());
    }

    let forever = "600000";
    let words = ["flows", "-r", file, "--json", "--active-timeout", forever, "--inactive-timeout", forever];
    let finished = wirelane(&lab, namespace, &words).unwrap().finish(LIMIT).unwrap();
    let mut ours = Sums::new();
    let mut ended = BTreeMap::<String, u64>::new();
    for flow in finished.json().unwrap().iter().filter(|flow| flow.get("ip_version").is_some()) {
        let port = match (flow["protocol"].as_u64(), flow["icmp_type"].as_u64()) {
            (Some(58), _) => "0.0".into(),
            (_, Some(kind)) => format!("{kind}.{}", flow["icmp_code"]),
            _ => flow["dst_port"].as_u64().unwrap_or(0).to_string(),
        };
        let ends = format!(
            "{} {} {} {} {port}",
            flow["protocol"],
            flow["src"].as_str().unwrap(),
            flow["src_port"].as_u64().unwrap_or(0),
            flow["dst"].as_str().unwrap()
        );
        let header = if flow.get("vlan").is_some() { 18 } else { 14 };
        let packets = column(flow, "packets");
        *ended.entry(ends.clone()).or_default() += u64::from(flow["end_reason"] == "end");
        add(&mut ours, ends, packets, column(flow, "wire_bytes") - header * packets);
    }
    let (number, more) = (ours.values().map(|sum| sum.flows).sum::<u64>(), ended.values().sum::<u64>());
    println!("{} pairs of ends; {number} flows here, of which TCP has ended {more}", ours.len());
    assert_eq!(ours.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (ends, our) in &ours {
        let their = expected[ends];
        assert_eq!((our.packets, our.bytes), (their.packets, their.bytes), "{ends}");
        // Without a FIN or RST, one flow each; for each that ended, at most one more.
        assert!(
            our.flows >= their.flows && our.flows <= their.flows + ended[ends],
            "{ends}: {our:?} {their:?}"
        );
    }
    assert!(ours.len() > 600 && number > ours.len() as u64, "{number}");
}

/// goflow2 without options decodes all flows of 20 exporters that are new to it: no data record arrives before its
/// template, in any order of its workers.
#[test]
fn goflow2_decodes_all_flows_of_each_of_20_exporters() {
    let test = "goflow2_decodes_all_flows_of_each_of_20_exporters";
    if !require_root(test) {
        return;
    }
    let Some(goflow2) = goflow2() else {
        println!("left out: {test} (no goflow2: scripts/setup readers)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::new(1).unwrap();
    let (namespace, file) = (&lab.receiver().namespace, folder.path().join("few.pcapng"));
    let words = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--json"];
    let recorder = capture(&lab, &words).unwrap();
    send(&lab, 1000, &["--flows", "100"]).unwrap();
    finish(recorder).unwrap();
    for round in 1..=20 {
        let words = ["sh", "-c", "exec \"$0\" >\"$1\"", goflow2.to_str().unwrap()];
        let log = folder.path().join(round.to_string());
        let collector = lab.spawn(namespace, &[&words[..], &[log.to_str().unwrap()]].concat()).unwrap();
        wait_for_port(&lab, 2055);
        let words = ["flows", "-r", file.to_str().unwrap(), "--json", "--export", "ipfix://127.0.0.1:2055"];
        let finished = wirelane(&lab, namespace, &words).unwrap().finish(LIMIT).unwrap();
        let sent = column(&last_of(&finished).unwrap()["exports"][0], "flows");
        assert!(sent >= 100, "{sent}");
        let end = Instant::now() + Duration::from_secs(5);
        let found = || objects(&fs::read_to_string(&log).unwrap()).len() as u64;
        while found() < sent && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        collector.terminate(LIMIT).unwrap();
        assert_eq!(found(), sent, "round {round}");
    }
}

/// goflow2, as scripts/setup builds it or as it is installed.
fn goflow2() -> Option<PathBuf> {
    let built = repository().join("target/go/bin/goflow2");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("goflow2"));
    std::iter::once(built).chain(installed).find(|program| program.exists())
}

/// The objects in goflow2's output. Its workers write an object and then a newline: two objects may be in one line, and
/// the last one may be incomplete.
fn objects(text: &str) -> Vec<Value> {
    let objects = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let whole = objects.take_while(|object| !object.as_ref().is_err_and(serde_json::Error::is_eof));
    whole.collect::<Result<_, _>>().unwrap()
}

/// goflow2 has every exported flow, with the same totals, and reports the sampling of one packet in ten.
#[test]
fn goflow2_has_what_it_was_sent() {
    let test = "goflow2_has_what_it_was_sent";
    if !require_root(test) {
        return;
    }
    let Some(goflow2) = goflow2() else {
        println!("left out: {test} (no goflow2: scripts/setup readers)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = traffic(test, folder.path()) else { return };
    let lab = Lab::new(1).unwrap();
    let namespace = &lab.receiver().namespace;
    for (scheme, port) in [("ipfix", 9996u16), ("netflow9", 9997)] {
        let log = folder.path().join(scheme);
        // With its default of two workers, which reorder messages.
        let listen = format!("netflow://127.0.0.1:{port}");
        let words = [
            goflow2.to_str().unwrap(),
            "-listen",
            &listen,
            "-transport.file",
            log.to_str().unwrap(),
            "-addr",
            "",
        ];
        let collector = lab.spawn(namespace, &words).unwrap();
        wait_for_port(&lab, port);
        let target = format!("{scheme}://127.0.0.1:{port}");
        let words =
            ["flows", "-r", file.to_str().unwrap(), "--json", "--sampling", "10", "--export", &target];
        let finished = wirelane(&lab, namespace, &words).unwrap().finish(LIMIT).unwrap();
        let counts = last_of(&finished).unwrap()["exports"][0].clone();
        let sent: Vec<Value> = finished.json().unwrap();
        let sent = sent.iter().filter(|flow| match scheme {
            "ipfix" => flow.get("flow").is_some(),
            _ => flow.get("ip_version").is_some(),
        });
        let all = |field: &str, flows: &[&Value]| flows.iter().map(|flow| column(flow, field)).sum::<u64>();
        let sent: Vec<&Value> = sent.collect();
        assert_eq!(column(&counts, "flows"), sent.len() as u64);
        let end = Instant::now() + LIMIT;
        let found = loop {
            let found = objects(&fs::read_to_string(&log).unwrap_or_default());
            if found.len() >= sent.len() {
                break found;
            }
            assert!(Instant::now() < end, "{scheme}: {} of {}", found.len(), sent.len());
            std::thread::sleep(Duration::from_millis(50));
        };
        let found: Vec<&Value> = found.iter().collect();
        assert_eq!(found.len(), sent.len());
        for field in ["packets", "bytes"] {
            assert_eq!(all(field, &found), all(field, &sent), "{scheme} {field}");
        }
        assert!(found.iter().all(|flow| flow["sampling_rate"] == 10), "{:?}", found[0]);
        collector.terminate(LIMIT).unwrap();
    }
}
