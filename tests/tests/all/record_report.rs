//! Output of `record`: rates, counts that equal the ledger's, progress on a terminal.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::recordings::{
    Disk, NOON_NS, capinfos, count_packets, files, make_capture, tshark, write_header, write_packet,
};
use wirelane_tests::{Lab, require_root, wirelane_binary};

/// Sums of isb_ifrecv (4) and isb_usrdeliv (8) over the Interface Statistics Blocks (type 5) of a file.
fn statistics(file: &Path) -> [u64; 2] {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut sums) = (0, [0, 0]);
    while at < bytes.len() {
        let (kind, len) = (word(at), word(at + 4) as usize);
        let mut option = at + 20;
        while kind == 5 && option + 12 <= at + len {
            let (code, size) = (word(option) & 0xffff, (word(option) >> 16) as usize);
            let value = || u64::from_le_bytes(bytes[option + 4..option + 12].try_into().unwrap());
            match code {
                4 => sums[0] += value(),
                8 => sums[1] += value(),
                _ => {}
            }
            option += 4 + size.next_multiple_of(4);
        }
        at += len;
    }
    sums
}

/// Battery: L11
#[test]
fn a_long_recording_accounts_for_every_packet() {
    if !require_root("a_long_recording_accounts_for_every_packet") {
        return;
    }
    const PACKETS: u64 = 100_000;
    let lab = Lab::new(2).unwrap();
    let disk = Disk::new("tmpfs", "size=60m").unwrap();
    let file = disk.path().join("out.pcapng");
    let device = lab.receiver().device.as_str();
    let words = [
        "record",
        "-i",
        device,
        "-w",
        file.to_str().unwrap(),
        "--json",
        "--rotate-size",
        "2MB",
        "--interval",
        "0.3",
        "--ring-size",
        "32",
    ];
    let child = capture(&lab, &words).unwrap();
    send(&lab, PACKETS, &["--rate", "40k", "--size", "imix"]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    let last = last_of(&finished).unwrap();
    let (analysed, lost) = (column(&last, "analysed"), column(&last, "lost"));
    assert_eq!((column(&last, "seen"), analysed + lost), (PACKETS, PACKETS));
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (analysed, 0));
    // Each interval has its own packets; the last object has all.
    let lines: Vec<Value> =
        finished.json().unwrap().into_iter().filter(|line| line["final"] == false).collect();
    assert!(lines.len() >= 5, "{}", lines.len());
    for field in ["written", "file_bytes", "files"] {
        let sum: u64 = lines.iter().map(|line| column(line, field)).sum();
        assert!(sum <= column(&last, field), "{field}: {sum}");
    }
    assert!(lines.iter().any(|line| line["file_bytes_per_s"].as_f64().unwrap() > 0.0));
    let all = files(disk.path()).unwrap();
    assert_eq!(all.len() as u64, column(&last, "files"));
    let mut sums = [0, 0, 0];
    for file in &all {
        let (packets, whole) = capinfos(file).unwrap();
        assert!(whole, "{}", file.display());
        sums[0] += packets;
        sums[1] += count_packets(file).unwrap();
        sums[2] += std::fs::metadata(file).unwrap().len();
    }
    assert_eq!(sums, [analysed, analysed, column(&last, "file_bytes")]);
    assert_eq!(tshark(&all[0]).unwrap(), count_packets(&all[0]).unwrap());
    // The last file's statistics are those of the whole capture.
    assert_eq!(statistics(all.last().unwrap()), [PACKETS, analysed]);
}

#[test]
fn people_are_told_how_much_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["in.pcap", "out.pcapng"].map(|name| folder.path().join(name));
    make_capture(&input, 100, (0..1000).map(|n| NOON_NS + n)).unwrap();
    let run = Command::new(wirelane_binary().unwrap())
        .args([
            "record",
            "-r",
            input.to_str().unwrap(),
            "-w",
            output.to_str().unwrap(),
            "--rotate-packets",
            "400",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("written 1,000 packets, "), "{text}");
    assert!(text.contains("3 files ended; unwritten 0\n"), "{text}");
    assert!(text.contains("1,000 packets recorded to 3 files"), "{text}");
    assert_eq!(String::from_utf8_lossy(&run.stderr), "", "no progress where nobody sees it");
}

#[test]
fn a_terminal_sees_how_far_a_file_is() {
    // A file that takes a few intervals of a tenth of a second.
    let folder = tempfile::tempdir().unwrap();
    let [input, output, log] = ["in.pcap", "out.pcapng.zst", "log"].map(|name| folder.path().join(name));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&input).unwrap());
    write_header(&mut file).unwrap();
    for n in 0..200_000 {
        write_packet(&mut file, NOON_NS + n, &[n as u8; 200]).unwrap();
    }
    drop(file);
    let command = format!(
        "{} record -r {} -w {} --compress zstd:9 --interval 0.1",
        wirelane_binary().unwrap().display(),
        input.display(),
        output.display()
    );
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &command]).arg(&log);
    let finished =
        wirelane_tests::Child::spawn(&mut script).unwrap().finish(Duration::from_secs(60)).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains(" % of 43.2 MB read, "), "{text}");
    let shares: Vec<u32> =
        text.split('\r').filter_map(|line| line.split_once(" % of ")?.0.trim().parse().ok()).collect();
    assert!(shares.is_sorted() && shares.iter().all(|share| *share <= 100), "{shares:?}");
    assert!(text.contains("200,000 packets recorded to"), "{text}");
    assert_eq!(count_packets(&output).unwrap(), 200_000);
}
