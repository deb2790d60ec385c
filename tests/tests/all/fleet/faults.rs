//! Faults of shipping beyond those of the network: certificates, the disk and the clock of the probe, versions.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::recordings::Disk;
use wirelane_tests::require_root;

use super::asking::both;
use super::door::{Door, ship, shipping, wait_for};
use super::shipping::{add, files};
use super::{ask, make_file, run, store};

/// Runs openssl in a folder.
fn openssl(folder: &Path, words: &str) {
    let output = Command::new("openssl").current_dir(folder).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes an authority.
fn authority(folder: &Path, name: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(folder, &format!("req -x509 {key} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"));
}

/// Makes a certificate of this authority for this alternative name, in a file with its key.
fn certificate(folder: &Path, authority: &str, name: &str, alternative: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(folder, &format!("req {key} -subj /CN=server -keyout {name}.key -out {name}.csr"));
    fs::write(folder.join("extensions"), format!("subjectAltName={alternative}\n")).unwrap();
    openssl(
        folder,
        &format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile extensions \
             -out {name}.crt"
        ),
    );
    let both = [fs::read(folder.join(format!("{name}.crt"))), fs::read(folder.join(format!("{name}.key")))];
    fs::write(folder.join(format!("{name}.pem")), both.map(Result::unwrap).concat()).unwrap();
}

/// A server whose certificate is of another authority or for another name gets nothing, also no question.
#[test]
fn a_server_with_a_wrong_certificate_gets_nothing() {
    let test = "a_server_with_a_wrong_certificate_gets_nothing";
    if Command::new("openssl").arg("version").output().is_err() {
        println!("left out: {test} (no openssl: scripts/setup)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(mut door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let (db, here) = (folder.path().join("db"), folder.path());
    add(&db, 0..30, "edge-1");
    authority(here, "ours");
    authority(here, "theirs");
    certificate(here, "ours", "right", "IP:127.0.0.1");
    certificate(here, "ours", "name", "DNS:ch.example.net");
    certificate(here, "theirs", "authority", "IP:127.0.0.1");
    let ours = here.join("ours.pem");
    let trusted = ["--ca", ours.to_str().unwrap()];
    let shipped =
        |door: &Door, more: &[&str]| ship(&db, &door.to(), &[&["--create", "--once"], more].concat());
    for (name, more) in [("name", &trusted[..]), ("authority", &trusted), ("right", &[])] {
        door.kill();
        door.certificate = Some(here.join(format!("{name}.pem")));
        door.open();
        let finished = shipped(&door, more);
        assert_eq!(finished.status.code(), Some(1), "{name}: {}", finished.stderr);
        assert!(finished.stderr.contains("invalid peer certificate"), "{name}: {}", finished.stderr);
        let asked = run(&[&["query", "top", "ports", "--at", &door.to()], more].concat());
        assert_eq!(asked.status.code(), Some(1), "{name}: {}", asked.stderr);
        assert!(asked.stderr.contains("invalid peer certificate"), "{name}: {}", asked.stderr);
    }
    assert_eq!(door.ask("SELECT count() FROM system.databases WHERE name = 'fleet'"), "0");
    let finished = shipped(&door, &trusted);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
    let asked = run(&[&["query", "top", "ports", "--json", "--at", &door.to()], &trusted[..]].concat());
    assert_eq!((asked.status.code(), asked.lines.len()), (Some(0), 1), "{}", asked.stderr);
}

/// On a full disk nothing is sent that cannot be noted, and what was sent before the disk became full is repeated under its
/// token.
/// Battery: F3
#[test]
fn a_full_disk_of_the_probe_neither_loses_nor_repeats_a_row() {
    let test = "a_full_disk_of_the_probe_neither_loses_nor_repeats_a_row";
    if !require_root(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let disk = Disk::new("tmpfs", "size=2m,mode=777").unwrap();
    let (db, ballast) = (disk.path().join("db"), disk.path().join("ballast"));
    fs::create_dir_all(db.join("flows")).unwrap();
    assert_eq!(ship(&db, &door.to(), &["--create", "--once"]).status.code(), Some(0));
    // As far as it goes.
    let fill = || assert!(fs::write(&ballast, vec![0; 4 << 20]).is_err(), "the disk is not full");
    let rows = || door.ask("SELECT count() FROM fleet.flows");

    // The disk becomes full while the server works.
    door.order("slow", 1);
    add(&db, 0..20, "edge-1");
    let shipper = shipping(&db, &door.to());
    let target =
        fs::read_dir(db.join(".ship")).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    let pending = target.unwrap().join("pending");
    let begun = Instant::now();
    while !pending.exists() {
        assert!(begun.elapsed() < LIMIT, "no batch");
        std::thread::sleep(Duration::from_millis(5));
    }
    fill();
    wait_for(&shipper, |line| line["error"].as_str().is_some_and(|error| error.contains("No space left")));
    assert_eq!(rows(), "20");
    door.order("slow", 0);
    fs::remove_file(&ballast).unwrap();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "waiting_files") == 0);
    door.has_all_of(&db);

    // It is full before a batch is noted.
    add(&db, 100..130, "edge-1");
    fill();
    wait_for(&shipper, |line| line["error"].as_str().is_some_and(|error| error.contains("No space left")));
    assert_eq!(rows(), "20");
    fs::remove_file(&ballast).unwrap();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "waiting_files") == 0);
    let finished = shipper.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
    assert_eq!(rows(), "50");
}

/// A server whose disk is full takes no batch, and takes it once there is space.
/// Battery: F3
#[test]
fn a_server_without_space_gets_its_rows_once_it_has_some() {
    let test = "a_server_without_space_gets_its_rows_once_it_has_some";
    if !require_root(test) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new("tmpfs", "size=64m,mode=777").unwrap();
    let Some(door) = Door::start(test, &disk.path().join("door"), &[]) else { return };
    let (db, ballast) = (folder.path().join("db"), disk.path().join("ballast"));
    add(&db, 0..30, "edge-1");
    let finished = ship(&db, &door.to(), &["--create", "--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
    assert!(fs::write(&ballast, vec![0; 128 << 20]).is_err(), "the disk is not full");
    add(&db, 100..130, "edge-1");
    let shipper = shipping(&db, &door.to());
    let is_refused = |line: &serde_json::Value| {
        line["error"].as_str().is_some_and(|error| error.contains("No space left"))
            && column(line, "waiting_files") == 1
    };
    wait_for(&shipper, is_refused);
    fs::remove_file(&ballast).unwrap();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "waiting_files") == 0);
    let finished = shipper.terminate(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
}

/// Rows whose times jump forward and back by hours and days arrive once, and the store and the server agree on all hours.
/// Battery: F7
#[test]
fn rows_of_a_clock_that_jumps_arrive_once() {
    let folder = tempfile::tempdir().unwrap();
    let Some(door) = Door::start("rows_of_a_clock_that_jumps_arrive_once", &folder.path().join("door"), &[])
    else {
        return;
    };
    let (db, input) = (folder.path().join("db"), folder.path().join("in.pcap"));
    fs::create_dir_all(db.join("flows")).unwrap();
    assert_eq!(ship(&db, &door.to(), &["--create", "--once"]).status.code(), Some(0));
    let shipper = shipping(&db, &door.to());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let steps = [-7200, 3 * 86_400, -7100, -20 * 86_400, 3600, -7200, 3 * 86_400 + 1, -3600];
    for (at, step) in (0..).zip(steps) {
        make_file(&input, at * 10..at * 10 + 5, (now + step).cast_unsigned() * 1_000_000_000);
        assert_eq!(store(&input, &db, &["--store-probe", "edge-1"]).status.code(), Some(0));
    }
    wait_for(&shipper, |line| {
        line["error"].is_null() && column(line, "waiting_files") == 0 && column(line, "shipped_rows") == 40
    });
    assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
    door.has_all_of(&db);
    let [here, there] = both(&db, &door, &["missing", "--json"]);
    assert!(
        here.lines == there.lines && here.lines.len() > 23 * 24,
        "{} {}",
        here.lines.len(),
        there.lines.len()
    );
    assert!(!here.lines.iter().any(|line| line.contains("rows missing")));
    let [here, there] = both(&db, &door, &["over", "time", "--step", "1h"]);
    assert_eq!(here.lines, there.lines);
}

/// A server with more columns gets the rows. A file of a newer version is not shipped, and goes after that version is
/// there.
#[test]
fn other_versions_get_what_they_know_and_nothing_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let test = "other_versions_get_what_they_know_and_nothing_is_dropped";
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let db = folder.path().join("db");
    add(&db, 0..10, "edge-1");
    assert_eq!(ship(&db, &door.to(), &["--create", "--once"]).status.code(), Some(0));
    door.ask("ALTER TABLE fleet.flows ADD COLUMN later Nullable(Int32), ADD COLUMN first Int64 FIRST");
    add(&db, 20..30, "edge-1");
    let finished = ship(&db, &door.to(), &["--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    door.has_all_of(&db);
    let [here, there] = both(&db, &door, &["top", "pairs", "-n", "100", "--json"]);
    assert_eq!((here.lines.len(), here.lines), (20, there.lines));

    let before = files(&db.join("flows"));
    add(&db, 40..50, "edge-1");
    let newest = files(&db.join("flows")).into_iter().find(|file| !before.contains(file)).unwrap();
    let older = fs::read(&newest).unwrap();
    let key = b"wirelane.schema";
    let at = older.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 2;
    let newer = [&older[..at], b"9", &older[at + 1..]].concat();
    fs::write(&newest, newer).unwrap();
    let finished = ship(&db, &door.to(), &["--once"]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    assert!(finished.stderr.contains("was written by a newer Wirelane"), "{}", finished.stderr);
    assert_eq!(door.ask("SELECT count() FROM fleet.flows"), "20");
    fs::write(&newest, older).unwrap();
    assert_eq!(ship(&db, &door.to(), &["--once"]).status.code(), Some(0));
    door.has_all_of(&db);
    assert_eq!(ask(&db, &["SELECT count(*) AS n FROM flows"])[0]["n"], 30);
}
