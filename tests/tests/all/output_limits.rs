//! A flood of small packets does not produce more bytes of output than it had on the wire, and suppressed records are
//! counted for each output; a requested rate is a hard limit; files are read without a limit.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use serde_json::Value;
use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::frames::{replay, replay_stream};
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::recordings::{NOON_NS, make_capture, write_header, write_packet};
use wirelane_tests::{Lab, require_root, wirelane_binary};

/// Packets of the largest flood.
const PACKETS: u64 = 60_000;

/// Captures a flood in which every packet is a flow; returns the last object, and the number of bytes printed.
fn flood(folder: &Path, options: &[&str]) -> (Value, u64) {
    let lab = Lab::new(1).unwrap();
    let file = folder.join("f.json");
    let export = format!("file:{}", file.display());
    let device = &lab.receiver().device;
    let words = ["flows", "-i", device, "--json", "--user", "root", "--overwrite", "--export", &export];
    let child = capture(&lab, &[&words[..], options].concat()).unwrap();
    send(&lab, PACKETS, &["--flows", &PACKETS.to_string(), "--rate", "30k"]).unwrap();
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    let printed = finished.json().unwrap();
    let records = printed.iter().filter(|object| object.get("flow").is_some());
    let bytes = records.map(|object| object.to_string().len() as u64 + 1).sum();
    (finished.last_json().unwrap(), bytes)
}

/// Asserts that each flow is written or suppressed, in the file and on standard output; returns the written ones.
fn accounted(last: &Value) -> [u64; 2] {
    let (export, printed) = (&last["exports"][0], &last["standard_output"]);
    assert_eq!(column(export, "flows") + column(export, "suppressed_flows"), column(last, "flows"), "{last}");
    assert_eq!(column(printed, "records") + column(printed, "suppressed"), column(last, "flows"), "{last}");
    [column(export, "flows"), column(printed, "records")]
}

/// Battery: S11
#[test]
fn a_flood_makes_no_more_output_than_it_had_on_the_wire() {
    if !require_root("a_flood_makes_no_more_output_than_it_had_on_the_wire") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (last, printed) = flood(folder.path(), &[]);
    let written = fs::metadata(folder.path().join("f.json")).unwrap().len();
    let wire = column(&last, "flow_wire_bytes");
    assert!(written + printed <= wire, "{written} and {printed} bytes for {wire} on the wire: {last}");
    let records = accounted(&last);
    assert!(records.iter().all(|records| (1000..PACKETS).contains(records)), "{records:?}");
}

/// A command with several outputs: their formats, and what it counts for each.
struct Case {
    command: &'static str,
    options: &'static [&'static str],
    /// The option of an output, and its values, with `FILE` for the path.
    option: &'static str,
    outputs: &'static [&'static str],
    /// The key of the outputs' counts in the ledger, and in them those of written, suppressed and unwritten records.
    account: &'static str,
    columns: [&'static str; 3],
    /// Keys in the ledger of the records of each output, and of each table of the store.
    records: &'static [&'static str],
    tables: &'static [&'static str],
}

const CASES: [Case; 3] = [
    Case {
        command: "http",
        options: &["--idle-timeout", "1"],
        option: "--log",
        outputs: &["json:FILE", "combined:FILE", "w3c:FILE"],
        account: "logs",
        columns: ["lines", "suppressed", "unwritten"],
        records: &["transactions"; 3],
        tables: &["transactions"],
    },
    Case {
        command: "voip",
        options: &["--linger", "0.1", "--answer-timeout", "0.5"],
        option: "--export",
        outputs: &["file:FILE.json", "file:FILE.csv", "file:FILE.ipfix"],
        account: "exports",
        columns: ["records", "suppressed", "unsent"],
        records: &["calls", "calls", "streams"],
        tables: &["calls", "streams"],
    },
    Case {
        command: "flows",
        options: &[],
        option: "--export",
        outputs: &["file:FILE.csv", "file:FILE.ipfix"],
        account: "exports",
        columns: ["flows", "suppressed_flows", "unsent_flows"],
        records: &["flows"; 2],
        tables: &["flows"],
    },
];

/// The smallest frames that are an event of each command: a request, a call with a packet of its media, a flow.
fn hostile(command: &str) -> Vec<Vec<u8>> {
    let mut scene = Scene::new();
    for number in 0..PACKETS {
        let client = format!("11.0.{}.{}:{}", number >> 14 & 0xff, number >> 6 & 0xff, 10_000 + number % 64);
        match command {
            "http" => scene.tcp(number, &client, "10.0.0.2:80", 1, b"GET / HTTP/1.1\r\n\r\n"),
            "voip" if number % 2 == 0 => {
                let id = format!("Call-ID: {number}");
                let lines = ["CSeq: 1 INVITE", &id, "From: <sip:a@b>;tag=1", "To: <sip:c@d>"];
                let body = description("10.0.0.1", 2 + (number % 60_000) as u16);
                let invite = message("INVITE sip:c@d SIP/2.0", &lines, &body);
                scene.udp(number, &client, "10.0.0.2:5060", &invite);
            }
            "voip" => {
                let at = format!("10.0.0.1:{}", 2 + (number - 1) % 60_000);
                scene.udp(number, &client, &at, &rtp(number, number as u32));
            }
            _ => scene.udp(number, &client, "10.0.0.2:9", b"x"),
        }
    }
    scene.into_frames()
}

/// Bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(
            |entry| {
                if entry.path().is_dir() {
                    bytes_below(&entry.path())
                } else {
                    entry.metadata().unwrap().len()
                }
            },
        )
        .sum()
}

/// Every log and export to a file, and the store, all at once with the default limits: files no larger than the flood,
/// and each record written, suppressed or unwritten.
/// Battery: S11
#[test]
fn no_output_to_a_file_makes_more_bytes_than_the_flood_had() {
    if !require_root("no_output_to_a_file_makes_more_bytes_than_the_flood_had") {
        return;
    }
    for case in &CASES {
        let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| folder.path().join(name).display().to_string();
        let outputs = case.outputs.iter().enumerate();
        let outputs = outputs.map(|(number, output)| output.replace("FILE", &path(&number.to_string())));
        let outputs: Vec<String> = outputs.flat_map(|output| [case.option.to_owned(), output]).collect();
        let store = path("store");
        let device = &lab.receiver().device;
        let words = [case.command, "-i", device, "--direction", "rx", "--json", "--quiet", "--user", "root"];
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let words = [&words[..], case.options, &outputs, &["--store", &store]].concat();
        let child = capture(&lab, &words).unwrap();
        let frames = hostile(case.command);
        let wire: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
        replay_stream(&lab, "recorded", |output| {
            write_header(output)?;
            // 30,000 a second.
            let mut frames = frames.iter().zip(0u64..);
            frames.try_for_each(|(frame, number)| write_packet(output, NOON_NS + number * 33_333, frame))
        })
        .unwrap();
        let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
        let written = bytes_below(folder.path());
        println!(
            "{}: {wire} bytes, {written} written: {}, {}",
            case.command, last[case.account], last["store"]
        );
        assert!(written <= wire, "{}: {written} bytes for {wire} on the wire: {last}", case.command);
        let mut suppressed = 0;
        for (records, counts) in case.records.iter().zip(last[case.account].as_array().unwrap()) {
            let columns = case.columns.map(|name| column(counts, name));
            assert_eq!(columns.iter().sum::<u64>(), column(&last, records), "{}: {counts}", case.command);
            assert!(columns[0] > 0, "{}: nothing was written: {counts}", case.command);
            suppressed += columns[1];
        }
        assert!(suppressed > 0, "{}: nothing was suppressed: {last}", case.command);
        // The store suppresses a call together with its streams.
        let store = &last["store"];
        let rows = case
            .tables
            .iter()
            .map(|table| column(store, table) + column(store, &format!("unwritten_{table}")));
        let all = case.tables.iter().map(|table| column(&last, table)).sum::<u64>();
        let rows = rows.sum::<u64>();
        let left_out = column(store, "suppressed");
        if case.tables.len() == 1 {
            assert_eq!(rows + left_out, all, "{}: {store}", case.command);
        } else {
            assert!(rows + left_out <= all && (rows == all) == (left_out == 0), "{}: {store}", case.command);
        }
    }
}

/// Battery: S11
#[test]
fn a_rate_is_a_hard_limit_and_0_is_none() {
    if !require_root("a_rate_is_a_hard_limit_and_0_is_none") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (last, _) = flood(folder.path(), &["--output-rate", "100"]);
    let most = 100.0 * (last["duration_s"].as_f64().unwrap() + 2.0);
    assert!(accounted(&last).iter().all(|records| *records as f64 <= most), "{most}: {last}");
    let (last, _) = flood(folder.path(), &["--output-rate", "0"]);
    assert_eq!(accounted(&last), [column(&last, "flows"); 2]);
}

/// Battery: S11
#[test]
fn a_flood_of_signalling_is_limited_on_its_way_to_a_receiver() {
    if !require_root("a_flood_of_signalling_is_limited_on_its_way_to_a_receiver") {
        return;
    }
    const MESSAGES: u64 = 4000;
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let receiver = lab.enter(&lab.receiver().namespace, || UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
    let target = format!("hep://{}", receiver.local_addr().unwrap());
    let words =
        ["voip", "-i", &lab.receiver().device, "--json", "--quiet", "--all-messages", "--export", &target];
    let voip = capture(&lab, &[&words[..], &["--output-rate", "100"]].concat()).unwrap();
    let mut scene = Scene::new();
    for number in 0..MESSAGES {
        let id = format!("Call-ID: {number}");
        let text = message(
            "OPTIONS sip:a@b SIP/2.0",
            &["From: <sip:a@b>;tag=1", "To: <sip:a@b>", &id, "CSeq: 1 OPTIONS"],
            "",
        );
        scene.udp(number, "10.0.0.1:5060", "10.0.0.2:5060", &text);
    }
    replay(&lab, folder.path(), &scene.into_frames(), 1).unwrap();
    let last = last_of(&voip.terminate(LIMIT).unwrap()).unwrap();
    let export = &last["exports"][0];
    let [sent, suppressed, unsent] = ["messages", "suppressed", "unsent"].map(|name| column(export, name));
    assert_eq!((sent + suppressed + unsent, column(&last, "lost")), (MESSAGES, 0), "{last}");
    let most = 100.0 * (last["duration_s"].as_f64().unwrap() + 2.0);
    assert!(sent >= 100 && sent as f64 <= most, "{most}: {last}");
}

#[test]
fn files_are_read_without_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.pcap");
    make_capture(&file, 60, (0..20_000).map(|n| n * 20_000_000_000)).unwrap();
    let mut command = std::process::Command::new(wirelane_binary().unwrap());
    command.args(["flows", "--csv", "-r", file.to_str().unwrap()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 20_001);
}
