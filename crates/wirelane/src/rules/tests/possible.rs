//! Rules that no packet can hit.

use wirelane_datapath::layout::l3;

use super::generator::{self, Values};
use super::mistakes;
use crate::rules::{Reference, RuleSet};
use crate::testing::Dice;

fn rule(fields: &str) -> String {
    format!("[[rule]]\nid = 1\naction = \"drop\"\n{fields}\n")
}

#[test]
fn contradictions_are_named() {
    for (fields, expected) in [
        ("src = \"10.0.0.1\"\nnot.src = \"10.0.0.0/8\"", "its conditions on src or host leave nothing"),
        ("dst-port = \"1-9\"\nnot.port = \"-10\"", "its conditions on dst-port or port leave nothing"),
        ("protocol = \"udp\"\ntcp-flags = \"S\"", "protocol and tcp-flags cannot hold together"),
        ("protocol = \"icmp\"\nport = 80", "src-port or port and protocol cannot hold together"),
        ("src = \"10.0.0.1\"\ndst = \"::1\"", "src or host and dst or host cannot hold together"),
        ("src = \"10.0.0.1\"\nkind = \"ipv6\"", "src or host and kind or direction cannot hold together"),
        ("kind = \"arp\"\ndscp = 0", "kind or direction and dscp cannot hold together"),
        (
            "kind = \"later-fragment\"\nport = 80",
            "src-port or port and kind or direction cannot hold together",
        ),
        ("kind = \"ipv4\"\nnot.kind = \"ipv4\"", "its conditions on kind or direction leave nothing"),
        (
            "kind = \"fragment\"\nnot.kind = [\"ipv4\", \"ipv6\"]",
            "its conditions on kind or direction leave nothing",
        ),
        ("direction = \"rx\"\nnot.direction = \"rx\"", "its conditions on kind or direction leave nothing"),
        ("not.vlan = [\"none\", \"0-4095\"]", "its conditions on vlan leave nothing"),
        ("not.length = \"0-\"", "its conditions on length leave nothing"),
        ("icmp-type = 8\ntcp-flags = \"S\"", "tcp-flags and icmp-type cannot hold together"),
        (
            "kind = \"ipv4\"\nsrc = \"0.0.0.0/0\"\nprotocol = 6\nnot.protocol = \"-9\"",
            "its conditions on protocol",
        ),
        (
            "src = [\"10.0.0.1\", \"::1\"]\nnot.dst = \"0.0.0.0/0\"\nkind = \"ipv4\"",
            "dst or host and kind or direction cannot hold together",
        ),
        (
            "src = [\"10.0.0.1\", \"::1\"]\nnot.src = \"::/0\"\ndst = \"::2\"",
            "src or host and dst or host cannot hold together",
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
        // A packet that is cut has no ports.
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
        let mut set =
            RuleSet { rules: vec![generator::rule(&mut dice, &values, 1, &[])], ..RuleSet::default() };
        set.rules[0].insert = None;
        if set.check().is_ok() {
            continue;
        }
        impossible += 1;
        let mut reference = Reference::new(&set, 0);
        for _ in 0..50 {
            let mut parsed = generator::parsed(&mut dice, &values);
            // Made-up packets have fields that their protocol does not go with; here they must not.
            for ip in [&mut parsed.outer, &mut parsed.inner] {
                tidy(ip);
            }
            let facts = generator::facts(&mut dice, &values, 0);
            let inner = dice.once_in(2);
            let judged = reference.judge(&parsed, inner, &facts, "eth0");
            assert_eq!(judged.hits, 0, "{parsed:#?} {facts:?} {set:#?}");
        }
    }
    assert!(impossible > 30, "{impossible}");
}

/// Leaves of a network layer what a parser can find.
fn tidy(ip: &mut wirelane_datapath::layout::Ip) {
    use wirelane_datapath::layout::ip_flags::{FRAGMENT, ICMP, LATER, PORTS, TCP};
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
