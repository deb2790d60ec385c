//! Calls, streams and transactions in a store.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use wirelane_tests::calls::{Results, voip};
use wirelane_tests::duckdb::duckdb;
use wirelane_tests::numbers::column;
use wirelane_tests::{corpus, wirelane_binary};

use super::scenes::{ask, ns, scene, sorted, stored, web, words};

/// An exported call in the form of a row of the store.
fn call(call: &Value) -> BTreeMap<String, String> {
    let mut row = call.as_object().unwrap().clone();
    let streams = row.remove("streams").unwrap();
    let streams = streams.as_array().unwrap();
    row.remove("call");
    let start = ns(&row.remove("start").unwrap());
    let end = row.remove("end").map_or(start, |end| ns(&end));
    row.insert("start_ns".into(), json!(start));
    row.insert("duration_ns".into(), json!(end - start));
    for (from, to) in [("from", "from_header"), ("to", "to_header")] {
        let value = row.remove(from).unwrap();
        row.insert(to.into(), value);
    }
    for party in ["caller", "callee"] {
        let place: std::net::SocketAddr = row[party].as_str().unwrap().parse().unwrap();
        row.insert(party.into(), json!(place.ip().to_string()));
        row.insert(format!("{party}_port"), json!(place.port()));
    }
    for name in ["ringing", "answer", "ack"] {
        if let Some(value) = row.remove(name) {
            row.insert(format!("{name}_ns"), json!(ns(&value)));
        }
    }
    // Times of the test are in microseconds.
    for name in ["post_dial_delay", "ring", "talk"] {
        if let Some(value) = row.remove(&format!("{name}_ms")) {
            row.insert(format!("{name}_ns"), json!((value.as_f64().unwrap() * 1e6).round()));
        }
    }
    let sum = |name: &str| streams.iter().map(|stream| column(stream, name)).sum::<u64>();
    for name in ["packets", "expected", "lost", "duplicate", "out_of_order", "capture_lost"] {
        row.insert(name.into(), json!(sum(name)));
    }
    row.insert("streams".into(), json!(streams.len()));
    words(row)
}

/// An exported stream in the form of a row of the store; `of`: its call.
fn stream(stream: &Value, of: Option<&Value>) -> BTreeMap<String, String> {
    let mut row = stream.as_object().unwrap().clone();
    for name in ["stream", "duration_s", "intervals", "burst_histogram"] {
        row.remove(name);
    }
    let (start, end) = (ns(&row.remove("start").unwrap()), ns(&row.remove("end").unwrap()));
    row.extend([("start_ns".to_owned(), json!(start)), ("duration_ns".to_owned(), json!(end - start))]);
    let types: Vec<String> = row["payload_types"].as_array().unwrap().iter().map(Value::to_string).collect();
    row.insert("payload_types".into(), json!(types.join(" ")));
    if let Some(Value::Object(rtcp)) = row.remove("rtcp") {
        let left_out = ["packets_sent", "max_jitter_ms", "max_round_trip_ms"];
        let rtcp = rtcp.into_iter().filter(|(name, _)| !left_out.contains(&name.as_str()));
        row.extend(rtcp.map(|(name, value)| (format!("rtcp_{name}"), value)));
    }
    if let Some(of) = of {
        row.insert("call_id".into(), of["call_id"].clone());
        row.insert("call_start_ns".into(), json!(ns(&of["start"])));
        row.insert("end_reason".into(), of["end_reason"].clone());
    }
    words(row)
}

/// Battery: I10
#[test]
fn what_is_stored_of_calls_is_what_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    let (file, db) = (scene(folder.path()), folder.path().join("db"));
    let Results { calls, streams, last } = voip(&file, &["--heuristic", "--store", db.to_str().unwrap()]);
    assert_eq!((calls.len(), streams.len(), column(&last, "streams")), (4, 1, 3));
    let counts = &last["store"];
    for (name, number) in
        [("calls", 4), ("streams", 3), ("files", 3), ("unwritten_calls", 0), ("unwritten_streams", 0)]
    {
        assert_eq!(column(counts, name), number, "{name} {counts}");
    }
    let rows = ask(&db, &["SELECT * FROM calls"]);
    assert_eq!(sorted(rows.iter().map(stored)), sorted(calls.iter().map(call)));
    let rows = ask(&db, &["SELECT * FROM streams"]);
    let of_calls =
        calls.iter().flat_map(|of| of["streams"].as_array().unwrap().iter().map(|one| stream(one, Some(of))));
    let expected = sorted(of_calls.chain(streams.iter().map(|one| stream(one, None))));
    assert_eq!(sorted(rows.iter().map(stored)), expected);
    // A table that has never been written is empty, and querying it is not an error.
    assert_eq!(ask(&db, &["SELECT * FROM transactions"]), Vec::<Value>::new());

    let joined = "SELECT c.call_id AS id, count(s.ssrc) AS streams, sum(s.lost) AS lost FROM calls c LEFT JOIN streams s \
                  ON s.call_id = c.call_id AND s.call_start_ns = c.start_ns GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1";
    let row = &ask(&db, &[joined])[0];
    assert_eq!(
        (&row["id"], column(row, "streams"), column(row, "lost")),
        (&json!("answered/../@example.com"), 2, 10)
    );

    // Prepared questions.
    let worst = ask(&db, &["worst", "calls"]);
    assert_eq!((worst.len(), &worst[0]["call_id"]), (1, &json!("answered/../@example.com")));
    assert_eq!(worst[0]["mos"], voip(&file, &[]).call("answered/../@example.com")["mos"]);
    let worst = ask(&db, &["worst", "streams"]);
    let mos: Vec<f64> = worst.iter().map(|row| row["mos"].as_f64().unwrap()).collect();
    assert!(worst.len() == 3 && mos.is_sorted() && column(&worst[0], "lost") == 10, "{worst:?}");
    let status: Vec<(Value, Value, u64)> = ask(&db, &["calls", "by", "status"])
        .iter()
        .map(|row| (row["state"].clone(), row["status"].clone(), column(row, "calls")))
        .collect();
    let row = |state: &str, status: Value, calls| (json!(state), status, calls);
    let expected =
        [row("failed", json!(486), 2), row("canceled", Value::Null, 1), row("completed", json!(200), 1)];
    assert_eq!(status, expected);
    // The range selects by the end of calls.
    let late = ask(&db, &["--from", "1970-01-01 01:00", "SELECT call_id FROM calls"]);
    assert_eq!(late, [json!({"call_id": "late@example.com"})]);

    let script = format!(
        "import duckdb; print(duckdb.sql(\"SELECT count(*), sum(streams), sum(lost), max(mos), count(DISTINCT hour) FROM \
         read_parquet('{}/calls/**/*.parquet', hive_partitioning = true)\").fetchall()[0])",
        db.display()
    );
    if let Some(theirs) = duckdb(&script) {
        assert_eq!(theirs, format!("(4, 2, 10, {}, 2)", worst[0]["mos"]));
    }
}

/// An exported transaction in the form of a row of the store.
fn transaction(one: &Value) -> BTreeMap<String, String> {
    let mut row = one.as_object().unwrap().clone();
    row.remove("transaction");
    for (from, to) in [
        ("time", "start_ns"),
        ("duration_s", "duration_ns"),
        ("request_s", "request_ns"),
        ("ttfb_s", "ttfb_ns"),
    ] {
        if let Some(value) = row.remove(from) {
            row.insert(to.into(), json!(ns(&value)));
        }
    }
    let marks: Vec<&str> =
        row["marks"].as_array().unwrap().iter().map(|mark| mark.as_str().unwrap()).collect();
    row.insert("marks".into(), json!(marks.join(" ")));
    words(row)
}

/// A row of the store without the fields that JSON omits.
fn stored_transaction(row: &Value) -> BTreeMap<String, String> {
    let mut row = stored(row);
    row.retain(|name, value| {
        value != "false" && !(value == "0" && (name.ends_with("_missing") || name == "informational"))
    });
    row
}

/// Battery: I10
#[test]
fn what_is_stored_of_transactions_is_what_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let db = folder.path().join("db");
    let mut files = vec![web(folder.path())];
    if let Some(corpus) = corpus("transactions of real captures in a store") {
        let found = fs::read_dir(corpus.join("captures/http")).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> = found.filter(|path| path.metadata().unwrap().len() < 300_000).collect();
        found.sort();
        files.extend(found.into_iter().step_by(4).take(12));
    }
    let mut logged = Vec::new();
    for file in &files {
        let output = Command::new(wirelane_binary().unwrap())
            .args(["http", "--json", "--fields", "cookie", "--store", db.to_str().unwrap(), "-r"])
            .arg(file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!(
            column(&last["store"], "transactions"),
            column(last, "transactions"),
            "{}",
            file.display()
        );
        assert_eq!(column(&last["store"], "unwritten_transactions"), 0);
        logged.extend(lines.into_iter().filter(|line| line.get("transaction").is_some()));
    }
    for one in &mut logged {
        // Requested in the export, but never stored.
        for name in ["request_fields", "response_fields"] {
            one.as_object_mut().unwrap().remove(name);
        }
    }
    assert!(logged.len() >= 4);
    let rows = ask(&db, &["SELECT * FROM transactions"]);
    assert_eq!(sorted(rows.iter().map(stored_transaction)), sorted(logged.iter().map(transaction)));

    let own = folder.path().join("own");
    let output = Command::new(wirelane_binary().unwrap())
        .args(["http", "--quiet", "--store", own.to_str().unwrap(), "-r"])
        .arg(&files[0])
        .output()
        .unwrap();
    assert!(output.status.success());
    let of = |row: &Value, name: &str| row[name].clone();
    let hosts: Vec<Value> = ask(&own, &["top", "hosts"])
        .iter()
        .map(|row| json!([of(row, "host"), of(row, "transactions"), of(row, "failed"), of(row, "bytes")]))
        .collect();
    assert_eq!(hosts, [json!(["one", 2, 0, 5]), json!(["192.0.2.2", 1, 1, 0]), json!(["two", 1, 1, 4])]);
    let slowest = ask(&own, &["slowest", "transactions", "-n", "2"]);
    let times: Vec<f64> = slowest.iter().map(|row| row["ms"].as_f64().unwrap()).collect();
    assert_eq!(times, [0.002, 0.002]);
    let statuses: Vec<Value> = ask(&own, &["by", "status"]).iter().map(|row| row["status"].clone()).collect();
    assert_eq!(statuses, [json!(200), json!(404), json!(503), Value::Null]);
}
