//! The native parser against etherparse: both must agree on an Ethernet packet that both parse to its end.
#![no_main]

#[path = "../../crates/wirelane-bpf/tests/packet/opinion.rs"]
mod opinion;

use libfuzzer_sys::fuzz_target;
use wirelane_bpf::layout::{LinkType, flags, ip_flags, l3};
use wirelane_bpf::native;

fuzz_target!(|data: &[u8]| {
    // The seeds are those of `packet`: link type, options, packet.
    let [0, _, packet @ ..] = data else { return };
    let Some(theirs) = opinion::theirs(packet) else { return };
    let parsed = native::parse(LinkType::Ethernet, packet, false);
    if parsed.flags & flags::DEEP != 0 {
        return;
    }
    // etherparse parses the bytes of a later fragment as extension headers; they are payload.
    if matches!(parsed.outer.proto, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
        && parsed.outer.flags & ip_flags::LATER != 0
    {
        return;
    }
    // Hop-by-hop options at another position than the first are malformed (RFC 8200, 4.1); etherparse continues.
    if parsed.outer.proto == 0 && parsed.flags & flags::MALFORMED != 0 {
        return;
    }
    // etherparse stops at the headers of mobility, HIP and Shim6, which have a next header like any other (RFC 6275,
    // 7401, 5533).
    if matches!(theirs.proto, 135 | 139 | 140) && theirs.l3 == l3::IPV6 {
        return;
    }
    // etherparse parses only one IPv4 authentication header.
    if theirs.proto == 51 && theirs.l3 == l3::IPV4 {
        return;
    }
    assert_eq!(opinion::ours(&parsed), theirs, "left ours, right etherparse's: {parsed:?}");
});
