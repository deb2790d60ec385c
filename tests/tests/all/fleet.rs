//! Stores of several probes, and shipping them to ClickHouse, Kafka and S3.

mod asking;
mod beside;
mod broker;
mod door;
mod faults;
mod kafka;
mod killed;
mod merging;
mod s3;
mod shipping;
mod whole;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use wirelane_tests::duckdb::duckdb;
use wirelane_tests::frames::{ethernet, udp};
use wirelane_tests::numbers::LIMIT;
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Finished, wirelane_binary};

/// Runs the program.
fn run(words: &[&str]) -> Finished {
    Child::spawn(Command::new(wirelane_binary().unwrap()).args(words)).unwrap().finish(LIMIT).unwrap()
}

/// Writes a capture file with a flow for each of these numbers, a millisecond apart.
fn make_file(path: &Path, flows: std::ops::Range<u32>, start_ns: u64) {
    let mut file = fs::File::create(path).unwrap();
    write_header(&mut file).unwrap();
    for (at, n) in flows.enumerate() {
        let [_, a, b, c] = n.to_be_bytes();
        let packet = udp([10, a, b, c], [192, 0, 2, (n % 200) as u8], (5000, 53), &[0; 20]);
        let frame = ethernet(0x0800, &packet);
        write_packet(&mut file, start_ns + at as u64 * 1_000_000, &frame).unwrap();
    }
}

/// Stores the flows of a file.
fn store(input: &Path, store: &Path, more: &[&str]) -> Finished {
    let words = ["flows", "-r", input.to_str().unwrap(), "--quiet", "--store", store.to_str().unwrap()];
    run(&[&words, more].concat())
}

/// Rows of a query in JSON.
fn ask(store: &Path, words: &[&str]) -> Vec<Value> {
    let finished = run(&[&["query", "--json", "--store", store.to_str().unwrap()], words].concat());
    assert_eq!(finished.status.code(), Some(0), "{words:?}: {}", finished.stderr);
    finished.json().unwrap()
}

#[test]
fn rows_and_files_name_their_probe_and_their_schema() {
    let folder = tempfile::tempdir().unwrap();
    let (input, db) = (folder.path().join("in.pcap"), folder.path().join("db"));
    for (flows, more) in [
        (0..10, &[][..]),
        (0..20, &["--store-probe", "edge-1"]),
        (0..30, &["--store-probe", "edge-2.example.net"]),
    ] {
        make_file(&input, flows, NOON_NS);
        assert_eq!(store(&input, &db, more).status.code(), Some(0));
    }
    let output = Command::new("uname").arg("-n").output().unwrap();
    let host = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let sql = "SELECT probe, schema_version AS v, count(*) AS n FROM flows GROUP BY 1, 2 ORDER BY n";
    let expected = [(host.as_str(), 10), ("edge-1", 20), ("edge-2.example.net", 30)]
        .map(|(probe, n)| json!({"probe": probe, "v": 2, "n": n}));
    assert_eq!(ask(&db, &[sql]), expected);
    assert_eq!(ask(&db, &[sql, "--probe", "edge-1"]), expected[1..2]);
    let sent = |words: &[&str]| -> i64 {
        let rows = ask(&db, &[&["top", "talkers", "-n", "1000"], words].concat());
        rows.iter().map(|row| row["flows"].as_i64().unwrap()).sum()
    };
    // Each flow is one of both its addresses.
    assert_eq!(
        [sent(&[]), sent(&["--probe", "edge-2.example.net"]), sent(&["--probe", "none"])],
        [120, 60, 0]
    );
    let report = |words: &[&str]| {
        let finished = run(&[&["report", "--json", "--store", db.to_str().unwrap()], words].concat());
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        finished.lines
    };
    assert_ne!(report(&[]), report(&["--probe", "edge-1"]));

    let script = format!(
        "import duckdb; print(duckdb.sql(\"SELECT DISTINCT decode(value) FROM parquet_kv_metadata('{}/flows/**/*.parquet') \
         WHERE decode(key) IN ('wirelane.probe', 'wirelane.schema') ORDER BY 1\").fetchall())",
        db.display()
    );
    if let Some(theirs) = duckdb(&script) {
        let mut names = ["2", "edge-1", "edge-2.example.net", &host];
        names.sort_unstable();
        assert_eq!(theirs, format!("[{}]", names.map(|name| format!("('{name}',)")).join(", ")));
    }

    for wrong in ["", "two words", "quo'te"] {
        let finished = store(&input, &db, &["--store-probe", wrong]);
        assert_eq!(finished.status.code(), Some(2), "{wrong:?}");
        assert!(finished.stderr.contains("is not a name of a probe: expected"), "{}", finished.stderr);
    }
}

/// The file of a monitor has the name, too.
#[test]
fn the_monitor_names_its_probe() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    make_file(&path("in.pcap"), 0..7, NOON_NS);
    let text = format!(
        "[capture]\nread = \"{}\"\n[flows]\n[store]\nfolder = \"{}\"\nprobe = \"edge-3\"\n",
        path("in.pcap").display(),
        path("db").display()
    );
    fs::write(path("site.toml"), text).unwrap();
    let finished = run(&["monitor", path("site.toml").to_str().unwrap()]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let sql = "SELECT probe, count(*) AS n FROM flows GROUP BY 1";
    assert_eq!(ask(&path("db"), &[sql]), [json!({"probe": "edge-3", "n": 7})]);
}
