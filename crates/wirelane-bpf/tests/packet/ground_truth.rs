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

/// Shims between Ethernet and IP that tshark dissects and this parser does not: 802.1BR's E-tag, Cisco's
/// VN-tag and metadata, the network service header, and DCE (FabricPath). A packet behind one is not IP to us.
const NOT_FOLLOWED: [u16; 5] = [0x893f, 0x8926, 0x8909, 0x894f, 0x8903];

/// And the captures that have such packets: in all others there must be none.
const WITH_SHIMS: [&str; 6] = [
    "arkime--arkime_synthetic",
    "suricata--decode-dce",
    "suricata--decode-etag-02",
    "suricata--decode-nsh-type1",
    "suricata--decode-nsh-type2",
    "suricata--decode-vntag-01",
];

/// Link types that the parser does not know, so that nothing can be compared: 802.11, Cisco HDLC, PPP, netlink.
const OTHER_LINKS: [&str; 4] = [
    "arkime--80211http",
    "pcapplusplus--microsecs_big_endian",
    "suricata--decode-chdlc-01.hdlc-http_1tx",
    "suricata--defrag-bug-6887-defrag-ppp-ipv4-tcp-syn.frag-ppp-ip-tcp-syn",
];

/// The protocol and the ports as tshark's fields give them; what they are is in the corpus's README.
fn transport(parsed: &Parsed, data: &[u8]) -> (String, Option<(u16, u16)>) {
    let outer = &parsed.outer;
    let ports = |ip: &Ip| {
        let ports = (u16::from_be(ip.src_port), u16::from_be(ip.dst_port));
        (ip.flags & ip_flags::PORTS != 0).then_some(ports)
    };
    if outer.l3 == l3::IPV4 {
        // `ip.proto` is the field of the IPv4 header. We step over AH (51) to what it protects.
        return match data[usize::from(outer.l3_off) + 9] {
            1 => ("icmp".to_owned(), None),
            6 => ("tcp".to_owned(), ports(outer)),
            17 => ("udp".to_owned(), ports(outer)),
            132 => ("sctp".to_owned(), ports(outer)),
            number => (format!("ipproto-{number}"), None),
        };
    }
    if outer.flags & ip_flags::LATER != 0 {
        // Later IPv6 fragments are data to tshark, whatever they are fragments of.
        return ("ipv6-other:data".to_owned(), None);
    }
    // The truth names the protocol of IPv6 by the first layer in the frame that is not IPv6 itself, so with
    // IPv6 in IPv6 it is the innermost one's.
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

/// What we find, and how much of `non-ip` lies behind a shim that is not followed. None if a packet has a
/// link type that the parser does not know.
fn found(capture: &Capture) -> Option<(Sums, (u64, u64))> {
    let (mut sums, mut shims) = (Sums::new(), (0, 0));
    for packet in packets(&capture.path) {
        if packet.link == LinkType::Other {
            return None;
        }
        let parsed = native::parse(packet.link, &packet.data, true);
        let bytes = u64::from(packet.wire_len);
        if parsed.outer.l3 == l3::NONE && NOT_FOLLOWED.contains(&parsed.eth_type) {
            shims = (shims.0 + 1, shims.1 + bytes);
            continue;
        }
        let sum = sums.entry(key_of(&parsed, &packet.data)).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    Some((sums, shims))
}

/// What is left of `expected` when `found` is taken from it. More found than expected is a failure.
fn missing(id: &str, mut expected: Sums, found: &Sums) -> Sums {
    for (key, sum) in found {
        let left = expected.get_mut(key).unwrap_or_else(|| panic!("{id}: tshark has no flow {key} {sum:?}"));
        assert!(left.0 >= sum.0 && left.1 >= sum.1, "{id}: {key}: tshark {left:?}, ours {sum:?}");
        *left = (left.0 - sum.0, left.1 - sum.1);
    }
    expected.retain(|_, sum| *sum != (0, 0));
    expected
}

#[test]
fn flows_equal_those_of_tshark() {
    let Some(corpus) = corpus("flows compared with tshark's") else { return };
    let (mut equal, mut with_shims, mut other_links) = (0, Vec::new(), Vec::new());
    for capture in captures(&corpus) {
        let Some(truth) = &capture.truth else { continue };
        let truth: Value = serde_json::from_slice(&contents(truth)).expect("the truth is JSON");
        if truth.get("flows_outermost_5tuple").is_none() {
            continue;
        }
        let Some((found, shims)) = found(&capture) else {
            other_links.push(capture.id);
            continue;
        };
        let missing = missing(&capture.id, expected(&truth), &found);
        if shims == (0, 0) {
            assert!(missing.is_empty(), "{}: flows of tshark that we do not have: {missing:?}", capture.id);
            equal += 1;
        } else {
            // The flows that are missing must account for the packets behind shims, to the byte.
            let sum = missing.values().fold((0, 0), |sum, flow| (sum.0 + flow.0, sum.1 + flow.1));
            assert_eq!(sum, shims, "{}: packets behind shims, but missing are {missing:?}", capture.id);
            with_shims.push(capture.id);
        }
    }
    with_shims.sort();
    other_links.sort();
    assert_eq!(with_shims, WITH_SHIMS);
    assert_eq!(other_links, OTHER_LINKS);
    println!(
        "{equal} captures equal, {} but for shims, {} of other links",
        WITH_SHIMS.len(),
        OTHER_LINKS.len()
    );
    assert!(equal > 500, "{equal} captures were compared");
}
