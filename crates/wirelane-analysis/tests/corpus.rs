//! The corpus of real captures as flows: every packet is in exactly one, and the sums by addresses and ports are those
//! of tshark.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_analysis::flows::{CacheSettings, FlowCache, FlowReader, FlowRecord, Timeouts, community_id};

/// Folder of the corpus; `None` after a message that the test is skipped.
fn corpus(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WIRELANE_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"), PathBuf::from);
    if folder.join("MANIFEST.tsv").is_file() {
        return Some(folder);
    }
    println!("left out: {test} (no corpus)");
    None
}

/// A capture of the manifest: its id, category, path and ground truth.
struct Capture {
    id: String,
    category: String,
    path: PathBuf,
    truth: PathBuf,
}

fn captures(corpus: &Path) -> Vec<Capture> {
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).unwrap();
    let capture = |line: &str| {
        let column: Vec<&str> = line.split('\t').collect();
        let (path, truth) = (corpus.join(column[1]), corpus.join(column[14]));
        Capture { id: column[0].into(), category: column[2].into(), path, truth }
    };
    manifest.lines().skip(1).map(capture).collect()
}

fn json(path: &Path) -> Value {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        bytes = plain;
    }
    serde_json::from_slice(&bytes).unwrap()
}

/// Flows of a capture, and the packets and wire bytes that were read.
fn flows(path: &Path, settings: CacheSettings, inner: bool) -> (Vec<FlowRecord>, u64, u64) {
    let mut cache = FlowCache::new(settings);
    let mut reader = FlowReader::new(inner);
    let (mut packets, mut bytes, mut flows) = (0, 0, Vec::new());
    // A damaged capture counts up to the damage.
    if let Ok(mut source) = FileSource::open(path, FileOptions::as_written()) {
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            for record in batch {
                let (ip, packet) = reader.read(&record, record.header().ts_ns);
                cache.packet(ip, &packet);
                packets += 1;
                bytes += u64::from(record.wire_len());
                flows.append(cache.finished());
            }
        }
    }
    while cache.flush() {
        flows.append(cache.finished());
    }
    flows.append(cache.finished());
    (flows, packets, bytes)
}

type Sums = BTreeMap<String, (u64, u64)>;

/// Packets and wire bytes by "proto source sport destination dport" of TCP and UDP, in the notation of tshark.
fn sums(flows: &[FlowRecord]) -> Sums {
    let mut sums = Sums::new();
    for flow in flows {
        let proto = match flow.key.proto {
            6 => "tcp",
            17 => "udp",
            _ => continue,
        };
        if let (Some(from), Some(to), false) =
            (flow.source(), flow.destination(), flow.key.src_port == 0 && flow.key.dst_port == 0)
        {
            let key = format!("{proto} {from} {} > {to} {}", flow.source_port(), flow.destination_port());
            let sum = sums.entry(key).or_default();
            (sum.0, sum.1) = (sum.0 + flow.packets(), sum.1 + flow.wire_bytes());
        }
    }
    sums
}

fn expected(truth: &Value) -> Sums {
    let mut sums = Sums::new();
    for flow in truth["flows_outermost_5tuple"].as_array().into_iter().flatten() {
        let text = |name: &str| flow[name].as_str().unwrap();
        let ports = !text("sport").is_empty() && (text("sport"), text("dport")) != ("0", "0");
        if matches!(text("proto"), "tcp" | "udp") && ports {
            let key = format!(
                "{} {} {} > {} {}",
                text("proto"),
                text("src"),
                text("sport"),
                text("dst"),
                text("dport")
            );
            let sum = sums.entry(key).or_default();
            sum.0 += flow["packets"].as_u64().unwrap();
            sum.1 += flow["bytes"].as_u64().unwrap();
        }
    }
    sums
}

/// Battery: I10
#[test]
fn flows_of_the_corpus_come_to_what_was_read_and_to_what_tshark_found() {
    let Some(corpus) = corpus("flows_of_the_corpus_come_to_what_was_read_and_to_what_tshark_found") else {
        return;
    };
    let (mut compared, mut same, mut tuples, mut all) = (0, 0, 0, 0);
    let mut differ = Vec::new();
    for capture in captures(&corpus) {
        // Little memory, so that many captures also cause evictions.
        let (little, packets, bytes) =
            flows(&capture.path, CacheSettings { memory: 0, ..CacheSettings::default() }, false);
        let (flows, _, _) = flows(&capture.path, CacheSettings::default(), false);
        for flows in [&little, &flows] {
            assert_eq!(flows.iter().map(FlowRecord::packets).sum::<u64>(), packets, "{}", capture.id);
            assert_eq!(flows.iter().map(FlowRecord::wire_bytes).sum::<u64>(), bytes, "{}", capture.id);
        }
        all += packets;
        assert_eq!(sums(&little), sums(&flows), "{}", capture.id);
        assert!(flows.iter().all(|flow| community_id(&flow.key).is_some() == flow.source().is_some()));
        if capture.category == "malformed" {
            continue;
        }
        let truth = json(&capture.truth);
        if truth.get("flows_outermost_5tuple").is_none() {
            continue;
        }
        let (ours, theirs) = (sums(&flows), expected(&truth));
        compared += 1;
        if ours == theirs {
            same += 1;
            tuples += ours.len();
        } else {
            differ.push(capture.id);
        }
    }
    println!("{all} packets; {same} of {compared} captures are the same, with {tuples} tuples");
    assert_eq!(differ, DIFFERENT, "captures whose flows are not those that tshark has found");
    assert!(all > 190_000 && same > 500 && tuples > 4900);
}

/// Captures whose tuples differ from tshark's, with reasons.
const DIFFERENT: [&str; 5] = [
    // IPv6 in IPv6: the ground truth pairs the outer addresses with the inner ports. The second has shims, too.
    "akvorado--srv6-end-dt6",
    "arkime--arkime_synthetic",
    "zeek--6in6-tunnel-change",
    "zeek--6in6",
    "zeek--6in6in6",
];

/// Comparison with the flows of nfpcapd for the same captures with the same timeouts: 300 and 60 seconds.
/// Battery: I10
#[test]
fn flows_of_the_corpus_are_those_of_nfpcapd() {
    let Some(corpus) = corpus("flows_of_the_corpus_are_those_of_nfpcapd") else { return };
    let second = 1_000_000_000;
    let timeouts = Timeouts { active_ns: 300 * second, idle_ns: 60 * second, ended_ns: 60 * second };
    let (mut compared, mut same_sums, mut same_number, mut flows_there) = (0, 0, 0, 0);
    let (mut sums_differ, mut numbers_differ) = (Vec::new(), Vec::new());
    for capture in captures(&corpus) {
        if !["apps", "voip", "http"].contains(&capture.category.as_str()) {
            continue;
        }
        let truth = json(&capture.truth);
        let theirs = truth["nfdump"]["flows"].as_array();
        let Some(theirs) = theirs.filter(|flows| !flows.is_empty()) else { continue };
        let (flows, _, _) =
            flows(&capture.path, CacheSettings { timeouts, ..CacheSettings::default() }, false);
        let (mut ours, mut expected) = (Sums::new(), Sums::new());
        let (mut number, mut there) = (0, 0);
        for flow in flows.iter().filter(|flow| matches!(flow.key.proto, 6 | 17)) {
            let (Some(from), Some(to)) = (flow.source(), flow.destination()) else { continue };
            let proto = if flow.key.proto == 6 { "TCP" } else { "UDP" };
            let key = format!("{proto} {from} {} {to} {}", flow.source_port(), flow.destination_port());
            let sum = ours.entry(key).or_default();
            (sum.0, sum.1) = (sum.0 + flow.packets(), sum.1 + flow.bytes());
            number += 1;
        }
        for flow in theirs {
            let text = |name: &str| flow[name].as_str().unwrap();
            if !matches!(text("proto"), "TCP" | "UDP") {
                continue;
            }
            let key = ["proto", "src", "sport", "dst", "dport"].map(text).join(" ");
            let sum = expected.entry(key).or_default();
            let count = |name: &str| text(name).parse::<u64>().unwrap_or(1 << 40);
            (sum.0, sum.1) = (sum.0 + count("packets"), sum.1 + count("bytes"));
            there += 1;
        }
        compared += 1;
        flows_there += there;
        if ours == expected {
            same_sums += 1
        } else {
            sums_differ.push(capture.id.clone())
        }
        if number == there {
            same_number += 1
        } else {
            numbers_differ.push((capture.id.clone(), number, there))
        }
    }
    println!(
        "{compared} captures, {flows_there} flows: {same_sums} with the same sums, {same_number} of as many"
    );
    assert_eq!(sums_differ, OTHER_SUMS);
    assert_eq!(numbers_differ, OTHER_NUMBERS.map(|(id, ours, theirs)| (id.to_owned(), ours, theirs)));
    assert!(same_sums > 285 && flows_there > 2000);
}

/// A packet that is not segmented yet has no length field, and nfpcapd does not count it; or a fragment is missing
/// there.
const OTHER_SUMS: [&str; 2] = ["tcpflow--bug7", "pkts--fragmented_udp_sip"];

/// Captures with another number of flows: here, and in nfpcapd.
const OTHER_NUMBERS: [(&str, usize, usize); 12] = [
    // nfpcapd makes every DNS packet a flow of its own, and checks for idle flows only now and then, so that some
    // continue after more than a minute.
    ("ipfixprobe--mixed", 36, 38),
    ("pcap2har--dns_requests", 19, 22),
    ("arkime--long-session", 4, 3),
    ("ndpi--netease_games", 10, 12),
    ("pkts--base_usage_3_streams", 14, 18),
    ("arkime--socks5-http-302", 4, 3),
    // A flow of 5 minutes, which is the active timeout: here, age is counted in steps of a 32nd.
    ("pcapplusplus--4KHttpRequests", 133, 132),
    ("tcpflow--airsnort-linux-browser_page_load", 6, 8),
    // Times that go back by more than the idle timeout; nfpcapd's durations are negative.
    ("suricata--sip-method.sip", 194, 394),
    // A port that is reused after a RST: for nfpcapd the same flow. In the second also a flow of 5 minutes.
    ("ndpi--rtsp", 15, 14),
    ("ndpi--sip", 19, 16),
    ("zeek--wireshark", 18, 14),
];

/// Inside tunnels: all kinds occur, the sums are the same, and both directions are paired.
#[test]
fn flows_inside_tunnels_come_to_what_was_read() {
    let Some(corpus) = corpus("flows_inside_tunnels_come_to_what_was_read") else { return };
    let mut kinds = BTreeMap::new();
    let mut both = 0;
    for capture in captures(&corpus).iter().filter(|capture| capture.category == "encap") {
        let settings = CacheSettings { biflow: true, ..CacheSettings::default() };
        let (flows, packets, bytes) = flows(&capture.path, settings, true);
        assert_eq!(flows.iter().map(FlowRecord::packets).sum::<u64>(), packets, "{}", capture.id);
        assert_eq!(flows.iter().map(FlowRecord::wire_bytes).sum::<u64>(), bytes, "{}", capture.id);
        for flow in &flows {
            *kinds.entry(flow.key.tunnel).or_insert(0) += 1;
            both += u32::from(flow.reverse.is_some() && flow.key.tunnel != 0);
            assert!(flow.key.tunnel != 0 || flow.key.tunnel_id == 0);
        }
    }
    println!("flows by kind of tunnel: {kinds:?}; {both} of both directions");
    assert!((0..=5).all(|kind| kinds.contains_key(&kind)) && both > 30);
}
