//! Client and server of the conversations of a capture, for a replay over two devices.
//!
//! Whoever sends the first packet of a conversation is its client, except that a SYN makes its sender the client and a SYN with
//! ACK its receiver, as tcpprep decides. An ICMP error belongs to the conversation that it quotes. Later fragments belong to the sender of the first fragment. Frames without IP are of
//! the client, unless their MAC address has sent IP packets of a server last.

use std::collections::HashMap;
use std::hash::Hash;

use super::layers::{self, Ip, Layer, is_icmp_error, layer, u16_at};

/// Entries of each of the two generations of a table; the oldest conversations are forgotten beyond.
const GENERATION: usize = 1 << 18;

/// Sender of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// One end of a conversation: address and port.
type End = (u128, u16);

/// A table of bounded size: when the young generation is full, it becomes the old one.
#[derive(Debug)]
struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq + Copy, V: Copy> Recent<K, V> {
    fn new() -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new() }
    }

    fn get(&mut self, key: K) -> Option<V> {
        if let Some(value) = self.young.get(&key) {
            return Some(*value);
        }
        let value = self.old.remove(&key)?;
        self.set(key, value);
        Some(value)
    }

    fn set(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

/// The sides of a capture's conversations so far.
#[derive(Debug)]
pub(super) struct Sides {
    /// The client's end of a conversation: of its ends in order, and the protocol.
    clients: Recent<(End, End, u8), End>,
    fragments: Recent<(u128, u128, u32), Side>,
    stations: Recent<[u8; 6], Side>,
}

impl Sides {
    pub(super) fn new() -> Sides {
        Sides { clients: Recent::new(), fragments: Recent::new(), stations: Recent::new() }
    }

    /// The sender of the next frame of the capture.
    pub(super) fn of(&mut self, frame: &[u8]) -> Side {
        let station: Option<[u8; 6]> = frame.get(6..12).and_then(|bytes| bytes.try_into().ok());
        let side = match layer(frame) {
            Layer::Ip(ip) => self.of_packet(frame, &ip),
            Layer::Arp(_) | Layer::Other => None,
        };
        match (side, station) {
            (Some(side), Some(station)) => {
                self.stations.set(station, side);
                side
            }
            (None, Some(station)) => self.stations.get(station).unwrap_or(Side::Client),
            (side, None) => side.unwrap_or(Side::Client),
        }
    }

    fn of_packet(&mut self, frame: &[u8], ip: &Ip) -> Option<Side> {
        if let Some(start) = ip.transport
            && is_icmp_error(frame, ip, start)
            && let Some(quoted) = layers::ip(frame, start + 8)
            && let Some((from, key)) = conversation(frame, &quoted)
            && let Some(client) = self.clients.get(key)
        {
            // From the receiver of the quoted packet, or on its side.
            return Some(if client == from { Side::Server } else { Side::Client });
        }
        let (from, key) = conversation(frame, ip)?;
        let to = if key.0 == from { key.1 } else { key.0 };
        let fragment = ip.fragment.map(|id| (from.0, to.0, id));
        if let (None, Some(fragment)) = (ip.transport, fragment)
            && let Some(side) = self.fragments.get(fragment)
        {
            return Some(side);
        }
        let flags = ip.transport.filter(|_| ip.protocol == 6).and_then(|at| frame.get(at + 13));
        let client = match (flags.map(|flags| flags & 0x12), self.clients.get(key)) {
            // SYN; SYN and ACK.
            (Some(0x02), _) => from,
            (Some(0x12), None) => to,
            (_, Some(known)) => known,
            (_, None) => from,
        };
        self.clients.set(key, client);
        let side = if client == from { Side::Client } else { Side::Server };
        if let Some(fragment) = fragment {
            self.fragments.set(fragment, side);
        }
        Some(side)
    }
}

/// The sender's end, and the conversation: its ends in order, and the protocol.
fn conversation(frame: &[u8], ip: &Ip) -> Option<(End, (End, End, u8))> {
    let (at, length) = ip.addresses();
    let address = |at: usize| {
        let bytes = frame.get(at..at + length)?;
        Some(bytes.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte)))
    };
    // TCP, UDP, DCCP, SCTP, UDP-Lite.
    let ports = matches!(ip.protocol, 6 | 17 | 33 | 132 | 136).then_some(ip.transport).flatten();
    let port = |at: Option<usize>| at.and_then(|at| u16_at(frame, at)).unwrap_or(0);
    let (from, to) = ((address(at)?, port(ports)), (address(at + length)?, port(ports.map(|at| at + 2))));
    Some((from, (from.min(to), from.max(to), ip.protocol)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    fn tcp(from: u8, to: u8, syn: bool, ack: bool) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([from; 6], [to; 6]).ipv4([10, 0, 0, from], [10, 0, 0, to], 9);
        let port = |host: u8| if host == 2 { 80 } else { 4000 };
        let mut builder = builder.tcp(port(from), port(to), 1, 1);
        if syn {
            builder = builder.syn();
        }
        if ack {
            builder = builder.ack(1);
        }
        let mut frame = Vec::new();
        builder.write(&mut frame, b"").unwrap();
        frame
    }

    #[test]
    fn who_sends_the_first_packet_or_a_syn_is_the_client() {
        let mut sides = Sides::new();
        assert_eq!(sides.of(&tcp(1, 2, true, false)), Side::Client);
        assert_eq!(sides.of(&tcp(2, 1, true, true)), Side::Server);
        assert_eq!(sides.of(&tcp(1, 2, false, true)), Side::Client);
        // The capture begins within the handshake.
        let mut sides = Sides::new();
        assert_eq!(sides.of(&tcp(2, 1, true, true)), Side::Server);
        assert_eq!(sides.of(&tcp(1, 2, false, true)), Side::Client);
        // It begins within the connection, whose port is used again later.
        let mut sides = Sides::new();
        assert_eq!(sides.of(&tcp(2, 1, false, true)), Side::Client);
        assert_eq!(sides.of(&tcp(1, 2, false, true)), Side::Server);
        assert_eq!(sides.of(&tcp(1, 2, true, false)), Side::Client);
        assert_eq!(sides.of(&tcp(2, 1, false, true)), Side::Server);
    }

    #[test]
    fn frames_without_ip_go_with_their_station() {
        let mut sides = Sides::new();
        let arp = |from: u8| [&[0xff; 6][..], &[from; 6], &[8, 6, 0, 1, 8, 0, 6, 4]].concat();
        assert_eq!(sides.of(&arp(2)), Side::Client);
        sides.of(&tcp(1, 2, true, false));
        sides.of(&tcp(2, 1, true, true));
        assert_eq!((sides.of(&arp(1)), sides.of(&arp(2))), (Side::Client, Side::Server));
        assert_eq!(sides.of(&[]), Side::Client);
    }

    #[test]
    fn fragments_go_with_the_first_one() {
        let mut sides = Sides::new();
        let (mut first, mut second) = (tcp(2, 1, true, true), tcp(2, 1, false, false));
        first[20] = 0x20;
        second[21] = 3;
        assert_eq!((sides.of(&first), sides.of(&second)), (Side::Server, Side::Server));
    }

    #[test]
    fn tables_are_bounded_and_keep_what_is_used() {
        let mut recent = Recent::new();
        for key in 0..3 * GENERATION {
            recent.set(key, 1);
            recent.get(0);
        }
        assert!(recent.young.len() + recent.old.len() <= 2 * GENERATION);
        assert_eq!((recent.get(0), recent.get(1)), (Some(1), None));
    }
}
