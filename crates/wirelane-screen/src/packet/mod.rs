//! Headers of a packet as text on one line, in the words of tcpdump, and its bytes in hexadecimal digits.
//!
//! ```text
//! Record: offsets of the kernel's parser -> detail -> tcp.rs | icmp.rs | dns.rs
//!                                        -> link (link.rs), dump (dump.rs)
//! ```
//! Everything here reads bytes from the network: a header that is cut or wrong gives a shorter text, and all text passes
//! `wirelane::escape`.

mod dns;
mod dump;
mod icmp;
mod link;
mod tcp;
mod time;

use std::fmt::Write as _;

use wirelane::{Record, flags, l3};

pub use self::dump::{Dump, dump};
pub use self::link::link;
pub use self::time::{Clock, Times, date};

/// Ports of DNS and mDNS.
const DNS: [u16; 2] = [53, 5353];
/// Offset of a header that a packet does not have.
const NO_OFFSET: u16 = u16::MAX;

/// The big-endian number of two bytes at this offset.
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// The big-endian number of four bytes at this offset.
fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(word(bytes, at)?) << 16 | u32::from(word(bytes, at + 2)?))
}

/// Offset of the network header from the first captured byte; `None` if there is none.
fn network_offset(record: &Record<'_>) -> Option<usize> {
    let header = record.header();
    let known = matches!(header.l3, l3::ARP | l3::IPV4 | l3::IPV6);
    Some(usize::from(header.l3_off)).filter(|at| known && *at < record.data().len())
}

/// The fields of the packet's IP, TCP, UDP, ICMP, ARP and DNS headers; empty if there are none. `more` adds the fields of
/// the IP header.
pub fn detail(record: &Record<'_>, more: bool) -> String {
    let (header, data) = (record.header(), record.data());
    let mut text = String::new();
    let Some(network) = network_offset(record).map(|at| &data[at..]) else { return text };
    let length = match header.l3 {
        l3::ARP => {
            text.push_str(&icmp::arp(network).unwrap_or_default());
            return text;
        }
        l3::IPV4 => word(network, 2).map(usize::from),
        _ => word(network, 4).map(|length| usize::from(length) + 40),
    };
    if more {
        let _ = write!(text, "({})", network_fields(header.l3, network).unwrap_or_default());
    }
    if header.l4_off == NO_OFFSET {
        return text;
    }
    // The packet ends at `until`, without the padding of short frames.
    let Some(transport) = data.get(usize::from(header.l4_off)..) else { return text };
    let before = usize::from(header.l3_off);
    let Some(start) = usize::from(header.l4_off).checked_sub(before) else { return text };
    let whole = (record.wire_len() as usize).saturating_sub(before);
    let until = match length {
        // Aggregates of the kernel can be longer than the field, and a jumbogram has none.
        Some(length) if length > start && header.flags & flags::GSO == 0 => length.min(whole),
        _ => whole,
    };
    let Some(length) = until.checked_sub(start) else { return text };
    let captured = &transport[..transport.len().min(length)];
    let fields = match header.proto {
        6 => tcp::segment(captured, length),
        17 => udp(captured, length),
        1 if header.l3 == l3::IPV4 => icmp::version_4(captured, length),
        58 if header.l3 == l3::IPV6 => icmp::version_6(captured, length),
        _ => None,
    };
    if let Some(fields) = fields {
        text.push_str(if text.is_empty() { "" } else { " " });
        text.push_str(&fields);
    }
    text
}

/// The fields of an IP header.
fn network_fields(layer: u8, network: &[u8]) -> Option<String> {
    if layer != l3::IPV4 {
        let first = long(network, 0)?;
        let (class, label) = (first >> 20 & 0xff, first & 0xf_ffff);
        let class = if class == 0 { String::new() } else { format!("class {class:#04x}, ") };
        let label = if label == 0 { String::new() } else { format!("flowlabel {label:#07x}, ") };
        return Some(format!(
            "{class}{label}hlim {}, payload length: {}",
            network.get(7)?,
            word(network, 4)?
        ));
    }
    let fragment = word(network, 6)?;
    let flags = match (fragment & 0x4000 != 0, fragment & 0x2000 != 0) {
        (true, true) => "+, DF",
        (true, false) => "DF",
        (false, true) => "+",
        (false, false) => "none",
    };
    Some(format!(
        "tos {:#x}, ttl {}, id {}, offset {}, flags [{flags}], length {}",
        network.get(1)?,
        network.get(8)?,
        word(network, 4)?,
        (fragment & 0x1fff) * 8,
        word(network, 2)?,
    ))
}

/// The fields of a UDP datagram, and of DNS in it.
fn udp(datagram: &[u8], length: usize) -> Option<String> {
    let (from, to) = (word(datagram, 0)?, word(datagram, 2)?);
    let payload = usize::from(word(datagram, 4)?).min(length).saturating_sub(8);
    if DNS.contains(&from) || DNS.contains(&to) {
        let message = datagram.get(8..)?;
        if let Some(text) = dns::message(message) {
            return Some(format!("{text} ({payload})"));
        }
    }
    Some(format!("UDP, length {payload}"))
}
