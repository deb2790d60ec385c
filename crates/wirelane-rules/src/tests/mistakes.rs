//! Mistakes in rule files, with their positions.

use super::mistakes;
use crate::{Action, Condition, ExactFields, ExactRule, Rule, RuleSet, Sample, SampleBy, Shape, Test};

/// Checks that a text has exactly these mistakes; only the beginnings of the messages are given.
fn has(text: &str, expected: &[&str]) {
    let found = mistakes(text);
    let fits = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
    assert!(fits, "{text}\nhas {found:#?}\nand not {expected:#?}");
}

/// A rule that is valid except for `fields`, which begin in line 4.
fn rule(fields: &str) -> String {
    format!("[[rule]]\nid = 1\naction = \"drop\"\n{fields}\n")
}

#[test]
fn all_of_a_file_are_told() {
    let text = "default = \"deny\"\n\
                [[rule]]\n\
                id = 1\n\
                prot = \"tcp\"\n\
                dst-port = [80, 70000]\n\
                action = \"dorp\"\n\
                \n\
                [[rule]]\n\
                src = \"10.0.0.0/33\"\n\
                action = \"drop\"\n";
    has(
        text,
        &[
            "1:11: 'deny' is not known here; expected one of pass, drop",
            "4:1: unknown field 'prot'; did you mean",
            "5:17: 70000 is not in 0 to 65535",
            "6:10: 'dorp' is not known here; did you mean 'drop'?",
            "8:1: the rule has no id",
            "9:7: '33' is not a prefix length; it is 0 to 32 in 10.0.0.0/33",
        ],
    );
}

#[test]
fn what_is_not_toml() {
    has("[[rule]]\nid = 1\naction = \"drop\nport = 2\n", &["3:15: invalid basic string"]);
    has("[[rule]\nid = 1\n", &["1:8: "]);
    has("default = pass\n", &["1:11: "]);
    has("[[rule]]\nid = 1\nid = 2\naction = \"drop\"\n", &["3:1: "]);
    // Several syntax errors, and other mistakes; a field may be missing because of a syntax error.
    let found =
        mistakes("[[rule]]\nid = \naction = \"drop\"\nport = \"x\"\n[[rule]]\nid = 2\naction = drop\n");
    let lines: Vec<&str> = found.iter().map(|line| line.split(':').next().expect("a line")).collect();
    assert_eq!(lines, ["2", "4", "7"], "{found:#?}");
    // Nested deeper than the reader accepts: dots in brackets, which have to be counted together.
    has(&format!("x = {}", "[".repeat(40)), &["1:36: nothing in a rule file is nested deeper than 32"]);
    has("x = {a.b = {c = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", &["1:45: nothing in a rule file is nested"]);
    assert!(!mistakes(&format!("x = {}{}", "[".repeat(5000), "]".repeat(5000))).is_empty());
    let dotted = format!("{{{}a=", "a.".repeat(78));
    assert!(!mistakes(&format!("x = {}", dotted.repeat(78))).is_empty());
    assert!(!mistakes(&format!("x = {}1{}", dotted.repeat(78), "}".repeat(78))).is_empty());
    assert!(!mistakes(&format!("{} = 1", "a.".repeat(5000))).is_empty());
    assert!(!mistakes("\0").is_empty());
}

#[test]
fn columns_count_characters() {
    has(&rule("name = \"äöü\" ; port = 1"), &["4:14: "]);
    has("[[rule]]\nid = 1\nport = [\"äöü\", \"x\"]\naction = \"drop\"\n", &["3:9: ", "3:16: 'x'"]);
}

/// Battery: I4
#[test]
fn a_long_line_takes_no_longer_than_many_short_ones() {
    let began = std::time::Instant::now();
    let ports = "1, ".repeat(400_000);
    let set = super::set(&rule(&format!("port = [{ports}\"2-3\"]")));
    let Test::Port(ranges) = &set.rules[0].conditions[0].test else { panic!("port") };
    assert_eq!(ranges.len(), 400_001);
    // The invalid values are reported at their positions, also after letters of several bytes.
    let found = mistakes(&rule(&format!("name = \"{}\"\nport = [{ports}\"x\"]", "ü".repeat(60))));
    assert!(found[0].starts_with("5:1200009: 'x' is not a number"), "{found:?}");
    let letters = format!("port = [{}0]", "\"ü\", ".repeat(1000));
    let found = mistakes(&rule(&letters));
    assert!(found[99].starts_with(&format!("4:{}: ", 9 + 5 * 99)), "{}", found[99]);
    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
}

#[test]
fn values_that_are_wrong() {
    for (fields, expected) in [
        ("port = -1", "4:8: -1 is not in 0 to 65535"),
        ("port = 80.5", "4:8: this is a number with a fraction"),
        ("port = \"90-80\"", "4:8: 90-80 ends before it begins"),
        ("port = \"-\"", "4:8: '-' has neither a beginning nor an end"),
        ("port = \"http\"", "4:8: 'http' is not a number"),
        ("port = \"+5\"", "4:8: '+5' is not a number"),
        ("port = \"\"", "4:8: '' is not a number"),
        ("port = []", "4:8: the list is empty"),
        ("port = [[80]]", "4:9: this is an array, not a number"),
        ("port = true", "4:8: this is true or false, not a number"),
        ("port = 99999999999999999999", "4:8: "),
        ("protocol = \"tpc\"", "4:12: 'tpc' is not a protocol; did you mean 'tcp'?"),
        ("protocol = 256", "4:12: 256 is not in 0 to 255"),
        ("ethertype = 0x10000", "4:13: 65536 is not in 0 to 65535"),
        ("kind = \"ipv5\"", "4:8: 'ipv5' is not known here; did you mean"),
        ("direction = \"in\"", "4:13: 'in' is not known here; expected one of rx, tx"),
        ("direction = [\"rx\"]", "4:13: this is an array, not a string"),
        ("tcp-flags = \"X\"", "4:13: 'X' is not a test of TCP flags; write S/SA"),
        ("tcp-flags = \"\"", "4:13: '' is not a test of TCP flags"),
        ("tcp-flags = \"S/\"", "4:13: 'S/' looks at no flag"),
        ("tcp-flags = \"S/A\"", "4:13: 'S/A' wants flags set that it does not look at"),
        ("vlan = 4096", "4:8: 4096 is not in 0 to 4095; or write \"none\""),
        ("vlan = \"any\"", "4:8: 'any' is not a number"),
        ("dscp = 64", "4:8: 64 is not in 0 to 63"),
        ("length = \"70000-\"", "4:10: no packet has 70000 bytes"),
        ("icmp-type = \"echo\"", "4:13: 'echo' is not a number"),
        ("queue = 65536", "4:9: 65536 is not in 0 to 65535"),
        ("device = \"a-name-that-is-too-long\"", "4:10: 'a-name-that-is-too-long' cannot be"),
        ("device = \"a/b\"", "4:10: 'a/b' cannot be"),
        ("src = \"10.0.0\"", "4:7: '10.0.0' is not an address"),
        ("src = \"10.0.0.1/8\"", "4:7: 10.0.0.1/8 has bits set behind its prefix; the network is 10.0.0.0/8"),
        ("src = 10", "4:7: this is a number, not a string: write it in quotes"),
        ("src = []", "4:7: the list is empty"),
        ("src = \"@office\"", "4:7: there is no list 'office'; write it under [lists]"),
        ("src = \"@./a\"", "4:7: rules that are not in a file cannot name other files"),
        ("src = \"@\"", "4:7: rules that are not in a file"),
        ("not = \"src\"", "4:7: this is a string: write not.FIELD = VALUE"),
        ("not.id = 1", "4:5: unknown field 'id'; expected one of src, dst"),
        ("not.prot = 1", "4:5: unknown field 'prot'"),
        ("then = \"go\"", "4:8: 'go' is not known here; expected one of stop, continue"),
        ("truncate = 0", "4:12: 0 is not in 1 to"),
        ("sample = 0", "4:10: 0 is not in 1 to"),
        ("sample-by = \"flow\"", "1:1: sample-by is there, but not sample"),
        ("sample-by = \"flow\"\nsample = 0", "5:10: 0 is not in 1 to"),
        ("tag = 4294967296", "4:7: 4294967296 is not in 0 to 4294967295"),
        ("name = 7", "4:8: this is a number, not a string"),
        ("mirror = \"a/b\"", "4:10: 'a/b' cannot be the name of a device"),
        ("mirror = [\"eth1\"]", "4:10: this is an array, not a string"),
        ("redirect = \"eth1\"", "4:1: unknown field 'redirect'"),
        ("digest = \"x\"", "4:1: unknown field 'digest'"),
        ("insert = 5", "4:10: this is a number: write insert = { idle = 60 }"),
        ("insert = { fields = [] }", "4:21: the list is empty"),
        ("insert = { fields = \"sorc\" }", "4:21: 'sorc' is not known here; did you mean 'src'?"),
        ("insert = { both = 1 }", "4:12: unknown field 'both'; did you mean 'both-ways'?"),
        ("insert = { idle = 0 }", "4:19: 0 is not in 1 to"),
        ("insert = { idle = \"5x\" }", "4:19: '5x' is not a time; write seconds"),
        ("insert = { idle = \"400d\" }", "4:19: '400d' is not within a second and a year"),
        ("insert = { idle = \"99999999d\" }", "4:19: '99999999d' is not a time"),
        ("insert = { fields = [\"vlan\"], both-ways = true }", "1:1: the rule to insert is for both ways"),
        ("idle = 60", "4:1: unknown field 'idle'"),
    ] {
        has(&rule(fields), &[expected]);
    }
    has("[[rule]]\nid = 1\naction = \"mirror\"\n", &["3:10: 'mirror' is not known here"]);
    has("[[rule]]\nid = 0\naction = \"drop\"\n", &["2:6: 0 is not in 1 to 4294967295"]);
    let long = "x".repeat(65);
    has(&rule(&format!("name = \"{long}\"")), &["1:1: its name has more than 64 letters"]);
}

#[test]
fn exact_rules_that_are_wrong() {
    let exact = |fields: &str| format!("[[exact]]\nid = 1\naction = \"drop\"\n{fields}\n");
    for (fields, expected) in [
        ("", "1:1: it has no field to find a packet by"),
        ("both-ways = true\nvlan = 3", "1:1: it is for both ways, and has no field of one side"),
        ("src = \"10.0.0.0/8\"", "4:7: '10.0.0.0/8' is not an address; an exact-match rule has no prefixes"),
        ("src = [\"10.0.0.1\"]", "4:7: this is an array"),
        ("src = \"@x\"", "4:7: '@x' is not an address"),
        ("src = \"10.0.0.1\"\ndst = \"::1\"", "1:1: no packet goes from 10.0.0.1 to ::1"),
        ("src-port = \"1-2\"", "4:12: this is a string, not a number"),
        ("dst-port = 53\nprotocol = \"icmp\"", "1:1: packets of protocol 1 have no ports"),
        ("protocol = \"6-17\"", "4:12: '6-17' is a range"),
        ("mpls = 1048576", "4:8: 1048576 is not in 0 to 1048575"),
        ("vlan = \"1-2\"", "4:8: this is a string, not a number from 0 to 4095; or write \"none\""),
        ("src = \"10.0.0.1\"\nkind = \"ipv4\"", "5:1: unknown field 'kind'; expected one of id"),
        ("src = \"10.0.0.1\"\nboth-ways = 1", "5:13: this is a number, not true or false"),
        ("src = \"10.0.0.1\"\nnot.src = \"10.0.0.1\"", "5:1: unknown field 'not'"),
        ("file = \"x.csv\"", "4:8: rules that are not in a file cannot name other files"),
    ] {
        has(&exact(fields), &[expected]);
    }
}

#[test]
fn things_at_the_wrong_place() {
    has("rules = 1\n", &["1:1: unknown field 'rules'; did you mean 'rule'?"]);
    has("rule = 5\n", &["1:8: this is a number: write [[rule]]"]);
    has("[rule]\nid = 1\n", &["1:1: this is a table: write [[rule]]"]);
    has("rule = [5]\n", &["1:9: this is a number: write [[rule]]"]);
    has("lists = 5\n", &["1:9: 'lists' is a number, not a table"]);
    has("[lists]\n\"a b\" = [\"10.0.0.1\"]\n", &["2:1: 'a b' cannot name a list"]);
    has("[lists]\na = [\"@b\"]\n", &["2:6: a list cannot have others in it"]);
    has("[lists]\na = []\n", &["2:5: the list is empty"]);
    has("[lists]\na = 5\n", &["2:5: this is a number, not an array of addresses or a table"]);
    has("[lists]\na = { column = 1 }\n", &["2:5: the file is missing"]);
    has(
        "[lists]\na = { file = \"x\", columns = 1 }\n",
        &["2:5: rules that are not in a file", "2:19: unknown field"],
    );
    has("include = \"x.toml\"\n", &["1:11: rules that are not in a file cannot name other files"]);
    // A list with mistakes is registered, so its uses are not mistakes too.
    has(&format!("lists.a = [\"x\"]\n{}", rule("src = \"@a\"")), &["1:12: 'x' is not an address"]);
    has(
        &format!("lists.office = [\"10.0.0.1\"]\n{}", rule("src = \"@ofice\"")),
        &["5:7: there is no list 'ofice'; did you mean '@office'?"],
    );
}

#[test]
fn what_is_there_twice() {
    let text = "[[rule]]\nid = 5\naction = \"drop\"\n[[rule]]\nid = 5\naction = \"pass\"\n\
                [[exact]]\nid = 5\nsrc = \"10.0.0.1\"\naction = \"drop\"\n";
    has(text, &["4:1: id 5 is taken by the rule at 1:1", "7:1: id 5 is taken by the rule at 4:1"]);
    let text = "[[exact]]\nid = 1\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\nboth-ways = true\naction = \"drop\"\n\
                [[exact]]\nid = 2\nsrc = \"10.0.0.2\"\ndst = \"10.0.0.1\"\nboth-ways = true\naction = \"pass\"\n";
    has(text, &["7:1: exactly these packets are taken by the rule at 1:1"]);
    // Rules for one direction each are two different rules.
    super::set(&text.replace("both-ways = true", "both-ways = false"));
}

#[test]
fn too_many() {
    let rules = |from: usize, to: usize, fields: &str| -> String {
        (from..to).map(|id| format!("[[rule]]\nid = {id}\naction = \"drop\"\n{fields}\n")).collect()
    };
    super::set(&rules(1, 4097, ""));
    has(&rules(1, 4098, ""), &["0:0: there are 4097 wildcard rules, more than 4096"]);
    let both = "host = \"10.0.0.1\"\nport = 80";
    super::set(&rules(1, 1025, both));
    has(&rules(1, 1026, both), &["0:0: the wildcard rules make 4100 clauses, more than 4096: each `host`"]);
    // At most a hundred mistakes are listed.
    let found = mistakes(&rules(1, 300, "port = -1"));
    assert_eq!((found.len(), found[100].as_str()), (101, "0:0: and 199 mistakes more"));
    // Nine shapes.
    let fields = ["src", "dst", "src-port", "dst-port", "protocol", "vlan", "mpls", "tunnel"];
    let mut shapes: String = fields
        .iter()
        .enumerate()
        .map(|(id, field)| {
            format!("[[rule]]\nid = {}\naction = \"drop\"\ninsert = {{ fields = \"{field}\" }}\n", id + 1)
        })
        .collect();
    super::set(&shapes);
    shapes.push_str("[[exact]]\nid = 9\nsrc = \"10.0.0.1\"\nvlan = 3\naction = \"drop\"\n");
    has(&shapes, &["0:0: the exact-match rules have 9 different sets of fields, more than 8"]);
}

#[test]
fn sets_that_come_from_no_file_are_checked_too() {
    let with = |test: Test| {
        let conditions = vec![Condition::is(test)];
        RuleSet { rules: vec![Rule { conditions, ..Rule::new(3, Action::Drop) }], ..RuleSet::default() }
    };
    let reversed = std::ops::RangeInclusive::new(9u16, 8);
    for (set, expected) in [
        (with(Test::Port(Vec::new())), "rules: rule 3: a condition has no value"),
        (with(Test::Port(vec![reversed])), "rules: rule 3: a range ends before it begins"),
        (with(Test::Dscp(vec![60..=64])), "rules: rule 3: code points end at 63"),
        (with(Test::Src(Default::default())), "rules: rule 3: a condition has no value"),
        (
            RuleSet { rules: vec![Rule::new(0, Action::Drop)], ..RuleSet::default() },
            "rules: rule 0: ids begin at 1",
        ),
        (
            RuleSet {
                rules: vec![Rule { truncate: Some(0), ..Rule::new(1, Action::Pass) }],
                ..RuleSet::default()
            },
            "rules: rule 1: truncate = 0 leaves nothing",
        ),
        (
            RuleSet {
                rules: vec![Rule {
                    sample: Some(Sample { one_in: 0, by: SampleBy::Flow }),
                    ..Rule::new(1, Action::Pass)
                }],
                ..RuleSet::default()
            },
            "rules: rule 1: sample = 0 takes nothing",
        ),
        (
            RuleSet {
                exact: vec![ExactRule::new(4, ExactFields::default(), Action::Drop)],
                ..RuleSet::default()
            },
            "rules: exact-match rule 4: it has no field",
        ),
    ] {
        let error = set.check().expect_err("a mistake").to_string();
        assert!(error.starts_with(expected) && error.lines().count() == 1, "{error}");
        assert!(set.compile("eth0", &[], crate::Room::UNLIMITED).is_err());
    }
    let twice =
        RuleSet { rules: vec![Rule::new(3, Action::Drop), Rule::new(3, Action::Pass)], ..RuleSet::default() };
    let error = twice.check().expect_err("a mistake").to_string();
    assert_eq!(error, "rules: rule 3: id 3 is taken by rule 3");
    let ninth = Shape::SRC.with(Shape::VLAN);
    let shapes: Vec<Shape> = (0..8).map(|bit| Shape(1 << bit)).chain([ninth]).collect();
    let error = RuleSet::default().compile("eth0", &shapes, crate::Room::UNLIMITED).expect_err("nine");
    assert!(error.to_string().starts_with("rules: the exact-match rules have 9 different sets"), "{error}");
}

#[test]
fn what_is_shown_harms_no_terminal() {
    let found = mistakes("[[rule]]\nid = 1\naction = \"\\u001b[2J\"\nname = \"x\"\n\"\\u0007\" = 1\n");
    assert!(found.iter().all(|line| !line.contains(['\u{1b}', '\u{7}'])), "{found:?}");
    let long = mistakes(&rule(&format!("src = \"{}\"", "9".repeat(100_000))));
    assert!(long[0].len() < 300, "{}", long[0].len());
}
