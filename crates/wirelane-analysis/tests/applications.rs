//! Application protocols of the packets of the corpus, detected in their first bytes: every name is also given by
//! tshark, except for those below, and most of tshark's names are found.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_analysis::flows::{FlowReader, applications};

const AGAIN: &str = "sent again or out of order: tshark looks at a segment once";
const SYNTHETIC: &str = "conversations that were made up over the same addresses: tshark takes the later for parts of the earlier";
const PORT: &str = "tshark takes the port's word: HTTP is what the bytes say";

/// Names that differ from tshark's: capture, name, packets, reason.
const AT_ODDS: [(&str, &str, u64, &str); 26] = [
    ("ipfixprobe--rtsp", "RTSP", 2, AGAIN),
    ("arkime--80211http", "HTTP", 1, AGAIN),
    ("ndpi--ocs", "HTTP", 1, AGAIN),
    ("arkime--arkime_synthetic", "HTTP2", 1, "at the port of TLS, which is as far as tshark looks"),
    ("arkime--arkime_synthetic", "QUIC", 1, SYNTHETIC),
    ("arkime--arkime_synthetic", "RDP", 1, SYNTHETIC),
    ("arkime--arkime_synthetic", "SIP", 1, SYNTHETIC),
    ("arkime--arkime_synthetic", "SMBv1", 3, SYNTHETIC),
    ("arkime--arkime_synthetic", "SMBv23", 1, SYNTHETIC),
    ("arkime--arkime_synthetic", "TLS", 5, SYNTHETIC),
    // The only wrong one.
    (
        "suricata--http-evader-http-evader-486",
        "SIP",
        1,
        "made to deceive: a response by HTTP with a status line of SIP before its own",
    ),
    ("arkime--http-content-gzip", "HTTP", 1, AGAIN),
    ("arkime--http-post-upload", "HTTP", 5, AGAIN),
    ("arkime--wireshark-retrans", "HTTP", 4, AGAIN),
    ("ndpi--http_on_sip_port", "HTTP", 2, PORT),
    ("pcapplusplus--4KHttpRequests", "HTTP", 4, AGAIN),
    ("tcpflow--test5-lines-randomized2", "HTTP", 1, AGAIN),
    ("wireshark--http-ooo2", "HTTP", 3, AGAIN),
    ("zeek--ctu-62604-80", "HTTP", 1, AGAIN),
    ("zeek--http-filename", "HTTP", 1, AGAIN),
    ("zeek--http-single-conn-22", "HTTP", 2, PORT),
    ("zeek--http-to-ssh", "HTTP", 1, PORT),
    ("zeek--zeek-image-post-1080-8000-x", "HTTP", 2, PORT),
    (
        "zeek--modbus-and-non-modbus-p502",
        "RDP",
        1,
        "a connection request with RDP's cookie, at the port of Modbus, which is as far as tshark looks",
    ),
    ("zeek--http-on-port-5432", "HTTP", 2, PORT),
    ("ndpi--rtsp", "RTSP", 101, AGAIN),
];

/// tshark's name for one of ours.
fn of_tshark(name: &str) -> String {
    match name {
        "SMBv1" => "smb".into(),
        "SMBv23" => "smb2".into(),
        "PostgreSQL" => "pgsql".into(),
        other => other.to_lowercase(),
    }
}

/// Packets of a capture by detected name.
fn named(path: &Path) -> BTreeMap<&'static str, u64> {
    let names: BTreeMap<u8, &str> = applications().collect();
    let mut reader = FlowReader::new(false);
    let mut found = BTreeMap::new();
    if let Ok(mut source) = FileSource::open(path, FileOptions::as_written()) {
        while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
            for record in batch {
                let (_, packet) = reader.read(&record, record.header().ts_ns);
                if packet.application != 0 {
                    *found.entry(names[&packet.application]).or_default() += 1;
                }
            }
        }
    }
    found
}

/// Frames of a capture in which tshark found this protocol.
fn seen_by_tshark(truth: &Value, protocol: &str) -> u64 {
    let Some(chains) = truth["frame_protocols"].as_object() else { return 0 };
    let has = |chain: &String| chain.split(':').any(|one| one == protocol);
    chains.iter().filter(|(chain, _)| has(chain)).filter_map(|(_, frames)| frames.as_u64()).sum()
}

fn truth(path: &Path) -> Value {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        bytes = plain;
    }
    serde_json::from_slice(&bytes).unwrap()
}

/// Battery: I10
#[test]
fn names_are_those_of_tshark() {
    let corpus = std::env::var_os("WIRELANE_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"), PathBuf::from);
    let Ok(manifest) = fs::read_to_string(corpus.join("MANIFEST.tsv")) else {
        println!("left out: names_are_those_of_tshark (no corpus)");
        return;
    };
    let mut sums: BTreeMap<&str, (u64, u64)> =
        applications().take_while(|(number, _)| *number < 65).map(|(_, name)| (name, (0, 0))).collect();
    let mut false_names = Vec::new();
    for line in manifest.lines().skip(1) {
        let column: Vec<&str> = line.split('\t').collect();
        let truth = truth(&corpus.join(column[14]));
        // There is no tshark result for damaged captures.
        if truth["frame_protocols"].is_null() {
            continue;
        }
        let found = named(&corpus.join(column[1]));
        for (name, (ours, theirs)) in &mut sums {
            let frames = seen_by_tshark(&truth, &of_tshark(name));
            let packets = found.get(name).copied().unwrap_or(0);
            *ours += packets;
            *theirs += frames;
            if packets > frames {
                false_names.push((column[0].to_owned(), *name, packets - frames));
            }
        }
    }
    for (name, (ours, theirs)) in &sums {
        println!("{name}: {ours} packets; tshark sees it in {theirs} frames");
    }
    let packets: u64 = sums.values().map(|(ours, _)| ours).sum();
    let at_odds: u64 = false_names.iter().map(|(_, _, packets)| packets).sum();
    println!("{packets} packets have a name; at odds with tshark are {at_odds}, each explained");
    let explained: Vec<_> =
        AT_ODDS.iter().map(|(capture, name, packets, _)| (capture.to_string(), *name, *packets)).collect();
    assert_eq!(false_names, explained);
    assert!(packets > 4000, "{packets}");
    // Detection works at the start of a conversation, and mostly not in later packets. For these protocols it finds
    // nearly all.
    for name in ["BGP", "DHCP", "DNS", "MDNS", "SIP", "SMBv23", "SSDP", "STUN"] {
        let (ours, theirs) = sums[name];
        assert!(10 * ours >= 8 * theirs, "{name}: {ours} of {theirs}");
    }
}
