//! Small files that were shipped are merged: the same rows in fewer files, whoever is killed meanwhile.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use wirelane_tests::numbers::LIMIT;
use wirelane_tests::{Child, Signal, wirelane_binary};

use super::door::{Door, ship, shipping, wait_for, words};
use super::shipping::{add, files};
use super::{ask, make_file, store};

/// All rows of the flows, in an order.
fn rows(db: &Path) -> Vec<Value> {
    let columns = "src, dst, src_port, start_ns, duration_ns, packets, bytes, community_id, probe, schema_version, date, hour";
    ask(db, &[&format!("SELECT {columns} FROM flows ORDER BY src, start_ns")])
}

/// The files of an hour that is over become one for each probe once every target has them; rows and what was noted of them
/// stay, nothing is sent again, and a new target gets each row once.
#[test]
fn small_files_that_every_target_has_become_one_with_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let test = "small_files_that_every_target_has_become_one_with_the_same_rows";
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let (db, to) = (folder.path().join("db"), door.to());
    for at in 0..6 {
        add(&db, at * 10..at * 10 + 7, if at % 2 == 0 { "edge-1" } else { "edge-2" });
    }
    // One of the hour that is not over, and a foreign one.
    let (input, now) =
        (folder.path().join("in.pcap"), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH));
    make_file(&input, 90..95, now.unwrap().as_secs() * 1_000_000_000);
    for _ in 0..2 {
        assert_eq!(store(&input, &db, &["--store-probe", "edge-1"]).status.code(), Some(0));
    }
    let (before, all) = (rows(&db), files(&db.join("flows")));
    assert_eq!((before.len(), all.len()), (6 * 7 + 2 * 5, 8));
    // The second target has nothing: no file may go.
    fs::create_dir_all(db.join(".ship/other")).unwrap();
    let finished = ship(&db, &to, &["--create", "--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_eq!(files(&db.join("flows")), all);
    fs::remove_dir(db.join(".ship/other")).unwrap();

    let merged = ship(&db, &to, &["--once"]);
    assert_eq!(merged.status.code(), Some(0), "{}", merged.stderr);
    let found = files(&db.join("flows"));
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(found.iter().filter(|file| all.contains(file)).count(), 2, "{found:?}");
    assert_eq!(rows(&db), before);
    door.has_all_of(&db);
    assert!(!db.join(".ship/merging").exists());
    // They are not small files once more.
    assert_eq!(ship(&db, &to, &["--once"]).status.code(), Some(0));
    assert_eq!(files(&db.join("flows")), found);
    door.has_all_of(&db);

    // Another target gets what is there.
    let other = Door::start(test, &folder.path().join("other"), &[]).unwrap();
    let finished = ship(&db, &to, &["--to", &other.to(), "--create", "--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    other.has_all_of(&db);
    door.has_all_of(&db);
}

/// A shipper is killed at random moments while it merges: after each, the store has every row once for a query, and the
/// server, too.
/// Battery: F4
#[test]
fn a_merge_that_is_killed_neither_loses_nor_repeats_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_merge_that_is_killed_neither_loses_nor_repeats_a_row";
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let (db, to) = (folder.path().join("db"), door.to());
    fs::create_dir_all(db.join("flows")).unwrap();
    assert_eq!(ship(&db, &to, &["--create", "--once"]).status.code(), Some(0));
    let mut random = std::env::var("WIRELANE_SEED").map_or(0x3e4d, |seed| seed.parse::<u64>().unwrap());
    println!("WIRELANE_SEED={random}");
    let mut noted = 0;
    for round in 0..15 {
        // A shipper that goes on sends them; it looks for small files after a minute only.
        for part in 0..4 {
            add(&db, round * 100 + part * 10..round * 100 + part * 10 + 5, "edge-1");
        }
        let shipper = shipping(&db, &to);
        wait_for(&shipper, |line| line["error"].is_null() && line["waiting_files"] == 0);
        assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
        let before = rows(&db);
        assert_eq!(before.len(), (round as usize + 1) * 20);
        // With --once there is nothing to send, and it merges at once.
        let mut command = Command::new(wirelane_binary().unwrap());
        let merging = Child::spawn(command.args(words(&db, &to, &["--once"]))).unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let begun = std::time::Instant::now();
        let hidden = || hidden(&db.join("flows")) || db.join(".ship/merging").exists();
        while !hidden() && begun.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros((random >> 33) % 12_000));
        merging.signal(Signal::Kill).unwrap();
        merging.finish(LIMIT).unwrap();
        noted += u32::from(db.join(".ship/merging").exists());
        assert_eq!(rows(&db), before, "round {round}");
    }
    println!("killed {noted} times between two steps");
    // A state between two steps in any case: the merged file is there, and so are those that it replaces.
    let before = rows(&db);
    let copies: Vec<_> =
        files(&db.join("flows")).iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
    add(&db, 9000..9005, "edge-1");
    assert_eq!(ship(&db, &to, &["--once"]).status.code(), Some(0));
    let [merged] = &files(&db.join("flows"))[..] else { panic!("{:?}", files(&db)) };
    let inside = |file: &Path| file.strip_prefix(&db).unwrap().to_owned();
    let replaces: Vec<_> = copies.iter().map(|(file, _)| inside(file)).collect();
    let note = serde_json::json!({"into": inside(merged), "replaces": replaces});
    fs::write(db.join(".ship/merging"), note.to_string()).unwrap();
    copies.iter().for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
    assert_eq!(rows(&db).len(), before.len() + 5);
    assert_eq!(ship(&db, &to, &["--once"]).status.code(), Some(0));
    assert_eq!(files(&db.join("flows")), std::slice::from_ref(merged));
    assert_eq!(rows(&db).len(), before.len() + 5);
    door.has_all_of(&db);
}

/// Whether there is an unfinished file.
fn hidden(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        path.extension().is_some_and(|extension| extension == "part") || path.is_dir() && hidden(&path)
    })
}
