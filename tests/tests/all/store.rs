//! `flows --store` and `query`: stored flows equal the exported ones, and every flow is in a complete file or counted.

mod damage;
mod ledgers;
mod newer;
mod retention;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use serde_json::{Value, json};
use wirelane_tests::duckdb::duckdb;
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::recordings::{Disk, NOON_NS, write_header, write_packet};
use wirelane_tests::{Child, Finished, Signal, corpus, require_root, wirelane_binary};

fn spawn(words: &[&str]) -> Child {
    Child::spawn(Command::new(wirelane_binary().unwrap()).args(words)).unwrap()
}

fn run(words: &[&str]) -> Finished {
    spawn(words).finish(LIMIT).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Stores the flows of a capture file; returns the exported flows and the last object.
fn store(input: &Path, store: &Path, options: &[&str]) -> (Finished, Vec<Value>, Value) {
    let finished = run(&[&["flows", "-r", text(input), "--json", "--store", text(store)], options].concat());
    let lines = finished.json().unwrap();
    let last = lines.last().cloned().unwrap_or_default();
    (finished, lines.into_iter().filter(|line| line.get("flow").is_some()).collect(), last)
}

/// Rows of a query in JSON; it must succeed.
fn ask(store: &Path, words: &[&str]) -> Vec<Value> {
    let finished = run(&[&["query", "--json", "--store", text(store)], words].concat());
    assert_eq!(finished.status.code(), Some(0), "{words:?}: {}", finished.stderr);
    finished.json().unwrap()
}

/// Numbers of flows, packets and bytes in a store.
fn sums(store: &Path) -> [u64; 3] {
    let sql = "SELECT count(*) AS f, coalesce(sum(packets + coalesce(reverse_packets, 0)), 0) AS p, \
               coalesce(sum(bytes + coalesce(reverse_bytes, 0)), 0) AS b FROM flows";
    let answer = &ask(store, &[sql])[0];
    ["f", "p", "b"].map(|name| column(answer, name))
}

/// Complete files of a store, and other files, below a folder.
fn files(folder: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut found = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let (whole, others) = files(&path);
            found.0.extend(whole);
            found.1.extend(others);
        } else {
            let is_whole = path.extension().is_some_and(|extension| extension == "parquet");
            (if is_whole { &mut found.0 } else { &mut found.1 }).push(path);
        }
    }
    found.0.sort();
    found
}

/// A packet of flow `n`: TCP, UDP, ICMP, IPv6, with and without a VLAN tag, and ARP.
fn frame(n: u32) -> Vec<u8> {
    let [_, a, b, c] = n.to_be_bytes();
    let (from, to) = ([10, a, b, c], [192, 0, 2, (n % 200) as u8]);
    let port = (1024 + n % 60_000) as u16;
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let payload = vec![0; (n % 90) as usize];
    let mut frame = Vec::new();
    let six = |last: u8| [0x20, 1, 0xd, 0xb8, a, b, c, 0, 0, 0, 0, 0, 0, 0, 0, last];
    match n % 8 {
        0 | 1 => ethernet.ipv4(from, to, 64).tcp(port, 443, n, 1000).ack(1).write(&mut frame, &payload),
        2 => ethernet
            .single_vlan(7.try_into().unwrap())
            .ipv4(from, to, 9)
            .udp(port, 53)
            .write(&mut frame, &payload),
        3 => ethernet.ipv4(from, to, 64).icmpv4_echo_request(1, 2).write(&mut frame, &payload),
        4 => ethernet.ipv6(six(1), six(2), 64).udp(port, 443).write(&mut frame, &payload),
        5 => {
            frame = [&[0xff; 6][..], &[2, 0, 0, 0, b, c, 8, 6], &[0; 46]].concat();
            return frame;
        }
        _ => ethernet.ipv4(from, to, 64).udp(port, (1 + n % 50) as u16).write(&mut frame, &payload),
    }
    .unwrap();
    frame
}

/// Writes packets `step_ns` apart, each of a flow of its own except for ARP.
fn write_flows(output: &mut dyn Write, flows: std::ops::Range<u32>, start_ns: u64, step_ns: u64) {
    for (at, n) in flows.enumerate() {
        write_packet(output, start_ns + at as u64 * step_ns, &frame(n)).unwrap();
    }
}

fn make_file(path: &Path, flows: std::ops::Range<u32>, start_ns: u64, step_ns: u64) {
    let mut output = BufWriter::new(File::create(path).unwrap());
    write_header(&mut output).unwrap();
    write_flows(&mut output, flows, start_ns, step_ns);
    output.flush().unwrap();
}

/// An exported flow in the form of a row of the store.
fn expected(flow: &Value) -> String {
    let mut row = flow.as_object().unwrap().clone();
    let mut ns = |name: &str| {
        let time = row.remove(name).unwrap();
        let digits: String = time.as_str().unwrap().split('.').collect();
        digits.parse::<u64>().unwrap()
    };
    let (start, end) = (ns("start"), ns("end"));
    for name in ["flow", "duration_s"] {
        row.remove(name).unwrap();
    }
    if let Some(Value::Object(reverse)) = row.remove("reverse") {
        row.extend(reverse.into_iter().map(|(name, value)| (format!("reverse_{name}"), value)));
    }
    // A quotient of other fields, which does not have a column.
    row.retain(|name, _| !name.ends_with("length_mean"));
    row.extend([("start_ns".to_owned(), json!(start)), ("duration_ns".to_owned(), json!(end - start))]);
    row.extend([("hour".to_owned(), json!(end / 3_600_000_000_000 % 24))]);
    row.into_iter().map(|(name, value)| format!("{name}={value} ")).collect()
}

/// A row of the store in the same form. Its times, with microseconds, are checked here.
fn found(row: &Value) -> String {
    let mut row = row.as_object().unwrap().clone();
    let start = row["start_ns"].as_u64().unwrap();
    let fraction = |ns: u64| format!("{:06}", ns / 1000 % 1_000_000);
    for (name, ns) in [("start_time", start), ("end_time", start + row["duration_ns"].as_u64().unwrap())] {
        let time = row.remove(name).unwrap();
        let (date, digits) = time.as_str().unwrap().split_once('.').unwrap_or((time.as_str().unwrap(), "0"));
        assert_eq!(format!("{digits:0<6}"), fraction(ns), "{name} {time}");
        assert!(name == "start_time" || date.starts_with(row["date"].as_str().unwrap()), "{time}");
    }
    row.retain(|name, _| !["date", "probe", "schema_version"].contains(&name.as_str()));
    row.into_iter().map(|(name, value)| format!("{name}={value} ")).collect()
}

fn bag(rows: impl Iterator<Item = String>) -> BTreeMap<String, u32> {
    let mut bag = BTreeMap::new();
    rows.for_each(|row| *bag.entry(row).or_default() += 1);
    bag
}

/// Battery: I10
#[test]
fn what_is_stored_is_what_is_exported_and_duckdb_reads_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.pcap");
    make_file(&own, 0..3000, NOON_NS + 3_599_000_000_123, 1_000_000);
    let mut inputs = vec![own];
    if let Some(corpus) = corpus("flows of real captures in a store") {
        let apps = fs::read_dir(corpus.join("captures/apps")).unwrap().map(|entry| entry.unwrap().path());
        let mut apps: Vec<PathBuf> = apps.filter(|path| path.metadata().unwrap().len() < 200_000).collect();
        apps.sort();
        inputs.extend(apps.into_iter().step_by(3).take(20));
    }
    for biflow in [&[][..], &["--biflow"]] {
        let db = folder.path().join(format!("db{}", biflow.len()));
        let mut exported = Vec::new();
        for input in &inputs {
            let (finished, flows, last) = store(input, &db, biflow);
            assert_eq!(finished.status.code(), Some(0), "{}: {}", input.display(), finished.stderr);
            assert_eq!(column(&last["store"], "flows"), flows.len() as u64, "{}", input.display());
            assert_eq!(column(&last["store"], "unwritten_flows"), 0);
            exported.extend(flows);
        }
        let stored = ask(&db, &["SELECT * FROM flows"]);
        assert_eq!(bag(stored.iter().map(found)), bag(exported.iter().map(expected)));

        let script = format!(
            "import duckdb; print(duckdb.sql(\"SELECT count(*), sum(packets + coalesce(reverse_packets, 0)), \
             sum(bytes + coalesce(reverse_bytes, 0)), count(DISTINCT date), count(DISTINCT src) FROM \
             read_parquet('{}/flows/**/*.parquet', hive_partitioning = true)\").fetchall()[0])",
            text(&db)
        );
        if let Some(theirs) = duckdb(&script) {
            let [flows, packets, bytes] = sums(&db);
            let sql = "SELECT count(DISTINCT date) AS d, count(DISTINCT src) AS s FROM flows";
            let distinct = &ask(&db, &[sql])[0];
            let ours = [flows, packets, bytes, column(distinct, "d"), column(distinct, "s")];
            assert_eq!(theirs, format!("({})", ours.map(|number| number.to_string()).join(", ")));
        }
    }
}

/// Battery: I10
#[test]
fn ready_questions_have_the_answers_of_the_exported_flows() {
    let folder = tempfile::tempdir().unwrap();
    let (input, db) = (folder.path().join("in.pcap"), folder.path().join("db"));
    make_file(&input, 0..2000, NOON_NS, 10_000_000);
    let (_, flows, _) = store(&input, &db, &[]);
    let by = |key: &dyn Fn(&Value) -> Option<String>, value: &str| {
        let mut sums = BTreeMap::<String, u64>::new();
        for flow in &flows {
            if let Some(key) = key(flow) {
                *sums.entry(key).or_default() += if value.is_empty() { 1 } else { column(flow, value) };
            }
        }
        sums
    };
    let field = |name: &'static str| move |flow: &Value| flow[name].as_str().map(str::to_owned);
    let answer = |words: &[&str], key: &str, value: &str| -> BTreeMap<String, u64> {
        let rows = ask(&db, &[&["-n", "100000"], words].concat());
        rows.iter()
            .map(|row| (row[key].to_string().trim_matches('"').to_owned(), column(row, value)))
            .collect()
    };
    let mut sent = by(&field("src"), "bytes");
    let mut received = by(&field("dst"), "bytes");
    for address in received.keys() {
        sent.entry(address.clone()).or_default();
    }
    assert_eq!(answer(&["top", "talkers"], "address", "sent_bytes"), sent);
    let ports = |flow: &Value| Some(flow["src_port"].as_u64()?.min(flow["dst_port"].as_u64()?).to_string());
    let rows = ask(&db, &["top", "ports", "-n", "100000"]);
    let mut found = BTreeMap::<String, u64>::new();
    rows.iter().for_each(|row| *found.entry(row["port"].to_string()).or_default() += column(row, "flows"));
    assert_eq!(found, by(&ports, ""));
    let network = |flow: &Value| {
        let address = flow["src"].as_str().filter(|address| !address.contains(':'))?;
        Some(format!("{}.0.0/16", address.splitn(3, '.').take(2).collect::<Vec<_>>().join(".")))
    };
    let networks = answer(&["by", "network", "--bits4", "16"], "network", "sent_bytes");
    for (network, bytes) in by(&network, "bytes") {
        assert_eq!(networks.get(&network), Some(&bytes), "{network}");
    }
    let second = |flow: &Value| Some(flow["end"].as_str()?.split('.').next()?.to_owned());
    let over = ask(&db, &["over", "time", "--step", "1s"]);
    let over: Vec<u64> = over.iter().map(|row| column(row, "flows")).collect();
    assert_eq!(over, by(&second, "").into_values().collect::<Vec<_>>());
    let to = "192.0.2.6";
    received.retain(|address, _| address == to);
    let talked = answer(&["who", "talked", "to", to], "address", "sent_bytes");
    assert_eq!(talked.values().sum::<u64>(), received[to]);
    let wide = answer(&["who", "talked", "to", "192.0.2.0/24"], "address", "sent_bytes");
    assert!(wide.len() > talked.len() && talked.iter().all(|(address, bytes)| wide[address] == *bytes));
    // The prepared questions yield the same rows as SQL.
    for (ready, address, condition) in [
        (&["top", "talkers"][..], "address", ["src IS NOT NULL", "dst IS NOT NULL"]),
        (
            &["by", "network", "--bits4", "20"],
            "network(address, 20, 48)",
            ["src IS NOT NULL", "dst IS NOT NULL"],
        ),
        (&["who", "talked", "to", to], "address", ["dst = '192.0.2.6'", "src = '192.0.2.6'"]),
    ] {
        let name = if ready[0] == "by" { "network" } else { "address" };
        let (times, order) = match ready[0] {
            "who" => (", min(first) AS first_time, max(last) AS last_time", "sent_bytes + received_bytes"),
            _ => ("", "sent_bytes"),
        };
        let sql = format!(
            "SELECT {address} AS {name}, count(*) AS flows, sum(sent) AS sent_bytes, sum(received) AS received_bytes{times} \
             FROM (SELECT src AS address, bytes AS sent, coalesce(reverse_bytes, 0) AS received, start_time AS first, \
             end_time AS last FROM flows WHERE {} UNION ALL SELECT dst, coalesce(reverse_bytes, 0), bytes, start_time, \
             end_time FROM flows WHERE {}) GROUP BY 1 ORDER BY {order} DESC, 1 LIMIT 50",
            condition[0], condition[1]
        );
        let rows = ask(&db, &[ready, &["-n", "50"]].concat());
        assert!(!rows.is_empty());
        assert_eq!(rows, ask(&db, &[sql.as_str()]), "{ready:?}");
    }
    // The range selects by the end of flows, so two adjacent ranges add up.
    let count = |words: &[&str]| {
        let words = [words, &["SELECT count(*) AS n FROM flows"]].concat();
        column(&ask(&db, &words)[0], "n")
    };
    let middle = "2026-03-01T12:00:10Z";
    let (before, after) = (count(&["--to", middle]), count(&["--from", middle]));
    assert!(before > 0 && after > 0 && before + after == flows.len() as u64, "{before} {after}");
}

/// Battery: F4
#[test]
fn a_killed_writer_loses_its_unfinished_file_alone_and_the_next_one_clears_up() {
    let folder = tempfile::tempdir().unwrap();
    let (pipe, db) = (folder.path().join("pipe"), folder.path().join("db"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let words = ["flows", "-r", text(&pipe), "--json", "--store", text(&db), "--store-rotate", "1s"];
    let child = spawn(&words);
    let mut output = File::options().write(true).open(&pipe).unwrap();
    write_header(&mut output).unwrap();
    let mut feed = |flows: std::ops::Range<u32>| {
        let mut bytes = Vec::new();
        let start = NOON_NS + u64::from(flows.start) * 10_000_000;
        write_flows(&mut bytes, flows, start, 10_000_000);
        output.write_all(&bytes).unwrap();
    };
    feed(0..5000);
    let end = Instant::now() + LIMIT;
    while files(&db).0.is_empty() {
        assert!(Instant::now() < end, "no file came");
        std::thread::sleep(Duration::from_millis(20));
    }
    // More flows are being written when it is killed.
    feed(5000..9000);
    child.signal(Signal::Kill).unwrap();
    let finished = child.finish(LIMIT).unwrap();
    let exported = finished.json().unwrap_or_else(|_| {
        // The last line may be incomplete.
        let lines = &finished.lines[..finished.lines.len() - 1];
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    });
    let exported = bag(exported.iter().filter(|line| line.get("flow").is_some()).map(expected));
    let stored = ask(&db, &["SELECT * FROM flows"]);
    assert!(stored.len() > 1000, "{}", stored.len());
    for (flow, times) in bag(stored.iter().map(found)) {
        assert!(exported.get(&flow).is_some_and(|exported| *exported >= times), "{flow}");
    }
    // Imitates the leftover of a writer that is killed in the middle of a large file.
    let (whole, _) = files(&db);
    let name = whole[0].file_name().unwrap().to_str().unwrap();
    let left = whole[0].with_file_name(format!(".{name}.part"));
    fs::write(&left, &fs::read(&whole[0]).unwrap()[..1000]).unwrap();
    // The next writer runs as another user than this test.
    fs::set_permissions(&left, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(ask(&db, &["SELECT * FROM flows"]).len(), stored.len(), "nobody reads what is not whole");
    let input = folder.path().join("more.pcap");
    make_file(&input, 0..10, NOON_NS, 1);
    let (finished, more, last) = store(&input, &db, &[]);
    assert_eq!(column(&last["store"], "cleared_files"), 1, "{}", finished.stderr);
    assert!(
        !left.exists() && finished.stderr.contains("1 unfinished files of writers"),
        "{}",
        finished.stderr
    );
    assert_eq!(ask(&db, &["SELECT * FROM flows"]).len(), stored.len() + more.len());
}

/// Battery: F3
#[test]
fn a_full_disk_is_said_and_mended_and_every_flow_counted() {
    if !require_root("a_full_disk_is_said_and_mended_and_every_flow_counted") {
        return;
    }
    let disk = Disk::new("tmpfs", "size=1m").unwrap();
    let (ballast, db) = (disk.path().join("ballast"), disk.path().join("db"));
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.pcap");
    make_file(&input, 0..4000, NOON_NS, 10_000_000);
    let (_, flows, _) = store(&input, &db, &["--quiet"]);
    assert!(flows.is_empty(), "quiet");
    let before = sums(&db)[0];
    fs::write(&ballast, vec![0; 2 << 20]).unwrap_err();
    let (finished, flows, last) = store(&input, &db, &[]);
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    for part in ["No space left on device", "flows could not be stored in"] {
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
    assert_eq!(column(&last["store"], "unwritten_flows"), flows.len() as u64);
    assert_eq!((sums(&db)[0], files(&db).1), (before, vec![]));

    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let words = ["flows", "-r", text(&pipe), "--json", "--store", text(&db), "--store-rotate", "1s"];
    let child = spawn(&words);
    let mut output = File::options().write(true).open(&pipe).unwrap();
    let capture = fs::read(&input).unwrap();
    output.write_all(&capture).unwrap();
    // Long enough for a file to be due, and to fail.
    std::thread::sleep(Duration::from_millis(2500));
    fs::remove_file(&ballast).unwrap();
    drop(output);
    let finished = child.finish(LIMIT).unwrap();
    let last = finished.last_json().unwrap();
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    assert_eq!(column(&last["store"], "flows"), column(&last, "flows"));
    assert_eq!(sums(&db)[0], before + column(&last, "flows"));
}

/// Battery: F3, I10
#[test]
fn where_nothing_can_be_written_or_asked_it_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.pcap");
    make_file(&input, 0..10, NOON_NS, 1);
    let taken = folder.path().join("taken");
    fs::write(&taken, "a file").unwrap();
    for place in [taken.as_path(), Path::new("/proc/nowhere")] {
        let (finished, ..) = store(&input, place, &[]);
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("cannot be written to: "), "{}", finished.stderr);
    }
    let finished = run(&["query", "top", "talkers", "--store", text(&folder.path().join("nothing"))]);
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("is not a store: "), "{}", finished.stderr);
    let db = folder.path().join("db");
    store(&input, &db, &[]);
    for (words, message) in [
        (
            &["SELECT scr FROM flows"][..],
            "no column 'scr'; did you mean 'src'? (line 1, column 8)\n  SELECT scr FROM flows\n         ^",
        ),
        (&["SELEC 1"], "(line 1, column 1)\n  SELEC 1\n  ^"),
        (
            &["SELECT src FROM\nflow"],
            "no table 'flow'; the tables of a store are flows, calls, streams, transactions, measurements, alarms, ledgers (line 2, column 1)\n  flow\n  ^",
        ),
        (
            &["SELECT src FROM flows WHERE"],
            "(line 1, column 28)\n  SELECT src FROM flows WHERE\n                             ^",
        ),
        (&["SELECT nett(src) FROM flows"], "no function 'nett'"),
        (&["SELECT \"scr\" FROM flows"], "no column 'scr'"),
        (&["SELECT 1; SELECT 2"], "SQL has more than one statement"),
        (&["who", "talked", "to", "me"], "'me' is neither an address nor a network"),
        (&["--from", "yesterday", "SELECT 1"], "give a time, as in 2026-11-23"),
        (&["--from", "2026-01-02", "--to", "2026-01-01", "SELECT 1"], "no time is left"),
        (&[], "ask in SQL, or one of: top talkers"),
    ] {
        let finished = run(&[&["query", "--store", text(&db)], words].concat());
        assert_eq!(finished.status.code(), Some(2), "{words:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(message), "{words:?}: {}", finished.stderr);
        assert!(finished.lines.is_empty(), "{words:?}: {:?}", finished.lines);
    }
    for sql in "DROP TABLE flows|COPY flows TO 'x.csv'|INSERT INTO flows SELECT * FROM flows|SET threads = 1|\
                ATTACH '/etc/passwd' AS other|PRAGMA cache_size = 1|CREATE TABLE a(b)|VACUUM INTO 'x'"
        .split('|')
    {
        let said = run(&["query", "--store", text(&db), sql]).stderr;
        assert!(said.contains("a store is read-only"), "{sql}: {said}");
    }
    // Stored text does not have an effect on a terminal or a spreadsheet.
    let evil = "SELECT char(27) || '[2J' AS a, '=1+1' AS b";
    let shown = |form: &[&str]| run(&[&["query", "--store", text(&db), evil], form].concat()).lines.join("|");
    assert_eq!(shown(&[]), "a          b|\\u{1b}[2J  =1+1");
    assert_eq!(shown(&["--csv"]), "a,b|\\u{1b}[2J,'=1+1");
}

/// Battery: I10
#[test]
fn a_damaged_file_is_named_and_the_rest_answers_and_writers_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let (input, db) = (folder.path().join("in.pcap"), folder.path().join("db"));
    make_file(&input, 0..2000, NOON_NS, 1_000_000);
    let words = ["flows", "-r", text(&input), "--quiet", "--json", "--store", text(&db)];
    let writers: Vec<Child> = (0..3).map(|_| spawn(&words)).collect();
    let mut flows = 0;
    for writer in writers {
        let last = writer.finish(LIMIT).unwrap().last_json().unwrap();
        flows = column(&last["store"], "flows");
    }
    assert_eq!(sums(&db)[0], 3 * flows);
    let (whole, others) = files(&db);
    assert_eq!((whole.len(), others.len()), (3, 0));
    let bytes = fs::read(&whole[0]).unwrap();
    // Damage at the end, in the middle, and of the whole file.
    for damaged in [
        &bytes[..bytes.len() - 100],
        &[&bytes[..2000], &[0x55; 4000], &bytes[6000..]].concat(),
        b"",
        b"no Parquet",
        // The decoder panics over this one.
        &damage::with_wide_integers(&bytes),
    ] {
        fs::write(&whole[0], damaged).unwrap();
        let sql = "SELECT count(*) AS n, sum(packets) AS p, max(src) AS s, max(dst) AS d, max(start_ns) AS t, \
                   max(community_id) AS c, max(duration_ns) AS u FROM flows";
        let finished = run(&["query", "--json", "--store", text(&db), sql]);
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        assert_eq!(column(&finished.json().unwrap()[0], "n"), 2 * flows);
        let name = whole[0].file_name().unwrap().to_str().unwrap();
        let is_named =
            |said: &str| said.contains(name) && said.contains("is left out") && !said.contains("panicked");
        assert!(is_named(&finished.stderr), "{}", finished.stderr);
        // The ready questions read other columns, which may be whole.
        let devices = run(&["query", "--json", "--store", text(&db), "by", "device"]);
        let counted = devices.json().unwrap().iter().map(|row| column(row, "flows")).sum::<u64>();
        assert_eq!(counted, if is_named(&devices.stderr) { 2 } else { 3 } * flows, "{}", devices.stderr);
    }
}
