//! Ends of a run other than its limits: a reader that exits, signals, repeated signals.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::{Child, Lab, Signal, require_root, wirelane_binary};

/// `wirelane ... | head -1`: the command ends soon, silently and with success.
#[test]
fn a_reader_that_goes_ends_the_run_quietly() {
    if !require_root("a_reader_that_goes_ends_the_run_quietly") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    let file = file.to_str().unwrap();
    let device = end.device.as_str();
    for words in [
        vec!["count", "-i", device, "--interval", "0.05", "--json"],
        vec!["count", "-i", device, "--interval", "0.05", "--workers", "2"],
        vec!["record", "-i", device, "--interval", "0.05", "-w", file],
        vec!["send", "-i", device, "--rate", "100", "-c", "100", "--interval", "0.05", "--method", "socket"],
        vec!["devices", "--json"],
    ] {
        let mut command = lab.command(&end.namespace, wirelane_binary().unwrap());
        command.args(&words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        // The pipe is closed now.
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LIMIT, "{words:?} runs on without a reader");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(status.success() && errors.is_empty(), "{words:?}: {status} {errors}");
    }
    let info = Command::new("capinfos").args(["-c", file]).output().unwrap();
    assert!(info.status.success(), "the recording was closed as at any other end: {info:?}");
}

/// The first signal asks the run to end; if it is blocked, the second one ends the process by the signal.
#[test]
fn a_second_signal_ends_what_the_first_could_not() {
    if !require_root("a_second_signal_ends_what_the_first_could_not") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    // A recording into a pipe without a reader blocks in its worker.
    let mut command = lab.command(&end.namespace, wirelane_binary().unwrap());
    command.args(["record", "-i", &end.device, "-w", "-", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 4]).unwrap();
    send(&lab, 3000, &["--size", "1000"]).unwrap();
    let pid = child.id().to_string();
    let interrupt = || assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    interrupt();
    // One Ctrl-C may arrive twice: from the terminal and from a parent.
    interrupt();
    std::thread::sleep(Duration::from_millis(800));
    assert!(child.try_wait().unwrap().is_none(), "it waits for the pipe's reader");
    interrupt();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(start.elapsed() < LIMIT, "three signals, and it runs on");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.signal(), Some(libc::SIGINT));
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(errors.contains("second signal"), "{errors}");
}

/// At any time a signal ends the run soon, with its last object if the run had printed that it is ready.
#[test]
fn a_signal_is_heard_at_any_moment_of_the_start() {
    if !require_root("a_signal_is_heard_at_any_moment_of_the_start") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    for delay in [0, 2, 5, 10, 20, 40, 80, 160] {
        let mut command = lab.command(&end.namespace, wirelane_binary().unwrap());
        let child = Child::spawn(command.args(["count", "-i", &end.device, "--json"])).unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        child.signal(Signal::Interrupt).unwrap();
        let finished = child.finish(LIMIT).unwrap();
        if finished.lines.is_empty() {
            assert_eq!(finished.status.signal(), Some(libc::SIGINT), "after {delay} ms: {}", finished.stderr);
        } else {
            last_of(&finished).unwrap();
        }
    }
}

/// The intervals of a capture add up to its end, in every line: also of a device captured in both directions.
#[test]
fn intervals_add_up_to_the_whole() {
    if !require_root("intervals_add_up_to_the_whole") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    let words =
        ["count", "-i", device, "--direction", "both", "--interval", "0.1", "--json", "--workers", "2"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 2000, &["--rate", "2000"]).unwrap();
    lab.exec(
        &lab.receiver().namespace,
        &["ping", "-c", "3", "-i", "0.2", "-W", "1", &lab.sender().address.to_string()],
    )
    .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let objects = child.terminate(LIMIT).unwrap().json().unwrap();
    let (last, intervals) = objects.split_last().unwrap();
    assert!(intervals.len() >= 10, "{} intervals", intervals.len());
    let lines = |object: &serde_json::Value| -> BTreeMap<(bool, u64), u64> {
        let line = |line: &serde_json::Value| {
            ((line["direction"] == "egress", column(line, "queue")), column(line, "analysed"))
        };
        object["virtual_devices"].as_array().unwrap().iter().map(line).collect()
    };
    let mut sums = BTreeMap::new();
    for interval in intervals {
        for (line, analysed) in lines(interval) {
            let sum: &mut u64 = sums.entry(line).or_default();
            *sum = sum.checked_add(analysed).expect("no interval has fewer than none");
        }
    }
    assert_eq!(sums, lines(last));
    assert_eq!(sums[&(true, 0)], 3, "pings transmitted");
    assert_eq!(sums.values().sum::<u64>(), 2000 + 3 + 3);
}
