//! Every output to a file, on a disk that is full for a while and on one with failing writes (EIO): the analysis goes
//! on, each record is written or counted, no line or message is torn, and writing resumes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::frames::replay_stream;
use wirelane_tests::mixture::Mixture;
use wirelane_tests::numbers::{LIMIT, capture, column};
use wirelane_tests::recordings::{Disk, NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Lab, require_root, wirelane_binary};

/// One output: a command with `FILE` in its options, and the place of its counts in the last object.
struct Output {
    words: &'static [&'static str],
    file: &'static str,
    account: &'static str,
    written: &'static str,
    unwritten: &'static str,
}

const OUTPUTS: [Output; 9] = [
    Output {
        words: &["http", "--log", "json:FILE"],
        file: "a.json",
        account: "logs",
        written: "lines",
        unwritten: "unwritten",
    },
    Output {
        words: &["http", "--log", "combined:FILE"],
        file: "a.log",
        account: "logs",
        written: "lines",
        unwritten: "unwritten",
    },
    Output {
        words: &["http", "--export", "file:FILE"],
        file: "a.ipfix",
        account: "exports",
        written: "transactions",
        unwritten: "unsent",
    },
    Output {
        words: &["flows", "--export", "file:FILE"],
        file: "a.json",
        account: "exports",
        written: "flows",
        unwritten: "unsent_flows",
    },
    Output {
        words: &["flows", "--export", "file:FILE"],
        file: "a.csv",
        account: "exports",
        written: "flows",
        unwritten: "unsent_flows",
    },
    Output {
        words: &["flows", "--export", "file:FILE"],
        file: "a.ipfix",
        account: "exports",
        written: "flows",
        unwritten: "unsent_flows",
    },
    Output {
        words: &["voip", "--export", "file:FILE"],
        file: "a.json",
        account: "exports",
        written: "records",
        unwritten: "unsent",
    },
    Output {
        words: &["voip", "--export", "file:FILE"],
        file: "a.csv",
        account: "exports",
        written: "records",
        unwritten: "unsent",
    },
    Output {
        words: &["voip", "--export", "file:FILE"],
        file: "a.ipfix",
        account: "exports",
        written: "records",
        unwritten: "unsent",
    },
];

/// Number of outputs, each of a process of its own, that have the same traffic.
const AT_A_TIME: usize = 3;

/// Options that make a command write records continuously.
fn hurry(command: &str) -> &'static [&'static str] {
    match command {
        "flows" => &["--inactive-timeout", "0.3", "--active-timeout", "1"],
        "http" => &["--idle-timeout", "1"],
        _ => &["--linger", "0.1", "--answer-timeout", "0.5"],
    }
}

/// Sends the mix for this time.
fn traffic(lab: &Lab, time: Duration) {
    const RATE: u64 = 2000;
    let frames = time.as_millis() as u64 * RATE / 1000;
    let mut mixture = Mixture::new();
    replay_stream(lab, "recorded", |output| {
        write_header(output)?;
        for (number, frame) in mixture.by_ref().take(frames as usize).enumerate() {
            write_packet(output, NOON_NS + number as u64 * 1_000_000_000 / RATE, &frame)?;
        }
        Ok(())
    })
    .unwrap();
}

/// Number of records in a file; a torn line or message fails the test.
fn records(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let text = || {
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{}: the last line is torn", file.display());
        text
    };
    match file.extension().unwrap().to_str().unwrap() {
        "json" => {
            let text = text();
            for line in text.lines() {
                let record = serde_json::from_str::<Value>(line);
                assert!(record.is_ok_and(|record| record.is_object()), "{}: {line}", file.display());
            }
            text.lines().count() as u64
        }
        "csv" => {
            let text = text();
            let columns = |line: &str| line.split("\",\"").count().max(line.split(',').count());
            let head = text.lines().next().map_or(0, columns);
            for line in text.lines() {
                assert!(columns(line) >= head, "{}: a short line: {line}", file.display());
            }
            text.lines().count().saturating_sub(1) as u64
        }
        "ipfix" => {
            // Messages by their lengths (RFC 7011, section 3.1), up to the end of the file.
            let (mut at, mut messages) = (0, 0);
            while at < bytes.len() {
                let head =
                    bytes.get(at..at + 16).unwrap_or_else(|| panic!("{}: torn at {at}", file.display()));
                assert_eq!((head[0], head[1]), (0, 10), "{}: no message at {at}", file.display());
                at += usize::from(u16::from_be_bytes([head[2], head[3]]));
                messages += 1;
            }
            assert_eq!(at, bytes.len(), "{}: the last message is torn", file.display());
            messages
        }
        _ => text().lines().count() as u64,
    }
}

/// Starts the command of an output.
fn start(lab: &Lab, output: &Output, file: &Path) -> Child {
    let words: Vec<String> =
        output.words.iter().map(|word| word.replace("FILE", file.to_str().unwrap())).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let device = ["-i", &lab.receiver().device, "--json", "--quiet", "--direction", "rx"];
    capture(lab, &[&words[..], &device, hurry(words[0])].concat()).unwrap()
}

/// Compares the counts of an output with its file; returns the numbers of written and unwritten records.
fn account(output: &Output, file: &Path, child: Child) -> (u64, u64) {
    let finished = child.terminate(LIMIT).unwrap();
    let last = finished.last_json().unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
    assert_eq!(last["final"], true, "{}", finished.stderr);
    assert_eq!(column(&last, "lost"), 0, "{last}");
    let counts = &last[output.account][0];
    let (written, unwritten) = (column(counts, output.written), column(counts, output.unwritten));
    let there = records(file);
    whole(output, &last);
    if file.extension().unwrap() != "ipfix" {
        assert_eq!(there, written, "{:?}, {}: {counts}", output.words, file.display());
    }
    (written, unwritten)
}

/// Asserts that every record that a command has for its output is written, unwritten or suppressed.
fn whole(output: &Output, last: &Value) {
    let counts = &last[output.account][0];
    let total = match output.words[0] {
        "flows" => column(last, "flows"),
        "http" => column(last, "transactions"),
        _ if output.file == "a.ipfix" => column(last, "streams"),
        // A line is a call with its streams.
        _ => column(last, "calls"),
    };
    let suppressed = if output.words[0] == "flows" { "suppressed_flows" } else { "suppressed" };
    let columns = [output.written, output.unwritten, suppressed].map(|name| column(counts, name));
    assert_eq!(columns.iter().sum::<u64>(), total, "{:?} {}: {last}", output.words, output.file);
}

/// Battery: F3
#[test]
fn outputs_on_a_full_disk_count_and_go_on() {
    if !require_root("outputs_on_a_full_disk_count_and_go_on") {
        return;
    }
    for outputs in OUTPUTS.chunks(AT_A_TIME) {
        let lab = Lab::new(1).unwrap();
        let running: Vec<(&Output, Disk, PathBuf, Child)> = outputs
            .iter()
            .map(|output| {
                let disk = Disk::new("tmpfs", "size=512k").unwrap();
                let file = disk.path().join(output.file);
                let child = start(&lab, output, &file);
                // 8 KiB stay free.
                fs::write(disk.path().join("ballast"), vec![0; 504 << 10]).unwrap();
                (output, disk, file, child)
            })
            .collect();
        traffic(&lab, Duration::from_millis(1500));
        let full: Vec<u64> =
            running.iter().map(|(_, _, file, _)| fs::metadata(file).unwrap().len()).collect();
        for (_, disk, ..) in &running {
            fs::remove_file(disk.path().join("ballast")).unwrap();
        }
        // Writing is retried every second.
        traffic(&lab, Duration::from_millis(2500));
        std::thread::sleep(Duration::from_millis(1200));
        for ((output, _disk, file, child), full) in running.into_iter().zip(full) {
            let (written, unwritten) = account(output, &file, child);
            println!("{:?} {}: {written} written, {unwritten} not", output.words, output.file);
            assert!(
                fs::metadata(&file).unwrap().len() > full,
                "{:?}: nothing was written once there was room",
                output.words
            );
        }
    }
}

/// A program under strace, which makes system calls on a file fail as a broken disk does, from the `from`th to the
/// `to`th.
fn on_a_broken_disk(lab: &Lab, output: &Output, file: &Path, from: u32, to: u32) -> Child {
    let words: Vec<String> =
        output.words.iter().map(|word| word.replace("FILE", file.to_str().unwrap())).collect();
    let calls = "write,pwrite64,writev,pwritev,fsync,fdatasync";
    let inject = format!("inject={calls}:error=EIO:when={from}..{to}");
    let mut command = lab.command(&lab.receiver().namespace, "strace");
    // Calls that are not traced do not stop the program.
    command.args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-P", file.to_str().unwrap()]);
    command.args(["-e", &format!("trace={calls}"), "-e", &inject]);
    command.arg(wirelane_binary().unwrap()).args(&words).args(hurry(&words[0]));
    // strace replaces the number of an injected call by -1, which no allow list of seccomp contains.
    command.args(["--keep-rights"]);
    command.args(["-i", &lab.receiver().device, "--json", "--quiet", "--direction", "rx"]);
    let mut child = Child::spawn(&mut command).unwrap();
    child.wait_ready(LIMIT).unwrap();
    child
}

/// The program that strace runs.
fn traced(child: &Child) -> u32 {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.pid())).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

/// Battery: F3
#[test]
fn outputs_on_a_failing_disk_count_and_go_on() {
    const NAME: &str = "outputs_on_a_failing_disk_count_and_go_on";
    if !require_root(NAME) {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        println!("left out: {NAME} (no strace)");
        return;
    }
    for outputs in OUTPUTS.chunks(AT_A_TIME) {
        let lab = Lab::new(1).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let running: Vec<(&Output, PathBuf, Child)> = outputs
            .iter()
            .map(|output| {
                let file = folder.path().join(output.file);
                let child = on_a_broken_disk(&lab, output, &file, 3, 5);
                (output, file, child)
            })
            .collect();
        traffic(&lab, Duration::from_millis(6000));
        std::thread::sleep(Duration::from_millis(1200));
        for (output, file, child) in running {
            let program = nix::unistd::Pid::from_raw(traced(&child).cast_signed());
            nix::sys::signal::kill(program, nix::sys::signal::Signal::SIGTERM).unwrap();
            let finished = child.finish(LIMIT).unwrap();
            assert!(
                finished.stderr.contains("Input/output error"),
                "{:?}: {}",
                output.words,
                finished.stderr
            );
            let last = finished.last_json().unwrap();
            assert_eq!((&last["final"], column(&last, "lost")), (&true.into(), 0), "{last}");
            let counts = &last[output.account][0];
            let written = column(counts, output.written);
            let there = records(&file);
            println!("{:?} {}: {counts}", output.words, output.file);
            whole(output, &last);
            if file.extension().unwrap() != "ipfix" {
                assert_eq!(there, written, "{:?}: {counts}", output.words);
            }
            assert!(there > 0 && written > 0, "{:?}: nothing was written: {counts}", output.words);
        }
    }
}

/// Each row is in a file or counted, in a store of several hours. Only the store writes at an offset here.
/// Battery: F3
#[test]
fn a_store_whose_writes_fail_counts_its_rows() {
    const NAME: &str = "a_store_whose_writes_fail_counts_its_rows";
    if !require_root(NAME) {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        println!("left out: {NAME} (no strace)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.pcap");
    let mut mixture = Mixture::new();
    mixture.write(&mut File::create(&input).unwrap(), 6000, 2_000_000_000).unwrap();
    for (command, tables, call, when) in [
        ("flows", &["flows"][..], "pwrite64", "1+"),
        ("flows", &["flows"], "pwrite64", "2..2"),
        ("flows", &["flows"], "fsync", "2..2"),
        ("http", &["transactions"], "pwrite64", "1..1"),
        ("voip", &["calls", "streams"], "pwrite64", "1..1"),
        ("voip", &["calls", "streams"], "pwrite64", "2+"),
    ] {
        let store = folder.path().join(format!("{command}-{call}-{when}"));
        let mut strace = Command::new("strace");
        let (trace, inject) = (format!("trace={call}"), format!("inject={call}:error=EIO:when={when}"));
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject]);
        strace.arg(wirelane_binary().unwrap()).args([command, "--keep-rights", "--json", "--quiet", "-r"]);
        strace.arg(&input).arg("--store").arg(&store).args(["--store-rotate", "1s"]);
        let finished = Child::spawn(&mut strace).unwrap().finish(LIMIT).unwrap();
        let last = finished.last_json().unwrap_or_else(|error| panic!("{error}: {}", finished.stderr));
        let counts = &last["store"];
        println!("{command}, {call} {when}: {counts}");
        assert_eq!(last["final"], true, "{}", finished.stderr);
        assert!(finished.stderr.contains("Input/output error"), "{command}: {}", finished.stderr);
        let mut lacking = 0;
        for table in tables {
            let (rows, unwritten) = (rows(&store, table), column(counts, &format!("unwritten_{table}")));
            assert_eq!(column(counts, table), rows, "{command}, {call} {when}: {table} in files: {counts}");
            assert_eq!(rows + unwritten, column(&last, table), "{command}, {call} {when}: {table}: {counts}");
            assert!(when != "1+" || rows == 0, "{command}: {counts}");
            lacking += unwritten;
        }
        // A lost record is a failure.
        assert_eq!(finished.status.code(), Some(i32::from(lacking > 0)), "{counts}: {}", finished.stderr);
        assert!(!when.ends_with('+') || lacking > 0, "{counts}");
    }
}

/// Rows of a table that a query finds in the store.
fn rows(store: &Path, table: &str) -> u64 {
    let sql = format!("SELECT count(*) AS n FROM {table}");
    let mut command = Command::new(wirelane_binary().unwrap());
    let child = Child::spawn(command.args(["query", &sql, "--json", "--store"]).arg(store)).unwrap();
    column(&child.finish(LIMIT).unwrap().last_json().unwrap(), "n")
}

/// A recording and a store on a broken disk end with an account, not with a panic.
/// Battery: F3
#[test]
fn a_recording_whose_writes_fail_is_counted() {
    const NAME: &str = "a_recording_whose_writes_fail_is_counted";
    if !require_root(NAME) {
        return;
    }
    if Command::new("strace").arg("-V").output().is_err() {
        println!("left out: {NAME} (no strace)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.pcap"), folder.path().join("out.pcapng"));
    wirelane_tests::recordings::make_capture(&input, 1000, (0..3000).map(|n| NOON_NS + n)).unwrap();
    let part = folder.path().join("out.pcapng.part");
    let calls = "write,pwrite64,writev,pwritev";
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-P", part.to_str().unwrap()]);
    command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:error=EIO:when=3..4")]);
    command.arg(wirelane_binary().unwrap()).args([
        "record",
        "--keep-rights",
        "--json",
        "-r",
        input.to_str().unwrap(),
        "-w",
    ]);
    let finished = Child::spawn(command.arg(&output)).unwrap().finish(LIMIT).unwrap();
    let last = finished.last_json().unwrap();
    println!("{last}");
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("Input/output error"), "{}", finished.stderr);
    assert_eq!(column(&last, "written") + column(&last, "unwritten"), 3000, "{last}");
    assert!(column(&last, "unwritten") > 0, "{last}");
    let (packets, damage) = wirelane_tests::recordings::numbers(&output).unwrap();
    assert_eq!((packets.len() as u64, damage), (column(&last, "written"), None));
}
