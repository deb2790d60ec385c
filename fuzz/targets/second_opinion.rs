//! The native parser against etherparse: an Ethernet packet that both read to its end must be the same to both.
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
    // etherparse takes the bytes of a later fragment for extension headers; they are payload.
    if matches!(parsed.outer.proto, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140)
        && parsed.outer.flags & ip_flags::LATER != 0
    {
        return;
    }
    // Hop-by-hop options anywhere but first are malformed (RFC 8200, 4.1); etherparse reads on.
    if parsed.outer.proto == 0 && parsed.flags & flags::MALFORMED != 0 {
        return;
    }
    // etherparse ends at the headers of mobility, HIP and Shim6, which name a next one like any other (RFC 6275, 7401,
    // 5533).
    if matches!(theirs.proto, 135 | 139 | 140) && theirs.l3 == l3::IPV6 {
        return;
    }
    // Of IPv4's authentication headers it reads one.
    if theirs.proto == 51 && theirs.l3 == l3::IPV4 {
        return;
    }
    assert_eq!(opinion::ours(&parsed), theirs, "left ours, right etherparse's: {parsed:?}");
});
