//! Packet tables of the network layer and of tunnels.

use wirelane_bpf::layout::LinkType::Ethernet;
use wirelane_bpf::native::MAX_HEADERS;

use crate::build::*;
use crate::tables::{Case, run};

#[test]
fn ipv4_headers() {
    let u = || udp(1000, 53, b"data");
    let eth = |packet: &[u8]| ethernet(0x0800, packet);
    let edited = |at: usize, bytes: &[u8]| {
        let mut packet = eth(&ipv4(17, &u()));
        packet[14 + at..14 + at + bytes.len()].copy_from_slice(bytes);
        packet
    };
    let cases: Vec<Case> = vec![
        (
            "options",
            Ethernet,
            eth(&ipv4_full(17, 0, &[1; 40], A4, B4, &u())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 72 ports 1000 > 53 OPTIONS @14/74/82",
        ),
        (
            "options, cut within them",
            Ethernet,
            eth(&ipv4_full(17, 0, &[1; 40], A4, B4, &u()))[..60].to_vec(),
            "type 0800 CUT | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 72 OPTIONS @14/-/-",
        ),
        (
            "first fragment",
            Ethernet,
            eth(&ipv4_full(17, 0x2000, &[], A4, B4, &u())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 frag beef at 0 FRAGMENT @14/34/42",
        ),
        (
            "middle fragment",
            Ethernet,
            eth(&ipv4_full(17, 0x2003, &[], A4, B4, &u())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 frag beef at 24 FRAGMENT LATER @14/-/-",
        ),
        (
            "last fragment",
            Ethernet,
            eth(&ipv4_full(17, 0x1fff, &[], A4, B4, &u())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 frag beef at 65528 FRAGMENT LATER @14/-/-",
        ),
        ("header length 4", Ethernet, edited(0, &[0x44]), "type 0800 MALFORMED | none"),
        ("version 6 behind IPv4's EtherType", Ethernet, edited(0, &[0x65]), "type 0800 MALFORMED | none"),
        ("total length shorter than the header", Ethernet, edited(2, &[0, 19]), "type 0800 MALFORMED | none"),
        (
            "total length 0, as segmentation offload leaves it",
            Ethernet,
            edited(2, &[0, 0]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 0 ports 1000 > 53 @14/34/42",
        ),
        (
            "total length that ends within UDP's ports",
            Ethernet,
            edited(2, &[0, 22]),
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 22 @14/34/-",
        ),
        (
            "total length beyond what was captured",
            Ethernet,
            edited(2, &[0xff, 0xff]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 65535 ports 1000 > 53 @14/34/42",
        ),
        (
            "AH",
            Ethernet,
            eth(&ipv4(51, &ah(17, &u()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 56 ports 1000 > 53 OPTIONS @14/58/66",
        ),
        (
            "AH of 8 bytes",
            Ethernet,
            eth(&ipv4(51, &[17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 51 tos 46 ttl 63 len 32 @14/-/-",
        ),
        (
            "hop-by-hop's number is a protocol like any other",
            Ethernet,
            eth(&ipv4(0, &extension(17, 1, &u()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 0 tos 46 ttl 63 len 40 @14/34/-",
        ),
    ];
    run("IPv4", &cases, true);
}

#[test]
fn ipv6_headers() {
    let u = || udp(1000, 53, b"data");
    let eth = |packet: &[u8]| ethernet(0x86dd, packet);
    let many = (0..MAX_HEADERS).fold(u(), |payload, n| extension(if n == 0 { 17 } else { 60 }, 1, &payload));
    let far = extension(60, 256, &extension(60, 256, &extension(17, 1, &u())));
    let cases: Vec<Case> = vec![
        (
            "hop-by-hop, routing, destination options",
            Ethernet,
            eth(&ipv6(0, &extension(43, 1, &extension(60, 3, &extension(17, 2, &u()))))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 100 ports 1000 > 53 OPTIONS @14/102/110",
        ),
        (
            "first fragment, with options behind the fragment header",
            Ethernet,
            eth(&ipv6(44, &fragment6(60, 1, &extension(17, 1, &u())))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 68 ports 1000 > 53 frag cafebabe at 0 FRAGMENT OPTIONS @14/70/78",
        ),
        (
            "later fragment: what is behind the header is not read",
            Ethernet,
            eth(&ipv6(44, &fragment6(60, 0x0011, &[0xff; 16]))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 60 tos 184 ttl 62 len 64 frag cafebabe at 16 FRAGMENT LATER OPTIONS @14/-/-",
        ),
        (
            "atomic fragment: a whole datagram",
            Ethernet,
            eth(&ipv6(44, &fragment6(17, 0, &u()))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 60 ports 1000 > 53 OPTIONS @14/62/70",
        ),
        (
            "AH, then TCP",
            Ethernet,
            eth(&ipv6(51, &ah(6, &tcp(1, 2, &[], b"")))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 6 tos 184 ttl 62 len 84 ports 1 > 2 tcp 12 1 2 3 OPTIONS @14/78/98",
        ),
        (
            "ESP behind destination options",
            Ethernet,
            eth(&ipv6(60, &extension(50, 1, &[5; 24]))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 50 tos 184 ttl 62 len 72 OPTIONS OPAQUE @14/62/-",
        ),
        (
            "no next header",
            Ethernet,
            eth(&ipv6(59, &[])),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 59 tos 184 ttl 62 len 40 @14/-/-",
        ),
        (
            "mobility, with nothing behind it",
            Ethernet,
            eth(&ipv6(135, &extension(59, 1, &[]))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 135 tos 184 ttl 62 len 48 OPTIONS @14/-/-",
        ),
        (
            "mobility, with UDP behind it",
            Ethernet,
            eth(&ipv6(135, &extension(17, 1, &u()))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 60 ports 1000 > 53 OPTIONS @14/62/70",
        ),
        (
            "extension header beyond the payload length",
            Ethernet,
            eth(&ipv6(60, &[17, 9, 0, 0, 0, 0, 0, 0])),
            "type 86dd MALFORMED | ip6 2001:db8::1 > 2001:db8::2 proto 60 tos 184 ttl 62 len 48 OPTIONS @14/-/-",
        ),
        (
            "jumbogram: payload length 0",
            Ethernet,
            {
                let mut packet = eth(&ipv6(0, &extension(17, 1, &u())));
                packet[18..20].fill(0);
                packet
            },
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 0 ports 1000 > 53 OPTIONS @14/62/70",
        ),
        (
            "version 4 behind IPv6's EtherType",
            Ethernet,
            {
                let mut packet = eth(&ipv6(17, &u()));
                packet[14] = 0x4b;
                packet
            },
            "type 86dd MALFORMED | none",
        ),
        (
            "more extension headers than are followed",
            Ethernet,
            eth(&ipv6(60, &many)),
            "type 86dd DEEP | ip6 2001:db8::1 > 2001:db8::2 proto 60 tos 184 ttl 62 len 212 OPTIONS @14/-/-",
        ),
        (
            "headers beyond the offset that is followed",
            Ethernet,
            eth(&ipv6(60, &far))[..3000].to_vec(),
            "type 86dd CUT | ip6 2001:db8::1 > 2001:db8::2 proto 60 tos 184 ttl 62 len 4156 OPTIONS @14/-/-",
        ),
    ];
    run("IPv6", &cases, true);
}

#[test]
fn headers_beyond_the_last_offset_are_deep() {
    let far = extension(60, 256, &extension(60, 256, &extension(17, 1, &udp(1, 2, b""))));
    let packet = ethernet(0x86dd, &ipv6(60, &far));
    let parsed = wirelane_bpf::native::parse(Ethernet, &packet, true);
    assert_eq!(
        crate::describe::describe(&parsed),
        "type 86dd DEEP | ip6 2001:db8::1 > 2001:db8::2 proto 60 tos 184 ttl 62 len 4152 OPTIONS @14/-/-"
    );
}

const INSIDE4: ([u8; 4], [u8; 4]) = ([172, 16, 0, 1], [172, 16, 0, 2]);

fn inside() -> Vec<u8> {
    ipv4_full(17, 0, &[], INSIDE4.0, INSIDE4.1, &udp(5, 6, b""))
}

#[test]
fn tunnels() {
    let eth = |proto: u8, payload: &[u8]| ethernet(0x0800, &ipv4(proto, payload));
    let cases: Vec<Case> = vec![
        (
            "IPv4 in IPv4",
            Ethernet,
            eth(4, &inside()),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 4 tos 46 ttl 63 len 48 @14/34/34 | ipip 0 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @34/54/62",
        ),
        (
            "6in4",
            Ethernet,
            eth(41, &ipv6(17, &udp(5, 6, b""))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 41 tos 46 ttl 63 len 68 @14/34/34 | ipip 0 | \
          ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 48 ports 5 > 6 @34/74/82",
        ),
        (
            "4in6",
            Ethernet,
            ethernet(0x86dd, &ipv6(4, &inside())),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 4 tos 184 ttl 62 len 68 @14/54/54 | ipip 0 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @54/74/82",
        ),
        (
            "a fragment of a tunnel is not entered",
            Ethernet,
            ethernet(0x0800, &ipv4_full(4, 0x2000, &[], A4, B4, &inside())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 4 tos 46 ttl 63 len 48 frag beef at 0 FRAGMENT @14/34/34",
        ),
        (
            "GRE",
            Ethernet,
            eth(47, &gre(0, 0x0800, &inside())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 52 @14/34/38 | gre 0 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @38/58/66",
        ),
        (
            "GRE with checksum, key, sequence number; bridging",
            Ethernet,
            eth(47, &gre(0xb000, 0x6558, &ethernet(0x8100, &tag(9, 0x0800, &inside())))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 82 @14/34/50 | gre 42 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @68/88/96",
        ),
        (
            "GRE, MPLS",
            Ethernet,
            eth(47, &gre(0x2000, 0x8847, &mpls(77, true, &inside()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 60 @14/34/42 | gre 42 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @46/66/74",
        ),
        (
            "GRE, ERSPAN: entered, not understood",
            Ethernet,
            eth(47, &gre(0x1000, 0x88be, &[0; 40])),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 68 @14/34/42 | gre 0",
        ),
        (
            "GRE version 1 (PPTP)",
            Ethernet,
            eth(47, &[0x20, 1, 0x88, 0x0b, 0, 4, 0, 1, 0, 0, 0, 0]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 32 @14/34/42",
        ),
        (
            "VXLAN",
            Ethernet,
            eth(17, &udp(7777, 4789, &vxlan(1234, &ethernet(0x0800, &inside())))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 78 ports 7777 > 4789 @14/34/42 | vxlan 1234 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @64/84/92",
        ),
        (
            "VXLAN's port without its I flag",
            Ethernet,
            eth(17, &udp(7777, 4789, &[0; 60])),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 88 ports 7777 > 4789 @14/34/42",
        ),
        (
            "VXLAN, ARP",
            Ethernet,
            eth(17, &udp(7777, 4789, &vxlan(1, &ethernet(0x0806, &arp())))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 78 ports 7777 > 4789 @14/34/42 | vxlan 1 | \
          arp 10.0.0.1 > 10.0.0.2 len 28 @64/-/-",
        ),
        (
            "VXLAN in VXLAN: the inner one counts",
            Ethernet,
            eth(
                17,
                &udp(
                    1,
                    4789,
                    &vxlan(
                        1,
                        &ethernet(0x0800, &ipv4(17, &udp(2, 4789, &vxlan(2, &ethernet(0x0800, &inside()))))),
                    ),
                ),
            ),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 128 ports 1 > 4789 @14/34/42 | vxlan 2 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @114/134/142",
        ),
        (
            "Geneve with options",
            Ethernet,
            eth(
                17,
                &udp(7777, 6081, &geneve(99, &[0; 8], 0x6558, &ethernet(0x86dd, &ipv6(17, &udp(5, 6, b""))))),
            ),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 106 ports 7777 > 6081 @14/34/42 | geneve 99 | \
          ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 48 ports 5 > 6 @72/112/120",
        ),
        (
            "GTP-U",
            Ethernet,
            eth(17, &udp(2152, 2152, &gtpu(0, 0xabcd, &[], &inside()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 64 ports 2152 > 2152 @14/34/42 | gtpu 43981 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @50/70/78",
        ),
        (
            "GTP-U with a sequence number, whose next extension type is not read",
            Ethernet,
            eth(17, &udp(2152, 2152, &gtpu(2, 7, &[0, 1, 0, 0x85], &inside()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 68 ports 2152 > 2152 @14/34/42 | gtpu 7 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @54/74/82",
        ),
        (
            "GTP-U with two extension headers (5G)",
            Ethernet,
            eth(
                17,
                &udp(
                    2152,
                    2152,
                    &gtpu(
                        4,
                        7,
                        &[0, 0, 0, 0x85, 1, 0, 9, 0x40, 2, 0, 0, 0, 0, 0, 0, 0],
                        &ipv6(17, &udp(5, 6, b"")),
                    ),
                ),
            ),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 100 ports 2152 > 2152 @14/34/42 | gtpu 7 | \
          ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 48 ports 5 > 6 @66/106/114",
        ),
        (
            "GTP-U with an extension header of length 0",
            Ethernet,
            eth(17, &udp(2152, 2152, &gtpu(4, 7, &[0, 0, 0, 0x85, 0, 0, 0, 0], &inside()))),
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 72 ports 2152 > 2152 @14/34/42 | gtpu 7",
        ),
        (
            "GTP-U that says to be a byte shorter than the datagram in it",
            Ethernet,
            {
                let mut packet = eth(17, &udp(2152, 2152, &gtpu(0, 7, &[], &inside())));
                packet[45] = 27;
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 64 ports 2152 > 2152 @14/34/42 | gtpu 7 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @50/70/-",
        ),
        (
            "UDP that says to be a byte shorter than the tunnel in it",
            Ethernet,
            {
                let mut packet = eth(17, &udp(7777, 4789, &vxlan(1, &ethernet(0x0800, &inside()))));
                packet[39] -= 1;
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 78 ports 7777 > 4789 @14/34/42 | vxlan 1 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @64/84/-",
        ),
        (
            "GTP-U echo request",
            Ethernet,
            eth(17, &udp(2152, 2152, &[0x32, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0])),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 40 ports 2152 > 2152 @14/34/42",
        ),
        (
            "an inner datagram that claims more than the outer one has",
            Ethernet,
            {
                let mut packet = eth(4, &inside()[..24]);
                packet.extend([0; 40]);
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 4 tos 46 ttl 63 len 44 @14/34/34 | ipip 0 | \
          ip4 172.16.0.1 > 172.16.0.2 proto 17 tos 46 ttl 63 len 28 ports 5 > 6 @34/54/-",
        ),
    ];
    run("tunnels", &cases, true);
}

#[test]
fn tunnels_that_are_not_followed() {
    let cases: Vec<Case> = vec![
        (
            "IPv4 in IPv4",
            Ethernet,
            ethernet(0x0800, &ipv4(4, &inside())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 4 tos 46 ttl 63 len 48 @14/34/34",
        ),
        (
            "GRE",
            Ethernet,
            ethernet(0x0800, &ipv4(47, &gre(0x2000, 0x0800, &inside()))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 47 tos 46 ttl 63 len 56 @14/34/42",
        ),
        (
            "VXLAN",
            Ethernet,
            ethernet(0x0800, &ipv4(17, &udp(1, 4789, &vxlan(1, &ethernet(0x0800, &inside()))))),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 78 ports 1 > 4789 @14/34/42",
        ),
    ];
    run("tunnels that are not followed", &cases, false);
}
