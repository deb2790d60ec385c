//! `wirelane receive` against a recording of the same packets by tcpdump, read by tshark and counted here by the definitions
//! of RFC 4737, 5560, 7680 and 3550.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, finish, last_of, send, wirelane};
use wirelane_tests::{Child, Lab, require_root, wirelane_binary};

/// Packets of all streams.
const PACKETS: u64 = 4000;

/// Packets of each stream: by the weights 5, 1 and 2.
const EXPECTED: [(u16, u64); 3] = [(1, 2500), (2, 500), (9, 1000)];

fn tcpdump(lab: &Lab, file: &Path) -> Child {
    let end = lab.receiver();
    let file_name = file.to_str().unwrap();
    let words = ["tcpdump", "-i", &end.device, "-n", "-U", "--immediate-mode", "-B", "16384", "-Q", "in"];
    let words = [&words[..], &["--time-stamp-precision", "nano", "-w", file_name]].concat();
    let child = lab.spawn(&end.namespace, &words).unwrap();
    let deadline = Instant::now() + LIMIT;
    while !fs::metadata(file).is_ok_and(|file| file.len() >= 24) {
        assert!(Instant::now() < deadline, "tcpdump did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Header and records of a pcap file.
fn records(file: &Path) -> (Vec<u8>, Vec<Vec<u8>>) {
    let bytes = fs::read(file).unwrap();
    let (header, mut rest) = bytes.split_at(24);
    let mut records = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, left) = rest.split_at(16 + length);
        records.push(record.to_vec());
        rest = left;
    }
    (header.to_vec(), records)
}

/// A file with packets missing, repeated and moved, by fixed patterns.
fn injure(from: &Path, to: &Path) {
    let (mut bytes, records) = records(from);
    assert_eq!(records.len() as u64, PACKETS);
    let mut order: Vec<(usize, &Vec<u8>)> = Vec::new();
    for (at, record) in records.iter().enumerate() {
        // The first, the last, and some between are lost.
        if at < 3 || at + 5 > records.len() || at % 17 == 4 || (1000..1050).contains(&at) {
            continue;
        }
        let late = if at % 23 == 7 { at % 40 } else { 0 };
        order.push((at + late, record));
        if at % 13 == 2 {
            order.push((at + at % 60, record));
        }
    }
    order.sort_by_key(|(at, _)| *at);
    order.into_iter().for_each(|(_, record)| bytes.extend_from_slice(record));
    fs::write(to, bytes).unwrap();
}

/// A packet as tshark shows it.
struct Seen {
    stream: u16,
    number: u64,
    latency_ns: i64,
}

/// The numbered packets of a file, by tshark.
fn seen(file: &Path) -> Vec<Seen> {
    let fields = ["frame.time_epoch", "udp.payload", "tcp.payload"];
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-r"]).arg(file);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let fields: Vec<&str> = line.split('\t').collect();
        let (seconds, fraction) = fields[0].split_once('.').unwrap();
        let arrived = seconds.parse::<i64>().unwrap() * 1_000_000_000 + fraction.parse::<i64>().unwrap();
        let payload = if fields[1].is_empty() { fields[2] } else { fields[1] };
        assert_eq!(&payload[..8], "574c6e32", "a packet without a stamp");
        let hex = |from: usize, to: usize| u64::from_str_radix(&payload[from..to], 16).unwrap();
        Seen {
            number: hex(8, 24),
            latency_ns: arrived - i64::try_from(hex(24, 40)).unwrap(),
            stream: hex(40, 44) as u16,
        }
    };
    String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
}

/// Values of a stream.
#[derive(Debug, Default, PartialEq)]
struct Truth {
    received: u64,
    lost: u64,
    reordered: u64,
    duplicates: u64,
    latencies: Vec<i64>,
    jitter_ns: f64,
}

/// Truth by stream, by the definitions.
fn truth(packets: &[Seen]) -> BTreeMap<u16, Truth> {
    let mut all = BTreeMap::new();
    for (stream, sent) in EXPECTED {
        let (mut one, mut numbers, mut highest) = (Truth::default(), HashSet::new(), None);
        for packet in packets.iter().filter(|packet| packet.stream == stream) {
            one.received += 1;
            if !numbers.insert(packet.number) {
                one.duplicates += 1;
                continue;
            }
            one.reordered += u64::from(highest.is_some_and(|highest| packet.number < highest));
            highest = highest.max(Some(packet.number));
            if let Some(before) = one.latencies.last() {
                let difference = (packet.latency_ns - before).abs() as f64;
                one.jitter_ns += (difference - one.jitter_ns) / 16.0;
            }
            one.latencies.push(packet.latency_ns);
        }
        one.lost = sent - numbers.len() as u64;
        all.insert(stream, one);
    }
    all
}

fn check_counts(last: &Value, truth: &BTreeMap<u16, Truth>) {
    let streams = last["streams"].as_array().unwrap();
    assert_eq!(streams.len(), truth.len());
    for (stream, (id, one)) in streams.iter().zip(truth) {
        assert_eq!(column(stream, "stream"), u64::from(*id));
        let counts =
            ["received", "lost", "reordered", "duplicates", "too_late"].map(|key| column(stream, key));
        assert_eq!(counts, [one.received, one.lost, one.reordered, one.duplicates, 0], "stream {id}");
        // The patterns cause each of them.
        assert!(counts[..4].iter().all(|count| *count > 0), "stream {id}: {counts:?}");
        let latency = &stream["latency"];
        assert_eq!(column(latency, "packets"), one.latencies.len() as u64);
    }
    let received: u64 = truth.values().map(|one| one.received).sum();
    assert_eq!((column(last, "numbered_packets"), column(last, "other_packets")), (received, 0));
    assert_eq!(column(last, "analysed"), received);
}

/// A percentile of three digits has the exact value's bucket: HdrHistogram's are less than a thousandth of it wide.
fn check_percentile(shown: u64, latencies: &[i64], percent: usize) {
    let exact = latencies[(latencies.len() * percent).div_ceil(100) - 1];
    let exact = u64::try_from(exact).unwrap_or(0).max(1);
    assert!(shown >= exact && shown - exact <= exact / 1000, "p{percent}: {shown} for {exact}");
}

#[test]
fn loss_order_duplicates_latency_and_jitter_are_those_of_a_recording() {
    if !require_root("loss_order_duplicates_latency_and_jitter_are_those_of_a_recording") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (whole, injured, arrived) = (file("whole.pcap"), file("injured.pcap"), file("arrived.pcap"));

    let dump = tcpdump(&lab, &whole);
    let streams = [
        ["--stream", "id=1,weight=5"],
        ["--stream", "id=2,dst=fd00::1,proto=tcp,vlan=100+7,size=120+400"],
        ["--stream", "id=9,weight=2,proto=tcp,pattern=ports,flows=100"],
    ];
    send(&lab, PACKETS, &[&["--rate", "20k"], streams.as_flattened()].concat()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    dump.terminate(LIMIT).unwrap();
    injure(&whole, &injured);

    let expect = EXPECTED.map(|(stream, packets)| ["--expect".to_owned(), format!("{stream}={packets}")]);
    let expect: Vec<&str> = expect.as_flattened().iter().map(String::as_str).collect();
    let device = lab.receiver().device.as_str();
    let dump = tcpdump(&lab, &arrived);
    let receivers = ["ring", "packet"].map(|engine| {
        let words = ["receive", "-i", device, "--json", "--engine", engine, "--direction", "rx"];
        capture(&lab, &[&words[..], &expect].concat()).unwrap()
    });
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "-r", injured.to_str().unwrap(), "--speed", "max", "--json"];
    last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let live = receivers.map(|receiver| finish(receiver).unwrap());
    dump.terminate(LIMIT).unwrap();

    let mut truth = truth(&seen(&arrived));
    for last in live {
        check_counts(&last, &truth);
    }
    let mut command = Command::new(wirelane_binary().unwrap());
    command.arg("receive").arg("-r").arg(&arrived).args(&expect).arg("--json");
    let last = last_of(&Child::spawn(&mut command).unwrap().finish(LIMIT).unwrap()).unwrap();
    check_counts(&last, &truth);
    for (stream, one) in last["streams"].as_array().unwrap().iter().zip(truth.values_mut()) {
        let latency = &stream["latency"];
        assert!((stream["jitter_ns"].as_f64().unwrap() - one.jitter_ns).abs() <= one.jitter_ns * 1e-9);
        one.latencies.sort_unstable();
        let sum: i64 = one.latencies.iter().sum();
        assert_eq!(latency["min_ns"].as_i64(), one.latencies.first().copied());
        assert_eq!(latency["max_ns"].as_i64(), one.latencies.last().copied());
        // A sum of 64 bits is rounded once before the division, and one of 128 bits otherwise.
        let mean = sum as f64 / one.latencies.len() as f64;
        assert!((latency["mean_ns"].as_f64().unwrap() - mean).abs() <= mean * 1e-12, "{latency} {mean}");
        check_percentile(column(latency, "p50_ns"), &one.latencies, 50);
        check_percentile(column(latency, "p99_ns"), &one.latencies, 99);
        assert_eq!(column(latency, "negative"), 0);
    }
}

/// Every packet of an undisturbed run arrives once and in order, with a latency that is not negative, from both methods.
#[test]
fn an_undisturbed_run_has_no_loss_and_a_latency() {
    if !require_root("an_undisturbed_run_has_no_loss_and_a_latency") {
        return;
    }
    for method in ["socket", "kernel"] {
        let lab = Lab::new(1).unwrap();
        let device = lab.receiver().device.as_str();
        let words = ["receive", "-i", device, "--json", "--hook", "native", "--expect", "2000"];
        let receiver = capture(&lab, &words).unwrap();
        let end = lab.sender();
        let options = ["send", "-i", &end.device, "--packets", "2000", "--rate", "10k", "--timestamps"];
        let words = [&options[..], &["--method", method, "--json"]].concat();
        last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let last = finish(receiver).unwrap();
        let stream = &last["streams"][0];
        let counts = ["received", "lost", "reordered", "duplicates"].map(|key| column(stream, key));
        assert_eq!(counts, [2000, 0, 0, 0], "{method}: {last}");
        let latency = &stream["latency"];
        assert_eq!(column(latency, "negative"), 0, "{method}: {latency}");
        assert!(latency["max_ns"].as_i64().unwrap() < 60_000_000_000, "{method}: {latency}");
        assert!(column(latency, "p50_ns") <= column(latency, "p99_ns"), "{method}: {latency}");
    }
}
