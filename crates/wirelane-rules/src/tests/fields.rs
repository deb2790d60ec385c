//! Fields of HTTP, SIP and RTP over the corpus: rules match the packets that tshark reports.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wirelane_bpf::evaluate::{NoExact, Packet, evaluate};
use wirelane_bpf::layout::Parsed;
use wirelane_bpf::native;
use wirelane_bpf::rules::{Facts, LiveCounts};

use crate::Room;
use wirelane_bpf::linktype;
use wirelane_testing::packets::{self, corpus, read};
use wirelane_testing::{load, manifest};

/// Packets by their numbers in the capture, from 1.
type Frames = BTreeSet<u64>;

/// A capture, and tshark's results for it.
struct Told {
    id: String,
    packets: Vec<(Parsed, Vec<u8>, u32)>,
    truth: Value,
}

/// The captures of some categories whose results have an object of this name with entries in its list.
fn told(what: &str, categories: &[&str], object: &str, list: &str) -> Option<Vec<Told>> {
    let corpus = corpus(what)?;
    let mut all = Vec::new();
    for line in manifest(&corpus) {
        if !categories.contains(&line["category"].as_str()) || line["truth"].is_empty() {
            continue;
        }
        let mut truth: Value = serde_json::from_slice(&load(&corpus.join(&line["truth"]))).expect("JSON");
        let truth = truth[object].take();
        let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        let packets = some(&truth[list]).then(|| read(&corpus.join(&line["path"]))).flatten();
        let Some(packets) = packets else { continue };
        let parsed = |packet: packets::Packet| {
            let link = linktype::from_number(packet.link);
            (native::parse(link, &packet.data, true), packet.data, packet.wire_len)
        };
        let packets = packets.into_iter().map(parsed).collect();
        all.push(Told { id: line["id"].clone(), packets, truth });
    }
    Some(all)
}

impl Told {
    /// The packets that satisfy these conditions.
    fn hits(&self, conditions: &str) -> Frames {
        let set = super::set(&format!("[[rule]]\nid = 1\n{conditions}\naction = \"drop\"\n"));
        let flat = set.compile("eth0", &[], Room::UNLIMITED).expect("it fits");
        let counts: Vec<LiveCounts> = (0..flat.set.slots).map(|_| LiveCounts::default()).collect();
        let hit = |(number, (parsed, data, wire_len)): (u64, &(Parsed, Vec<u8>, u32))| {
            let facts = Facts { wire_len: *wire_len, ..Facts::default() };
            let packet = Packet { parsed, data, inner: false };
            (evaluate(&flat, &counts, &mut NoExact, packet, &facts).rule_id == 1).then_some(number)
        };
        (1..).zip(&self.packets).filter_map(hit).collect()
    }

    fn list(&self, name: &str) -> impl Iterator<Item = &Value> {
        self.truth[name].as_array().into_iter().flatten()
    }
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

/// A condition that matches other packets than tshark reports, or another number of packets.
type Exception<T> = (&'static str, &'static str, T, &'static str);

const QUOTED: &str = "the others are quoted in ICMP errors, which are no SIP messages";
const FRAGMENT: &str = "of a datagram in two fragments tshark names the last, and we search the first, too";

/// By capture and condition: the packets that the rules match.
const SIP_EXCEPTIONS: &[Exception<&[u64]>] = &[
    ("ipfixprobe--sip", "sip-method = \"INVITE\"", &[1, 2, 3, 4, 5, 8, 9, 11, 13], QUOTED),
    ("ipfixprobe--sip", "sip-from = \"sip:100@1.1.1.1\"", &[1, 2, 3, 4, 5, 6, 8, 9, 11, 13], QUOTED),
    ("ipfixprobe--sip", "sip-to = \"sip:100@1.1.1.1\"", &[1, 2, 3, 4, 5, 6, 8, 9, 11, 13], QUOTED),
    ("pkts--fragmented_udp_sip", "sip-from = \"sip:sipp@10.192.243.79:5060\"", &[1, 2, 3, 4, 5, 6], FRAGMENT),
    (
        "pkts--fragmented_udp_sip",
        "sip-to = \"sip:service@10.108.158.224:5060\"",
        &[1, 2, 3, 4, 5, 6],
        FRAGMENT,
    ),
];

#[test]
fn sip_messages_are_found_by_method_from_and_to() {
    let categories = ["voip", "apps", "decode"];
    let Some(all) = told("fields of SIP", &categories, "voip_tshark", "sip_messages") else { return };
    let (mut conditions, mut exceptions) = (0, 0);
    for told in &all {
        let mut expected = BTreeMap::<String, Frames>::new();
        for message in told.list("sip_messages") {
            let number: u64 = text(message, "frame.number").parse().expect("a number");
            let method = text(message, "Method");
            if !method.is_empty() {
                expected.entry(format!("sip-method = {method:?}")).or_default().insert(number);
            }
            // Addresses that contain this text: others may be longer, with a port at the end.
            for (field, name) in [("sip-from", "from.addr"), ("sip-to", "to.addr")] {
                for part in told.list("sip_messages").map(|other| text(other, name)) {
                    let has = text(message, name).to_ascii_lowercase().contains(&part.to_ascii_lowercase());
                    if has && (1..=100).contains(&part.len()) {
                        expected.entry(format!("{field} = {part:?}")).or_default().insert(number);
                    }
                }
            }
        }
        for (condition, mut frames) in expected {
            let exception = SIP_EXCEPTIONS.iter().find(|(id, one, ..)| *id == told.id && *one == condition);
            if let Some((_, _, found, _)) = exception {
                frames = found.iter().copied().collect();
                exceptions += 1;
            }
            assert_eq!(told.hits(&condition), frames, "{}: {condition}", told.id);
            conditions += 1;
        }
    }
    println!("{} captures, {conditions} conditions", all.len());
    assert_eq!(exceptions, SIP_EXCEPTIONS.len());
    assert!(all.len() >= 25 && conditions > 150, "{} captures, {conditions} conditions", all.len());
}

const AGAIN: &str = "segments come twice, and each packet is searched";
const SEVERAL: &str = "several messages are in one packet, of which the first is found";
const INCOMPLETE: &str = "tshark leaves messages out of which segments are missing";
const BEHIND_CONNECT: &str = "to tshark no HTTP comes behind a CONNECT";
const IN_A_TUNNEL: &str = "it is inside GTP, which takes --inner";
const NO_TARGET: &str = "the request has no target";

/// By capture and condition: the number of packets that the rules match.
const HTTP_EXCEPTIONS: &[Exception<usize>] = &[
    ("suricata--http-connect-http-connect-simple", "http-status = 200", 2, BEHIND_CONNECT),
    ("suricata--http-multiple-cl", "http-method = \"POST\"", 1, SEVERAL),
    ("suricata--http-protocol-nodup", "http-method = \"GET\"", 1, SEVERAL),
    ("suricata--http-protocol-nodup", "http-status = 404", 2, SEVERAL),
    ("suricata--http-range-file", "http-status = 206", 15, INCOMPLETE),
    ("pcap2har--pcapr.net", "http-status = 200", 43, INCOMPLETE),
    ("arkime--http-content-gzip", "http-status = 200", 2, AGAIN),
    ("arkime--http-post-upload", "http-method = \"GET\"", 4, AGAIN),
    ("arkime--http-post-upload", "http-method = \"POST\"", 2, AGAIN),
    ("arkime--http-post-upload", "http-status = 200", 6, AGAIN),
    ("arkime--wireshark-retrans", "http-method = \"POST\"", 16, AGAIN),
    ("arkime--wireshark-retrans", "http-status = 200", 16, AGAIN),
    ("ndpi--http_origin_different_than_host", "http-method = \"GET\"", 0, IN_A_TUNNEL),
    ("ndpi--http_origin_different_than_host", "http-status = 101", 0, IN_A_TUNNEL),
    ("pcapplusplus--4KHttpRequests", "http-method = \"GET\"", 217, INCOMPLETE),
    ("pcapplusplus--4KHttpRequests", "http-method = \"POST\"", 156, INCOMPLETE),
    ("zeek--variant-07-expect_100_cl0", "http-method = \"GET\"", 0, SEVERAL),
    ("zeek--concurrent-range-requests", "http-status = 206", 3, INCOMPLETE),
    ("zeek--ctu-62604-80", "http-method = \"POST\"", 2, AGAIN),
    ("zeek--ctu-62604-80", "http-status = 200", 2, AGAIN),
    ("zeek--http-desync-request-response-5", "http-status = 200", 5, SEVERAL),
    ("zeek--http-filename", "http-method = \"GET\"", 2, AGAIN),
    ("zeek--m57-long-49583-80", "http-method = \"GET\"", 6, AGAIN),
    ("zeek--m57-long-49583-80", "http-status = 206", 6, AGAIN),
    ("zeek--no-uri", "http-method = \"GET\"", 0, NO_TARGET),
    ("zeek--vnd.ms-cab-compressed-multi-conn", "http-method = \"GET\"", 10, AGAIN),
    ("zeek--vnd.ms-cab-compressed-multi-conn", "http-status = 206", 10, AGAIN),
    ("zeek--gap-recovery", "http-status = 200", 10, INCOMPLETE),
];

#[test]
fn http_messages_are_found_by_method_and_status() {
    let Some(all) = told("fields of HTTP", &["http", "apps"], "http_tshark", "requests") else { return };
    let (mut conditions, mut exceptions) = (0, 0);
    for told in &all {
        // tshark assigns a message to the packet of its end, so only numbers are compared.
        let mut expected = BTreeMap::<String, usize>::new();
        for request in told.list("requests") {
            *expected.entry(format!("http-method = {:?}", text(request, "method"))).or_default() += 1;
        }
        for response in told.list("responses") {
            let status = response["status"].as_u64().expect("a number");
            // Other values are not valid statuses, and no rule can test for them.
            if (100..600).contains(&status) {
                *expected.entry(format!("http-status = {status}")).or_default() += 1;
            }
        }
        let mut classes = BTreeMap::<String, Frames>::new();
        for (condition, mut packets) in expected {
            let exception = HTTP_EXCEPTIONS.iter().find(|(id, one, ..)| *id == told.id && *one == condition);
            if let Some((_, _, found, _)) = exception {
                packets = *found;
                exceptions += 1;
            }
            let found = told.hits(&condition);
            assert_eq!(found.len(), packets, "{}: {condition}: {found:?}", told.id);
            conditions += 1;
            if let Some(status) = condition.strip_prefix("http-status = ") {
                classes.entry(format!("http-status = \"{}xx\"", &status[..1])).or_default().extend(found);
            }
        }
        for (condition, frames) in classes {
            assert_eq!(told.hits(&condition), frames, "{}: {condition}", told.id);
        }
    }
    println!("{} captures, {conditions} conditions", all.len());
    assert_eq!(exceptions, HTTP_EXCEPTIONS.len());
    assert!(all.len() >= 150 && conditions > 250, "{} captures, {conditions} conditions", all.len());
}

#[test]
fn rtp_packets_are_found_by_payload_type() {
    let Some(all) = told("fields of RTP", &["voip", "apps"], "voip_tshark", "rtp_streams_heuristic") else {
        return;
    };
    let (mut streams, mut packets) = (0, 0);
    for told in &all {
        for line in told.list("rtp_streams_heuristic") {
            // Start, end, source, port, destination, port, SSRC, payload, packets, and further columns.
            let words: Vec<&str> = line.as_str().unwrap_or_default().split_whitespace().collect();
            let [_, _, src, src_port, dst, dst_port, _, payload, number, ..] = words[..] else { continue };
            let (Some(kind), Ok(number)) = (payload_type(payload), number.parse::<usize>()) else { continue };
            let stream = format!(
                "src = {src:?}\ndst = {dst:?}\nsrc-port = {src_port}\ndst-port = {dst_port}\nprotocol = \"udp\""
            );
            let found = |kind: u8| told.hits(&format!("{stream}\nrtp-type = {kind}")).len();
            assert_eq!(found(kind), number, "{}: {line}", told.id);
            assert_eq!(found(kind ^ 1), 0, "{}: {line}", told.id);
            streams += 1;
            packets += number;
        }
    }
    println!("{streams} streams, {packets} packets");
    assert!(streams >= 13 && packets > 9000, "{streams} streams, {packets} packets");
}

/// The payload type for tshark's name of a payload, if the name implies one (RFC 3551, 6).
fn payload_type(name: &str) -> Option<u8> {
    match name {
        "g711U" => Some(0),
        "GSM" => Some(3),
        "g711A" => Some(8),
        _ => name.strip_prefix("RTPType-")?.parse().ok(),
    }
}
