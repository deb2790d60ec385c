//! `wirelane flows`, live and from files, against real collectors (nfcapd) and readers (tshark, ipfixDump).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send, wirelane};
use wirelane_tests::recordings::Disk;
use wirelane_tests::{Child, Lab, require_root, wirelane_binary};

/// The flows and the last object of a successful command.
fn flows_of(child: Child) -> (Vec<Value>, Value) {
    let finished = child.finish(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    let lines = finished.lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    (lines.filter(|line| line.get("flow").is_some()).collect(), last)
}

fn sum(flows: &[Value], field: &str) -> u64 {
    flows.iter().map(|flow| column(flow, field)).sum()
}

/// Asserts that the sums over the flows equal those of the ledger and of the last object.
fn assert_sums(flows: &[Value], last: &Value) {
    assert_eq!(sum(flows, "packets"), column(last, "analysed"));
    assert_eq!(sum(flows, "wire_bytes"), column(last, "bytes"));
    assert_eq!(sum(flows, "bytes"), column(last, "flow_bytes"));
    assert_eq!(flows.len() as u64, column(last, "flows"));
    let reasons = last["end_reasons"].as_object().unwrap().values();
    assert_eq!(reasons.map(|count| count.as_u64().unwrap()).sum::<u64>(), column(last, "flows"));
}

/// The entry of `exports` in the last object whose target begins like this.
fn export<'a>(last: &'a Value, target: &str) -> &'a Value {
    let exports = last["exports"].as_array().unwrap();
    let found = exports.iter().find(|export| export["target"].as_str().unwrap().starts_with(target));
    found.unwrap_or_else(|| panic!("no {target} in {last}"))
}

/// A capture file with TCP, UDP, ICMP, IPv6 and ARP, of some hundred flows.
fn make_file(path: &Path) {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for n in 0..2000u32 {
        let frame = frame(n);
        let (seconds, ns) = (1_700_000_000 + n / 50, n % 50 * 20_000_000);
        let header = [seconds, ns, frame.len() as u32, frame.len() as u32];
        pcap.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
    }
    fs::write(path, pcap).unwrap();
}

fn frame(n: u32) -> Vec<u8> {
    let kind = n % 7;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let port = (1000 + n % 97) as u16;
    let (proto, transport) = match kind {
        0..=2 => {
            let mut tcp = [port.to_be_bytes(), 80u16.to_be_bytes()].concat();
            tcp.extend((n * 10).to_be_bytes());
            tcp.extend([0, 0, 0, 0, 0x50, if n.is_multiple_of(11) { 0x11 } else { 0x18 }, 1, 0, 0, 0, 0, 0]);
            tcp.resize(20 + (n % 100) as usize, 7);
            (6, tcp)
        }
        3 | 5 => {
            let mut udp = [port.to_be_bytes(), 53u16.to_be_bytes()].concat();
            udp.extend([0, 8 + (n % 50) as u8, 0, 0]);
            udp.resize(8 + (n % 50) as usize, 7);
            (17, udp)
        }
        _ => (
            if kind == 4 { 1 } else { 58 },
            vec![if n.is_multiple_of(2) { 8 } else { 128 }, 0, 0, 0, 0, 1, 0, n as u8],
        ),
    };
    if kind >= 5 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((transport.len() as u16).to_be_bytes());
        frame.extend([proto, 64]);
        let address = |last: u8| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        frame.extend(address((n % 5) as u8).into_iter().chain(address(99)));
    } else if n.is_multiple_of(77) {
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.resize(60, 0);
        return frame;
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + transport.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64 + (n % 3) as u8, proto, 0, 0, 10, 0, 0, (n % 5) as u8, 10, 0, 0, 99]);
    }
    frame.extend(transport);
    frame
}

/// True if a program exists; otherwise a message names the skipped test.
fn is_there(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !there.status.success() {
        println!("left out: what {program} makes of it (it is not installed: scripts/setup)");
    }
    there.status.success()
}

/// Waits until every one of these UDP ports has a socket in the namespace, with nothing in its queue.
fn wait_for_ports(lab: &Lab, ports: &[u16]) {
    let end = Instant::now() + LIMIT;
    loop {
        let table = lab.exec(&lab.receiver().namespace, &["cat", "/proc/net/udp"]).unwrap();
        let idle = |port: &u16| {
            let local = format!(":{port:04X} ");
            table.lines().any(|line| line.contains(&local) && line.contains(":00000000 00:"))
        };
        if ports.iter().all(idle) {
            return;
        }
        assert!(Instant::now() < end, "{table}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// "source destination packets bytes source-port destination-port start", as nfdump prints them, and their number: the
/// fields that every format carries.
type Flows = BTreeMap<String, u32>;

/// Flows that nfdump reads from a folder of nfcapd.
fn nfdump(folder: &Path) -> Flows {
    let folder = folder.to_str().unwrap();
    let format = "fmt:%sa %da %pkt %byt %sp %dp %ts";
    let output =
        Command::new("nfdump").args(["-R", folder, "-q", "-N", "-6", "-o", format]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut flows = Flows::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        *flows.entry(words.join(" ")).or_default() += 1;
    }
    flows
}

/// The same lines from our own objects.
fn expected(flows: &[Value]) -> Flows {
    let mut expected = Flows::new();
    for flow in flows {
        let text = |field: &str| flow[field].as_str().unwrap_or("0.0.0.0").to_owned();
        let port = |field: &str| flow[field].as_u64().unwrap_or(0).to_string();
        let destination = match flow["icmp_type"].as_u64() {
            Some(kind) => format!("{kind}.{}", flow["icmp_code"]),
            None => port("dst_port"),
        };
        let (seconds, fraction) = flow["start"].as_str().unwrap().split_once('.').unwrap();
        let seconds: u64 = seconds.parse().unwrap();
        // 2023-11-14 22:13:20 is 1,700,000,000.
        let time = seconds - 1_700_000_000 + 80_000;
        let time = format!(
            "2023-11-14 {:02}:{:02}:{:02}.{}",
            time / 3600,
            time / 60 % 60,
            time % 60,
            &fraction[..3]
        );
        let numbers = format!("{} {}", flow["packets"], flow["bytes"]);
        let ends =
            format!("{} {} {numbers} {} {destination} {time}", text("src"), text("dst"), port("src_port"));
        *expected.entry(ends).or_default() += 1;
    }
    expected
}

/// nfcapd receives, in three formats at once, every flow that the format can carry, unchanged; tshark does not find an
/// error on the wire, and ipfixDump reads the file.
#[test]
fn collectors_have_the_flows_that_were_sent() {
    if !require_root("collectors_have_the_flows_that_were_sent") || !is_there("nfcapd") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let namespace = &lab.receiver().namespace;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    make_file(&at("in.pcap"));
    let formats = [("netflow5", 9991u16), ("netflow9", 9992), ("ipfix", 9993)];
    let mut collectors = Vec::new();
    for (format, port) in formats {
        fs::create_dir(at(format)).unwrap();
        let words = ["nfcapd", "-b", "127.0.0.1", "-p", &port.to_string(), "-w", &path(format), "-t", "3600"];
        collectors.push(lab.spawn(namespace, &words).unwrap());
    }
    let sniffer = [
        "tcpdump",
        "-i",
        "lo",
        "--immediate-mode",
        "-U",
        "-s",
        "2000",
        "-B",
        "8192",
        "-w",
        &path("wire.pcap"),
        "udp",
    ];
    let sniffer = lab.spawn(namespace, &sniffer).unwrap();
    wait_for_ports(&lab, &formats.map(|(_, port)| port));
    while !at("wire.pcap").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut words = vec!["flows".to_owned(), "-r".into(), path("in.pcap"), "--json".into()];
    for (format, port) in formats {
        words.extend(["--export".into(), format!("{format}://127.0.0.1:{port}")]);
    }
    for file in ["out.ipfix", "out.json", "out.csv"] {
        words.extend(["--export".into(), format!("file:{}", path(file))]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (flows, last) = flows_of(wirelane(&lab, namespace, &words).unwrap());
    assert_sums(&flows, &last);
    assert!(flows.len() > 300, "{} flows", flows.len());
    wait_for_ports(&lab, &formats.map(|(_, port)| port));
    for (collector, (format, _)) in collectors.into_iter().zip(formats) {
        let said = collector.terminate(LIMIT).unwrap().stderr;
        // nfcapd does not count options records, which RFC 7011 does: it reports one missing after each.
        let errors = if format == "ipfix" { "" } else { "Sequence Errors: 0, " };
        assert!(said.contains(errors) && said.contains("Bad Packets: 0"), "{said}");
    }
    let v4: Vec<Value> = flows.iter().filter(|flow| flow["ip_version"] == 4).cloned().collect();
    let ip: Vec<Value> = flows.iter().filter(|flow| flow.get("ip_version").is_some()).cloned().collect();
    for (format, carried) in [("netflow5", &v4), ("netflow9", &ip), ("ipfix", &flows)] {
        let counts = export(&last, format);
        assert_eq!(column(counts, "flows"), carried.len() as u64, "{format}");
        assert_eq!(column(counts, "not_exportable"), (flows.len() - carried.len()) as u64, "{format}");
        let (found, expected) = (nfdump(&at(format)), expected(carried));
        assert_eq!(found, expected, "{format}");
    }
    let all =
        |field: &str| formats.iter().map(|(format, _)| column(export(&last, format), field)).sum::<u64>();
    let messages = all("messages");
    // The file header, and for each message a record header and those of Ethernet, IPv4 and UDP.
    let size = 24 + messages * (16 + 14 + 20 + 8) + all("bytes");
    let end = Instant::now() + LIMIT;
    while fs::metadata(at("wire.pcap")).unwrap().len() < size {
        assert!(Instant::now() < end, "tcpdump has not seen everything");
        std::thread::sleep(Duration::from_millis(10));
    }
    let sniffed = sniffer.terminate(LIMIT).unwrap().stderr;
    let decode = formats.map(|(_, port)| format!("-dudp.port=={port},cflow"));
    let output = Command::new("tshark")
        .args(["-n", "-r", &path("wire.pcap"), &decode[0], &decode[1], &decode[2]])
        .args(["-T", "fields", "-e", "cflow.version", "-e", "_ws.malformed", "-e", "_ws.expert.message"])
        .args(["-e", "cflow.unknown_field_type"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count() as u64, messages, "{sniffed}");
    assert!(text.lines().all(|line| ["5", "9", "10"].contains(&line.trim())), "{text}");
    let lines = fs::read_to_string(at("out.json")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, flows);
    let csv = fs::read_to_string(at("out.csv")).unwrap();
    assert_eq!(csv.lines().count(), flows.len() + 1);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns));
    if is_there("ipfixDump") {
        let output = Command::new("ipfixDump").args(["--in", &path("out.ipfix")]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // The file also has options records: two of sampling, and the names of applications, "Unknown" among them.
        let options = 2 + 1 + wirelane_analysis::flows::applications().count();
        assert!(
            text.contains(&format!(" {} Data Records", flows.len() + options)),
            "{}",
            &text[text.len() - 300..]
        );
    }
}

/// Live, over several workers and queues: the sums equal the ledger's; an idle flow is exported without further
/// packets; a small memory limit ends flows early and does not lose packets.
/// Battery: L6
#[test]
fn sums_over_flows_are_the_ledgers() {
    if !require_root("sums_over_flows_are_the_ledgers") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    let words = ["flows", "-i", device, "--workers", "2", "--inactive-timeout", "0.3", "--json"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 5000, &["--flows", "50", "--rate", "20000"]).unwrap();
    let mut early = Vec::new();
    while sum(&early, "packets") < 5000 {
        let line = child.next_json(LIMIT).unwrap().unwrap();
        if line.get("flow").is_some() {
            early.push(line);
        }
    }
    assert!(early.iter().all(|flow| flow["end_reason"] == "idle"), "{early:?}");
    assert!(early.len() >= 50 && sum(&early, "packets") == 5000);
    assert_eq!(early[0]["device"], device);
    send(&lab, 1000, &["--flows", "10"]).unwrap();
    child.signal(wirelane_tests::Signal::Terminate).unwrap();
    let (late, last) = flows_of(child);
    let flows = [early, late].concat();
    assert_sums(&flows, &last);
    assert_eq!(column(&last, "analysed"), 6000);
    assert_eq!(sum(&flows, "packets"), 6000);

    // More flows than fit into 1 MiB (some 4,600), each with several packets.
    let words =
        ["flows", "-i", device, "--memory", "1", "--json", "--quiet", "--ring-size", "16", "--sampling", "1"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 60_000, &["--flows", "20000", "--rate", "60000"]).unwrap();
    child.signal(wirelane_tests::Signal::Interrupt).unwrap();
    let (none, last) = flows_of(child);
    assert!(none.is_empty(), "--quiet");
    assert_eq!(column(&last, "flow_packets"), column(&last, "analysed"));
    assert_eq!(column(&last, "flow_wire_bytes"), column(&last, "bytes"));
    assert_eq!(column(&last, "seen"), 60_000);
    assert!(column(&last["end_reasons"], "resources") > 10_000, "{last}");
}

/// Reading a file waits for the export rate: nothing is dropped.
#[test]
fn a_collector_by_udp_gets_no_more_than_was_asked_for() {
    if !require_root("a_collector_by_udp_gets_no_more_than_was_asked_for") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_file(&file);
    let device = &lab.receiver().address;
    // A receiver that does not read: the queue of its socket holds all messages.
    let target = format!("ipfix://{device}:4739");
    let socket =
        lab.enter(&lab.receiver().namespace, || std::net::UdpSocket::bind((*device, 4739)).unwrap()).unwrap();
    let words =
        ["flows", "-r", file.to_str().unwrap(), "--json", "--export", &target, "--export-rate", "100"];
    let start = Instant::now();
    let (flows, last) = flows_of(wirelane(&lab, &lab.receiver().namespace, &words).unwrap());
    let counts = export(&last, &target);
    assert_eq!((column(counts, "flows"), column(counts, "unsent_flows")), (flows.len() as u64, 0));
    let messages = column(counts, "messages");
    // The first 32 are sent immediately.
    let least = Duration::from_millis((messages - 32) * 10);
    assert!(messages > 60 && start.elapsed() > least, "{messages} messages in {:?}", start.elapsed());
    let mut buffer = [0; 2000];
    socket.set_nonblocking(true).unwrap();
    let longest = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).max().unwrap();
    assert!((1200..=1400).contains(&longest), "{longest} bytes");
}

/// A full disk does not end other outputs: it is reported, and the flows that may be missing are counted.
#[test]
fn a_full_disk_is_told_and_the_rest_goes_on() {
    if !require_root("a_full_disk_is_told_and_the_rest_goes_on") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=64k").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (input, whole) = (folder.path().join("in.pcap"), folder.path().join("whole.json"));
    make_file(&input);
    let full = format!("file:{}", disk.path().join("full.json").display());
    let mut command = Command::new(wirelane_binary().unwrap());
    command.args(["flows", "--json", "--quiet", "-r", input.to_str().unwrap(), "--export", &full]);
    command.args(["--export", &format!("file:{}", whole.display())]);
    let finished = Child::spawn(&mut command).unwrap().finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let flows = column(&last, "flows");
    assert_eq!(column(export(&last, &full), "unsent_flows") + column(export(&last, &full), "flows"), flows);
    assert!(column(export(&last, &full), "unsent_flows") > 0);
    assert_eq!(fs::read_to_string(whole).unwrap().lines().count() as u64, flows);
}

/// One packet in three: the others are counted. Digests, which have no bytes, result in the same flows as packets.
#[test]
fn sampling_counts_what_it_leaves_out_and_digests_are_enough() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_file(&file);
    let mut command = Command::new(wirelane_binary().unwrap());
    command.args(["flows", "--json", "--sampling", "3", "-r", file.to_str().unwrap()]);
    let (flows, last) = flows_of(Child::spawn(&mut command).unwrap());
    assert_eq!(sum(&flows, "packets"), 667);
    assert_eq!((column(&last, "unsampled"), column(&last, "analysed")), (1333, 2000));
    let rules = folder.path().join("digest.toml");
    fs::write(&rules, "[[rule]]\nid = 1\naction = \"digest\"\n").unwrap();
    let [packets, digests] = [&[][..], &["--rules", rules.to_str().unwrap()]].map(|more| {
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(["flows", "--json", "-r", file.to_str().unwrap()]).args(more);
        flows_of(Child::spawn(&mut command).unwrap())
    });
    assert_eq!(
        digests.1["rule_stats"]["rules"][0]["hits"]["packets"].as_u64(),
        Some(2000),
        "{}",
        digests.1["rule_stats"]
    );
    assert_eq!(packets.0, digests.0);
}

/// Unusable targets and options are refused before anything is captured, with a hint.
#[test]
fn what_cannot_be_exported_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_file(&file);
    let there = folder.path().join("there.csv");
    fs::write(folder.path().join("mine"), "mine").unwrap();
    std::os::unix::fs::symlink(folder.path().join("mine"), &there).unwrap();
    let there = format!("file:{}", there.display());
    for (words, status, message) in [
        (vec!["--export", "ipfix://no.such.host.invalid"], 2, "'no.such.host.invalid' cannot be looked up"),
        (vec!["--export", "netflow9://127.0.0.1?transport=tcp"], 2, "use ipfix:// for TCP"),
        (vec!["--export", "flows.csv"], 2, "write ipfix://HOST:PORT"),
        (vec!["--export", there.as_str()], 1, "symbolic link"),
        (vec!["--export", "file:/no/such/folder/x.json"], 1, "cannot be written"),
        (vec!["--cache", "kernel"], 2, "use 'user' with -r"),
        (vec!["--cache-entries", "100"], 2, "for --cache kernel"),
        (vec!["--steering", "round-robin"], 2, "spread a flow's packets"),
        (vec!["--memory", "0"], 2, "--memory"),
    ] {
        let mut command = Command::new(wirelane_binary().unwrap());
        let output = command.args(["flows", "-r", file.to_str().unwrap()]).args(&words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {errors}");
        assert!(errors.contains(message), "{words:?}: {errors}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    assert_eq!(fs::read_to_string(folder.path().join("there.csv")).unwrap(), "mine");
}
