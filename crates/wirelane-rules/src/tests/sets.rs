//! Named sets: their syntax, their mistakes, and their results.

use std::fs;

use wirelane_bpf::rules::dim;

use super::{listed, mistakes};
use crate::{Action, Condition, Ends, Entries, Flows, Networks, Part, Room, Rule, RuleSet, Test};

/// A set with these fields, and a rule with this condition on it.
fn asked(fields: &str, condition: &str) -> String {
    format!("[[sets]]\nname = \"threats\"\n{fields}\n\n[[rule]]\nid = 1\n{condition}\naction = \"drop\"\n")
}

fn flows(of: &[&str]) -> Entries {
    Entries::Flow(Flows::of(of).expect("flows").into())
}

#[test]
fn sets_are_read_from_files_and_as_they_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("threats.txt", "192.0.2.1 ; one\n192.0.2.8/30\n\n# more\n2001:db8::7\n192.0.2.1\n");
    write("threats.csv", "2026-11-22,198.51.100.1,bad\n2026-11-22,198.51.100.2,worse\n");
    write("flows.txt", "udp 192.0.2.1:53 198.51.100.2:4000\ntcp [2001:db8::1]:80 [2001:db8::2]:4000 # why\n");
    write(
        "flows.csv",
        "src,dst,protocol,src-port,dst-port\n198.51.100.2,192.0.2.1,17,4000,53\n192.0.2.1,192.0.2.2,icmp,,\n",
    );
    write(
        "rules.toml",
        r#"
        [lists]
        feed = { file = "threats.csv", column = 2 }

        [[sets]]
        name = "threats"
        entries = ["@threats.txt", "@feed", "203.0.113.9"]

        [[sets]]
        name = "calls"
        of = "flow"
        entries = ["@flows.txt", "@flows.csv"]
        false-positives = 1e-4
        confirm = true

        [[rule]]
        id = 1
        host-in = "threats"
        not.src-in = ["threats"]
        not.flow-in = "calls"
        action = "drop"
        "#,
    );
    let set = RuleSet::read(folder.path().join("rules.toml")).unwrap_or_else(|error| panic!("{error}"));
    let [threats, calls] = &set.sets[..] else { panic!("two sets: {:?}", set.sets) };
    assert_eq!((threats.entries.count(), threats.false_positives, threats.confirm), (9, 0.001, false));
    assert_eq!((calls.entries.count(), calls.false_positives, calls.confirm), (3, 1e-4, true));
    let same = [
        "icmp 192.0.2.2 192.0.2.1",
        "17 198.51.100.2:4000 192.0.2.1:53",
        "tcp [2001:db8::2]:4000 [2001:db8::1]:80",
    ];
    assert_eq!(calls.entries, flows(&same));
    let names = || vec!["threats".to_owned()];
    assert_eq!(
        set.rules[0].conditions,
        [
            Condition::is(Test::HostIn(names())),
            Condition::is_not(Test::SrcIn(names())),
            Condition::is_not(Test::FlowIn(vec!["calls".to_owned()])),
        ]
    );
    let shown: Vec<String> = set.rules[0].conditions.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["host-in = threats", "not.src-in = threats", "not.flow-in = calls"]);
    // The form that is sent to a running capture.
    let text = serde_json::to_string(&set).expect("it can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&text).expect("it can be read"), set);

    // Three tests, each with its bit in one byte.
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
    assert_eq!(flat.set.used, 1 << dim::SETS);
    assert_eq!(flat.set.member, [3, 1, 0x84, 0, 0, 0, 0, 0]);
    assert_eq!((flat.nodes.len(), flat.classes.len()), (1, 3));
    for byte in 0..256 {
        let hit = flat.nodes[0].next[byte] != flat.nodes[0].next[0];
        assert_eq!(hit, byte & 7 == 1, "{byte}");
    }
}

#[test]
fn what_is_wrong_with_sets_is_found_where_it_stands() {
    let entries = "entries = [\"192.0.2.1\", \"2001:db8::1\"]";
    let ask = "src-in = \"threats\"";
    for (text, expected) in [
        (asked(entries, "src-in = \"threads\""), "5:1: there is no set 'threads'; did you mean 'threats'?"),
        (asked(entries, "src-in = 7"), "7:10: this is a number, not a string"),
        (asked(entries, "src-in = []"), "7:10: the list is empty"),
        (asked(entries, "flow-in = \"threats\""), "5:1: 'threats' is a set of addresses: ask it by src-in"),
        (asked("of = \"flow\"\nentries = \"udp 192.0.2.1:1 192.0.2.2:2\"", ask), "6:1: 'threats' is a set of flows"),
        (asked(&format!("{entries}\nof = \"flows\""), ask), "4:6: 'flows' is not known here"),
        (asked("", ask), "1:1: the set has no entries"),
        (asked("entries = []", ask), "3:11: the list is empty"),
        (asked("entries = \"192.0.2.300\"", ask), "3:11: '192.0.2.300' is not an address"),
        (asked("entries = \"2001:db8::/64\"", ask), "1:1: the set 'threats' has more entries than"),
        (asked("entries = \"0.0.0.0/4\"", ask), "1:1: the set 'threats' has 268435456 entries, more than 67108864"),
        (asked(&format!("{entries}\nfalse-positives = 0"), ask), "1:1: a share of 0 false positives"),
        (asked(&format!("{entries}\nfalse-positives = 0.6"), ask), "1:1: a share of 0.6 false positives"),
        (asked(&format!("{entries}\nfalse-positives = \"few\""), ask), "4:19: this is a string, not a number such as"),
        (asked(&format!("{entries}\nfalse-positives = nan"), ask), "4:19: this is a number with a fraction, not"),
        (asked(&format!("{entries}\nconfirm = 1"), ask), "4:11: this is a number, not true or false"),
        (asked(&format!("{entries}\nconfirmed = true"), ask), "4:1: unknown field 'confirmed'; did you mean 'confirm'?"),
        (asked("of = \"flow\"\nentries = \"192.0.2.1\"", "flow-in = \"threats\""), "4:11: '192.0.2.1' is not a flow"),
        (asked("of = \"flow\"\nentries = \"udp 192.0.2.1:1 ::1\"", "flow-in = \"threats\""), "4:11: no packet goes"),
        (asked("of = \"flow\"\nentries = \"icmp 192.0.2.1:1 192.0.2.2:1\"", "flow-in = \"threats\""), "4:11: packets of protocol 1 have no ports"),
        (asked("of = \"flow\"\nentries = \"@list\"", "flow-in = \"threats\""), "4:11: '@list' is not a file of flows"),
        ("[[sets]]\nentries = \"192.0.2.1\"\n".to_owned(), "1:1: the set has no name"),
        ("[[sets]]\nname = \"a b\"\nentries = \"192.0.2.1\"\n".to_owned(), "1:1: 'a b' cannot name a set"),
        ("[sets]\nname = \"a\"\nentries = \"192.0.2.1\"\n".to_owned(), "1:1: this is a table: write [[sets]]"),
        (asked(entries, &format!("{ask}\nnot.src-in = \"threats\"")), "5:1: no packet can hit this rule: `src-in = threats` and `not.src-in = threats` cannot hold together"),
        (
            "[[sets]]\nname = \"a\"\nentries = \"192.0.2.1\"\n[[sets]]\nname = \"a\"\nentries = \"192.0.2.2\"\n".to_owned(),
            "4:1: there is a set 'a' already, made at 1:1",
        ),
    ] {
        let found = mistakes(&text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
}

#[test]
fn what_is_wrong_in_a_file_of_flows_is_found_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    for (name, text, expected) in [
        (
            "flows.txt",
            "udp 192.0.2.1:1 192.0.2.2:2\n  udp 192.0.2.1:1\n",
            "2:3: 'udp 192.0.2.1:1' is not a flow",
        ),
        ("flows.txt", "# none\n", "0:0: has no flow in it"),
        ("flows.csv", "", "0:0: is empty"),
        (
            "flows.csv",
            "src,dst\n",
            "1:1: the first row names the columns: src, dst, src-port, dst-port, protocol",
        ),
        ("flows.csv", "src,dst,protocol\n192.0.2.1,192.0.2.x,udp\n", "2:11: '192.0.2.x' is not an address"),
        ("flows.csv", "src,dst,protocol\n192.0.2.1,192.0.2.2\n", "2:20: '' is not"),
        ("flows.csv", "src,dst,protocol\n192.0.2.1,192.0.2.2,0-255\n", "2:21: an entry has one protocol"),
        (
            "flows.csv",
            "src,dst,protocol,src-port\n192.0.2.1,192.0.2.2,17,70000\n",
            "2:24: 70000 is not in 0 to 65535",
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("a file");
        fs::write(&rules, asked(&format!("of = \"flow\"\nentries = \"@{name}\""), "flow-in = \"threats\""))
            .expect("a file");
        let found = listed(RuleSet::read(&rules).expect_err(text));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
}

/// Sets of every key, from literals, plain files and CSV files.
#[test]
fn sets_of_any_key_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("nets.txt", "192.0.2.0/25 ; one\n192.0.2.128/25\n2001:db8::/33\n2001:db8:8000::/33\n10.0.0.0/9\n");
    write("ports.txt", "192.0.2.1:53\n  [2001:db8::1]:80 # two\n192.0.2.1:53\n");
    write("ports.csv", "port,address\n8080,198.51.100.1\n");
    write("services.csv", "protocol,address,port,why\n17,198.51.100.1,53,x\ntcp,2001:db8::7,0,y\n");
    write(
        "rules.toml",
        r#"
        [[sets]]
        name = "networks"
        of = "network"
        entries = ["@nets.txt", "198.51.100.7"]

        [[sets]]
        name = "ends"
        of = "address-port"
        entries = ["@ports.txt", "@ports.csv", "203.0.113.9:1"]

        [[sets]]
        name = "services"
        of = "address-port-protocol"
        entries = ["@services.csv", "sctp 203.0.113.9:1", "udp 198.51.100.1:53"]
        confirm = true

        [[rule]]
        id = 1
        src-in = "networks"
        not.dst-in = ["ends", "networks"]
        host-in = "services"
        action = "drop"
        "#,
    );
    let set = RuleSet::read(folder.path().join("rules.toml")).unwrap_or_else(|error| panic!("{error}"));
    let [networks, ends, services] = &set.sets[..] else { panic!("three sets: {:?}", set.sets) };
    let part = |text: &str| text.parse::<Part>().expect("addresses");
    let all = ["192.0.2.0/24", "2001:db8::/32", "10.0.0.0/9", "198.51.100.7"].map(part);
    let expected = Networks::from(all.into_iter().collect::<crate::Addresses>());
    assert_eq!(networks.entries, Entries::Network(expected.into()));
    assert_eq!((networks.entries.count(), networks.entries.lookups()), (4, 3));
    let expected = ["203.0.113.9:1", "[2001:db8::1]:80", "198.51.100.1:8080", "192.0.2.1:53"];
    assert_eq!(ends.entries, Entries::AddressPort(Ends::of(expected).expect("ends").into()));
    let expected = ["132 203.0.113.9:1", "tcp [2001:db8::7]:0", "udp 198.51.100.1:53"];
    assert_eq!(services.entries, Entries::AddressPortProtocol(Ends::of(expected).expect("ends").into()));
    // The form that is sent to a running capture.
    let text = serde_json::to_string(&set).expect("it can be written");
    assert!(text.contains("{\"address-port-protocol\":[\""), "{text}");
    assert_eq!(serde_json::from_str::<RuleSet>(&text).expect("it can be read"), set);
    // Four tests with the keys of their sets, and the prefix lengths of the networks plus 1.
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
    assert_eq!(flat.set.member, [0x21, 0x0a, 0x22, 0x9b, 0, 0, 0, 0]);
    let lengths = [[10, 25, 33, 0, 0, 0, 0, 0], [33, 0, 0, 0, 0, 0, 0, 0]];
    assert_eq!(
        flat.set.prefix,
        [lengths, [[0; 8]; 2], lengths, [[0; 8]; 2], [[0; 8]; 2], [[0; 8]; 2], [[0; 8]; 2], [[0; 8]; 2]]
    );
    let kinds: Vec<String> = set.set_lines().into_iter().map(|line| line.of).collect();
    assert_eq!(kinds, ["network", "address-port", "address-port-protocol"]);
}

#[test]
fn what_is_wrong_with_entries_of_any_key_is_found() {
    let of = |kind: &str, entries: &str| {
        asked(&format!("of = \"{kind}\"\nentries = {entries}"), "src-in = \"threats\"")
    };
    for (text, expected) in [
        (
            of("network", "\"192.0.2.1/24\""),
            "4:11: 192.0.2.1/24 has bits set behind its prefix; the network is 192.0.2.0/24",
        ),
        (of("network", "\"192.0.2.0/33\""), "4:11: '33' is not a prefix length"),
        (of("network", "[]"), "4:11: the list is empty"),
        (of("address-port", "[]"), "4:11: the list is empty: nothing is in the set"),
        (
            of("address-port", "\"192.0.2.1\""),
            "4:11: '192.0.2.1' is not an address with a port; write \"192.0.2.1:53\"",
        ),
        (
            of("address-port", "\"udp 192.0.2.1:53\""),
            "4:11: 'udp 192.0.2.1:53' is not an address with a port;",
        ),
        (of("address-port", "\"192.0.2.1:70000\""), "4:11: '192.0.2.1:70000' is not an address with a port"),
        (of("address-port", "\"2001:db8::1:53\""), "4:11: '2001:db8::1:53' is not an address with a port"),
        (
            of("address-port", "\"[fe80::1%eth0]:53\""),
            "4:11: '[fe80::1%eth0]:53' is not an address with a port",
        ),
        (of("address-port", "\"192.0.2.1:53 x\""), "4:11: '192.0.2.1:53 x' is not an address with a port"),
        (of("address-port", "\"@list\""), "4:11: '@list' is not a file of addresses with ports"),
        (of("address-port", "7"), "4:11: this is a number, not a string"),
        (
            of("address-port-protocol", "\"192.0.2.1:53\""),
            "4:11: '192.0.2.1:53' is not an address with a port and a protocol; write",
        ),
        (
            of("address-port-protocol", "\"upd 192.0.2.1:53\""),
            "4:11: 'upd 192.0.2.1:53' is not an address with a port and",
        ),
        (of("address-port-protocol", "\"icmp 192.0.2.1:0\""), "4:11: packets of protocol 1 have no ports"),
        (
            of("address-port-protocol", "\"@list\""),
            "4:11: '@list' is not a file of addresses with ports and protocols",
        ),
        (of("address and port", "\"192.0.2.1:53\""), "3:6: 'address and port' is not known here"),
        (
            asked("of = \"network\"\nentries = \"10.0.0.0/8\"", "flow-in = \"threats\""),
            "6:1: 'threats' is a set of networks: ask it by src-in, dst-in or host-in",
        ),
        (
            asked("of = \"address-port\"\nentries = \"192.0.2.1:53\"", "flow-in = \"threats\""),
            "6:1: 'threats' is a set of addresses with ports: ask it by src-in",
        ),
    ] {
        let found = mistakes(&text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
    // Ranges with prefixes of nearly all lengths, which eight cannot represent in few entries.
    let range = |n| format!("\"{n:x}00::1-{n:x}ff:ffff:ffff:ffff:ffff:ffff:ffff:fffe\"");
    let ranges: Vec<String> = (1..=0xff).map(range).collect();
    let found = mistakes(&of("network", &format!("[{}]", ranges.join(", "))));
    assert!(found[0].starts_with("1:1: the set 'threats' has "), "{found:?}");
    assert!(
        found[0]
            .ends_with("prefixes of more than 8 lengths are split: use wide prefixes as src, dst or host"),
        "{found:?}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    for (kind, name, text, expected) in [
        (
            "address-port",
            "ports.txt",
            "192.0.2.1:1\n 192.0.2.1\n",
            "2:2: '192.0.2.1' is not an address with a port",
        ),
        ("address-port", "ports.txt", "; none\n", "0:0: has no address with port in it"),
        ("address-port", "ports.csv", "", "0:0: is empty"),
        ("address-port", "ports.csv", "address\n", "1:1: the first row names the columns: address, port"),
        ("address-port", "ports.csv", "address,port\n192.0.2.1,\n", "2:11: there is no port in this row"),
        ("address-port", "ports.csv", "address,port\n192.0.2.1,65536\n", "2:11: 65536 is not in 0 to 65535"),
        (
            "address-port",
            "ports.csv",
            "address,port\n192.0.2.0/24,1\n",
            "2:1: '192.0.2.0/24' is not an address",
        ),
        (
            "address-port-protocol",
            "ports.csv",
            "address,port\n",
            "1:1: the first row names the columns: address, port, protocol",
        ),
        (
            "address-port-protocol",
            "ports.csv",
            "address,port,protocol\n192.0.2.1,1,1-9\n",
            "2:13: an entry has one protocol, and no range of them",
        ),
        (
            "address-port-protocol",
            "ports.csv",
            "address,port,protocol\n192.0.2.1,1,icmp\n",
            "2:1: packets of protocol 1 have no ports",
        ),
        (
            "network",
            "nets.txt",
            "10.0.0.0/8\n10.0.0.0/7\n10.1.0.0/8\n",
            "3:1: 10.1.0.0/8 has bits set behind",
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("a file");
        fs::write(&rules, of(kind, &format!("\"@{name}\""))).expect("a file");
        let found = listed(RuleSet::read(&rules).expect_err(text));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
}

/// The share of false positives is that of one address, also if several prefix lengths are looked up for it.
#[test]
fn a_set_of_networks_asks_for_fewer_false_positives_each() {
    let entries = "entries = [\"10.0.0.0/8\", \"192.0.2.0/24\", \"198.51.100.1\", \"203.0.113.0/25\"]";
    let set = super::set(&asked(&format!("of = \"network\"\n{entries}"), "src-in = \"threats\""));
    let [line] = &set.set_lines()[..] else { panic!("one set") };
    let of_one = set.sets[0].bloom().false_positives(4);
    assert_eq!((line.entries, line.of.as_str()), (4, "network"));
    assert!(
        of_one <= 0.001 / 4.0 && line.false_positives <= 0.001 && line.false_positives > of_one,
        "{line:?}"
    );
}

#[test]
fn no_more_tests_than_there_are_bits() {
    let text = |sets: usize| -> String {
        let set = |at| {
            format!(
                "[[sets]]\nname = \"s{at}\"\nentries = \"192.0.2.{at}\"\n[[rule]]\nid = {}\nhost-in = \"s{at}\"\naction = \"drop\"\n",
                at + 1
            )
        };
        (0..sets).map(set).collect()
    };
    let eight = super::set(&text(8));
    assert_eq!(eight.named_tests().len(), 8);
    let found = mistakes(&text(9));
    assert!(
        found[0].starts_with("0:0: the rules have 9 different tests of named sets, more than 8:"),
        "{found:?}"
    );
    assert!(found[0].contains("(host-in = s8 is one too many)") && found.len() == 1, "{found:?}");
    // A repeated test counts once.
    let again: String = (9..40)
        .map(|id| format!("[[rule]]\nid = {id}\nnot.host-in = [\"s0\", \"s7\"]\naction = \"drop\"\n"))
        .collect();
    assert_eq!(super::set(&(text(8) + &again)).named_tests().len(), 8);
}

#[test]
fn rules_in_words_ask_sets_that_a_capture_has() {
    let rule = Rule::from_words("id=7 src-in=threats,others not.flow-in=calls action=drop").expect("a rule");
    let names = ["threats", "others"].map(str::to_owned).to_vec();
    assert_eq!(rule.conditions[0], Condition::is(Test::SrcIn(names)));
    let error =
        RuleSet { rules: vec![rule], ..RuleSet::default() }.check().expect_err("no such set").to_string();
    assert!(error.contains("rule 7: there is no set 'threats'; write it under [[sets]]"), "{error}");
    assert_eq!(Rule::new(1, Action::Drop).conditions, []);
}

#[test]
fn a_line_says_what_a_set_takes() {
    let set = super::set(&asked("entries = \"10.0.0.0/12\"", "src-in = \"threats\""));
    let [line] = &set.set_lines()[..] else { panic!("one set") };
    assert_eq!((line.entries, line.in_use, line.hash_functions, line.bytes), (1 << 20, true, 6, 2 << 20));
    assert!((0.0005..=0.001).contains(&line.false_positives), "{line:?}");
}
