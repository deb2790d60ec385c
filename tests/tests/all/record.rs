//! `record`, read back by tcpdump, capinfos and our own reader.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_tests::numbers::{capture, column, finish, number_of, send, wirelane};
use wirelane_tests::{Lab, corpus, require_root, wirelane_binary};

/// Packets of a capture by tcpdump.
fn tcpdump_count(file: &Path) -> u64 {
    let output = Command::new("tcpdump").args(["-nn", "--count", "-r"]).arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace().next().unwrap_or_else(|| panic!("{output:?}"));
    words.parse().unwrap_or_else(|_| panic!("{output:?}"))
}

/// Packets, and interfaces by name with their packets, by capinfos.
fn capinfos(file: &Path) -> (u64, Vec<(String, u64)>) {
    let output =
        Command::new("capinfos").arg("-M").arg(file).output().expect("scripts/setup installs capinfos");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = |line: &str| line.rsplit_once('=').map(|(_, value)| value.trim().to_owned());
    let packets = text.lines().find_map(|line| line.strip_prefix("Number of packets:")).unwrap().trim();
    let mut interfaces: Vec<(String, u64)> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Name =") {
            interfaces.push((value(line).unwrap(), 0));
        } else if line.starts_with("Number of packets =")
            && let Some(last) = interfaces.last_mut()
        {
            last.1 = value(line).unwrap().parse().unwrap();
        }
    }
    (packets.parse().unwrap(), interfaces)
}

/// All packets of a capture by our own reader.
fn read(file: &Path) -> Vec<(u64, Option<u64>, Vec<u8>)> {
    let mut source = FileSource::open(file, FileOptions::as_written()).unwrap();
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        packets.extend(batch.map(|r| (r.header().ts_ns, number_of(&r), r.data().to_vec())));
    }
    packets
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Records the packets sent on the lab's receiver; returns the file and the last object.
fn recording(lab: &Lab, folder: &Path, name: &str, options: &[&str]) -> (PathBuf, Value) {
    let file = folder.join(name);
    let words = [
        &["record", "-i", &lab.receiver().device, "--hook", "native", "--direction", "rx", "-w"][..],
        &[file.to_str().unwrap(), "--json"],
        options,
    ]
    .concat();
    let child = capture(lab, &words).unwrap();
    send(lab, 8192, &[]).unwrap();
    (file, finish(child).unwrap())
}

#[test]
fn a_recording_has_an_interface_per_queue_and_every_packet() {
    if !require_root("a_recording_has_an_interface_per_queue_and_every_packet") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let begin = now_ns();
    let (file, last) = recording(&lab, folder.path(), "all.pcapng", &[]);
    let end = now_ns();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (8192, 0));
    assert_eq!(tcpdump_count(&file), 8192);
    let (packets, interfaces) = capinfos(&file);
    assert_eq!(packets, 8192);
    let ledger: Vec<(String, u64)> = last["virtual_devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            let name = format!("{}@{}", line["device"].as_str().unwrap(), line["queue"]);
            (name, column(line, "analysed"))
        })
        .collect();
    assert_eq!(interfaces, ledger);

    let mut numbers: Vec<u64> = Vec::new();
    for (time, number, data) in read(&file) {
        assert!((begin..=end).contains(&time), "{time} is not between {begin} and {end}");
        assert_eq!(data.len(), 60);
        numbers.push(number.unwrap());
    }
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(0..8192));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn statistics_blocks_hold_the_ledger() {
    if !require_root("statistics_blocks_hold_the_ledger") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (file, last) = recording(&lab, folder.path(), "all.pcapng", &[]);
    // Interface Statistics Blocks (type 5), read by hand: block type and length, interface, time, then options.
    let bytes = std::fs::read(&file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let (kind, len) = (word(at), word(at + 4) as usize);
        if kind == 5 {
            let mut counts = std::collections::BTreeMap::new();
            let mut option = at + 20;
            while option + 12 <= at + len {
                let (code, size) = (word(option) & 0xffff, (word(option) >> 16) as usize);
                if size == 8 {
                    let value = u64::from_le_bytes(bytes[option + 4..option + 12].try_into().unwrap());
                    counts.insert(code, value);
                }
                option += 4 + size.next_multiple_of(4);
            }
            found.push((word(at + 8), counts));
        }
        at += len;
    }
    let lines = last["virtual_devices"].as_array().unwrap();
    assert_eq!(found.len(), lines.len());
    for ((id, counts), line) in found.iter().zip(lines) {
        // isb_ifrecv 4, isb_ifdrop 5, isb_filteraccept 6, isb_osdrop 7, isb_usrdeliv 8.
        assert_eq!(u64::from(*id), column(line, "queue"));
        assert_eq!((counts[&4], counts[&8]), (column(line, "seen"), column(line, "analysed")));
        assert_eq!((counts[&5], counts[&7], counts[&6]), (0, 0, column(line, "seen")));
    }
}

#[test]
fn plain_pcap_and_pipes_work() {
    if !require_root("plain_pcap_and_pipes_work") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = recording(&lab, folder.path(), "all.pcap", &[]);
    assert_eq!(std::fs::read(&file).unwrap()[..4], 0xa1b2_3c4du32.to_le_bytes(), "nanosecond pcap");
    assert_eq!((tcpdump_count(&file), read(&file).len()), (8192, 8192));

    let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
    let device = lab.receiver().device.as_str();
    command.args(["record", "-i", device, "-w", "-", "-c", "50", "--duration", "20"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut head = [0; 4];
    pipe.read_exact(&mut head).unwrap();
    send(&lab, 50, &[]).unwrap();
    let mut bytes = head.to_vec();
    pipe.read_to_end(&mut bytes).unwrap();
    assert!(child.wait().unwrap().success());
    let copy = folder.path().join("pipe.pcapng");
    std::fs::write(&copy, bytes).unwrap();
    assert_eq!(read(&copy).len(), 50);
}

#[test]
fn a_closed_pipe_ends_the_recording_with_a_reason() {
    if !require_root("a_closed_pipe_ends_the_recording_with_a_reason") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.as_str();
    let mut command = lab.command(&lab.receiver().namespace, wirelane_binary().unwrap());
    command.args(["record", "-i", device, "-w", "-", "--duration", "20"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 4]).unwrap();
    drop(pipe);
    send(&lab, 1000, &[]).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("Broken pipe"), "{error}");
}

#[test]
fn a_file_recorded_from_a_file_is_the_same_capture() {
    let Some(corpus) = corpus("a_file_recorded_from_a_file_is_the_same_capture") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for category in ["apps", "decode", "encap", "fileformat", "filter", "voip"] {
        for entry in std::fs::read_dir(corpus.join("captures").join(category)).unwrap() {
            let input = entry.unwrap().path();
            if !matches!(input.extension().and_then(|e| e.to_str()), Some("pcap" | "pcapng" | "cap")) {
                continue;
            }
            let output = folder.path().join("copy.pcapng");
            let status = Command::new(wirelane_binary().unwrap())
                .args([
                    "record",
                    "--overwrite",
                    "-r",
                    input.to_str().unwrap(),
                    "-w",
                    output.to_str().unwrap(),
                ])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            if !status.success() {
                continue; // damaged: the file engine's own tests say which and where
            }
            // The copy is in time order.
            let mut expected = read(&input);
            expected.sort_by_key(|(time, ..)| *time);
            assert_eq!(expected, read(&output), "{}", input.display());
            checked += 1;
        }
    }
    assert!(checked >= 200, "only {checked} captures");
}

#[test]
fn the_first_packet_after_ready_is_recorded() {
    if !require_root("the_first_packet_after_ready_is_recorded") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    for hook in ["native", "generic", "tc"] {
        let device = lab.receiver().device.as_str();
        let child = capture(&lab, &["count", "-i", device, "--json", "--hook", hook, "-c", "1"]).unwrap();
        send(&lab, 1, &[]).unwrap();
        let last = wirelane_tests::numbers::last_of(&child.finish(Duration::from_secs(10)).unwrap()).unwrap();
        assert_eq!(column(&last, "analysed"), 1, "{hook}");
    }
    drop(wirelane(&lab, &lab.receiver().namespace, &["devices"]).unwrap());
}
