//! Fields of HTTP, SIP and RTP over the corpus: rules find the packets in which tshark has found them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wirelane_datapath::judge::{NoPrecise, Packet, judge};
use wirelane_datapath::layout::Parsed;
use wirelane_datapath::native;
use wirelane_datapath::rules::{Facts, LiveCounts};

use crate::engine::file::tests::corpus::{load, manifest};
use crate::linktype;
use crate::rules::Room;
use crate::testing::packets::{self, corpus, read};

/// Packets by their numbers in the capture, from 1.
type Frames = BTreeSet<u64>;

/// A capture, and what tshark says of it.
struct Told {
    id: String,
    packets: Vec<(Parsed, Vec<u8>, u32)>,
    truth: Value,
}

/// Those of some categories that have an object of this name with something in its list.
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
            (judge(&flat, &counts, &mut NoPrecise, packet, &facts).rule_id == 1).then_some(number)
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

/// Values of a field with the packets that have them, as rules find them and as they are told.
fn compare(
    told: &Told,
    values: BTreeMap<String, Frames>,
    condition: impl Fn(&str) -> String,
) -> Vec<(String, Frames, Frames)> {
    let differ = |(value, expected): (String, Frames)| {
        let found = told.hits(&condition(&value));
        (found != expected).then_some((value, found, expected))
    };
    values.into_iter().filter_map(differ).collect()
}

#[test]
fn sip_messages_are_found_by_method_from_and_to() {
    let Some(all) = told("fields of SIP", &["voip", "apps", "decode"], "voip_tshark", "sip_messages") else { return };
    for told in &all {
        let frame = |message: &Value| text(message, "frame.number").parse::<u64>().expect("a number");
        let mut methods = BTreeMap::<String, Frames>::new();
        for message in told.list("sip_messages") {
            if !text(message, "Method").is_empty() {
                methods.entry(text(message, "Method").to_owned()).or_default().insert(frame(message));
            }
        }
        for (value, found, expected) in compare(told, methods, |method| format!("sip-method = {method:?}")) {
            println!("DIFF {} method {value}: found {found:?} expected {expected:?}", told.id);
        }
        for (field, name) in [("sip-from", "from.addr"), ("sip-to", "to.addr")] {
            let mut values = BTreeMap::<String, Frames>::new();
            for message in told.list("sip_messages") {
                let value = text(message, name);
                if !value.is_empty() && value.len() <= 100 {
                    values.entry(value.to_owned()).or_default();
                }
            }
            for (value, frames) in &mut values {
                let has = |message: &&Value| text(message, name).to_ascii_lowercase().contains(&value.to_ascii_lowercase());
                frames.extend(told.list("sip_messages").filter(has).map(frame));
            }
            for (value, found, expected) in compare(told, values, |text| format!("{field} = {text:?}")) {
                println!("DIFF {} {field} {value}: found {found:?} expected {expected:?}", told.id);
            }
        }
    }
    println!("{} captures", all.len());
}

#[test]
fn http_messages_are_found_by_method_and_status() {
    let Some(all) = told("fields of HTTP", &["http", "apps"], "http_tshark", "requests") else { return };
    let mut same = 0;
    for told in &all {
        let frame = |message: &Value| message["frame"].as_u64().expect("a number");
        let mut methods = BTreeMap::<String, Frames>::new();
        for request in told.list("requests") {
            methods.entry(text(request, "method").to_owned()).or_default().insert(frame(request));
        }
        let mut differ = compare(told, methods, |method| format!("http-method = {method:?}"));
        let mut classes = BTreeMap::<String, Frames>::new();
        for response in told.list("responses") {
            let class = response["status"].as_u64().unwrap_or(0) / 100;
            classes.entry(format!("{class}xx")).or_default().insert(frame(response));
        }
        differ.extend(compare(told, classes, |class| format!("http-status = {class:?}")));
        same += usize::from(differ.is_empty());
        for (value, found, expected) in differ {
            println!("DIFF {} {value}: found {found:?} expected {expected:?}", told.id);
        }
    }
    println!("{} captures, {same} same", all.len());
}

#[test]
fn rtp_packets_are_found_by_payload_type() {
    let Some(all) = told("fields of RTP", &["voip", "apps"], "voip_tshark", "rtp_streams_heuristic") else { return };
    let mut streams = 0;
    for told in &all {
        for line in told.list("rtp_streams_heuristic") {
            let words: Vec<&str> = line.as_str().unwrap_or_default().split_whitespace().collect();
            let [_, _, src, src_port, dst, dst_port, _, payload, packets, ..] = words[..] else { continue };
            let (kind, Ok(packets)) = (payload_type(payload), packets.parse::<usize>()) else { continue };
            let Some(kind) = kind else { continue };
            let found = told.hits(&format!(
                "src = {src:?}\ndst = {dst:?}\nsrc-port = {src_port}\ndst-port = {dst_port}\nprotocol = \"udp\"\nrtp-type = {kind}"
            ));
            streams += 1;
            if found.len() != packets { println!("DIFF {} {line}: {}", told.id, found.len()); }
        }
    }
    println!("{streams} streams");
}

/// What tshark's names mean that mean one (RFC 3551, 6).
fn payload_type(name: &str) -> Option<u8> {
    match name {
        "g711U" => Some(0),
        "GSM" => Some(3),
        "g711A" => Some(8),
        _ => name.strip_prefix("RTPType-")?.parse().ok(),
    }
}
