//! The native parser against etherparse, field by field, on every Ethernet packet of the corpus.

use etherparse::{IpPayloadSlice, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use wirelane_datapath::layout::{Ip, LinkType, NO_OFFSET, Parsed, flags, ip_flags, l3};
use wirelane_datapath::native;

use crate::captures::{captures, corpus, packets};

/// What is compared: layer, addresses, protocol, offset of the transport header, ports, TCP fields.
#[derive(Debug, PartialEq, Eq, Default)]
struct Opinion {
    l3: u8,
    src: Vec<u8>,
    dst: Vec<u8>,
    proto: u8,
    ttl: u8,
    fragmented: bool,
    transport_at: Option<usize>,
    ports: Option<(u16, u16)>,
    tcp: Option<(u32, u32, u16, usize)>,
    icmp: Option<(u8, u8)>,
    vlan_count: usize,
    vlans: Vec<u16>,
}

fn theirs(data: &[u8]) -> Option<Opinion> {
    let packet = SlicedPacket::from_ethernet(data).ok()?;
    let mut opinion = Opinion::default();
    for extension in &packet.link_exts {
        match extension {
            LinkExtSlice::Vlan(tag) => opinion.vlans.push(tag.vlan_identifier().value()),
            // MACsec is not followed by our parser, and etherparse looks behind it where it is not encrypted.
            LinkExtSlice::Macsec(_) => return None,
        }
    }
    opinion.vlan_count = opinion.vlans.len();
    opinion.vlans.truncate(2); // a parse result holds two
    let at = |payload: &IpPayloadSlice<'_>| payload.payload.as_ptr() as usize - data.as_ptr() as usize;
    let (payload, at) = match packet.net? {
        NetSlice::Ipv4(ip) => {
            opinion.l3 = l3::IPV4;
            opinion.src = ip.header().source().to_vec();
            opinion.dst = ip.header().destination().to_vec();
            opinion.ttl = ip.header().ttl();
            (ip.payload().clone(), at(ip.payload()))
        }
        NetSlice::Ipv6(ip) => {
            opinion.l3 = l3::IPV6;
            opinion.src = ip.header().source().to_vec();
            opinion.dst = ip.header().destination().to_vec();
            opinion.ttl = ip.header().hop_limit();
            (ip.payload().clone(), at(ip.payload()))
        }
        NetSlice::Arp(_) => return None,
    };
    opinion.proto = payload.ip_number.0;
    opinion.fragmented = payload.fragmented;
    // Behind "no next header" and mobility there is no transport header; etherparse gives the place all the same.
    if !payload.fragmented && !matches!(opinion.proto, 59 | 135) {
        opinion.transport_at = Some(at);
    }
    match packet.transport {
        Some(TransportSlice::Udp(udp)) => opinion.ports = Some((udp.source_port(), udp.destination_port())),
        Some(TransportSlice::Tcp(tcp)) => {
            opinion.ports = Some((tcp.source_port(), tcp.destination_port()));
            let payload_at = at + tcp.header_slice().len();
            let numbers = (tcp.sequence_number(), tcp.acknowledgment_number(), tcp.window_size(), payload_at);
            opinion.tcp = Some(numbers);
        }
        Some(TransportSlice::Icmpv4(icmp)) => opinion.icmp = Some((icmp.type_u8(), icmp.code_u8())),
        Some(TransportSlice::Icmpv6(icmp)) => opinion.icmp = Some((icmp.type_u8(), icmp.code_u8())),
        Some(TransportSlice::Igmp(_)) | None => {}
    }
    Some(opinion)
}

fn ours(parsed: &Parsed) -> Opinion {
    let ip: &Ip = &parsed.outer;
    let address = if ip.l3 == l3::IPV4 { 4 } else { 16 };
    let has = |flag: u8| ip.flags & flag != 0;
    // etherparse reads no transport header in any fragment, the first one included; ours is then not compared.
    let whole = !has(ip_flags::FRAGMENT);
    let by_etherparse = whole && matches!(ip.proto, 6 | 17);
    Opinion {
        l3: ip.l3,
        src: ip.src[..address].to_vec(),
        dst: ip.dst[..address].to_vec(),
        proto: ip.proto,
        ttl: ip.ttl,
        fragmented: !whole,
        transport_at: (whole && ip.l4_off != NO_OFFSET).then_some(ip.l4_off.into()),
        ports: (by_etherparse && has(ip_flags::PORTS))
            .then(|| (u16::from_be(ip.src_port), u16::from_be(ip.dst_port))),
        tcp: (by_etherparse && has(ip_flags::TCP)).then_some((
            ip.tcp_seq,
            ip.tcp_ack,
            ip.tcp_window,
            ip.payload_off.into(),
        )),
        icmp: (whole && has(ip_flags::ICMP)).then_some((ip.icmp_type, ip.icmp_code)),
        vlan_count: parsed.vlan_count.into(),
        vlans: parsed.vlan_tci[..usize::from(parsed.vlan_count.min(2))]
            .iter()
            .map(|tci| tci & 0x0fff)
            .collect(),
    }
}

/// Packets that etherparse reads to their end, and that have more headers than our parser follows: chains of
/// destination options that were made to be long.
const DEEP: [&str; 3] = [
    "libpcap--ipv6_ext_headers",
    "suricata--ipv6-evasion-ipv6-malformed-fragments-11.frag-11",
    "suricata--ipv6-evasion-ipv6-malformed-fragments-12.frag-12",
];

#[test]
fn etherparse_agrees() {
    let Some(corpus) = corpus("etherparse's opinion on the corpus") else { return };
    let (mut compared, mut deep) = (0u32, Vec::new());
    for capture in captures(&corpus) {
        for (number, packet) in packets(&capture.path).iter().enumerate() {
            if packet.link != LinkType::Ethernet {
                continue;
            }
            let Some(theirs) = theirs(&packet.data) else { continue };
            let parsed = native::parse(packet.link, &packet.data, false);
            if parsed.flags & flags::DEEP != 0 {
                deep.push(capture.id.clone());
                continue;
            }
            // etherparse takes the bytes of a later fragment for an authentication header; they are payload.
            if parsed.outer.proto == 51 && parsed.outer.flags & ip_flags::LATER != 0 {
                continue;
            }
            assert_eq!(ours(&parsed), theirs, "{} packet {}: left ours", capture.id, number + 1);
            compared += 1;
        }
    }
    println!(
        "{compared} packets are the same to etherparse; {} have more headers than we follow",
        deep.len()
    );
    assert_eq!(deep, DEEP);
    assert!(compared > 180_000, "{compared} packets were compared");
}
