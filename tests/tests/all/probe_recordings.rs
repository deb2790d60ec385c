//! `wirelane probe` with packets recorded around an alarm: exactly those of its time span, in complete files that other
//! programs read, within limits; a full disk is counted, and leftovers of any end of the process are removed by the
//! next start.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_tests::duckdb::duckdb;
use wirelane_tests::numbers::{LIMIT, capture, column, in_file, number_of, send};
use wirelane_tests::pages::{elements, links};
use wirelane_tests::recordings::{
    Disk, NOON_NS, capinfos, files, name, numbers, packet, tshark, write_header, write_packet,
};
use wirelane_tests::{Child, Lab, LabOptions, Signal, require_root, wirelane_binary};

const SECOND: u64 = 1_000_000_000;
const SIZE: usize = 300;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Configuration of an alarm in seconds with more than `above` packets.
fn configuration(folder: &Path, above: u64, record: &str, more: &str) -> String {
    let config = format!(
        "[[measurement]]\nname = \"all\"\nvalues = [\"packets\"]\n\
         [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = {above}\nactions = [\"keep\"]\n\
         [[action]]\nname = \"keep\"\nrecord = {{ folder = \"{}\", {record} }}\n{more}",
        folder.join("kept").display()
    );
    let path = folder.join("p.toml");
    fs::write(&path, config).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes a capture with so many numbered packets in each second.
fn make_file(path: &Path, seconds: &[u64]) {
    let mut file = BufWriter::new(fs::File::create(path).unwrap());
    write_header(&mut file).unwrap();
    let mut number = 0;
    for (second, packets) in seconds.iter().enumerate() {
        for turn in 0..*packets {
            let at = NOON_NS + second as u64 * SECOND + turn * (SECOND / packets);
            write_packet(&mut file, at, &packet(number, SIZE)).unwrap();
            number += 1;
        }
    }
    file.flush().unwrap();
}

fn probe(config: &str, file: &Path) -> Output {
    let words = ["probe", config, "-r", file.to_str().unwrap(), "--json", "--quiet"];
    Command::new(wirelane_binary().unwrap()).args(words).output().unwrap()
}

fn last(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    totals(output)
}

/// The last object of a probe, also after a failure.
fn totals(output: &Output) -> Value {
    serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
}

/// Recordings in a folder, after a check that it has only these and their digests.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let all = files(folder).unwrap();
    let (found, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|path| name(path).ends_with(".pcapng"));
    assert!(other.iter().all(|path| name(path).ends_with(".pcapng.sha256")), "{other:?}");
    found
}

const COUNTS: [&str; 6] = [
    "recordings",
    "recorded_packets",
    "recordings_failed",
    "recordings_refused",
    "recordings_cooling",
    "recordings_left_out",
];

fn counts(last: &Value) -> [u64; 6] {
    COUNTS.map(|name| column(last, name))
}

#[test]
fn files_have_exactly_the_packets_of_their_time_and_digests_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let file = here.join("in.pcap");
    // The alarm is raised at the end of the third second, and again at the end of the sixth.
    make_file(&file, &[10, 10, 50, 10, 10, 50, 10, 10]);
    let record = "before = \"1500ms\", after = \"600ms\", cool-down = \"0s\"";
    let config = configuration(here, 20, record, "digest = \"sha256\"\n");
    let output = probe(&config, &file);
    // Half of the second second, the third, and seven packets of the fourth, the last of them right at the end.
    let expected = |from: u64| (from..from + 5 + 50 + 7).collect::<Vec<u64>>();
    assert_eq!(counts(&last(&output)), [2, 2 * 62, 0, 0, 0, 0]);
    let kept = here.join("kept");
    let found = recordings(&kept);
    let names: Vec<String> = found.iter().map(|path| name(path)).collect();
    assert_eq!(names, ["20260301T120003Z-many-raised.pcapng", "20260301T120006Z-many-raised.pcapng"]);
    for (path, from) in found.iter().zip([15, 85]) {
        assert_eq!(numbers(path).unwrap(), (expected(from), None));
        assert_eq!((capinfos(path).unwrap(), tshark(path).unwrap()), ((62, true), 62));
        let told = Command::new("capinfos").arg("-k").arg(path).output().unwrap();
        let comment = "alarm many raised: packets 50 of measurement all at 17723664";
        assert!(text(&told.stdout).contains(comment), "{}", text(&told.stdout));
        let digest = format!("{}.sha256", name(path));
        let check =
            Command::new("sha256sum").args(["--check", "--strict", &digest]).current_dir(&kept).output();
        assert!(check.unwrap().status.success());
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "other people's words");
    }
}

/// Output of a command in a folder, which succeeds.
fn done(folder: &Path, words: &[&str]) -> String {
    let output = Command::new(wirelane_binary().unwrap()).current_dir(folder).args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

const ALARMS: &str = "SELECT state, start_ns AS at, recording FROM alarms ORDER BY at";

/// Rows of a question to a store.
fn asked(folder: &Path, store: &str, sql: &str) -> Vec<Value> {
    let rows = done(folder, &["query", sql, "--json", "--store", store]);
    rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The second time the alarm is raised it cools down, and nothing is recorded when it is cleared.
/// Battery: S6
#[test]
fn alarms_in_a_store_name_their_recordings_and_a_report_links_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().canonicalize().unwrap().join("a b<i>&#?%41'\u{e9}");
    fs::create_dir_all(here.join("pages")).unwrap();
    let here = here.as_path();
    let file = here.join("in.pcap");
    make_file(&file, &[10, 50, 10, 50, 10]);
    let config = configuration(here, 20, "before = \"1s\", after = \"0s\", cool-down = \"1h\"", "");
    let words = ["probe", &config, "-r", "in.pcap", "--json", "--store", "s.db"];
    let last: Value = serde_json::from_str(done(here, &words).lines().last().unwrap()).unwrap();
    assert_eq!(counts(&last), [1, 51, 0, 0, 1, 0]);
    assert_eq!(column(&last["store"], "alarms"), 4);
    let [recording] = &recordings(&here.join("kept"))[..] else { panic!("one recording") };
    let path = recording.to_str().unwrap();
    let at = |second: u64| NOON_NS + second * SECOND;
    let expected = |path: Option<&str>| {
        let row = |state: &str, second| serde_json::json!({ "state": state, "at": at(second) });
        let mut rows = vec![row("raised", 2), row("cleared", 3), row("raised", 4), row("cleared", 5)];
        rows[0].as_object_mut().unwrap().extend(path.map(|path| ("recording".to_owned(), path.into())));
        rows
    };
    assert_eq!(asked(here, "s.db", ALARMS), expected(Some(path)));

    // Relative to the page, also where the page is named relative to another folder; absolute without a file.
    for page in ["r.html", "pages/r.html", "../r.html", "-"] {
        let printed = done(here, &["report", "--store", "s.db", "--html", page]);
        let html = if page == "-" { printed } else { fs::read_to_string(here.join(page)).unwrap() };
        elements(&html);
        let links = links(&html);
        let [(link, shown)] = &links[..] else { panic!("one link: {links:?}") };
        assert_eq!(*shown, name(recording));
        assert_eq!(link.starts_with('/'), page == "-", "{link}");
        let from = here.join(page);
        assert_eq!(from.parent().unwrap().join(link).canonicalize().unwrap(), *recording, "{link}");
    }
    let told = done(here, &["report", "--store", "s.db"]);
    assert_eq!(told.lines().filter(|line| line.ends_with(&format!("  {path}"))).count(), 1, "{told}");
    let json = done(here, &["report", "--store", "s.db", "--json"]);
    let sections: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = sections.iter().find(|section| section["section"] == "The last alarms, the newest first");
    let named = |row: &Value| row["recording"].as_str().map(str::to_owned);
    let named: Vec<_> = last.unwrap()["rows"].as_array().unwrap().iter().map(named).collect();
    assert_eq!(named, [None, None, None, Some(path.to_owned())]);

    // A store of a version without the column, as DuckDB writes it.
    let stored = Command::new("find").args(["s.db/alarms", "-name", "*.parquet"]).current_dir(here).output();
    let stored = here.join(text(&stored.unwrap().stdout).trim());
    // Their paths have no quotes.
    let (new, old) = (folder.path().join("new.parquet"), folder.path().join("old.parquet"));
    fs::copy(&stored, &new).unwrap();
    let script = format!(
        "import duckdb; duckdb.sql(\"COPY (SELECT * EXCLUDE recording FROM '{}') TO '{}' (FORMAT parquet)\")",
        new.display(),
        old.display()
    );
    let Some(_) = duckdb(&script) else { return };
    fs::copy(&old, &stored).unwrap();
    assert_eq!(asked(here, "s.db", ALARMS), expected(None));
    let page = done(here, &["report", "--store", "s.db", "--html", "-"]);
    assert_eq!(links(&page), []);
}

#[test]
fn recordings_are_bounded_in_number_and_size_and_what_is_not_recorded_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let file = here.join("in.pcap");
    make_file(&file, &[50, 1, 50, 1, 50, 1, 50, 1, 50, 1]);
    for (record, expected, what) in [
        (
            "before = \"1s\", after = \"1s\", cool-down = \"5s\"",
            [2, 104, 0, 0, 3, 0],
            "3 not begun so soon after",
        ),
        (
            "before = \"1s\", after = \"1s\", cool-down = \"0s\", files = 3",
            [3, 156, 0, 2, 0, 0],
            "2 not begun as too many were",
        ),
        // The first two continue to the end of the file.
        (
            "before = \"0s\", after = \"60s\", cool-down = \"0s\", at-once = 2",
            [2, 205 + 154, 0, 3, 0, 0],
            "3 not begun as too many were",
        ),
        // A limit with space for eleven packets.
        (
            "before = \"1s\", after = \"0s\", cool-down = \"5s\", most = \"4096B\"",
            [2, 22, 0, 0, 3, 80],
            "80 packets left out of full ones",
        ),
    ] {
        let _ = fs::remove_dir_all(here.join("kept"));
        let config = configuration(here, 20, record, "");
        let output = probe(&config, &file);
        assert_eq!(counts(&last(&output)), expected, "{record}: {}", text(&output.stderr));
        assert_eq!(recordings(&here.join("kept")).len() as u64, expected[0], "{record}");
        let plain = Command::new(wirelane_binary().unwrap())
            .args(["probe", &config, "-q", "-r", file.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(text(&plain.stdout).contains(what), "{}", text(&plain.stdout));
    }
}

#[test]
fn a_full_disk_is_counted_and_the_capture_goes_on() {
    if !require_root("a_full_disk_is_counted_and_the_capture_goes_on") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new("tmpfs", "size=64k").unwrap();
    let file = folder.path().join("in.pcap");
    make_file(&file, &[50, 1, 600, 1]);
    let config = configuration(disk.path(), 20, "before = \"1s\", after = \"0s\", cool-down = \"0s\"", "");
    let output = probe(&config, &file);
    let last = totals(&output);
    // The recording of 50 packets fits, with the packet of the second after it; the one of 600 does not.
    assert_eq!(counts(&last), [1, 51, 1, 0, 0, 0], "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("alarm many is not recorded"), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("No space left on device"), "{}", text(&output.stderr));
    assert_eq!(column(&last, "probed"), 652);
    // The run continued to its end, and reports the missing recording.
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let last = text(&output.stderr).lines().last().unwrap_or_default().to_owned();
    assert!(last.ends_with("1 recording not written"), "{last}");
    let found = recordings(&disk.path().join("kept"));
    assert_eq!((found.len(), capinfos(&found[0]).unwrap()), (1, (51, true)));
}

/// Packets of each conversation go to one of three workers; the file has all of them, in time order.
#[test]
fn live_packets_of_several_workers_are_recorded_once_each() {
    if !require_root("live_packets_of_several_workers_are_recorded_once_each") {
        return;
    }
    const SENT: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let record = "before = \"60s\", after = \"2s\", cool-down = \"1h\"";
    let config = configuration(folder.path(), 0, record, "digest = \"sha256\"\n");
    let device = &lab.receiver().device;
    let db = folder.path().join("s.db").to_str().unwrap().to_owned();
    let words = ["probe", &config, "-i", device, "--workers", "3", "--json", "--store", &db];
    let child = capture(&lab, &words).unwrap();
    send(&lab, SENT, &["--flows", "50"]).unwrap();
    // The file is complete while the capture goes on, without further packets.
    let kept = folder.path().join("kept");
    let begun = Instant::now();
    let found = loop {
        let found: Vec<_> =
            files(&kept).unwrap().into_iter().filter(|path| name(path).ends_with(".sha256")).collect();
        if let [one] = &found[..] {
            break one.with_extension("");
        }
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(in_file(&found).unwrap(), (0..SENT).collect::<Vec<u64>>());
    assert_eq!(capinfos(&found).unwrap(), (SENT, true));
    let last = child.terminate(LIMIT).unwrap().last_json().unwrap();
    assert_eq!(counts(&last)[..4], [1, SENT, 0, 0]);
    assert_eq!((column(&last, "probed"), column(&last, "recordings_cut")), (SENT, 0));
    assert_eq!(recordings(&kept).len(), 1);
    // Of the seconds in which packets came only the first raises the alarm, which is cleared in silence.
    let rows = asked(folder.path(), &db, ALARMS);
    assert_eq!(rows[0]["recording"], found.to_str().unwrap(), "{rows:?}");
    assert!(rows[1..].iter().all(|row| row.get("recording").is_none()), "{rows:?}");
}

/// The process is killed while it writes a file: the leftover has only a temporary name, and the next start removes it.
#[test]
fn a_killed_process_leaves_nothing_that_stays() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let record = "before = \"0s\", after = \"1ms\", cool-down = \"0s\", most = \"64MiB\"";
    let config = configuration(here, 0, record, "");
    let mut command = Command::new(wirelane_binary().unwrap());
    command.args(["probe", &config, "-r", "-", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut killed = command.spawn().unwrap();
    let input = killed.stdin.take().unwrap();
    let feeder = std::thread::spawn(move || {
        let mut input = BufWriter::with_capacity(1 << 16, input);
        let bytes = packet(0, 60_000);
        // The feeder ends when the reader is gone. One packet in the first second; in the second one a thousand that
        // are recorded, and then so many that the recording's time span ends.
        let first = [NOON_NS, NOON_NS + SECOND];
        let rest = (0..1000).map(|n| n * 1000).chain((2..u64::MAX).map(|n| n * 1_000_000));
        let rest = rest.map(|after| NOON_NS + SECOND + after);
        let _ = write_header(&mut input).and_then(|()| {
            first.into_iter().chain(rest).try_for_each(|at| write_packet(&mut input, at, &bytes))
        });
    });
    let kept = here.join("kept");
    let part =
        |path: &PathBuf| name(path).ends_with(".part") && fs::metadata(path).is_ok_and(|one| one.len() > 0);
    let begun = Instant::now();
    while !files(&kept).is_ok_and(|files| files.iter().any(part)) {
        assert!(begun.elapsed() < LIMIT && killed.try_wait().unwrap().is_none(), "no file is begun");
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    feeder.join().unwrap();
    let left = files(&kept).unwrap();
    assert!(left.iter().any(part) && !left.iter().any(|path| name(path).ends_with(".pcapng")), "{left:?}");
    let file = here.join("in.pcap");
    make_file(&file, &[1]);
    let output = probe(&config, &file);
    assert_eq!(column(&last(&output), "recordings_cleared"), 1);
    let found = files(&kept).unwrap();
    assert_eq!(found.len(), 1, "the one that was recorded now: {found:?}");
}

#[test]
fn what_is_recorded_cannot_change_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::set_permissions(here, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let fifo = here.join("in");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let config = configuration(here, 20, "before = \"1s\"", "");
    let mut command = Command::new(wirelane_binary().unwrap());
    let child =
        Child::spawn(command.args(["probe", &config, "-r", fifo.to_str().unwrap(), "--json"])).unwrap();
    let mut input = fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    write_header(&mut input).unwrap();
    write_packet(&mut input, NOON_NS, &packet(0, SIZE)).unwrap();
    let ready = child.next_json(LIMIT).unwrap().unwrap();
    assert_eq!(ready["ready"], true);
    configuration(here, 20, "before = \"3s\"", "");
    child.signal(Signal::HangUp).unwrap();
    // A helper reads the file, beside the capture.
    std::thread::sleep(Duration::from_secs(2));
    drop(input);
    let finished = child.finish(LIMIT).unwrap();
    assert!(
        finished.stderr.contains("a recording or an export of an action has changed"),
        "{}",
        finished.stderr
    );
    assert_eq!(column(&finished.last_json().unwrap(), "reloads_refused"), 1);
}

/// Traffic before and after the time span: the recording has all packets of the span and no others.
#[test]
fn live_recordings_begin_and_end_at_their_times() {
    if !require_root("live_recordings_begin_and_end_at_their_times") {
        return;
    }
    const MS: u64 = 1_000_000;
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::with(&LabOptions { queues: 2, ..LabOptions::default() }).unwrap();
    let record = "before = \"300ms\", after = \"200ms\", cool-down = \"1h\"";
    let config = configuration(folder.path(), 0, record, "");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("interval = \"500ms\"\n{text}")).unwrap();
    let device = &lab.receiver().device;
    let child = capture(&lab, &["probe", &config, "-i", device, "--workers", "3", "--json"]).unwrap();
    send(&lab, 4000, &["--flows", "50", "--rate", "2000"]).unwrap();
    let lines = child.terminate(LIMIT).unwrap().json().unwrap();
    assert_eq!(counts(lines.last().unwrap())[0], 1);
    let raised = lines.iter().find(|line| line["alarm"] == "many").unwrap();
    let (seconds, fraction) = raised["time"].as_str().unwrap().split_once('.').unwrap();
    let event_ns: u64 = format!("{seconds}{fraction}").parse().unwrap();
    let found = recordings(&folder.path().join("kept"));
    let mut source = FileSource::open(&found[0], FileOptions::as_written()).unwrap();
    let mut packets = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        packets.extend(batch.map(|record| (number_of(&record).unwrap(), record.header().ts_ns)));
    }
    let (first, last) = (packets[0], packets[packets.len() - 1]);
    // Consecutive numbers, over all three workers.
    let numbers: Vec<u64> = packets.iter().map(|packet| packet.0).collect();
    assert_eq!(numbers, (first.0..=last.0).collect::<Vec<u64>>());
    assert!(packets.is_sorted_by_key(|packet| packet.1));
    assert!(first.1 >= event_ns - 300 * MS && last.1 <= event_ns + 200 * MS, "{first:?} {last:?} {event_ns}");
    // Packets arrived after the span, so the recording reaches its end, as far as the generator keeps its pace.
    assert!(last.0 < 3999 && last.1 > event_ns + 150 * MS, "{last:?} of {event_ns}");
    assert!(first.0 == 0 || first.1 < event_ns - 250 * MS, "{first:?} of {event_ns}");
}
