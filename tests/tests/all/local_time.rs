//! `--local-time` of the commands that print tables, compared with coreutils' date.

use std::path::Path;
use std::process::Command;

use wirelane_tests::calls::{Scene, message};
use wirelane_tests::wirelane_binary;

/// 2026-10-25 00:59:58.5 UTC, 1.5 s before summer time ends in Europe.
const LAST_OF_SUMMER: u64 = 1_792_889_998_500_000;
/// 2 s later, in winter time.
const WINTER: u64 = LAST_OF_SUMMER + 2_000_000;

/// Output and messages of a command in this time zone.
fn output(zone: &str, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(wirelane_binary().unwrap());
    let output = command.env("TZ", zone).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn printed(zone: &str, words: &[&str]) -> String {
    let (status, text, error) = output(zone, words);
    assert_eq!(status, Some(0), "{words:?}: {error}");
    text
}

/// The time as date prints it.
fn dated(zone: &str, us: u64, form: &str) -> String {
    let at = format!("@{}.{:06}", us / 1_000_000, us % 1_000_000);
    let output =
        Command::new("date").env("TZ", zone).args(["-d", &at, &format!("+{form}")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A transaction, a call and so two flows at either time.
fn write(file: &Path) {
    let mut scene = Scene::new();
    for (at, port) in [(LAST_OF_SUMMER, 40_000), (WINTER, 40_001)] {
        let (client, server) = (format!("192.0.2.1:{port}"), "192.0.2.2:80");
        let request = b"GET /one HTTP/1.1\r\nHost: a.example\r\n\r\n";
        scene.tcp(at, &client, server, 1, request);
        scene.tcp(at, server, &client, 1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        let id = format!("Call-ID: {port}@example.com");
        let head = ["From: <sip:a@example.com>;tag=a", "To: <sip:b@example.org>", &id, "CSeq: 1 INVITE"];
        let invite = message("INVITE sip:b@example.org SIP/2.0", &head, "");
        scene.udp(at, "192.0.2.1:5060", "192.0.2.2:5060", &invite);
    }
    scene.write(file).unwrap();
}

#[test]
fn tables_have_the_local_time_of_date() {
    let folder = tempfile::tempdir().unwrap();
    let (file, store) = (folder.path().join("in.pcap"), folder.path().join("store"));
    write(&file);
    let (file, store) = (file.to_str().unwrap(), store.to_str().unwrap());
    for (command, options) in [
        ("flows", &["--store", store][..]),
        ("http", &["--store", store]),
        ("voip", &["--store", store]),
        ("probe", &["--ready", "bandwidth"]),
    ] {
        let words = [&[command, "-r", file][..], options].concat();
        let local = [&words[..], &["--local-time"]].concat();
        for (zone, words) in [("Asia/Kolkata", &words), ("Asia/Kolkata", &local), ("Europe/Berlin", &local)] {
            let is_local = words.last() == Some(&"--local-time");
            let text = printed(zone, words);
            let zone = if is_local { zone } else { "UTC" };
            for at in [LAST_OF_SUMMER, WINTER] {
                let expected = dated(zone, at, "%H:%M:%S");
                let is_there = text.lines().any(|line| line.contains(&expected));
                assert!(is_there || command == "probe", "{words:?} in {zone}: {expected} is not in\n{text}");
            }
            // A probe prints the beginning of an interval.
            let hour = dated(zone, WINTER, "%H:%M:%S");
            assert!(text.contains(&hour[..5]), "{hour}:\n{text}");
            let heading = if is_local { "(local)" } else { "(UTC)" };
            assert!(text.contains(heading) || command == "probe", "{text}");
        }
    }
}

#[test]
fn questions_and_reports_have_local_times_and_read_them() {
    let folder = tempfile::tempdir().unwrap();
    let (file, store) = (folder.path().join("in.pcap"), folder.path().join("store"));
    write(&file);
    let (file, store) = (file.to_str().unwrap(), store.to_str().unwrap());
    for command in ["flows", "http", "voip"] {
        printed("UTC", &[command, "-r", file, "--quiet", "--store", store]);
    }
    let zone = "Europe/Berlin";
    let sql = "SELECT DISTINCT start_time FROM transactions ORDER BY start_time";
    let rows = printed(zone, &["query", sql, "--store", store, "--local-time"]);
    let expected: Vec<String> = [LAST_OF_SUMMER, WINTER]
        .map(|at| dated(zone, at, "%Y-%m-%d %H:%M:%S.%N%:z").replace(".500000000", ".5"))
        .to_vec();
    assert_eq!(rows.lines().skip(1).map(str::trim).collect::<Vec<_>>(), expected);
    assert_ne!(expected[0][20..], expected[1][20..], "the two are in summer and in winter time");

    // Both are at two o'clock in Berlin; the first two o'clock is meant, as by date.
    let begin = dated(zone, LAST_OF_SUMMER, "%Y-%m-%d %H:%M");
    for (words, number) in [
        (&["--local-time", "--from", &begin][..], "2"),
        (&["--local-time", "--from", "2026-10-25T02:00:00+01:00"], "1"),
        (&["--local-time", "--to", "2026-10-25 02:00"], "0"),
        (&["--from", "2026-10-25 00:59", "--to", "2026-10-25 01:00"], "1"),
        (&["--from", "2026-10-25 02:00"], "0"),
    ] {
        let sql = "SELECT count(*) AS n FROM transactions";
        let text = printed(zone, &[&["query", sql, "--store", store][..], words].concat());
        assert_eq!(text.lines().last().map(str::trim), Some(number), "{words:?}: {text}");
    }
    // The other forms are for programs, and in UTC.
    for form in ["--json", "--csv"] {
        let utc = printed("UTC", &["query", sql, "--store", store, form]);
        assert_eq!(printed(zone, &["query", sql, "--store", store, form]), utc);
        let (status, _, error) = output(zone, &["query", sql, "--store", store, form, "--local-time"]);
        assert!(status == Some(2) && error.contains("cannot be used with"), "{error}");
    }

    let report = printed(zone, &["report", "--store", store, "--local-time"]);
    let first = dated(zone, LAST_OF_SUMMER, "%Y-%m-%d %H:%M:%S");
    assert!(report.lines().next().is_some_and(|line| line.starts_with(&first)), "{report}");
    assert!(report.lines().next().is_some_and(|line| line.contains(" local time (Europe/Berlin), ")));
    assert!(report.contains("time (local)") && !report.contains("UTC"), "{report}");
    let page = printed(zone, &["report", "--store", store, "--local-time", "--html", "-"]);
    assert!(page.contains("time (local), from 2026-10-25") && !page.contains("UTC"), "{page}");
    let report = printed(zone, &["report", "--store", store]);
    assert!(report.contains("time (UTC)") && !report.contains("local"), "{report}");
}
