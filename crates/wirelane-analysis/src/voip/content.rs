//! Content of a packet as far as its own bytes tell: what a monitor and its workers agree on without each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wirelane::{Ip, l3};
use wirelane_bpf::layout::{NO_OFFSET, ip_flags};

use super::stream::MediaAddress;

/// Content of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// Neither UDP nor TCP.
    Other,
    /// A fragment of a datagram or segment, up to the end of the IP packet, which is at `end`.
    Fragment { bytes: &'a [u8], end: usize },
    /// A payload of UDP, of `len` bytes on the wire.
    Datagram { from: MediaAddress, to: MediaAddress, payload: &'a [u8], len: usize },
    /// A payload of TCP.
    Segment { from: MediaAddress, to: MediaAddress, seq: u32, flags: u8, payload: &'a [u8] },
}

/// Address from a header.
pub(super) fn address(bytes: &[u8; 16], layer: u8) -> IpAddr {
    match layer {
        l3::IPV4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
        _ => Ipv6Addr::from(*bytes).into(),
    }
}

/// Ports of SIP: all other packets on them are worth counting.
pub(super) fn is_sip_port(port: u16) -> bool {
    matches!(port, 5060 | 5061)
}

/// Keep-alives on the ports of SIP: empty lines, zeros (RFC 5626, and the practice of phones), STUN.
pub(super) fn is_keep_alive(payload: &[u8]) -> bool {
    payload.iter().all(|byte| matches!(byte, 0 | b'\r' | b'\n' | b' '))
        || (payload.len() >= 20 && payload[0] < 2 && payload[4..8] == [0x21, 0x12, 0xa4, 0x42])
}

/// Whether the first byte of a payload is that of RTP and RTCP (version 2).
pub(super) fn is_media(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first >> 6 == 2)
}

/// The payload of a datagram and its length on the wire; `stated`: the length in the header of UDP.
pub(super) fn stated(captured: &[u8], stated: usize) -> (&[u8], usize) {
    let len = if stated >= 8 { stated - 8 } else { captured.len() };
    (&captured[..captured.len().min(len)], len)
}

/// Reads a packet with these headers.
pub(super) fn read<'a>(ip: &Ip, data: &'a [u8]) -> Content<'a> {
    if !matches!(ip.l3, l3::IPV4 | l3::IPV6) {
        return Content::Other;
    }
    // End of the datagram: link padding may follow it.
    let end = usize::from(ip.l3_off) + ip.l3_len as usize;
    let bytes = &data[..if ip.l3_len == 0 { data.len() } else { end.min(data.len()) }];
    if ip.flags & ip_flags::FRAGMENT != 0 && matches!(ip.proto, 6 | 17) {
        return Content::Fragment { bytes, end };
    }
    if ip.flags & ip_flags::PORTS == 0 || ip.payload_off == NO_OFFSET {
        return Content::Other;
    }
    let Some(payload) = bytes.get(usize::from(ip.payload_off)..) else { return Content::Other };
    let from = (address(&ip.src, ip.l3), u16::from_be(ip.src_port));
    let to = (address(&ip.dst, ip.l3), u16::from_be(ip.dst_port));
    match ip.proto {
        17 => {
            let header = usize::from(ip.l4_off);
            let length = match bytes.get(header + 4..header + 6) {
                Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
                _ => 0,
            };
            let (payload, len) = stated(payload, length);
            Content::Datagram { from, to, payload, len }
        }
        6 if ip.flags & ip_flags::TCP != 0 => {
            Content::Segment { from, to, seq: ip.tcp_seq, flags: ip.tcp_flags, payload }
        }
        _ => Content::Other,
    }
}
