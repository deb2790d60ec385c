//! Explains the verdict of rules for a given packet.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::native;
use wirelane_bpf::rules::Facts;

use wirelane_bpf::layout::LinkType;
use wirelane_rules::{Explanation, RuleSet};

/// A packet, and its assumed origin.
#[derive(Clone, Copy, Debug)]
pub struct PacketToExplain<'a> {
    /// Link type, which defines the first byte of `data`.
    pub link_type: LinkType,
    /// The captured bytes of the packet.
    pub data: &'a [u8],
    /// Length of the packet on the wire, in bytes.
    pub wire_len: u32,
    /// Name of the device.
    pub device: &'a str,
    /// RX queue.
    pub queue: u16,
    /// Whether the packet is transmitted, not received.
    pub egress: bool,
    /// Whether rules see the headers inside a tunnel, where there is one.
    pub inner: bool,
}

impl PacketToExplain<'_> {
    /// The verdict of these rules for the packet, with the reasons. Exact-match rules count as just made, and counters
    /// do not change. (Where a rule samples, a running capture may choose other packets, since it hashes with its own
    /// seed.)
    pub fn explain(&self, rules: &RuleSet) -> Explanation {
        let parsed = native::parse(self.link_type, self.data, true);
        let facts = Facts {
            now_ns: 0,
            wire_len: self.wire_len,
            queue: self.queue.into(),
            egress: self.egress.into(),
            seed: 0,
            ..Facts::default()
        };
        rules.explain(Packet { parsed: &parsed, data: self.data, inner: self.inner }, &facts, self.device)
    }
}
