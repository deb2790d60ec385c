//! Packet tables: description, bytes, and expected result. Each runs natively, and in the kernel if BPF_PROG_TEST_RUN
//! accepts the packet.

use wirelane_bpf::layout::LinkType::{self, Ethernet, Loop, Null, Other, Raw, Sll, Sll2};
use wirelane_bpf::native;

use crate::build::*;
use crate::describe::describe;
use crate::guarded::Guarded;
use crate::probe::{Probe, SHORTEST};

/// Description, link type, packet, expected text.
pub type Case = (&'static str, LinkType, Vec<u8>, &'static str);

/// Runs a table, with tunnels followed or not.
pub fn run(table: &str, cases: &[Case], follow: bool) {
    let probe = Probe::load(&format!("kernel side of the table of {table}"));
    let mut guarded = Guarded::new(65536);
    for (description, link, packet, expected) in cases {
        let parsed = native::parse(*link, guarded.place(packet), follow);
        assert_eq!(describe(&parsed), *expected, "{description} (left: native, right: expected)");
        if let Some(probe) = probe.as_ref().filter(|_| packet.len() >= SHORTEST) {
            let kernel = probe.parse(*link, packet, follow, 0).parsed;
            assert_eq!(kernel, parsed, "{description} (left: kernel, right: native)");
        }
    }
}

/// `packet` behind a Linux cooked header of the given version.
fn cooked(version: u8, device_type: u16, protocol: u16, packet: &[u8]) -> Vec<u8> {
    let (device_type, protocol) = (device_type.to_be_bytes(), protocol.to_be_bytes());
    if version == 1 {
        [&[0, 0], &device_type[..], &[0, 6, 2, 0, 0, 0, 0, 2, 0, 0], &protocol, packet].concat()
    } else {
        [&protocol[..], &[0, 0, 0, 0, 0, 3], &device_type, &[0, 6, 2, 0, 0, 0, 0, 2, 0, 0], packet].concat()
    }
}

#[test]
fn links() {
    let u = || udp(1000, 53, b"data");
    let ip = || ipv4(17, &u());
    let snap = |oui: [u8; 3], ether_type: u16, payload: &[u8]| {
        let length = payload.len() as u16 + 8;
        let rest = [&[0xaa, 0xaa, 3][..], &oui, &ether_type.to_be_bytes(), payload].concat();
        ethernet(length, &rest)
    };
    let cases: Vec<Case> = vec![
        (
            "Ethernet, IPv4, UDP",
            Ethernet,
            ethernet(0x0800, &ip()),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @14/34/42",
        ),
        (
            "one VLAN tag",
            Ethernet,
            ethernet(0x8100, &tag(0x2007, 0x0800, &ip())),
            "type 0800 vlan x1 [8199] | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @18/38/46",
        ),
        (
            "802.1ad: two tags",
            Ethernet,
            ethernet(0x88a8, &tag(5, 0x8100, &tag(6, 0x0800, &ip()))),
            "type 0800 vlan x2 [5, 6] | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @22/42/50",
        ),
        (
            "the old QinQ: three tags, two are kept",
            Ethernet,
            ethernet(0x9100, &tag(5, 0x9100, &tag(6, 0x8100, &tag(7, 0x0800, &ip())))),
            "type 0800 vlan x3 [5, 6] | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @26/46/54",
        ),
        (
            "MPLS stack, IPv4",
            Ethernet,
            ethernet(0x8847, &mpls(100, false, &mpls(200, true, &ip()))),
            "type 0800 mpls x2 100 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @22/42/50",
        ),
        (
            "MPLS, IPv6",
            Ethernet,
            ethernet(0x8848, &mpls(1048575, true, &ipv6(17, &u()))),
            "type 86dd mpls x1 1048575 | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @18/58/66",
        ),
        (
            "MPLS, Ethernet pseudowire with control word",
            Ethernet,
            ethernet(0x8847, &mpls(3, true, &[&[0; 4], &ethernet(0x0800, &ip())[..]].concat())),
            "type 0800 mpls x1 3 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @36/56/64",
        ),
        (
            "MPLS, Ethernet pseudowire without",
            Ethernet,
            ethernet(0x8847, &mpls(3, true, &ethernet(0x0800, &ip()))),
            "type 0800 mpls x1 3 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @32/52/60",
        ),
        (
            "MPLS, something else",
            Ethernet,
            ethernet(0x8847, &mpls(3, true, &[0x10; 40])),
            "type 8847 mpls x1 3 | none",
        ),
        (
            "PPPoE, IPv4",
            Ethernet,
            ethernet(0x8864, &pppoe(0x0021, &ip())),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @22/42/50",
        ),
        (
            "PPPoE, IPv6",
            Ethernet,
            ethernet(0x8864, &pppoe(0x0057, &ipv6(17, &u()))),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @22/62/70",
        ),
        (
            "PPPoE, MPLS, IPv4",
            Ethernet,
            ethernet(0x8864, &pppoe(0x0281, &mpls(9, true, &ip()))),
            "type 0800 mpls x1 9 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @26/46/54",
        ),
        ("PPPoE, LCP", Ethernet, ethernet(0x8864, &pppoe(0xc021, &[9; 8])), "type 8864 | none"),
        (
            "PPPoE, not version 1 type 1",
            Ethernet,
            ethernet(0x8864, &[0x21; 30]),
            "type 8864 MALFORMED | none",
        ),
        (
            "PPPoE that is shorter than the IP in it",
            Ethernet,
            {
                let mut packet = ethernet(0x8864, &pppoe(0x0021, &ip()));
                packet[18..20].copy_from_slice(&10u16.to_be_bytes());
                packet
            },
            "type 0800 MALFORMED | none",
        ),
        (
            "LLC/SNAP, IPv4",
            Ethernet,
            snap([0, 0, 0], 0x0800, &ip()),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @22/42/50",
        ),
        ("LLC/SNAP of another organisation", Ethernet, snap([0, 0, 12], 0x2000, &ip()), "| none"),
        ("LLC, spanning tree", Ethernet, ethernet(38, &[0x42; 46]), "| none"),
        ("ARP", Ethernet, ethernet(0x0806, &arp()), "type 0806 | arp 10.0.0.1 > 10.0.0.2 len 28 @14/-/-"),
        (
            "ARP for something else than IPv4 over Ethernet",
            Ethernet,
            ethernet(0x0806, &[0; 28]),
            "type 0806 | arp 0.0.0.0 > 0.0.0.0 len 0 @14/-/-",
        ),
        ("LLDP", Ethernet, ethernet(0x88cc, &[0; 46]), "type 88cc | none"),
        (
            "an EtherType that is neither type nor length",
            Ethernet,
            ethernet(0x05ff, &[0; 46]),
            "type 05ff | none",
        ),
        (
            "raw IPv4",
            Raw,
            ip(),
            "| ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @0/20/28",
        ),
        (
            "raw IPv6",
            Raw,
            ipv6(17, &u()),
            "| ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @0/40/48",
        ),
        ("raw, neither", Raw, vec![0x55; 40], "MALFORMED | none"),
        (
            "cooked v1",
            Sll,
            cooked(1, 1, 0x0800, &ip()),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @16/36/44",
        ),
        (
            "cooked v1, VLAN",
            Sll,
            cooked(1, 1, 0x8100, &tag(7, 0x0800, &ip())),
            "type 0800 vlan x1 [7] | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @20/40/48",
        ),
        ("cooked v1, netlink: its protocol is no EtherType", Sll, cooked(1, 824, 0x0800, &ip()), "| none"),
        (
            "cooked v2",
            Sll2,
            cooked(2, 1, 0x86dd, &ipv6(17, &u())),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @20/60/68",
        ),
        (
            "null, little-endian host",
            Null,
            [&[2, 0, 0, 0], &ip()[..]].concat(),
            "| ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 32 ports 1000 > 53 @4/24/32",
        ),
        (
            "null, big-endian host, macOS's AF_INET6",
            Null,
            [&[0, 0, 0, 30], &ipv6(17, &u())[..]].concat(),
            "| ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @4/44/52",
        ),
        (
            "loop",
            Loop,
            [&[0, 0, 0, 24], &ipv6(17, &u())[..]].concat(),
            "| ip6 2001:db8::1 > 2001:db8::2 proto 17 tos 184 ttl 62 len 52 ports 1000 > 53 @4/44/52",
        ),
        ("loop in the wrong order", Loop, [&[24, 0, 0, 0], &ipv6(17, &u())[..]].concat(), "| none"),
        ("a link type that is not ours", Other, ip(), "| none"),
    ];
    run("link types", &cases, true);
}

#[test]
fn transports() {
    let eth = |proto: u8, payload: &[u8]| ethernet(0x0800, &ipv4(proto, payload));
    let cases: Vec<Case> = vec![
        (
            "TCP",
            Ethernet,
            eth(6, &tcp(40000, 80, &[], b"GET")),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 6 tos 46 ttl 63 len 43 ports 40000 > 80 tcp 12 1 2 3 @14/34/54",
        ),
        (
            "TCP with options",
            Ethernet,
            eth(6, &tcp(40000, 80, &[1; 12], b"")),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 6 tos 46 ttl 63 len 52 ports 40000 > 80 tcp 12 1 2 3 @14/34/66",
        ),
        (
            "TCP with a data offset of 4",
            Ethernet,
            {
                let mut packet = eth(6, &tcp(1, 2, &[], b""));
                packet[46] = 0x40;
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 6 tos 46 ttl 63 len 40 ports 1 > 2 tcp 12 1 2 3 @14/34/-",
        ),
        (
            "TCP with a data offset beyond the datagram",
            Ethernet,
            {
                let mut packet = eth(6, &tcp(1, 2, &[], b""));
                packet[46] = 0xf0;
                packet.resize(200, 0);
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 6 tos 46 ttl 63 len 40 ports 1 > 2 tcp 12 1 2 3 @14/34/-",
        ),
        (
            "TCP cut after its ports",
            Ethernet,
            eth(6, &tcp(1, 2, &[], b""))[..38].to_vec(),
            "type 0800 CUT | ip4 10.0.0.1 > 10.0.0.2 proto 6 tos 46 ttl 63 len 40 ports 1 > 2 @14/34/-",
        ),
        (
            "UDP with a length of 7",
            Ethernet,
            {
                let mut packet = eth(17, &udp(1, 2, b"x"));
                packet[38..40].copy_from_slice(&[0, 7]);
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 29 ports 1 > 2 @14/34/-",
        ),
        (
            "UDP-Lite, whose length field is a coverage",
            Ethernet,
            eth(136, &[0, 1, 0, 2, 0, 0, 0, 0, 9]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 136 tos 46 ttl 63 len 29 ports 1 > 2 @14/34/42",
        ),
        (
            "SCTP",
            Ethernet,
            eth(132, &[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 132 tos 46 ttl 63 len 33 ports 1 > 2 @14/34/46",
        ),
        (
            "DCCP, 16 bytes of header",
            Ethernet,
            eth(33, &[0, 1, 0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 33 tos 46 ttl 63 len 37 ports 1 > 2 @14/34/50",
        ),
        (
            "DCCP with a data offset of 2",
            Ethernet,
            eth(33, &[0, 1, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0]),
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 33 tos 46 ttl 63 len 32 ports 1 > 2 @14/34/-",
        ),
        (
            "ICMP: port unreachable, what it quotes is not entered",
            Ethernet,
            eth(1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &ipv4(17, &udp(1, 2, b""))[..]].concat()),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 1 tos 46 ttl 63 len 56 icmp 3/3 @14/34/42",
        ),
        (
            "ICMPv6: neighbour solicitation",
            Ethernet,
            ethernet(0x86dd, &ipv6(58, &[135, 0, 0, 0, 0, 0, 0, 0])),
            "type 86dd | ip6 2001:db8::1 > 2001:db8::2 proto 58 tos 184 ttl 62 len 48 icmp 135/0 @14/54/62",
        ),
        (
            "IGMP: a protocol number and no more",
            Ethernet,
            eth(2, &[0x16, 0, 0, 0, 224, 0, 0, 9]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 2 tos 46 ttl 63 len 28 @14/34/-",
        ),
        (
            "ESP",
            Ethernet,
            eth(50, &[7; 40]),
            "type 0800 | ip4 10.0.0.1 > 10.0.0.2 proto 50 tos 46 ttl 63 len 60 OPAQUE @14/34/-",
        ),
        (
            "no payload, then Ethernet's padding",
            Ethernet,
            {
                let mut packet = eth(17, &[]);
                packet.resize(60, 0x11);
                packet
            },
            "type 0800 MALFORMED | ip4 10.0.0.1 > 10.0.0.2 proto 17 tos 46 ttl 63 len 20 @14/34/-",
        ),
    ];
    run("transports", &cases, true);
}
