//! `wirelane ship --to s3://` and `wirelane query --store s3://` against a server of objects (moto), read by DuckDB, too.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::{Child, Signal, repository, wirelane_binary};

use super::door::{ship, wait_for, words};
use super::shipping::add;
use super::{ask, make_file, run, store};

/// The server, with a bucket `fleet`.
struct Server {
    port: u16,
    process: Child,
    secret: PathBuf,
}

impl Server {
    /// Starts a server; `None`: there is none, or the program was built without S3, and the test is left out.
    fn start(test: &str, folder: &Path) -> Option<Server> {
        let finished = run(&["query", "top talkers", "--store", "s3://fleet/x?endpoint=http://127.0.0.1:1"]);
        if finished.stderr.contains("built without S3 (cargo: feature 's3' of the crate wirelane-cli)") {
            println!("left out: {test} (built without S3: --features wirelane-cli/s3)");
            return None;
        }
        let server = repository().join("target/fleet/bin/moto_server");
        if !server.exists() {
            println!("left out: {test} (no server of S3: scripts/setup fleet)");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(server);
        let process = Child::spawn(command.args(["-H", "127.0.0.1", "-p", &port.to_string()])).unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < LIMIT, "the server does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        let bucket = format!("http://127.0.0.1:{port}/fleet");
        let made = Command::new("curl").args(["-sS", "--fail", "-X", "PUT", &bucket]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let secret = folder.join("secret");
        fs::write(&secret, "open-sesame\n").unwrap();
        Command::new("chmod").arg("600").arg(&secret).status().unwrap();
        Some(Server { port, process, secret })
    }

    fn to(&self) -> String {
        format!("s3://AKIA1@fleet/wire/lane?endpoint=http://127.0.0.1:{}", self.port)
    }

    fn secret(&self) -> [&str; 2] {
        ["--password-file", self.secret.to_str().unwrap()]
    }

    /// Rows of a query over the bucket.
    fn ask(&self, words: &[&str]) -> Vec<Value> {
        let to = self.to();
        let finished = run(&[&["query", "--json", "--store", &to][..], &self.secret(), words].concat());
        assert_eq!(finished.status.code(), Some(0), "{words:?}: {}", finished.stderr);
        finished.json().unwrap()
    }

    /// Compares the flows with the store's.
    fn has_all_of(&self, db: &Path) {
        let sql = "SELECT probe, date, hour, count(*) AS n, sum(packets) AS p, sum(bytes) AS b, min(src) AS first, max(src) AS last \
                   FROM flows GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
        assert_eq!(self.ask(&[sql]), ask(db, &[sql]));
    }

    /// Ships a store until it is ended.
    fn shipping(&self, db: &Path) -> Child {
        let more = [&self.secret()[..], &["--patience", "1s"]].concat();
        let mut command = Command::new(wirelane_binary().unwrap());
        Child::spawn(command.args(words(db, &self.to(), &more))).unwrap()
    }
}

/// Three probes: questions and SQL have the answers of the store, for all and for one probe, and for a time; `missing` compares
/// with what was noted; DuckDB reads the same rows.
#[test]
fn a_bucket_has_the_answers_of_the_stores() {
    let folder = tempfile::tempdir().unwrap();
    let test = "a_bucket_has_the_answers_of_the_stores";
    let Some(server) = Server::start(test, folder.path()) else { return };
    let (db, input) = (folder.path().join("db"), folder.path().join("in.pcap"));
    let begin = 1_795_233_600;
    for (probe, hour, flows) in
        [("edge-1", 0, 0..40), ("edge-1", 2, 40..50), ("edge-2", 0, 0..30), ("edge-3", 25, 9..90)]
    {
        make_file(&input, flows, (begin + hour * 3600) * 1_000_000_000);
        assert_eq!(store(&input, &db, &["--store-probe", probe]).status.code(), Some(0));
    }
    let finished = ship(&db, &server.to(), &[&server.secret()[..], &["--once"]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let last = finished.last_json().unwrap();
    assert_eq!(
        ["shipped_rows", "shipped_files", "batches"].map(|name| column(&last, name)),
        [161, 4, 2],
        "{last}"
    );
    assert!(!last["to"].as_str().unwrap().contains("AKIA1"), "{last}");
    server.has_all_of(&db);
    for question in [
        "top talkers -n 1000",
        "top pairs -n 1000 --probe edge-1",
        "over time --step 1h --from 2026-11-21 --to 2026-11-22",
        "by protocol --probe none",
        "who talked to 10.0.0.0/8",
        "missing",
        "missing --probe edge-3",
    ] {
        let question: Vec<&str> = question.split(' ').collect();
        assert_eq!(server.ask(&question), ask(&db, &question), "{question:?}");
    }

    let script = format!(
        "import duckdb, duckdb_extension_httpfs, glob\nc = duckdb.connect()\n\
         c.execute(\"LOAD '%s'\" % glob.glob(duckdb_extension_httpfs.__path__[0] + '/extensions/*/httpfs.duckdb_extension')[0])\n\
         c.execute(\"CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b', \
         ENDPOINT '127.0.0.1:{}', USE_SSL false, URL_STYLE 'path')\")\nprint(c.sql(\"SELECT probe, CAST(date AS VARCHAR), CAST(hour AS INT), count(*), \
         sum(packets) FROM read_parquet('s3://fleet/wire/lane/flows/**/*.parquet', hive_partitioning=true) GROUP BY 1, 2, 3 ORDER BY \
         1, 2, 3\").fetchall())",
        server.port
    );
    let python = repository().join("target/fleet/bin/python3");
    let output = Command::new(python).args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let sql = "SELECT probe, date, hour, count(*) AS n, sum(packets) AS p FROM flows GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
    let ours: Vec<String> = ask(&db, &[sql])
        .iter()
        .map(|row| {
            let [probe, date] = ["probe", "date"].map(|name| row[name].as_str().unwrap());
            format!("('{probe}', '{date}', {}, {}, {})", row["hour"], row["n"], row["p"])
        })
        .collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("[{}]", ours.join(", ")));

    // An object that is gone is missing, and a place that is not there is told.
    let object = "SELECT count(*) AS n FROM flows WHERE probe = 'edge-3'";
    assert_eq!(server.ask(&[object]), [json!({"n": 81})]);
    let script = format!(
        "import boto3\nc = boto3.client('s3', endpoint_url='http://127.0.0.1:{}', aws_access_key_id='a', \
         aws_secret_access_key='b', region_name='us-east-1')\n\
         found = c.list_objects_v2(Bucket='fleet', Prefix='wire/lane/flows/probe=edge-3')['Contents']\n\
         assert len(found) == 1, found\nc.delete_object(Bucket='fleet', Key=found[0]['Key'])",
        server.port
    );
    let output = Command::new(repository().join("target/fleet/bin/python3")).args(["-c", &script]).output();
    assert!(output.as_ref().unwrap().status.success(), "{output:?}");
    let missing = server.ask(&["missing", "--probe", "edge-3"]);
    assert_eq!((&missing[0]["noted"], &missing[0]["arrived"]), (&json!(81), &json!(0)));
    assert_eq!(missing[0]["state"], "rows missing");

    add(&db, 500..510, "edge-1");
    let other = server.to().replace("fleet/", "other/");
    for (to, secret, status, why) in [
        (other.as_str(), &server.secret()[..], 1, "NoSuchBucket"),
        (&server.to(), &[][..], 1, "--password-file with its secret key is missing"),
        ("s3://fleet/x?other=1", &[][..], 2, "expected s3://KEY@BUCKET/PREFIX"),
    ] {
        let finished = ship(&db, to, &[secret, &["--once"]].concat());
        assert_eq!(finished.status.code(), Some(status), "{}", finished.stderr);
        assert!(finished.stderr.contains(why), "{why}: {}", finished.stderr);
    }
}

/// The shipper is killed at random moments, and the server stops and goes on: every row is there once.
/// Battery: F4
#[test]
fn every_row_is_in_the_bucket_once_whoever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let test = "every_row_is_in_the_bucket_once_whoever_is_killed";
    let Some(server) = Server::start(test, folder.path()) else { return };
    let db = folder.path().join("db");
    fs::create_dir_all(db.join("flows")).unwrap();

    // The server does what was asked, but the shipper does not wait so long.
    let shipper = server.shipping(&db);
    server.process.signal(Signal::Stop).unwrap();
    add(&db, 0..20, "edge-1");
    wait_for(&shipper, |line| column(line, "retries") >= 1);
    server.process.signal(Signal::Continue).unwrap();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "shipped_rows") == 20);
    assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
    server.has_all_of(&db);

    let mut random = std::env::var("WIRELANE_SEED").map_or(0xb0c7, |seed| seed.parse::<u64>().unwrap());
    println!("WIRELANE_SEED={random}");
    for round in 0..15 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        add(&db, 1000 + round * 100..1090 + round * 100, ["edge-1", "edge-2"][round as usize % 2]);
        let shipper = server.shipping(&db);
        std::thread::sleep(Duration::from_millis((random >> 33) % 300));
        shipper.signal(Signal::Kill).unwrap();
        shipper.finish(LIMIT).unwrap();
    }
    let finished = ship(&db, &server.to(), &[&server.secret()[..], &["--once"]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    server.has_all_of(&db);
    let missing = server.ask(&["missing"]);
    assert!(missing.iter().all(|row| row["state"] != "rows missing"), "{missing:?}");
    assert_eq!(ask(&db, &["SELECT count(*) AS n FROM flows"]), [json!({"n": 20 + 15 * 90})]);
}
