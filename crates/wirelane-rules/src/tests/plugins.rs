//! Rules with plug-ins: their syntax, their mistakes, their compiled form, and their evaluation where no plug-in can
//! run.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::layout::Parsed;
use wirelane_bpf::rules::{Facts, verdict};

use super::{listed, mistakes, set};
use crate::compile::Room;
use crate::plugins::Placed;
use crate::{Action, Rule, RuleSet, Test};

const ASKING: &str = r#"
    [[patterns]]
    name = "dns"
    id = 5
    text = "dns"

    [[rule]]
    id = 1
    payload = "dns"
    vlan = 7
    action = "count"

    [[rule]]
    id = 2
    vlan = "none"
    plugin = ["sip", "dns"]
    action = "plugin"
    tag = 4

    [[rule]]
    id = 3
    not.plugin = "dns"
    action = "drop"
"#;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn rules_name_the_plug_ins_that_they_ask() {
    let set = set(ASKING);
    assert_eq!(set.plugins(), ["dns", "sip"]);
    let [_, two, three] = set.rules.as_slice() else { panic!("three rules") };
    assert_eq!(
        (two.action, &two.conditions[1].test),
        (Action::Plugin, &Test::Plugin(names(&["sip", "dns"])))
    );
    assert_eq!(two.conditions[1].to_string(), "plugin = sip, dns");
    assert_eq!(
        (two.does(), three.conditions[0].to_string()),
        ("plugin".to_owned(), "not.plugin = dns".to_owned())
    );
    let words = Rule::from_words("id=2 vlan=none plugin=sip,dns action=plugin tag=4").expect("a rule");
    assert_eq!(&words, two);
    let json = serde_json::to_string(&set).expect("it can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&json).expect("it can be read"), set);
}

/// Patterns and a plug-in with the same name are two bits. A plug-in's bit is set by its index, and a rule has the
/// indexes in its own order.
#[test]
fn a_plug_in_is_a_bit_of_the_payload() {
    let placed = [("sip", 3), ("dns", 0), ("idle", 1)];
    let placed = placed.map(|(name, place)| Placed { name: name.to_owned(), place });
    let flat =
        set(ASKING).compile_for("eth0", &[], &placed, &[], Room::UNLIMITED).expect("it can be compiled");
    assert_eq!(flat.set.plugin, [0b100, 0, 0, 0b010, 0, 0, 0, 0]);
    let rule = |at: usize| (flat.set.rule[at].verdict, flat.set.rule[at].plugin);
    assert_eq!(rule(1), (verdict::PLUGIN, [4, 1, 0, 0, 0, 0, 0, 0]));
    assert_eq!([rule(0), rule(2)], [(verdict::ABSORB, [0; 8]), (verdict::DROP, [0; 8])]);
    // Two names of a capture can refer to one plug-in.
    let same = ["sip", "dns"].map(|name| Placed { name: name.to_owned(), place: 2 });
    let flat = set(ASKING).compile_for("eth0", &[], &same, &[], Room::UNLIMITED).expect("it can be compiled");
    assert_eq!(
        (flat.set.plugin, flat.set.rule[1].plugin),
        ([0, 0, 0b110, 0, 0, 0, 0, 0], [3, 3, 0, 0, 0, 0, 0, 0])
    );
}

#[test]
fn what_no_plug_in_can_say_is_a_mistake() {
    for (fields, expected) in [
        (
            "action = \"plugin\"",
            "1:1: action = \"plugin\" does what a plug-in says: it needs the condition plugin = \"NAME\"",
        ),
        (
            "action = \"plugin\"\nnot.plugin = \"x\"",
            "1:1: action = \"plugin\" does what a plug-in says: it needs the condition plugin = \"NAME\"",
        ),
        (
            "action = \"plugin\"\nplugin = \"x\"\ninsert = { idle = 9 }",
            "1:1: a rule that is made of a packet asks no plug-in: give insert an action of its own, as in insert = { \
             action = \"drop\" }",
        ),
        (
            "action = \"drop\"\nplugin = [\"x\", \"a b\"]",
            "4:16: 'a b' cannot name a plug-in: up to 64 letters, digits, - and _ can",
        ),
        ("action = \"drop\"\nplugin = []", "4:10: the list is empty: no packet has one of no values"),
    ] {
        assert_eq!(mistakes(&format!("[[rule]]\nid = 1\n{fields}\n")), [expected]);
    }
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let nine = mistakes(&format!("[[rule]]\nid = 1\naction = \"drop\"\nplugin = {names:?}\n"));
    assert_eq!(nine[0], "0:0: the rules ask 9 plug-ins, more than 8");
    let exact = mistakes("[[exact]]\nid = 1\nsrc = \"192.0.2.1\"\naction = \"plugin\"\n");
    assert_eq!(
        exact,
        ["1:1: action = \"plugin\" is for rules with the condition plugin = \"NAME\", not for exact ones"]
    );
    // Together with patterns there are eight names.
    let patterns: String = (1..=5)
        .map(|id| {
            format!(
                "[[patterns]]\nname = \"p{id}\"\nid = {id}\ntext = \"{id}\"\n[[rule]]\nid = {id}\npayload = \"p{id}\"\n\
                 action = \"drop\"\n"
            )
        })
        .collect();
    let asks = "[[rule]]\nid = 9\nplugin = [\"a\", \"b\", \"c\"]\naction = \"drop\"\n";
    set(&(patterns.clone() + asks));
    let more = patterns + &asks.replace("\"c\"", "\"c\", \"d\"");
    assert_eq!(
        mistakes(&more),
        [
            "0:0: the rules ask for patterns and plug-ins of 9 names, more than 8 ('plug-in d' is one too many); put \
             patterns together under one name"
        ]
    );
}

#[test]
fn a_plug_in_that_is_not_there_is_a_mistake_with_its_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.toml");
    let text = "[[rule]]\nid = 1\nplugin = [\"dns\", \"spi\"]\naction = \"drop\"\n\
                [[rule]]\nid = 2\nnot.plugin = \"x\"\naction = \"drop\"\n";
    std::fs::write(&path, text).expect("a file");
    // Without a running capture, any plug-in is accepted.
    let set = RuleSet::read(&path).expect("no mistake");
    assert_eq!(
        listed(RuleSet::read_for(&path, None, Some(&names(&["dns", "sip"]))).expect_err("mistakes")),
        [
            "3:18: there is no plug-in 'spi'; did you mean 'sip'?",
            "7:14: there is no plug-in 'x'; plug-ins are fixed when a capture starts: start it with --plugin \
             x=FILE.bpf.o",
        ]
    );
    set.check_plugins(&set.plugins()).expect("all are there");
    let error = set.check_plugins(&names(&["dns", "spi"])).expect_err("one is not").to_string();
    assert!(error.contains("rule 2: there is no plug-in 'x'"), "{error}");
}

/// No plug-in runs in an explanation: it lists the plug-ins that would be called, and none of them matches.
#[test]
fn an_explanation_says_that_plug_ins_would_be_asked() {
    let set = set(ASKING);
    let explain = |vlan: u16| {
        let mut parsed = Parsed { vlan_tci: [vlan, 0], ..Parsed::default() };
        parsed.flags = if vlan > 0 { wirelane_bpf::layout::flags::VLAN } else { 0 };
        let facts = Facts { wire_len: 60, ..Facts::default() };
        set.explain(Packet { parsed: &parsed, data: &[], inner: false }, &facts, "eth0")
    };
    let explanation = explain(0);
    assert_eq!(
        (&explanation.plugins, explanation.action, explanation.rule_id),
        (&names(&["dns", "sip"]), Action::Drop, 3)
    );
    let text = explanation.to_string();
    let parts = [
        "plug-ins: dns, sip would be asked",
        "rule 2: not hit: plugin = sip, dns: plug-ins run in the kernel only; taken as no match",
        "rule 3: hit: drop (not.plugin = dns: plug-ins run in the kernel only; taken as no match)",
        "=> drop, by rule 3",
    ];
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
    let first = super::set(
        "[[rule]]\nid = 1\naction = \"drop\"\n[[rule]]\nid = 2\nplugin = \"x\"\naction = \"pass\"\n",
    );
    let (parsed, facts) = (Parsed::default(), Facts::default());
    let decided = first.explain(Packet { parsed: &parsed, data: &[], inner: false }, &facts, "eth0");
    assert_eq!((decided.plugins, decided.rule_id), (Vec::new(), 1), "an earlier rule has decided");
}

#[test]
fn rule_files_set_parameters_with_places() {
    let text =
        "[plugins.dns.parameters]\nlabels = 6\nstrict = true\n[steering-program.parameters]\nworkers = -1\n";
    let parsed = set(text);
    let all: Vec<_> =
        parsed.parameters.iter().map(|one| (one.name.as_str(), one.value.to_string(), one.at.1)).collect();
    let expected = [("labels", "6", 2), ("strict", "true", 3), ("workers", "-1", 5)];
    assert_eq!(all, expected.map(|(name, value, line)| (name, value.to_owned(), line)));
    assert_eq!((parsed.parameters_of(Some("dns")).count(), parsed.parameters_of(None).count()), (2, 1));
    let json = serde_json::to_string(&parsed).expect("it can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&json).expect("it can be read"), parsed);
    parsed.check_parameters(&names(&["dns"]), true).expect("the capture has both");
    let missing = parsed.check_parameters(&names(&["dms"]), false).unwrap_err().to_string();
    for part in [
        ":2:10: parameter 'labels' of plug-in 'dns': there is no plug-in 'dns'; did you mean 'dms'?",
        ":5:11: ",
    ] {
        assert!(missing.contains(part), "{missing}");
    }
    parsed.check_fixed_parameters(&parsed.parameters).expect("the same ones");

    for (wrong, reason) in [
        ("[plugins]\ndns = 5", "2:7: this is a number: write [plugins.dns.parameters]"),
        ("[plugins.dns]\nfile = \"x\"", "2:1: unknown field 'file'"),
        ("[plugins.dns.parameters]\nlabels = \"6\"", "2:10: parameter 'labels' is a string, not a number"),
        ("[plugins.dns.parameters]\nlabels = 0.5", "not a number, true or false"),
        ("plugins = 3", "1:11: this is a number: write [plugins.NAME.parameters]"),
        ("steering-program = [1]", "write [steering-program.parameters]"),
    ] {
        let found = mistakes(wrong).join("\n");
        assert!(found.contains(reason), "{wrong}: {found}");
    }
}
