//! `record`, killed at any moment: all readers can read the file up to the cut.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, send};
use wirelane_tests::recordings::{
    NOON_NS, capinfos, count_packets, name, numbers, packet, tshark, write_header, write_packet,
};
use wirelane_tests::{Lab, Signal, require_root, wirelane_binary};

/// Bytes of each packet. Its pcapng block has 32 more.
const SIZE: usize = 500;

/// xorshift64: the same offsets in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Feeds an endless recording, kills it by SIGKILL once its file has so many bytes, and returns the file.
fn kill_at(folder: &Path, file: &str, options: &[&str], bytes: u64) -> PathBuf {
    let output = folder.join(file);
    let part = folder.join(format!("{file}.part"));
    let mut child = Command::new(wirelane_binary().unwrap())
        .args(["record", "-r", "-", "-w", output.to_str().unwrap(), "--interval", "1000"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let mut input = BufWriter::with_capacity(64 << 10, input);
        // The feeder ends when the reader is gone.
        let _ = write_header(&mut input).and_then(|()| {
            (0..u64::MAX).try_for_each(|n| write_packet(&mut input, NOON_NS + n, &packet(n, SIZE)))
        });
        let _ = input.flush();
    });
    let start = Instant::now();
    while fs::metadata(&part).map_or(0, |metadata| metadata.len()) < bytes {
        assert!(start.elapsed() < LIMIT && child.try_wait().unwrap().is_none(), "{file} does not grow");
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    feeder.join().unwrap();
    assert!(!output.exists(), "only what is whole has its name");
    part
}

/// Number of complete packets in a pcapng or pcap file of ours, by its bytes alone.
fn whole_packets(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut packets = 0;
    if name(file).starts_with("pcapng") {
        let mut at = 0;
        while at + 8 <= bytes.len() && at + word(at + 4) <= bytes.len() {
            packets += u64::from(word(at) == 6);
            at += word(at + 4);
        }
    } else {
        let mut at = 24;
        while at + 16 <= bytes.len() && at + 16 + word(at + 8) <= bytes.len() {
            packets += 1;
            at += 16 + word(at + 8);
        }
    }
    packets
}

/// Checks a cut file with our reader and capinfos; returns the number of packets.
fn check(file: &Path, compressed: bool) -> u64 {
    if fs::metadata(file).unwrap().len() < 400 {
        return 0; // cut within the first headers
    }
    let (found, damage) = numbers(file).unwrap();
    assert!(found.iter().copied().eq(0..found.len() as u64), "{}: packets in their order", file.display());
    let found = found.len() as u64;
    assert_eq!(capinfos(file).unwrap().0, found, "{}: {damage:?}", file.display());
    if !compressed {
        assert_eq!(found, whole_packets(file), "{}: {damage:?}", file.display());
    }
    found
}

/// Battery: F4
#[test]
fn a_killed_recording_is_read_up_to_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(0x5eed);
    let (mut packets, mut cut_in_a_packet) = (0, 0);
    for round in 0..100 {
        let (file, options): (_, &[&str]) = match round % 10 {
            0..=5 => ("pcapng", &[]),
            6 => ("pcap.pcap", &[]),
            7 => ("pcapng.direct", &["--direct-io"]),
            _ => ("zstd.pcapng.zst", &["--compress", "zstd:1"]),
        };
        let compressed = file.ends_with("zst");
        let file = kill_at(folder.path(), file, options, random.below(3 << 20).max(1));
        packets += check(&file, compressed);
        // After a power failure, a file may end anywhere.
        let len = fs::metadata(&file).unwrap().len();
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(random.below(len) + 1).unwrap();
        let found = check(&file, compressed);
        packets += found;
        cut_in_a_packet += u64::from(numbers(&file).is_ok_and(|(_, damage)| damage.is_some()));
        if round % 20 < 10 && round % 3 == 0 && found > 0 {
            assert_eq!(tshark(&file).unwrap(), found, "{}", file.display());
        }
        fs::remove_file(&file).unwrap();
    }
    assert!(packets > 100_000, "only {packets} packets were there to be read");
    assert!(cut_in_a_packet > 80, "only {cut_in_a_packet} files were cut in a packet");
}

#[test]
fn a_killed_capture_leaves_its_part_and_the_next_one_leaves_it_alone() {
    if !require_root("a_killed_capture_leaves_its_part_and_the_next_one_leaves_it_alone") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    let device = lab.receiver().device.as_str();
    let words = [
        "record",
        "-i",
        device,
        "-w",
        file.to_str().unwrap(),
        "--json",
        "--post-rotate",
        "true",
        "--interval",
        "0.2",
    ];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 5000, &[]).unwrap();
    // Half a second after the last packet all packets are in the file, even if the process is killed then.
    let part = folder.path().join("out.pcapng.part");
    let start = Instant::now();
    while count_packets(&part).unwrap_or(0) < 5000 {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(20));
    }
    let helpers = children(child.pid());
    assert_eq!(helpers.len(), 1, "the helper for --post-rotate");
    child.signal(Signal::Kill).unwrap();
    drop(child.finish(LIMIT).unwrap());
    assert!(!file.exists());
    let dead = fs::read(&part).unwrap();
    let start = Instant::now();
    while Path::new(&format!("/proc/{}", helpers[0])).exists() {
        assert!(start.elapsed() < LIMIT, "the helper ends with its recording");
        std::thread::sleep(Duration::from_millis(20));
    }
    let child = capture(&lab, &words).unwrap();
    send(&lab, 10, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("out.pcapng.part is there already"), "{}", finished.stderr);
    assert_eq!(capinfos(&file).unwrap(), (10, true));
    assert_eq!(fs::read(&part).unwrap(), dead);
}

/// The children of a process, and their children.
fn children(pid: u32) -> Vec<u32> {
    let output = Command::new("pgrep").arg("-P").arg(pid.to_string()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.parse().ok()).collect()
}
