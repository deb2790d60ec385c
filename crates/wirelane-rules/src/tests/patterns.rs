//! Patterns: their syntax, their mistakes, and matches at the beginning and end of payloads, also of truncated packets.

use std::fs;

use wirelane_bpf::evaluate::{NoExact, Packet, evaluate};
use wirelane_bpf::layout::{Ip, NO_OFFSET, Parsed, flags, ip_flags, l3};
use wirelane_bpf::rules::{Evaluated, Facts, LiveCounts, dim, evaluated_flags, verdict};
use wirelane_bpf::search::{BLOCK, MAX_BYTES, MAX_OUTPUTS, STATE};

use super::{listed, mistakes};
use crate::{Condition, Pattern, Reference, Room, Rule, RuleSet, Test};

/// Patterns with these fields, and a rule that drops matching packets.
fn asked(fields: &str, condition: &str) -> String {
    format!(
        "[[patterns]]\nname = \"shells\"\nid = 1\n{fields}\n\n[[rule]]\nid = 1\n{condition}\naction = \"drop\"\n"
    )
}

/// The verdict on a packet with this payload, of which `captured` bytes were captured: natively, and by the reference.
pub(super) fn decided(set: &RuleSet, payload: &[u8], captured: usize) -> Evaluated {
    let ip = Ip { l3: l3::IPV4, l3_len: 28 + payload.len() as u32, payload_off: 28, ..Ip::default() };
    let parsed = Parsed { outer: ip, ..Parsed::default() };
    let data = [&[b'/'; 28], payload].concat();
    by_both(set, &parsed, &data[..captured.min(payload.len()) + 28], data.len())
}

fn by_both(set: &RuleSet, parsed: &Parsed, data: &[u8], wire_len: usize) -> Evaluated {
    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
    let counts: Vec<LiveCounts> = (0..flat.set.slots).map(|_| LiveCounts::default()).collect();
    let packet = Packet { parsed, data, inner: false };
    let facts = Facts { now_ns: 7, wire_len: wire_len as u32, ..Facts::default() };
    let evaluated = evaluate(&flat, &counts, &mut NoExact, packet, &facts);
    let mut reference = Reference::new(set, 0);
    assert_eq!(evaluated, reference.evaluate(packet, &facts, "eth0"));
    let searched = counts.get(set.rules.len()).map(LiveCounts::read).unwrap_or_default();
    assert_eq!(searched, reference.searched());
    evaluated
}

fn is_half(evaluated: &Evaluated) -> bool {
    evaluated.flags & evaluated_flags::HALF != 0
}

#[test]
fn patterns_are_read_from_files_and_as_they_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("more.txt"), "GET /admin\n\n# no comment\r\nümlaut\n").expect("a file");
    fs::write(
        folder.path().join("rules.toml"),
        r#"
        [[patterns]]
        name = "shells"
        id = 10
        text = ["/bin/sh", "cmd.exe"]
        hex = "90 90 9090"
        nocase = true
        offset = 4
        depth = 200

        [[patterns]]
        name = "web"
        id = 1
        file = "more.txt"

        [[patterns]]
        name = "shells"
        id = 99
        hex = ["dead beef"]

        [[rule]]
        id = 1
        payload = ["web", "shells"]
        not.payload = "web"
        action = "drop"
        "#,
    )
    .expect("a file");
    let set = RuleSet::read(folder.path().join("rules.toml")).unwrap_or_else(|error| panic!("{error}"));
    let ids = |at: usize| -> Vec<(u32, String)> {
        set.patterns[at].ids().map(|(id, pattern)| (id, pattern.to_string())).collect()
    };
    let told = |all: &[(u32, &str)]| -> Vec<(u32, String)> {
        all.iter().map(|(id, text)| (*id, (*text).to_owned())).collect()
    };
    assert_eq!(ids(0), told(&[(10, "\"/bin/sh\""), (11, "\"cmd.exe\""), (12, "90909090")]));
    assert_eq!(ids(1), told(&[(1, "\"GET /admin\""), (2, "\"# no comment\""), (3, "c3bc6d6c617574")]));
    assert_eq!(ids(2), told(&[(99, "deadbeef")]));
    let shells = &set.patterns[0];
    assert_eq!((shells.nocase, shells.offset, shells.depth), (true, 4, Some(200)));
    assert_eq!((set.patterns[1].nocase, set.patterns[1].offset, set.patterns[1].depth), (false, 0, None));
    let names = ["web", "shells"].map(str::to_owned).to_vec();
    assert_eq!(set.rules[0].conditions[0], Condition::is(Test::Payload(names)));
    let shown: Vec<String> = set.rules[0].conditions.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["payload = web, shells", "not.payload = web"]);
    // The form that is sent to a running capture.
    let text = serde_json::to_string(&set).expect("it can be written");
    assert_eq!(serde_json::from_str::<RuleSet>(&text).expect("it can be read"), set);

    let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
    assert_eq!(flat.set.used, 1 << dim::PAYLOAD);
    assert!(flat.search.roots.iter().all(|root| ((*root / STATE) as usize) < flat.search.states));
    let lines = set.pattern_lines();
    assert_eq!(
        lines.iter().map(|line| (&line.name[..], line.patterns)).collect::<Vec<_>>(),
        [("shells", 4), ("web", 3)]
    );
    assert!(lines.iter().all(|line| line.in_use && line.states > 1 && line.bytes > 0), "{lines:?}");
    let rule = Rule::from_words("id=7 payload=shells,web action=drop").expect("a rule");
    assert_eq!(rule.conditions.len(), 1);
}

#[test]
fn what_is_wrong_with_patterns_is_found_where_it_stands() {
    let text = "text = [\"/bin/sh\", \"cmd.exe\"]";
    let ask = "payload = \"shells\"";
    let long = "x".repeat(129);
    for (text, expected) in [
        (asked(text, "payload = \"shell\""), "6:1: there are no patterns 'shell'; did you mean 'shells'?"),
        (asked(text, "payload = 7"), "8:11: this is a number, not a string"),
        (asked(text, "payload = []"), "8:11: the list is empty"),
        (asked("", ask), "1:1: there is no pattern: write text, hex or file"),
        (asked("text = []", ask), "4:8: the list is empty: write at least one pattern"),
        (asked("text = [\"a\", \"\"]", ask), "4:14: the pattern is empty, and would be found everywhere"),
        (asked("hex = \"  \"", ask), "4:7: the pattern is empty"),
        (asked(&format!("text = \"{long}\""), ask), "4:8: the pattern has 129 bytes, more than 128"),
        (asked("hex = \"90 9\"", ask), "4:7: '90 9' has an odd number of digits; each byte has two"),
        (asked("hex = [\"90\", \"0x90\"]", ask), "4:14: 'x' is not a hexadecimal digit; write \"de ad be ef\""),
        (asked("hex = 90", ask), "4:7: this is a number, not a string"),
        (asked("file = \"list.txt\"", ask), "4:8: rules that are not in a file cannot name other files"),
        (asked(&format!("{text}\nnocase = 1"), ask), "5:10: this is a number, not true or false"),
        (asked(&format!("{text}\noffset = -1"), ask), "5:10: -1 is not in 0 to"),
        (asked(&format!("{text}\ndepth = 0"), ask), "5:9: 0 is not in 1 to"),
        (asked(&format!("{text}\ndepth = 6"), ask), "1:1: pattern 1: it has 7 bytes, and would have to lie within depth = 6"),
        (asked(&format!("{text}\noffset = 16378"), ask), "1:1: pattern 1: it would begin at byte 16378 or later, and 16384 bytes"),
        (asked(&format!("{text}\ncase = true"), ask), "5:1: unknown field 'case'; expected one of name, id"),
        (asked(text, &format!("{ask}\nnot.payload = \"shells\"")), "6:1: no packet can hit this rule: `payload = shells` and `not.payload = shells` cannot hold together"),
        ("[[patterns]]\nid = 1\ntext = \"a\"\n".to_owned(), "1:1: the patterns have no name"),
        ("[[patterns]]\nname = \"a\"\ntext = \"a\"\n".to_owned(), "1:1: the patterns have no id: the number of the first of them"),
        ("[[patterns]]\nname = \"a\"\nid = 0\ntext = \"a\"\n".to_owned(), "3:6: 0 is not in 1 to 2147483647"),
        ("[[patterns]]\nname = \"a b\"\nid = 1\ntext = \"a\"\n".to_owned(), "1:1: 'a b' cannot name a set"),
        ("[patterns]\nname = \"a\"\nid = 1\ntext = \"a\"\n".to_owned(), "1:1: this is a table: write [[patterns]]"),
        ("[[patterns]]\nname = \"a\"\nid = 2147483647\ntext = [\"a\", \"b\"]\n".to_owned(), "1:1: ids of patterns are 1 to 2147483647"),
        (
            "[[patterns]]\nname = \"a\"\nid = 5\ntext = [\"a\", \"b\"]\n[[patterns]]\nname = \"a\"\nid = 6\ntext = \"c\"\n".to_owned(),
            "5:1: the pattern id 6 is taken by the patterns at 1:1",
        ),
        (asked("nothing = 1", ask), "1:1: there is no pattern"),
    ] {
        let found = mistakes(&text);
        let only = found.len() == 1 || text.contains("nothing");
        assert!(only && found[0].starts_with(expected), "{text}\n{found:#?}\n{expected}");
    }
}

#[test]
fn what_is_wrong_in_a_file_of_patterns_is_found_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules.toml");
    fs::write(&rules, asked("file = \"list.txt\"", "payload = \"shells\"")).expect("a file");
    for (text, expected) in [
        (format!("a\n{}\n", "b".repeat(129)), "2:1: the pattern has 129 bytes, more than 128"),
        ("\n\n".to_owned(), "0:0: has no pattern in it"),
    ] {
        fs::write(folder.path().join("list.txt"), text).expect("a file");
        let found = listed(RuleSet::read(&rules).expect_err("a mistake"));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}\n{expected}");
    }
    fs::remove_file(folder.path().join("list.txt")).expect("it is there");
    let found = listed(RuleSet::read(&rules).expect_err("no file"));
    assert!(found.len() == 1 && found[0].starts_with("4:8: "), "{found:#?}");
}

#[test]
fn more_than_there_can_be_says_how_much() {
    let name = |at: u32| {
        format!(
            "[[patterns]]\nname = \"s{at}\"\nid = {}\ntext = \"word{at}\"\n[[rule]]\nid = {}\npayload = \"s{at}\"\naction = \"drop\"\n",
            at + 1,
            at + 1
        )
    };
    let text = |names: u32| (0..names).map(name).collect::<String>();
    assert_eq!(super::set(&text(8)).pattern_names().len(), 8);
    let found = mistakes(&text(9));
    assert!(
        found.len() == 1
            && found[0].starts_with(
                "0:0: the rules ask for patterns of 9 names, more than 8 ('s8' is one too many)"
            ),
        "{found:?}"
    );

    let many = |count: usize, length: usize| {
        let mut set = super::set(&text(1));
        let word = |at: usize| {
            let number = at.to_string().into_bytes();
            Pattern(number.into_iter().cycle().take(length).collect())
        };
        set.patterns[0].patterns = (0..count).map(word).collect();
        set.check().expect_err("too many").to_string()
    };
    assert!(many(65_537, 7).contains("there are 65537 patterns, more than 65536"));
    let told = many(30_000, 128);
    assert!(
        told.contains("they need 3") && told.contains("MiB), and there can be 1048576 (1032 MiB)"),
        "{told}"
    );

    // Each pattern is a suffix of all longer ones, and equals another in its letters.
    let mut set = super::set(&text(1));
    set.patterns[0].patterns = (1..=128).map(|length| Pattern(vec![b'a'; length])).collect();
    set.check().expect("as many as there can be");
    set.patterns[0].patterns = (1..=128).chain([128]).map(|length| Pattern(vec![b'a'; length])).collect();
    let told = set.check().expect_err("one more").to_string();
    assert!(told.contains("129 patterns end where pattern 128 does, more than 128"), "{told}");
}

#[test]
fn a_pattern_is_found_wherever_it_lies() {
    let set = super::set(&asked("text = \"needle\"", "payload = \"shells\""));
    for at in (0..3 * BLOCK).chain([1400, MAX_BYTES - 7, MAX_BYTES - 6]) {
        let mut payload = vec![b'n'; at];
        payload.extend(b"needle");
        for behind in [0, 1, 200] {
            payload.resize(at + 6 + behind, b'n');
            let evaluated = decided(&set, &payload, usize::MAX);
            assert_eq!(
                (evaluated.verdict, evaluated.pattern),
                (verdict::DROP.into(), [1, 0, 0, 0]),
                "at {at}"
            );
            assert_eq!(is_half(&evaluated), payload.len() > MAX_BYTES, "at {at}");
        }
        // The last byte is missing.
        let evaluated = decided(&set, &payload[..at + 5], usize::MAX);
        assert_eq!((evaluated.verdict, is_half(&evaluated)), (verdict::PASS.into(), false), "at {at}");
    }
    // Bytes before the payload, or after the datagram, are not part of it.
    assert_eq!(decided(&set, b"", usize::MAX).pattern, [0; 4]);
    let ip = Ip { l3: l3::IPV4, l3_len: 28 + 5, payload_off: 28, ..Ip::default() };
    let parsed = Parsed { outer: ip, ..Parsed::default() };
    let data = [&[b'/'; 28][..], b"needle and padding"].concat();
    let evaluated = by_both(&set, &parsed, &data, data.len());
    assert_eq!((evaluated.pattern, is_half(&evaluated)), ([0; 4], false));
}

#[test]
fn what_is_not_searched_to_the_end_is_marked() {
    let set = super::set(&asked("text = \"needle\"", "payload = \"shells\""));
    let mut payload = vec![0; MAX_BYTES];
    payload.extend(b"needle");
    let evaluated = decided(&set, &payload, usize::MAX);
    assert_eq!((evaluated.verdict, is_half(&evaluated)), (verdict::PASS.into(), true), "too long");
    let evaluated = decided(&set, b"a needle", 7);
    assert_eq!((evaluated.verdict, is_half(&evaluated)), (verdict::PASS.into(), true), "cut");
    let evaluated = decided(&set, b"a needle", 0);
    assert!(is_half(&evaluated), "cut before");
    // A pattern that must be in the first bytes needs only these.
    let near = super::set(&asked("text = \"needle\"\ndepth = 7", "payload = \"shells\""));
    assert!(!is_half(&decided(&near, &payload, usize::MAX)) && !is_half(&decided(&near, &payload, 7)));
    assert!(is_half(&decided(&near, &payload, 6)));

    // More ends of patterns than the maximum.
    let set = super::set(&asked("text = [\"a\", \"aa\", \"b\"]", "payload = \"shells\""));
    let many = |count: usize| decided(&set, &[&vec![b'a'; count][..], b"b"].concat(), usize::MAX);
    let most = MAX_OUTPUTS / 2;
    assert_eq!((many(most).pattern, is_half(&many(most))), ([1, 2, 3, 0], false));
    assert_eq!((many(most + 1).pattern, is_half(&many(most + 1))), ([1, 2, 0, 0], true));

    // A fragment whose headers are in another packet, and truncated headers.
    let parsed = |flags: u16, of: u8, payload_off: u16| Parsed {
        outer: Ip { l3: l3::IPV4, flags: of, payload_off, ..Ip::default() },
        flags,
        ..Parsed::default()
    };
    let later = ip_flags::FRAGMENT | ip_flags::LATER;
    for (parsed, half) in [
        (parsed(0, later, NO_OFFSET), true),
        (parsed(flags::CUT, 0, NO_OFFSET), true),
        (parsed(flags::DEEP, 0, NO_OFFSET), true),
        (parsed(0, 0, NO_OFFSET), false),
        (parsed(0, ip_flags::FRAGMENT, 0), false),
    ] {
        assert_eq!(is_half(&by_both(&set, &parsed, b"xyz", 3)), half, "{parsed:?}");
    }
}

#[test]
fn offset_depth_and_case() {
    let found = |fields: &str, payload: &[u8]| {
        let set = super::set(&asked(fields, "payload = \"shells\""));
        decided(&set, payload, usize::MAX).pattern[0] != 0
    };
    let fields = "text = \"abc\"\noffset = 2\ndepth = 5";
    for (payload, expected) in [
        (&b"abc"[..], false),
        (b"xabc", false),
        (b"xxabc", true),
        (b"xxxxabc", true),
        (b"xxxxxabc", false),
        (b"abcxxxxxxabc", false),
        (b"abcabcxxxxxxx", true),
    ] {
        assert_eq!(found(fields, payload), expected, "{payload:?}");
    }
    assert!(!found("text = \"Abc\"", b"aBC") && found("text = \"Abc\"\nnocase = true", b"aBC"));
    // Only ASCII letters are case-insensitive.
    assert!(!found("text = \"\u{e4}\"\nnocase = true", "\u{c4}".as_bytes()));
    assert!(!found("text = \"[\"\nnocase = true", b"{"));
}

#[test]
fn ids_are_in_the_order_in_which_patterns_end() {
    let set = super::set(&asked(
        "text = [\"she\", \"he\", \"hers\", \"his\", \"er\", \"sh\"]",
        "payload = \"shells\"",
    ));
    let evaluated = decided(&set, b"ushers his", usize::MAX);
    // sh, she and he, er, and then more matches than the record has space for.
    assert_eq!((evaluated.pattern, evaluated.flags), ([6, 1, 2, 5], evaluated_flags::FOUND));
    let evaluated = decided(&set, b"he he he", usize::MAX);
    assert_eq!((evaluated.pattern, evaluated.flags), ([2, 0, 0, 0], 0));
}

/// The payload is not searched if another rule has decided, or if the other conditions of the rule fail.
#[test]
fn only_what_is_asked_is_searched() {
    let text = |first: &str, second: &str| {
        format!(
            "[[patterns]]\nname = \"a\"\nid = 1\ntext = \"a\"\n[[rule]]\nid = 1\n{first}\n[[rule]]\nid = 2\n{second}\n"
        )
    };
    for (first, second, searched) in [
        ("action = \"pass\"", "payload = \"a\"\naction = \"drop\"", false),
        ("protocol = 6\naction = \"none\"", "payload = \"a\"\nprotocol = 6\naction = \"drop\"", false),
        ("action = \"none\"", "payload = \"a\"\naction = \"drop\"", true),
        ("payload = \"a\"\naction = \"none\"", "action = \"drop\"", true),
    ] {
        let set = super::set(&text(first, second));
        let evaluated = decided(&set, b"a", usize::MAX);
        assert_eq!(evaluated.pattern[0] == 1, searched, "{first}, {second}");
    }
}
