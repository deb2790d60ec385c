//! A flood of small packets does not produce more bytes of output than it had on the wire, and suppressed records are
//! counted for each output; a requested rate is a hard limit; files are read without a limit.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use serde_json::Value;
use wirelane_tests::calls::{Scene, message};
use wirelane_tests::frames::replay;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of, send};
use wirelane_tests::recordings::make_capture;
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
