//! The native parser against etherparse: an Ethernet packet that both read to its end must be the same to both.
#![no_main]

#[path = "../../crates/datapath/tests/packet/opinion.rs"]
mod opinion;

use libfuzzer_sys::fuzz_target;
use wirelane_datapath::layout::{LinkType, flags, ip_flags};
use wirelane_datapath::native;

fuzz_target!(|data: &[u8]| {
    // The seeds are those of `packet`: link type, options, packet.
    let [0, _, packet @ ..] = data else { return };
    let Some(theirs) = opinion::theirs(packet) else { return };
    let parsed = native::parse(LinkType::Ethernet, packet, false);
    if parsed.flags & flags::DEEP != 0 {
        return;
    }
    // etherparse takes the bytes of a later fragment for an authentication header; they are payload.
    if parsed.outer.proto == 51 && parsed.outer.flags & ip_flags::LATER != 0 {
        return;
    }
    assert_eq!(opinion::ours(&parsed), theirs, "left ours, right etherparse's: {parsed:?}");
});
