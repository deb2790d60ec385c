//! Conditions on earlier hits: what they mean, and what is wrong with them.

use wirelane_bpf::rules::{MAX_AFTER, MAX_AFTERS, evaluated_flags};

use super::listed;
use super::mistakes;
use super::patterns::decided;
use crate::{Rule, RuleSet};

/// Rules that ask for hits, over payloads of SIP.
const SIP: &str = r#"
    default = "pass"

    [[rule]]
    id = 1
    sip-method = "INVITE"
    action = "none"

    [[rule]]
    id = 2
    sip-from = "alice"
    action = "none"
    tag = 7

    [[rule]]
    id = 3
    after = 1
    sip-to = "bob"
    action = "count"
    then = "continue"

    [[rule]]
    id = 4
    after = [3, 2]
    not.sip-to = "carol"
    action = "none"

    [[rule]]
    id = 5
    not.after = [1, 2]
    action = "drop"
"#;

#[test]
fn a_rule_is_hit_after_the_rules_that_it_asks_for() {
    let set = RuleSet::parse(SIP).unwrap();
    let asks: Vec<Vec<String>> = set.rules.iter().map(Rule::asks).collect();
    assert_eq!(asks[3], ["after = 3, 2", "not.sip-to = carol"]);
    for (payload, expected, decides) in [
        ("INVITE sip:b SIP/2.0\r\nFrom: alice\r\nTo: bob\r\n\r\n", &[1, 2, 3, 4][..], 3),
        ("INVITE sip:b SIP/2.0\r\nFrom: mallory\r\nTo: bob\r\n\r\n", &[1, 3, 4], 3),
        ("INVITE sip:b SIP/2.0\r\nFrom: alice\r\nTo: carol\r\n\r\n", &[1, 2], 1),
        ("BYE sip:b SIP/2.0\r\nFrom: alice\r\nTo: bob\r\n\r\n", &[2, 4], 2),
        ("BYE sip:b SIP/2.0\r\nFrom: mallory\r\nTo: bob\r\n\r\n", &[5], 5),
    ] {
        let evaluated = decided(&set, payload.as_bytes(), payload.len());
        let hits = &evaluated.hit[..evaluated.hit_count as usize];
        assert_eq!((hits, evaluated.rule_id), (expected, decides), "{payload}");
    }
}

#[test]
fn every_rule_with_after_is_evaluated_whatever_was_missed_before() {
    // As many rules as there may be, which all ask for a rule that is not hit, and one behind them, which is.
    let asking = |id: usize| format!("[[rule]]\nid = {id}\nafter = 1\naction = \"drop\"\n");
    let text = |last: usize| {
        "[[rule]]\nid = 1\nsip-method = \"BYE\"\naction = \"none\"\n".to_owned()
            + &(2..=last).map(asking).collect::<String>()
            + "[[rule]]\nid = 1000\naction = \"count\"\n"
    };
    let set = RuleSet::parse(&text(MAX_AFTERS + 1)).unwrap();
    assert_eq!(decided(&set, b"INVITE sip:b", 12).rule_id, 1000);
    assert_eq!(decided(&set, b"BYE sip:b", 9).rule_id, 2);
    let too_many = format!("{} rules have `after`, more than {MAX_AFTERS}", MAX_AFTERS + 1);
    assert!(mistakes(&text(MAX_AFTERS + 2)).concat().contains(&too_many));
    // The maximum number of hits counts hits, not rules that ask for others.
    let hits: String = (1..=16).map(|id| format!("[[rule]]\nid = {id}\naction = \"none\"\n")).collect();
    let behind = "[[rule]]\nid = 20\nnot.after = 16\naction = \"drop\"\n";
    let set = RuleSet::parse(&format!("{hits}{behind}")).unwrap();
    let evaluated = decided(&set, b"", 0);
    assert_eq!((evaluated.hits, evaluated.flags & evaluated_flags::MORE), (16, 0));
}

#[test]
fn mistakes_in_conditions_on_earlier_hits_have_their_place() {
    let rule = |id: u32, fields: &str| format!("[[rule]]\nid = {id}\n{fields}\naction = \"none\"\n");
    let later = |id: u32, circle: &str, own: u32| {
        format!(
            "`after` refers to rule {id}{circle}, which is evaluated later than rule {own}: rules are evaluated in the order \
             of their ids"
        )
    };
    let many: Vec<String> = (1..=MAX_AFTER + 1).map(|id| id.to_string()).collect();
    let many = format!("after = [{}]", many.join(", "));
    let known: String = (1..=MAX_AFTER as u32 + 1).map(|id| rule(id, "port = 1")).collect();
    for (text, expected) in [
        (rule(1, "after = 7"), "1:1: `after` has the id 7, which no rule has".to_owned()),
        (rule(1, "") + &rule(2, "not.after = [1, 9]"), "5:1: `after` has the id 9, which no rule has".to_owned()),
        (rule(1, "after = 1"), "1:1: `after` has the rule's own id 1".to_owned()),
        (rule(1, "after = 2") + &rule(2, ""), format!("1:1: {}", later(2, "", 1))),
        (rule(1, "after = 2") + &rule(2, "after = 1"), format!("1:1: {}", later(2, " in a circle", 1))),
        (
            rule(1, "after = 3") + &rule(2, "after = 1") + &rule(3, "after = 2"),
            format!("1:1: {}", later(3, " in a circle", 1)),
        ),
        (rule(1, "after = 0"), "3:9: 0 is not in 1 to 4294967295".to_owned()),
        (rule(1, "after = []"), "3:9: the list is empty: no packet has one of no values".to_owned()),
        (
            rule(1, "") + &rule(2, "after = 1\nnot.after = 1"),
            "5:1: a rule has `after` or `not.after` once: give another rule the second one".to_owned(),
        ),
        (
            known + &rule(100, &many),
            format!(
                "25:1: `after` has {} ids, more than {MAX_AFTER}: give some of them to a rule with action = \"none\", and \
                 name that rule here",
                MAX_AFTER + 1
            ),
        ),
        (
            "[[rule]]\nid = 1\naction = \"drop\"\n".to_owned() + &rule(2, "after = 1"),
            "4:1: no packet can hit this rule: a packet that hits rule 1 is not compared with later rules; give it \
             then = \"continue\""
                .to_owned(),
        ),
    ] {
        assert_eq!(mistakes(&text), [expected], "{text}");
    }
    // An exact-match rule may have any id, and a rule that is made of a packet goes on.
    let exact = "[[exact]]\nid = 9\nsrc = \"192.0.2.1\"\naction = \"none\"\n";
    RuleSet::parse(&(rule(1, "after = 9") + exact)).unwrap();
    let insert = "[[rule]]\nid = 1\naction = \"pass\"\ninsert = { action = \"none\" }\n".to_owned();
    RuleSet::parse(&(insert + &rule(2, "after = 1"))).unwrap();
    // A rule of words is added to others, which have the ids that it asks for.
    let added = Rule::from_words("id=9 after=7,8 action=drop").unwrap();
    assert_eq!(added.asked_hits().collect::<Vec<u32>>(), [7, 8]);
    let alone = RuleSet { rules: vec![added], ..RuleSet::default() };
    alone.check().unwrap();
    alone.check_hits(|id| id < 9).unwrap();
    assert_eq!(
        listed(alone.check_hits(|id| id == 7).unwrap_err()),
        ["0:0: rule 9: `after` has the id 8, which no rule has"]
    );
    // Rules of probes have names, and no ids.
    let error =
        RuleSet::parse_conditions("[[rule]]\nname = \"a\"\nafter = 1\n", "probe.toml".as_ref()).unwrap_err();
    assert!(listed(error).contains(
        &"3:1: 'after' asks for hits of rules by their ids, and the rules here have none".to_owned()
    ));
}
