//! The native parser against tshark: packets and bytes per direction by outermost 5-tuple, for every capture
//! of the corpus that has them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::Value;

use crate::captures::{Capture, captures, contents, corpus, packets};
use wirelane_bpf::layout::{Ip, LinkType, Parsed, flags, ip_flags, l3};
use wirelane_bpf::native;

/// Packets and bytes by "proto source sport destination dport", in tshark's words.
type Sums = BTreeMap<String, (u64, u64)>;

/// The key of packets without IP.
const NON_IP: &str = "non-ip";

fn key(proto: &str, src: &str, sport: &str, dst: &str, dport: &str) -> String {
    format!("{proto} {src} {sport} > {dst} {dport}")
}

fn expected(truth: &Value) -> Sums {
    let mut sums = Sums::new();
    let number = |value: &Value| value.as_u64().expect("sums are numbers");
    for flow in truth["flows_outermost_5tuple"].as_array().expect("a list of flows") {
        let text = |name: &str| flow[name].as_str().expect("names are strings").to_owned();
        let key = key(&text("proto"), &text("src"), &text("sport"), &text("dst"), &text("dport"));
        let sum = sums.entry(key).or_default();
        sum.0 += number(&flow["packets"]);
        sum.1 += number(&flow["bytes"]);
    }
    let rest = (number(&truth["non_ip"]["packets"]), number(&truth["non_ip"]["bytes"]));
    if rest.0 > 0 {
        sums.insert(NON_IP.to_owned(), rest);
    }
    sums
}

/// The capture with a link type that the parser does not know, but with flows in tshark: netlink.
const OTHER_LINKS: [&str; 1] = ["pcapplusplus--microsecs_big_endian"];

/// The protocol and the ports in tshark's field format; the corpus's README describes it.
fn transport(parsed: &Parsed, data: &[u8]) -> (String, Option<(u16, u16)>) {
    let outer = &parsed.outer;
    let ports = |ip: &Ip| {
        let ports = (u16::from_be(ip.src_port), u16::from_be(ip.dst_port));
        (ip.flags & ip_flags::PORTS != 0).then_some(ports)
    };
    if outer.l3 == l3::IPV4 {
        // `ip.proto` is the field of the IPv4 header. The parser skips AH (51).
        return match data[usize::from(outer.l3_off) + 9] {
            1 => ("icmp".to_owned(), None),
            6 => ("tcp".to_owned(), ports(outer)),
            17 => ("udp".to_owned(), ports(outer)),
            132 => ("sctp".to_owned(), ports(outer)),
            number => (format!("ipproto-{number}"), None),
        };
    }
    if outer.flags & ip_flags::LATER != 0 {
        // tshark treats later IPv6 fragments as data, whatever they are fragments of.
        return ("ipv6-other:data".to_owned(), None);
    }
    // tshark's reference names the protocol of IPv6 by the first layer in the frame other than IPv6, so with IPv6 in
    // IPv6 it is that of the innermost one.
    let ip = if outer.proto == 41 && parsed.flags & flags::TUNNEL != 0 { &parsed.inner } else { outer };
    let name = match ip.proto {
        6 => "tcp",
        17 => "udp",
        132 => "sctp",
        58 => "icmpv6",
        50 => "esp",
        4 => "ipv6-other:ip",
        89 => "ipv6-other:ospf",
        103 => "ipv6-other:pim",
        135 => "ipv6-other:mipv6",
        number => return (format!("ipv6-other:{number}"), None),
    };
    (name.to_owned(), ports(ip))
}

fn key_of(parsed: &Parsed, data: &[u8]) -> String {
    let Ip { src, dst, l3: layer, .. } = &parsed.outer;
    let text = |a: &[u8; 16]| match *layer {
        l3::IPV4 => Ipv4Addr::new(a[0], a[1], a[2], a[3]).to_string(),
        _ => Ipv6Addr::from(*a).to_string(),
    };
    if *layer != l3::IPV4 && *layer != l3::IPV6 {
        return NON_IP.to_owned();
    }
    let (proto, ports) = transport(parsed, data);
    let (sport, dport) = ports.map_or_else(Default::default, |(s, d)| (s.to_string(), d.to_string()));
    key(&proto, &text(src), &sport, &text(dst), &dport)
}

/// The sums of the native parser. None if a packet has a link type that the parser does not know.
fn found(capture: &Capture) -> Option<Sums> {
    let mut sums = Sums::new();
    for packet in packets(&capture.path) {
        if packet.link == LinkType::Other {
            return None;
        }
        let parsed = native::parse(packet.link, &packet.data, true);
        let sum = sums.entry(key_of(&parsed, &packet.data)).or_default();
        *sum = (sum.0 + 1, sum.1 + u64::from(packet.wire_len));
    }
    Some(sums)
}

/// Entries that are in only one of the two, or differ.
fn differences(expected: Sums, found: &Sums) -> Option<String> {
    let theirs: Vec<_> = expected.iter().filter(|(key, sum)| found.get(*key) != Some(sum)).collect();
    let ours: Vec<_> = found.iter().filter(|(key, sum)| expected.get(*key) != Some(sum)).collect();
    (!theirs.is_empty() || !ours.is_empty()).then(|| format!("tshark {theirs:?}, ours {ours:?}"))
}

/// Battery: I10
#[test]
fn flows_equal_those_of_tshark() {
    let Some(corpus) = corpus("flows compared with tshark's") else { return };
    let (mut equal, mut other_links, mut wrong) = (0, Vec::new(), Vec::new());
    for capture in captures(&corpus) {
        let Some(truth) = &capture.truth else { continue };
        let truth: Value = serde_json::from_slice(&contents(truth)).expect("the truth is JSON");
        if truth.get("flows_outermost_5tuple").is_none() {
            continue;
        }
        let Some(found) = found(&capture) else {
            other_links.push(capture.id);
            continue;
        };
        match differences(expected(&truth), &found) {
            Some(differences) => wrong.push(format!("{}: {differences}", capture.id)),
            None => equal += 1,
        }
    }
    other_links.sort();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(other_links, OTHER_LINKS);
    println!("{equal} captures equal, {} of other links", OTHER_LINKS.len());
    assert!(equal > 500, "{equal} captures were compared");
}
