//! Fields of application protocols: payloads in which they are found, and others.

use super::patterns::decided;
use crate::{Action, Application, Condition, Rule, RuleSet, Test};

/// A condition, payloads in which it matches, and payloads in which it does not.
type Case = (&'static str, &'static [&'static [u8]], &'static [&'static [u8]]);

#[test]
fn application_fields_are_found_where_they_stand() {
    let cases: [Case; 9] = [
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
