//! `wirelane ship --to kafka://` against a real broker, read by Google's protobuf, kcat and ClickHouse's Kafka engine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wirelane_tests::calls::{Scene, description, message};
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::{Signal, repository};

use super::broker::Broker;
use super::door::{Door, ship, shipping, wait_for};
use super::shipping::add;
use super::{ask, run};

/// Messages by the key that consumers drop repetitions by; a repetition is the same message.
fn once(messages: Vec<Value>) -> BTreeMap<(String, i64), Value> {
    let mut found = BTreeMap::new();
    for message in messages {
        let name = (message["batch"].as_str().unwrap().to_owned(), message["row"].as_i64().unwrap());
        let former = found.insert(name, message.clone());
        assert!(former.is_none_or(|former| former == message), "{message}");
    }
    found
}

/// A number of protobuf's JSON, where those of 64 bits are texts and 0 is missing.
fn number(message: &Value, name: &str) -> i64 {
    match &message[name] {
        Value::Null => 0,
        Value::String(text) => text.parse().unwrap(),
        number => number.as_i64().unwrap(),
    }
}

/// Compares the flows of the topic, each once, with the store's. Returns how many messages there are.
fn has_all_of(broker: &Broker, db: &Path) -> usize {
    let messages = broker.messages("flows", Some("delimited"));
    let all = messages.len();
    let found = once(messages);
    let sql = "SELECT count(*) AS n, sum(packets) AS p, sum(bytes) AS b FROM flows";
    let row = &ask(db, &[sql])[0];
    let sum = |name: &str| found.values().map(|message| number(&message["message"], name)).sum::<i64>();
    assert_eq!(found.len() as i64, i64::try_from(column(row, "n")).unwrap());
    assert_eq!([sum("packets"), sum("bytes")], ["p", "b"].map(|name| row[name].as_i64().unwrap()));
    let noted = once(broker.messages("flows-shipments", None));
    let noted: i64 = noted
        .values()
        .filter(|line| line["message"]["table"] == "flows" && line["message"]["kind"] == "shipped")
        .map(|line| line["message"]["rows"].as_i64().unwrap())
        .sum();
    assert_eq!(noted, found.len() as i64);
    all
}

/// Both framings have the flows of the store, field by field, for a decoder that is not ours; keys and partitions are
/// those of a pair of addresses; other tables are JSON; and missing topics, a user without a password and a wrong password are
/// told.
#[test]
fn flows_arrive_as_messages_that_others_decode() {
    let folder = tempfile::tempdir().unwrap();
    let test = "flows_arrive_as_messages_that_others_decode";
    let Some(broker) = Broker::start(test, &folder.path().join("kafka")) else { return };
    let db = folder.path().join("db");
    let input = folder.path().join("in.pcap");
    wirelane_tests::flow_traffic::make_capture(&input, 3000).unwrap();
    let words = ["flows", "-r", input.to_str().unwrap(), "--biflow", "--quiet", "--store-probe", "edge-1"];
    let finished = run(&[&words[..], &["--store", db.to_str().unwrap()]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);

    // Flows with both directions.
    let mut scene = Scene::new();
    for port in 6000..6020 {
        let (client, server) = (format!("192.0.2.7:{port}"), "198.51.100.1:53");
        scene.udp(port, &client, server, b"ask");
        scene.udp(port + 1, server, &client, b"answer");
    }
    scene.write(&input).unwrap();
    let finished = run(&[&words[..], &["--store", db.to_str().unwrap()]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let mut scene = Scene::new();
    let head = ["From: <sip:alice@b>;tag=1", "To: <sip:bob@d>", "Call-ID: one", "CSeq: 1 INVITE"];
    let invite = message("INVITE sip:bob@d SIP/2.0", &head, &description("192.0.2.2", 6000));
    scene.udp(0, "192.0.2.2:5060", "192.0.2.1:5060", &invite);
    let calls = folder.path().join("calls.pcap");
    scene.write(&calls).unwrap();
    let words = ["voip", "-r", calls.to_str().unwrap(), "--quiet", "--store-probe", "edge-1"];
    let finished = run(&[&words[..], &["--store", db.to_str().unwrap()]].concat());
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);

    let refused = ship(&db, &broker.to(), &["--once", "--patience", "15s"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("--create creates the topics"), "{}", refused.stderr);
    let plain =
        format!("{}?framing=none", broker.to().replace("/flows", "/plain").replace("127.0.0.1", "localhost"));
    for to in [&broker.to(), &plain] {
        let finished = ship(&db, to, &["--once", "--create"]);
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    }
    let both = [("flows", "delimited"), ("plain", "none")]
        .map(|(topic, framing)| once(broker.messages(topic, Some(framing))));
    let contents = |found: &BTreeMap<(String, i64), Value>| -> Vec<Value> {
        found.values().map(|message| json!([message["key"], message["message"]])).collect()
    };
    assert_eq!(contents(&both[0]), contents(&both[1]));

    // Each direction of each flow, by what the store has of it.
    let columns = "src, dst, src_port, dst_port, protocol, start_ns, start_ns + duration_ns AS end_ns, packets, bytes, \
                   wire_bytes, community_id, application, tcp_flags, ttl_min, tos, vlan, icmp_type, icmp_code, \
                   reverse_packets, reverse_bytes, reverse_wire_bytes, reverse_tcp_flags, reverse_ttl_min, reverse_tos, \
                   end_reason, probe, ip_version, ether_type";
    let rows = ask(&db, &[&format!("SELECT {columns} FROM flows")]);
    let mut expected = Vec::new();
    for row in &rows {
        for prefix in ["", "reverse_"] {
            if row[format!("{prefix}packets")].is_null() {
                continue;
            }
            let is_reverse = !prefix.is_empty();
            let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            let of = |name: &str| row[name].as_i64().unwrap_or(0);
            let own = |name: &str| of(&format!("{prefix}{name}"));
            let flags = row[format!("{prefix}tcp_flags")].as_str().unwrap_or_default();
            let flags = flags.chars().fold(0, |flags, letter| flags * 2 + i64::from(letter != '.'));
            let ends = [(text("src"), of("src_port")), (text("dst"), of("dst_port"))];
            let [from, to] = if is_reverse { [&ends[1], &ends[0]] } else { [&ends[0], &ends[1]] };
            expected.push(
                json!([
                    from.0,
                    to.0,
                    from.1,
                    to.1,
                    of("protocol"),
                    of("start_ns"),
                    of("end_ns"),
                    own("packets"),
                    own("bytes"),
                    own("wire_bytes"),
                    text("community_id"),
                    text("application"),
                    flags,
                    own("ttl_min"),
                    own("tos"),
                    of("vlan"),
                    of("icmp_type"),
                    of("icmp_code"),
                    text("end_reason"),
                    text("probe"),
                    is_reverse,
                    1,
                    match of("ip_version") {
                        0 => i64::from_str_radix(&text("ether_type")[2..], 16).unwrap(),
                        4 => 0x0800,
                        _ => 0x86dd,
                    },
                ])
                .to_string(),
            );
        }
    }
    let mut found = Vec::new();
    let mut partitions: BTreeMap<String, Value> = BTreeMap::new();
    for line in both[0].values() {
        let message = &line["message"];
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let of = |name: &str| number(message, name);
        let mut ends = [text("src_addr"), text("dst_addr")];
        found.push(
            json!([
                ends[0],
                ends[1],
                of("src_port"),
                of("dst_port"),
                of("proto"),
                of("time_flow_start_ns"),
                of("time_flow_end_ns"),
                of("packets"),
                of("bytes"),
                of("wire_bytes"),
                text("community_id"),
                text("application"),
                of("tcp_flags"),
                of("ip_ttl"),
                of("ip_tos"),
                of("vlan_id"),
                of("icmp_type"),
                of("icmp_code"),
                text("end_reason"),
                text("probe"),
                message["reverse"] == true,
                of("sampling_rate"),
                of("etype"),
            ])
            .to_string(),
        );
        ends.sort();
        let key = line["key"].as_str().unwrap();
        assert_eq!(key, if ends[0] == ends[1] { ends[0].clone() } else { ends.join(" ") });
        let partition = partitions.entry(key.to_owned()).or_insert_with(|| line["partition"].clone());
        assert_eq!(*partition, line["partition"], "{key}");
    }
    found.sort();
    expected.sort();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
    assert_eq!(found.len(), rows.len() + 20);
    assert!(partitions.len() > 3);

    // Other tables are JSON lines with the columns of the store.
    let calls: Vec<Value> = once(broker.messages("flows-calls", None)).into_values().collect();
    let mut stored = ask(&db, &["SELECT * FROM calls"]);
    for row in &mut stored {
        // Columns of the folder.
        let row = row.as_object_mut().unwrap();
        assert!(row.remove("date").is_some() && row.remove("hour").is_some());
    }
    assert_eq!(calls.iter().map(|line| line["message"].clone()).collect::<Vec<_>>(), stored);
    assert_eq!((calls.len(), calls[0]["key"].as_str()), (1, Some("192.0.2.1 192.0.2.2")));

    // Users and passwords.
    let secret = folder.path().join("secret");
    let to = format!("kafka://probe@127.0.0.1:{}/flows", broker.sasl_port);
    fs::write(&secret, "open sesame\n").unwrap();
    Command::new("chmod").arg("600").arg(&secret).status().unwrap();
    let password = ["--once", "--password-file", secret.to_str().unwrap()];
    assert!(ship(&db, &to, &["--once"]).stderr.contains("a user needs a password"));
    // It is the same target, by the other listener: a state of its own, and all rows once more.
    let finished = ship(&db, &to, &password);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    fs::write(&secret, "open barley\n").unwrap();
    fs::remove_dir_all(db.join(".ship").join(format!("kafka_127.0.0.1_{}_flows", broker.sasl_port))).unwrap();
    let refused = ship(&db, &to, &password);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("uthentication"), "{}", refused.stderr);
}

/// The shipper and the broker are killed at random moments, and the broker is away for a while: no message is missing, and
/// repetitions have the batch and the number of the row of the first.
/// Battery: F4
#[test]
fn no_message_is_lost_and_repetitions_are_known_whoever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let test = "no_message_is_lost_and_repetitions_are_known_whoever_is_killed";
    let Some(mut broker) = Broker::start(test, &folder.path().join("kafka")) else { return };
    let (db, to) = (folder.path().join("db"), broker.to());
    add(&db, 0..50, "edge-1");
    let finished = ship(&db, &to, &["--once", "--create"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_eq!(has_all_of(&broker, &db), 50);

    // In one session each message is written once, although the broker is killed and comes back.
    let mut command = Command::new(wirelane_tests::wirelane_binary().unwrap());
    let words = super::door::words(&db, &to, &["--patience", "60s"]);
    let shipper = wirelane_tests::Child::spawn(command.args(words)).unwrap();
    add(&db, 100..150, "edge-1");
    wait_for(&shipper, |line| column(line, "shipped_rows") == 50);
    broker.kill();
    add(&db, 200..250, "edge-1");
    std::thread::sleep(Duration::from_secs(1));
    broker.open();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "shipped_rows") == 100);
    assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
    assert_eq!(has_all_of(&broker, &db), 150);

    // A new session finds no broker, says so, and goes on.
    broker.kill();
    let shipper = shipping(&db, &to);
    add(&db, 300..310, "edge-1");
    wait_for(&shipper, |line| line["error"].is_string() && column(line, "waiting_files") == 1);
    broker.open();
    wait_for(&shipper, |line| line["error"].is_null() && column(line, "shipped_rows") == 10);
    assert_eq!(shipper.terminate(LIMIT).unwrap().status.code(), Some(0));
    has_all_of(&broker, &db);

    let mut random = std::env::var("WIRELANE_SEED").map_or(0xcafe, |seed| seed.parse::<u64>().unwrap());
    println!("WIRELANE_SEED={random}");
    let mut messages = 0;
    for round in 0..12 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        add(&db, 1000 + round * 100..1090 + round * 100, "edge-2");
        let shipper = shipping(&db, &to);
        std::thread::sleep(Duration::from_millis((random >> 33) % 600));
        if round % 4 == 3 {
            broker.kill();
        }
        shipper.signal(Signal::Kill).unwrap();
        shipper.finish(LIMIT).unwrap();
        if round % 4 == 3 {
            broker.open();
        }
    }
    let finished = ship(&db, &to, &["--once"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    messages += has_all_of(&broker, &db);
    println!("{messages} messages of {} flows", 160 + 12 * 90);
}

/// ClickHouse's Kafka engine reads the flows by the published schema, in the default framing.
#[test]
fn clickhouse_reads_the_flows_of_kafka() {
    let folder = tempfile::tempdir().unwrap();
    let test = "clickhouse_reads_the_flows_of_kafka";
    let Some(broker) = Broker::start(test, &folder.path().join("kafka")) else { return };
    let Some(door) = Door::start(test, &folder.path().join("door"), &[]) else { return };
    let db = folder.path().join("db");
    add(&db, 0..500, "edge-1");
    let finished = ship(&db, &broker.to(), &["--once", "--create"]);
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    let guide = fs::read_to_string(repository().join("docs/guides/fleet.md")).unwrap();
    let sql = guide.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let schema = repository().join("crates/wirelane-ship/proto");
    let sql = sql.replace("kafka1:9092", &broker.servers());
    for statement in sql.split(";\n").filter(|text| !text.trim().is_empty()) {
        door.ask(&statement.replace("flow.proto:", &format!("{}/flow.proto:", schema.display())));
    }
    let begun = Instant::now();
    let rows = || door.ask("SELECT count() FROM goflow.flows FINAL");
    while rows() != "500" {
        assert!(begun.elapsed() < LIMIT, "{} rows", rows());
        std::thread::sleep(Duration::from_millis(200));
    }
    let theirs = door.ask(
        "SELECT src, dst, sum(packets), sum(bytes), any(probe) FROM goflow.flows FINAL GROUP BY src, dst ORDER BY src, dst \
         FORMAT TabSeparated",
    );
    let sql = "SELECT src, dst, sum(packets) AS p, sum(bytes) AS b, min(probe) AS probe FROM flows GROUP BY 1, 2 \
               ORDER BY 1, 2";
    let ours: Vec<String> = ask(&db, &[sql])
        .iter()
        .map(|row| {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            format!("{}\t{}\t{}\t{}\t{}", text("src"), text("dst"), row["p"], row["b"], text("probe"))
        })
        .collect();
    assert_eq!(theirs.lines().collect::<Vec<_>>(), ours);
}
