//! Every encapsulation that the parser claims to know, made by scapy (`encapsulations.py`): what is carried in it is found,
//! and tshark finds the same.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;

use crate::captures::{Packet, packets};
use crate::probe::{LONGEST, Probe, SHORTEST};
use wirelane_bpf::layout::{Ip, Parsed, flags, ip_flags, l3};
use wirelane_bpf::native;

/// A line of the script's `names.tsv`.
struct Case {
    name: String,
    expected: String,
}

/// The captures that the script has made, by link type; None after saying that scapy is missing.
fn made(folder: &Path) -> Option<BTreeMap<u32, Vec<Case>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packet/encapsulations.py");
    // A Python of the user's own may come first, without the distribution's scapy.
    let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        Command::new(python).args(["-c", "import scapy"]).output().is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        println!("left out: encapsulations made by scapy (no python3-scapy)");
        return None;
    };
    let output = Command::new(python).arg(script).arg(folder).output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut cases = BTreeMap::<u32, Vec<Case>>::new();
    for line in std::fs::read_to_string(folder.join("names.tsv")).expect("it is written").lines() {
        let [link, number, name, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("four columns: {line}")
        };
        let of_link = cases.entry(link.parse().expect("a number")).or_default();
        of_link.push(Case { name: name.to_owned(), expected: expected.to_owned() });
        assert_eq!(of_link.len().to_string(), number);
    }
    Some(cases)
}

/// Source, destination and ports.
fn ends(ip: &Ip) -> String {
    let address = |a: &[u8; 16]| match ip.l3 {
        l3::IPV4 => Ipv4Addr::new(a[0], a[1], a[2], a[3]).to_string(),
        l3::IPV6 => Ipv6Addr::from(*a).to_string(),
        _ => "none".to_owned(),
    };
    let ports = match ip.flags & ip_flags::PORTS {
        0 => String::new(),
        _ => format!(" {} {}", u16::from_be(ip.src_port), u16::from_be(ip.dst_port)),
    };
    format!("{} {}{ports}", address(&ip.src), address(&ip.dst))
}

const CARRIED: [&str; 2] = ["10.0.0.1 10.0.0.2 40001 40002", "fd00::1 fd00::2 40001 40002"];
const CARRYING: [&str; 2] = ["192.0.2.1 192.0.2.2", "2001:db8::1 2001:db8::2"];

fn is_as_expected(parsed: &Parsed, expected: &str) -> bool {
    let (outer, inner) = (ends(&parsed.outer), ends(&parsed.inner));
    let in_tunnel = parsed.flags & flags::TUNNEL != 0;
    let carries = CARRYING.iter().any(|addresses| outer.starts_with(addresses));
    match expected.trim_end_matches("-alone") {
        "outer" => CARRIED.contains(&outer.as_str()) && !in_tunnel,
        "tunnel" => carries && in_tunnel && CARRIED.contains(&inner.as_str()),
        "opaque" => carries && !in_tunnel,
        "none" => parsed.outer.l3 == l3::NONE,
        other => panic!("{other} is not known"),
    }
}

#[test]
fn what_is_carried_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(cases) = made(folder.path()) else { return };
    let probe = Probe::load("kernel side of the encapsulations");
    let (mut wrong, mut found) = (Vec::new(), 0);
    for (link, cases) in &cases {
        let packets = packets(&folder.path().join(format!("{link}.pcap")));
        assert_eq!(packets.len(), cases.len(), "link type {link}");
        for (Packet { link, data, .. }, case) in packets.iter().zip(cases) {
            let parsed = native::parse(*link, data, true);
            if !is_as_expected(&parsed, &case.expected) {
                wrong.push(format!("{link:?}, {}: not {}: {parsed:?}", case.name, case.expected));
            }
            // Without tunnels, what carries one looks the same, and nothing else is there.
            let outer = native::parse(*link, data, false);
            assert_eq!(
                (outer.outer, outer.flags & flags::TUNNEL),
                (parsed.outer, 0),
                "{link:?}, {}",
                case.name
            );
            if let Some(probe) =
                probe.as_ref().filter(|_| link.is_of_devices() && (SHORTEST..=LONGEST).contains(&data.len()))
            {
                assert_eq!(
                    probe.parse(*link, data, true, 1).parsed,
                    parsed,
                    "{link:?}, {}: kernel left",
                    case.name
                );
            }
            found += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{found} encapsulations");
    assert!(found > 250);
}

/// tshark's addresses and UDP ports of each packet.
fn tshark(file: &Path) -> Vec<String> {
    let output = Command::new("tshark")
        .args(["-n", "-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,"])
        .args(["-e", "ip.src", "-e", "ipv6.src", "-e", "udp.srcport", "-r"])
        .arg(file)
        .output()
        .expect("tshark runs");
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn tshark_finds_the_same() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("left out: tshark_finds_the_same (no tshark)");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(cases) = made(folder.path()) else { return };
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (link, cases) in &cases {
        if cases.iter().all(|case| case.expected.ends_with("-alone")) {
            continue;
        }
        let theirs = tshark(&folder.path().join(format!("{link}.pcap")));
        assert_eq!(theirs.len(), cases.len(), "link type {link}");
        for (line, case) in theirs.iter().zip(cases).filter(|(_, case)| !case.expected.ends_with("-alone")) {
            let all: Vec<&str> = line.split(['\t', ',']).collect();
            let is_found = (all.contains(&"10.0.0.1") || all.contains(&"fd00::1")) && all.contains(&"40001");
            if is_found != matches!(case.expected.as_str(), "outer" | "tunnel") {
                wrong.push(format!("{link}, {}: expected {}, tshark has {line}", case.name, case.expected));
            }
            compared += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("{compared} encapsulations are the same to tshark");
    assert!(compared > 200);
}
