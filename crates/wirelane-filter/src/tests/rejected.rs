//! Invalid expressions: each is rejected, and the error has the position and the reason.

use std::collections::BTreeMap;

use super::super::{FileFilter, Filter, LONGEST, Origin};
use super::generated::{link_of_name, table};
use crate::Error;
use wirelane_bpf::linktype;

/// Position and reason of the error of an expression that does not compile.
fn refused(expression: &str, link: u32, origin: Origin) -> (usize, String, String) {
    match Filter::of(expression, link, origin) {
        Ok(_) => panic!("{expression:?} was accepted"),
        Err(Error { expression: named, at, reason }) => {
            assert_eq!(named, expression);
            let shown = Error { expression: named, at, reason: reason.clone() }.to_string();
            (at, reason, shown)
        }
    }
}

/// `^` marks the position in the line above it.
#[test]
fn the_error_is_where_the_mistake_is() {
    let cases = [
        ("tcp prot 80", "    ^", "syntax error"),
        ("prt 80", "^", "syntax error"),
        ("tcp port", "        ^", "syntax error"),
        ("tcp port 99999", "         ^", "99999"),
        ("tcp port 80 and", "               ^", "syntax error"),
        ("tcp and and udp", "        ^", "syntax error"),
        ("(tcp port 80 or udp", "                   ^", "syntax error"),
        ("tcp port 80)", "           ^", "syntax error"),
        ("host 1.2.3.4 or (udp and prt 5)", "                         ^", "syntax error"),
        ("net 10.0.0.0/33", "    ^", "must be <= 32"),
        ("ip6 net fe80::/129", "        ^", ""),
        ("net 1.2.3.4/24", "    ^", "non-network bits set"),
        ("host 1.2.3.4/24", "     ^", ""),
        ("ether host 1:2:3", "           ^", ""),
        ("tcp[13:3] = 1", "    ^", "data size must be 1, 2, or 4"),
        ("tcp[13 = 2", "       ^", "syntax error"),
        ("vlan 4096", "     ^", "4096"),
        ("mpls 1048576", "     ^", "1048576"),
        ("ip proto nosuchproto", "         ^", ""),
        ("tcp port nosuchport", "         ^", "nosuchport"),
        ("udp portrange 5-", "              ^", ""),
        ("ether proto 0x800 and 08", "                      ^", ""),
        ("len > 1 = 2", "        ^", "syntax error"),
        ("tcp & udp", "    ^", ""),
        ("1", " ^", ""),
        ("port 80 port 90", "        ^", "syntax error"),
        ("src dst 1.2.3.4", "    ^", "syntax error"),
        ("tcp\u{0}udp", "   ^", "zero byte"),
        ("tcp or w\u{e4}hrend", "       ^", ""),
        ("ip and arp", "", "no packet can be all of this"),
    ];
    let mut wrong = Vec::new();
    for (expression, mark, reason) in cases {
        let (at, said, shown) = refused(expression, linktype::ETHERNET, Origin::Live);
        let expected = if mark.is_empty() { at } else { mark.len() - 1 };
        if at != expected || !said.contains(reason) {
            wrong.push(format!("{expression:?}: at {at}, not {expected}, {said:?}, not {reason:?}"));
        }
        assert!(shown.contains(&said) && shown.contains('^'), "{shown}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_too_long_is_not_given_to_libpcap() {
    let fits = format!("tcp{}", " or tcp".repeat((LONGEST - 3) / 7));
    assert!(Filter::of(&fits, linktype::ETHERNET, Origin::Live).is_ok());
    let long = format!("{fits} or tcp");
    let (at, reason, shown) = refused(&long, linktype::ETHERNET, Origin::Live);
    assert_eq!(at, 0);
    assert_eq!(reason, format!("it has {} bytes, more than {LONGEST}", long.len()));
    assert!(shown.len() < 300, "{shown}");
    // The maximum nesting, which needs stack in libpcap.
    let deep = format!("{}tcp{}", "(".repeat(4000), ")".repeat(4000));
    assert!(deep.len() < LONGEST);
    if let Err(error) = Filter::of(&deep, linktype::ETHERNET, Origin::Live) {
        assert!(matches!(error, Error { .. }));
    }
}

#[test]
fn an_empty_expression_wants_everything() {
    for expression in ["", " ", "\t\n "] {
        let filter = Filter::compile(expression, linktype::ETHERNET).unwrap();
        assert!(filter.accepts(&[], 0, false) && filter.accepts(&[0; 60], 60, true));
        assert_eq!(FileFilter::compile(expression).unwrap().expression(), "");
    }
}

/// All expressions that libpcap's own tests reject. This libpcap is older and may accept some of them: then we do too.
#[test]
fn what_libpcaps_own_tests_refuse_is_refused_with_its_place() {
    let what = "what_libpcaps_own_tests_refuse_is_refused_with_its_place";
    let Some(table) = table(what, "libpcap-reject.json") else { return };
    // Expected positions for messages of libpcap that do not contain a word of the expression.
    let places = BTreeMap::from([
        ("wlan subtype 0", "wlan subtype 0".find('0').unwrap()),
        ("pppoed 1234", 7),
        ("net 10 mask 255.0.0.0", 7),
        ("dst gateway host.invalid.", 4),
        ("src proto 1", 4),
        ("dst proto \\tcp", 4),
        ("src protochain 1", 4),
        ("vlan any", 5),
        ("link host $x", 10),
        ("link[0:-1] != 0", 5),
        ("ip net 10.0.0.0/33", 7),
        ("tcp port 70000", 9),
        ("sctp portrange 70000-80000", 15),
    ]);
    let (mut rejected, mut pointed) = (0, 0);
    let mut wrong = Vec::new();
    for entry in &table {
        let link =
            entry["DLT"].as_str().map_or(1, |name| link_of_name(name).unwrap_or_else(|| panic!("{name}")));
        let expressions = entry["expr"]
            .as_str()
            .into_iter()
            .chain(entry["aliases"].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str));
        for expression in expressions {
            let Err(error) = Filter::of(expression, link, Origin::File) else {
                // Accepted by libpcap too, because the verdict is its own.
                continue;
            };
            let Error { at, reason, .. } = &error;
            rejected += 1;
            assert!(!reason.is_empty());
            let starts_word = *at == expression.len()
                || (*at < expression.len()
                    && !expression[*at..].starts_with(' ')
                    && expression.is_char_boundary(*at));
            if !starts_word {
                wrong.push(format!("{expression:?}: {at} is no word's start"));
            }
            if let Some(place) = places.get(expression) {
                pointed += 1;
                if at != place {
                    wrong.push(format!("{expression:?}: at {at}, not {place}: {reason}"));
                }
            }
            println!("{expression:30} at {at:2}: {reason}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!(
        "{rejected} expressions refused, each with its place, {pointed} of these places as written down here"
    );
    assert!(rejected > 60, "{rejected}");
    assert_eq!(pointed, places.len());
}
