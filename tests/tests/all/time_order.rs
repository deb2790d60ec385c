//! Time order of records over RX queues, CPUs, directions and devices, verified by capinfos.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use wirelane::{FileOptions, FileSource};
use wirelane_tests::numbers::{
    LIMIT, capture, column, finish, last_of, number_of, until_packets_come, wirelane,
};
use wirelane_tests::{Child, End, Lab, LabOptions, Signal, require_root};

/// Packets sent by each end of each link.
const SENT: u64 = 60_000;

/// Rounds of each case; `WIRELANE_ORDER_ROUNDS` sets more.
fn rounds() -> u32 {
    std::env::var("WIRELANE_ORDER_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2)
}

/// True if capinfos reports strict time order of a file's packets.
fn is_strictly_ordered(file: &Path) -> bool {
    let output = Command::new("capinfos")
        .args(["-o", "-M"])
        .arg(file)
        .output()
        .expect("scripts/setup installs capinfos");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Strict time order:"));
    match line.map(str::trim) {
        Some("True") => true,
        Some("False") => false,
        _ => panic!("{output:?}"),
    }
}

/// Occurrences of each number of the generator's packets in a file, and the number of these packets.
fn times(file: &Path) -> (Vec<u8>, u64) {
    let mut source = FileSource::open(file, FileOptions::as_written()).unwrap();
    let mut seen = vec![0; SENT as usize];
    while let Some(batch) = source.next_batch(LIMIT).unwrap() {
        for number in batch.filter_map(|record| number_of(&record)) {
            seen[number as usize] += 1;
        }
    }
    let packets = seen.iter().map(|times| u64::from(*times)).sum();
    (seen, packets)
}

/// Number of the generator's packets in a file, after a check that each number occurs once per sender.
fn numbered(file: &Path, senders: u8) -> u64 {
    let (seen, packets) = times(file);
    let wrong = seen.iter().position(|times| *times != senders);
    assert_eq!(wrong, None, "this number was not recorded from each of {senders} senders");
    packets
}

/// Starts a generator with these options on an end of a link.
fn sender(lab: &Lab, end: &End, options: &[&str]) -> Child {
    let packets = SENT.to_string();
    let method = ["--packets", &packets, "--method", "socket", "--size", "60", "--json"];
    let words = [&["send", "-i", &end.device][..], &method, options].concat();
    wirelane(lab, &end.namespace, &words).unwrap()
}

/// Starts generators on both ends of all links.
fn senders(lab: &Lab, options: &[&str]) -> Vec<Child> {
    let ends = lab.links.iter().flat_map(|link| [&link.sender, &link.receiver]);
    ends.map(|end| sender(lab, end, options)).collect()
}

/// Records while both ends of all links send at full speed, and verifies the order with capinfos. Returns the folder of
/// the recordings, which have been removed.
fn check(options: &LabOptions, words: &[&str], lost: u64) -> TempDir {
    let lab = Lab::with(options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for round in 0..rounds() {
        let file = folder.path().join(format!("{round}.pcapng"));
        let devices: Vec<&str> = lab.links.iter().map(|link| link.receiver.device.as_str()).collect();
        let base = ["record", "-i", &devices.join(","), "-w", file.to_str().unwrap(), "--json"];
        let child = capture(&lab, &[&base, words].concat()).unwrap();
        for sender in senders(&lab, &[]) {
            assert_eq!(column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"), SENT);
        }
        let last = finish(child).unwrap();
        assert_eq!(
            (column(&last, "lost"), column(&last, "delivered")),
            (lost, column(&last, "analysed")),
            "{last}"
        );
        assert!(is_strictly_ordered(&file), "round {round} of {words:?}: the recording is out of time order");
        assert_eq!(numbered(&file, 2 * lab.links.len() as u8), column(&last, "analysed"));
        assert_eq!(column(&last, "written"), column(&last, "analysed"));
        std::fs::remove_file(&file).unwrap();
    }
    folder
}

/// [`check`], if the test may create network namespaces.
fn test(name: &str, options: &LabOptions, words: &[&str]) {
    if require_root(name) {
        check(options, words, 0);
    }
}

/// [`check`] with three workers and `--single-file`: their files become one, which is in time order.
fn check_merged(options: &LabOptions, hook: &str) {
    let words = ["--hook", hook, "--ring-size", "64", "--workers", "3", "--single-file"];
    let folder = check(options, &words, 0);
    let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains("-w")).collect();
    assert!(left.is_empty(), "the workers' files are removed: {left:?}");
}

#[test]
fn several_workers_record_into_a_single_file_in_time_order() {
    if require_root("several_workers_record_into_a_single_file_in_time_order") {
        for hook in ["tc", "native"] {
            check_merged(&LabOptions { queues: 4, ..LabOptions::default() }, hook);
        }
    }
}

#[test]
fn a_single_file_replaces_nothing_and_takes_any_number_of_workers() {
    if !require_root("a_single_file_replaces_nothing_and_takes_any_number_of_workers") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcap");
    let record = |words: &[&str]| {
        let base = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--single-file"];
        wirelane(&lab, &lab.receiver().namespace, &[&base, words].concat()).unwrap()
    };
    for workers in ["1", "2"] {
        std::fs::write(&file, "precious").unwrap();
        let refused = record(&["--workers", workers]).finish(LIMIT).unwrap();
        assert!(!refused.status.success() && refused.stderr.contains("exists"), "{}", refused.stderr);
        std::fs::remove_file(&file).unwrap();
        // An empty recording is a complete file.
        let empty = record(&["--workers", workers, "--duration", "0.1", "--json"]).finish(LIMIT).unwrap();
        assert_eq!(column(&last_of(&empty).unwrap(), "files"), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
    let refused = record(&["--workers", "2", "--rotate-size", "1MiB"]).finish(LIMIT).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}

#[test]
fn tc_records_both_directions_in_time_order() {
    let options = LabOptions { queues: 4, ..LabOptions::default() };
    let words = ["--hook", "tc", "--direction", "both", "--ring-size", "64"];
    test("tc_records_both_directions_in_time_order", &options, &words);
}

#[test]
fn native_xdp_and_tc_record_both_directions_in_time_order() {
    let options = LabOptions { queues: 4, ..LabOptions::default() };
    let words = ["--hook", "native", "--direction", "both", "--ring-size", "64"];
    test("native_xdp_and_tc_record_both_directions_in_time_order", &options, &words);
}

#[test]
fn two_devices_are_recorded_in_time_order() {
    let options = LabOptions { queues: 2, links: 2, ..LabOptions::default() };
    let words = ["--hook", "tc", "--direction", "both", "--ring-size", "64"];
    test("two_devices_are_recorded_in_time_order", &options, &words);
}

#[test]
fn packet_sockets_record_both_directions_of_two_devices_in_time_order() {
    let options = LabOptions { queues: 4, links: 2, ..LabOptions::default() };
    let words = ["--engine", "packet", "--direction", "both", "--ring-size", "64"];
    test("packet_sockets_record_both_directions_of_two_devices_in_time_order", &options, &words);
}

/// Several CPUs write to the socket's blocks at the same time.
#[test]
fn one_packet_socket_records_what_several_processes_send_in_time_order() {
    if !require_root("one_packet_socket_records_what_several_processes_send_in_time_order") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng");
    let base = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--json"];
    let options = ["--engine", "packet", "--direction", "rx", "--ring-size", "64"];
    let recorder = capture(&lab, &[&base[..], &options].concat()).unwrap();
    let all: Vec<_> = (0..3).map(|_| sender(&lab, lab.sender(), &[])).collect();
    for sender in all {
        assert_eq!(column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"), SENT);
    }
    assert_eq!(column(&finish(recorder).unwrap(), "lost"), 0);
    assert!(is_strictly_ordered(&file));
    assert_eq!(numbered(&file, 3), 3 * SENT);
}

/// Both ends send at a steady rate while the recorder is stopped for 0.3 s, or for 0.6 s with rings of so few MiB that
/// packets are lost.
fn check_stopped(engine: &str, ring_size: &str, loses: bool) {
    let lab = Lab::with(&LabOptions { queues: 4, ..LabOptions::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng");
    let base = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--json"];
    let options = ["--direction", "both", "--engine", engine, "--ring-size", ring_size, "--interval", "0.1"];
    let recorder = capture(&lab, &[&base[..], &options].concat()).unwrap();
    let senders = senders(&lab, &["--rate", "50000"]);
    until_packets_come(&recorder).unwrap();
    recorder.signal(Signal::Stop).unwrap();
    std::thread::sleep(Duration::from_millis(if loses { 600 } else { 300 }));
    recorder.signal(Signal::Continue).unwrap();
    let all: u64 = senders
        .into_iter()
        .map(|sender| column(&last_of(&sender.finish(LIMIT).unwrap()).unwrap(), "sent"))
        .sum();
    // The command fails if the ledger does not balance.
    let last = finish(recorder).unwrap();
    let (analysed, lost) = (column(&last, "analysed"), column(&last, "lost"));
    assert_eq!((all, column(&last, "seen"), column(&last, "in_flight")), (2 * SENT, 2 * SENT, 0), "{last}");
    assert_eq!((analysed + lost, lost > 0), (all, loses), "{last}");
    assert!(is_strictly_ordered(&file), "engine {engine}: the recording is out of time order");
    let (seen, packets) = times(&file);
    assert_eq!((packets, seen.iter().max()), (analysed, Some(&2)));
    assert_eq!(seen.iter().map(|times| u64::from(2 - times)).sum::<u64>(), lost);
}

#[test]
fn a_recording_is_in_time_order_after_its_process_was_stopped() {
    if require_root("a_recording_is_in_time_order_after_its_process_was_stopped") {
        for engine in ["ring", "packet"] {
            check_stopped(engine, "64", false);
            check_stopped(engine, "1", true);
        }
    }
}
