//! `-r` with several files, patterns and folders: the packets are those of mergecap's file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::recordings::{NOON_NS, make_capture, numbers, packet, write_header, write_packet};
use wirelane_tests::{Capture, Child, Finished, corpus, wirelane_binary};

fn wirelane(words: &[&str]) -> Finished {
    let child = Child::spawn(Command::new(wirelane_binary().unwrap()).args(words)).unwrap();
    child.finish(LIMIT).unwrap_or_else(|error| panic!("{words:?}: {error:#}"))
}

/// Runs a command that must succeed; returns the lines of its JSON.
fn json(words: &[&str]) -> Vec<Value> {
    let done = wirelane(&[words, &["--json"]].concat());
    assert!(done.status.success(), "{words:?}: {}", done.stderr);
    done.json().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Captures of the corpus as files of a folder, those that mergecap reads to their ends; and what mergecap makes of them.
fn merged(corpus: &Path, folder: &Path) -> (Vec<PathBuf>, PathBuf) {
    let parts = folder.join("parts");
    fs::create_dir(&parts).unwrap();
    let mut files = Vec::new();
    let categories = ["apps", "http", "netflow", "encap", "mixed"];
    for capture in Capture::all(corpus).unwrap() {
        let file = parts.join(format!("{}.pcap", capture.id));
        if !categories.contains(&capture.category.as_str()) || capture.packets == 0 {
            continue;
        }
        fs::write(&file, capture.bytes().unwrap()).unwrap();
        let mut alone = Command::new("mergecap");
        let alone = alone.args(["-F", "pcapng", "-w", "/dev/null"]).arg(&file).output().unwrap();
        if alone.status.success() && alone.stderr.is_empty() {
            files.push(file);
        } else {
            fs::remove_file(&file).unwrap();
        }
    }
    files.sort();
    let merged = folder.join("merged.pcapng");
    let mut mergecap = Command::new("mergecap");
    // Of packets with equal times, mergecap takes those of the last file first.
    let last_first = files.iter().rev();
    let status =
        mergecap.args(["-I", "any", "-F", "pcapng", "-w"]).arg(&merged).args(last_first).status().unwrap();
    assert!(status.success());
    (files, merged)
}

/// The lines without what names files and times of running.
fn comparable(lines: Vec<Value>) -> Vec<Value> {
    let without = |mut line: Value| {
        if let Some(object) = line.as_object_mut() {
            for key in ["device", "virtual_devices", "duration_s", "pps", "bps", "interface_index"] {
                object.remove(key);
            }
        }
        line
    };
    let is_result = |line: &Value| line.get("ready").is_none() && line.get("final") != Some(&false.into());
    lines.into_iter().filter(is_result).map(without).collect()
}

#[test]
fn several_files_are_read_as_what_mergecap_makes_of_them() {
    let Some(corpus) = corpus("several_files_are_read_as_what_mergecap_makes_of_them") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (files, merged) = merged(&corpus, folder.path());
    assert!(files.len() > 100, "{} files", files.len());
    let each: Vec<&str> = files.iter().flat_map(|file| ["-r", text(file)]).collect();
    let all = [folder.path().join("parts"), folder.path().join("parts/*.pcap")];
    for command in ["packets", "count", "flows", "http", "voip"] {
        let one = comparable(json(&[command, "-r", text(&merged)]));
        assert!(!one.is_empty());
        let several = comparable(json(&[&[command][..], &each].concat()));
        for (number, (one, several)) in one.iter().zip(&several).enumerate() {
            assert_eq!(one, several, "{command}: line {number}");
        }
        assert_eq!(one.len(), several.len(), "{command}");
        for names in &all {
            assert!(
                comparable(json(&[command, "-r", text(names)])) == several,
                "{command} -r {}",
                names.display()
            );
        }
    }
}

#[test]
fn a_recording_of_several_files_has_all_packets_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // 1,000 files whose names are in another order than their times; each overlaps with the next one.
    for file in 0..1000u64 {
        let mut output = Vec::new();
        write_header(&mut output).unwrap();
        for number in (0..20).map(|n| file * 10 + 2 * n + file % 2) {
            write_packet(&mut output, NOON_NS + number, &packet(number, 100)).unwrap();
        }
        fs::write(path(&format!("{:04}.pcap", file * 7919 % 1000)), output).unwrap();
    }
    let out = path("out.pcapng");
    // Fewer descriptors than files: the limit of the process is raised as far as the system allows.
    let script = "ulimit -S -n 200 && exec \"$@\"";
    let binary = wirelane_binary().unwrap();
    let words =
        ["-c", script, "sh", text(&binary), "record", "-r", text(folder.path()), "-w", text(&out), "--json"];
    let done = Child::spawn(Command::new("sh").args(words)).unwrap().finish(LIMIT).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(column(&done.last_json().unwrap(), "written"), 20_000);
    let (read, damage) = numbers(&out).unwrap();
    assert_eq!(damage, None);
    let mut expected: Vec<u64> =
        (0..1000u64).flat_map(|file| (0..20).map(move |n| file * 10 + 2 * n + file % 2)).collect();
    expected.sort_unstable();
    assert_eq!(read, expected);

    let script = "ulimit -n 200 && exec \"$@\"";
    let words = ["-c", script, "sh", text(&binary), "count", "-r", text(folder.path())];
    let done = Child::spawn(Command::new("sh").args(words)).unwrap().finish(LIMIT).unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", done.stderr);
    assert!(done.stderr.contains("1001 files are more than this process may open"), "{}", done.stderr);
}

#[test]
fn interfaces_without_names_share_a_line_of_the_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for file in 0..3u64 {
        make_capture(&path(&format!("{file}.pcap")), 100, (0..5).map(|n| NOON_NS + 3 * n + file)).unwrap();
    }
    let merged = path("merged.pcapng");
    let mut mergecap = Command::new("mergecap");
    mergecap.args(["-I", "none", "-F", "pcapng", "-w"]).arg(&merged);
    let status = mergecap.args(["0.pcap", "1.pcap", "2.pcap"]).current_dir(folder.path()).status().unwrap();
    assert!(status.success());
    let last = json(&["count", "-r", text(&merged)]).pop().unwrap();
    let lines = last["virtual_devices"].as_array().unwrap();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["device"], format!("{} (3 interfaces without names)", merged.display()));
    assert_eq!(column(&lines[0], "analysed"), 15);

    let last = json(&["count", "-r", text(&path("[0-2].pcap"))]).pop().unwrap();
    let lines = last["virtual_devices"].as_array().unwrap();
    assert_eq!((lines.len(), lines[0]["device"].as_str()), (1, Some("3 files")), "{lines:?}");
    assert_eq!(column(&lines[0], "analysed"), 15);
}

#[test]
fn wrong_sets_of_files_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a.pcap", "b.pcap"] {
        make_capture(&path(name), 100, [NOON_NS]).unwrap();
    }
    let (a, b, none) = (path("a.pcap"), path("b.pcap"), path("*.none"));
    let (a, b, none) = (text(&a), text(&b), text(&none));
    fs::create_dir(path("empty")).unwrap();
    let empty = path("empty");
    let here = text(folder.path());
    let cases: [(&[&str], i32, &str); 7] = [
        (&["count", "-r", none], 2, "no file matches the pattern"),
        (&["count", "-r", text(&empty)], 2, "contains no file *.pcap, *.pcapng or *.cap"),
        (&["packets", "-r", a, b], 2, "is a file, not a filter expression: write a pattern in quotes"),
        (&["count", "-r", a, "-r", "/dev/null"], 2, "/dev/null is not a regular file and cannot be merged"),
        (&["count", "-r", a, "-r", "/nowhere.pcap"], 1, "/nowhere.pcap: No such file"),
        (&["record", "-r", here, "-w", b], 1, "cannot be read and written at once"),
        (&["flows", "-r", a, "-i", "lo"], 2, "cannot be used with"),
    ];
    for (words, status, reason) in cases {
        let done = wirelane(words);
        assert!(done.stderr.contains(reason), "{words:?}: {}", done.stderr);
        assert_eq!(done.status.code(), Some(status), "{words:?}: {}", done.stderr);
    }

    // A truncated file does not keep the others back.
    let whole = fs::read(b).unwrap();
    fs::write(b, &whole[..whole.len() - 1]).unwrap();
    let done = wirelane(&["count", "-r", here, "--json"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stderr.contains("1 of 2 files could not be read to the end"), "{}", done.stderr);
    assert!(done.stderr.contains("b.pcap: at byte 24"), "{}", done.stderr);
}
