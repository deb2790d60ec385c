//! The flow hash: symmetric, the same for all fragments, and evenly distributed over the buckets; and steering.

use std::collections::HashSet;

use proptest::prelude::*;
use wirelane_bpf::layout::LinkType::Ethernet;
use wirelane_bpf::layout::{Ip, Parsed, RecordHeader, flags, ip_flags, l3};
use wirelane_bpf::native::{self, BUCKETS, Steering, flow_hash, steer};

use crate::build::*;

fn reversed(ip: &Ip) -> Ip {
    Ip { src: ip.dst, dst: ip.src, src_port: ip.dst_port, dst_port: ip.src_port, ..*ip }
}

fn udp4(src: [u8; 4], sport: u16, dst: [u8; 4], dport: u16) -> Ip {
    let packet = ethernet(0x0800, &ipv4_full(17, 0, &[], src, dst, &udp(sport, dport, b"")));
    native::parse(Ethernet, &packet, true).outer
}

proptest! {
    #[test]
    fn both_directions_have_one_hash(
        src: [u8; 16], dst: [u8; 16], ports: (u16, u16), proto: u8, six: bool, fragment: bool, seed: u32,
    ) {
        let mut ip = Ip { src, dst, src_port: ports.0, dst_port: ports.1, proto, ..Ip::default() };
        ip.l3 = if six { l3::IPV6 } else { l3::IPV4 };
        ip.flags = ip_flags::PORTS | if fragment { ip_flags::FRAGMENT } else { 0 };
        prop_assert_eq!(flow_hash(&ip, seed), flow_hash(&reversed(&ip), seed));
    }
}

#[test]
fn everything_that_makes_a_flow_changes_the_hash() {
    let flow = udp4(A4, 1000, B4, 53);
    let others = [
        udp4([10, 0, 0, 3], 1000, B4, 53),
        udp4(A4, 1000, [10, 0, 0, 3], 53),
        udp4(A4, 1001, B4, 53),
        udp4(A4, 1000, B4, 54),
        // Ports are exchanged, addresses are not: another flow.
        udp4(A4, 53, B4, 1000),
        Ip { proto: 6, ..flow },
        Ip { flags: ip_flags::FRAGMENT, ..flow },
    ];
    for other in &others {
        assert_ne!(flow_hash(&flow, 1), flow_hash(other, 1), "{other:?}");
    }
    assert_ne!(flow_hash(&flow, 1), flow_hash(&flow, 2), "the seed counts");
}

#[test]
fn all_fragments_of_a_datagram_have_one_hash() {
    let hash = |packet: &[u8]| native::packet_hash(&native::parse(Ethernet, packet, true), true, 9);
    let four = |proto, field, payload: &[u8]| {
        hash(&ethernet(0x0800, &ipv4_full(proto, field, &[], A4, B4, payload)))
    };
    let first = four(17, 0x2000, &udp(1000, 53, &[0; 64]));
    assert_eq!(first, four(17, 0x2009, &[0xff; 64]), "a middle fragment");
    assert_eq!(first, four(17, 0x0012, &[0xff; 8]), "the last fragment");
    let protected = four(51, 0x2000, &ah(17, &udp(1000, 53, &[0; 64])));
    assert_eq!(protected, four(51, 0x0012, &[0xff; 8]), "AH: only the first fragment shows what it protects");

    let six =
        |field, next, payload: &[u8]| hash(&ethernet(0x86dd, &ipv6(44, &fragment6(next, field, payload))));
    let first = six(1, 60, &extension(17, 1, &udp(1000, 53, &[0; 64])));
    assert_eq!(
        first,
        six(0x0051, 60, &[0xff; 64]),
        "options behind the fragment header, in the first one only"
    );

    let tunnel = four(17, 0x2000, &udp(1, 4789, &vxlan(1, &ethernet(0x0800, &ipv4(17, &udp(1, 2, b""))))));
    assert_eq!(
        tunnel,
        four(17, 0x0012, &[0xff; 8]),
        "a fragmented tunnel packet, asked for its inner headers"
    );
}

/// The load used in the papers: one source, 4096 rotating destinations. Over 512 buckets 8 flows each are expected,
/// with a standard deviation of 2.8; chi square has 511 degrees of freedom (deviation 32).
#[test]
fn rotating_destinations_spread_over_the_buckets() {
    for seed in [0, 1, 0xdead_beef] {
        for step in [1u32, 2, 256, 65536] {
            let mut count = [0u32; BUCKETS];
            let mut hashes = HashSet::new();
            for n in 0..4096u32 {
                let destination = (0x0a01_0000 + n * step).to_be_bytes();
                let hash = flow_hash(&udp4(A4, 5000, destination, 9), seed);
                hashes.insert(hash);
                count[hash as usize % BUCKETS] += 1;
            }
            let chi: f64 = count.iter().map(|&c| (f64::from(c) - 8.0).powi(2) / 8.0).sum();
            assert!((340.0..700.0).contains(&chi), "seed {seed} step {step}: chi square {chi}");
            assert!(count.iter().all(|&c| c <= 24), "seed {seed} step {step}: a bucket of 25 flows or more");
            assert!(hashes.len() >= 4090, "seed {seed} step {step}: {} different hashes", hashes.len());
        }
    }
}

/// The inverse of `wl_hash_mix()`.
fn unmixed(half: u64) -> u64 {
    // Newton's iteration doubles the correct bits of the inverse, of which the first step has three.
    let inverse = (0..5).fold(K1, |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(K1.wrapping_mul(x))));
    (half ^ half >> 32).wrapping_mul(inverse)
}

const K1: u64 = 0xbf58_476d_1ce4_e5b9;

fn mix(value: u64) -> u64 {
    let value = value.wrapping_mul(K1);
    value ^ value >> 32
}

/// A sender that knows everything but the seed chooses one end of each conversation for the other, so that their hashes
/// under the seed 0 are equal. Under other seeds these conversations spread like all others.
/// Battery: L8
#[test]
fn senders_cannot_choose_conversations_of_one_hash() {
    const SUM: u64 = 0x0123_4567_89ab_cdef;
    let six = (0..1000u64).map(|number| {
        let (mut src, mut dst) = ([0; 16], [0; 16]);
        src[..8].copy_from_slice(&number.to_ne_bytes());
        src[8..].copy_from_slice(&unmixed(SUM).wrapping_sub(mix(number)).to_ne_bytes());
        dst[15] = 1;
        Ip { src, dst, l3: l3::IPV6, proto: 17, flags: ip_flags::PORTS, ..Ip::default() }
    });
    let four = (0u64..).filter_map(|number| {
        let (mut src, mut dst) = ([0; 16], [0; 16]);
        // A port and an address have 48 of the 64 bits of an end.
        let other = Some(unmixed(SUM.wrapping_sub(mix(number)))).filter(|other| other >> 48 == 0)?;
        src[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        dst[..4].copy_from_slice(&(other as u32).to_ne_bytes());
        let (src_port, dst_port) = ((number >> 32) as u16, (other >> 32) as u16);
        Some(Ip {
            src,
            dst,
            src_port,
            dst_port,
            l3: l3::IPV4,
            proto: 17,
            flags: ip_flags::PORTS,
            ..Ip::default()
        })
    });
    for flows in [six.collect::<Vec<_>>(), four.take(32).collect()] {
        let hashes = |seed| flows.iter().map(|ip| flow_hash(ip, seed)).collect::<HashSet<_>>().len();
        assert_eq!(hashes(0), 1, "the choice works if the seed is known");
        for seed in [1, 2, 0x8000_0000, 0xdead_beef] {
            assert_eq!(hashes(seed), flows.len(), "seed {seed}");
            let parsed = |ip: &Ip| Parsed { outer: *ip, ..Parsed::default() };
            let by_source = |ip| native::steering_hash(Steering::Source, &parsed(ip), false, seed);
            assert_eq!(flows.iter().map(by_source).collect::<HashSet<_>>().len(), flows.len(), "seed {seed}");
        }
    }
}

/// Avalanche: one bit of the addresses or ports changes about half of the hash.
#[test]
fn one_bit_changes_half_of_the_hash() {
    let base = udp4([192, 168, 7, 1], 33333, [100, 64, 0, 9], 443);
    let mut flips = [0u32; 32];
    let mut trials = 0;
    for byte in [0usize, 1, 2, 3, 16, 17, 18, 19] {
        for bit in 0..8 {
            for seed in 0..64 {
                let mut ip = base;
                if byte < 16 {
                    ip.src[byte] ^= 1 << bit
                } else {
                    ip.dst[byte - 16] ^= 1 << bit
                }
                let changed = flow_hash(&base, seed) ^ flow_hash(&ip, seed);
                for (n, flip) in flips.iter_mut().enumerate() {
                    *flip += changed >> n & 1;
                }
                trials += 1;
            }
        }
    }
    for (n, flip) in flips.iter().enumerate() {
        let share = f64::from(*flip) / f64::from(trials);
        assert!((0.45..0.55).contains(&share), "bit {n} of the hash changes in {share} of the cases");
    }
}

#[test]
fn packets_without_ip_are_hashed_by_their_type() {
    let hash = |ether_type| {
        native::packet_hash(&native::parse(Ethernet, &ethernet(ether_type, &[0; 46]), true), true, 3)
    };
    assert_eq!(hash(0x88cc), hash(0x88cc));
    assert_ne!(hash(0x88cc), hash(0x8809));
}

#[test]
fn a_record_says_what_the_parser_found() {
    let inside = ipv4_full(17, 0x2000, &[], [172, 16, 0, 1], [172, 16, 0, 2], &udp(5, 6, b""));
    let packet = ethernet(0x8100, &tag(0x2007, 0x0800, &ipv4(47, &gre(0, 0x0800, &inside))));
    let parsed = native::parse(Ethernet, &packet, true);
    let before = RecordHeader {
        ts_ns: 1,
        cap_len: 2,
        wire_len: 3,
        rule_id: 4,
        queue: 5,
        kind: 6,
        ..Default::default()
    };
    let mut record = before;
    native::fill_record(&mut record, &parsed, true, 11);
    let expected = RecordHeader {
        hash: flow_hash(&parsed.inner, 11),
        flags: flags::TUNNEL | flags::VLAN | flags::FRAGMENT | flags::INNER,
        l3_off: 42,
        l4_off: 62,
        payload_off: 70,
        vlan_tci: 0x2007,
        l3: l3::IPV4,
        proto: 17,
        link: Ethernet as u8,
        ..before
    };
    assert_eq!(record, expected);
    native::fill_record(&mut record, &parsed, false, 11);
    let expected = RecordHeader {
        hash: flow_hash(&parsed.outer, 11),
        flags: flags::TUNNEL | flags::VLAN,
        l3_off: 18,
        l4_off: 38,
        payload_off: 42,
        proto: 47,
        ..expected
    };
    assert_eq!(record, expected);
}

#[test]
fn every_hash_is_in_one_of_equal_shares() {
    for shares in [1u32, 2, 3, 4, 7, 16, 64] {
        let mut sizes = vec![0u32; shares as usize];
        for n in 0..64_000u32 {
            // Knuth's step: evenly distributed over all values, including the last one.
            let hash = if n == 0 { u32::MAX } else { n.wrapping_mul(0x9e37_79b9) };
            let of: Vec<u32> =
                (0..shares).filter(|share| native::is_in_share(hash, *share, shares)).collect();
            assert_eq!(of.len(), 1, "{hash:#x} of {shares}: {of:?}");
            sizes[of[0] as usize] += 1;
        }
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(most - least <= 8, "{shares}: {sizes:?}");
        // A share that is out of range has nothing.
        assert!(!native::is_in_share(u32::MAX, shares, shares) && !native::is_in_share(0, shares, shares));
    }
}

#[test]
fn steering_picks_a_worker_that_exists() {
    let mut buckets = [0u16; BUCKETS];
    for (n, bucket) in buckets.iter_mut().enumerate() {
        *bucket = (n % 3) as u16;
    }
    assert_eq!(steer(Steering::Flow, &buckets, 512 + 4, 0, 3), 1, "bucket 4");
    assert_eq!(steer(Steering::Queue, &buckets, 512 + 4, 2, 3), 2);
    assert_eq!(steer(Steering::Queue, &buckets, 0, 7, 3), 1, "more queues than workers wrap around");
    buckets.fill(1000);
    for workers in 0..5 {
        let worker = steer(Steering::Flow, &buckets, 77, 9, workers);
        assert!(worker < workers.max(1), "{worker} of {workers}");
    }
}
