//! Properties: any bytes, and any mutation of a good packet, have one result in both compilations.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::native;

use crate::build::*;
use crate::guarded::Guarded;
use crate::probe::{LONGEST, Probe, SHORTEST};

/// Runs `cases` random cases of `strategy` through both compilations.
fn hold<S>(what: &str, cases: u32, strategy: S)
where
    S: Strategy<Value = (LinkType, Vec<u8>, bool)>,
{
    let probe = Probe::load(&format!("kernel side of {what}"));
    let guarded = std::cell::RefCell::new(Guarded::new(65536));
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let result = runner.run(&strategy, |(link, packet, follow)| {
        let native = native::parse(link, guarded.borrow_mut().place(&packet), follow);
        prop_assert_eq!(native::parse_walk(link, &packet, follow), native, "walked left, parsed right");
        for offset in [native.outer.l3_off, native.outer.l4_off, native.outer.payload_off] {
            prop_assert!(offset == u16::MAX || usize::from(offset) <= packet.len(), "offset {}", offset);
        }
        let in_kernel = link.is_of_devices() && (SHORTEST..=LONGEST).contains(&packet.len());
        if let Some(probe) = probe.as_ref().filter(|_| in_kernel) {
            let kernel = probe.parse(link, &packet, follow, 7);
            prop_assert_eq!(kernel.parsed, native, "kernel left, native right");
            let hashes = (native::flow_hash(&native.outer, 7), native::packet_hash(&native, true, 7));
            prop_assert_eq!((kernel.outer_hash, kernel.packet_hash), hashes);
        }
        Ok::<(), TestCaseError>(())
    });
    if let Err(error) = result {
        panic!("{what}: {error}");
    }
}

#[test]
fn random_bytes() {
    let links = [&LinkType::ALL[..], &[LinkType::Other]].concat();
    hold("random bytes", 20_000, (select(links), vec(any::<u8>(), 0..200), any::<bool>()));
}

/// A packet with all kinds of layers in a random order: layers are drawn until one ends the packet.
fn layered() -> impl Strategy<Value = Vec<u8>> {
    vec((0u8..16, any::<u16>()), 0..12).prop_map(|layers| {
        let mut packet = udp(1, 2, b"payload");
        // From the inside out: `proto` is the IP protocol of the packet built so far.
        let mut proto = 17;
        for (layer, value) in layers {
            let small = value as u8;
            let with_ip = |packet: &[u8], proto: u8| {
                if small & 1 == 0 { ipv4(proto, packet) } else { ipv6(proto, packet) }
            };
            let ether_type = if small & 1 == 0 { 0x0800 } else { 0x86dd };
            let ip = with_ip(&packet, proto);
            (packet, proto) = match layer {
                0 => (
                    extension(proto, 1 + usize::from(small % 4), &packet),
                    [0, 43, 60, 135][usize::from(small % 4)],
                ),
                1 => (fragment6(proto, value & 1, &packet), 44),
                2 => (ah(proto, &packet), 51),
                3 | 4 => (ip, if small & 1 == 0 { 4 } else { 41 }),
                5 => (gre(value & 0xb000, ether_type, &ip), 47),
                6 => (gre(value & 0xb000, 0x6558, &ethernet(0x8100, &tag(value, ether_type, &ip))), 47),
                7 | 8 => (udp(value, 4789, &vxlan(value.into(), &ethernet(ether_type, &ip))), 17),
                9 | 10 => (udp(value, 6081, &geneve(7, &[small; 8], 0x6558, &ethernet(ether_type, &ip))), 17),
                11 | 12 => (udp(value, 2152, &gtpu(4, 9, &[0, 0, 0, 0x85, 1, 0, small, 0], &ip)), 17),
                13 => (tcp(value, 80, &[1; 8], &packet), 6),
                14 => (gre(0x2000, 0x8847, &mpls(5, false, &mpls(6, true, &ip))), 47),
                _ => (packet, proto),
            };
        }
        packet.insert(0, proto);
        packet
    })
}

/// A layered packet behind a link header.
fn framed() -> impl Strategy<Value = (LinkType, Vec<u8>)> {
    (layered(), 0u8..6, any::<bool>()).prop_map(|(layers, link, six)| {
        let (proto, packet) = (layers[0], &layers[1..]);
        let (ether_type, ip) =
            if six { (0x86dd, ipv6(proto, packet)) } else { (0x0800, ipv4(proto, packet)) };
        match link {
            0 | 1 => (LinkType::Ethernet, ethernet(ether_type, &ip)),
            2 => (LinkType::Ethernet, ethernet(0x88a8, &tag(1, 0x8100, &tag(2, ether_type, &ip)))),
            3 => (LinkType::Ethernet, ethernet(0x8864, &pppoe(if six { 0x57 } else { 0x21 }, &ip))),
            4 => (LinkType::Ethernet, ethernet(0x8847, &mpls(3, true, &ip))),
            _ => (LinkType::Raw, ip),
        }
    })
}

#[test]
fn layers_in_any_order() {
    hold("layers in any order", 3_000, (framed(), any::<bool>()).prop_map(|((link, p), f)| (link, p, f)));
}

/// Battery: I3
#[test]
fn mutations_of_good_packets() {
    let edits = vec((any::<Index>(), any::<u8>()), 0..4);
    let strategy = (framed(), edits, any::<Index>(), any::<bool>(), any::<bool>()).prop_map(
        |((link, mut packet), edits, cut, shorten, follow)| {
            for (at, value) in edits {
                // Edits are concentrated in the first 128 bytes, where headers are.
                let at = at.index(packet.len().min(128));
                packet[at] = value;
            }
            if shorten {
                packet.truncate(cut.index(packet.len()));
            }
            (link, packet, follow)
        },
    );
    hold("mutations of good packets", 8_000, strategy);
}

/// Nearly plain packets: each field that distinguishes plain packets may have another value.
#[test]
fn nearly_plain_packets() {
    let edits =
        vec((select(&[12usize, 13, 14, 16, 17, 20, 21, 23, 36, 37, 38, 39, 46][..]), any::<u8>()), 0..3);
    let ports = (any::<u16>(), select(&[53u16, 2152, 4789, 6081, 80][..]));
    let strategy =
        (any::<bool>(), ports, 0usize..3, 0usize..30, edits, any::<Index>(), any::<bool>(), any::<bool>())
            .prop_map(|(stream, (src, dst), options, payload, edits, cut, shorten, follow)| {
                let payload = vec![0xa5; payload];
                let transport = match stream {
                    true => tcp(src, dst, &[1; 12][..options * 4], &payload),
                    false => udp(src, dst, &payload),
                };
                let mut packet = ethernet(0x0800, &ipv4(if stream { 6 } else { 17 }, &transport));
                packet.resize(packet.len().max(60), 0);
                for (at, value) in edits {
                    packet[at] = value;
                }
                if shorten {
                    packet.truncate(cut.index(packet.len()));
                }
                (LinkType::Ethernet, packet, follow)
            });
    hold("nearly plain packets", 5_000, strategy);
}

/// The property tests above are useful only if their packets reach the inner layers of the parser.
#[test]
fn layered_packets_reach_tunnels_and_transports() {
    use wirelane_bpf::layout::{flags, ip_flags};
    let mut runner = TestRunner::deterministic();
    let (mut tunnels, mut ports, mut deep, mut fragments) = (0, 0, 0, 0);
    for _ in 0..1000 {
        let (link, packet) = framed().new_tree(&mut runner).expect("a packet is made").current();
        let parsed = native::parse(link, &packet, true);
        tunnels += u32::from(parsed.flags & flags::TUNNEL != 0);
        ports += u32::from((parsed.inner.flags | parsed.outer.flags) & ip_flags::PORTS != 0);
        deep += u32::from(parsed.flags & flags::DEEP != 0);
        fragments += u32::from(parsed.outer.flags & ip_flags::FRAGMENT != 0);
    }
    println!("of 1000: {tunnels} with tunnels, {ports} with ports, {fragments} fragments, {deep} too deep");
    assert!(tunnels > 200 && ports > 300 && fragments > 10 && deep > 0);
}
