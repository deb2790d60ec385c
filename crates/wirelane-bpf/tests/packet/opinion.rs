//! Results of etherparse and the native parser for a packet, in the same format. The fuzz target `second_opinion`
//! includes this file too.

use etherparse::{IpPayloadSlice, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use wirelane_bpf::layout::{Ip, NO_OFFSET, Parsed, ip_flags, l3};

/// The compared fields: layer, addresses, protocol, offset of the transport header, ports, TCP fields.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Opinion {
    pub(crate) l3: u8,
    src: Vec<u8>,
    dst: Vec<u8>,
    pub(crate) proto: u8,
    ttl: u8,
    fragmented: bool,
    transport_at: Option<usize>,
    ports: Option<(u16, u16)>,
    tcp: Option<(u32, u32, u16, usize)>,
    icmp: Option<(u8, u8)>,
    vlan_count: usize,
    vlans: Vec<u16>,
}

/// The result of etherparse for an Ethernet packet; `None` if it fails, or is not comparable.
pub(crate) fn theirs(data: &[u8]) -> Option<Opinion> {
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
    // Behind IPv6's "no next header" and mobility there is no transport header; etherparse reports an offset all the
    // same.
    let ends_without = opinion.l3 == l3::IPV6 && matches!(opinion.proto, 59 | 135);
    if !payload.fragmented && !ends_without {
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

/// The result of the native parser.
pub(crate) fn ours(parsed: &Parsed) -> Opinion {
    let ip: &Ip = &parsed.outer;
    let address = if ip.l3 == l3::IPV4 { 4 } else { 16 };
    let has = |flag: u8| ip.flags & flag != 0;
    // etherparse reads no transport header in any fragment, including the first one; ours is then not compared.
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
