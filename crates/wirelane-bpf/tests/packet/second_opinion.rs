//! The native parser against etherparse, field by field, on every Ethernet packet of the corpus.

use wirelane_bpf::layout::{LinkType, flags, ip_flags};
use wirelane_bpf::native;

use crate::captures::{captures, corpus, packets};
use crate::opinion::{ours, theirs};

/// Packets that etherparse reads completely, with more headers than our parser follows: deliberately long chains of
/// destination options.
const DEEP: [&str; 3] = [
    "libpcap--ipv6_ext_headers",
    "suricata--ipv6-evasion-ipv6-malformed-fragments-11.frag-11",
    "suricata--ipv6-evasion-ipv6-malformed-fragments-12.frag-12",
];

#[test]
fn etherparse_agrees() {
    let Some(corpus) = corpus("etherparse's opinion on the corpus") else { return };
    let (mut compared, mut deep) = (0u32, Vec::new());
    for capture in captures(&corpus) {
        for (number, packet) in packets(&capture.path).iter().enumerate() {
            if packet.link != LinkType::Ethernet {
                continue;
            }
            let Some(theirs) = theirs(&packet.data) else { continue };
            let parsed = native::parse(packet.link, &packet.data, false);
            if parsed.flags & flags::DEEP != 0 {
                deep.push(capture.id.clone());
                continue;
            }
            // etherparse mistakes the bytes of a later fragment for an authentication header; they are payload.
            if parsed.outer.proto == 51 && parsed.outer.flags & ip_flags::LATER != 0 {
                continue;
            }
            assert_eq!(ours(&parsed), theirs, "{} packet {}: left ours", capture.id, number + 1);
            compared += 1;
        }
    }
    println!(
        "{compared} packets are the same to etherparse; {} have more headers than we follow",
        deep.len()
    );
    assert_eq!(deep, DEEP);
    assert!(compared > 180_000, "{compared} packets were compared");
}
