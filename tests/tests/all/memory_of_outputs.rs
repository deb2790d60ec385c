//! `--memory` is the limit of a command with its outputs, including its end: in a control group of the process's base
//! memory, the limit and a tenth of it, the kernel does not kill it. `memory_bounds.rs` has floods of each kind without
//! outputs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::frames::{ethernet, udp};
use wirelane_tests::recordings::{write_header, write_packet};
use wirelane_tests::{Child, ControlGroup, require_root, wirelane_binary};

/// MiB of `--memory`: small enough for some 50,000 packets to exceed it, and large enough for a tenth to be more than
/// noise.
const MEMORY: u64 = 32;
const LIMIT: Duration = Duration::from_secs(300);

fn address(number: u32) -> [u8; 4] {
    (0x0b00_0000 + number).to_be_bytes()
}

/// A packet of a new flow.
fn new_flow(number: u32) -> Vec<u8> {
    ethernet(0x0800, &udp(address(number), [10, 0, 0, 2], (1024 + number as u16 % 60_000, 9), &[0; 18]))
}

/// A request without a response on a new connection.
fn new_request(number: u32) -> Vec<u8> {
    let payload = format!("GET /{number} HTTP/1.1\r\nHost: h\r\nReferer: {}\r\n\r\n", "y".repeat(400));
    let mut packet = vec![0x45, 0];
    packet.extend((40 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    packet.extend(address(number));
    packet.extend([10, 0, 0, 2]);
    packet.extend([4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(payload.as_bytes());
    ethernet(0x0800, &packet)
}

/// The INVITE of a new call with a media address of its own.
fn new_call(number: u32) -> Vec<u8> {
    let [_, a, b, c] = address(number);
    let body = format!(
        "v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.{a}.{b}.{c}\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n"
    );
    let message = format!(
        "INVITE sip:c@d SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{number}\r\nFrom: <sip:a@b>;tag={number}\r\n\
         To: <sip:c@d>\r\nCall-ID: {number}@x\r\nCSeq: 1 INVITE\r\nContent-Type: application/sdp\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    ethernet(0x0800, &udp([10, 0, 0, 1], [10, 0, 0, 2], (5060, 5060), message.as_bytes()))
}

fn make(path: &Path, packets: u32, packet: impl Fn(u32) -> Vec<u8>) {
    let mut output = BufWriter::new(File::create(path).unwrap());
    write_header(&mut output).unwrap();
    for number in 0..packets {
        write_packet(&mut output, 1_700_000_000_000_000_000 + u64::from(number) * 1000, &packet(number))
            .unwrap();
    }
    output.flush().unwrap();
}

/// Runs a command over a capture in a control group of so many bytes; returns its last object and its peak memory.
fn run(folder: &Path, words: &[&str], file: &str, bytes: u64) -> Option<(Value, u64)> {
    let group = ControlGroup::limited("memory_of_outputs", bytes)?;
    let mut command = group.command(wirelane_binary().unwrap());
    command.current_dir(folder).args(words).args(["-r", file, "--json", "--quiet"]);
    let finished = Child::spawn(&mut command).unwrap().finish(LIMIT).unwrap();
    assert_eq!(group.killed(), 0, "{words:?} in {} KiB", bytes >> 10);
    assert!(finished.status.success(), "{words:?}: {}", finished.stderr);
    Some((finished.last_json().unwrap(), group.peak()?))
}

/// The base memory of the command is measured over as many packets of one flow, connection or call: reading a file
/// takes memory of its own, which sorting by time bounds.
fn holds(name: &str, packets: u32, packet: fn(u32) -> Vec<u8>, words: &[&str]) -> Option<Value> {
    if !require_root(name) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    make(&folder.path().join("one.pcap"), packets, |_| packet(0));
    make(&folder.path().join("flood.pcap"), packets, packet);
    let memory = MEMORY.to_string();
    let words = [words, &["--memory", &memory, "--user", "root"]].concat();
    let (_, base) = run(folder.path(), &words, "one.pcap", 4 << 30)?;
    let bound = MEMORY << 20;
    let (last, peak) = run(folder.path(), &words, "flood.pcap", base + bound + bound / 10)?;
    println!("{name}: {} KiB with one flow, {} KiB with the flood", base >> 10, peak >> 10);
    Some(last)
}

/// Battery: F8
#[test]
fn flows_with_outputs_keep_their_bound_to_the_end() {
    const NAME: &str = "flows_with_outputs_keep_their_bound_to_the_end";
    let words = ["flows", "--store", "s.db", "--export", "file:f.json", "--export", "ipfix://127.0.0.1:9"];
    let words = [&words[..], &["--export-wait", "0.1", "--export-rate", "0"]].concat();
    let Some(last) = holds(NAME, 200_000, new_flow, &words) else { return };
    assert_eq!((&last["store"]["flows"], &last["exports"][0]["flows"]), (&200_000.into(), &200_000.into()));
    assert!(last["end_reasons"]["resources"].as_u64().unwrap() > 0, "the bound was reached");
}

/// Battery: F8, I5
#[test]
fn transactions_with_outputs_keep_their_bound_to_the_end() {
    const NAME: &str = "transactions_with_outputs_keep_their_bound_to_the_end";
    let words = ["http", "--store", "s.db", "--log", "json:h.json"];
    let Some(last) = holds(NAME, 54_000, new_request, &words) else { return };
    assert_eq!((&last["store"]["transactions"], &last["logs"][0]["lines"]), (&54_000.into(), &54_000.into()));
    assert!(last["evicted_connections"].as_u64().unwrap() > 0, "the bound was reached");
}

/// Battery: F8, I6
#[test]
fn calls_with_outputs_keep_their_bound_to_the_end() {
    const NAME: &str = "calls_with_outputs_keep_their_bound_to_the_end";
    let words = ["voip", "--store", "s.db", "--export", "file:c.json"];
    let Some(last) = holds(NAME, 27_000, new_call, &words) else { return };
    assert_eq!((&last["store"]["calls"], &last["exports"][0]["messages"]), (&27_000.into(), &27_000.into()));
    assert!(last["calls_evicted"].as_u64().unwrap() > 0, "the bound was reached");
}
