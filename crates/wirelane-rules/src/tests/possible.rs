//! Rules that no packet can match.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::l3;

use super::generator::{self, Values};
use super::mistakes;
use crate::{Reference, RuleSet, Shape};
use wirelane_testing::Dice;

fn rule(fields: &str) -> String {
    format!("[[rule]]\nid = 1\naction = \"drop\"\n{fields}\n")
}

#[test]
fn contradictions_are_named() {
    for (fields, expected) in [
        (
            "src = \"10.0.0.1\"\nnot.src = \"10.0.0.0/8\"",
            "`src = 10.0.0.1` and `not.src = 10.0.0.0/8` cannot hold together",
        ),
        ("dst-port = \"1-9\"\nnot.port = \"-10\"", "`dst-port = 1-9` and `not.port = 0-10` cannot"),
        ("protocol = \"udp\"\ntcp-flags = \"S\"", "`protocol = udp` and `tcp-flags = S/S` cannot"),
        ("protocol = \"icmp\"\nport = 80", "`protocol = icmp` and `port = 80` cannot"),
        ("src = \"10.0.0.1\"\ndst = \"::1\"", "`src = 10.0.0.1` and `dst = ::1` cannot"),
        ("src = \"10.0.0.1\"\nkind = \"ipv6\"", "`src = 10.0.0.1` and `kind = ipv6` cannot"),
        ("kind = \"arp\"\ndscp = 0", "`kind = arp` and `dscp = cs0` cannot"),
        ("kind = \"later-fragment\"\nport = 80", "`kind = later-fragment` and `port = 80` cannot"),
        ("kind = \"ipv4\"\nnot.kind = \"ipv4\"", "`kind = ipv4` and `not.kind = ipv4` cannot"),
        (
            "kind = \"fragment\"\nnot.kind = [\"ipv4\", \"ipv6\"]",
            "`kind = fragment` and `not.kind = ipv4, ipv6` cannot",
        ),
        ("direction = \"rx\"\nnot.direction = \"rx\"", "`direction = rx` and `not.direction = rx` cannot"),
        ("not.vlan = [\"none\", \"0-4095\"]", "`not.vlan = none, 0-4095` leaves nothing"),
        ("not.length = \"0-\"", "`not.length = 0-4294967295` leaves nothing"),
        ("icmp-type = 8\ntcp-flags = \"S\"", "`icmp-type = 8` and `tcp-flags = S/S` cannot"),
        (
            "kind = \"ipv4\"\nprotocol = 6\nnot.protocol = \"-9\"",
            "`protocol = tcp` and `not.protocol = 0-9` cannot",
        ),
        (
            "src = [\"10.0.0.1\", \"::1\"]\nnot.dst = \"0.0.0.0/0\"\nkind = \"ipv4\"",
            "`not.dst = 0.0.0.0/0` and `kind = ipv4` cannot",
        ),
        (
            "src = [\"10.0.0.1\", \"::1\"]\nnot.src = \"::/0\"\ndst = \"::2\"",
            "`not.src = ::/0` and `dst = ::2` cannot",
        ),
        (
            "kind = \"ipv4\"\nnot.protocol = [\"-5\", \"7-\"]\nicmp-type = 8",
            "`not.protocol = 0-5, 7-255` and `icmp-type = 8`",
        ),
        (
            "host = [\"10.0.0.1\", \"::1\"]\nnot.src = \"10.0.0.1\"\nnot.dst = \"10.0.0.1\"\nkind = \"ipv4\"",
            "its conditions cannot all hold together",
        ),
    ] {
        let found = mistakes(&rule(fields));
        let expected = format!("1:1: no packet can hit this rule: {expected}");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{fields}\n{found:#?}\n{expected}");
    }
}

#[test]
fn what_may_be_is_no_contradiction() {
    for fields in [
        "",
        "protocol = [\"udp\", \"tcp\"]\ntcp-flags = \"S\"",
        "protocol = \"icmp\"\nnot.port = 80",
        "kind = \"arp\"\nnot.src = \"10.0.0.1\"\nnot.protocol = \"tcp\"\nnot.dscp = \"0-63\"",
        "kind = \"later-fragment\"\nnot.port = \"0-\"\nprotocol = \"udp\"",
        // A truncated packet has no ports.
        "protocol = \"udp\"\nnot.port = \"0-\"",
        "host = \"10.0.0.1\"\nnot.src = \"10.0.0.1\"",
        "src = [\"10.0.0.1\", \"::1\"]\ndst = \"::1\"",
        "kind = [\"ipv6\", \"arp\"]\nsrc = \"::1\"",
        "direction = \"tx\"\nkind = \"tunnel\"",
        "vlan = \"none\"\nnot.vlan = 3",
        "not.ethertype = \"0-0xffff\"",
        "port = 53\nprotocol = \"sctp\"\nkind = \"first-fragment\"",
    ] {
        super::set(&rule(fields));
    }
}

#[test]
fn no_packet_hits_a_rule_that_none_can() {
    let mut dice = Dice(3);
    let mut impossible = 0;
    for _ in 0..3000 {
        let values = Values::few(&mut dice);
        let mut set = RuleSet {
            rules: vec![generator::rule(&mut dice, &values, 1, &[Shape::SRC])],
            sets: generator::sets(&mut dice, &values),
            patterns: generator::patterns(&mut dice, &values),
            ..RuleSet::default()
        };
        set.rules[0].insert = None;
        if set.check().is_ok() {
            continue;
        }
        impossible += 1;
        let mut reference = Reference::new(&set, 0);
        for _ in 0..50 {
            let mut parsed = generator::parsed(&mut dice, &values);
            // Generated packets may have fields that do not fit their protocol; these must not.
            for ip in [&mut parsed.outer, &mut parsed.inner] {
                tidy(ip);
            }
            let facts = generator::facts(&mut dice, &values, 0);
            let data = generator::payload(&mut dice, &values);
            let packet = Packet { parsed: &parsed, data: &data, inner: dice.once_in(2) };
            let evaluated = reference.evaluate(packet, &facts, "eth0");
            assert_eq!(evaluated.hits, 0, "{parsed:#?} {facts:?} {set:#?}");
        }
    }
    assert!(impossible > 30, "{impossible}");
}

/// Removes the fields that a parser cannot find in this network layer.
fn tidy(ip: &mut wirelane_bpf::layout::Ip) {
    use wirelane_bpf::layout::ip_flags::{FRAGMENT, ICMP, LATER, PORTS, TCP};
    if ip.l3 != l3::IPV4 && ip.l3 != l3::IPV6 {
        ip.flags = 0;
        return;
    }
    let later = ip.flags & LATER != 0;
    let mut may = FRAGMENT | LATER;
    match ip.proto {
        6 if !later => may |= PORTS | TCP,
        17 | 33 | 132 | 136 if !later => may |= PORTS,
        1 | 58 if !later => may |= ICMP,
        _ => {}
    }
    ip.flags &= may;
}
