//! A million entries in the kernel: all of them are found, and the false-positive rate is as expected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::members::Member;
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, verdict};

use super::kernel::Probe;
use crate::engine::ring::rules::{KernelSets, has};
use wirelane_rules::Part;
use wirelane_rules::{Addresses, Ends, Entries, Flows, NamedSet, Networks, Reference, Room, RuleSet};
use wirelane_testing::Dice;

const MILLION: u32 = 1_000_000;

/// Address number `n` of a series without duplicates: every third is IPv6.
fn address(n: u32) -> IpAddr {
    // Odd factors: no two numbers have the same product.
    let bits = n.wrapping_mul(0x9e37_79b1);
    if n.is_multiple_of(3) {
        return Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(bits) << 64 | u128::from(n)).into();
    }
    Ipv4Addr::from_bits(bits).into()
}

/// The first `count` addresses.
fn addresses(count: u32) -> Entries {
    let parts = (0..count).map(|n| match address(n) {
        IpAddr::V4(one) => Part::V4(one.to_bits()..=one.to_bits()),
        IpAddr::V6(one) => Part::V6(one.to_bits()..=one.to_bits()),
    });
    Entries::Address(Arc::new(parts.collect()))
}

/// Number `n` of flows, as text and as an entry.
fn flow(n: u32) -> (String, Member) {
    // Numbers that are equal modulo 3 have the same address family.
    let ends = [(address(n), n as u16 | 1), (address(n + 3), (n >> 8) as u16 | 1)];
    let [one, other] = ends.map(|(address, port)| std::net::SocketAddr::new(address, port));
    (format!("udp {one} {other}"), Member::flow(ends[1], ends[0], 17).expect("of one family"))
}

/// Loads a set into the kernel, checks that it has all of `entries`, and measures how many numbers from `others` on it
/// takes for entries.
fn measured(name: &str, entries: Entries, member: impl Fn(u32) -> Member) {
    let set = NamedSet { name: name.to_owned(), entries, false_positives: 0.001, confirm: false };
    assert_eq!(set.entries.count(), u64::from(MILLION));
    let (size, kernel) = (set.bloom(), KernelSets::new(None, u64::MAX).expect("nothing is started"));
    let made = kernel.of(&set).expect("the set fits");
    let missing =
        (0..MILLION).filter(|n| !has(&made.bloom, None, &member(*n)).expect("it can be asked")).count();
    assert_eq!(missing, 0, "a bloom filter never leaves out an entry");
    let wrong = (MILLION..2 * MILLION)
        .filter(|n| has(&made.bloom, None, &member(*n)).expect("it can be asked"))
        .count();
    let expected = size.false_positives(MILLION.into()) * f64::from(MILLION);
    println!(
        "{name}: {MILLION} entries, {} hash functions, {} KiB: {wrong} of {MILLION} others taken for entries, {expected:.0} \
         by (1-e^(-kn/m))^k",
        size.hashes,
        size.bytes() >> 10
    );
    // Ten standard deviations of a count of independent events.
    assert!(
        (wrong as f64 - expected).abs() < 10.0 * expected.sqrt(),
        "{wrong}, where {expected} are expected"
    );
    // A second request gives the same set, as long as it is in use.
    assert!(Arc::ptr_eq(&made, &kernel.of(&set).expect("it is there")));
}

/// Battery: I8
#[test]
fn a_million_entries_are_found_and_few_others() {
    const WHAT: &str = "a_million_entries_are_found_and_few_others";
    if Probe::load(WHAT).is_none() {
        return;
    }
    measured("addresses", addresses(MILLION), |n| Member::address(address(n)));
    let flows = Flows::of((0..MILLION).map(|n| flow(n).0)).expect("flows");
    measured("flows", Entries::Flow(flows.into()), |n| flow(n).1);
}

/// Both ends of the first `count` flows, as text.
fn ends(count: u32) -> Vec<String> {
    let ends = (0..count).flat_map(|n| flow(n).1.ends());
    ends.map(|(address, port)| std::net::SocketAddr::new(address, port).to_string()).collect()
}

/// Networks of nine lengths around the addresses of the first `count` flows.
fn networks(count: u32) -> Entries {
    let around = |(n, address): (u32, IpAddr)| match address {
        IpAddr::V4(one) => {
            let rest = u32::MAX >> (20 + n % 5);
            Part::V4(one.to_bits() & !rest..=one.to_bits() | rest)
        }
        IpAddr::V6(one) => {
            let rest = u128::MAX >> (48 + n % 4);
            Part::V6(one.to_bits() & !rest..=one.to_bits() | rest)
        }
    };
    let all = (0..count).flat_map(|n| flow(n).1.ends().map(|(address, _)| (n, address)));
    Entries::Network(Arc::new(Networks::from(all.map(around).collect::<Addresses>())))
}

/// A UDP packet of flow `n`, in either direction.
fn packet(n: u32, turned: bool) -> Vec<u8> {
    let mut ends = flow(n).1.ends();
    if turned {
        ends.swap(0, 1);
    }
    let udp: Vec<u8> = [ends[0].1, ends[1].1, 8, 0].into_iter().flat_map(u16::to_be_bytes).collect();
    let mut packet = vec![0x02; 12];
    match ends.map(|end| end.0) {
        [IpAddr::V4(src), IpAddr::V4(dst)] => {
            packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            packet.extend([src.octets(), dst.octets()].concat());
        }
        [IpAddr::V6(src), IpAddr::V6(dst)] => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            packet.extend([src.octets(), dst.octets()].concat());
        }
        ends => unreachable!("of one family: {ends:?}"),
    }
    packet.extend(udp);
    packet
}

/// The program's answers: never a false negative, and with confirmation never a false positive.
/// Battery: I8
#[test]
fn the_program_takes_few_others_for_entries_and_none_where_it_confirms() {
    let Some(probe) = Probe::load("the_program_takes_few_others_for_entries_and_none_where_it_confirms")
    else {
        return;
    };
    let entries = 3000;
    let mut dice = Dice(31);
    for confirm in [false, true] {
        let hosts = addresses(entries);
        let flows = Entries::Flow(Flows::of((0..entries).map(|n| flow(n).0)).expect("flows").into());
        let ported = Entries::AddressPort(Ends::of(ends(entries)).expect("ends").into());
        let udp = ends(entries).into_iter().map(|end| format!("udp {end}"));
        let services = Entries::AddressPortProtocol(Ends::of(udp).expect("ends").into());
        let networks = networks(entries);
        for (condition, entries_of) in [
            ("src-in", &hosts),
            ("dst-in", &hosts),
            ("host-in", &hosts),
            ("flow-in", &flows),
            ("src-in", &ported),
            ("host-in", &ported),
            ("dst-in", &services),
            ("src-in", &networks),
            ("host-in", &networks),
        ] {
            let mut set = wirelane_rules::testing::set("[[rule]]\nid = 1\naction = \"drop\"\n");
            // A false-positive rate high enough to show in the test.
            let named = NamedSet {
                name: "set".to_owned(),
                entries: entries_of.clone(),
                false_positives: 0.02,
                confirm,
            };
            let (size, expected, kind) =
                (named.bloom(), named.expected_false_positives(), named.entries.kind());
            set.sets.push(named);
            let words = format!("id=1 {condition}=set action=drop");
            set.rules = vec![wirelane_rules::Rule::from_words(&words).expect("a rule")];
            let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
            probe.use_set(&set, &flat, &[]);
            let mut reference = Reference::new(&set, 1);
            let (mut in_it, mut others, mut wrong) = (0u32, 0u32, 0u32);
            for at in 0..6000u32 {
                let n = if at < entries { at } else { 2 * entries + dice.below(1 << 24) as u32 };
                let data = packet(n, dice.once_in(2));
                let facts = Facts { now_ns: 2, wire_len: data.len() as u32, ..Facts::default() };
                let parsed = native::parse(LinkType::Ethernet, &data, true);
                let packet = Packet { parsed: &parsed, data: &data, inner: false };
                let expected = reference.evaluate(packet, &facts, "eth0").rule_id == 1;
                let evaluated = probe.evaluate(LinkType::Ethernet, &data, false, &facts);
                let ours = evaluated.verdict == u32::from(verdict::DROP);
                in_it += u32::from(expected);
                others += u32::from(!expected);
                wrong += u32::from(ours && !expected);
                assert!(ours || !expected, "an entry is left out: {kind} {condition}, packet {n}");
            }
            println!(
                "{kind} {condition}, confirm {confirm}: {in_it} entries, {wrong} of {others} others taken for one ({:.4}; by the \
                 formula {expected:.4}, twice that where both addresses are asked)",
                f64::from(wrong) / f64::from(others)
            );
            assert!(in_it >= entries - 3 && others > 2000, "{in_it} and {others}");
            assert!(!confirm || wrong == 0, "{kind} {condition}: {wrong} by mistake");
            let sides = if condition == "host-in" { 2.0 } else { 1.0 };
            assert!(
                confirm || wrong > 0 && f64::from(wrong) < f64::from(others) * expected * sides * 2.0,
                "{kind} {condition}, {size:?}: {wrong}"
            );
        }
    }
}

/// The map for the kernel contains the entries of the set.
#[test]
fn a_confirmed_set_is_two_maps() {
    let Some(_) = Probe::load("a_confirmed_set_is_two_maps") else { return };
    let text = "[[sets]]\nname = \"a\"\nentries = [\"192.0.2.1\", \"c000:201::\"]\nconfirm = true\n";
    let set: RuleSet = wirelane_rules::testing::set(text);
    let kernel = KernelSets::new(None, u64::MAX).expect("nothing is started");
    let made = kernel.of(&set.sets[0]).expect("the set fits");
    let exact: &OwnedFd = made.exact.as_ref().expect("it confirms");
    for (address, there) in
        [("192.0.2.1", true), ("192.0.2.2", false), ("c000:201::", true), ("c000:202::", false)]
    {
        let member = Member::address(address.parse().expect("an address"));
        assert_eq!(has(exact, Some(&member), &member).expect("it can be asked"), there, "{address}");
    }
    assert_ne!(exact.as_raw_fd(), made.bloom.as_raw_fd());
}
