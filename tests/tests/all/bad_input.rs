//! Invalid input: an error with the cause and the remedy, and exact counts.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use wirelane_tests::numbers::{LIMIT, capture, column, send, wirelane};
use wirelane_tests::{Finished, ForeignXdp, Lab, require_root, wirelane_binary};

fn refused(lab: &Lab, words: &[&str]) -> Finished {
    let finished = wirelane(lab, &lab.receiver().namespace, words).unwrap().finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{words:?}: {}", finished.stderr);
    finished
}

/// Runs the program without a lab.
fn run(words: &[&str]) -> Output {
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn unknown_devices_and_queues_are_named_with_what_there_is() {
    if !require_root("unknown_devices_and_queues_are_named_with_what_there_is") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let device = lab.receiver().device.as_str();
    let error = refused(&lab, &["count", "-i", "nosuch0"]).stderr;
    assert!(error.contains("nosuch0") && error.contains(device), "{error}");
    let error = refused(&lab, &["count", "-i", &format!("{device}@9")]).stderr;
    assert!(error.contains("no RX queue 9") && error.contains(&format!("{device}@3")), "{error}");
}

/// Battery: F9, S5
#[test]
fn missing_capabilities_are_named() {
    if !require_root("missing_capabilities_are_named") {
        return;
    }
    let binary = wirelane_binary().unwrap();
    // Other users may not be able to read the folder, so the program is run by root without capabilities.
    let output = Command::new("setpriv")
        .args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(&binary)
        .args(["count", "-i", "lo", "--duration", "1"])
        .output()
        .unwrap();
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("CAP_BPF") && error.contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn anothers_program_is_named_and_left_alone() {
    if !require_root("anothers_program_is_named_and_left_alone") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for native in [true, false] {
        let foreign = ForeignXdp::attach(&lab, lab.receiver(), native).unwrap();
        let error = refused(&lab, &["count", "-i", &lab.receiver().device, "--hook", "native"]).stderr;
        let mode = if native { "native" } else { "generic" };
        assert!(error.contains(mode) && error.contains("not Wirelane's"), "{error}");
        assert!(foreign.is_attached().unwrap());
    }
}

#[test]
fn a_device_that_disappears_ends_the_capture_with_its_ledger() {
    if !require_root("a_device_that_disappears_ends_the_capture_with_its_ledger") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    for hook in ["native", "tc"] {
        let lab = Lab::new(2).unwrap();
        let child = capture(&lab, &["count", "-i", &end.device, "--json", "--hook", hook]).unwrap();
        send(&lab, 700, &[]).unwrap();
        lab.exec(&lab.receiver().namespace, &["ip", "link", "del", &end.device]).unwrap();
        let finished = child.finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("disappeared"), "{}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!((last["final"] == true, column(&last, "analysed")), (true, 700), "{hook}");
    }
}

#[test]
fn a_device_that_is_set_down_is_waited_for() {
    if !require_root("a_device_that_is_set_down_is_waited_for") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let child = capture(&lab, &["count", "-i", &end.device, "--json"]).unwrap();
    send(&lab, 100, &[]).unwrap();
    lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "down"]).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "up"]).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    send(&lab, 100, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("was set down") && finished.stderr.contains("up again"),
        "{}",
        finished.stderr
    );
    assert_eq!(column(&finished.last_json().unwrap(), "analysed"), 200);
}

#[test]
fn files_that_are_none_are_refused_with_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let good = pcap(&[b"a packet of thirty-two bytes, no", b"and another one of the same size"]);
    for (path, said) in [
        (file("empty", b""), "at byte 0"),
        (file("text", b"this is no capture at all"), "at byte 0"),
        (file("header", &good[..20]), "at byte 0"),
        // Record headers are 16 bytes, the file header 24.
        (file("cut", &good[..24 + 48 + 30]), "at byte 72"),
    ] {
        let output = run(&["count", "-r", path.to_str().unwrap(), "--json"]);
        assert_eq!(output.status.code(), Some(1), "{path:?}");
        assert!(error_of(&output).contains(said), "{path:?}: {}", error_of(&output));
    }
    let cut = run(&["count", "-r", folder.path().join("cut").to_str().unwrap(), "--json"]);
    let last: serde_json::Value =
        serde_json::from_slice(cut.stdout.split(|b| *b == b'\n').rfind(|line| !line.is_empty()).unwrap())
            .unwrap();
    assert_eq!(column(&last, "analysed"), 1, "what was whole is counted");
    let absent = run(&["count", "-r", "/nonexistent/file.pcap"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(error_of(&absent).contains("/nonexistent/file.pcap"));
}

/// A little-endian microsecond pcap of Ethernet frames.
fn pcap(packets: &[&[u8]]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for packet in packets {
        for word in [1u32, 2, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(*packet);
    }
    file
}

#[test]
fn outputs_that_cannot_be_written_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.pcap");
    std::fs::write(&input, pcap(&[b"a packet of thirty-two bytes, no"])).unwrap();
    let record = |output: &Path, more: &[&str]| {
        run(&[&["record", "-r", input.to_str().unwrap(), "-w", output.to_str().unwrap()], more].concat())
    };
    let there = folder.path().join("there.pcapng");
    assert!(record(&there, &[]).status.success());
    let again = record(&there, &[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(error_of(&again).contains("exists"), "{}", error_of(&again));
    assert!(record(&there, &["--overwrite"]).status.success());

    let planted = folder.path().join("link.pcapng");
    std::os::unix::fs::symlink(folder.path().join("target"), &planted).unwrap();
    let link = record(&planted, &["--overwrite"]);
    assert_eq!(link.status.code(), Some(1));
    assert!(error_of(&link).contains("symbolic link"), "{}", error_of(&link));
    assert!(!folder.path().join("target").exists());

    let nowhere = record(Path::new("/nonexistent/out.pcapng"), &[]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(error_of(&nowhere).contains("/nonexistent/out.pcapng"));
    let full = record(Path::new("/dev/full"), &[]);
    assert_eq!(full.status.code(), Some(1));
    assert!(error_of(&full).contains("No space left"), "{}", error_of(&full));
    let same = record(&input, &["--overwrite"]);
    assert_eq!(same.status.code(), Some(1));
    assert!(error_of(&same).contains("read and written at once"), "{}", error_of(&same));
}
