//! Every packet of the corpus through both compilations of the parser, whole and cut at every length.

use crate::captures::{Packet, captures, corpus, packets};
use crate::guarded::Guarded;
use crate::probe::{Found, LONGEST, Probe, SHORTEST};
use wirelane_bpf::layout::{NO_OFFSET, Parsed, RecordHeader, flags};
use wirelane_bpf::native;

const SEED: u32 = 0x5eed;

/// The result of the native compilation, in the format of the kernel's probe.
fn native_found(packet: &Packet, data: &[u8], follow: bool) -> Found {
    let parsed = native::parse(packet.link, data, follow);
    let mut record = RecordHeader::default();
    native::fill_record(&mut record, &parsed, true, SEED);
    Found {
        parsed,
        record,
        outer_hash: native::flow_hash(&parsed.outer, SEED),
        packet_hash: native::packet_hash(&parsed, true, SEED),
    }
}

/// Checks the invariants of every result, whatever the packet.
fn check(parsed: &Parsed, data: &[u8], follow: bool, context: &str) {
    assert_eq!(parsed.pad, [0, 0], "{context}: scratch is left behind");
    let tunnel = parsed.flags & flags::TUNNEL != 0;
    assert!(follow || !tunnel, "{context}: a tunnel was entered unasked");
    assert!(tunnel || parsed.inner == Default::default(), "{context}: inner headers without a tunnel");
    for ip in [&parsed.outer, &parsed.inner] {
        for offset in [ip.l3_off, ip.l4_off, ip.payload_off] {
            assert!(
                offset == NO_OFFSET || usize::from(offset) <= data.len(),
                "{context}: an offset of {offset} in {} bytes",
                data.len()
            );
        }
    }
}

#[test]
fn kernel_and_native_agree_on_every_packet() {
    let what = "kernel and native on the corpus";
    let Some(corpus) = corpus(what) else { return };
    let Some(probe) = Probe::load(what) else { return };
    let mut guarded = Guarded::new(1 << 20);
    let (mut compared, mut native_only) = (0u32, 0u32);
    for capture in captures(&corpus) {
        for (number, packet) in packets(&capture.path).iter().enumerate() {
            // A record longer than any packet is from a hostile file; its first bytes parse like the whole.
            let data = &packet.data[..packet.data.len().min(1 << 20)];
            for follow in [true, false] {
                let context = format!("{} packet {} follow {follow}", capture.id, number + 1);
                let native = native_found(packet, guarded.place(data), follow);
                check(&native.parsed, data, follow, &context);
                if (SHORTEST..=LONGEST).contains(&data.len()) && packet.link.is_of_devices() {
                    let kernel = probe.parse(packet.link, data, follow, SEED);
                    assert_eq!(kernel, native, "{context}: kernel left, native right");
                    compared += 1;
                } else {
                    native_only += 1;
                }
            }
        }
    }
    println!(
        "{compared} results of kernel and native are equal; {native_only} native only, for their length or link type"
    );
    assert!(compared > 300_000, "the corpus has 200,000 packets, and {compared} results were compared");
}

/// Packets of all categories, a few of each capture, cut at 0 to 128 bytes.
/// Battery: I2
#[test]
fn every_truncation_has_one_result() {
    let what = "truncation sweep";
    let Some(corpus) = corpus(what) else { return };
    let probe = Probe::load("kernel side of the truncation sweep");
    let mut guarded = Guarded::new(4096);
    let (mut results, mut in_kernel) = (0u32, 0u32);
    for capture in captures(&corpus).iter().filter(|capture| capture.category != "load") {
        for (number, packet) in packets(&capture.path).iter().enumerate().step_by(37).take(3) {
            let whole = native::parse(packet.link, &packet.data[..packet.data.len().min(4096)], true);
            let kernel = probe.as_ref().filter(|_| packet.link.is_of_devices());
            for length in 0..=packet.data.len().min(128) {
                let data = guarded.place(&packet.data[..length]);
                let context = format!("{} packet {} cut at {length}", capture.id, number + 1);
                let native = native_found(packet, data, true);
                check(&native.parsed, data, true, &context);
                assert!(
                    native.parsed.flags & (flags::CUT | flags::MALFORMED | flags::DEEP) != 0
                        || native.parsed == whole,
                    "{context}: not said to be cut, but not like the whole packet: {:?} {whole:?}",
                    native.parsed
                );
                results += 1;
                if let Some(probe) = kernel.filter(|_| length >= SHORTEST) {
                    assert_eq!(probe.parse(packet.link, data, true, SEED), native, "{context}: kernel left");
                    in_kernel += 1;
                }
            }
        }
    }
    println!("{results} truncations, of which {in_kernel} in the kernel too");
    assert!(results > 50_000);
}
