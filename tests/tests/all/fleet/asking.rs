//! `wirelane query --at`: a server has the answers of the stores that were shipped to it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use wirelane_tests::numbers::column;
use wirelane_tests::{Finished, corpus, wirelane_binary};

use super::door::{Door, ship};
use super::{ask, make_file, run, store};

/// All ready questions, and the least number of rows of their answers over the corpus.
const QUESTIONS: &[(&str, usize)] = &[
    ("top talkers", 100),
    ("top ports", 30),
    ("top pairs", 100),
    ("top hosts", 20),
    ("by network", 50),
    ("by network --bits4 13 --bits6 21", 50),
    ("by network --bits4 0 --bits6 0", 2),
    ("by application", 10),
    ("by protocol", 3),
    ("by device", 1),
    ("by status", 3),
    ("over time", 20),
    ("over time --step 7s", 100),
    ("worst calls", 2),
    ("worst streams", 10),
    ("calls by status", 3),
    ("slowest transactions", 50),
    ("who talked to 192.168.0.0/16", 20),
    ("who talked to 192.168.1.1", 1),
    ("who talked to ::/0", 5),
    ("missing --from 2019-01-01 --to 2019-03-01", 59 * 24),
];

/// All tables of a store.
const TABLES: [&str; 7] = ["flows", "calls", "streams", "transactions", "measurements", "alarms", "ledgers"];

/// A probe whose alarm is raised and cleared.
const PROBE: &str = "[[measurement]]\nname = \"all\"\nvalues = [\"packets\", \"bps\", \"lengths\", \"top-src\"]\n\
    [[alarm]]\nname = \"many\"\nmeasurement = \"all\"\nvalue = \"packets\"\nabove = 4\nclear = 3\n";

/// Compares a table of a store and of the server by its number of rows, and for each column by the number of values and
/// their sum, or the number of different ones and their length.
fn columns_agree(db: &Path, door: &Door, table: &str) {
    let columns = ask(db, &[&format!("DESCRIBE {table}")]);
    let mut sums = vec!["count(*)".to_owned()];
    for column in &columns {
        let [name, kind] = ["column_name", "data_type"].map(|key| column[key].as_str().unwrap());
        // The store has them by its folders.
        if ["date", "hour"].contains(&name) {
            continue;
        }
        sums.push(format!("count({name})"));
        match kind {
            // Times in nanoseconds have no sum in 64 bits.
            "INTEGER" => sums.push(format!("coalesce(sum({name} % 1000000007), 0)")),
            "REAL" => sums.push(format!("coalesce(sum(floor({name} * 1e6 + 0.5)), 0)")),
            "BOOLEAN" => sums.push(format!("sum(CASE WHEN {name} THEN 1 ELSE 0 END)")),
            "TEXT" => sums.push(format!("count(DISTINCT {name})")),
            kind => assert_eq!(kind, "TIMESTAMP", "{table}.{name}"),
        }
        let address = ["src", "dst", "caller", "callee", "client", "server"];
        if kind == "TEXT" && !address.contains(&name) {
            sums.push(format!("coalesce(sum(octet_length({name})), 0)"));
        }
    }
    let named: Vec<String> =
        sums.iter().enumerate().map(|(at, sum)| format!("CAST({sum} AS BIGINT) AS n{at}")).collect();
    let query = |table: &str| format!("SELECT {} FROM {table}", named.join(", "));
    let row = &ask(db, &[&query(table)])[0];
    let ours: Vec<String> = (0..sums.len()).map(|at| row[format!("n{at}")].to_string()).collect();
    let theirs = door.ask(&(query(&format!("fleet.{table}")) + " FORMAT TabSeparated"));
    let theirs: Vec<&str> = theirs.split('\t').collect();
    assert_ne!(ours[0], "0", "{table}");
    for (at, sum) in sums.iter().enumerate() {
        assert_eq!(ours[at], theirs[at], "{table}: {sum}");
    }
}

/// The answers of a store and of the server to a question.
pub fn both(db: &Path, door: &Door, words: &[&str]) -> [Finished; 2] {
    let of = |place: [&str; 2]| {
        let finished = run(&[&["query"][..], words, &place].concat());
        assert_eq!(finished.status.code(), Some(0), "{place:?} {words:?}: {}", finished.stderr);
        finished
    };
    [of(["--store", db.to_str().unwrap()]), of(["--at", &door.to()])]
}

/// Over real traffic of two probes, each ready question has the same answer from the store and from the server, in each
/// form, for one probe and for a time span.
#[test]
fn a_server_answers_every_question_as_the_store_does() {
    let test = "a_server_answers_every_question_as_the_store_does";
    let Some(corpus) = corpus(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let db = folder.path().join("db");
    for (command, captures, probe, more) in [
        ("flows", "apps", "edge-1", &["--biflow"][..]),
        ("flows", "mixed", "edge-2", &[]),
        ("voip", "voip", "edge-1", &[]),
        ("http", "http", "edge-2", &[]),
    ] {
        let captures = corpus.join("captures").join(captures);
        let words = [command, "-r", captures.to_str().unwrap(), "--quiet", "--store", db.to_str().unwrap()];
        let mut command = Command::new(wirelane_binary().unwrap());
        // Captures of the corpus are cut, which is an error at the end.
        command.args(words).args(["--store-probe", probe]).args(more).output().unwrap();
    }
    let (input, config) = (folder.path().join("in.pcap"), folder.path().join("probe.toml"));
    make_file(&input, 0..500, hours_ago(2));
    fs::write(&config, PROBE).unwrap();
    let words = ["probe", config.to_str().unwrap(), "-r", input.to_str().unwrap(), "--quiet", "--store"];
    let probed = run(&[&words[..], &[db.to_str().unwrap(), "--store-probe", "edge-3"]].concat());
    assert_eq!(probed.status.code(), Some(0), "{}", probed.stderr);
    // Rows of the corpus are older than a server keeps them.
    fs::create_dir_all(folder.path().join("empty/flows")).unwrap();
    let created = ship(&folder.path().join("empty"), &door.to(), &["--create", "--once"]);
    assert_eq!(created.status.code(), Some(0), "{}", created.stderr);
    let tables =
        door.ask("SELECT name FROM system.tables WHERE database = 'fleet' AND engine != 'MaterializedView'");
    let tables: Vec<&str> = tables.lines().map(|name| name.trim_matches('"')).collect();
    assert_eq!(tables.len(), 10, "{tables:?}");
    for table in tables {
        door.ask(&format!("ALTER TABLE fleet.{table} REMOVE TTL"));
    }
    let shipped = ship(&db, &door.to(), &["--once"]);
    assert_eq!(shipped.status.code(), Some(0), "{}", shipped.stderr);

    for table in TABLES {
        columns_agree(&db, &door, table);
    }
    for (at, (question, least)) in QUESTIONS.iter().enumerate() {
        let words: Vec<&str> = question.split(' ').collect();
        let [here, there] = both(&db, &door, &[&words[..], &["--json", "-n", "100000"]].concat());
        // A server cannot tell an address of IPv4 from the same one that is mapped into IPv6.
        let here: Vec<String> = here.lines.iter().map(|line| line.replace("\"::ffff:", "\"")).collect();
        let first = here.iter().zip(&there.lines).find(|(one, other)| one != other);
        assert!(here == there.lines, "{question}: {} and {} lines, {first:?}", here.len(), there.lines.len());
        assert!(here.len() >= *least, "{question}: {} lines", here.len());
        if at % 2 == 0 {
            let [here, there] = both(&db, &door, &[&words[..], &["--probe", "edge-1", "-n", "3"]].concat());
            assert_eq!(here.lines, there.lines, "{question}");
        }
    }
    for (question, form) in
        [("top pairs", "--csv"), ("worst streams", "--csv"), ("slowest transactions", "--csv")]
    {
        let words: Vec<&str> = question.split(' ').collect();
        let range = ["--from", "2010-01-01", "--to", "2020-10-01 12:00:00.5", form, "-n", "100000"];
        let [here, there] = both(&db, &door, &[&words[..], &range].concat());
        assert_eq!(here.lines, there.lines, "{question}");
        assert!(here.lines.len() > 5, "{question}: {:?}", here.lines);
    }

    let refused = |words: &[&str], status: i32, why: &str| {
        let finished = run(&[&["query"], words].concat());
        assert_eq!(finished.status.code(), Some(status), "{words:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(why), "{words:?}: {}", finished.stderr);
    };
    let (at, db) = (door.to(), db.to_str().unwrap());
    refused(&["SELECT 1", "--at", &at], 2, "a server is asked ready-made queries");
    refused(&["top", "ports", "--at", &at, "--store", db], 2, "excludes --store");
    refused(&["top", "ports", "--at", "http://h/d"], 2, "expected clickhouse+https://USER@HOST");
    refused(&["top", "ports"], 2, "or a server with --at");
    refused(&["top", "ports", "--at", &at.replace("/fleet", "/none")], 1, "none");
    let injected = run(&["query", "top", "ports", "--at", &at, "--probe", "x\\' OR '1' = '1", "--json"]);
    assert_eq!((injected.status.code(), injected.lines), (Some(0), Vec::new()), "{}", injected.stderr);
}

/// Start of the hour so many hours ago, in nanoseconds since 1970.
fn hours_ago(hours: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    (now / 3600 - hours) * 3_600_000_000_000
}

/// Rows of `missing`: probe, hours ago, unshipped rows, rows of files, rows that arrived, state.
fn missing(finished: &Finished) -> Vec<(String, u64, [u64; 3], String)> {
    let written = |hours: u64| {
        let at = format!("@{}", hours_ago(hours) / 1_000_000_000);
        let output = Command::new("date").args(["-u", "+%FT%T", "-d", &at]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let known: Vec<String> = (0..8).map(written).collect();
    let row = |row: &Value| {
        let ago = known.iter().position(|hour| Some(hour.as_str()) == row["hour"].as_str()).unwrap();
        let numbers = ["unshipped", "noted", "arrived"].map(|name| column(row, name));
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (text("probe"), ago as u64, numbers, text("state"))
    };
    finished.json().unwrap().iter().map(row).collect()
}

/// A quiet hour, rows that were removed before they were shipped, rows that the server lacks, and packets that a ledger
/// says were lost are seen, by probe and hour.
#[test]
fn what_is_missing_is_seen_by_probe_and_hour() {
    let folder = tempfile::tempdir().unwrap();
    let test = "what_is_missing_is_seen_by_probe_and_hour";
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let (db, input) = (folder.path().join("db"), folder.path().join("in.pcap"));
    // The hour does not change while the test runs.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    std::thread::sleep(Duration::from_secs(if now % 3600 > 3450 { 3601 - now % 3600 } else { 0 }));
    let add = |probe: &str, hours: u64, flows: u32, more: &[&str]| {
        make_file(&input, 0..flows, hours_ago(hours) + 60_000_000_000);
        let finished = store(&input, &db, &[&["--store-probe", probe], more].concat());
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    };
    for (probe, hours, flows) in [
        ("edge-1", 6, 10),
        ("edge-1", 5, 20),
        ("edge-1", 3, 30),
        ("edge-2", 5, 1),
        ("edge-2", 4, 2),
        ("edge-2", 3, 3),
    ] {
        add(probe, hours, flows, &[]);
    }
    assert_eq!(ship(&db, &door.to(), &["--create", "--once"]).status.code(), Some(0));
    let row = |probe: &str, hours: u64, numbers: [u64; 3], state: &str| {
        (probe.to_owned(), hours, numbers, state.to_owned())
    };
    let words = ["missing", "--json"];
    let whole = [
        row("edge-1", 6, [0, 10, 10], "complete"),
        row("edge-2", 6, [0, 0, 0], "quiet"),
        row("edge-1", 5, [0, 20, 20], "complete"),
        row("edge-2", 5, [0, 1, 1], "complete"),
        row("edge-1", 4, [0, 0, 0], "quiet"),
        row("edge-2", 4, [0, 2, 2], "complete"),
        row("edge-1", 3, [0, 30, 30], "complete"),
        row("edge-2", 3, [0, 3, 3], "complete"),
    ];
    for finished in both(&db, &door, &words) {
        assert_eq!(missing(&finished), whole);
    }
    // The last hours that are over, in which both probes have been quiet.
    for finished in both(&db, &door, &[&words[..], &["--last", "2h"]].concat()) {
        let quiet = |hours| ["edge-1", "edge-2"].map(|probe| row(probe, hours, [0, 0, 0], "quiet"));
        assert_eq!(missing(&finished), [quiet(2), quiet(1)].concat());
    }
    for finished in both(&db, &door, &[&words[..], &["--probe", "edge-2"]].concat()) {
        assert_eq!(missing(&finished), [whole[3].clone(), whole[5].clone(), whole[7].clone()]);
    }

    // A file is removed for its age in spite of the target: noted as retention does by size.
    add("edge-2", 2, 40, &[]);
    let taken = ask(&db, &["SELECT count(*) AS n FROM flows"]);
    assert_eq!(taken, [json!({"n": 106})]);
    let path = super::shipping::files(&db.join("flows")).pop().unwrap();
    let file = path.strip_prefix(&db).unwrap();
    let hour = hours_ago(2) / 3_600_000_000_000;
    let note = json!({"file": file, "table": "flows", "hour": hour, "probe": "edge-2", "rows": 40});
    fs::write(db.join(".ship/taken"), format!("{note}\n")).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(ship(&db, &door.to(), &["--once"]).status.code(), Some(0));
    for finished in both(&db, &door, &words) {
        let rows = missing(&finished);
        let added = [row("edge-1", 2, [0, 0, 0], "quiet"), row("edge-2", 2, [40, 0, 0], "rows missing")];
        assert_eq!(rows, [&whole[..], &added].concat());
    }

    // A row is removed at the server, and a ledger arrives that has lost packets.
    door.ask("ALTER TABLE fleet.flows DELETE WHERE probe = 'edge-1' AND src = toIPv6('::ffff:10.0.0.7') SETTINGS mutations_sync = 1");
    let ledger = format!(
        "insert into fleet.ledgers (start_time, end_time, seen, lost, shed, probe) SELECT t, t, 100, 4, 3, 'edge-2' FROM \
         (SELECT fromUnixTimestamp64Nano(toInt64({})) AS t)",
        hours_ago(4) + 1_000_000_000
    );
    door.ask(&ledger);
    let finished = run(&["query", "missing", "--json", "--at", &door.to()]);
    let rows = missing(&finished);
    assert_eq!(rows[0], row("edge-1", 6, [0, 10, 9], "rows missing"));
    assert_eq!(rows[5], row("edge-2", 4, [0, 2, 3], "packets lost"));
    let ledger = ["seen", "lost", "shed"].map(|name| column(&finished.json().unwrap()[5], name));
    assert_eq!(ledger, [100, 4, 3]);
}
