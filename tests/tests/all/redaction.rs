//! Secrets of captured traffic do not appear in an output unless they are requested: credentials of HTTP and SIP,
//! cookies, dialled digits, speech.

use std::fs;
use std::path::Path;
use std::process::Command;

use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::recordings::{capinfos, files};
use wirelane_tests::wirelane_binary;

/// Secrets that must not appear, each a different word.
const SECRETS: [&str; 9] = [
    "c2VjcmV0LWJhc2lj",
    "secret-bearer",
    "secret-cookie",
    "secret-set-cookie",
    "secret-proxy",
    "secret-nonce",
    "secret-response",
    "secret-header",
    "secret-authenticate",
];
/// Dialled digits, as they would be shown in a row.
const DIGITS: &str = "73519";
/// Payload of the audio.
const VOICE: [u8; 8] = *b"\xa1VOICE\xa2\xa3";

fn make_file(path: &Path) {
    let mut scene = Scene::new();
    let (client, server) = ("10.0.0.1:4000", "10.0.0.2:80");
    let request = "GET /page HTTP/1.1\r\nHost: h\r\nAuthorization: Basic c2VjcmV0LWJhc2lj\r\nCookie: id=secret-cookie\r\n\
                   Proxy-Authorization: Bearer secret-proxy\r\nX-Api-Key: secret-header\r\n\r\n\
                   GET /two HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer secret-bearer\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nSet-Cookie: id=secret-set-cookie\r\n\
                  WWW-Authenticate: Digest nonce=\"secret-authenticate\"\r\nContent-Length: 0\r\n\r\n";
    scene.tcp(0, client, server, 1, request.as_bytes());
    scene.tcp(1, server, client, 1, answer.repeat(2).as_bytes());
    let (alice, bob) = ("10.0.0.1:5060", "10.0.0.2:5060");
    let digest = "Authorization: Digest username=\"alice\", realm=\"r\", nonce=\"secret-nonce\", response=\"secret-response\"";
    let head = ["From: <sip:alice@b>;tag=1", "To: <sip:bob@d>;tag=2", "Call-ID: one", "CSeq: 1 INVITE"];
    let offer = description("10.0.0.1", 6000);
    scene.udp(10, alice, bob, &message("INVITE sip:bob@d SIP/2.0", &[&head[..], &[digest]].concat(), &offer));
    scene.udp(11, bob, alice, &message("SIP/2.0 200 OK", &head, &description("10.0.0.2", 7000)));
    for number in 0..50 {
        let mut voice = rtp(number, 7);
        voice[12..20].copy_from_slice(&VOICE);
        scene.udp(100 + number * 20_000, "10.0.0.1:6000", "10.0.0.2:7000", &voice);
    }
    // RFC 4733: event, end, duration; the end is sent three times.
    for (at, digit) in DIGITS.bytes().enumerate() {
        for end in 0..3u64 {
            let mut packet = rtp(50 + 3 * at as u64 + end, 7);
            packet[1] = 101;
            packet[4..8].copy_from_slice(&(8000 + 800 * at as u32).to_be_bytes());
            packet.truncate(12);
            packet.extend([digit - b'0', 0x8a, 3, 0x20]);
            scene.udp(1_200_000 + 60_000 * at as u64 + end, "10.0.0.1:6000", "10.0.0.2:7000", &packet);
        }
        let lines = ["From: <sip:alice@b>;tag=1", "To: <sip:bob@d>;tag=2", "Call-ID: one", "CSeq: 2 INFO"];
        let info = message(
            "INFO sip:bob@d SIP/2.0",
            &[&lines[..], &["Content-Type: application/dtmf-relay"]].concat(),
            "",
        );
        let body = format!("Signal={}\r\nDuration=160\r\n", digit as char);
        let info = String::from_utf8(info)
            .unwrap()
            .replace("Content-Length: 0\r\n\r\n", &format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        scene.udp(2_000_000 + at as u64, alice, bob, info.as_bytes());
    }
    let bye = ["From: <sip:alice@b>;tag=1", "To: <sip:bob@d>;tag=2", "Call-ID: one", "CSeq: 3 BYE"];
    scene.udp(3_000_000, alice, bob, &message("BYE sip:bob@d SIP/2.0", &bye, ""));
    scene.udp(3_000_001, bob, alice, &message("SIP/2.0 200 OK", &bye, ""));
    scene.write(path).unwrap();
}

/// Runs the program in the folder; returns everything that it printed.
fn run(folder: &Path, words: &[&str]) -> Vec<u8> {
    let output = Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    [output.stdout, output.stderr].concat()
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Asserts that these bytes do not contain a secret.
fn assert_redacted(what: &str, bytes: &[u8]) {
    for secret in SECRETS {
        assert!(!has(bytes, secret.as_bytes()), "{what} has {secret}");
    }
    assert!(!has(bytes, DIGITS.as_bytes()), "{what} has the keys that were pressed");
    assert!(!has(bytes, &VOICE), "{what} has what was said");
}

/// Asserts the same for all files of a folder and its subfolders; returns their number.
fn assert_files_redacted(folder: &Path, leave_out: &str) -> usize {
    let mut number = 0;
    for path in files(folder).unwrap() {
        if path.is_dir() {
            number += assert_files_redacted(&path, leave_out);
        } else if path.file_name().unwrap() != leave_out {
            assert_redacted(&path.display().to_string(), &fs::read(&path).unwrap());
            number += 1;
        }
    }
    number
}

/// Battery: S7
#[test]
fn secrets_are_in_no_output_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    make_file(&here.join("in.pcap"));
    let logs = ["common", "combined", "vhost", "squid", "w3c", "json"]
        .map(|format| format!("{format}:{format}.log"));
    let mut http = vec!["http", "-r", "in.pcap", "--json", "--store", "s.db", "--export", "file:http.ipfix"];
    logs.iter().for_each(|log| http.extend(["--log", log]));
    let voip = [
        "voip",
        "-r",
        "in.pcap",
        "--json",
        "--store",
        "s.db",
        "--export",
        "file:v.json",
        "--export",
        "file:v.csv",
        "--export",
        "file:v.ipfix",
    ];
    for words in [
        &http[..],
        &["http", "-r", "in.pcap"],
        &voip,
        &["voip", "-r", "in.pcap"],
        &["voip", "-r", "in.pcap", "--csv"],
        &["flows", "-r", "in.pcap", "--json", "--store", "s.db", "--export", "file:f.csv"],
        &["packets", "-r", "in.pcap", "--json"],
        &["packets", "-r", "in.pcap"],
        &["probe", "--ready", "bandwidth", "-r", "in.pcap", "--json", "--store", "s.db"],
        &["query", "SELECT * FROM transactions", "--json", "--store", "s.db"],
        &["query", "SELECT * FROM calls", "--json", "--store", "s.db"],
        &["query", "SELECT * FROM streams", "--csv", "--store", "s.db"],
        &["report", "--store", "s.db", "--html", "report.html"],
    ] {
        let printed = run(here, words);
        assert!(words[0] == "report" || !printed.is_empty());
        assert_redacted(&format!("{words:?}"), &printed);
    }
    let written = assert_files_redacted(here, "in.pcap");
    assert!(written > 12, "{written} files");

    // A saved call contains its signalling, which the user has requested, and the audio only if that is requested too.
    run(here, &["voip", "-r", "in.pcap", "--quiet", "--save-calls", "silent"]);
    run(here, &["voip", "-r", "in.pcap", "--quiet", "--save-calls", "spoken", "--with-audio"]);
    let saved = |name: &str| {
        let files = files(&here.join(name)).unwrap();
        assert_eq!(files.len(), 1, "{files:?}");
        (fs::read(&files[0]).unwrap(), capinfos(&files[0]).unwrap())
    };
    let ((silent, (signalling, _)), (spoken, (all, _))) = (saved("silent"), saved("spoken"));
    assert!(!has(&silent, &VOICE) && has(&spoken, &VOICE));
    assert_eq!(all - signalling, 50 + 3 * DIGITS.len() as u64);

    // Requested secrets are present: this shows that the test searches correctly.
    let asked =
        run(here, &["http", "-r", "in.pcap", "--json", "--fields", "authorization,cookie,set-cookie"]);
    assert!(
        has(&asked, b"secret-bearer") && has(&asked, b"secret-cookie"),
        "{}",
        String::from_utf8_lossy(&asked)
    );
    let asked = run(here, &["voip", "-r", "in.pcap", "--json", "--dtmf-digits"]);
    assert!(has(&asked, DIGITS.as_bytes()), "{}", String::from_utf8_lossy(&asked));
}
