//! Scenes of the tests: generated calls and transactions, and the program's output for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::numbers::column;
use wirelane_tests::wirelane_binary;

pub const ALICE: &str = "192.0.2.1:5060";
pub const BOB: &str = "192.0.2.2:5060";
pub const CAROL: &str = "[2001:db8::1]:40000";
pub const DAN: &str = "[2001:db8::2]:5060";
pub const FROM: &str = "From: \"Alice\" <sip:alice@example.com>;tag=a";
pub const TO: &str = "To: <sip:bob@example.org>";
pub const ANSWERED: &str = "To: <sip:bob@example.org>;tag=b";
pub const INVITE: &str = "INVITE sip:bob@example.org SIP/2.0";

pub fn head<'a>(id: &'a str, to: &'a str, cseq: &'a str) -> [&'a str; 4] {
    [FROM, to, id, cseq]
}

/// An answered call with 500 RTP sequence numbers in each direction, some of them lost, and a fragmented INVITE.
pub fn answered(scene: &mut Scene) {
    let id = "Call-ID: answered/../@example.com";
    let offer = message(INVITE, &head(id, TO, "CSeq: 1 INVITE"), &description("192.0.2.1", 6000));
    scene.fragmented(0, ALICE, BOB, &offer, 200);
    let answers = head(id, ANSWERED, "CSeq: 1 INVITE");
    scene.udp(100_000, BOB, ALICE, &message("SIP/2.0 180 Ringing", &answers, ""));
    scene.udp(1_000_000, BOB, ALICE, &message("SIP/2.0 200 OK", &answers, &description("192.0.2.2", 7000)));
    let acknowledged = message("ACK sip:bob SIP/2.0", &head(id, ANSWERED, "CSeq: 1 ACK"), "");
    scene.udp(1_050_000, ALICE, BOB, &acknowledged);
    for number in 0..500 {
        let at = 1_100_000 + number * 20_000;
        if !(100..110).contains(&number) {
            scene.udp(at, "192.0.2.1:6000", "192.0.2.2:7000", &rtp(number, 1));
        }
        scene.udp(at + 5_000, "192.0.2.2:7000", "192.0.2.1:6000", &rtp(number, 2));
    }
    let report = [0x81c9_0007u32, 99, 1, 0x0500_000a, 500, 80, 0, 0];
    let report: Vec<u8> = report.into_iter().flat_map(u32::to_be_bytes).collect();
    scene.udp(6_000_000, "192.0.2.2:7001", "192.0.2.1:6001", &report);
    scene.udp(
        11_500_000,
        ALICE,
        BOB,
        &message("BYE sip:bob SIP/2.0", &head(id, ANSWERED, "CSeq: 2 BYE"), ""),
    );
    scene.udp(11_510_000, BOB, ALICE, &message("SIP/2.0 200 OK", &head(id, ANSWERED, "CSeq: 2 BYE"), ""));
}

/// Two calls over one TCP connection whose messages share segments: one refused, one cancelled.
pub fn by_tcp(scene: &mut Scene) {
    let lines = |id: &'static str, cseq: &'static str| {
        ["f: <sip:carol@example.com>;tag=c", "t: <sip:dan@example.org>;tag=d", id, cseq]
    };
    let begin = |id| {
        let lines = ["f: <sip:carol@example.com>;tag=c", "t: <sip:dan@example.org>", id, "CSeq: 9 INVITE"];
        message("INVITE sip:dan@example.org SIP/2.0", &lines, &description("2001:db8::1", 6000))
    };
    let (one, other) = ("i: refused@example.com", "i: given-up@example.com");
    let asked = [begin(one), begin(other)].concat();
    let mut seq = 1;
    for (number, part) in asked.chunks(300).enumerate() {
        scene.tcp(2_000_000 + number as u64, CAROL, DAN, seq, part);
        seq += part.len() as u32;
    }
    let answers = [
        message("SIP/2.0 180 Ringing", &lines(other, "CSeq: 9 INVITE"), ""),
        message("SIP/2.0 486 Busy Here", &lines(one, "CSeq: 9 INVITE"), ""),
    ];
    scene.tcp(3_000_000, DAN, CAROL, 77, &answers.concat());
    let cancel = message("CANCEL sip:dan@example.org SIP/2.0", &lines(other, "CSeq: 9 CANCEL"), "");
    scene.tcp(4_000_000, CAROL, DAN, seq, &cancel);
}

pub fn scene(folder: &Path) -> PathBuf {
    let mut scene = Scene::new();
    answered(&mut scene);
    by_tcp(&mut scene);
    for number in 0..20 {
        scene.udp(20_000_000 + number * 20_000, "192.0.2.9:9000", "192.0.2.8:9002", &rtp(number, 7));
    }
    // More than an hour after the others, and so in another file.
    let (id, late) = ("Call-ID: late@example.com", 3_700_000_000);
    scene.udp(late, ALICE, BOB, &message(INVITE, &head(id, TO, "CSeq: 1 INVITE"), ""));
    scene.udp(
        late + 90_000,
        BOB,
        ALICE,
        &message("SIP/2.0 486 Busy Here", &head(id, TO, "CSeq: 1 INVITE"), ""),
    );
    let file = folder.join("calls.pcap");
    scene.write(&file).unwrap();
    file
}

pub fn ask(store: &Path, words: &[&str]) -> Vec<Value> {
    let output = Command::new(wirelane_binary().unwrap())
        .args(["query", "--json", "--store", store.to_str().unwrap()])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Seconds with nine decimals, as nanoseconds.
pub fn ns(value: &Value) -> u64 {
    value.as_str().unwrap().replace('.', "").parse().unwrap()
}

/// Names and values; numbers are normalised, so that equal ones compare equal in any notation.
pub fn words(row: impl IntoIterator<Item = (String, Value)>) -> BTreeMap<String, String> {
    let word = |value: Value| value.as_f64().map_or_else(|| value.to_string(), |number| number.to_string());
    row.into_iter().map(|(name, value)| (name, word(value))).collect()
}

/// A row of the store without its time columns, which are checked here against the folder and the numbers.
pub fn stored(row: &Value) -> BTreeMap<String, String> {
    let mut row = row.as_object().unwrap().clone();
    let end = column(&json!(row), "start_ns") + column(&json!(row), "duration_ns");
    let [_, end_time, date, hour] =
        ["start_time", "end_time", "date", "hour"].map(|name| row.remove(name).unwrap());
    assert!(end_time.as_str().unwrap().starts_with(date.as_str().unwrap()), "{end_time} {date}");
    assert_eq!(hour.as_u64(), Some(end / 3_600_000_000_000 % 24), "{end_time}");
    row.retain(|name, _| !["probe", "schema_version"].contains(&name.as_str()));
    words(row)
}

pub fn sorted<T: Ord>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort();
    rows
}

pub fn head_of(id: &str) -> [&str; 4] {
    head(id, TO, "CSeq: 1 INVITE")
}

/// Transactions of many kinds: answered, unanswered, and with bytes that are not text.
pub fn web(folder: &Path) -> PathBuf {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let mut at = 0u32;
    for (port, exchanges) in [
        (
            40_000u16,
            &[
                (&b"GET /a HTTP/1.1\r\nHost: one\r\nUser-Agent: \xff\xfe\"'\x1b[2J\r\nCookie: secret\r\n\r\n"[..],
                 &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Type: text/plain\r\n\r\nhello"[..]),
                (b"POST /b HTTP/1.1\r\nHost: two\r\nContent-Length: 3\r\n\r\nabc",
                 b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwhat\r\n0\r\n\r\n"),
            ][..],
        ),
        (40_001, &[(b"BREW /pot HTTP/1.0\r\n\r\n", b"HTTP/1.0 503 No\r\nContent-Length: 0\r\n\r\n")]),
        (40_002, &[(b"GET /unanswered HTTP/1.1\r\nHost: one\r\n\r\n", b"")]),
    ] {
        let (mut seqs, ends) = ([100u32, 500], [([192, 0, 2, 1], port), ([192, 0, 2, 2], 8080)]);
        for (dir, text) in exchanges.iter().flat_map(|(request, response)| [(0, *request), (1, *response)]) {
            if text.is_empty() {
                continue;
            }
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
            frame.extend((40 + text.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
            let (from, to): (([u8; 4], u16), ([u8; 4], u16)) = (ends[dir], ends[1 - dir]);
            frame.extend(from.0.iter().chain(&to.0));
            frame.extend(from.1.to_be_bytes().iter().chain(&to.1.to_be_bytes()));
            frame.extend(u32::to_be_bytes(seqs[dir]).iter().chain(&u32::to_be_bytes(seqs[1 - dir])));
            frame.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
            frame.extend(text);
            seqs[dir] += text.len() as u32;
            at += 1;
            let header = [1_700_000_000 + at / 10, at % 10 * 2_000, frame.len() as u32, frame.len() as u32];
            pcap.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
        }
    }
    let file = folder.join("web.pcap");
    fs::write(&file, pcap).unwrap();
    file
}
