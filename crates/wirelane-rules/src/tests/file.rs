//! Meaning of rule files.

use std::net::IpAddr;

use super::set;
use crate::{
    Action, Addresses, Condition, ExactFields, ExactRule, ExactVlan, Insert, Kind, Policy, Rule, RuleSet,
    Sample, SampleBy, Shape, TcpTest, Test, Then, Vlan, Way,
};

fn addresses(parts: &[&str]) -> std::sync::Arc<Addresses> {
    let mut set = Addresses::default();
    parts.iter().for_each(|part| set.insert(part).expect("an address"));
    set.into()
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn every_field_of_a_rule() {
    let set = set(r#"
        default = "drop"
        lists.office = ["10.0.0.0/8", "2001:db8::/32"]

        [[rule]]
        id = 7
        name = "all of it"
        src = "@office"
        dst = ["192.0.2.1", "192.0.2.4-192.0.2.7", "@office"]
        host = "0.0.0.0/0"
        src-port = 1024
        dst-port = "1024-"
        port = [22, "80-81", "-9", 0x1f90, "0x50"]
        protocol = ["tcp", 17, "132-136"]
        ethertype = ["ipv4", 0x86dd]
        kind = ["ipv4", "ipv6", "arp", "fragment", "first-fragment", "later-fragment", "tunnel"]
        direction = "tx"
        tcp-flags = ["S/SA", "FA", "syn+ack", "/RF"]
        vlan = ["none", 7, "100-199"]
        dscp = ["ef", 0, "8-15"]
        length = ["-64", "1500-"]
        queue = [0, "2-3"]
        device = ["eth0", "eth1"]
        not.src = "10.1.0.0/16"
        not.vlan = 9
        not.icmp-type = [8, "0-3"]
        action = "none"
        then = "stop"
        truncate = 96
        sample = 10
        sample-by = "packet"
        tag = 0xffff_ffff
        insert = { fields = ["src", "vlan"], both-ways = true, action = "drop", idle = "1m", hard = 3600 }
    "#);
    assert_eq!(set.default, Policy::Drop);
    assert!(set.exact.is_empty());
    let [rule] = set.rules.as_slice() else { panic!("one rule") };
    let is = [
        Test::Src(addresses(&["10.0.0.0/8", "2001:db8::/32"])),
        Test::Dst(addresses(&["192.0.2.1", "192.0.2.4/30", "10.0.0.0/8", "2001:db8::/32"])),
        Test::Host(addresses(&["0.0.0.0/0"])),
        Test::SrcPort(vec![1024..=1024]),
        Test::DstPort(vec![1024..=65535]),
        Test::Port(vec![22..=22, 80..=81, 0..=9, 8080..=8080, 80..=80]),
        Test::Protocol(vec![6..=6, 17..=17, 132..=136]),
        Test::Ethertype(vec![0x800..=0x800, 0x86dd..=0x86dd]),
        Test::Kind(vec![
            Kind::Ipv4,
            Kind::Ipv6,
            Kind::Arp,
            Kind::Fragment,
            Kind::FirstFragment,
            Kind::LaterFragment,
            Kind::Tunnel,
        ]),
        Test::Direction(Way::Tx),
        Test::TcpFlags(vec![
            TcpTest { set: 0x02, mask: 0x12 },
            TcpTest { set: 0x11, mask: 0x11 },
            TcpTest { set: 0x12, mask: 0x12 },
            TcpTest { set: 0, mask: 0x05 },
        ]),
        Test::Vlan(vec![Vlan::Untagged, Vlan::Ids(7, 7), Vlan::Ids(100, 199)]),
        Test::Dscp(vec![46..=46, 0..=0, 8..=15]),
        Test::Length(vec![0..=64, 1500..=u32::MAX]),
        Test::Queue(vec![0..=0, 2..=3]),
        Test::Device(vec!["eth0".to_owned(), "eth1".to_owned()]),
    ];
    let is_not = [
        Test::Src(addresses(&["10.1.0.0/16"])),
        Test::Vlan(vec![Vlan::Ids(9, 9)]),
        Test::IcmpType(vec![8..=8, 0..=3]),
    ];
    let expected: Vec<Condition> =
        is.into_iter().map(Condition::is).chain(is_not.into_iter().map(Condition::is_not)).collect();
    assert_eq!(rule.conditions, expected);
    let rest = Rule { conditions: Vec::new(), ..rule.clone() };
    let expected = Rule {
        name: Some("all of it".to_owned()),
        then: Then::Stop,
        truncate: Some(96),
        sample: Some(Sample { one_in: 10, by: SampleBy::Packet }),
        tag: Some(u32::MAX),
        insert: Some(Insert {
            shape: Shape::SRC.with(Shape::VLAN).with(Shape::BOTH_WAYS),
            action: Action::Drop,
            then: Then::Stop,
            idle_s: 60,
            hard_s: 3600,
        }),
        ..Rule::new(7, Action::None)
    };
    assert_eq!(rest, expected);
}

#[test]
fn what_is_not_said() {
    let set = set(r#"
        [[rule]]
        id = 2
        action = "none"
        sample = 3

        [[rule]]
        id = 1
        action = "count"
        insert = {}
    "#);
    assert_eq!(set.default, Policy::Pass);
    // Sorted by id.
    let [one, two] = set.rules.as_slice() else { panic!("two rules") };
    assert_eq!((one.id, one.then, one.conditions.len()), (1, Then::Stop, 0));
    let flow = [Shape::SRC, Shape::DST, Shape::SRC_PORT, Shape::DST_PORT, Shape::PROTOCOL];
    let shape = flow.into_iter().fold(Shape::default(), Shape::with);
    let insert = Insert { shape, action: Action::Count, then: Then::Stop, idle_s: 0, hard_s: 0 };
    assert_eq!(one.insert, Some(insert));
    assert_eq!((two.then, two.sample), (Then::Continue, Some(Sample { one_in: 3, by: SampleBy::Flow })));
    assert_eq!(super::set(""), RuleSet::default());
}

#[test]
fn every_field_of_a_exact_rule() {
    let set = set(r#"
        [[exact]]
        id = 1
        src = "192.0.2.1"
        dst = "198.51.100.1"
        src-port = 0
        dst-port = 53
        protocol = "udp"
        vlan = 7
        mpls = 1048575
        tunnel = 0xffffffff
        both-ways = true
        action = "pass"
        then = "continue"
        truncate = 64
        sample = 2
        tag = 0
        idle = "2h"
        hard = "1d"

        [[exact]]
        id = 2
        src = "2001:db8::1"
        vlan = "none"
        action = "drop"
    "#);
    let full = ExactRule {
        then: Then::Continue,
        truncate: Some(64),
        sample: Some(Sample { one_in: 2, by: SampleBy::Flow }),
        tag: Some(0),
        idle_s: 7200,
        hard_s: 86400,
        ..ExactRule::new(
            1,
            ExactFields {
                src: Some(address("192.0.2.1")),
                dst: Some(address("198.51.100.1")),
                src_port: Some(0),
                dst_port: Some(53),
                protocol: Some(17),
                vlan: Some(ExactVlan::Id(7)),
                mpls: Some(0xf_ffff),
                tunnel: Some(u32::MAX),
                both_ways: true,
            },
            Action::Pass,
        )
    };
    let fields = ExactFields {
        src: Some(address("2001:db8::1")),
        vlan: Some(ExactVlan::Untagged),
        ..ExactFields::default()
    };
    assert_eq!(set.exact, [full, ExactRule::new(2, fields, Action::Drop)]);
}

#[test]
fn words_are_the_same_fields() {
    let words =
        "id=7 host=192.0.2.0/24,2001:db8::/32 not.port=22,80 tcp-flags=S/SA action=drop sample=0x4 tag=1";
    let of_file = set(r#"
        [[rule]]
        id = 7
        host = ["192.0.2.0/24", "2001:db8::/32"]
        not.port = [22, 80]
        tcp-flags = "S/SA"
        action = "drop"
        sample = 4
        tag = 1
    "#);
    // The fields of a dotted table are at the position of its first field.
    assert_eq!(Rule::from_words(words).expect("a rule"), of_file.rules[0]);
    let words = "id=3 src=192.0.2.1 dst-port=53 protocol=udp vlan=none both-ways=true action=count idle=5m";
    let of_file = set(r#"
        [[exact]]
        id = 3
        src = "192.0.2.1"
        dst-port = 53
        protocol = "udp"
        vlan = "none"
        both-ways = true
        action = "count"
        idle = 300
    "#);
    let rule = ExactRule::from_words(words).expect("a rule");
    assert_eq!(rule, of_file.exact[0]);
    // Fields are displayed as words that can be parsed again.
    let again = format!("id=3 action=count idle=300 {}", rule.fields);
    assert_eq!(ExactRule::from_words(&again).expect("a rule"), rule);
}

#[test]
fn wrong_words_say_in_which_column() {
    let of = |words: &str| super::listed(Rule::from_words(words).expect_err("a mistake"));
    assert_eq!(of("id=7 drop"), ["1:6: 'drop' is not FIELD=VALUE"]);
    assert_eq!(of("id=7 id=8 action=drop"), ["1:6: 'id=8' is there twice"]);
    let both = of("id=0 port=1,x action=drop");
    assert!(both[0].starts_with("1:4: 0 is not in 1 to"), "{both:?}");
    assert!(both[1].starts_with("1:13: 'x' is not a number"), "{both:?}");
    assert_eq!(
        of(""),
        [
            "1:1: the rule has no id",
            "1:1: the rule has no action: pass, drop, count, digest, redirect or none"
        ]
    );
    assert_eq!(
        of("id=1 action=drop src=@a/b"),
        ["1:22: rules that are not in a file cannot name other files"]
    );
    let of = |words: &str| super::listed(ExactRule::from_words(words).expect_err("a mistake"));
    assert_eq!(of("id=1 src=10.0.0.0/8 action=drop").len(), 1);
    assert_eq!(of("id=1 file=x action=drop"), ["1:11: rules that are not in a file cannot name other files"]);
}

#[test]
fn sets_go_through_json() {
    let set = set(r#"
        lists.far = ["2001:db8::1-2001:db8::9", "::/0", "0.0.0.0-255.255.255.255", "192.0.2.9"]
        [[rule]]
        id = 1
        not.src = "@far"
        length = "1-70000"
        vlan = ["none", 3]
        action = "none"
        insert = { idle = 3 }
        [[exact]]
        id = 2
        dst = "2001:db8::1"
        vlan = "none"
        action = "count"
    "#);
    let json = serde_json::to_string(&set).expect("a set can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&json).expect("and read"), set);
}

#[test]
fn addresses_have_one_form() {
    let of = |parts: &[&str]| addresses(parts).to_string();
    assert_eq!(of(&["10.0.0.0/9", "10.128.0.0/9"]), "10.0.0.0/8");
    assert_eq!(of(&["10.0.0.0-10.0.0.9", "10.0.0.5-10.0.0.20"]), "10.0.0.0-10.0.0.20");
    assert_eq!(of(&["255.255.255.255", "0.0.0.0"]), "0.0.0.0, 255.255.255.255");
    assert_eq!(of(&["0.0.0.0/0"]), "0.0.0.0/0");
    assert_eq!(of(&["::/0", "::1"]), "::/0");
    assert_eq!(of(&["::2-::5"]), "::2-::5");
    assert_eq!(
        of(&["1.0.0.1", "1.0.0.3", "1.0.0.5", "1.0.0.7", "::1"]),
        "1.0.0.1, 1.0.0.3, 1.0.0.5, 1.0.0.7 and 1 more"
    );
    for wrong in [
        "",
        "1.2.3",
        "1.2.3.4/33",
        "1.2.3.4/+8",
        "1.2.3.4/",
        "::/129",
        "1.2.3.4-",
        "2.0.0.0-1.0.0.0",
        "::-1.0.0.0",
    ] {
        assert!(Addresses::default().insert(wrong).is_err(), "{wrong}");
    }
    let stray = Addresses::default().insert("10.1.2.3/8").expect_err("bits behind the prefix");
    assert!(stray.ends_with("the network is 10.0.0.0/8"), "{stray}");
    let set = addresses(&["10.0.0.0/8", "2001:db8::/32"]);
    for (inside, text) in [
        (true, "10.0.0.0"),
        (true, "10.255.255.255"),
        (false, "9.255.255.255"),
        (false, "11.0.0.0"),
        (true, "2001:db8::"),
        (false, "2001:db9::"),
        (false, "::ffff:10.0.0.1"),
    ] {
        assert_eq!(set.contains(address(text)), inside, "{text}");
    }
}
