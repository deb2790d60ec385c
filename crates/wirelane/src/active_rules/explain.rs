//! Why rules say what they say of a packet that somebody has.

use wirelane_bpf::evaluate::Packet;
use wirelane_bpf::native;
use wirelane_bpf::rules::Facts;

use wirelane_bpf::layout::LinkType;
use wirelane_rules::{Explanation, RuleSet};

/// A packet, and where it would come from.
#[derive(Clone, Copy, Debug)]
pub struct PacketToExplain<'a> {
    /// What its first byte is.
    pub link_type: LinkType,
    /// Its bytes, or as many as there are.
    pub data: &'a [u8],
    /// Bytes that it had on the wire.
    pub wire_len: u32,
    /// The device.
    pub device: &'a str,
    /// RX queue.
    pub queue: u16,
    /// It was on its way out.
    pub egress: bool,
    /// Headers inside of a tunnel count, where there is one.
    pub inner: bool,
}

impl PacketToExplain<'_> {
    /// What these rules say of it, and why. Exact-match rules count as just made, and nothing is counted. (Where a rule
    /// samples, a running capture may choose others, since it hashes by a number of its own.)
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
