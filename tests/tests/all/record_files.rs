//! `record` into many files: rotation, the ring of files, compression, commands, workers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use wirelane_tests::numbers::{capture, column, finish, last_of, number_of, send};
use wirelane_tests::recordings::{
    NOON_NS, capinfos, count_packets, files, make_capture, name, numbers, record, tshark,
};
use wirelane_tests::{Lab, require_root};

const SECOND: u64 = 1_000_000_000;

/// Records a capture of numbered packets at these times with these options; returns the last object.
fn convert(folder: &Path, size: usize, times: impl IntoIterator<Item = u64>, options: &[&str]) -> Value {
    let input = tempfile::NamedTempFile::new().unwrap();
    make_capture(input.path(), size, times).unwrap();
    let output = folder.join("out.pcapng");
    let source = [input.path(), &output].map(|path| path.to_str().unwrap());
    last_of(&record(&[&["-r", source[0], "-w", source[1], "--json"], options].concat()).unwrap()).unwrap()
}

/// Checks that the files hold these packets in order, also for other readers; returns the number of packets in each.
fn check(folder: &Path, expected: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut all = Vec::new();
    let mut counts = Vec::new();
    for file in files(folder).unwrap() {
        let (found, damage) = numbers(&file).unwrap();
        assert_eq!(damage, None, "{}", file.display());
        assert_eq!(capinfos(&file).unwrap(), (found.len() as u64, true), "{}", file.display());
        counts.push(found.len() as u64);
        all.extend(found);
    }
    assert!(all.iter().copied().eq(expected), "{counts:?}");
    counts
}

#[test]
fn files_end_after_so_many_packets() {
    let folder = tempfile::tempdir().unwrap();
    let times = (0..10_000).map(|n| NOON_NS + n * 1_000_000);
    let last = convert(folder.path(), 100, times, &["--rotate-packets", "3000"]);
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (10_000, 0));
    assert_eq!(column(&last, "files"), 4);
    assert_eq!(check(folder.path(), 0..10_000), [3000, 3000, 3000, 1000]);
    let names: Vec<String> = files(folder.path()).unwrap().iter().map(|file| name(file)).collect();
    assert_eq!(
        names,
        [
            "out_00000001_20260301T120000Z.pcapng",
            "out_00000002_20260301T120003Z.pcapng",
            "out_00000003_20260301T120006Z.pcapng",
            "out_00000004_20260301T120009Z.pcapng",
        ]
    );
    // The next recording continues the numbering, and does not touch these files.
    let last = convert(folder.path(), 100, [NOON_NS], &["--rotate-packets", "3000"]);
    assert_eq!(column(&last, "files"), 1);
    assert_eq!(name(&files(folder.path()).unwrap()[4]), "out_00000005_20260301T120000Z.pcapng");
}

#[test]
fn no_file_is_larger_than_asked_for() {
    const SIZE: u64 = 100_000;
    for (options, slack) in
        [(vec![], 1200), (vec!["--compress", "zstd:1"], 12_000), (vec!["--format", "pcap"], 1200)]
    {
        let folder = tempfile::tempdir().unwrap();
        let options = [&["--rotate-size", "100000"], &options[..]].concat();
        let last = convert(folder.path(), 1000, (0..2000).map(|n| NOON_NS + n), &options);
        assert_eq!((column(&last, "written"), column(&last, "unwritten")), (2000, 0));
        check(folder.path(), 0..2000);
        let sizes: Vec<u64> =
            files(folder.path()).unwrap().iter().map(|file| fs::metadata(file).unwrap().len()).collect();
        assert_eq!(sizes.iter().sum::<u64>(), column(&last, "file_bytes"), "{options:?}");
        let (end, full) = sizes.split_last().unwrap();
        assert!(*end <= SIZE && full.len() >= 19, "{options:?}: {sizes:?}");
        for size in full {
            assert!((SIZE - slack..=SIZE).contains(size), "{options:?}: {sizes:?}");
        }
    }
}

#[test]
fn files_end_at_multiples_of_the_interval() {
    let folder = tempfile::tempdir().unwrap();
    // From 11:59:30 to 12:02:30, a packet per second, a pause, and one packet after it.
    let start = NOON_NS - 30 * SECOND;
    let times = (0..180).map(|n| start + n * SECOND).chain([NOON_NS + 3600 * SECOND]);
    let last = convert(folder.path(), 60, times, &["--rotate-interval", "1m"]);
    assert_eq!(column(&last, "written"), 181);
    assert_eq!(check(folder.path(), 0..181), [30, 60, 60, 30, 1]);
    let names: Vec<String> = files(folder.path()).unwrap().iter().map(|file| name(file)).collect();
    assert_eq!(names[1], "out_00000002_20260301T120000Z.pcapng");
    assert_eq!(names[4], "out_00000005_20260301T130000Z.pcapng");
}

/// Battery: F7
#[test]
fn a_clock_that_steps_neither_loops_nor_repeats_a_name() {
    let folder = tempfile::tempdir().unwrap();
    // An hour forward, two back, and one forward again, each in the middle of a minute.
    let steps = [0, 3600, -3600, 0].map(|step: i64| NOON_NS.wrapping_add_signed(step * SECOND as i64));
    let times = steps
        .into_iter()
        .enumerate()
        .flat_map(|(n, clock)| (0..20).map(move |packet| clock + (n as u64 * 20 + packet) * SECOND / 4));
    let last = convert(folder.path(), 60, times, &["--rotate-interval", "1m"]);
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (80, 0));
    // The packets of a file are sorted: those before noon, those at noon, those an hour later.
    assert_eq!(check(folder.path(), (40..60).chain(0..20).chain(60..80).chain(20..40)), [20, 40, 20]);
}

#[test]
fn the_oldest_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let bystander = folder.path().join("out_00000001_20260301T120000Z.pcapng.bak");
    fs::write(&bystander, "not ours").unwrap();
    let many = || (0..1000).map(|n| NOON_NS + n * SECOND);
    let options = ["--rotate-packets", "100", "--keep-files", "4"];
    let last = convert(folder.path(), 60, many(), &options);
    assert_eq!((column(&last, "files"), column(&last, "files_removed")), (10, 6));
    let kept = |folder: &Path| -> Vec<u64> {
        let names = files(folder).unwrap().into_iter().map(|file| name(&file));
        names.filter(|name| name.ends_with("pcapng")).map(|name| name[4..12].parse().unwrap()).collect()
    };
    assert_eq!(kept(folder.path()), [7, 8, 9, 10]);
    // Files of an earlier recording belong to the ring.
    let last = convert(folder.path(), 60, (0..150).map(|n| NOON_NS + n), &options);
    assert_eq!((column(&last, "files"), column(&last, "files_removed")), (2, 2));
    assert_eq!(kept(folder.path()), [9, 10, 11, 12]);
    assert_eq!(fs::read(&bystander).unwrap(), b"not ours");

    let folder = tempfile::tempdir().unwrap();
    let last = convert(folder.path(), 1000, many(), &["--keep-size", "400000"]);
    let sizes: Vec<u64> =
        files(folder.path()).unwrap().iter().map(|file| fs::metadata(file).unwrap().len()).collect();
    assert!(sizes.iter().sum::<u64>() <= 400_000 && sizes.len() == 4, "{sizes:?}");
    assert!(sizes.iter().all(|&size| size <= 100_000), "a quarter of what is kept: {sizes:?}");
    assert_eq!(column(&last, "written"), 1000);
    assert_eq!(column(&last, "files") - column(&last, "files_removed"), 4);
}

#[test]
fn compressed_files_are_read_by_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let last = convert(folder.path(), 500, (0..5000).map(|n| NOON_NS + n), &["--compress", "zstd:5"]);
    let file = folder.path().join("out.pcapng.zst");
    assert_eq!(fs::metadata(&file).unwrap().len(), column(&last, "file_bytes"));
    assert_eq!(check(folder.path(), 0..5000), [5000]);
    assert_eq!(tshark(&file).unwrap(), 5000);
    let plain = folder.path().join("plain.pcapng");
    let zstd = Command::new("zstd").args(["-q", "-d", "-o"]).args([&plain, &file]).status().unwrap();
    assert!(zstd.success());
    assert_eq!(numbers(&plain).unwrap(), numbers(&file).unwrap());
    // A name with this suffix does not need the option; gzip is read as well.
    let again = folder.path().join("again.pcap.zst");
    assert!(Command::new("gzip").arg(&plain).status().unwrap().success());
    let plain = folder.path().join("plain.pcapng.gz");
    let done = record(&["-r", plain.to_str().unwrap(), "-w", again.to_str().unwrap()]).unwrap();
    assert!(done.status.success(), "{}", done.stderr);
    assert_eq!(fs::read(&again).unwrap()[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    assert_eq!(count_packets(&again).unwrap(), 5000);
}

#[test]
fn each_finished_file_gets_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let place = tempfile::tempdir().unwrap();
    // One command at a time; a file that is handed over is complete and has its final name.
    let command = "one() { mkdir busy || echo overlap; sleep 0.05; rmdir busy; mv \"$1\" done/; }; one";
    fs::create_dir(place.path().join("done")).unwrap();
    let script = format!("cd '{}' && {command}", place.path().display());
    let done = place.path().join("done");
    // The commands run as the recording's user, who owns these folders.
    let options =
        ["--user", "root", "--rotate-packets", "100", "--post-rotate", &script, "--post-rotate-jobs", "1"];
    let last = convert(folder.path(), 60, (0..450).map(|n| NOON_NS + n), &options);
    assert_eq!((column(&last, "post_rotate_done"), column(&last, "post_rotate_failed")), (5, 0));
    assert_eq!(files(folder.path()).unwrap().len(), 0, "all were moved on");
    assert_eq!(check(&done, 0..450), [100, 100, 100, 100, 50]);
    assert!(!place.path().join("busy").exists());

    // A failed command is reported and counted, and does not affect the recording.
    let input = folder.path().join("in.pcap");
    make_capture(&input, 60, (0..150).map(|n| NOON_NS + n)).unwrap();
    let output = folder.path().join("out.pcapng");
    let [input, output] = [&input, &output].map(|path| path.to_str().unwrap());
    let words = ["-r", input, "-w", output, "--json", "--rotate-packets", "100", "--post-rotate", "exit 3;"];
    let finished = record(&words).unwrap();
    let last = last_of(&finished).unwrap();
    assert_eq!((column(&last, "post_rotate_done"), column(&last, "post_rotate_failed")), (0, 2));
    assert_eq!(finished.stderr.matches("exit status: 3").count(), 2, "{}", finished.stderr);
    // A path is an argument: the shell does not expand it.
    let odd = folder.path().join("$(touch harm); `touch harm` '\"&.pcapng");
    let words = ["-r", input, "-w", odd.to_str().unwrap(), "--json", "--post-rotate", "test -s"];
    let last = last_of(&record(&words).unwrap()).unwrap();
    assert_eq!(column(&last, "post_rotate_done"), 1);
    assert!(!Path::new("harm").exists() && !folder.path().join("harm").exists());
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let input = tempfile::NamedTempFile::new().unwrap();
    make_capture(input.path(), 60, [NOON_NS]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcapng");
    let file = file.to_str().unwrap();
    for (write, options, reason) in [
        (file, &["--keep-files", "5"][..], "there is one file only"),
        (file, &["--rotate-packets", "1", "--keep-files", "1"], "keep 2 or more"),
        (file, &["--rotate-size", "1000"], "mostly headers"),
        (file, &["--rotate-size", "1MB", "--keep-size", "1MB"], "need 2000000 bytes"),
        (file, &["--rotate-interval", "1y"], "as in 30s"),
        (file, &["--compress", "gzip"], "zstd:LEVEL"),
        (file, &["--workers", "2"], "one worker"),
        ("-", &["--rotate-size", "1MB"], "needs a file"),
        ("-", &["--post-rotate", "true"], "needs a file"),
        ("-", &["--direct-io"], "needs a file"),
    ] {
        let words = [&["-r", input.path().to_str().unwrap(), "-w", write], options].concat();
        let finished = record(&words).unwrap();
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(reason), "{options:?}: {}", finished.stderr);
    }
    assert_eq!(files(folder.path()).unwrap().len(), 0, "nothing was begun");
}

#[test]
fn each_worker_has_its_files() {
    if !require_root("each_worker_has_its_files") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng");
    let device = lab.receiver().device.as_str();
    let words = [
        "record",
        "-i",
        device,
        "-w",
        file.to_str().unwrap(),
        "--json",
        "--workers",
        "3",
        "--rotate-packets",
        "1000",
    ];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 8192, &[]).unwrap();
    let last = finish(child).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "written")), (8192, 8192));
    assert_eq!(column(&last, "unwritten"), 0);
    let mut found = BTreeSet::new();
    let (mut workers, mut paths) = (BTreeSet::new(), Vec::new());
    for file in files(folder.path()).unwrap() {
        let mut source = wirelane::FileSource::open(&file, wirelane::FileOptions::as_written()).unwrap();
        while let Some(batch) = source.next_batch(std::time::Duration::ZERO).unwrap() {
            for record in batch {
                assert!(found.insert(number_of(&record).unwrap()), "a packet in two files");
            }
        }
        workers.insert(name(&file)[..6].to_owned());
        paths.push(file);
    }
    assert!(found.iter().copied().eq(0..8192));
    assert_eq!(workers.into_iter().collect::<Vec<_>>(), ["all-w0", "all-w1", "all-w2"]);
    assert_eq!(paths.len() as u64, column(&last, "files"));
    let merged = folder.path().join("merged.pcapng");
    let status = Command::new("mergecap").arg("-w").arg(&merged).args(&paths).status().unwrap();
    assert!(status.success());
    assert_eq!(capinfos(&merged).unwrap(), (8192, true));
}

#[test]
fn a_quiet_recording_ends_its_files_in_time() {
    if !require_root("a_quiet_recording_ends_its_files_in_time") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.pcapng");
    let device = lab.receiver().device.as_str();
    let words = ["record", "-i", device, "-w", file.to_str().unwrap(), "--json", "--rotate-interval", "1s"];
    let child = capture(&lab, &words).unwrap();
    send(&lab, 100, &[]).unwrap();
    // Without further packets the file is finished and gets its name.
    let start = std::time::Instant::now();
    let whole = || files(folder.path()).unwrap().iter().filter(|file| name(file).ends_with("pcapng")).count();
    while whole() == 0 {
        assert!(start.elapsed().as_secs() < 20, "no file was finished: {:?}", files(folder.path()));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let last = finish(child).unwrap();
    assert_eq!((column(&last, "written"), column(&last, "unwritten")), (100, 0));
    let found: u64 = files(folder.path()).unwrap().iter().map(|file| count_packets(file).unwrap()).sum();
    assert_eq!(found, 100);
}
