//! Every capture of the corpus through every command, unchanged and with bytes changed: each run ends by itself, in
//! bounded time and memory, with all packets of the file or with an error that names it. Outputs have as many records as
//! the counts at the end.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_tests::commands::reading;
use wirelane_tests::numbers::column;
use wirelane_tests::{Capture, ControlGroup, corpus, require_root, wirelane_binary};

/// Memory limit of a run; the program itself takes some 30 MiB in an unoptimised build.
const MEMORY: u64 = 100 << 20;
/// Time limit of a run: an ordinary capture takes some milliseconds; the rest is a margin for a busy machine.
const TIME: Duration = Duration::from_secs(20);

/// Time limit for 100,000 packets.
const LONG_TIME: Duration = Duration::from_secs(240);

/// Runs a command over a file in the group.
fn run(group: &ControlGroup, words: &[String], file: &Path, most: Duration) -> (Output, Duration) {
    let mut command = group.command("timeout");
    command.args(["--signal=ABRT", &most.as_secs().to_string()]).arg(wirelane_binary().unwrap());
    command.args(words);
    if !words.iter().any(|word| word == "--csv") {
        command.arg("--json");
    }
    command.arg("-r").arg(file);
    let begun = Instant::now();
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output, begun.elapsed())
}

/// The fault of a run: a signal, a panic, an undocumented status, an error that names neither file nor format.
fn wrong(output: &Output, file: &Path) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let bad = match output.status.code() {
        Some(0) => said.contains("panicked"),
        // The error names the program and the file, or the output if packets of several link types cannot go there.
        Some(1) => {
            let names = |line: &str| {
                let file = line.contains(&*file.to_string_lossy()) || line.contains("/dev/null");
                // Times that do not fit into pcap are an error that names the other format.
                line.starts_with("wirelane: ") && (file || line.contains("write pcapng instead"))
            };
            said.contains("panicked") || !said.lines().any(names)
        }
        // A file must not cause usage errors (2), timeouts (124) or signals.
        _ => true,
    };
    bad.then(|| format!("{}: {}", output.status, said.trim()))
}

/// The last object; an object before an error is not the last.
fn last(output: &Output) -> Option<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last()?).ok().filter(|last: &Value| last["final"] == true)
}

/// The faults of a run that ended well in its counts: the packets are not those of the ground truth, or an output does
/// not have as many records as the counts say. `log` is a file that `http` wrote.
fn miscounted(output: &Output, words: &[String], truth: u64, log: &Path) -> Vec<String> {
    let Some(last) = last(output) else { return vec!["no counts at the end".into()] };
    let mut faults = Vec::new();
    let mut compare = |name: &str, ours: u64, expected: u64| {
        if ours != expected {
            faults.push(format!("{name}: {ours}, not {expected}"));
        }
    };
    for name in ["seen", "delivered", "analysed"] {
        compare(name, column(&last, name), truth);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // States of the capture have the engine: the first line, one line each second, and the last.
    let records = text.lines().filter(|line| !line.contains("\"engine\":\"file\"")).count() as u64;
    let counted = match words[0].as_str() {
        "packets" => Some("analysed"),
        "flows" => Some("flows"),
        "http" => Some("transactions"),
        _ => None,
    };
    if let Some(name) = counted {
        compare(&format!("lines for {name}"), records, column(&last, name));
    }
    if let Some(object) = last.get("standard_output") {
        compare("records on standard output", records, column(object, "records"));
        compare("suppressed and unwritten", column(object, "suppressed") + column(object, "unwritten"), 0);
    }
    match words[0].as_str() {
        "record" => compare("written", column(&last, "written"), truth),
        "probe" => compare("probed", column(&last, "probed"), truth),
        "flows" => compare("packets of flows", column(&last, "flow_packets"), truth),
        "http" => {
            let text = fs::read(log).unwrap();
            let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64;
            compare("lines of the log", lines, column(&last, "transactions"));
            compare("lines of the log as counted", lines, column(&last["logs"][0], "lines"));
        }
        _ => {}
    }
    faults
}

/// Runs commands over captures; of all combinations one in `share`, chosen by their numbers.
fn sweep(test: &str, share: usize) {
    let (true, Some(corpus)) = (require_root(test), corpus(test)) else { return };
    let Some(group) = ControlGroup::limited(test, MEMORY) else { return };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let mut commands = reading(folder.path()).unwrap();
    for words in commands.iter_mut().filter(|words| words[0] == "http") {
        words.extend(["--log".into(), format!("combined:{}", log.display())]);
    }
    let table = ["flows", "--csv"].map(str::to_owned).to_vec();
    let (mut faults, mut runs, mut slowest) = (Vec::new(), 0, Duration::ZERO);
    for (number, capture) in Capture::all(&corpus).unwrap().iter().enumerate() {
        let hostile = ["malformed", "decode", "fileformat"].contains(&capture.category.as_str());
        let chosen: Vec<&Vec<String>> = commands
            .iter()
            .enumerate()
            .filter(|(command, _)| (number + command).is_multiple_of(if hostile { share } else { 3 * share }))
            .map(|(_, words)| words)
            .collect();
        if chosen.is_empty() {
            continue;
        }
        let file = folder.path().join("capture");
        fs::write(&file, capture.bytes().unwrap()).unwrap();
        let mut packets = Vec::new();
        for words in chosen {
            let (output, took) = run(&group, words, &file, TIME);
            runs += 1;
            slowest = slowest.max(took);
            if let Some(fault) = wrong(&output, &file) {
                faults.push(format!("{}, {words:?}: {fault}", capture.id));
            }
            packets.extend(last(&output).map(|last| (column(&last, "seen"), column(&last, "analysed"))));
            if output.status.success() {
                let wrong = miscounted(&output, words, capture.packets, &log);
                faults.extend(wrong.iter().map(|fault| format!("{}, {words:?}: {fault}", capture.id)));
                if words.len() == 1 && words[0] == "flows" {
                    let (rows, _) = run(&group, &table, &file, TIME);
                    let rows = rows.stdout.iter().filter(|byte| **byte == b'\n').count() as u64;
                    let flows = last(&output).map(|last| column(&last, "flows"));
                    // The first row has the names.
                    if Some(rows) != flows.map(|flows| flows + 1) {
                        faults.push(format!("{}: {rows} rows of CSV, {flows:?} flows", capture.id));
                    }
                }
            }
            let _ = fs::remove_file(&log);
        }
        if packets.windows(2).any(|two| two[0] != two[1]) {
            faults.push(format!("{}: commands differ in packets: {packets:?}", capture.id));
        }
    }
    println!("{runs} runs, the slowest {} ms", slowest.as_millis());
    assert_eq!(group.killed(), 0, "more than {MEMORY} bytes");
    assert!(faults.is_empty(), "{} of {runs} runs: {}", faults.len(), faults.join("\n"));
}

/// Each hostile capture through one of the commands, and a third of the others; `every_capture_through_every_command`
/// runs all combinations.
/// Battery: I1
#[test]
fn captures_through_some_commands_each() {
    sweep("captures_through_some_commands_each", 9);
}

/// Battery: I1
#[test]
#[ignore = "takes some minutes: make test-all"]
fn every_capture_through_every_command() {
    sweep("every_capture_through_every_command", 1);
}

/// A pcapng block.
fn block(output: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let padded = body.len().next_multiple_of(4);
    let length = (12 + padded as u32).to_le_bytes();
    output.extend(kind.to_le_bytes());
    output.extend(length);
    output.extend(body);
    output.resize(output.len() + padded - body.len(), 0);
    output.extend(length);
}

/// Deterministic pseudo-random numbers.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Battery: I3
#[test]
fn packets_of_the_corpus_with_two_percent_of_their_bytes_changed() {
    changed("packets_of_the_corpus_with_two_percent_of_their_bytes_changed", 10);
}

/// Battery: I3
#[test]
#[ignore = "takes some minutes: make test-all"]
fn the_corpus_with_two_percent_of_its_bytes_changed() {
    changed("the_corpus_with_two_percent_of_its_bytes_changed", 1);
}

/// One packet in `share` of the corpus, each byte changed with a probability of 2 %, in files of 100,000 packets with
/// an interface for each link type, through every command.
fn changed(test: &str, share: usize) {
    const PACKETS: usize = 100_000;
    let (true, Some(corpus)) = (require_root(test), corpus(test)) else { return };
    let Some(group) = ControlGroup::limited(test, 400 << 20) else { return };
    let seed = std::env::var("WIRELANE_SEED").map_or(0x5eed, |seed| seed.parse().unwrap());
    println!("WIRELANE_SEED={seed}");
    let mut chance = Chance(seed | 1);
    let folder = tempfile::tempdir().unwrap();
    let commands = reading(folder.path()).unwrap();
    let (mut links, mut interfaces, mut packets, mut files) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut number, mut read) = (0, 0);
    let mut file = |interfaces: &[u8], packets: &mut Vec<u8>, number: &mut usize| {
        let path = folder.path().join(format!("changed-{}.pcapng", files.len()));
        let mut output = fs::File::create(&path).unwrap();
        let mut section = Vec::new();
        block(
            &mut section,
            0x0a0d_0d0a,
            &[&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat(),
        );
        output.write_all(&[&section, interfaces, packets].concat()).unwrap();
        files.push((path, *number));
        packets.clear();
        *number = 0;
    };
    for capture in Capture::all(&corpus).unwrap() {
        let path = folder.path().join("capture");
        fs::write(&path, capture.bytes().unwrap()).unwrap();
        let Ok(mut source) = FileSource::open(&path, FileOptions::as_written()) else { continue };
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            for record in batch {
                read += 1;
                if !usize::is_multiple_of(read, share) {
                    continue;
                }
                let link = record.link_type();
                let interface = links.iter().position(|known| *known == link).unwrap_or_else(|| {
                    links.push(link);
                    let number = wirelane::linktype::number(link).unwrap_or(147) as u16;
                    block(&mut interfaces, 1, &[&number.to_le_bytes()[..], &[0; 6]].concat());
                    links.len() - 1
                });
                let mut data = record.data().to_vec();
                let mut at = chance.next() % 100;
                while at < data.len() as u64 {
                    data[at as usize] = chance.next() as u8;
                    // The mean distance between changed bytes is 50.
                    at += 1 + chance.next() % 99;
                }
                let us = (record.header().ts_ns / 1000).to_le_bytes();
                let lengths = [
                    (data.len() as u32).to_le_bytes(),
                    record.wire_len().max(data.len() as u32).to_le_bytes(),
                ];
                let head = [&(interface as u32).to_le_bytes(), &us[4..], &us[..4], &lengths[0], &lengths[1]]
                    .concat();
                block(&mut packets, 6, &[head, data].concat());
                number += 1;
                if number == PACKETS {
                    file(&interfaces, &mut packets, &mut number);
                }
            }
        }
    }
    file(&interfaces, &mut packets, &mut number);
    let total: usize = files.iter().map(|(_, packets)| packets).sum();
    assert!(total > 200_000 / share, "{total} packets");
    for (path, packets) in &files {
        for words in &commands {
            // A pcap file has only one link type.
            if words.iter().any(|word| word == "pcap") {
                continue;
            }
            let (output, took) = run(&group, words, path, LONG_TIME);
            println!("{words:?}: {packets} packets in {} ms", took.as_millis());
            assert_eq!(group.killed(), 0, "{words:?}: more than {} bytes", 400 << 20);
            assert!(output.status.success(), "{words:?}: {:?}", wrong(&output, path));
            assert_eq!(column(&last(&output).unwrap(), "analysed"), *packets as u64, "{words:?}");
        }
    }
}
