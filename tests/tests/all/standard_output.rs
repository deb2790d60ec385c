//! Standard output redirected to a disk that becomes full: lines are queued and written once there is space, none is
//! torn, and missing lines are counted and reported.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use wirelane_tests::recordings::{Disk, packet, write_header, write_packet};
use wirelane_tests::{require_root, wirelane_binary};

/// Starts `wirelane flows` with a capture at its standard input and JSON output to this file.
fn flows(output: &Path) -> Child {
    let mut command = Command::new(wirelane_binary().unwrap());
    command.args(["flows", "-r", "-", "--json", "--user", "root"]);
    command.stdin(Stdio::piped()).stdout(File::create(output).unwrap()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Sends packets so far apart in time that each is a flow of its own.
fn feed(child: &mut Child, numbers: std::ops::Range<u64>) {
    let input = child.stdin.as_mut().unwrap();
    for number in numbers {
        write_packet(input, number * 20_000_000_000, &packet(number, 60)).unwrap();
    }
    input.flush().unwrap();
}

/// Number of flows in the file, and of all lines, after a check that each line is complete.
fn lines(output: &Path) -> (usize, u64) {
    let text = fs::read_to_string(output).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is torn: {:?}", text.lines().last());
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let flows = objects.iter().filter(|object| object.get("flow").is_some()).count();
    (flows, objects.len() as u64)
}

/// Battery: F3
#[test]
fn lines_wait_for_a_disk_with_room_again() {
    if !require_root("lines_wait_for_a_disk_with_room_again") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=4m").unwrap();
    let (output, filler) = (disk.path().join("out.json"), disk.path().join("filler"));
    fs::write(&filler, vec![0; 3900 << 10]).unwrap();
    let mut child = flows(&output);
    write_header(child.stdin.as_mut().unwrap()).unwrap();
    feed(&mut child, 0..1500);
    std::thread::sleep(Duration::from_millis(500));
    let (before, _) = lines_so_far(&output);
    assert!(before < 1400, "the disk was full: {before}");
    fs::remove_file(&filler).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    feed(&mut child, 1500..3000);
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    assert!(said.contains("standard output: ") && said.contains("is written to again"), "{said}");
    assert_eq!(lines(&output).0, 3000);
}

/// Number of lines and bytes while the last line may be incomplete.
fn lines_so_far(output: &Path) -> (usize, usize) {
    let text = fs::read(output).unwrap();
    (text.iter().filter(|byte| **byte == b'\n').count(), text.len())
}

/// Battery: F3
#[test]
fn what_is_missing_is_counted_and_no_line_is_torn() {
    if !require_root("what_is_missing_is_counted_and_no_line_is_torn") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=256k").unwrap();
    let output = disk.path().join("out.json");
    let mut child = flows(&output);
    write_header(child.stdin.as_mut().unwrap()).unwrap();
    feed(&mut child, 0..3000);
    drop(child.stdin.take());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let (_, written) = lines(&output);
    // Flows, "ready", and the last object.
    let missing = 3002 - written;
    assert!(said.contains(&format!("{missing} lines are missing from it")), "{written} lines: {said}");
}

/// A reader that closes the pipe is not a failure.
#[test]
fn a_reader_that_has_gone_ends_the_command() {
    let mut command = Command::new(wirelane_binary().unwrap());
    command.args(["flows", "-r", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let input = child.stdin.as_mut().unwrap();
    write_header(input).unwrap();
    for number in 0..100_000u64 {
        // The command has ended when its standard input is closed.
        if write_packet(input, number * 20_000_000_000, &packet(number, 60)).is_err() {
            break;
        }
    }
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
