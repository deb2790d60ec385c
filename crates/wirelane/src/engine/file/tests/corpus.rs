//! Every capture of the corpus against its ground truth.

use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_testing::{load, manifest};

use super::{AS_WRITTEN, Got, read};
use crate::error::Error;

/// Our result for a capture where the ground truth's readers differ from each other or from us.
struct Exception {
    id: &'static str,
    packets: usize,
    reason: &'static str,
}

const ONE_SNAP_LENGTH: &str =
    "libpcap reads one snap length per file, this has several; capinfos reads on, and so do we";
const UNKNOWN_LINK: &str = "capinfos does not know the link type; tcpdump counts, and so do we";

const EXCEPTIONS: &[Exception] = &[
    Exception { id: "gopacket--test200", packets: 0, reason: ONE_SNAP_LENGTH },
    Exception { id: "pcapplusplus--GrePackets", packets: 7, reason: ONE_SNAP_LENGTH },
    Exception { id: "pcapplusplus--gtp", packets: 7, reason: ONE_SNAP_LENGTH },
    Exception { id: "zeek--gap-data-missing", packets: 18, reason: ONE_SNAP_LENGTH },
    Exception { id: "zeek--modify-request", packets: 17, reason: ONE_SNAP_LENGTH },
    Exception { id: "pcapplusplus--too_many_interfaces", packets: 1, reason: ONE_SNAP_LENGTH },
    Exception { id: "tcpdump--dsa-high-vid", packets: 4, reason: UNKNOWN_LINK },
    Exception { id: "tcpdump--edsa-high-vid", packets: 4, reason: UNKNOWN_LINK },
    Exception { id: "tcpdump--frf16_magic_ie-oobr", packets: 1, reason: UNKNOWN_LINK },
    Exception { id: "tcpdump--hoobr_juniper3", packets: 1, reason: UNKNOWN_LINK },
    Exception { id: "tcpdump--vtp_asan-2", packets: 1, reason: UNKNOWN_LINK },
];

/// End of each damaged capture: packets before the damage, offset, and a word of the reason.
const DAMAGED: &[(&str, usize, u64, &str)] = &[
    // tcpdump and capinfos: a 587333632-byte packet.
    ("pkts--cool", 0, 24, "587333632"),
    // Both: cut in a packet's header.
    ("dpkt--truncated_dns_2", 1, 240, "16 bytes are needed, 7 are there"),
    ("ndpi--fuzz-2021-10-13", 1, 237, "16 bytes are needed, 2 are there"),
    // Both: unsupported versions.
    ("libpcap--pcapng-invalid-vers-1", 0, 0, "version 0.1"),
    ("libpcap--pcapng-invalid-vers-2", 0, 0, "version 1.1"),
    // tcpdump: lengths do not match; capinfos: the option is too long.
    ("libpcap--shb-option-too-long", 0, 0, "length 52 at its start and 808464432 at its end"),
];

/// `"1186516786.703072"` as nanoseconds and the nanoseconds of one unit of its last digit.
fn nanoseconds(text: &str) -> Option<(u64, u64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let unit = 10u64.pow(9u32.checked_sub(fraction.len() as u32)?);
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    Some((seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction * unit, unit))
}

/// Compares the packets with capinfos: bytes, first and last time.
fn compare_with_capinfos(id: &str, packets: &[Got], capinfos: &Value, wrong: &mut Vec<String>) {
    let field = |name: &str| capinfos[name].as_str().unwrap_or("n/a");
    if let Ok(bytes) = field("data_size").parse::<u64>() {
        let ours = packets.iter().map(|p| u64::from(p.wire_len)).sum::<u64>();
        if ours != bytes {
            wrong.push(format!("{id}: {ours} bytes, capinfos has {bytes}"));
        }
    }
    let times = || packets.iter().map(|packet| packet.ts_ns);
    for (name, ours) in [("start", times().min()), ("end", times().max())] {
        if let (Some((theirs, unit)), Some(ours)) = (nanoseconds(field(name)), ours)
            && ours / unit != theirs / unit
        {
            wrong.push(format!("{id}: {name} {ours}, capinfos has {theirs}"));
        }
    }
}

/// Battery: I1, I9
#[test]
fn every_capture_has_the_packets_of_its_ground_truth() {
    let Some(corpus) = super::corpus("packet counts of the corpus") else { return };
    let captures = manifest(&corpus);
    let (mut seen, mut wrong, mut excepted) = (0, Vec::new(), 0);
    for capture in &captures {
        let id = capture["id"].as_str();
        let bytes = load(&corpus.join(&capture["path"]));
        let truth: Value =
            serde_json::from_slice(&load(&corpus.join(&capture["truth"]))).expect("truth is JSON");
        let started = Instant::now();
        let (packets, error) = match read(&bytes, AS_WRITTEN) {
            Ok(outcome) => (outcome.packets, outcome.error),
            Err(error) => (Vec::new(), Some(error)),
        };
        assert!(started.elapsed() < Duration::from_secs(60), "{id}: took {:?}", started.elapsed());

        let by_tcpdump = truth["tcpdump_count"]["packets"].as_u64().unwrap_or(0) as usize;
        let tcpdump_ended_well = truth["tcpdump_count"]["exit"] == 0;
        match EXCEPTIONS.iter().find(|exception| exception.id == id) {
            Some(exception) => {
                excepted += 1;
                let same = capture["packets_tcpdump"] == capture["packets_capinfos"];
                assert!(!same || !tcpdump_ended_well, "{id} needs no exception");
                assert_eq!(packets.len(), exception.packets, "{id}: {}", exception.reason);
                assert!(error.is_none(), "{id}: {error:?}");
            }
            None if packets.len() != by_tcpdump || error.is_some() == tcpdump_ended_well => {
                wrong.push(format!("{id}: {} packets, {by_tcpdump} expected; {error:?}", packets.len()));
            }
            None => {}
        }
        match (&error, DAMAGED.iter().find(|(damaged, ..)| *damaged == id)) {
            (None, None) => {}
            (
                Some(Error::Pcapng(wirelane_pcapng::Error::CaptureFile { offset, reason, .. })),
                Some((_, before, at, word)),
            ) => {
                assert_eq!((packets.len(), *offset), (*before, *at), "{id}: {reason}");
                assert!(reason.contains(word), "{id}: {reason}");
            }
            (error, expected) => wrong.push(format!("{id}: {error:?}, expected {expected:?}")),
        }
        // For fuzzed packets, capinfos subtracts ATM headers from lengths and wraps times beyond 32 bits.
        let comparable = capture["category"] != "malformed";
        if comparable && truth["capinfos"]["packets"] == packets.len().to_string().as_str() {
            compare_with_capinfos(id, &packets, &truth["capinfos"], &mut wrong);
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), captures.len(), wrong.join("\n"));
    assert_eq!(excepted, EXCEPTIONS.len());
    assert!(seen > 650, "only {seen} captures were held against capinfos");
}
