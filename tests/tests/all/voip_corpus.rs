//! `wirelane voip` over the corpus: calls and streams equal those of tshark, except for listed differences with a
//! reason.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use wirelane_tests::calls::voip;
use wirelane_tests::corpus;
use wirelane_tests::numbers::column;

/// A row of tshark's table of streams.
struct Row {
    ssrc: String,
    src: String,
    port: u64,
    /// Packets, lost, then min, mean and max of delta and jitter in ms.
    numbers: [f64; 8],
}

fn row(text: &str) -> Row {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ssrc = words.iter().position(|word| word.starts_with("0x")).unwrap();
    let percent = words.iter().position(|word| word.starts_with('(')).unwrap();
    let at = |place: usize| words[place].parse::<f64>().unwrap();
    let mut numbers = [at(percent - 2), at(percent - 1), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    (0..6).for_each(|place| numbers[place + 2] = at(percent + 1 + place));
    Row { ssrc: words[ssrc].to_lowercase(), src: words[2].into(), port: words[3].parse().unwrap(), numbers }
}

/// Differences between tshark and Wirelane, with reasons.
const EXCEPTIONS: [(&str, &str); 6] = [
    ("asterisk--ssrc1", "one packet: without signalling, three in a row prove RTP"),
    ("asterisk--ssrc2", "two packets, the same"),
    (
        "asterisk--ulaw-2013785496",
        "jitter of the media behind key events, which RFC 3550 does not define: 6.333 ms, tshark 6.475",
    ),
    (
        "rtpdump--sample2_vowifi_ipv4_esp_ipv4",
        "tshark's running mean of deltas weighs in the packets that it leaves out",
    ),
    ("rtppcap--sip-rtp-l16", "tshark divides the clock by 1000 as a whole number: 11,025 Hz are 11 a ms"),
    ("ipfixprobe--sip", "five messages are within ICMP errors, which are not messages that arrived"),
];

/// Files in which sngrep finds other calls, with reasons.
const SNGREP: [(&str, &str); 3] = [
    ("pkts--fragmented_udp_sip", "it finds none in these fragments"),
    ("rtpdump--sample2_vowifi_ipv4_esp_ipv4", "it does not look into ESP that nothing is encrypted in"),
    ("zeek--sip-long-request-response-paths", "it reads no captures that begin with IP"),
];

/// Starts sngrep to look for calls in a file: dialogs that begin with INVITE. `None` if sngrep is not installed.
fn sngrep(file: &Path) -> Option<Child> {
    let mut command = Command::new("sngrep");
    command.args(["-F", "-N", "-c", "-I"]).arg(file).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
}

/// Number of calls that sngrep has found. `None` if it has failed.
fn found_by(sngrep: Child) -> Option<u64> {
    let output = sngrep.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, number) = text.rsplit_once("Dialog count: ")?;
    output.status.success().then(|| number.trim().parse().unwrap())
}

/// Battery: I10
#[test]
fn calls_and_streams_of_the_corpus_are_those_of_tshark() {
    let Some(corpus) = corpus("calls_and_streams_of_the_corpus_are_those_of_tshark") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (mut streams, mut equal, mut calls, mut captures, mut differ) = (0, 0, 0, 0, Vec::new());
    // sngrep takes half a second for each file, in which it mostly sleeps.
    let (mut lists, mut listed, mut listed_otherwise) = (Vec::new(), 0, Vec::new());
    let mut truths: Vec<_> =
        std::fs::read_dir(corpus.join("truth/voip")).unwrap().map(|entry| entry.unwrap().path()).collect();
    truths.sort();
    for truth in truths {
        let name = truth.file_name().unwrap().to_str().unwrap().split(".json").next().unwrap().to_owned();
        let truth: Value = serde_json::from_slice(&unpacked(&truth)).unwrap();
        let found =
            std::fs::read_dir(corpus.join("captures/voip")).unwrap().map(|entry| entry.unwrap().path());
        let capture = found
            .into_iter()
            .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{name}.pcap")))
            .unwrap();
        let file = folder.path().join(&name);
        std::fs::write(&file, unpacked(&capture)).unwrap();
        let truth = if truth["voip_tshark"].is_null() { &truth } else { &truth["voip_tshark"] };
        let results = voip(&file, &["--heuristic"]);
        captures += 1;
        lists.extend(sngrep(&file).map(|child| (name.clone(), results.calls.len() as u64, child)));
        let mut same =
            column(&results.last, "sip_messages") == truth["sip_messages"].as_array().unwrap().len() as u64;
        for dialog in truth["sip_dialogs_by_call_id"].as_array().unwrap() {
            if dialog["methods"].get("INVITE").is_none() {
                continue;
            }
            calls += 1;
            let call = results.call(dialog["call_id"].as_str().unwrap());
            let status = call["status"].as_u64().map(|status| status.to_string()).unwrap_or_default();
            same &= status == dialog["final_invite_status"].as_str().unwrap();
        }
        let table = truth["rtp_streams_heuristic"].as_array().unwrap();
        for line in table.iter().skip(2).take(table.len().saturating_sub(3)) {
            let row = row(line.as_str().unwrap());
            streams += 1;
            let all = results.all_streams();
            let ours = all.iter().find(|stream| {
                stream["ssrc"] == row.ssrc.as_str()
                    && stream["src"] == row.src.as_str()
                    && column(stream, "src_port") == row.port
            });
            let Some(ours) = ours else {
                same = false;
                continue;
            };
            let of = |name: &str| ours[name].as_f64();
            let number = |name: &str| column(ours, name) as f64;
            let numbers = [
                number("packets"),
                number("lost") - number("duplicate") - number("stray"),
                of("delta_min_ms").unwrap_or(-1.0),
                of("delta_mean_ms").unwrap_or(0.0),
                of("delta_max_ms").unwrap_or(0.0),
                of("jitter_min_ms").unwrap_or(-1.0),
                of("jitter_mean_ms").unwrap_or(0.0),
                of("jitter_max_ms").unwrap_or(0.0),
            ];
            assert_eq!(numbers[..2], row.numbers[..2], "{name}: packets and lost");
            // Within the last printed digit, and the rounding of integers.
            let near = numbers.iter().zip(row.numbers).all(|(ours, theirs)| (ours - theirs).abs() <= 0.0021);
            equal += u32::from(near);
            same &= near;
        }
        if !same {
            differ.push(name);
        }
    }
    println!(
        "{captures} captures, {calls} calls; of {streams} streams of tshark's, {equal} are equal; {differ:?} differ"
    );
    assert!(
        captures >= 40 && calls >= 40 && streams >= 38,
        "{captures} captures, {calls} calls, {streams} streams"
    );
    let mut named: Vec<&str> = EXCEPTIONS.iter().map(|(name, _)| *name).collect();
    named.sort_unstable();
    assert_eq!(differ, named, "those that differ are those with a reason");
    if !lists.is_empty() {
        assert_eq!(lists.len(), captures);
        for (name, calls, child) in lists {
            let found = found_by(child);
            listed += found.unwrap_or(0);
            if found != Some(calls) {
                listed_otherwise.push(name);
            }
        }
        println!("sngrep lists {listed} calls; {listed_otherwise:?} differ");
        assert_eq!(listed_otherwise, SNGREP.map(|(name, _)| name), "the same of sngrep's");
        assert!(listed >= 40, "{listed}");
    } else {
        println!("left out: calls_and_streams_of_the_corpus_are_those_of_tshark by sngrep (there is none)");
    }
}

fn unpacked(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain).unwrap();
        return plain;
    }
    bytes
}
