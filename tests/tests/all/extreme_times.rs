//! No arithmetic on a file's times overflows: every command over files with extreme times, resolutions, offsets and
//! lengths.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::calls::{Scene, message};
use wirelane_tests::frames::{ethernet, udp};
use wirelane_tests::numbers::column;
use wirelane_tests::{chosen, wirelane_binary};

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let length = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, &body, &length].concat()
}

fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = [code.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    option.extend(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

/// Frames for all analyses: a call, its media, a transaction, and a flow; then the same again, so that an item that
/// began at one time continues at another.
fn frames() -> Vec<Vec<u8>> {
    let mut scene = Scene::new();
    let sdp = "v=0\r\nc=IN IP4 192.0.2.1\r\nm=audio 6000 RTP/AVP 0\r\n";
    let lines = [
        "From: <sip:a@b>;tag=1",
        "To: <sip:c@d>",
        "Call-ID: x",
        "CSeq: 1 INVITE",
        "Content-Type: application/sdp",
    ];
    for start in ["INVITE sip:c@d SIP/2.0", "SIP/2.0 200 OK"] {
        scene.udp(0, "192.0.2.1:5060", "192.0.2.2:5060", &message(start, &lines, sdp));
    }
    for seq in 0..4u8 {
        let rtp = [&[0x80, 0, 0, seq, 0, 0, 0, seq, 0, 0, 0, 7][..], &[0; 20]].concat();
        scene.udp(0, "192.0.2.2:7000", "192.0.2.1:6000", &rtp);
    }
    scene.tcp(0, "10.0.0.1:4000", "10.0.0.2:80", 1, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    scene.tcp(0, "10.0.0.2:80", "10.0.0.1:4000", 1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scene.pcap");
    scene.write(&path).unwrap();
    let file = fs::read(path).unwrap();
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while let Some((head, more)) = rest.split_at_checked(16) {
        let (frame, behind) =
            more.split_at(u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize);
        frames.push(frame.to_vec());
        rest = behind;
    }
    frames.push(ethernet(0x0800, &udp([10, 0, 0, 1], [10, 0, 0, 2], (1, 2), b"x")));
    frames
}

/// A pcapng file whose frames have these timestamps in turn, with this resolution and offset in seconds.
fn pcapng(stamps: &[u64], resolution: Option<u8>, offset: Option<u64>) -> Vec<u8> {
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let mut interface = vec![1, 0, 0, 0, 0, 0, 0, 0];
    interface.extend(resolution.map(|value| option(9, &[value])).unwrap_or_default());
    interface.extend(offset.map(|value| option(14, &value.to_le_bytes())).unwrap_or_default());
    interface.extend(option(0, &[]));
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (number, frame) in frames().iter().enumerate() {
        let stamp = stamps[number % stamps.len()];
        let length = (frame.len() as u32).to_le_bytes();
        // The length on the wire is extreme too.
        let wire = if number % 3 == 2 { [0xff; 4] } else { length };
        let head = [0u32, (stamp >> 32) as u32, stamp as u32].map(u32::to_le_bytes).concat();
        file.extend(block(6, &[&head[..], &length, &wire, frame].concat()));
    }
    file
}

/// A pcap file with these seconds and fractions.
fn pcap(magic: u32, stamps: &[(u32, u32)]) -> Vec<u8> {
    let mut file: Vec<u8> =
        [magic, 0x0004_0002, 0, 0, 262_144, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    for (number, frame) in frames().iter().enumerate() {
        let (seconds, part) = stamps[number % stamps.len()];
        let length = frame.len() as u32;
        file.extend([seconds, part, length, length].into_iter().flat_map(u32::to_le_bytes));
        file.extend(frame);
    }
    file
}

/// The commands that read files, each with all options that depend on times.
const COMMANDS: [&[&str]; 12] = [
    &["count"],
    &["packets"],
    &["packets", "--json"],
    &["flows", "--biflow", "--export", "file:f.json", "--export", "file:f.ipfix", "--store", "s.db"],
    &["flows", "--csv"],
    &["http", "--log", "w3c:h.log", "--log", "json:h.json", "--export", "file:h.ipfix", "--store", "s.db"],
    &["http", "--print", "combined"],
    &[
        "voip",
        "--heuristic",
        "--export",
        "file:v.json",
        "--export",
        "file:v.ipfix",
        "--store",
        "s.db",
        "--save-calls",
        "calls",
    ],
    &["voip", "--csv"],
    &["probe", "--ready", "syn-flood"],
    &["probe", "--ready", "bandwidth", "--store", "s.db"],
    &["record", "-w", "r.pcapng", "--overwrite", "--json"],
];

/// Runs a command in this folder; returns its standard output, and whether it accepted the file.
fn run(folder: &Path, name: &str, words: &[&str]) -> (String, bool) {
    let start = Instant::now();
    let output = Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // A file may be refused (1): a panic has status 101, and an overflow in arithmetic panics.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{name}, {words:?}: {:?} {said}", output.status);
    assert!(!said.contains("panicked") && !said.contains("this is a bug"), "{name}, {words:?}: {said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{name}, {words:?}: {:?}", start.elapsed());
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// Each file through a third of the commands, and each command over a third of the files; `make test-all` runs all pairs.
/// Battery: I9, F7
#[test]
fn every_command_takes_times_at_every_extreme() {
    const STAMPS: [&[u64]; 6] = [
        &[u64::MAX],
        &[0],
        &[0, u64::MAX],
        &[u64::MAX, 0, u64::MAX - 1, 1],
        &[i64::MAX as u64, i64::MAX as u64 + 1],
        &[1_700_000_000_000_000_000, u64::MAX, 1_700_000_001_000_000_000],
    ];
    let mut files = Vec::new();
    for stamps in STAMPS {
        files.push((format!("nanoseconds {stamps:?}"), pcapng(stamps, Some(9), None)));
    }
    for resolution in [0, 1, 6, 9, 18, 19, 20, 127, 0x80, 0x81, 0x9e, 0xbf, 0xc0, 0xff] {
        let stamps = &[u64::MAX, 0, 1 << 62];
        files.push((format!("resolution {resolution}"), pcapng(stamps, Some(resolution), None)));
    }
    for offset in [1, i64::MAX as u64, i64::MIN as u64, u64::MAX, 18_446_744_073, 9_223_372_036] {
        for stamps in [&[u64::MAX, 0][..], &[1_700_000_000_000_000_000]] {
            files.push((format!("offset {offset}, {stamps:?}"), pcapng(stamps, Some(9), Some(offset))));
        }
    }
    for magic in [0xa1b2_c3d4, 0xa1b2_3c4d] {
        let stamps = [(u32::MAX, u32::MAX), (0, 0), (u32::MAX, 0), (0, u32::MAX), (1 << 31, 999_999_999)];
        files.push((format!("pcap {magic:x}"), pcap(magic, &stamps)));
        files.push((format!("pcap {magic:x}, the last second"), pcap(magic, &stamps[..1])));
    }
    let packets = frames().len() as u64;
    for (number, (name, bytes)) in files.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("in"), bytes).unwrap();
        for (command, words) in COMMANDS.into_iter().enumerate() {
            if !chosen(number + command, 3) {
                continue;
            }
            let (said, accepted) = run(folder.path(), &name, &[words, &["-r", "in"]].concat());
            // A recording of the file has all of its packets.
            if words[0] == "record" {
                let last: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
                assert!(accepted, "{name}: {last}");
                assert_eq!(column(&last, "written"), packets, "{name}: {last}");
            }
        }
        let questions = [
            &["report"][..],
            &["report", "--json"],
            &["query", "top", "talkers"],
            &["query", "SELECT * FROM flows"],
        ];
        for (question, words) in questions.into_iter().enumerate() {
            if !folder.path().join("s.db").exists() || !chosen(number + question, questions.len()) {
                continue;
            }
            run(folder.path(), &name, &[words, &["--store", "s.db"]].concat());
        }
    }
}
