//! `wirelane voip` live: many concurrent calls of sipp with real media; sipp's statistics, tshark and a HEP receiver
//! must report the same.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, capture, column, last_of};
use wirelane_tests::{Lab, require_root, wirelane_binary};

/// Number of concurrent calls.
const CALLS: u64 = 40;

/// True if all these programs are installed; otherwise a message says that the test is skipped.
fn are_there(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
        if !there.status.success() {
            println!(
                "left out: many_calls_of_sipp_are_those_of_sipp_tshark_and_hep (no {program}: scripts/setup)"
            );
        }
        there.status.success()
    })
}

/// The calls, with their streams, in the output of a command.
fn calls(lines: &[String]) -> Vec<Value> {
    let lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line.get("call_id").is_some()).collect()
}

/// Packets and losses of each stream by source port and SSRC; losses as tshark counts them.
type Counts = BTreeMap<(u64, String), (i64, i64)>;

fn counts(calls: &[Value]) -> Counts {
    let streams = calls.iter().flat_map(|call| call["streams"].as_array().unwrap());
    let of = |stream: &Value| {
        let number = |name: &str| column(stream, name) as i64;
        let key = (column(stream, "src_port"), stream["ssrc"].as_str().unwrap().to_owned());
        (key, (number("packets"), number("lost") - number("duplicate") - number("stray")))
    };
    let counts: Vec<_> = streams.map(of).collect();
    assert_eq!(
        counts.len(),
        counts.iter().map(|(key, _)| key).collect::<std::collections::BTreeSet<_>>().len()
    );
    counts.into_iter().collect()
}

/// tshark's values for a stream: packets and lost, then delta and jitter.
type Told = ((i64, i64), Vec<f64>);

/// The same counts from tshark's table, with the jitter and delta that it prints.
fn tshark(file: &Path) -> BTreeMap<(u64, String), Told> {
    let output = Command::new("tshark")
        .args(["-n", "-q", "-z", "rtp,streams", "-r", file.to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter(|line| line.contains(" 0x"));
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ssrc = words.iter().position(|word| word.starts_with("0x")).unwrap();
        let percent = words.iter().position(|word| word.starts_with('(')).unwrap();
        let key = (words[3].parse().unwrap(), words[ssrc].to_lowercase());
        let packets = (words[percent - 2].parse().unwrap(), words[percent - 1].parse().unwrap());
        (key, (packets, words[percent + 1..percent + 7].iter().map(|word| word.parse().unwrap()).collect()))
    })
    .collect()
}

/// The payload protocol and the correlation id of a message of HEP v3.
fn hep(bytes: &[u8]) -> (u8, String) {
    assert_eq!(&bytes[..4], b"HEP3");
    assert_eq!(usize::from(u16::from_be_bytes([bytes[4], bytes[5]])), bytes.len());
    let (mut rest, mut protocol, mut id) = (&bytes[6..], 0, String::new());
    while let [0, 0, 0, kind, high, low, ..] = *rest {
        let length = usize::from(u16::from_be_bytes([high, low]));
        match kind {
            11 => protocol = rest[6],
            17 => id = String::from_utf8(rest[6..length].to_vec()).unwrap(),
            15 if protocol == 1 => assert!(rest[6..length].windows(7).any(|part| part == b"SIP/2.0")),
            15 => assert!(serde_json::from_slice::<Value>(&rest[6..length]).unwrap()["packets"].is_u64()),
            _ => {}
        }
        rest = &rest[length..];
    }
    assert!(rest.is_empty());
    (protocol, id)
}

/// Battery: I10
#[test]
fn many_calls_of_sipp_are_those_of_sipp_tshark_and_hep() {
    calls_of_sipp("many_calls_of_sipp_are_those_of_sipp_tshark_and_hep", "1");
}

/// Battery: I10
#[test]
fn many_calls_of_sipp_by_two_workers_are_those_of_sipp_tshark_and_hep() {
    calls_of_sipp("many_calls_of_sipp_by_two_workers_are_those_of_sipp_tshark_and_hep", "2");
}

fn calls_of_sipp(test: &str, workers: &str) {
    if !require_root(test) || !are_there(&["sipp", "tshark", "tcpdump"]) {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // sipp looks for its recordings here.
    std::os::unix::fs::symlink("/usr/share/sip-tester", folder.path().join("pcap")).unwrap();
    let (uac, uas) = (lab.sender().clone(), lab.receiver().clone());
    let receiver = lab.enter(&uas.namespace, || UdpSocket::bind("127.0.0.1:0")).unwrap().unwrap();
    receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let hep_to = format!("hep://{}", receiver.local_addr().unwrap());
    let listener = capture(
        &lab,
        &[
            "voip",
            "-i",
            &uas.device,
            "--direction",
            "both",
            "--json",
            "--workers",
            workers,
            "--linger",
            "1",
            "--export",
            &hep_to,
            "--export-rate",
            "0",
        ],
    )
    .unwrap();
    let file = folder.path().join("calls.pcap");
    let mut tcpdump = lab
        .command(&uas.namespace, "tcpdump")
        .args(["-i", &uas.device, "-U", "-B", "65536", "-w", file.to_str().unwrap(), "udp"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    while std::fs::metadata(&file).map_or(0, |file| file.len()) < 24 {
        assert!(Instant::now() < end, "tcpdump writes nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let number = CALLS.to_string();
    let sipp = |end: &wirelane_tests::End, words: &[&str]| {
        lab.command(&end.namespace, "sipp")
            .args(words)
            .args([
                "-i",
                &end.address.to_string(),
                "-m",
                &number,
                "-nostdin",
                "-timeout",
                "60",
                "-trace_stat",
                "-fd",
                "1",
            ])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut answers = sipp(&uas, &["-sn", "uas", "-p", "5060", "-stf", "uas.csv"]);
    std::thread::sleep(Duration::from_millis(500));
    let target = format!("{}:5060", uas.address);
    let mut asks = sipp(
        &uac,
        &[
            "-sn", "uac_pcap", &target, "-p", "5070", "-mp", "20000", "-r", &number, "-l", &number, "-stf",
            "uac.csv",
        ],
    );
    // Receives HEP messages until sipp has ended and no more have arrived for a while.
    let (mut heps, mut buffer) = (Vec::new(), vec![0; 65_536]);
    let end = Instant::now() + 2 * LIMIT;
    let mut quiet = 0;
    loop {
        match receiver.recv(&mut buffer) {
            Ok(length) => {
                heps.push(hep(&buffer[..length]));
                quiet = 0;
            }
            Err(_) => quiet += 1,
        }
        let over = asks.try_wait().unwrap();
        if let Some(status) = over {
            assert!(status.success(), "sipp failed: {status}");
        }
        // The calls linger for a second.
        if over.is_some() && quiet >= 10 {
            break;
        }
        assert!(Instant::now() < end, "sipp does not end");
    }
    let finished = listener.terminate(LIMIT).unwrap();
    // Only our own processes, by id; the answering sipp may have ended with its last call.
    Command::new("kill").arg(tcpdump.id().to_string()).status().unwrap();
    tcpdump.wait().unwrap();
    Command::new("kill").arg(answers.id().to_string()).status().unwrap();
    answers.wait().unwrap();

    let last = last_of(&finished).unwrap();
    let live = calls(&finished.lines);
    // The statistics of sipp.
    let statistics = std::fs::read_to_string(folder.path().join("uac.csv")).unwrap();
    let names: Vec<&str> = statistics.lines().next().unwrap().split(';').collect();
    let values: Vec<&str> = statistics.lines().last().unwrap().split(';').collect();
    let of =
        |name: &str| values[names.iter().position(|known| *known == name).unwrap()].parse::<u64>().unwrap();
    assert_eq!((of("SuccessfulCall(C)"), of("FailedCall(C)")), (CALLS, 0));
    assert_eq!((live.len() as u64, column(&last["call_states"], "completed")), (CALLS, CALLS));
    for call in &live {
        assert_eq!(
            (&call["hung_up"], column(call, "status"), &call["end_reason"]),
            (&"caller".into(), 200, &"end".into())
        );
        assert_eq!(
            (call["caller"].as_str(), call["callee"].as_str()),
            (Some(&*format!("{}:5070", uac.address)), Some(&*target))
        );
        assert!(call["talk_ms"].as_f64().unwrap() > 9_000.0, "{call}");
        let media = call["streams"]
            .as_array()
            .unwrap()
            .iter()
            .find(|stream| stream["codec"] == "PCMA")
            .unwrap_or_else(|| panic!("{call}"));
        // With the packets of the telephone event, if it has the same SSRC.
        assert!(
            column(media, "packets") >= 236
                && column(media, "lost") == 0
                && media["mos"].as_f64().unwrap() > 3.5,
            "{media}"
        );
        let events: u64 =
            call["streams"].as_array().unwrap().iter().map(|stream| column(stream, "dtmf_events")).sum();
        assert_eq!(events, 1, "{call}");
    }
    assert_eq!(
        (column(&last, "lost"), column(&last, "sip_malformed"), column(&last, "rtp_left_out")),
        (0, 0, 0)
    );

    // tshark and `wirelane voip` over the recording of tcpdump.
    let theirs = tshark(&file);
    let live = counts(&live);
    assert_eq!(live, theirs.iter().map(|(key, (counts, _))| (key.clone(), *counts)).collect());
    let output = Command::new(wirelane_binary().unwrap())
        .args(["voip", "--json", "-r", file.to_str().unwrap()])
        .output()
        .unwrap();
    let lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let read = calls(&lines);
    assert_eq!(counts(&read), live);
    let (mut near, mut all) = (0, 0);
    for stream in read.iter().flat_map(|call| call["streams"].as_array().unwrap()) {
        let (_, times) = &theirs[&(column(stream, "src_port"), stream["ssrc"].as_str().unwrap().to_owned())];
        let ours = [
            "delta_min_ms",
            "delta_mean_ms",
            "delta_max_ms",
            "jitter_min_ms",
            "jitter_mean_ms",
            "jitter_max_ms",
        ]
        .map(|name| stream[name].as_f64().unwrap_or(if name.ends_with("min_ms") { -1.0 } else { 0.0 }));
        all += 1;
        near += usize::from(ours.iter().zip(times).all(|(ours, theirs)| (ours - theirs).abs() <= 0.0021));
    }
    println!("{near} of {all} streams have tshark's delta and jitter");
    assert!(near * 100 >= all * 95, "{near} of {all}");

    // Number of calls in sngrep's list.
    if let Ok(output) = Command::new("sngrep").args(["-F", "-N", "-c", "-I"]).arg(&file).output() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.trim_end().ends_with(&format!("Dialog count: {CALLS}")), "{text}");
    } else {
        println!("left out: many_calls_of_sipp_are_those_of_sipp_tshark_and_hep by sngrep (there is none)");
    }

    // Every message of a call, and a report for each stream.
    let sent = &last["exports"][0];
    assert_eq!((column(sent, "messages"), column(sent, "unsent")), (heps.len() as u64, 0));
    let signals = heps.iter().filter(|(protocol, _)| *protocol == 1).count() as u64;
    assert_eq!(signals, column(&last, "sip_messages"));
    assert_eq!(heps.len() as u64 - signals, column(&last, "streams"));
    let ids: std::collections::BTreeSet<&String> = heps.iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len() as u64, CALLS);
}
