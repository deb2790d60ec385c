//! Live flows of complete connections: exactly one per connection, in both caches, with aggregates of GRO and GSO.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, wirelane};
use wirelane_tests::{Lab, LabOptions, require_root};

const CONNECTIONS: usize = 300;
const PORT: u16 = 7000;
const QUESTION: usize = 3_000;
const ANSWER: usize = 120_000;
/// Name of the recording in pcap, which other programs read.
const PCAP: &str = "beside.pcap";

/// Makes the lab's ends exchange data over TCP, one complete connection after the other.
fn talk(lab: &Lab) {
    let address = SocketAddr::from((lab.receiver().address, PORT));
    let (server, client) = (&lab.receiver().namespace, &lab.sender().namespace);
    let listener = lab.enter(server, || TcpListener::bind(address).unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..CONNECTIONS {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; QUESTION]).unwrap();
                stream.write_all(&[b'a'; ANSWER]).unwrap();
            }
        });
        lab.enter(client, || {
            for _ in 0..CONNECTIONS {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&[b'q'; QUESTION]).unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                assert_eq!(answer.len(), ANSWER);
            }
        })
        .unwrap();
    });
}

/// The flows of the connections, by their ends: packets, bytes, wire bytes.
fn flows(lines: &[Value]) -> BTreeMap<String, Vec<[u64; 3]>> {
    let mut flows: BTreeMap<String, Vec<[u64; 3]>> = BTreeMap::new();
    let tcp = |line: &&Value| line.get("flow").is_some() && line["protocol"] == 6;
    for flow in lines.iter().filter(tcp) {
        assert!(flow["src_port"] == PORT || flow["dst_port"] == PORT, "{flow}");
        let ends = format!("{}:{} {}:{}", flow["src"], flow["src_port"], flow["dst"], flow["dst_port"]);
        let sums = [column(flow, "packets"), column(flow, "bytes"), column(flow, "wire_bytes")];
        flows.entry(ends).or_default().push(sums);
    }
    flows
}

fn check(hook: &str) {
    let lab = Lab::with(&LabOptions { queues: 4, offloads: true, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("beside.pcapng");
    let device = lab.receiver().device.clone();
    let start = |words: &[&str]| {
        capture(&lab, &[words, &["-i", &device, "--hook", hook, "--json"]].concat()).unwrap()
    };
    let user = start(&["flows", "--cache", "user", "--ring-size", "64"]);
    let kernel = start(&["flows", "--cache", "kernel"]);
    let pairs = start(&["flows", "--biflow", "--ring-size", "64"]);
    let kernel_pairs = start(&["flows", "--biflow", "--cache", "kernel"]);
    let recorder = start(&["record", "-w", file.to_str().unwrap(), "--ring-size", "64"]);
    talk(&lab);
    let [user, kernel, pairs, kernel_pairs, recorder] = [user, kernel, pairs, kernel_pairs, recorder]
        .map(|child| child.terminate(LIMIT).unwrap().json().unwrap());
    for last in [&user, &kernel, &pairs, &kernel_pairs, &recorder].map(|lines| lines.last().unwrap()) {
        assert_eq!((column(last, "lost"), last["final"].as_bool()), (0, Some(true)), "{last}");
    }
    let (user, kernel) = (flows(&user), flows(&kernel));
    let (pairs, kernel_pairs) = (flows(&pairs), flows(&kernel_pairs));
    // Shows whether one capture lacks flows, or all of them.
    let recorded = of_file(&lab, &file, &[]);
    let all = [("user", &user), ("kernel", &kernel), ("recorded", &recorded)];
    let numbers = all.map(|(name, flows)| (name, flows.len()));
    let missing: Vec<&String> = recorded.keys().filter(|ends| !user.contains_key(*ends)).collect();
    assert_eq!(user.len(), 2 * CONNECTIONS, "{numbers:?}, only in the recording: {missing:?}");
    assert!(user.values().all(|flows| flows.len() == 1), "each direction of a connection is one flow");
    assert_eq!(user, kernel, "both caches have the same flows");
    assert_eq!(pairs.values().map(Vec::len).sum::<usize>(), CONNECTIONS);
    assert_eq!(pairs, kernel_pairs, "the same with --biflow");
    // Every segment of requests and responses is there once, with its headers.
    let least = (CONNECTIONS * (ANSWER / 1448 + 1 + QUESTION / 1448 + 1)) as u64;
    let packets: u64 = user.values().map(|flows| flows[0][0]).sum();
    assert!(packets > least, "{packets} packets of at least {least}");
    for flows in user.values() {
        let [packets, bytes, wire_bytes] = flows[0];
        assert_eq!(wire_bytes - bytes, packets * 14, "each packet has an Ethernet header");
    }
    // Aggregates are marked in the recording, and count as their packets when it is read.
    assert_eq!(recorded, user, "live flows are those of a recording taken beside them");
    assert_eq!(of_file(&lab, &file, &["--biflow"]), pairs, "the same with --biflow");
    by_nfpcapd(&file, folder.path());
    by_softflowd(&lab, folder.path());
}

fn of_file(lab: &Lab, file: &Path, words: &[&str]) -> BTreeMap<String, Vec<[u64; 3]>> {
    let words = [&["flows", "-r", file.to_str().unwrap(), "--json"], words].concat();
    let finished = wirelane(lab, &lab.receiver().namespace, &words).unwrap().finish(LIMIT).unwrap();
    flows(&finished.json().unwrap())
}

/// nfpcapd finds the same number of flows in the recording.
fn by_nfpcapd(file: &Path, folder: &Path) {
    let installed = Command::new("sh").args(["-c", "command -v nfpcapd"]).output().unwrap();
    if !installed.status.success() {
        println!("left out: nfpcapd's flows (it is not installed)");
        return;
    }
    let theirs = folder.join("nfpcapd");
    std::fs::create_dir(&theirs).unwrap();
    // nfpcapd reads pcap only.
    let pcap = folder.join(PCAP);
    let status = Command::new("editcap").args(["-F", "pcap"]).args([file, &pcap]).status().unwrap();
    assert!(status.success());
    let status = Command::new("nfpcapd").arg("-r").arg(&pcap).arg("-w").arg(&theirs).output().unwrap();
    assert!(status.status.success(), "{status:?}");
    assert_eq!(found_by_nfdump(&theirs), 2 * CONNECTIONS);
}

/// softflowd finds the same number of flows in the pcap recording.
fn by_softflowd(lab: &Lab, folder: &Path) {
    let pcap = folder.join(PCAP);
    let installed = Command::new("softflowd").arg("-h").output();
    if installed.is_err() || !pcap.exists() {
        println!("left out: softflowd's flows (it, or nfdump, is not installed)");
        return;
    }
    let theirs = folder.join("softflowd");
    std::fs::create_dir(&theirs).unwrap();
    let namespace = &lab.receiver().namespace;
    let words = ["nfcapd", "-b", "127.0.0.1", "-p", "9995", "-w", theirs.to_str().unwrap(), "-t", "3600"];
    let collector = lab.spawn(namespace, &words).unwrap();
    let end = Instant::now() + LIMIT;
    while lab.exec(namespace, &["ss", "-Hlun", "sport = :9995"]).unwrap().trim().is_empty() {
        assert!(Instant::now() < end, "nfcapd does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = ["softflowd", "-r", pcap.to_str().unwrap(), "-n", "127.0.0.1:9995", "-v", "9", "-d"];
    lab.exec(namespace, &words).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    collector.terminate(LIMIT).unwrap();
    assert_eq!(found_by_nfdump(&theirs), 2 * CONNECTIONS);
}

/// Number of TCP flows in a folder of nfdump.
fn found_by_nfdump(folder: &Path) -> usize {
    let mut command = Command::new("nfdump");
    command.args(["-q", "-N", "-o", "fmt:%sp %dp", "-R"]).arg(folder).arg("proto tcp");
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn every_connection_is_two_flows_by_tc() {
    if require_root("every_connection_is_two_flows_by_tc") {
        check("tc");
    }
}

#[test]
fn every_connection_is_two_flows_by_native_xdp() {
    if require_root("every_connection_is_two_flows_by_native_xdp") {
        check("native");
    }
}
