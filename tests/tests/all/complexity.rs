//! Messages in segments of one byte take time in proportion to their length.
//!
//! In a process of its own: it measures the processor time of all children.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use wirelane_tests::calls::Scene;
use wirelane_tests::{in_own_process, wirelane_binary};

/// Processor time of children that have ended, in ticks of the kernel's clock (proc_pid_stat(5), cutime and cstime).
fn ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name in parentheses may have blanks in it.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Ticks of a command for so many times these bytes, each on a connection of its own and in segments of one byte.
fn cost(folder: &Path, command: &str, port: u16, bytes: &[u8], times: usize) -> u64 {
    let file = folder.join("in.pcap");
    let mut scene = Scene::new();
    let server = format!("10.0.0.2:{port}");
    for number in 0..times {
        let client = format!("10.0.0.1:{}", 4000 + number);
        for (at, byte) in bytes.iter().enumerate() {
            scene.tcp((number * bytes.len() + at) as u64, &client, &server, 1 + at as u32, &[*byte]);
        }
    }
    scene.write(&file).unwrap();
    let begun = ticks();
    let mut child = Command::new(wirelane_binary().unwrap());
    let child = child.args([command, "--quiet", "-r"]).arg(&file).stdout(Stdio::null());
    assert!(child.stderr(Stdio::null()).status().unwrap().success());
    ticks() - begun
}

/// One head of 64,000 bytes costs as much as eight of 8,000. If each segment parsed the earlier ones again, it would
/// cost eight times as much.
#[test]
fn messages_in_small_segments_take_linear_time() {
    if !in_own_process("complexity::messages_in_small_segments_take_linear_time") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    type Make = fn(usize) -> String;
    // The limit of a head is 65,536 bytes, that of the body of a SIP message 65,535.
    let cases: [(&str, u16, &str, Make); 5] = [
        ("http", 80, "first line", |bytes| format!("GET /{}", "a".repeat(bytes))),
        ("http", 80, "field", |bytes| format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(bytes))),
        ("voip", 5060, "first line", |bytes| format!("INVITE sip:{}", "a".repeat(bytes))),
        ("voip", 5060, "field", |bytes| format!("INVITE sip:a SIP/2.0\r\nX: {}", "a".repeat(bytes))),
        ("voip", 5060, "head and body", |bytes| {
            let (fields, body) = ("Via: SIP/2.0/TCP h\r\n".repeat(bytes / 40), bytes / 2);
            // The body of a message without these fields is not waited for.
            let needed = "Call-ID: x\r\nFrom: <sip:a@b>;tag=1\r\nTo: <sip:c@d>\r\nCSeq: 1 INVITE\r\n";
            let start = format!("INVITE sip:a SIP/2.0\r\n{needed}{fields}");
            format!("{start}Content-Length: {body}\r\n\r\n{}", "a".repeat(body))
        }),
    ];
    for (command, port, name, make) in cases {
        let cost = |bytes, times| cost(folder.path(), command, port, make(bytes).as_bytes(), times);
        // The least of some runs counts, as other processes disturb one; mostly the first run decides.
        let (mut small, mut large) = (cost(8_000, 16), cost(64_000, 2));
        for _ in 1..3 {
            if large < 3 * small {
                break;
            }
            (small, large) = (small.min(cost(8_000, 16)), large.min(cost(64_000, 2)));
        }
        println!("{command}, {name}: {small} and {large} ticks");
        assert!(large < 3 * small, "{command}, {name}: {small} and {large} ticks");
    }
}
