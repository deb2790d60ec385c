//! Explanations of verdicts.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::{LinkType, Parsed};
use wirelane_bpf::native;
use wirelane_bpf::rules::Facts;

use super::generator::{self, Values};
use crate::{Action, Found, Reference, RuleSet};
use wirelane_testing::Dice;

/// UDP from 192.0.2.1:5353 to 198.51.100.7:53, with its metadata.
fn query() -> (Parsed, Facts) {
    let mut packet = [0u8; 28];
    packet[0] = 0x45;
    packet[1] = 46 << 2;
    packet[3] = 28;
    packet[8] = 64;
    packet[9] = 17;
    packet[12..20].copy_from_slice(&[192, 0, 2, 1, 198, 51, 100, 7]);
    packet[20..28].copy_from_slice(&[0x14, 0xe9, 0, 53, 0, 8, 0, 0]);
    (native::parse(LinkType::Raw, &packet, true), Facts { wire_len: 28, queue: 2, ..Facts::default() })
}

#[test]
fn each_rule_says_what_it_has_to_do_with_the_packet() {
    let set = super::set(
        r#"
        [[exact]]
        id = 900
        src = "198.51.100.7"
        src-port = 53
        both-ways = true
        action = "none"
        tag = 3

        [[rule]]
        id = 10
        name = "web"
        protocol = "tcp"
        port = [80, 443]
        action = "drop"

        [[rule]]
        id = 20
        src = ["192.0.2.0/24", "10.0.0.1", "10.0.0.3", "10.0.0.5", "10.0.0.7"]
        not.dscp = ["ef", 0]
        tcp-flags = "S/SA"
        vlan = 7
        action = "drop"

        [[rule]]
        id = 30
        host = "198.51.100.0/24"
        not.vlan = "4-9"
        action = "none"
        truncate = 96
        insert = { fields = ["src", "mpls"] }

        [[rule]]
        id = 40
        dst-port = 53
        length = "-100"
        action = "count"
        insert = { fields = ["dst", "dst-port"], both-ways = true, action = "drop" }

        [[rule]]
        id = 50
        action = "drop"
        "#,
    );
    let (parsed, facts) = query();
    let packet = Packet { parsed: &parsed, data: &[], inner: false };
    let explained = set.explain(packet, &facts, "eth0");
    assert_eq!(
        explained.to_string(),
        "packet: src 192.0.2.1, dst 198.51.100.7, src-port 5353, dst-port 53, protocol udp, kind ipv4, dscp ef, \
         length 28, queue 2, direction rx\n\
         exact-match rule 900: hit: none, then continue, in the other direction (src=198.51.100.7 src-port=53 \
         both-ways=true)\n\
         rule 10 (web): not hit: protocol = tcp: the packet has udp; port = 80, 443: the packet has 5353 and 53\n\
         rule 20: not hit: not.dscp = ef, cs0: the packet has ef; tcp-flags = S/SA: the packet has none; \
         vlan = 7: the packet has none\n\
         rule 30: hit: none, then continue, truncated to 96 bytes, makes no exact-match rule, as the packet lacks a field \
         of it (host = 198.51.100.0/24: the packet has 192.0.2.1 and 198.51.100.7; not.vlan = 4-9: the packet has \
         none)\n\
         rule 40: hit: count, makes an exact-match rule: dst=198.51.100.7 dst-port=53 both-ways=true: drop (dst-port = 53: \
         the packet has 53; length = 0-100: the packet has 28)\n\
         rule 50: not asked\n\
         => count, by rule 40, truncated to 96 bytes, tagged 3"
    );
    let json = serde_json::to_value(&explained).expect("it can be written");
    assert_eq!(json["action"], "count");
    assert_eq!(json["findings"][1]["id"], 10);
    assert_eq!(json["findings"][1]["found"], "missed");
    assert_eq!(json["findings"][1]["why"][0], "protocol = tcp: the packet has udp");
    assert_eq!(json["findings"][5]["found"], "not_asked");
}

#[test]
fn without_a_rule_it_is_the_default() {
    let (parsed, facts) = query();
    let packet = Packet { parsed: &parsed, data: &[], inner: false };
    let set = super::set(
        "default = \"drop\"\n[[exact]]\nid = 1\nvlan = 3\naction = \"drop\"\n[[rule]]\nid = 3\ndevice = \"eth0\"\naction = \"pass\"\n",
    );
    let explained = set.explain(packet, &facts, "").to_string();
    assert!(
        explained.contains(
            "exact-match rules: none of 1 is hit\nrule 3: not hit: device = eth0: the packet has none\n"
        ),
        "{explained}"
    );
    assert!(explained.ends_with("=> drop, by default"), "{explained}");
    // A rule without an action of its own is reported too.
    let set = super::set("[[rule]]\nid = 3\naction = \"none\"\n");
    let explained = set.explain(packet, &facts, "");
    assert_eq!((explained.action, explained.rule_id, explained.by_default), (Action::Pass, 3, true));
}

#[test]
fn samples_are_explained() {
    let (parsed, facts) = query();
    let text = |n: u32| {
        let set =
            super::set(&format!("[[rule]]\nid = 3\naction = \"pass\"\nsample = {n}\nthen = \"continue\"\n"));
        let packet = Packet { parsed: &parsed, data: &[], inner: false };
        set.explain(packet, &facts, "").to_string()
    };
    // A sample of one in very many rarely includes a given packet.
    let told = text(1_000_000);
    assert!(told.contains("hit: drop, as the sample of 1 in 1000000 flows does not have it"), "{told}");
    assert!(told.ends_with("=> drop, by rule 3"), "{told}");
    assert!(
        text(1).contains("hit: pass, as the sample of 1 in 1 flows has it, then continue"),
        "{}",
        text(1)
    );
}

#[test]
fn what_is_explained_is_what_is_decided() {
    let mut dice = Dice(21);
    for _ in 0..100 {
        let values = Values::few(&mut dice);
        let set: RuleSet = generator::set(&mut dice, &values, 30);
        for _ in 0..20 {
            let parsed = generator::parsed(&mut dice, &values);
            let facts = generator::facts(&mut dice, &values, 5);
            let data = generator::payload(&mut dice, &values);
            let packet = Packet { parsed: &parsed, data: &data, inner: dice.once_in(2) };
            let evaluated = Reference::new(&set, 5).evaluate(packet, &facts, "eth0");
            let explained = set.explain(packet, &facts, "eth0");
            assert_eq!(explained.rule_id, evaluated.rule_id);
            let wildcard = explained.findings.iter().filter(|finding| !finding.exact);
            let hits = wildcard.filter(|finding| matches!(finding.found, Found::Hit)).count();
            assert_eq!(hits as u32, evaluated.hits, "{explained}");
            // A rule that does not match has a reason; a rule that matches has none.
            assert!(explained.findings.iter().all(|finding| match finding.found {
                Found::Missed => !finding.why.is_empty() && finding.does.is_none(),
                Found::Hit => finding.does.is_some(),
                Found::NotAsked => finding.why.is_empty() && finding.does.is_none(),
            }));
        }
    }
}
