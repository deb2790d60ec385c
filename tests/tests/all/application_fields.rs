//! Fields of HTTP, SIP and RTP in a record: those of tshark over the corpus.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::frames::{ethernet, udp};
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::{Capture, chosen, corpus, wirelane_binary};

/// Fields of a frame, by tshark's names: position and length in the frame, and value.
type Frame = BTreeMap<String, (u64, u64, String)>;

/// The fields that are compared.
const FIELDS: [&str; 13] = [
    "http.request.method",
    "http.response.code",
    "http.host",
    "sip.Method",
    "sip.Status-Code",
    "sip.From",
    "sip.To",
    "sip.Via",
    "sip.Call-ID",
    "sdp.version",
    "rtp.p_type",
    "rtp.seq",
    "rtp.ssrc",
];

/// The value of an attribute of a line of PDML, with its entities replaced.
fn attribute<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

fn plain(text: &str) -> String {
    text.replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&#x27;", "'")
        .replace("&amp;", "&")
}

/// The fields of each frame that tshark finds, of its first message of each protocol; frame by frame, without
/// reassembly.
fn by_tshark(file: &Path) -> BTreeMap<u64, Frame> {
    let mut command = Command::new("tshark");
    for option in [
        "tcp.desegment_tcp_streams:FALSE",
        "ip.defragment:FALSE",
        "ipv6.defragment:FALSE",
        "http.decompress_body:FALSE",
    ] {
        command.args(["-o", option]);
    }
    command
        .args([
            "--enable-heuristic",
            "rtp_udp",
            "-n",
            "-T",
            "pdml",
            "-Y",
            "http || sip || rtp",
            "-J",
            "frame http sip sdp rtp",
            "-r",
        ])
        .arg(file);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut frames, mut number) = (BTreeMap::<u64, Frame>::new(), 0);
    for line in text.lines() {
        let Some(name) = attribute(line, "name") else { continue };
        let show = plain(attribute(line, "show").unwrap_or_default());
        if name == "frame.number" {
            number = show.parse().unwrap();
        } else if FIELDS.contains(&name) {
            let at = |name| attribute(line, name).and_then(|number| number.parse().ok()).unwrap_or(0);
            let field = (at("pos"), at("size"), show);
            frames.entry(number).or_default().entry(name.to_owned()).or_insert(field);
        }
    }
    frames
}

/// The fields of each packet that Wirelane finds.
fn by_wirelane(file: &Path) -> BTreeMap<u64, Value> {
    let words = ["packets", "--application", "--json", "-r"];
    let output = Command::new(wirelane_binary().unwrap()).args(words).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let objects = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let packets = objects.filter(|object| object.get("record").is_some_and(|record| record == "packet"));
    let numbered = (1..).zip(packets);
    numbered.filter_map(|(number, packet)| Some((number, packet.get("application")?.clone()))).collect()
}

/// Whether Wirelane has found the same field.
fn is_same(application: &Value, name: &str, (position, length, shown): &(u64, u64, String)) -> bool {
    let number = |key: &str| application.get(key).and_then(Value::as_u64);
    let (protocol, _) = name.split_once('.').unwrap();
    let protocol = if protocol == "sdp" { "sip" } else { protocol };
    if application["protocol"] != protocol {
        return false;
    }
    let span = |key: &str| {
        // A field of tshark is a line with its end.
        let Some(span) = application.get(key) else { return false };
        let (offset, size) = (span["offset"].as_u64().unwrap(), span["length"].as_u64().unwrap());
        *position <= offset && offset + size <= position + length && size == shown.len() as u64
    };
    match name {
        "http.request.method" | "sip.Method" => {
            application.get("method").is_some_and(|method| method == shown)
        }
        "http.response.code" | "sip.Status-Code" => number("status") == shown.parse().ok(),
        "http.host" => span("host"),
        "sip.From" => span("from"),
        "sip.To" => span("to"),
        "sip.Via" => span("via"),
        "sip.Call-ID" => span("call_id"),
        "sdp.version" => number("sdp") == Some(*position),
        "rtp.p_type" => number("payload_type") == shown.parse().ok(),
        "rtp.seq" => number("sequence") == shown.parse().ok(),
        "rtp.ssrc" => number("ssrc") == u64::from_str_radix(shown.trim_start_matches("0x"), 16).ok(),
        _ => false,
    }
}

/// Captures with frames of which tshark has fields and Wirelane none: their number, and why.
const WITHOUT: [(&str, u64, &str); 13] = [
    ("ipfixprobe--sip", 5, "within ICMP errors"),
    ("ndpi--http_origin_different_than_host", 2, "within GTP"),
    ("suricata--http-data-after-09", 1, "a request without a version"),
    ("suricata--http-evader-http-evader-464", 1, "status 700"),
    ("suricata--http-protocol-nodup", 1, "a head that continues"),
    ("suricata--http1-noint-status", 1, "status 2XX"),
    ("zeek--content-length-in-request-body", 2, "a body that begins with POST"),
    ("zeek--http-11-request-then-cruft", 1, "a head that continues"),
    ("zeek--http-inner-transfer-encoding-reproducer", 1, "a body that begins with POST"),
    ("zeek--http_09", 1, "a request without a target"),
    ("zeek--interleaved-http-entity", 1, "a head that continues"),
    ("zeek--no-uri", 1, "a request without a target"),
    ("zeek--smuggle-http-request", 2, "a body that begins with POST"),
];

/// The captures of these categories that are compared, in the gate one in `parts`: tshark takes half a second to start.
fn captures(corpus: &Path, categories: &[&str], parts: usize) -> Vec<Capture> {
    let all = Capture::all(corpus).unwrap().into_iter();
    let of_these = all.filter(|capture| categories.contains(&capture.category.as_str()));
    of_these.enumerate().filter(|(number, _)| chosen(*number, parts)).map(|(_, capture)| capture).collect()
}

/// Battery: I10
#[test]
fn fields_of_the_corpus_are_those_of_tshark() {
    let Some(corpus) = corpus("fields_of_the_corpus_are_those_of_tshark") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, unordered) = (folder.path().join("capture"), folder.path().join("unordered"));
    let (mut fields, mut without) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, u64>::new());
    let captures = captures(&corpus, &["http", "voip"], 4);
    for capture in &captures {
        // Records are in the order of time.
        std::fs::write(&unordered, capture.bytes().unwrap()).unwrap();
        let ordered = Command::new("reordercap").args([&unordered, &file]).output().unwrap();
        assert!(ordered.status.success(), "{}: {ordered:?}", capture.id);
        let (theirs, ours) = (by_tshark(&file), by_wirelane(&file));
        // HTTP that begins in a frame depends on earlier frames for tshark; RTP does not.
        let mut others =
            ours.iter().filter(|(number, one)| one["protocol"] == "rtp" && !theirs.contains_key(number));
        assert_eq!(others.next(), None, "{}: tshark finds no RTP", capture.id);
        for (number, frame) in theirs {
            let Some(application) = ours.get(&number) else {
                *without.entry(capture.id.clone()).or_default() += 1;
                continue;
            };
            for (name, field) in frame {
                let same = is_same(application, &name, &field);
                assert!(same, "{} frame {number}: {name} {field:?} and {application}", capture.id);
                *fields.entry(name).or_default() += 1;
            }
        }
    }
    println!("{fields:?}");
    let expected = WITHOUT.iter().filter(|(id, ..)| captures.iter().any(|capture| capture.id == *id));
    let expected = expected.map(|(capture, frames, _)| ((*capture).to_owned(), *frames));
    assert_eq!(without, expected.collect());
    assert_eq!(fields.len(), FIELDS.len(), "{fields:?}");
}

/// Rules on header fields of SIP, and on hits of one another.
const SIP: &str = r#"
    [[rule]]
    id = 1
    protocol = "udp"
    sip-field = "Via"
    action = "none"

    [[rule]]
    id = 2
    after = 1
    sip-via = "/udp "
    action = "none"

    [[rule]]
    id = 3
    after = 1
    sip-status = "4xx"
    action = "none"

    [[rule]]
    id = 4
    after = 1
    sip-field = "Contact"
    action = "none"

    [[rule]]
    id = 5
    after = [2, 3]
    not.sip-field = "Contact"
    action = "none"
"#;

/// Battery: I10
#[test]
fn conditions_on_sip_and_on_earlier_hits_find_what_tshark_finds() {
    let Some(corpus) = corpus("conditions_on_sip_and_on_earlier_hits_find_what_tshark_finds") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, rule_file) = (folder.path().join("capture"), folder.path().join("rules.toml"));
    std::fs::write(&rule_file, SIP).unwrap();
    let mut total = [0; 5];
    for capture in captures(&corpus, &["voip"], 2) {
        std::fs::write(&file, capture.bytes().unwrap()).unwrap();
        let mut command = Command::new("tshark");
        command.args(["-n", "-o", "ip.defragment:FALSE", "-Y", "sip && udp && !icmp", "-T", "fields"]);
        command.args(["-e", "sip.Via", "-e", "sip.Status-Code", "-e", "sip.Contact", "-r"]).arg(&file);
        let output = command.output().unwrap();
        let mut expected = [0; 5];
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let [via, status, contact] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let (by_udp, failed) = (via.to_lowercase().contains("/udp "), status.starts_with('4'));
            let hits = [true, by_udp, failed, !contact.is_empty(), (by_udp || failed) && contact.is_empty()];
            for (number, hit) in expected.iter_mut().zip(hits) {
                *number += u64::from(hit && !via.is_empty());
            }
        }
        let mut command = Command::new(wirelane_binary().unwrap());
        command.args(["count", "--json", "--rules"]).arg(&rule_file).arg("-r").arg(&file);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let lines = last["rule_stats"]["rules"].as_array().unwrap();
        let found: Vec<u64> = lines.iter().map(|line| line["hits"]["packets"].as_u64().unwrap()).collect();
        assert_eq!(found, expected, "{}", capture.id);
        total.iter_mut().zip(expected).for_each(|(sum, number)| *sum += number);
    }
    println!("{total:?}");
    assert!(total.iter().all(|number| *number > 0), "{total:?}");
}

/// A TCP segment in an Ethernet frame.
fn segment(payload: &[u8]) -> Vec<u8> {
    let mut packet = udp([192, 0, 2, 1], [192, 0, 2, 2], (4000, 80), &[&[0; 12], payload].concat());
    packet[9] = 6;
    // Behind the ports: sequence numbers, a header of 20 bytes, ACK.
    packet[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
    packet[32..40].copy_from_slice(&[0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    ethernet(0x0800, &packet)
}

/// Frames with messages of each protocol.
fn frames() -> [Vec<u8>; 6] {
    let datagram =
        |payload: &[u8]| ethernet(0x0800, &udp([192, 0, 2, 1], [192, 0, 2, 2], (5060, 5060), payload));
    let rtp = |first: u8, extension: &[u8]| {
        let header = [first, 0x88, 0x12, 0x34, 0xff, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef];
        datagram(&[&header[..], extension, &[0x55; 40]].concat())
    };
    [
        datagram(b"INVITE sip:b@b SIP/2.0\r\nVia: SIP/2.0/UDP a\r\nFROM: <sip:a@a>;tag=1\r\nTo: b\r\nCall-ID:47@a\r\n\r\nFrom: c"),
        datagram(b"SIP/2.0 486 Busy Here\r\nVia: x\r\nCall-Id: 12345678\r\nX-From: a\r\n\r\nFrom: b"),
        segment(b"GET /a HTTP/1.1\r\nUser-Agent: b\r\nHost: www.example.com\r\n\r\n"),
        segment(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\nHost: c"),
        rtp(0x80, &[]),
        rtp(0x92, &[0, 0, 0, 1, 0, 0, 0, 2, 0xbe, 0xde, 0, 1, 1, 2, 3, 4]),
    ]
}

#[test]
fn packets_shows_the_fields_of_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("capture.pcap");
    let mut output = std::fs::File::create(&path).unwrap();
    write_header(&mut output).unwrap();
    for (number, frame) in (1..).zip(frames()) {
        write_packet(&mut output, number * 1000, &frame).unwrap();
    }
    let mut command = Command::new(wirelane_binary().unwrap());
    let output = command.args(["packets", "--application", "-r"]).arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let shown: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" bytes")?.1)).collect();
    let expected = [
        " sip INVITE head 42 from 92+15 to 113+1 via 71+13 call-id 124+4",
        " sip 486 head 42 via 70+1 call-id 82+8",
        " http GET head 54 host 92+15",
        " http 404 head 54 body 99",
        " rtp type 8 marker seq 4660 time 4278190081 ssrc 0xdeadbeef payload 54",
        " rtp type 8 marker seq 4660 time 4278190081 ssrc 0xdeadbeef payload 70",
    ];
    assert_eq!(shown, expected, "{text}");
}
