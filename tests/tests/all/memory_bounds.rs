//! The limit of `--memory` holds for the process, including its end: floods in a control group of the memory that the
//! command takes for an empty capture, the limit, and 10 % of both (RELIABILITY.md, F8 with L6, I5 and I6).

use std::io::{BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{ChildStdin, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::frames::ethernet;
use wirelane_tests::numbers::column;
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::{ControlGroup, require_root, wirelane_binary};

/// The limit, in MiB.
const BUDGET: u64 = 16;
/// The limit for calls, which have some MiB of constant size in addition.
const CALLS_BUDGET: u64 = 96;

/// A pcap stream to the standard input of a command.
struct Wire {
    output: BufWriter<ChildStdin>,
    packets: u64,
}

impl Wire {
    /// Writes a frame, a microsecond after the previous one.
    fn put(&mut self, frame: &[u8]) {
        let at_ns = 1_772_366_400_000_000_000 + self.packets * 1000;
        // A killed process does not read any more; its end is checked later.
        self.packets += u64::from(write_packet(&mut self.output, at_ns, frame).is_ok());
    }

    /// Writes all frames of a scene.
    fn play(&mut self, scene: Scene) {
        scene.into_frames().iter().for_each(|frame| self.put(frame));
    }
}

/// Runs a command in a control group; returns peak memory in bytes, the last object, and the number of packets written.
fn run(test: &str, words: &[&str], limit: u64, fill: impl FnOnce(&mut Wire)) -> Option<(u64, Value, u64)> {
    let group = ControlGroup::limited(test, limit)?;
    let mut command = group.command(wirelane_binary().unwrap());
    command.args(words).args(["-r", "-", "--json", "--quiet"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut wire = Wire { output: BufWriter::new(child.stdin.take().unwrap()), packets: 0 };
    write_header(&mut wire.output).unwrap();
    fill(&mut wire);
    let _ = wire.output.flush();
    let packets = wire.packets;
    drop(wire);
    let output = child.wait_with_output().unwrap();
    assert_eq!(group.killed(), 0, "{words:?}: killed with {limit} bytes");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["final"], column(&last, "analysed")), (&true.into(), packets), "{words:?}");
    Some((group.peak().unwrap_or(0), last, packets))
}

/// Runs a flood with `extra` MiB in addition to the limit.
fn bounded(
    test: &str,
    words: &[&str],
    extra: u64,
    name: &str,
    fill: impl FnOnce(&mut Wire),
) -> Option<Value> {
    let bound = if words[0] == "voip" { CALLS_BUDGET } else { BUDGET };
    let budget = bound.to_string();
    let words = [words, &["--memory", &budget]].concat();
    // Memory of the command for an empty capture, in a group with a large limit. The pages of the program file are
    // charged to the first reader, so the first run is not measured.
    run(test, &words, 1 << 30, |_| {})?;
    let (base, ..) = run(test, &words, 1 << 30, |_| {})?;
    let base = if base == 0 { 64 << 20 } else { base };
    let limit = (base + ((bound + extra) << 20)) * 11 / 10;
    let (peak, last, packets) = run(test, &words, limit, fill)?;
    println!(
        "{words:?}, {name}: {packets} packets, base {} KiB, peak {} KiB of {}",
        base >> 10,
        peak >> 10,
        limit >> 10
    );
    Some(last)
}

fn client(number: u32) -> SocketAddr {
    SocketAddr::new(
        IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + number / 40_000)),
        10_000 + (number % 40_000) as u16,
    )
}

/// Writes a segment of a client to this port of the server.
fn segment(wire: &mut Wire, number: u32, port: u16, seq: u32, data: &[u8]) {
    let mut scene = Scene::new();
    scene.segment(&client(number).to_string(), &format!("10.0.0.2:{port}"), 0x18, (seq, 1), data);
    wire.play(scene);
}

/// Battery: F8, L6
#[test]
fn a_flood_of_flows_stays_within_the_bound() {
    const NAME: &str = "a_flood_of_flows_stays_within_the_bound";
    if !require_root(NAME) {
        return;
    }
    for options in [&["flows"][..], &["flows", "--biflow"]] {
        let last = bounded(NAME, options, 0, "every packet a new flow", |wire| {
            // A flow takes some 230 bytes, so these are 4 times the number that fits.
            for number in 0..300_000u32 {
                let mut scene = Scene::new();
                scene.udp(0, &client(number).to_string(), "10.0.0.2:9", b"flood");
                wire.play(scene);
            }
        });
        let Some(last) = last else { return };
        assert_eq!((column(&last, "flows"), column(&last, "flow_packets")), (300_000, 300_000), "{last}");
    }
}

/// Battery: F8, I5
#[test]
fn hostile_http_stays_within_the_bound() {
    const NAME: &str = "hostile_http_stays_within_the_bound";
    if !require_root(NAME) {
        return;
    }
    let request = format!("GET /x HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "y".repeat(400));
    let Some(last) = bounded(NAME, &["http"], 0, "requests without a response", |wire| {
        (0..60_000).for_each(|number| segment(wire, number, 80, 1, request.as_bytes()));
    }) else {
        return;
    };
    assert_eq!((column(&last, "requests"), column(&last, "without_response")), (60_000, 60_000));
    assert!(column(&last, "evicted_connections") > 0, "{last}");

    // 1 GiB in one line, in packets of the largest size.
    let last = bounded(NAME, &["http"], 0, "a line of 1 GiB", |wire| {
        let part = vec![b'a'; 65_000];
        segment(wire, 0, 80, 1, b"GET / HTTP/1.1\r\nX: ");
        (0..16_520u32).for_each(|number| segment(wire, 0, 80, 20 + number * 65_000, &part));
    })
    .unwrap();
    assert_eq!(column(&last, "transactions"), 1, "{last}");

    let last = bounded(NAME, &["http"], 0, "a million fields", |wire| {
        segment(wire, 0, 80, 1, b"GET / HTTP/1.1\r\n");
        let fields = "X: y\r\n".repeat(10_000);
        (0..100u32).for_each(|number| segment(wire, 0, 80, 17 + number * 60_000, fields.as_bytes()));
    })
    .unwrap();
    assert_eq!(column(&last, "transactions"), 1, "{last}");

    // In each of these connections the second byte is missing, and later segments fill its reassembly buffer.
    bounded(NAME, &["http"], 0, "segments in front of which one is missing", |wire| {
        for number in 0..1000 {
            segment(wire, number, 80, 1, b"GET / HTTP/1.1\r\n");
            for part in (0..1000u32).rev() {
                segment(wire, number, 80, 18 + part * 64, &[b'z'; 64]);
            }
        }
    });

    // 10 MiB of zeros in some 10 KiB.
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![0; 10 << 20]).unwrap();
    let bomb = bomb.finish().unwrap();
    let last = bounded(NAME, &["http"], 0, "compression bombs", |wire| {
        for number in 0..2000 {
            let (client, server) = (client(number).to_string(), "10.0.0.2:80");
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                bomb.len()
            );
            let mut scene = Scene::new();
            scene.segment(&client, server, 0x18, (1, 1), b"GET /bomb HTTP/1.1\r\n\r\n");
            scene.segment(server, &client, 0x18, (1, 23), head.as_bytes());
            scene.segment(server, &client, 0x18, (1 + head.len() as u32, 23), &bomb);
            wire.play(scene);
        }
    })
    .unwrap();
    assert_eq!((column(&last, "responses"), column(&last, "lost_bytes")), (2000, 0), "{last}");
}

/// Battery: F8, I6
#[test]
fn hostile_calls_stay_within_the_bound() {
    const NAME: &str = "hostile_calls_stay_within_the_bound";
    if !require_root(NAME) {
        return;
    }
    let invite = |id: &str, more: &[&str], body: &str| {
        let call_id = format!("Call-ID: {id}");
        let lines = ["CSeq: 1 INVITE", &call_id, "From: <sip:a@b>;tag=1", "To: <sip:c@d>"];
        message("INVITE sip:c@d SIP/2.0", &[&lines[..], more].concat(), body)
    };
    let (alice, bob) = ("10.0.0.1:5060", "10.0.0.2:5060");
    let udp = |wire: &mut Wire, from: &str, to: &str, payload: &[u8]| {
        let mut scene = Scene::new();
        scene.udp(0, from, to, payload);
        wire.play(scene);
    };
    let Some(last) = bounded(NAME, &["voip"], 0, "400,000 calls without an answer", |wire| {
        for number in 0..400_000 {
            let body = description("10.0.0.1", 2 + 2 * (number % 30_000) as u16);
            udp(wire, alice, bob, &invite(&format!("{number}@x"), &[], &body));
        }
    }) else {
        return;
    };
    assert_eq!(column(&last, "calls"), 400_000, "{last}");
    assert!(column(&last, "calls_evicted") > 0, "{last}");

    bounded(NAME, &["voip"], 0, "long heads", |wire| {
        let via = vec!["Via: x"; 7000];
        let long = format!("X: {}", "y".repeat(60_000));
        for number in 0..2000 {
            udp(wire, alice, bob, &invite(&format!("via-{number}"), &via, ""));
            udp(wire, alice, bob, &invite(&format!("long-{number}"), &[&long], ""));
        }
    })
    .unwrap();

    bounded(NAME, &["voip"], 0, "1000 media in each of 2000 calls", |wire| {
        let media = (0..1000).map(|n| format!("m=audio {} RTP/AVP 0\r\n", 2 + 2 * n)).collect::<String>();
        let body = description("10.0.0.1", 6000) + &media;
        (0..2000).for_each(|number| udp(wire, alice, bob, &invite(&format!("media-{number}"), &[], &body)));
    })
    .unwrap();

    let last = bounded(NAME, &["voip"], 0, "an SSRC in each packet to a negotiated port", |wire| {
        udp(wire, alice, bob, &invite("target", &[], &description("10.0.0.1", 6000)));
        for number in 0..100_000u32 {
            udp(
                wire,
                &client(number % 50).to_string(),
                "10.0.0.1:6000",
                &rtp(number.into(), number.wrapping_mul(0x9e37_79b9)),
            );
        }
    })
    .unwrap();
    assert_eq!(column(&last, "rtp_packets"), 100_000, "{last}");

    bounded(NAME, &["voip"], 0, "messages by TCP that do not end", |wire| {
        let head = format!("INVITE sip:a SIP/2.0\r\nX: {}", "y".repeat(1000));
        for number in 0..20_000 {
            segment(wire, number, 5060, 1, head.as_bytes());
            // After a gap.
            segment(wire, number, 5060, 5000, &[b'z'; 1000]);
        }
    })
    .unwrap();

    // Fragments have 32 MiB in addition to --memory.
    let last = bounded(NAME, &["voip"], 32, "first fragments", |wire| {
        for number in 0..100_000u32 {
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x20, 0, 64, 17, 0, 0, 11, 0, 0, 0, 10, 0, 0, 2];
            let length = 20 + 800u16;
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
            packet[13..16].copy_from_slice(&number.to_be_bytes()[1..]);
            packet.extend([b'z'; 800]);
            wire.put(&ethernet(0x0800, &packet));
        }
    })
    .unwrap();
    assert_eq!(column(&last, "fragment_packets"), 100_000, "{last}");
}

/// Battery: F8, I6
#[test]
fn saved_calls_stay_within_the_bound() {
    const NAME: &str = "saved_calls_stay_within_the_bound";
    if !require_root(NAME) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = ["voip", "--save-calls", folder.path().to_str().unwrap()];
    const CALLS: u64 = 40_000;
    let last = bounded(NAME, &words, 0, "calls without an answer that are saved", |wire| {
        let long = format!("X: {}", "y".repeat(1000));
        for number in 0..CALLS {
            let id = format!("Call-ID: {number}@x");
            let lines = ["CSeq: 1 INVITE", &id, "From: <sip:a@b>;tag=1", "To: <sip:c@d>", &long];
            let mut scene = Scene::new();
            let invite = message("INVITE sip:c@d SIP/2.0", &lines, "");
            scene.udp(0, "10.0.0.1:5060", "10.0.0.2:5060", &invite);
            wire.play(scene);
        }
    });
    let Some(last) = last else { return };
    let saved = &last["saved_calls"];
    assert_eq!(
        (column(saved, "calls"), column(saved, "packets"), column(saved, "unsaved")),
        (CALLS, CALLS, 0)
    );
}
