//! Headers of Ethernet: addresses, VLAN tags, EtherType.

use std::fmt::Write as _;

use wirelane::{LinkType, Record};

use super::word;

/// Names of EtherTypes, as in tcpdump.
const NAMES: [(u16, &str); 11] = [
    (0x0800, "IPv4"),
    (0x0806, "ARP"),
    (0x86dd, "IPv6"),
    (0x8100, "802.1Q"),
    (0x88a8, "802.1Q-QinQ"),
    (0x8847, "MPLS unicast"),
    (0x8848, "MPLS multicast"),
    (0x8863, "PPPoE D"),
    (0x8864, "PPPoE S"),
    (0x88cc, "LLDP"),
    (0x88f7, "PTPv2"),
];
/// Maximum number of VLAN tags that are shown.
const TAGS: usize = 8;

/// A hardware address.
pub(super) fn mac(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let _ = write!(text, "{}{byte:02x}", if at == 0 { "" } else { ":" });
    }
    text
}

fn ethertype(number: u16) -> String {
    match NAMES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => format!("ethertype {name} ({number:#06x})"),
        None => format!("ethertype Unknown ({number:#06x})"),
    }
}

/// Addresses, EtherType and VLAN tags of an Ethernet frame; `None` for other link types, and frames that are cut.
pub fn link(record: &Record<'_>) -> Option<String> {
    if record.link_type() == LinkType::Ethernet { frame(record.data()) } else { None }
}

fn frame(frame: &[u8]) -> Option<String> {
    let (to, from) = (frame.get(..6)?, frame.get(6..12)?);
    let mut text = format!("{} > {}", mac(from), mac(to));
    let mut kind = word(frame, 12)?;
    let mut at = 14;
    if kind < 0x600 {
        let _ = write!(text, ", 802.3, length {kind}");
        return Some(text);
    }
    let _ = write!(text, ", {}", ethertype(kind));
    for _ in 0..TAGS {
        if !matches!(kind, 0x8100 | 0x88a8) {
            break;
        }
        let (Some(tag), Some(next)) = (word(frame, at), word(frame, at + 2)) else { break };
        let drop_eligible = if tag & 0x1000 != 0 { ", DEI" } else { "" };
        let _ = write!(text, ", vlan {}, p {}{drop_eligible}, {}", tag & 0xfff, tag >> 13, ethertype(next));
        (kind, at) = (next, at + 4);
    }
    Some(text)
}
