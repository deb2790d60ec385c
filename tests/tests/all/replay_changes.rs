//! Replays with changed addresses and ports, and over two devices, judged by tcpdump and tshark: every checksum is as right or
//! wrong as it was, and each frame leaves from the device of its sender's side.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, column, last_of, wirelane};
use wirelane_tests::{Capture, Child, End, Lab, LabOptions, corpus, require_root};

/// The MTU of the lab.
const MTU: u32 = 9000;

/// Frames that are sent: whole, and not larger than the MTU allows.
const SENT: &str = "frame.cap_len == frame.len && frame.len <= 9014 && frame.protocols matches \"^eth\"";

/// Ethernet captures of the corpus in one file.
fn corpus_file(corpus: &Path, folder: &Path) -> PathBuf {
    let mut files = Vec::new();
    for capture in Capture::all(corpus).unwrap() {
        let file = folder.join(format!("{}.cap", capture.id));
        fs::write(&file, capture.bytes().unwrap()).unwrap();
        let info = Command::new("capinfos").args(["-E", "-T", "-r"]).arg(&file).output().unwrap();
        let ethernet = String::from_utf8_lossy(&info.stdout).trim_end().ends_with("ether");
        if info.status.success() && ethernet && !["malformed", "load"].contains(&capture.category.as_str()) {
            files.push(file);
        }
    }
    assert!(files.len() > 20, "{} Ethernet captures", files.len());
    let all = folder.join("all.pcapng");
    let done = Command::new("mergecap").args(["-a", "-w"]).arg(&all).args(&files).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    all
}

fn tcpdump(lab: &Lab, end: &End, file: &Path) -> Child {
    let words = ["tcpdump", "-i", &end.device, "-n", "-U", "-B", "65536", "-Q", "in", "-w"];
    let child = lab.spawn(&end.namespace, &[&words[..], &[file.to_str().unwrap()]].concat()).unwrap();
    let deadline = Instant::now() + LIMIT;
    while !fs::metadata(file).is_ok_and(|file| file.len() >= 24) {
        assert!(Instant::now() < deadline, "tcpdump did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Rows of a file's frames by tshark, with the first value of each field, and checksums verified.
fn rows(file: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-E", "occurrence=f", "-Y", filter, "-r"]).arg(file);
    for option in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
        command.args(["-o", &format!("{option}:TRUE")]);
    }
    command.args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    fields.iter().for_each(|field| _ = command.args(["-e", field]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Replays a file from the lab's first link; returns the last object.
fn replay(lab: &Lab, file: &Path, options: &[&str]) -> Value {
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "-r", file.to_str().unwrap(), "--json"];
    let child = wirelane(lab, &end.namespace, &[&words[..], options].concat()).unwrap();
    let last = last_of(&child.finish(LIMIT).unwrap()).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    last
}

/// The address of the test's mappings.
fn mapped(address: &str) -> String {
    let Ok(address) = address.parse::<std::net::IpAddr>() else { return address.to_owned() };
    match address {
        std::net::IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            // 0.0.0.0/1 and 128.0.0.0/1 change places.
            std::net::Ipv4Addr::from([first ^ 0x80, rest[0], rest[1], rest[2]]).to_string()
        }
        std::net::IpAddr::V6(address) => {
            std::net::Ipv6Addr::from_bits(address.to_bits() ^ 1 << 127).to_string()
        }
    }
}

/// Whether two rows differ in what a replay is to keep or to change: the addresses of tunnelled packets, of which tshark shows
/// some first, stay, and what tshark decrypts depends on addresses.
fn differ(seen: &[String], expected: &[String]) -> bool {
    let protocols: Vec<&str> = expected[14].split(':').collect();
    if protocols.contains(&"wg") {
        return seen[0] != expected[0];
    }
    let network = protocols.iter().filter(|name| ["ip", "ipv6"].contains(name)).count();
    let tags = protocols.iter().skip(2).take_while(|name| ["vlan", "ethertype"].contains(name)).count();
    let plain = network == 1 && protocols.get(2 + tags).is_some_and(|name| ["ip", "ipv6"].contains(name));
    let addresses = if plain { 1..9 } else { 1..1 };
    seen[0] != expected[0] || seen[addresses.clone()] != expected[addresses] || seen[9..14] != expected[9..14]
}

#[test]
fn changed_frames_have_the_checksums_of_the_changed_fields() {
    const NAME: &str = "changed_frames_have_the_checksums_of_the_changed_fields";
    let Some(corpus) = corpus(NAME) else { return };
    if !require_root(NAME) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = corpus_file(&corpus, folder.path());
    let fields = [
        "frame.len",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
        "ip.checksum.status",
        "tcp.checksum.status",
        "udp.checksum.status",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
        "frame.protocols",
    ];
    let mut expected = rows(&file, SENT, &fields);
    let good = expected.iter().filter(|row| row[9..14].iter().any(|status| status == "1")).count();
    assert!(good > 1000, "{good} packets with a right checksum");
    for row in &mut expected {
        row[1..5].iter_mut().for_each(|address| *address = mapped(address));
        row[5..9].iter_mut().filter(|port| *port == "4444").for_each(|port| *port = "4445".into());
    }
    let lab = Lab::with(&LabOptions { mtu: MTU, ..LabOptions::default() }).unwrap();
    let arrived = folder.path().join("arrived.pcap");
    let dump = tcpdump(&lab, lab.receiver(), &arrived);
    let maps = ["0.0.0.0/1=128.0.0.0/1", "128.0.0.0/1=0.0.0.0/1", "::/1=8000::/1", "8000::/1=::/1"];
    let maps: Vec<&str> = maps.iter().flat_map(|map| ["--map-address", map]).collect();
    let last = replay(&lab, &file, &[&maps[..], &["--map-port", "4444=4445", "--rate", "20k"]].concat());
    dump.terminate(LIMIT).unwrap();
    assert_eq!((column(&last, "sent"), column(&last, "dropped")), (expected.len() as u64, 0), "{last}");
    let seen = rows(&arrived, "frame", &fields);
    assert_eq!(seen.len(), expected.len());
    let wrong: Vec<_> =
        seen.iter().zip(&expected).filter(|(seen, expected)| differ(seen, expected)).collect();
    assert!(wrong.is_empty(), "{} of {}: {:?}", wrong.len(), seen.len(), &wrong[..wrong.len().min(5)]);
}

#[test]
fn frames_of_clients_and_servers_leave_from_their_own_devices() {
    const NAME: &str = "frames_of_clients_and_servers_leave_from_their_own_devices";
    let Some(corpus) = corpus(NAME) else { return };
    if !require_root(NAME) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = corpus_file(&corpus, folder.path());
    // TCP and UDP over IPv4, not in tunnels and not in later fragments.
    let judged = "frame.protocols matches \"^eth:ethertype:ip:(tcp|udp)(?!.*:(ip|ipv6|tcp|udp)(:|$))\" \
                  && ip.frag_offset == 0 && !wg";
    let fields = [
        "frame.len",
        "ip.src",
        "ip.dst",
        "tcp.srcport",
        "udp.srcport",
        "tcp.dstport",
        "udp.dstport",
        "ip.proto",
        "tcp.flags",
        "frame.cap_len",
    ];
    let mut clients: HashMap<[String; 3], String> = HashMap::new();
    let mut expected: [Vec<Vec<String>>; 2] = Default::default();
    for row in rows(&file, judged, &fields) {
        let from = format!("{}:{}{}", row[1], row[3], row[4]);
        let to = format!("{}:{}{}", row[2], row[5], row[6]);
        let key = [from.clone().min(to.clone()), from.clone().max(to.clone()), row[7].clone()];
        let flags = u32::from_str_radix(row[8].trim_start_matches("0x"), 16).unwrap_or(0) & 0x12;
        match flags {
            0x02 => _ = clients.insert(key.clone(), from.clone()),
            0x12 => _ = clients.entry(key.clone()).or_insert(to),
            _ => _ = clients.entry(key.clone()).or_insert(from.clone()),
        }
        let length: u32 = row[0].parse().unwrap();
        if row[0] == row[9] && length <= MTU + 14 {
            expected[usize::from(clients[&key] != from)].push(row);
        }
    }
    assert!(expected.iter().all(|rows| rows.len() > 500), "{:?}", expected.each_ref().map(Vec::len));
    let lab = Lab::with(&LabOptions { mtu: MTU, links: 2, ..LabOptions::default() }).unwrap();
    let files = ["clients.pcap", "servers.pcap"].map(|name| folder.path().join(name));
    let dumps = [0, 1].map(|link: usize| tcpdump(&lab, &lab.links[link].receiver, &files[link]));
    let second = lab.links[1].sender.device.as_str();
    let last = replay(&lab, &file, &["--server-interface", second, "--mbps", "50"]);
    dumps.into_iter().for_each(|dump| _ = dump.terminate(LIMIT).unwrap());
    let all = rows(&file, SENT, &["frame.number"]).len();
    let arrived = files.each_ref().map(|file| rows(file, "frame", &["frame.number"]).len() as u64);
    let sent = [0, 1].map(|side: usize| column(&last["devices"][side], "sent"));
    assert_eq!((arrived, arrived.iter().sum::<u64>(), column(&last, "sent")), (sent, all as u64, all as u64));
    for (file, expected) in files.iter().zip(&expected) {
        let seen = rows(file, judged, &fields);
        assert_eq!(seen.len(), expected.len(), "{}", file.display());
        let wrong = seen.iter().zip(expected).position(|(seen, expected)| seen != expected);
        assert_eq!(wrong, None, "{}: {:?}", file.display(), wrong.map(|at| (&seen[at], &expected[at])));
    }
}
