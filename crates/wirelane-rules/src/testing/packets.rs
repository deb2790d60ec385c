//! Generates packets from the values of `generator`.

use std::net::{IpAddr, SocketAddr};

use wirelane_bpf::layout::{Ip, NO_OFFSET, Parsed, flags, ip_flags, l3};
use wirelane_bpf::rules::Facts;

use super::generator::Values;
use wirelane_testing::Dice;

/// Payload prefixes with fields of application protocols, and near misses.
const BEGINNINGS: &[&[u8]] = &[
    b"GET /",
    b"POST *",
    b"GET x",
    b"\r\nhOsT: aB",
    b"\r\nHost:ab",
    b"GET / \r\ni: a\r\n",
    b"\r\nCall-ID:a\r\n",
    b"\x80\x00",
    b"\xbf\xe1",
    b"\x80\x04",
    b"\x40\x00",
];

/// Results of a parser, including some that no parser produces.
pub fn parsed(dice: &mut Dice, values: &Values) -> Parsed {
    let mut parsed = Parsed { eth_type: *dice.pick(&values.ethertypes), ..Parsed::default() };
    parsed.outer = ip(dice, values);
    parsed.inner = ip(dice, values);
    parsed.flags = dice.next() as u16 & (flags::TUNNEL | flags::VLAN | flags::MPLS);
    parsed.vlan_tci = [*dice.pick(&values.vlans) | (dice.next() as u16 & 0xf000), 0];
    parsed.mpls_label = dice.below(3) as u32;
    parsed.tunnel_id = dice.below(3) as u32;
    parsed
}

fn ip(dice: &mut Dice, values: &Values) -> Ip {
    let mut ip = Ip::default();
    let layer = *dice.pick(&[l3::IPV4, l3::IPV6, l3::IPV4, l3::IPV6, l3::ARP, l3::NONE]);
    ip.l3 = layer;
    ip.src = bytes(dice, values, layer);
    ip.dst = bytes(dice, values, layer);
    ip.proto = *dice.pick(&values.protocols);
    ip.tos = dice.next() as u8;
    let whole = !dice.once_in(5);
    if !whole {
        ip.flags = ip_flags::FRAGMENT | if dice.once_in(2) { ip_flags::LATER } else { 0 };
        ip.frag_id = dice.word();
        ip.frag_off = dice.next() as u16;
    }
    ip.ident = dice.next() as u16;
    ip.payload_off = *dice.pick(&[0, 0, 0, 7, 200, NO_OFFSET]);
    ip.l3_len = *dice.pick(&[0, 0, 0, 30, 300]);
    if ip.flags & ip_flags::LATER == 0 {
        ip.flags |= dice.next() as u8 & (ip_flags::PORTS | ip_flags::TCP | ip_flags::ICMP);
    }
    if ip.flags & ip_flags::PORTS != 0 {
        ip.src_port = dice.pick(&values.ports).to_be();
        ip.dst_port = dice.pick(&values.ports).to_be();
    }
    if dice.once_in(3) && !values.flows.is_empty() {
        of_flow(dice, values, &mut ip);
    }
    if ip.flags & ip_flags::TCP != 0 {
        ip.tcp_flags = *dice.pick(&values.tcp_flags);
        ip.tcp_seq = dice.next() as u32;
    }
    if ip.flags & ip_flags::ICMP != 0 {
        ip.icmp_type = *dice.pick(&[0, 3, 8, 11, 128, 135]);
    }
    ip
}

/// Makes the packet part of a flow, in either direction.
fn of_flow(dice: &mut Dice, values: &Values, ip: &mut Ip) {
    let (mut ends, protocol) = *dice.pick(&values.flows);
    if dice.once_in(2) {
        ends.swap(0, 1);
    }
    ip.l3 = if ends[0].is_ipv4() { l3::IPV4 } else { l3::IPV6 };
    let bytes = |end: SocketAddr| match end.ip() {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    };
    (ip.src, ip.dst) = (bytes(ends[0]), bytes(ends[1]));
    ip.proto = protocol;
    if ip.flags & ip_flags::LATER == 0 {
        ip.flags |= ip_flags::PORTS;
        (ip.src_port, ip.dst_port) = (ends[0].port().to_be(), ends[1].port().to_be());
    }
}

/// An address of this network layer; IPv4 in the first 4 bytes, as stored by the parser.
fn bytes(dice: &mut Dice, values: &Values, layer: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    match dice.pick(&values.addresses) {
        IpAddr::V6(address) if layer == l3::IPV6 => bytes = address.octets(),
        IpAddr::V4(address) if layer != l3::NONE => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) if layer != l3::NONE => bytes[..4].copy_from_slice(&address.octets()[12..]),
        _ => {}
    }
    bytes
}

/// First lines of SIP messages, and unrelated ones.
const FIRST_LINES: &[&[u8]] = &[
    b"INVITE sip:a SIP/2.0",
    b"SIP/2.0 200 OK",
    b"Sip/2.0 1",
    b"bye TEL:1",
    b"MESSAGE sips:",
    b"ACK http:",
    b" SIP/2.0 ",
];

/// Parts of further lines: field names, line ends, and folding.
const OF_LINES: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\n",
    b"\n",
    b" ",
    b"\r\n ",
    b"\n\t",
    b"\t",
    b"\r",
    b":",
    b"\r\nFrom: ",
    b"\nFROM :",
    b"\r\nf:",
    b"\nf\t:",
    b"\r\nTo: ",
    b"\nt:",
    b"\r\nTo\t:",
    b"\nVia: ",
    b"\r\nFrom  :",
    b"\r\nX-From: ",
    b"\r\n\r\n",
    b"\n\n",
];

/// A SIP message, or a near miss.
fn sip(dice: &mut Dice, values: &Values) -> Vec<u8> {
    let mut bytes = dice.pick(FIRST_LINES).to_vec();
    let most = if dice.once_in(5) { 200 } else { 20 };
    for _ in 0..dice.below(most) {
        let last = OF_LINES.len() - if dice.once_in(8) { 0 } else { 2 };
        let part = if dice.once_in(2) { dice.pick(&OF_LINES[..last]) } else { &dice.pick(&values.words)[..] };
        bytes.extend(part);
    }
    bytes
}

/// A payload: words, and other bytes between them.
pub fn payload(dice: &mut Dice, values: &Values) -> Vec<u8> {
    if dice.once_in(3) {
        return sip(dice, values);
    }
    let mut bytes = if dice.once_in(3) { dice.pick(BEGINNINGS).to_vec() } else { Vec::new() };
    let most = if dice.once_in(10) { 300 } else { 40 };
    for _ in 0..dice.below(most) {
        if dice.once_in(2) {
            let word = dice.pick(&values.words);
            bytes.extend(if dice.once_in(3) { word.to_ascii_lowercase() } else { word.clone() });
        } else {
            bytes.push(*dice.pick(b"abAB\x00x"));
        }
    }
    bytes
}

/// Metadata of a packet.
pub fn facts(dice: &mut Dice, values: &Values, now_ns: u64) -> Facts {
    Facts {
        now_ns,
        wire_len: *dice.pick(&values.lengths),
        queue: *dice.pick(&[0, 1, 2, 7]),
        egress: dice.below(2) as u32,
        seed: 7,
        ..Facts::default()
    }
}
