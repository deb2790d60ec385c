//! Hostile rule files: each is a valid set, or has mistakes with positions.

use crate::Error;
use crate::{ExactRule, Room, Rule, RuleSet};
use wirelane_testing::Dice;

/// A rule file with every kind of table.
const FILE: &str = r#"# rules
default = "drop"
[lists]
office = ["192.0.2.0/24", "2001:db8:1::/48", "10.0.0.1-10.0.0.9"]

[[rule]]
id = 10
name = "größer"
port = [23, "1024-", "-9", 0x50]
not.src = "@office"
tcp-flags = ["S/SA", "syn+ack"]
action = "drop"

[[rule]]
id = 20
kind = ["ipv6", "fragment"]
vlan = ["none", "1-9"]
dscp = "ef"
action = 'none'
truncate = 96
sample = 3
sample-by = "packet"
insert = { fields = ["src", "vlan"], action = "drop", idle = "1m", hard = 3600 }

[[exact]]
id = 30
src = "192.0.2.1"
dst-port = 53
protocol = """udp"""
both-ways = true
action = "count"
"#;

/// Sets of every key, likewise.
const SETS: &str = r#"
[[sets]]
name = "networks"
of = "network"
entries = ["10.0.0.0/8", "192.0.2.1-192.0.2.9", "2001:db8::/32"]
confirm = true

[[sets]]
name = "ends"
of = "address-port"
entries = ["192.0.2.1:53", "[2001:db8::1]:80"]

[[sets]]
name = "services"
of = "address-port-protocol"
entries = ["udp 192.0.2.1:53", "132 [2001:db8::1]:80"]
false-positives = 0.5

[[rule]]
id = 1
src-in = "networks"
dst-in = ["ends", "services"]
both-ways = true
action = "drop"
"#;

const WORDS: &str = "id=7 src=192.0.2.1 dst-port=53 protocol=udp vlan=none both-ways=true action=count idle=5m sample=0x2 tag=9";

/// Text fragments to insert at random positions.
const PARTS: [&str; 40] = [
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "[",
    "]",
    "[[",
    "]]",
    "{",
    "}",
    "=",
    ".",
    ",",
    "#",
    "\n",
    "\r\n",
    "\\",
    "\\u0000",
    "\u{7}",
    "ü",
    "-",
    "@",
    "/",
    "0x",
    "-1",
    "1e9",
    "inf",
    "true",
    "1979-05-27",
    "99999999999999999999",
    "not.",
    "id = 1",
    "[[rule]]",
    "[rule]",
    "[[exact]]",
    "[lists]",
    "include = \"/etc/passwd\"",
    "file = \"x\"",
    "::/0",
    "0.0.0.0/0",
];

/// A text with some parts inserted, removed, duplicated or changed.
fn spoilt(dice: &mut Dice, text: &str) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..1 + dice.below(4) {
        let at = dice.below(letters.len() + 1);
        let end = (at + dice.below(12)).min(letters.len());
        match dice.below(5) {
            0 => drop(letters.drain(at..end)),
            1 => drop(letters.splice(at..at, dice.one(&PARTS).chars())),
            2 => drop(letters.splice(at..end, dice.one(&PARTS).chars())),
            3 => {
                let again: Vec<char> = letters[at..end].to_vec();
                letters.splice(at..at, again);
            }
            _ => {
                let letter = char::from_u32(dice.word() & 0x1_ffff).unwrap_or('\u{0}');
                letters.insert(at, letter);
            }
        }
        if letters.is_empty() {
            break;
        }
    }
    letters.into_iter().collect()
}

/// Checks that all mistakes have positions in the text.
fn told(text: &str, error: Error) {
    let Error::Rules { mistakes } = error else { panic!("not the text's fault: {error}") };
    assert!(!mistakes.is_empty(), "{text:?}");
    for mistake in mistakes {
        let line = text.split('\n').nth(mistake.line.saturating_sub(1)).expect("a line of the text");
        assert!(mistake.column <= line.chars().count() + 1, "{mistake:?} in {text:?}");
        assert!(!mistake.reason.is_empty() && !mistake.to_string().contains(char::is_control), "{mistake:?}");
    }
}

/// Battery: I4
#[test]
fn spoilt_files_are_sets_or_have_mistakes() {
    let mut dice = Dice(17);
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..2000 {
        let file = dice.one(&[FILE, SETS]);
        let text = spoilt(&mut dice, file);
        match RuleSet::parse(&text) {
            Ok(set) => {
                let flat = set
                    .compile("eth0", &[], Room::UNLIMITED)
                    .unwrap_or_else(|error| panic!("{error}: {text}"));
                let room = set.room().expect("it has compiled");
                assert!(flat.nodes.len() <= room.nodes && flat.classes.len() <= room.classes);
                right += 1;
            }
            Err(error) => {
                told(&text, error);
                wrong += 1;
            }
        }
    }
    println!("{right} right, {wrong} wrong");
    assert!(right > 10 && wrong > 500);
}

#[test]
fn spoilt_words_are_rules_or_have_mistakes() {
    let mut dice = Dice(18);
    let mut right = 0;
    for _ in 0..1500 {
        let text = spoilt(&mut dice, WORDS);
        match ExactRule::from_words(&text) {
            Ok(rule) => {
                RuleSet { exact: vec![rule], ..RuleSet::default() }.check().expect("it was read");
                right += 1;
            }
            Err(error) => told(&text, error),
        }
        if let Err(error) = Rule::from_words(&text) {
            told(&text, error);
        }
    }
    assert!(right > 10, "{right}");
}

/// Battery: I4
#[test]
fn every_beginning_of_a_file() {
    for (end, _) in FILE.char_indices() {
        if let Err(error) = RuleSet::parse(&FILE[..end]) {
            told(&FILE[..end], error);
        }
    }
    super::set(FILE);
}
