//! `record` with a failing disk, a missing directory, or interference by others: every packet is in a file, complete,
//! or counted as unwritten.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::recordings::{
    Disk, NOON_NS, capinfos, count_packets, files, make_capture, name, numbers, record,
};
use wirelane_tests::{Finished, Lab, Signal, require_root};

/// Records a capture of so many numbered packets; returns the finished process, and the last object.
fn convert(output: &Path, packets: u64, options: &[&str]) -> (Finished, Value) {
    let input = tempfile::NamedTempFile::new().unwrap();
    make_capture(input.path(), 1000, (0..packets).map(|n| NOON_NS + n)).unwrap();
    let paths = [input.path(), output].map(|path| path.to_str().unwrap());
    let finished = record(&[&["-r", paths[0], "-w", paths[1], "--json"], options].concat()).unwrap();
    let last = finished.last_json().unwrap_or_default();
    (finished, last)
}

/// Number of packets in all files of a folder, equal for three readers, each file complete.
fn in_files(folder: &Path) -> u64 {
    let mut sum = 0;
    for file in files(folder).unwrap() {
        let (packets, damage) = numbers(&file).unwrap();
        assert_eq!(damage, None, "{}", file.display());
        assert_eq!(capinfos(&file).unwrap(), (packets.len() as u64, true), "{}", file.display());
        sum += packets.len() as u64;
    }
    sum
}

/// Battery: F3
#[test]
fn a_full_disk_loses_nothing_uncounted() {
    if !require_root("a_full_disk_loses_nothing_uncounted") {
        return;
    }
    for (file, options) in [
        ("out.pcapng", &[][..]),
        ("out.pcap", &[]),
        ("out.pcapng", &["--direct-io"]),
        ("out.pcapng.zst", &[]),
        ("out.pcapng.zst", &["--direct-io"]),
        ("out.pcapng", &["--rotate-size", "300000"]),
        ("out.pcapng", &["--rotate-packets", "100", "--direct-io"]),
        ("out.pcapng", &["--rotate-packets", "100", "--compress", "zstd:1"]),
    ] {
        let disk = Disk::new("tmpfs", "size=1m").unwrap();
        let (finished, last) = convert(&disk.path().join(file), 3000, options);
        let what = format!("{file} {options:?}: {}", finished.stderr);
        assert_eq!(finished.status.code(), Some(1), "{what}");
        assert!(finished.stderr.contains("No space left on device"), "{what}");
        assert!(finished.stderr.contains("captured but not written"), "{what}");
        assert_eq!((last["final"].as_bool(), column(&last, "delivered")), (Some(true), 3000), "{what}");
        let written = column(&last, "written");
        assert_eq!(written + column(&last, "unwritten"), 3000, "{what}");
        assert!((500..1050).contains(&written), "{what}: {written} written");
        assert_eq!(in_files(disk.path()), written, "{what}");
        assert!(files(disk.path()).unwrap().iter().all(|file| !name(file).ends_with(".part")), "{what}");
    }
}

#[test]
fn the_first_failed_write_may_end_the_recording() {
    if !require_root("the_first_failed_write_may_end_the_recording") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let disk = Disk::new("tmpfs", "size=1m").unwrap();
    let file = disk.path().join("out.pcapng");
    let device = lab.receiver().device.as_str();
    let words = ["record", "-i", device, "-w", file.to_str().unwrap(), "--json", "--on-write-error", "stop"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 3000, &["--size", "1000"]).unwrap();
    // The command ends by itself.
    let finished = child.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let (written, unwritten) = (column(&last, "written"), column(&last, "unwritten"));
    assert_eq!(written + unwritten, column(&last, "analysed"));
    assert_eq!(capinfos(&file).unwrap(), (written, true));
    // A block has 32 bytes more than its packet; the head and the statistics take less than two.
    assert!(((1 << 20) / 1032 - 2..=(1 << 20) / 1032).contains(&written), "{written}");
}

/// Battery: F3
#[test]
fn a_disk_with_room_again_is_written_to_again() {
    if !require_root("a_disk_with_room_again_is_written_to_again") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.as_str();
    for options in [&[][..], &["--rotate-size", "200kB"], &["--compress", "zstd"], &["--direct-io"]] {
        let disk = Disk::new("tmpfs", "size=1m").unwrap();
        let ballast = disk.path().join("ballast");
        // zstd compresses these packets to a small size.
        let kib = if options.contains(&"zstd") { 1020 } else { 600 };
        fs::write(&ballast, vec![0; kib << 10]).unwrap();
        let folder = disk.path().join("captures");
        fs::create_dir(&folder).unwrap();
        let file = folder.join("out.pcapng");
        let words = [&["record", "-i", device, "-w", file.to_str().unwrap(), "--json"], options].concat();
        let child = capture(&lab, &words).unwrap();
        send(&lab, 2000, &["--size", "1000"]).unwrap();
        let wait = |what: &str, enough: &dyn Fn(&Value) -> bool| {
            let start = Instant::now();
            let mut sum = [0, 0];
            loop {
                let line = child.next_json(LIMIT).unwrap().expect("it still captures");
                sum = [sum[0] + column(&line, "written"), sum[1] + column(&line, "unwritten")];
                if enough(&serde_json::json!({"written": sum[0], "unwritten": sum[1]})) {
                    return sum;
                }
                assert!(start.elapsed() < LIMIT, "{options:?}: no {what} within {LIMIT:?}: {sum:?}");
            }
        };
        let [written, unwritten] =
            wait("end of the flood", &|sum| column(sum, "written") + column(sum, "unwritten") == 2000);
        assert!(unwritten > 0, "{options:?}: the disk was never full: {written} written");
        fs::remove_file(&ballast).unwrap();
        // The next attempt is a second after the last failure; these packets are sent after it.
        std::thread::sleep(Duration::from_millis(1500));
        send(&lab, 100, &["--size", "1000"]).unwrap();
        let finished = child.terminate(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("writing works again"), "{options:?}: {}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!(column(&last, "delivered"), 2100, "{options:?}");
        assert_eq!(
            (column(&last, "written"), column(&last, "unwritten")),
            (written + 100, unwritten),
            "{options:?}: {}",
            finished.stderr
        );
        let found: u64 = files(&folder).unwrap().iter().map(|file| count_packets(file).unwrap()).sum();
        assert_eq!(found, written + 100, "{options:?}: {:?}", files(&folder));
    }
}

/// Battery: F3
#[test]
fn a_disk_that_becomes_read_only_is_one_that_failed() {
    if !require_root("a_disk_that_becomes_read_only_is_one_that_failed") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.as_str();
    let disk = Disk::new("tmpfs", "size=10m").unwrap();
    let file = disk.path().join("out.pcapng");
    let words = ["record", "-i", device, "-w", file.to_str().unwrap(), "--json", "--rotate-interval", "1s"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 300, &[]).unwrap();
    wait_for(&child, 300);
    // After its interval the file is finished, and none is open before more packets arrive. (While a file is open, the
    // kernel refuses to make its disk read-only.)
    let start = Instant::now();
    while files(disk.path()).unwrap().iter().any(|file| name(file).ends_with(".part")) {
        assert!(start.elapsed() < LIMIT, "{:?}", files(disk.path()));
        std::thread::sleep(Duration::from_millis(20));
    }
    disk.remount("ro").unwrap();
    send(&lab, 100, &[]).unwrap();
    wait_for(&child, 100);
    disk.remount("rw").unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    send(&lab, 50, &[]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("Read-only file system"), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (350, 100), "{}", finished.stderr);
    assert_eq!(in_files_by_count(disk.path()), 350);
}

/// Number of packets in all files of a folder, by our reader.
fn in_files_by_count(folder: &Path) -> u64 {
    files(folder).unwrap().iter().map(|file| count_packets(file).unwrap()).sum()
}

/// Battery: F3
#[test]
fn a_directory_that_vanishes_and_a_file_that_is_moved_are_told() {
    if !require_root("a_directory_that_vanishes_and_a_file_that_is_moved_are_told") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.as_str();
    let folder = tempfile::tempdir().unwrap();
    // A directory that is created anew is another one: the remaining rights are for the first. A process with all
    // rights continues in the new one.
    for (rights, recovered) in [(&[][..], 0), (&["--keep-rights"][..], 100)] {
        let there = folder.path().join("there");
        fs::create_dir(&there).unwrap();
        let file = there.join("out.pcapng");
        let words =
            ["record", "-i", device, "-w", file.to_str().unwrap(), "--json", "--rotate-packets", "100"];
        let words = [&words[..], rights].concat();
        let child = capture(&lab, &words).unwrap();
        send(&lab, 50, &[]).unwrap();
        wait_for(&child, 50);
        fs::remove_dir_all(&there).unwrap();
        // The open file no longer has a name. The next one does not find a directory, and the one after it finds the
        // new one.
        send(&lab, 100, &[]).unwrap();
        wait_for(&child, 100);
        fs::create_dir(&there).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        send(&lab, 100, &[]).unwrap();
        let finished = child.terminate(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("was moved or removed while it was written"), "{}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!(column(&last, "delivered"), 250);
        let written = column(&last, "written");
        assert_eq!(written + column(&last, "unwritten"), 250);
        assert_eq!((written, in_files_by_count(&there)), (recovered, recovered), "{}", finished.stderr);
        fs::remove_dir_all(&there).unwrap();
    }

    // The file is deleted while it is written.
    let file = folder.path().join("single.pcapng");
    let child = capture(&lab, &["record", "-i", device, "-w", file.to_str().unwrap(), "--json"]).unwrap();
    send(&lab, 50, &[]).unwrap();
    wait_for(&child, 50);
    fs::rename(folder.path().join("single.pcapng.part"), folder.path().join("taken")).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1));
    assert!(
        finished.stderr.contains("single.pcapng.part or its directory was moved or removed"),
        "{}",
        finished.stderr
    );
    assert_eq!(column(&finished.last_json().unwrap(), "unwritten"), 50);
    assert!(!file.exists());
}

/// Reads intervals until so many packets have a verdict.
fn wait_for(child: &wirelane_tests::Child, packets: u64) {
    let (start, mut sum) = (Instant::now(), 0);
    while sum < packets {
        let line = child.next_json(LIMIT).unwrap().expect("it still captures");
        sum += column(&line, "written") + column(&line, "unwritten");
        assert!(start.elapsed() < LIMIT, "{sum} of {packets}");
    }
}

/// Battery: S4
#[test]
fn planted_links_and_files_are_neither_followed_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let captures = folder.path().join("captures");
    fs::create_dir(&captures).unwrap();
    let file = captures.join("out.pcapng");
    for planted in ["out.pcapng", "out.pcapng.part"] {
        symlink(&victim, captures.join(planted)).unwrap();
        for options in [&[][..], &["--overwrite"]] {
            let (finished, _) = convert(&file, 10, options);
            assert_eq!(finished.status.code(), Some(1), "{planted}");
            assert!(finished.stderr.contains("is a symbolic link"), "{planted}: {}", finished.stderr);
        }
        fs::remove_file(captures.join(planted)).unwrap();
    }
    // With many files the planted name is skipped.
    for (number, suffix) in [(1, ""), (2, ".part")] {
        let planted = format!("out_{number:08}_20260301T120000Z.pcapng{suffix}");
        symlink(&victim, captures.join(planted)).unwrap();
    }
    symlink(&victim, captures.join("out_00000004_20260301T120000Z.pcapng")).unwrap();
    let (finished, last) = convert(&file, 250, &["--rotate-packets", "100", "--keep-files", "10"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!((column(&last, "files"), column(&last, "files_removed")), (3, 0));
    let mut written = 0;
    for file in files(&captures).unwrap() {
        let metadata = fs::symlink_metadata(&file).unwrap();
        if metadata.is_file() {
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{}", file.display());
            written += numbers(&file).unwrap().0.len();
        }
    }
    assert_eq!(written, 250);
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn what_exists_stays_unless_it_is_to_be_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    fs::write(&file, "old").unwrap();
    let (finished, _) = convert(&file, 10, &[]);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("exists already"), "{}", finished.stderr);
    assert_eq!(files(folder.path()).unwrap().len(), 1);
    // The file is replaced when the recording is complete. A .part file of a killed run is not touched.
    let dead = folder.path().join("out.pcapng.part");
    fs::write(&dead, "dead").unwrap();
    let (finished, last) = convert(&file, 10, &["--overwrite"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    assert!(finished.stderr.contains("out.pcapng.part is there already"), "{}", finished.stderr);
    assert_eq!((column(&last, "written"), numbers(&file).unwrap().0.len()), (10, 10));
    assert_eq!(fs::read(&dead).unwrap(), b"dead");
    assert_eq!(files(folder.path()).unwrap().len(), 2);
}

#[test]
fn direct_io_is_refused_where_there_is_none() {
    if !require_root("direct_io_is_refused_where_there_is_none") {
        return;
    }
    let disk = Disk::new("ramfs", "mode=700").unwrap();
    let (finished, _) = convert(&disk.path().join("out.pcapng"), 10, &["--direct-io"]);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("refuses direct I/O; leave --direct-io out"), "{}", finished.stderr);
    assert_eq!(files(disk.path()).unwrap().len(), 0, "nothing is left");
    let (finished, _) = convert(&disk.path().join("out.pcapng"), 10, &[]);
    assert!(finished.status.success(), "{}", finished.stderr);
}

#[test]
fn direct_io_writes_the_same_bytes() {
    if !require_root("direct_io_writes_the_same_bytes") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=20m").unwrap();
    let [plain, direct] = ["plain.pcapng", "direct.pcapng"].map(|name| disk.path().join(name));
    let (finished, _) = convert(&plain, 3001, &[]);
    assert!(finished.status.success(), "{}", finished.stderr);
    let (finished, last) = convert(&direct, 3001, &["--direct-io"]);
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(column(&last, "written"), 3001);
    // The statistics at the end contain different times.
    let [plain, direct] = [plain, direct].map(|file| fs::read(file).unwrap());
    assert_eq!(plain.len(), direct.len());
    let packets = 3001 * 1032;
    assert!(plain[..packets] == direct[..packets]);
    // Direct I/O was really used: strace shows O_DIRECT.
    let traced = Command::new("strace")
        .args(["-f", "-qq", "-e", "trace=openat", "-e", "signal=none"])
        .arg(wirelane_tests::wirelane_binary().unwrap())
        .args(["record", "--direct-io", "-r"])
        .arg(disk.path().join("plain.pcapng"))
        .arg("-w")
        .arg(disk.path().join("again.pcapng"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&traced.stderr);
    assert!(
        text.lines().any(|line| line.contains("again.pcapng.part") && line.contains("O_DIRECT")),
        "{text}"
    );
}

#[test]
fn another_ctrl_c_is_not_needed_and_commands_outlive_the_first() {
    if !require_root("another_ctrl_c_is_not_needed_and_commands_outlive_the_first") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    let device = lab.receiver().device.as_str();
    // The command runs as the recording's user, who owns this folder.
    let words = [
        "record",
        "-i",
        device,
        "-w",
        file.to_str().unwrap(),
        "--json",
        "--user",
        "root",
        "--post-rotate",
        "sleep 0.5; gzip",
    ];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 100, &[]).unwrap();
    child.signal(Signal::Interrupt).unwrap();
    let last = last_of(&child.finish(LIMIT).unwrap()).unwrap();
    assert_eq!((column(&last, "written"), column(&last, "post_rotate_done")), (100, 1));
    assert_eq!(count_packets(&folder.path().join("out.pcapng.gz")).unwrap(), 100);
}

/// A file system of 16 MiB on an image with space for 3: writes beyond it fail, at write(2) if it is mounted `sync`,
/// else at the sync. `None` if there are no loop devices.
fn failing_disk(disk: &Disk, options: &str) -> Option<PathBuf> {
    let [image, folder] = ["image", "folder"].map(|name| disk.path().join(name));
    fs::create_dir(&folder).unwrap();
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let made =
        Command::new("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal"]).arg(&image).status().unwrap();
    assert!(made.success());
    let mounted = Command::new("mount").args(["-o", options]).arg(&image).arg(&folder).status().unwrap();
    mounted.success().then_some(folder)
}

/// Battery: F3
#[test]
fn what_a_disk_holds_whose_writes_have_failed_is_unwritten() {
    if !require_root("what_a_disk_holds_whose_writes_have_failed_is_unwritten") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=3m").unwrap();
    let Some(folder) = failing_disk(&disk, "loop,sync") else {
        println!("left out: what_a_disk_holds_whose_writes_have_failed_is_unwritten (no loop devices)");
        return;
    };
    let (finished, last) = convert(&folder.join("out.pcapng"), 5000, &[]);
    let left: Vec<String> = files(&folder).unwrap().iter().map(|file| name(file)).collect();
    assert!(Command::new("umount").arg(&folder).status().unwrap().success());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("the capture goes on, what cannot be written"), "{}", finished.stderr);
    assert!(finished.stderr.contains("may not have reached the disk"), "{}", finished.stderr);
    // Some 3,000 packets are in the file, and none is confirmed by the disk.
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (0, 5000));
    assert_eq!(left, ["lost+found", "out.pcapng.part"], "it does not get the name of a whole file");
}

/// Battery: F3
#[test]
fn what_the_disk_lost_behind_the_page_cache_is_unwritten() {
    if !require_root("what_the_disk_lost_behind_the_page_cache_is_unwritten") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=3m").unwrap();
    let Some(folder) = failing_disk(&disk, "loop") else {
        println!("left out: what_the_disk_lost_behind_the_page_cache_is_unwritten (no loop devices)");
        return;
    };
    let (finished, last) = convert(&folder.join("out.pcapng"), 5000, &[]);
    let left: Vec<String> = files(&folder).unwrap().iter().map(|file| name(file)).collect();
    assert!(Command::new("umount").arg(&folder).status().unwrap().success());
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("may not have reached the disk"), "{}", finished.stderr);
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (0, 5000));
    assert_eq!(left, ["lost+found", "out.pcapng.part"], "it does not get the name of a whole file");
}

#[test]
fn nothing_is_left_of_a_recording_that_cannot_begin() {
    if !require_root("nothing_is_left_of_a_recording_that_cannot_begin") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("out-w1.pcapng"), "old").unwrap();
    let file = folder.path().join("out.pcapng");
    let words = ["record", "-i", &lab.receiver().device, "-w", file.to_str().unwrap(), "--workers", "2"];
    let child = wirelane_tests::numbers::wirelane(&lab, &lab.receiver().namespace, &words).unwrap();
    let finished = child.finish(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("out-w1.pcapng exists already"), "{}", finished.stderr);
    assert_eq!(files(folder.path()).unwrap().len(), 1, "{:?}", files(folder.path()));
}

/// Battery: F3
#[test]
fn what_a_slow_reader_cannot_take_is_lost_in_the_ring_and_counted() {
    if !require_root("what_a_slow_reader_cannot_take_is_lost_in_the_ring_and_counted") {
        return;
    }
    const PACKETS: u64 = 40_000;
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [pipe, copy] = ["pipe.pcapng", "copy.pcapng"].map(|name| folder.path().join(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let words =
        ["record", "-i", &lab.receiver().device, "-w", pipe.to_str().unwrap(), "--json", "--ring-size", "1"];
    // Opening a pipe waits for the other end.
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::File::open(pipe).unwrap()
    });
    let child = capture(&lab, &words).unwrap();
    let mut reader = reader.join().unwrap();
    // 40 MB: more than a pipe, 16 MiB of chunks and a ring of 1 MiB hold without a reader.
    send(&lab, PACKETS, &["--size", "1000"]).unwrap();
    let resident = wirelane_tests::resident_bytes(child.pid()).unwrap();
    assert!(resident < 100 << 20, "{resident} bytes of memory");
    child.signal(Signal::Terminate).unwrap();
    let bytes = std::io::copy(&mut reader, &mut fs::File::create(&copy).unwrap()).unwrap();
    let last = last_of(&child.finish(LIMIT).unwrap()).unwrap();
    let (written, lost) = (column(&last, "written"), column(&last, "lost"));
    assert_eq!((column(&last, "seen"), written + lost), (PACKETS, PACKETS));
    assert!(lost > 5_000 && written > 5_000, "{written} written, {lost} lost");
    assert_eq!((column(&last, "unwritten"), column(&last, "file_bytes")), (0, bytes));
    assert_eq!(capinfos(&copy).unwrap(), (written, true));
}
