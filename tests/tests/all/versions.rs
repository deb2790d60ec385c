//! Two versions of Wirelane: on one device they refuse each other, and files of version 0.1 are read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use serde_json::Value;
use wirelane_bpf::instance::{INTERFACE_VERSION, Instance};
use wirelane_tests::flows::flows_of;
use wirelane_tests::numbers::{LIMIT, capture, last_of, send, wirelane};
use wirelane_tests::recordings::capinfos;
use wirelane_tests::{
    Child, Finished, Lab, LabOptions, maps_named, repository, require_root, wirelane_binary,
};

/// A program that finds a device captured by another version refuses it, and says which versions these are and what to do.
/// It leaves the capture alone.
#[test]
fn another_version_on_a_device_is_refused_and_left_alone() {
    if !require_root("another_version_on_a_device_is_refused_and_left_alone") {
        return;
    }
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let device = &lab.receiver().device;
    // Other programs of the machine may capture, too.
    let others = maps_named("wl_instance");
    let first = capture(&lab, &["count", "-i", device, "--json"]).unwrap();
    let index = lab.exec(&lab.receiver().namespace, &["cat", &format!("/sys/class/net/{device}/ifindex")]);
    let (index, place) =
        (index.unwrap().trim().parse::<u32>().unwrap(), std::mem::offset_of!(Instance, ifindex));
    let state = |map: &MapHandle| map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let added = maps_named("wl_instance");
    // One of each direction.
    let maps: Vec<MapHandle> = added
        .difference(&others)
        .map(|id| MapHandle::from_map_id(*id).unwrap())
        .filter(|map| state(map)[place..place + 4] == index.to_ne_bytes())
        .collect();
    assert!(!maps.is_empty(), "no instance");
    let (key, at) = (0u32.to_ne_bytes(), std::mem::offset_of!(Instance, version));
    let set = |version: u32| {
        for map in &maps {
            let mut state = state(map);
            state[at..at + 4].copy_from_slice(&version.to_ne_bytes());
            map.update(&key, &state, MapFlags::ANY).unwrap();
        }
    };
    let theirs = INTERFACE_VERSION + 1;
    set(theirs);
    let run =
        |words: &[&str]| wirelane(&lab, &lab.receiver().namespace, words).unwrap().finish(LIMIT).unwrap();
    let refused = run(&["count", "-i", device, "--json"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    let expected = format!(
        "{device} is captured by a Wirelane with interface version {theirs}, this one has {INTERFACE_VERSION}; stop it first"
    );
    assert!(refused.stderr.contains(&expected), "{}", refused.stderr);
    let groups = run(&["groups"]);
    assert!(
        groups.status.success() && groups.stderr.contains("captured by another version of Wirelane"),
        "{}",
        groups.stderr
    );
    set(INTERFACE_VERSION);
    send(&lab, 100, &[]).unwrap();
    let last = last_of(&first.terminate(LIMIT).unwrap()).unwrap();
    assert_eq!((last["seen"].as_u64(), last["lost"].as_u64()), (Some(100), Some(0)), "{last}");
}

/// Packets of the recordings.
const PACKETS: u64 = 2363;

/// A file that version 0.1.0 has written or read.
fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures/0.1").join(name)
}

fn run(words: &[&str]) -> Finished {
    Child::spawn(Command::new(wirelane_binary().unwrap()).args(words)).unwrap().finish(LIMIT).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Rows of a table, without the columns that version 0.1 did not have, in the order of their text.
fn rows(store: &Path, table: &str) -> Vec<String> {
    let asked = run(&["query", "--json", "--store", text(store), &format!("SELECT * FROM {table}")]);
    assert!(asked.status.success(), "{table}: {}", asked.stderr);
    let row = |mut row: Value| {
        row.as_object_mut().unwrap().retain(|name, _| !["schema_version", "probe"].contains(&name.as_str()));
        row.to_string()
    };
    let mut rows: Vec<String> = asked.json().unwrap().into_iter().map(row).collect();
    rows.sort();
    rows
}

/// A copy of the store of version 0.1.0.
fn store_of_0_1(folder: &Path) -> PathBuf {
    let status = Command::new("cp").arg("-r").arg(fixture("store")).arg(folder).status().unwrap();
    assert!(status.success());
    folder.join("store")
}

/// Commands that store, with their tables.
fn storing() -> [(Vec<String>, &'static [&'static str]); 4] {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    [
        (words(&["flows", "--biflow"]), &["flows"]),
        (words(&["http"]), &["transactions"]),
        (words(&["voip"]), &["calls", "streams"]),
        (words(&["probe", text(&fixture("probe.toml"))]), &["measurements", "alarms"]),
    ]
}

/// Recordings of version 0.1.0 have the packets that capinfos counts, whatever their format, and give the same flows.
#[test]
fn recordings_of_version_0_1_are_read() {
    let flows = |file: &Path| {
        let finished = run(&["flows", "--json", "-r", text(file)]);
        let (mut flows, last) = flows_of(&finished).unwrap();
        flows.sort();
        (flows, last["seen"].as_u64().unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let first = flows(&fixture("recording.pcapng.zst"));
    assert_eq!(first.1, PACKETS);
    for name in ["recording.pcapng", "recording.pcap"] {
        let (packed, plain) = (fixture(&format!("{name}.zst")), folder.path().join(name));
        let zstd = Command::new("zstd").args(["-q", "-d", "-o"]).args([&plain, &packed]).status().unwrap();
        assert!(zstd.success(), "{name}");
        assert_eq!(capinfos(&plain).unwrap().0, PACKETS, "{name}");
        for file in [packed, plain] {
            let found = flows(&file);
            let differ = found.0.iter().zip(&first.0).find(|(one, other)| one != other);
            assert!(found == first, "{}: {differ:#?}", file.display());
        }
    }
}

/// Every row that version 0.1.0 has stored is the row that this version stores of the same packets.
#[test]
fn a_store_of_version_0_1_has_the_rows_of_today() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (store_of_0_1(folder.path()), folder.path().join("new"));
    let recording = fixture("recording.pcapng.zst");
    for (words, tables) in storing() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let stored = run(&[&words, &["-r", text(&recording), "--quiet", "--store", text(&new)][..]].concat());
        assert!(stored.status.success(), "{words:?}: {}", stored.stderr);
        for table in tables {
            let (before, now) = (rows(&old, table), rows(&new, table));
            assert!(!before.is_empty(), "no {table}");
            let differ = before.iter().zip(&now).find(|(before, now)| before != now);
            assert!(before == now, "{table}: {} and {} rows; {differ:#?}", before.len(), now.len());
        }
    }
}

/// This version adds its rows to a store of version 0.1.0, and each row says by which schema it was written.
#[test]
fn a_store_of_version_0_1_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_of_0_1(folder.path());
    let count = |version: u32| {
        let sql = format!("SELECT count(*) AS n FROM flows WHERE schema_version = {version}");
        let asked = run(&["query", "--json", "--store", text(&store), &sql]);
        asked.last_json().unwrap()["n"].as_u64().unwrap()
    };
    let before = count(1);
    assert!(before > 0 && count(2) == 0, "{before}");
    let recording = fixture("recording.pcapng.zst");
    let stored = run(&["flows", "--biflow", "-r", text(&recording), "--quiet", "--store", text(&store)]);
    assert!(stored.status.success(), "{}", stored.stderr);
    assert_eq!((count(1), count(2)), (before, before));
    let report = run(&["report", "--store", text(&store)]);
    assert!(report.status.success(), "{}", report.stderr);
}

/// Configurations of version 0.1.0 are accepted, and mean the same.
#[test]
fn configurations_of_version_0_1_are_accepted() {
    let checked = run(&["check", text(&fixture("site.toml"))]);
    assert!(checked.status.success(), "{}", checked.stderr);
    let rules = run(&["rules", "check", text(&fixture("rules.toml"))]);
    assert!(rules.status.success(), "{}", rules.stderr);
    // The counts that version 0.1.0 has printed for them.
    let expected: Value = serde_json::from_slice(&fs::read(fixture("ledger.json")).unwrap()).unwrap();
    let ruled = run(&[
        "count",
        "-r",
        text(&fixture("recording.pcapng.zst")),
        "--rules",
        text(&fixture("rules.toml")),
        "--json",
    ]);
    let last = last_of(&ruled).unwrap();
    for name in ["seen", "filtered", "absorbed", "delivered"] {
        assert_eq!(last[name], expected[name], "{name}: {last}");
    }
    assert!(expected["filtered"].as_u64().unwrap() > 0, "{expected}");
}
