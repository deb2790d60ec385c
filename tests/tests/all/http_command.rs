//! `wirelane http` over a file: wrong usage, existing files, full disks, sums.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::column;
use wirelane_tests::wirelane_binary;

/// A capture file with one transaction, and one request without a response.
fn make_file(path: &Path) {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 65535, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let one = "GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: Basic c2VjcmV0\r\nCookie: c=d\r\n\r\n";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let two = "GET /b HTTP/1.1\r\nHost: h\r\n\r\n";
    let (first, second) = (100 + one.len() as u32, 500 + answer.len() as u32);
    let packets = [(0, 100, 500, one), (1, 500, first, answer), (0, first, second, two)];
    for (at, (dir, seq, ack, text)) in packets.into_iter().enumerate() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        frame.extend((40 + text.len() as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        let ends: [([u8; 4], u16); 2] = [([192, 0, 2, 1], 40_000), ([192, 0, 2, 2], 8080)];
        frame.extend(ends[dir].0.iter().chain(&ends[1 - dir].0));
        frame.extend(ends[dir].1.to_be_bytes().iter().chain(&ends[1 - dir].1.to_be_bytes()));
        frame.extend(u32::to_be_bytes(seq).iter().chain(&u32::to_be_bytes(ack)));
        frame.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        frame.extend(text.as_bytes());
        let header = [1_700_000_000 + at as u32, 0, frame.len() as u32, frame.len() as u32];
        pcap.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
    }
    fs::write(path, pcap).unwrap();
}

fn http(folder: &Path, words: &[&str]) -> Output {
    let file = folder.join("in.pcap");
    make_file(&file);
    let mut command = Command::new(wirelane_binary().unwrap());
    command.current_dir(folder).args(["http", "-r"]).arg(file).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    for (words, what) in [
        (&["--analysis", "kernel"][..], "use 'user' with -r"),
        (&["--kernel-directions", "4096"], "this is for --analysis kernel"),
        (&["--export", "file:x.json"], "as IPFIX only"),
        (&["--export", "netflow9://127.0.0.1"], "as IPFIX only"),
        (&["--steering", "round-robin"], "would go to different workers"),
        (&["--steering", "queue", "--workers", "2", "--direction", "both"], "would go to different workers"),
        (&["--log", "nothing:x.log"], "'nothing' is not a format"),
        (&["--log", "x.log"], "the format is missing"),
        (&["--print", "nothing"], "there are common, combined"),
        (&["--fields", "a b"], "is not a field name"),
        (&["--print", "common", "--json"], "cannot be used with"),
    ] {
        let output = http(folder.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(what), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn transactions_are_logged_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let output = http(folder.path(), &["--json", "--log", "common:a.log", "--log", "squid:b.log"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let objects: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of: Vec<&Value> = objects.iter().filter(|object| object.get("transaction").is_some()).collect();
    assert_eq!((of.len(), &of[0]["uri"], &of[1]["uri"]), (2, &"/a".into(), &"/b".into()));
    assert_eq!((&of[0]["ttfb_s"], &of[0]["marks"]), (&"1.000000000".into(), &serde_json::json!([])));
    assert_eq!(of[1]["marks"], serde_json::json!(["no_response", "forced"]));
    assert!(!text(&output.stdout).contains("c2VjcmV0") && !text(&output.stdout).contains("c=d"));
    let last = objects.last().unwrap();
    assert_eq!(last["final"], true);
    for (name, number) in [
        ("analysed", 3),
        ("transactions", 2),
        ("requests", 2),
        ("responses", 1),
        ("without_response", 1),
        ("head_packets", 3),
    ] {
        assert_eq!(column(last, name), number, "{name}: {last}");
    }
    assert_eq!(last["marks"], serde_json::json!({"no_response": 1, "forced": 1}));
    for log in last["logs"].as_array().unwrap() {
        assert_eq!((column(log, "lines"), column(log, "unwritten")), (2, 0));
    }
    let log = fs::read_to_string(folder.path().join("a.log")).unwrap();
    let begins = "192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] \"GET /a HTTP/1.1\" 200 5\n";
    assert!(log.starts_with(begins) && log.ends_with("\"GET /b HTTP/1.1\" - -\n"), "{log}");
    // An existing file is appended to, unless `--overwrite` is given.
    let again = http(folder.path(), &["--quiet", "--log", "common:a.log"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(fs::read_to_string(folder.path().join("a.log")).unwrap(), log.repeat(2));
    let again = http(folder.path(), &["--quiet", "--overwrite", "--log", "common:a.log"]);
    assert!(again.status.success() && text(&again.stdout).contains("2 transactions in 1 connection of"));
    assert_eq!(fs::read_to_string(folder.path().join("a.log")).unwrap(), log);
    // Redacted fields are shown if they are requested.
    let output = http(folder.path(), &["--print", "json", "--fields", "authorization,Cookie"]);
    assert!(text(&output.stdout).contains("[\"authorization\",\"Basic c2VjcmV0\"],[\"cookie\",\"c=d\"]"));
    assert!(text(&output.stderr).contains("the ledger balances"));
    // A filter leaves only one direction.
    let output = http(folder.path(), &["--print", "common", "src", "port", "8080"]);
    assert!(text(&output.stdout).ends_with(" \"-\" 200 5\n"), "{}", text(&output.stdout));
}

#[test]
fn a_log_that_cannot_be_written_fails_and_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let output = http(folder.path(), &["--json", "--log", "combined:/dev/full", "--log", "w3c:c.log"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("2 transactions are missing from it"), "{}", text(&output.stderr));
    let last: Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    assert_eq!((column(&last["logs"][0], "lines"), column(&last["logs"][0], "unwritten")), (0, 2));
    assert_eq!((column(&last["logs"][1], "lines"), column(&last["logs"][1], "unwritten")), (2, 0));
    let log = fs::read_to_string(folder.path().join("c.log")).unwrap();
    assert_eq!(log.lines().filter(|line| !line.starts_with('#')).count(), 2, "{log}");
}

/// tshark and ipfixDump read the exported file without errors; a collector receives the same by UDP.
#[test]
fn transactions_are_exported() {
    let folder = tempfile::tempdir().unwrap();
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let to = format!("ipfix://{}", collector.local_addr().unwrap());
    let words =
        ["--json", "--quiet", "--observation-domain", "7", "--export", "file:a.ipfix", "--export", &to];
    let output = http(folder.path(), &words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let last: Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    let file = fs::read(folder.path().join("a.ipfix")).unwrap();
    // Templates have a message of their own before the records; in a file it counts as a header.
    let exports = last["exports"].as_array().unwrap();
    for (export, messages) in exports.iter().zip([1, 2]) {
        assert_eq!((column(export, "transactions"), column(export, "messages")), (2, messages), "{export}");
        assert_eq!(column(export, "bytes"), file.len() as u64, "{export}");
    }
    let mut message = vec![0; 2000];
    let mut received = Vec::new();
    for _ in 0..2 {
        let length = collector.recv(&mut message).unwrap();
        received.extend_from_slice(&message[..length]);
    }
    assert_eq!(received, file);
    if let Ok(output) = Command::new("tshark").arg("-V").arg("-r").arg(folder.path().join("a.ipfix")).output()
    {
        let text = text(&output.stdout);
        for part in ["Version: 10", "GET", "/a", "/b", "HTTP/1.1", "192.0.2.1", "192.0.2.2"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for bad in ["Malformed", "Expert Info", "Unknown Field Type"] {
            assert!(!text.contains(bad), "{bad}: {text}");
        }
    } else {
        println!("left out: transactions_are_exported by tshark (there is none)");
    }
    if let Ok(output) = Command::new("ipfixDump").arg("--in").arg(folder.path().join("a.ipfix")).output() {
        let text = text(&output.stdout);
        assert!(text.contains(" 2 Data Records") && text.contains("httpRequestTarget"), "{text}");
    } else {
        println!("left out: transactions_are_exported by ipfixDump (there is none)");
    }
}
