//! Rules that send packets to other devices: their syntax, their mistakes, and their verdicts.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::Parsed;
use wirelane_bpf::rules::{Facts, verdict};

use super::{listed, mistakes, set};
use crate::{Action, ExactRule, Reference, Rule, RuleSet, Then};

const SENDING: &str = r#"
    [[rule]]
    id = 1
    action = "none"
    mirror = "eth3"

    [[rule]]
    id = 2
    vlan = "none"
    action = "redirect"
    to = "eth2"
    then = "continue"

    [[rule]]
    id = 3
    vlan = "none"
    length = "100-"
    action = "pass"
    mirror = "eth2"

    [[exact]]
    id = 4
    src = "192.0.2.1"
    action = "redirect"
    to = "wan0"
    mirror = "eth3"
"#;

fn egress_devices(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn rules_name_the_devices_that_they_send_to() {
    let set = set(SENDING);
    assert_eq!(set.egress_devices(), ["eth2", "eth3", "wan0"]);
    let [one, two, three] = set.rules.as_slice() else { panic!("three rules") };
    assert_eq!((one.action, one.then, one.mirror.as_deref()), (Action::None, Then::Continue, Some("eth3")));
    assert_eq!((two.action, two.then, two.to.as_deref()), (Action::Redirect, Then::Continue, Some("eth2")));
    assert_eq!([one.does(), two.does()], ["none, mirror to eth3", "redirect to eth2"]);
    assert_eq!((three.does(), three.then), ("pass, mirror to eth2".to_owned(), Then::Stop));
    assert_eq!(set.exact[0].does(), "redirect to wan0, mirror to eth3");
    let words = Rule::from_words("id=2 vlan=none action=redirect to=eth2 then=continue").expect("a rule");
    assert_eq!(&words, two);
    let words = ExactRule::from_words("id=4 src=192.0.2.1 action=redirect to=wan0 mirror=eth3");
    assert_eq!(words.expect("a rule"), set.exact[0]);
    let json = serde_json::to_string(&set).expect("it can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&json).expect("it can be read"), set);
    assert_eq!(serde_json::to_value(two).expect("it can be written")["action"], "redirect");
}

#[test]
fn an_exit_gets_a_packet_once_and_the_last_action_counts() {
    let set = set(SENDING);
    let evaluate = |wire_len: u32, vlan: u16| {
        let mut parsed = Parsed { vlan_tci: [vlan, 0], ..Parsed::default() };
        parsed.flags = if vlan > 0 { wirelane_bpf::layout::flags::VLAN } else { 0 };
        let facts = Facts { wire_len, ..Facts::default() };
        let packet = Packet { parsed: &parsed, data: &[], inner: false };
        let evaluated = Reference::new(&set, 1).evaluate(packet, &facts, "eth0");
        let explained = set.explain(packet, &facts, "eth0");
        let why = explained.to_string().lines().last().expect("a line").to_owned();
        ((evaluated.verdict as u8, evaluated.rule_id, evaluated.egress_devices, evaluated.to), why)
    };
    assert_eq!(
        evaluate(60, 0),
        ((verdict::REDIRECT, 2, 0b011, 0b001), "=> redirect to eth2, by rule 2, mirrored to eth3".to_owned())
    );
    // The verdict of rule 2 is replaced, but the mirror copy of rule 1 is kept.
    assert_eq!(
        evaluate(100, 0),
        ((verdict::PASS, 3, 0b011, 0), "=> pass, by rule 3, mirrored to eth2, eth3".to_owned())
    );
    assert_eq!(
        evaluate(60, 7),
        ((verdict::PASS, 1, 0b010, 0), "=> pass, by default, mirrored to eth3".to_owned())
    );
}

#[test]
fn a_redirect_that_says_not_where_to_is_a_mistake() {
    for (fields, expected) in [
        ("action = \"redirect\"", "1:1: action = \"redirect\" needs to = \"DEVICE\""),
        (
            "action = \"pass\"\nto = \"eth2\"",
            "1:1: to is for action = \"redirect\", and its action is \"pass\"",
        ),
        ("action = \"redirect\"\nto = \"a b\"", "4:6: 'a b' cannot be the name of a device"),
        (
            "action = \"redirect\"\nto = \"eth2\"\ninsert = { idle = 9 }",
            "1:1: a rule that is made of a packet cannot redirect: give insert an action of its own, as in insert = { \
             action = \"drop\" }",
        ),
    ] {
        let found = mistakes(&format!("[[rule]]\nid = 1\n{fields}\n"));
        assert_eq!(found[0], expected, "{found:?}");
    }
    let exact = mistakes("[[exact]]\nid = 1\nsrc = \"192.0.2.1\"\naction = \"redirect\"\n");
    assert_eq!(exact, ["1:1: action = \"redirect\" needs to = \"DEVICE\""]);
    set("[[rule]]\nid = 1\naction = \"redirect\"\nto = \"eth2\"\ninsert = { action = \"drop\" }\n");
    let many: String =
        (1..=9).map(|id| format!("[[rule]]\nid = {id}\naction = \"none\"\nmirror = \"eth{id}\"\n")).collect();
    assert_eq!(mistakes(&many), ["0:0: the rules send packets to 9 devices, more than 8"]);
}

#[test]
fn a_device_that_is_no_exit_is_a_mistake_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.toml");
    std::fs::write(folder.path().join("some.csv"), "src,to\n192.0.2.7,eth9\n192.0.2.8,eth3\n")
        .expect("a file");
    let text = "[[rule]]\nid = 1\naction = \"redirect\"\nto = \"eth2\"\n\
                [[rule]]\nid = 2\naction = \"none\"\nmirror = \"eth3\"\n\
                [[exact]]\nid = 3\nsrc = \"192.0.2.1\"\naction = \"none\"\nmirror = \"eth4\"\n\
                [[exact]]\nid = 10\nfile = \"some.csv\"\naction = \"redirect\"\n";
    std::fs::write(&path, text).expect("a file");
    // Without a running capture, any device is accepted.
    RuleSet::read(&path).expect("no mistake");
    let egress_devices = egress_devices(&["eth3"]);
    assert_eq!(
        listed(RuleSet::read_for(&path, Some(&egress_devices), None).expect_err("mistakes")),
        [
            "4:6: 'eth2' is not an egress device of the capture: start it with --mirror-to eth3,eth2",
            "13:10: 'eth4' is not an egress device of the capture: start it with --mirror-to eth3,eth4",
            "2:11: 'eth9' is not an egress device of the capture: start it with --mirror-to eth3,eth9",
        ]
    );
    let set = RuleSet::read(&path).expect("no mistake");
    set.check_egress_devices(&set.egress_devices()).expect("all are there");
    let error = set.check_egress_devices(&[]).expect_err("none is there").to_string();
    assert!(
        error.starts_with(
            "rules: rule 1: 'eth2' is not an egress device of the capture: start it with --mirror-to eth2"
        ),
        "{error}"
    );
    assert_eq!(error.matches("is not an egress device").count(), 5, "{error}");
}
