//! Rebuilds packets around payloads: for datagrams that came in fragments, and for messages that shared a TCP
//! connection with others.
//!
//! Addresses and ports are the captured ones. Sequence numbers of a connection start at 1 in each direction, and do not
//! count the bytes that do not belong to the call.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use wirelane_analysis::voip::Way;

/// Maximum payload of a packet: a longer one becomes several TCP segments.
const MOST: usize = 60_000;
const UDP: u8 = 17;
const TCP: u8 = 6;

/// Progress of connections: the bytes that each end has sent to the other.
#[derive(Debug, Default)]
pub(super) struct Rebuilt(HashMap<(SocketAddr, SocketAddr), u32>);

/// The checksum of RFC 1071, before it is folded.
fn sum(bytes: &[u8], from: u32) -> u32 {
    let words = bytes.chunks(2);
    words
        .fold(from, |sum, word| sum + u32::from(word[0]) * 256 + word.get(1).map_or(0, |low| u32::from(*low)))
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

impl Rebuilt {
    /// IP packets, without a link layer, that carry this payload.
    pub(super) fn packets(&mut self, way: &Way, payload: &[u8]) -> Vec<Vec<u8>> {
        let (from, to) = (SocketAddr::from(way.from), SocketAddr::from(way.to));
        if !way.tcp {
            // The payload came in a datagram, so it fits into one.
            let payload = &payload[..payload.len().min(65_507)];
            let length = 8 + payload.len() as u16;
            let mut header = [from.port(), to.port(), length, 0].map(u16::to_be_bytes).concat();
            header.extend_from_slice(payload);
            return vec![packet(from.ip(), to.ip(), UDP, header, 6)];
        }
        let segment = |part: &[u8]| {
            let theirs = *self.0.entry((to, from)).or_insert(1);
            let ours = self.0.entry((from, to)).or_insert(1);
            let mut header = [from.port(), to.port()].map(u16::to_be_bytes).concat();
            header.extend([*ours, theirs].map(u32::to_be_bytes).concat());
            // Five words of header; PSH and ACK; a window; no checksum yet, no urgent pointer.
            header.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
            header.extend_from_slice(part);
            *ours = ours.wrapping_add(part.len() as u32);
            packet(from.ip(), to.ip(), TCP, header, 16)
        };
        payload.chunks(MOST).map(segment).collect()
    }
}

/// An IP packet around a transport header and its payload; `at` is the offset of the transport checksum.
fn packet(from: IpAddr, to: IpAddr, proto: u8, mut transport: Vec<u8>, at: usize) -> Vec<u8> {
    let length = transport.len() as u16;
    let (mut header, addresses) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0];
            header[2..4].copy_from_slice(&(length.saturating_add(20)).to_be_bytes());
            let checksum = folded(sum(&addresses, sum(&header, 0)));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            (header, addresses)
        }
        (from, to) => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let mut header = vec![0x60, 0, 0, 0, 0, 0, proto, 64];
            header[4..6].copy_from_slice(&length.to_be_bytes());
            (header, [six(from), six(to)].concat())
        }
    };
    let pseudo = sum(&addresses, u32::from(proto) + u32::from(length));
    let checksum = match folded(sum(&transport, pseudo)) {
        // A UDP checksum of 0 means no checksum.
        0 if proto == UDP => 0xffff,
        checksum => checksum,
    };
    transport[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    header.extend(addresses);
    header.extend(transport);
    header
}
