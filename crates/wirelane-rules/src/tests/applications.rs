//! Fields of application protocols: payloads in which they are found, and others.

use wirelane_bpf::rules::evaluated_flags;
use wirelane_bpf::search::MAX_OUTPUTS;

use super::patterns::decided;
use crate::{Action, Application, Condition, Rule, RuleSet, Test};

/// A condition, payloads in which it matches, and payloads in which it does not.
type Case = (&'static str, &'static [&'static [u8]], &'static [&'static [u8]]);

#[test]
fn application_fields_are_found_where_they_stand() {
    let cases: [Case; 12] = [
        (
            "http-method = [\"GET\", \"CONNECT\"]",
            &[b"GET / HTTP/1.1\r\n", b"GET http://a/ HTTP/1.1\r\n", b"CONNECT a:443 HTTP/1.1\r\n"],
            &[
                b" GET / HTTP/1.1\r\n",
                b"get / HTTP/1.1\r\n",
                b"GETS / HTTP/1.1\r\n",
                b"POST /GET / \r\n",
                b"",
            ],
        ),
        (
            "http-host = \"www.\"",
            &[b"GET / HTTP/1.1\r\nHost: www.a\r\n", b"GET / HTTP/1.1\r\nA: b\r\nhost:WWW.b\r\n"],
            &[b"GET / HTTP/1.1\r\nHost: a.www.\r\n", b"GET /?Host: www. HTTP/1.1\r\n"],
        ),
        (
            "http-status = 404",
            &[b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.0 404\r\n"],
            &[b"HTTP/1.1 403 No\r\n"],
        ),
        (
            "http-status = [\"4xx\", 500]",
            &[b"HTTP/1.1 404 Not Found\r\n", b"HTTP/1.1 500 \r\n"],
            &[b"HTTP/1.1 501 \r\n", b"HTTP/2 404 \r\n"],
        ),
        (
            "sip-method = \"OPTIONS\"",
            &[b"OPTIONS sip:a@b SIP/2.0\r\n", b"OPTIONS tel:1 SIP/2.0\r\n"],
            &[b"OPTIONS * HTTP/1.1\r\n", b"INVITE sip:a@b SIP/2.0\r\n"],
        ),
        (
            "sip-call-id = \"a84b@pc\"",
            &[b"BYE sip:a SIP/2.0\r\nCall-ID: a84b@pc\r\n", b"BYE sip:a SIP/2.0\r\ni:A84B@pc\r\n"],
            &[b"BYE sip:a SIP/2.0\r\nCall-ID: a84b@pc1\r\n", b"BYE sip:a SIP/2.0\r\nX-i: a84b@pc\r\n"],
        ),
        (
            "sip-from = \"alice@example.com\"",
            &[
                b"INVITE sip:b@b SIP/2.0\r\nVia: x\r\nFrom: \"A\" <sip:alice@example.com>;tag=1\r\n\r\n",
                b"SIP/2.0 200 OK\r\nf:sip:ALICE@example.com",
                b"BYE tel:1 SIP/2.0\nFROM :alice@example.com\n",
                b"ACK sips:b SIP/2.0\r\nf\t: \"A\"\r\n <sip:alice@example.com>\r\n",
                b"MESSAGE sip:b SIP/2.0\r\nVia: x\r\n \r\nFrom: b\r\n\t\"A\"\r\n\t<sip:alice@example.com>\r\n",
            ],
            &[
                b"INVITE sip:alice@example.com SIP/2.0\r\nFrom: b\r\nTo: <sip:alice@example.com>\r\n\r\n",
                b"INVITE sip:b SIP/2.0\r\nFrom: b\r\n\r\nFrom: alice@example.com\r\n",
                b"INVITE sip:b SIP/2.0\nFrom: b\n\nFrom: alice@example.com\n",
                b"INVITE sip:b SIP/2.0\r\nX-From: alice@example.com\r\n",
                b"INVITE sip:b SIP/2.0\r\nFrom: b\r\nVia: x\r\n alice@example.com\r\n",
                b"INVITE sip:b SIP/2.0\r\nFrom: alice@exam\r\n ple.com\r\n",
                b"GET / HTTP/1.1\r\nFrom: alice@example.com\r\n\r\n",
                b" INVITE sip:b SIP/2.0\r\nFrom: alice@example.com\r\n\r\n",
                b"LOCK sip:b SIP/2.0\r\nFrom: alice@example.com\r\n\r\n",
            ],
        ),
        // The end of a field's name is not part of its value.
        (
            "sip-to = [\"o:\", \"Bob B\", \"\u{e4}\"]",
            &[
                b"SIP/2.0 180 Ringing\r\nTo: \"Bob B.\" <sip:b>\r\n",
                b"SIP/2.0 180 \r\nt: <foo:b>\r\n",
                b"SIP/2.0 180 \r\nt:\xc3\xa4",
            ],
            &[b"SIP/2.0 180 Ringing\r\nTo: \"Bobb\"\r\nFrom: Bob B\r\n", b"SIP/2.0 180 \r\nt:\r\n", b"SIP/2.0 180 \r\nTo:"],
        ),
        (
            "sip-via = \"proxy.example\"",
            &[
                b"BYE sip:a SIP/2.0\r\nVia: SIP/2.0/UDP a\r\nVia: SIP/2.0/UDP Proxy.example:5060;branch=1\r\n",
                b"SIP/2.0 200 OK\r\nv:SIP/2.0/UDP a,\r\n SIP/2.0/TCP proxy.example\r\n",
            ],
            &[
                b"BYE sip:proxy.example SIP/2.0\r\nVia: a\r\nRoute: <sip:proxy.example>\r\n",
                b"BYE sip:a SIP/2.0\r\nVia: a\r\n\r\nVia: proxy.example\r\n",
                b"BYE sip:a SIP/2.0\r\nFrom: proxy.example\r\nVia: a\r\nTo: proxy.example\r\n",
            ],
        ),
        (
            "sip-status = [486, \"6xx\"]",
            &[b"SIP/2.0 486 Busy Here\r\n", b"SIP/2.0 603 Decline\r\n"],
            &[b"SIP/2.0 487 \r\n", b"HTTP/1.1 486 \r\n", b"BYE sip:a SIP/2.0 486\r\n"],
        ),
        (
            "sip-field = [\"call-id\", \"Max-Forwards\"]",
            &[
                b"BYE sip:a SIP/2.0\r\nVia:\r\nCall-ID: a\r\n",
                b"BYE sip:a SIP/2.0\nI\t: a\n",
                b"SIP/2.0 200 OK\r\nFrom: a\r\n b\r\nmax-forwards :70\r\n\r\n",
            ],
            &[
                b"BYE sip:a SIP/2.0\r\nVia: Call-ID: a\r\n\r\nCall-ID: a\r\n",
                b"BYE sip:a SIP/2.0\r\nVia: a\r\n Call-ID: a\r\nX-Call-ID: a\r\nCall-ID  : a\r\n",
                b"GET / HTTP/1.1\r\nCall-ID: a\r\n",
                b"Call-ID: a\r\nBYE sip:a SIP/2.0\r\nMax-Forwards: 70\r\n",
            ],
        ),
        (
            "rtp-type = [\"0-8\", 101]",
            &[&[0x80, 0x00, 0, 1], &[0x90, 0x88, 0], &[0xbf, 0xe5]],
            &[&[0x80, 9], &[0x40, 0], &[0xc0, 0], &[0x00, 0x80, 0x00], &[0x80]],
        ),
    ];
    for (field, found, others) in cases {
        let set = RuleSet::parse(&format!("[[rule]]\nid = 1\n{field}\naction = \"drop\"\n")).unwrap();
        let shown = set.rules[0].conditions[0].to_string();
        for (payloads, expected) in [(found, 1), (others, 0)] {
            for payload in payloads {
                let evaluated = decided(&set, payload, payload.len());
                assert_eq!(
                    (evaluated.rule_id, evaluated.pattern),
                    (expected, [0; 4]),
                    "{shown}: {payload:?}"
                );
            }
        }
    }
}

#[test]
fn mistakes_in_application_fields_are_named() {
    for (field, expected) in [
        ("http-method = \"get\"", "3:15: 'get' is not a method: methods have capital letters, like GET"),
        ("http-host = \"\"", "3:13: '' is not 1 to 100 letters without blanks"),
        ("http-status = 600", "3:15: '600' is not a status: expected 404, or \"4xx\" for the class"),
        ("http-status = \"4x\"", "3:15: '4x' is not a status: expected 404, or \"4xx\" for the class"),
        ("rtp-type = 128", "3:12: 128 is not in 0 to 127"),
        ("sip-call-id = []", "3:15: the list is empty: no packet has one of no values"),
        ("sip-from = \"a\\nb\"", "3:12: 'a\\nb' is not 1 to 100 letters of one line"),
        ("sip-status = 700", "3:14: '700' is not a status: expected 404, or \"4xx\" for the class"),
        ("sip-field = \"a b\"", "3:13: 'a b' is not the name of a header field, like Max-Forwards"),
        ("sip-to = []", "3:10: the list is empty: no packet has one of no values"),
        ("http-method = true", "3:15: this is true or false, not a string: write it in quotes"),
    ] {
        let error = RuleSet::parse(&format!("[[rule]]\nid = 1\n{field}\naction = \"drop\"\n")).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let condition = Condition::is(Test::Application(Application::RtpType(vec![100..=200])));
    let rule = Rule { conditions: vec![condition], ..Rule::new(1, Action::Drop) };
    let error = RuleSet { rules: vec![rule], ..RuleSet::default() }.check().unwrap_err();
    assert!(error.to_string().contains("payload types of RTP are 0 to 127, in order"), "{error}");
}

/// Each line of a head is two ends of patterns (the line's, the field's), and their number in a packet is limited: what
/// is behind is not found, and the packet is marked.
#[test]
fn ten_thousand_lines_of_via_are_searched_up_to_the_limit() {
    let set = RuleSet::parse("[[rule]]\nid = 1\nsip-via = \"last\"\naction = \"drop\"\n").unwrap();
    let message = |lines: usize| format!("BYE sip:a SIP/2.0\r\n{}Via:last\r\n", "Via:a\r\n".repeat(lines));
    let half = |lines: usize| {
        let message = message(lines);
        let evaluated = decided(&set, message.as_bytes(), message.len());
        (evaluated.rule_id, evaluated.flags & evaluated_flags::HALF != 0)
    };
    // The beginning is one end, the end of the first line another one; the text follows the last name.
    let most = (MAX_OUTPUTS - 5) / 2;
    assert_eq!(half(most), (1, false));
    assert_eq!(half(10_000), (0, true));
}
