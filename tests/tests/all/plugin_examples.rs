//! The examples `netflow.bpf.c` and `rtp.bpf.c` (`examples/plugins/`), with their rule files: what they have in their maps is what
//! `flows` and `voip` say of the same packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde_json::Value;
use wirelane::rules::RuleSet;
use wirelane::{Capture, StateReader};
use wirelane_tests::calls::{Scene, description, message, rtp};
use wirelane_tests::mixture::Mixture;
use wirelane_tests::numbers::{LIMIT, column, last_of, wirelane};
use wirelane_tests::ruled::{KERNEL, drain, open};
use wirelane_tests::{Child, Lab, corpus, merged, program_file, repository, require_root};

/// A capture with an example and its rule file.
fn start(lab: &Lab, folder: &Path, name: &str) -> Capture {
    let object = program_file(folder, name).unwrap();
    let rules = RuleSet::read(repository().join(format!("examples/plugins/{name}.toml"))).unwrap();
    let capture = open(lab, KERNEL[0], |builder| {
        builder.plugin(name, object).plugin_budget(1_000_000_000).rules(rules)
    });
    capture.unwrap()
}

/// Starts a command on the same packets.
fn command(lab: &Lab, words: &[&str]) -> Child {
    let end = lab.receiver();
    let on = ["-i", &end.device, "--hook", "native", "--direction", "rx", "--json"];
    let mut child = wirelane(lab, &end.namespace, &[&words[..1], &on, &words[1..]].concat()).unwrap();
    child.wait_ready(LIMIT).unwrap();
    child
}

/// Sends a capture file.
fn replay(lab: &Lab, file: &Path, speed: &str) -> u64 {
    let end = lab.sender();
    let words = ["send", "-i", &end.device, "--replay", file.to_str().unwrap(), "--speed", speed, "--json"];
    let sent = last_of(&wirelane(lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap()).unwrap();
    column(&sent, "sent")
}

/// The entries of a map: key and value by the names of their fields.
fn entries(state: &StateReader, program: &str, map: &str) -> Vec<(Value, Value)> {
    let all = state.read(program, map).unwrap();
    all.iter().map(|entry| (entry.json()["key"].clone(), entry.json()["value"].clone())).collect()
}

/// An address in hexadecimal digits; IPv4 is in the first four bytes of 16.
fn address(key: &Value, field: &str, is_v6: bool) -> IpAddr {
    let digits = key[field].as_str().unwrap();
    let number = u128::from_str_radix(digits, 16).unwrap();
    if is_v6 { Ipv6Addr::from(number).into() } else { Ipv4Addr::from((number >> 96) as u32).into() }
}

/// A number in network byte order.
fn network(key: &Value, field: &str) -> u64 {
    u16::from_be(column(key, field) as u16).into()
}

/// Both ends, protocol, and ports or type and code.
type Ends = (IpAddr, IpAddr, u64, u64, u64);
/// Packets, bytes, wire bytes and TCP flags.
type Sums = [u64; 4];

fn add(all: &mut BTreeMap<Ends, Sums>, ends: Ends, [packets, bytes, wire, flags]: Sums) {
    let sums = all.entry(ends).or_default();
    *sums = [sums[0] + packets, sums[1] + bytes, sums[2] + wire, sums[3] | flags];
}

/// Flows of `wirelane flows` by their ends: those that ended and began anew are one here.
fn of_flows(lines: &[Value]) -> BTreeMap<Ends, Sums> {
    let mut all = BTreeMap::new();
    for flow in lines.iter().filter(|line| line.get("ip_version").is_some()) {
        let number = |field: &str| flow.get(field).and_then(Value::as_u64).unwrap_or(0);
        let end = |field: &str| flow[field].as_str().unwrap().parse().unwrap();
        let second = number("dst_port") | number("icmp_type") << 8 | number("icmp_code");
        let flags = flow.get("tcp_flags").map_or(0, tcp_flags);
        let ends = (end("src"), end("dst"), number("protocol"), number("src_port"), second);
        add(&mut all, ends, [number("packets"), number("bytes"), number("wire_bytes"), flags]);
    }
    all
}

/// Flows of the plug-in's map.
fn of_plugin(state: &StateReader) -> BTreeMap<Ends, Sums> {
    let mut all = BTreeMap::new();
    for (key, flow) in entries(state, "netflow", "flows") {
        let is_v6 = column(&key, "l3") == 6;
        let ports = (network(&key, "src_port"), network(&key, "dst_port"));
        let ends = (
            address(&key, "src", is_v6),
            address(&key, "dst", is_v6),
            column(&key, "proto"),
            ports.0,
            ports.1,
        );
        add(
            &mut all,
            ends,
            ["packets", "bytes", "wire_bytes", "tcp_flags"].map(|field| column(&flow, field)),
        );
        assert!(column(&flow, "first_ns") <= column(&flow, "last_ns"), "{flow}");
    }
    all
}

fn assert_same(found: &BTreeMap<Ends, Sums>, expected: &BTreeMap<Ends, Sums>) {
    let all: BTreeSet<&Ends> = found.keys().chain(expected.keys()).collect();
    let differ = |ends: &&Ends| {
        let (own, theirs) = (found.get(ends), expected.get(ends));
        (own != theirs).then(|| format!("{ends:?}: {own:?}, not {theirs:?}"))
    };
    let wrong: Vec<String> = all.iter().filter_map(differ).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), all.len());
}

/// TCP flags, as a number or as letters.
fn tcp_flags(flags: &Value) -> u64 {
    let of_letters = |text: &str| text.chars().map(|letter| 1 << "FSRPAUEC".find(letter).unwrap()).sum();
    flags
        .as_u64()
        .unwrap_or_else(|| of_letters(flags.as_str().unwrap().trim_matches('.').replace('.', "").as_str()))
}

/// Nanoseconds from the first to the last packet of a flow.
fn lasted(flow: &Value) -> u64 {
    column(flow, "last_ns") - column(flow, "first_ns")
}

#[test]
fn netflow_in_a_plug_in_has_the_flows_of_flows() {
    if !require_root("netflow_in_a_plug_in_has_the_flows_of_flows") {
        return;
    }
    const FRAMES: u64 = 1200;
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("mixture.pcap");
    let mut mixture = Mixture::new();
    mixture.write(&mut BufWriter::new(File::create(&file).unwrap()), FRAMES, 100_000).unwrap();
    let mut capture = start(&lab, folder.path(), "netflow");
    let mut worker = capture.workers().remove(0);
    let export = folder.path().join("flows.json");
    let flows = command(&lab, &["flows", "--quiet", "--export", &format!("file:{}", export.display())]);
    let sent = replay(&lab, &file, "recorded");
    drain(&capture, &mut worker, sent, |_| {});
    let lines = flows.terminate(LIMIT).unwrap().json().unwrap();
    let last = lines.last().unwrap();
    assert_eq!(
        (column(last, "analysed"), column(&last["exports"][0], "suppressed_flows")),
        (sent, 0),
        "{last}"
    );
    let flows = fs::read_to_string(&export).unwrap();
    let flows: Vec<Value> = flows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = of_flows(&flows);

    let state = capture.state().unwrap();
    let found = of_plugin(&state);
    assert!(found.len() > 300, "{} flows", found.len());
    assert_same(&found, &expected);
    let lasting: u64 = entries(&state, "netflow", "flows").iter().map(|(_, flow)| lasted(flow)).sum();
    let theirs: f64 = flows.iter().map(|flow| flow["duration_s"].as_f64().unwrap_or(0.0)).sum();
    // Nanoseconds, of the same times: `flows` converts them to those of the wall clock.
    let most = found.len() as f64 * 1000.0;
    assert!(lasting > 0 && (lasting as f64 - theirs * 1e9).abs() < most, "{lasting} ns, {theirs} s");
    let stats = capture.rule_stats().unwrap().unwrap();
    let [line] = &stats.plugins[..] else { panic!("{stats:?}") };
    assert_eq!((line.asked, line.matched), (sent, 0));
    let counters = ["flows", "ended", "not kept"].map(|name| line.counters[name]);
    assert_eq!(counters, [found.len() as u64, 0, 0]);
    let packets: u64 = found.values().map(|sums| sums[0]).sum();
    assert_eq!(packets + line.counters["other packets"], sent);
}

const ALICE: &str = "192.0.2.1:5060";
const BOB: &str = "192.0.2.2:5060";

/// A call of 12 s. From Alice: numbers that are lost, late, doubled, far ahead, and a restart; from Bob: markers, padding, and a
/// cycle of the sequence numbers.
fn call() -> Scene {
    let mut scene = Scene::new();
    let lines = |to: &'static str, method: &'static str| {
        vec!["From: <sip:a@example.com>;tag=a", to, "Call-ID: one@example.com", method]
    };
    let (to, answered) = ("To: <sip:b@example.org>", "To: <sip:b@example.org>;tag=b");
    let invite = "INVITE sip:b@example.org SIP/2.0";
    scene.udp(0, ALICE, BOB, &message(invite, &lines(to, "CSeq: 1 INVITE"), &description("192.0.2.1", 6000)));
    let answer =
        message("SIP/2.0 200 OK", &lines(answered, "CSeq: 1 INVITE"), &description("192.0.2.2", 7000));
    scene.udp(100_000, BOB, ALICE, &answer);
    scene.udp(
        110_000,
        ALICE,
        BOB,
        &message("ACK sip:b@example.org SIP/2.0", &lines(answered, "CSeq: 1 ACK"), ""),
    );
    for number in 0..600u64 {
        let at = 200_000 + number * 20_000;
        let (from, to) = ("192.0.2.1:6000", "192.0.2.2:7000");
        // 200 is 50 ms late, 300 is there twice, 500 is after a restart, and 450 is out of any order.
        let late = if number == 200 { 50_000 } else { 0 };
        let sequence = match number {
            450 => 20_000,
            500.. => number + 30_000,
            _ => number + 65_400,
        };
        if !matches!(number, 100..=103 | 350) {
            scene.udp(at + late, from, to, &rtp(sequence, 1));
        }
        if number == 300 {
            scene.udp(at + 1000, from, to, &rtp(sequence, 1));
            // Far behind, and before the first.
            scene.udp(at + 2000, from, to, &rtp(sequence - 290, 1));
        }
        let mut back = rtp(number + 65_500, 2);
        if number % 50 == 0 {
            back[1] |= 0x80;
        }
        if number % 70 == 0 {
            back[0] |= 0x20;
            back[171] = 12;
        }
        let jitter = number * 7919 % 3000;
        scene.udp(at + 5000 + jitter, "192.0.2.2:7000", "192.0.2.1:6000", &back);
    }
    let bye = message("BYE sip:b@example.org SIP/2.0", &lines(answered, "CSeq: 2 BYE"), "");
    scene.udp(12_500_000, ALICE, BOB, &bye);
    scene.udp(12_510_000, BOB, ALICE, &message("SIP/2.0 200 OK", &lines(answered, "CSeq: 2 BYE"), ""));
    scene
}

#[test]
fn rtp_in_a_plug_in_has_the_streams_of_voip() {
    if !require_root("rtp_in_a_plug_in_has_the_streams_of_voip") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = folder.path().join("call.pcap");
    let scene = call();
    let frames = scene.len() as u64;
    scene.write(&file).unwrap();
    let mut capture = start(&lab, folder.path(), "rtp");
    let mut worker = capture.workers().remove(0);
    let voip = command(&lab, &["voip"]);
    assert_eq!(replay(&lab, &file, "4x"), frames);
    let mut delivered = 0;
    drain(&capture, &mut worker, frames, |_| delivered += 1);
    let lines = voip.terminate(LIMIT).unwrap().json().unwrap();
    let called = lines.iter().find(|line| line.get("call_id").is_some_and(|id| id == "one@example.com"));
    let streams = called.unwrap_or_else(|| panic!("{lines:?}"))["streams"].as_array().unwrap();

    let state = capture.state().unwrap();
    let found = entries(&state, "rtp", "streams");
    assert_eq!((found.len(), streams.len()), (2, 2), "{found:?}");
    let mut packets = 0;
    for (key, own) in &found {
        let ssrc = format!("0x{:08x}", column(key, "ssrc"));
        let theirs = streams.iter().find(|stream| stream["ssrc"] == ssrc);
        let theirs = theirs.unwrap_or_else(|| panic!("no {ssrc} in {streams:?}"));
        let ends = (address(key, "src", false).to_string(), address(key, "dst", false).to_string());
        assert_eq!((&theirs["src"], &theirs["dst"]), (&ends.0.into(), &ends.1.into()));
        let ports = [network(key, "src_port"), network(key, "dst_port")];
        assert_eq!(ports, ["src_port", "dst_port"].map(|port| column(theirs, port)));
        let number = |field: &str| column(own, field);
        for field in ["packets", "bytes", "duplicate", "out_of_order", "stray", "restarts"] {
            assert_eq!(number(field), column(theirs, field), "{ssrc} {field}: {own} {theirs}");
        }
        let expected = number("expected") + number("highest") - number("base") + 1;
        let lost = expected - (number("packets") - number("duplicate") - number("stray"));
        assert_eq!(
            [expected, lost],
            ["expected", "lost"].map(|field| column(theirs, field)),
            "{ssrc}: {theirs}"
        );
        // To the microsecond, in which `voip` prints them: both are of the same times of the same packets.
        let of_ms = |field: &str| theirs[field].as_f64().unwrap() * 1e6;
        let mean = number("jitter_sum_ns") as f64 / number("jitters") as f64;
        let jitters = [
            (number("jitter16_ns") as f64 / 16.0, "jitter_ms"),
            (mean, "jitter_mean_ms"),
            (number("max_jitter_ns") as f64, "jitter_max_ms"),
        ];
        for (own, field) in jitters {
            assert!((own - of_ms(field)).abs() < 2000.0, "{ssrc} {field}: {own} ns, {theirs}");
        }
        packets += number("packets");
    }
    // The two directions are different, and each of the columns was needed.
    let sums = ["duplicate", "out_of_order", "stray", "restarts", "lost"];
    assert!(sums.iter().all(|field| streams.iter().any(|stream| column(stream, field) > 0)), "{streams:?}");
    let total = capture.close().unwrap().total;
    assert_eq!((total.absorbed, total.analysed, delivered), (packets, frames - packets, frames - packets));
}

#[test]
fn netflow_in_a_plug_in_has_the_flows_of_the_corpus() {
    if !require_root("netflow_in_a_plug_in_has_the_flows_of_the_corpus") {
        return;
    }
    let Some(corpus) = corpus("netflow_in_a_plug_in_has_the_flows_of_the_corpus") else { return };
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = merged(&corpus, folder.path(), &[]).unwrap();
    let object = program_file(folder.path(), "netflow").unwrap();
    let rules = RuleSet::read(repository().join("examples/plugins/netflow.toml")).unwrap();
    let mut capture = open(&lab, KERNEL[0], |builder| {
        builder.plugin("netflow", object).plugin_budget(1_000_000_000).ring_size(64 << 20).rules(rules)
    })
    .unwrap();
    let mut worker = capture.workers().remove(0);
    let export = folder.path().join("flows.json");
    let target = format!("file:{}", export.display());
    let flows =
        command(&lab, &["flows", "--quiet", "--ring-size", "64", "--output-rate", "0", "--export", &target]);
    let sent = replay(&lab, &file, "max");
    drain(&capture, &mut worker, sent, |_| {});
    let lines = flows.terminate(LIMIT).unwrap().json().unwrap();
    let last = lines.last().unwrap();
    assert_eq!(column(last, "analysed"), sent, "{last}");
    let flows = fs::read_to_string(&export).unwrap();
    let flows: Vec<Value> = flows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found = of_plugin(&capture.state().unwrap());
    println!("{sent} packets, {} flows", found.len());
    assert_same(&found, &of_flows(&flows));
}

#[test]
fn rtp_in_a_plug_in_has_the_streams_of_the_corpus() {
    if !require_root("rtp_in_a_plug_in_has_the_streams_of_the_corpus") {
        return;
    }
    let Some(corpus) = corpus("rtp_in_a_plug_in_has_the_streams_of_the_corpus") else { return };
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let file = merged(&corpus, folder.path(), &["voip"]).unwrap();
    let object = program_file(folder.path(), "rtp").unwrap();
    let text = fs::read_to_string(repository().join("examples/plugins/rtp.toml")).unwrap();
    let rules = RuleSet::parse(&text.replace("clock = 8000", "last_type = 127")).unwrap();
    let mut capture = open(&lab, KERNEL[0], |builder| {
        builder.plugin("rtp", object).plugin_budget(1_000_000_000).ring_size(64 << 20).rules(rules)
    })
    .unwrap();
    let mut worker = capture.workers().remove(0);
    let voip = command(&lab, &["voip", "--heuristic", "--ring-size", "64"]);
    let sent = replay(&lab, &file, "max");
    drain(&capture, &mut worker, sent, |_| {});
    let lines = voip.terminate(LIMIT).unwrap().json().unwrap();
    let streams = lines.iter().flat_map(|line| {
        line["streams"].as_array().into_iter().flatten().chain(line.get("ssrc").map(|_| line))
    });
    let mut theirs: BTreeMap<_, Vec<&Value>> = BTreeMap::new();
    for stream in streams {
        let end = |field: &str| stream[field].as_str().unwrap().to_owned();
        let ports = ["src_port", "dst_port"].map(|port| column(stream, port));
        theirs.entry((end("src"), end("dst"), ports, end("ssrc"))).or_default().push(stream);
    }
    let state = capture.state().unwrap();
    let own = entries(&state, "rtp", "streams");
    println!("{sent} packets, {} streams, {} of voip", own.len(), theirs.len());
    assert!(theirs.len() > 20, "{} streams of voip", theirs.len());
    for (key, own) in &own {
        let is_v6 = key["src"].as_str().unwrap()[8..].chars().any(|digit| digit != '0');
        let end = |field| address(key, field, is_v6).to_string();
        let ports = [network(key, "src_port"), network(key, "dst_port")];
        let Some(of) =
            theirs.remove(&(end("src"), end("dst"), ports, format!("0x{:08x}", column(key, "ssrc"))))
        else {
            // `voip` takes three packets without a call for a stream, and no fewer.
            assert!(column(own, "packets") < 3, "voip does not have {key} {own}");
            continue;
        };
        for field in ["packets", "bytes", "duplicate", "out_of_order", "stray", "restarts"] {
            let sum: u64 = of.iter().map(|one| column(one, field)).sum();
            assert_eq!(column(own, field), sum, "{key} {field}: {own} {of:?}");
        }
    }
    assert!(theirs.is_empty(), "only of voip: {theirs:?}");
}
