//! Files that end inside a packet, as a program that was killed leaves them: each command reports the fault, and has the
//! results of all packets before it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::wirelane_binary;

/// A call with its media, and requests over TCP; nothing has ended at the end of the file.
fn scene() -> Scene {
    let mut scene = Scene::new();
    let (client, server) = ("10.0.0.1:4000", "10.0.0.2:80");
    scene.tcp(
        0,
        client,
        server,
        1,
        b"GET /one HTTP/1.1\r\nHost: h\r\n\r\nGET /two HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    scene.tcp(1, server, client, 1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let (alice, bob) = ("10.0.0.1:5060", "10.0.0.2:5060");
    let head = ["From: <sip:alice@b>;tag=1", "To: <sip:bob@d>;tag=2", "Call-ID: one", "CSeq: 1 INVITE"];
    scene.udp(10, alice, bob, &message("INVITE sip:bob@d SIP/2.0", &head, &description("10.0.0.1", 6000)));
    scene.udp(11, bob, alice, &message("SIP/2.0 200 OK", &head, &description("10.0.0.2", 7000)));
    for number in 0..20 {
        scene.udp(100 + number * 20_000, "10.0.0.1:6000", "10.0.0.2:7000", &rtp(number, 7));
    }
    scene
}

/// Lines of a command without the sums, whose times differ from run to run; and what it says on standard error.
fn lines(words: &[&str], file: &Path) -> (Vec<String>, Option<i32>, String) {
    let mut command = Command::new(wirelane_binary().unwrap());
    let output = command.args(words).arg("-r").arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let is_sum = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line.get("final").is_some() || line.get("ready").is_some()
    };
    let lines = text.lines().filter(|line| !is_sum(line)).map(str::to_owned).collect();
    (lines, output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_comes_before_the_cut_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, cut) = (folder.path().join("whole.pcap"), folder.path().join("cut.pcap"));
    scene().write(&whole).unwrap();
    let mut bytes = std::fs::read(&whole).unwrap();
    // Another packet begins: its header, and not all of its bytes.
    let at = bytes.len();
    bytes.extend_from_within(at - 60..);
    let header: Vec<u8> = [1u32, 0, 2000, 2000].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.splice(at..at, header);
    std::fs::write(&cut, bytes).unwrap();
    let probe = ["probe", "--ready", "bandwidth", "--json"];
    for words in
        [&["flows", "--json"][..], &["http", "--json"], &["voip", "--json"], &["packets", "--json"], &probe]
    {
        let (expected, status, _) = lines(words, &whole);
        assert_eq!(status, Some(0), "{words:?}");
        assert!(!expected.is_empty(), "{words:?}");
        let (found, status, said) = lines(words, &cut);
        assert_eq!((found, status), (expected, Some(1)), "{words:?}: {said}");
        assert!(
            said.contains("the file ends inside a packet: 2016 bytes are needed, 76 are there"),
            "{words:?}: {said}"
        );
    }
    let written = folder.path().join("written.pcapng");
    let mut command = Command::new(wirelane_binary().unwrap());
    let output = command.arg("record").arg("-r").arg(&cut).arg("-w").arg(&written).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(wirelane_tests::recordings::count_packets(&written).unwrap(), scene().len() as u64);
}
