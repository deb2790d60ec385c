//! `wirelane ship` against ClickHouse's engine (chdb) behind an HTTP door: every row arrives once.

use std::fs::{self, FileTimes};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::{Child, Signal, wirelane_binary};

use super::door::{Door, ship, shipping, wait_for, words};
use super::{ask, make_file, run, store};

/// Adds a file with so many flows that ended two hours ago.
pub fn add(db: &Path, flows: std::ops::Range<u32>, probe: &str) {
    let input = db.with_extension("pcap");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    make_file(&input, flows, (now.as_secs() - 7200) * 1_000_000_000);
    assert_eq!(store(&input, db, &["--store-probe", probe]).status.code(), Some(0));
}

#[test]
fn every_row_arrives_once_whatever_is_lost_slow_or_killed() {
    let folder = tempfile::tempdir().unwrap();
    let test = "every_row_arrives_once_whatever_is_lost_slow_or_killed";
    let Some(mut door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let (db, to) = (folder.path().join("db"), door.to());
    for (flows, probe) in [(0..30, "edge-1"), (30..50, "edge-2"), (50..60, "edge-1")] {
        add(&db, flows, probe);
    }
    let finished = ship(&db, &to, &["--create", "--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    let numbers = ["shipped_rows", "shipped_files", "batches", "waiting_files", "retries"]
        .map(|name| column(&last, name));
    assert_eq!(numbers, [60, 3, 1, 0, 0], "{last}");
    door.has_all_of(&db);
    let probes = "SELECT probe, count() FROM fleet.flows GROUP BY probe ORDER BY probe FORMAT TabSeparated";
    assert_eq!(door.ask(probes), "edge-1\t40\nedge-2\t20");
    let by_address = "SELECT src, sum(bytes) AS b FROM flows GROUP BY src ORDER BY src";
    let ours: Vec<String> = ask(&db, &[by_address])
        .iter()
        .map(|row| format!("::ffff:{}\t{}", row["src"].as_str().unwrap(), row["b"]))
        .collect();
    let theirs = door.ask(
        "SELECT src, sum(bytes) FROM fleet.flows GROUP BY src ORDER BY toString(src) FORMAT TabSeparated",
    );
    assert_eq!(theirs.lines().collect::<Vec<_>>(), ours);
    // There is nothing left to ship.
    assert_eq!(column(&ship(&db, &to, &["--once"]).last_json().unwrap(), "batches"), 0);

    // The answers to the rows and to their description are lost.
    add(&db, 100..140, "edge-1");
    door.order("lose", 3);
    let finished = ship(&db, &to, &["--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_eq!(column(&finished.last_json().unwrap(), "retries"), 3);
    door.has_all_of(&db);

    // The server refuses for a while, is slower than the patience, and is away; times of files jump.
    let shipper = shipping(&db, &to);
    for (fault, value) in [("status", 503), ("slow", 4)] {
        door.order(fault, value);
        add(&db, 200..210, "edge-1");
        let file = |path: &Path| fs::File::options().write(true).open(path).unwrap();
        for (path, distance) in files(&db.join("flows")).iter().zip([86_400, 0, 40_000_000]) {
            let time = SystemTime::now() + Duration::from_secs(distance) - Duration::from_secs(86_400);
            file(path).set_times(FileTimes::new().set_modified(time)).unwrap();
        }
        wait_for(&shipper, |line| line["error"].is_string() && column(line, "waiting_files") == 1);
        door.order(fault, 0);
        wait_for(&shipper, |line| line["error"].is_null() && column(line, "waiting_files") == 0);
        door.has_all_of(&db);
    }
    door.kill();
    add(&db, 300..310, "edge-1");
    wait_for(&shipper, |line| line["error"].is_string());
    door.open();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "waiting_files") == 0);
    let finished = shipper.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);

    // Both are killed at random moments.
    let mut random = std::env::var("WIRELANE_SEED").map_or(0x5eed, |seed| seed.parse::<u64>().unwrap());
    println!("WIRELANE_SEED={random}");
    let rounds = std::env::var("WIRELANE_KILLS").map_or(12, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        add(&db, 1000 + round * 10..1007 + round * 10, "edge-3");
        let shipper = shipping(&db, &to);
        std::thread::sleep(Duration::from_millis((random >> 33) % 250));
        if round % 4 == 3 {
            door.kill();
        }
        shipper.signal(Signal::Kill).unwrap();
        shipper.finish(LIMIT).unwrap();
        if round % 4 == 3 {
            door.open();
        }
    }
    let finished = ship(&db, &to, &["--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
}

/// The complete files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false if path.extension().is_some_and(|extension| extension == "parquet") => found.push(path),
            false => {}
        }
    }
    found.sort();
    found
}

#[test]
fn the_schema_applies_again_and_refusals_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let test = "the_schema_applies_again_and_refusals_say_why";
    let account = ["probe", "open sesame"];
    let Some(door) = Door::start(test, &folder.path().join("door"), &account) else { return };
    let (db, to) = (folder.path().join("db"), door.to());
    add(&db, 0..10, "edge-1");
    let secret = folder.path().join("secret");
    fs::write(&secret, "open sesame\n").unwrap();
    let password = ["--password-file", secret.to_str().unwrap()];
    let refused = |more: &[&str], status: i32, why: &str| {
        let finished = ship(&db, &to, &[&["--once"], more].concat());
        assert_eq!(finished.status.code(), Some(status), "{}", finished.stderr);
        assert!(finished.stderr.contains(why), "{why}: {}", finished.stderr);
    };
    Command::new("chmod").arg("644").arg(&secret).status().unwrap();
    refused(&password, 1, "is readable by others (mode 0644)");
    Command::new("chmod").arg("600").arg(&secret).status().unwrap();
    refused(&[], 1, "Authentication failed");
    refused(&password, 1, "apply the schema with --create");
    let created = [&password[..], &["--create"]].concat();
    let schema = || {
        door.ask("SELECT name, create_table_query FROM system.tables WHERE database = 'fleet' ORDER BY name")
    };
    let finished = ship(&db, &to, &[&["--once"], &created[..]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let first = schema();
    assert_eq!(ship(&db, &to, &[&["--once"], &created[..]].concat()).status.code(), Some(0));
    assert_eq!(schema(), first);
    door.has_all_of(&db);

    // A column that the server lacks is reported, and added.
    door.ask("ALTER TABLE fleet.flows DROP COLUMN community_id");
    add(&db, 20..30, "edge-1");
    refused(&password, 1, "has no column flows.community_id");
    let finished = ship(&db, &to, &[&["--once"], &created[..]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);

    // One process ships a store.
    let mut command = Command::new(wirelane_binary().unwrap());
    let shipper = Child::spawn(command.args(words(&db, &to, &password))).unwrap();
    wait_for(&shipper, |line| column(line, "waiting_files") == 0 && line["error"].is_null());
    refused(&password, 1, "another process ships the store");
    assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
    for wrong in ["clickhouse://h/d", "clickhouse+http://u:p@h/d", "clickhouse+http://h"] {
        let finished = ship(&db, wrong, &["--once"]);
        assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
    }
    let printed = run(&["ship", "--ddl", "fleet"]);
    assert_eq!(printed.status.code(), Some(0), "{}", printed.stderr);
    assert!(
        printed.lines.iter().any(|line| line == "CREATE DATABASE IF NOT EXISTS fleet;"),
        "{:?}",
        printed.lines
    );
}
