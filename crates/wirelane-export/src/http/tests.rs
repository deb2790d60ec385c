//! Lines of all log formats.

use wirelane_analysis::http::{Mark, Message, Transaction, fields};

use super::{LOG_FORMATS, Log, LogFormat};

fn transaction(target: &[u8], agent: &[u8]) -> Transaction {
    let start_ns = 1_776_273_597_123_456_789;
    let line = [b"GET ", target, b" HTTP/1.1"].concat();
    let request = Message {
        line: line.into(),
        method: b"GET"[..].into(),
        target: target.into(),
        minor: 1,
        fields: vec![
            (fields::HOST, b"www.example.org:8080"[..].into()),
            (fields::USER_AGENT, agent.into()),
            (4, b"Basic dTpw"[..].into()),
        ],
        head: 90,
        bytes: 90,
        start_ns,
        head_ns: start_ns,
        end_ns: start_ns + 1_000_000,
        ..Message::default()
    };
    let response = Message {
        status: 200,
        stated: Some(2326),
        fields: vec![(fields::CONTENT_TYPE, b"text/html; charset=utf-8"[..].into())],
        head: 100,
        body: 2326,
        bytes: 2426,
        start_ns: start_ns + 5_000_000,
        end_ns: start_ns + 42_500_000,
        ..Message::default()
    };
    Transaction {
        client: ("192.0.2.7".parse().unwrap(), 40_000),
        server: ("2001:db8::1".parse().unwrap(), 8080),
        vlan: Some(7),
        number: 3,
        request: Some(request),
        response: Some(response),
        informational: 0,
        marks: Default::default(),
    }
}

fn line(format: LogFormat, transaction: &Transaction, extra: &[Box<str>]) -> String {
    let mut out = Vec::new();
    format.line(&mut out, 9, transaction, extra);
    String::from_utf8(out).unwrap()
}

/// Battery: S6
#[test]
fn lines_are_those_of_the_servers() {
    let mut one = transaction(b"/a?b=c", b"curl/7.88");
    let common = "192.0.2.7 - - [15/Apr/2026:17:19:57 +0000] \"GET /a?b=c HTTP/1.1\" 200 2326";
    assert_eq!(line(LogFormat::Common, &one, &[]), format!("{common}\n"));
    assert_eq!(line(LogFormat::Combined, &one, &[]), format!("{common} \"-\" \"curl/7.88\"\n"));
    assert_eq!(line(LogFormat::CombinedUs, &one, &[]), format!("{common} \"-\" \"curl/7.88\" 42500\n"));
    assert_eq!(line(LogFormat::Nginx, &one, &[]), line(LogFormat::Combined, &one, &[]));
    assert_eq!(
        line(LogFormat::Vhost, &one, &[]),
        format!("www.example.org:8080 {common} \"-\" \"curl/7.88\"\n")
    );
    assert_eq!(
        line(LogFormat::Squid, &one, &[]),
        "1776273597.165     42 192.0.2.7 NONE/200 2426 GET http://www.example.org:8080/a?b=c - HIER_DIRECT/2001:db8::1 text/html\n"
    );
    assert_eq!(
        line(LogFormat::W3c, &one, &[]),
        "2026-04-15 17:19:57 2001:db8::1 GET /a b=c 8080 - 192.0.2.7 curl/7.88 - 200 0 0 42 2426 90 HTTP/1.1 www.example.org\n"
    );
    let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, &one, &[])).unwrap();
    assert_eq!(json["time"], "1776273597.123456789");
    assert_eq!((&json["ttfb_s"], &json["duration_s"]), (&"0.004000000".into(), &"0.042500000".into()));
    assert_eq!(json["marks"], serde_json::json!([]));
    assert!(!json.to_string().contains("Basic"), "nobody has asked for it");
    let extra = [Box::from("authorization")];
    let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, &one, &extra)).unwrap();
    assert_eq!(json["request_fields"], serde_json::json!([["authorization", "Basic dTpw"]]));
    for (_, format) in LOG_FORMATS {
        assert!(format == LogFormat::Json || !line(format, &one, &extra).contains("Basic"));
    }
    one.response = None;
    one.marks.set(Mark::NoResponse);
    assert!(line(LogFormat::Common, &one, &[]).ends_with("\"GET /a?b=c HTTP/1.1\" - -\n"));
    assert!(line(LogFormat::Squid, &one, &[]).contains(" NONE/000 0 GET "));
    one = transaction(b"/", b"");
    one.request = None;
    assert!(line(LogFormat::Combined, &one, &[]).ends_with("\"-\" 200 2326 \"-\" \"-\"\n"));
    assert!(line(LogFormat::Squid, &one, &[]).contains(" NONE error:no-request - "));
}

/// 256 hostile strings and some more: one transaction is one line, without a byte that moves a cursor or a column.
/// Battery: S6
#[test]
fn one_transaction_is_one_line_whatever_its_bytes() {
    let mut hostile: Vec<Vec<u8>> = (0..=255).map(|byte| vec![b'/', byte, b'x', byte]).collect();
    hostile.extend(
        [
            "\r\n127.0.0.1 - - [] \"GET /forged",
            "\u{1b}[2J",
            "\u{202e}gnp.exe",
            "\\\" 200 1 \"",
            "é\u{85}\u{2028}",
            "%0a",
        ]
        .map(|text| text.as_bytes().to_vec()),
    );
    hostile.push([0xc3, 0x28, 0xf0, 0x9f, 0x92, 0xed, 0xa0, 0x80].to_vec());
    for bytes in hostile {
        let one = transaction(&bytes, &bytes);
        for (name, format) in LOG_FORMATS {
            let line = line(format, &one, &[]);
            let body = line.strip_suffix('\n').unwrap();
            assert!(!body.bytes().any(|byte| byte < 0x20 || byte == 0x7f), "{name} {bytes:?}: {line:?}");
            assert!(!body.contains(['\u{85}', '\u{202e}', '\u{2028}']), "{name}: {line:?}");
            let words = body.split(' ').count();
            match format {
                LogFormat::Json => drop(serde_json::from_str::<serde_json::Value>(body).unwrap()),
                LogFormat::W3c => assert_eq!(words, 19, "{bytes:?}: {line:?}"),
                LogFormat::Squid => {
                    let words = body.split_whitespace().count();
                    assert_eq!(words, 10, "{bytes:?}: {line:?}");
                }
                // Quotes without a backslash before them are those of the format.
                _ => {
                    let plain = body.replace("\\\\", "").replace("\\\"", "");
                    assert_eq!(plain.matches('"').count() % 2, 0, "{line:?}");
                    let wanted =
                        if matches!(format, LogFormat::Common | LogFormat::CommonUs) { 2 } else { 6 };
                    assert_eq!(plain.matches('"').count(), wanted, "{line:?}");
                }
            }
        }
    }
}

#[test]
fn escapes_are_apaches() {
    let one = transaction(b"/", b"\"\\\x08\n\r\t\x0b\x00\x1b\x7f\xc3\xa9 ~");
    let line = line(LogFormat::Combined, &one, &[]);
    assert!(line.ends_with("\"\\\"\\\\\\b\\n\\r\\t\\v\\x00\\x1b\\x7f\\xc3\\xa9 ~\"\n"), "{line}");
    let line = self::line(LogFormat::Nginx, &one, &[]);
    assert!(line.ends_with("\"\\x22\\x5C\\x08\\x0A\\x0D\\x09\\x0B\\x00\\x1B\\x7F\\xC3\\xA9 ~\"\n"), "{line}");
}

#[test]
fn an_empty_body_is_a_dash_and_0_for_nginx() {
    let mut one = transaction(b"/", b"curl");
    one.response.as_mut().unwrap().body = 0;
    assert!(line(LogFormat::Combined, &one, &[]).contains("\" 200 - \""));
    assert!(line(LogFormat::Nginx, &one, &[]).contains("\" 200 0 \""));
}

#[test]
fn logs_are_named_with_their_formats() {
    let log = Log::parse("combined:/var/log/a:b.log").unwrap();
    assert_eq!((log.format, log.path.to_str()), (LogFormat::Combined, Some("/var/log/a:b.log")));
    for (text, what) in [
        ("combined", "the format is missing"),
        ("apache:x", "'apache' is not a format"),
        ("json:", "there is no file"),
    ] {
        let error = Log::parse(text).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("combined-us, "), "{error}");
    }
}
