//! TCP segments without new payload: retransmitted, or out of order.

use hashbrown::HashMap;
use wirelane::{Ip, ip_flags};
use wirelane_bpf::layout::NO_OFFSET;

/// Directions of connections that are tracked in each of two halves.
const HALF: usize = 65_536;
const FIN_OR_RST: u8 = 0x05;
const SYN: u8 = 0x02;

/// A direction of a connection: addresses, ports.
type Way = ([u8; 16], [u8; 16], u16, u16);

/// Next sequence number of each direction of a connection. Memory is bounded: if one half is full, the other half,
/// which was not used for longer, is cleared; a segment of an unknown direction counts as new.
#[derive(Clone, Debug, Default)]
pub(super) struct Followed {
    young: HashMap<Way, u32, ahash::RandomState>,
    old: HashMap<Way, u32, ahash::RandomState>,
}

impl Followed {
    /// Whether all payload of a segment has been seen before; `None`: not a segment with payload.
    pub fn segment(&mut self, ip: &Ip, wire_len: u32) -> Option<bool> {
        if !is_tcp(ip) || ip.payload_off == NO_OFFSET {
            return None;
        }
        let way = (ip.src, ip.dst, ip.src_port, ip.dst_port);
        let end = if ip.l3_len == 0 { wire_len } else { u32::from(ip.l3_off).saturating_add(ip.l3_len) };
        let length = end.saturating_sub(u32::from(ip.payload_off));
        if ip.tcp_flags & SYN != 0 {
            // Sequence number of the first byte; a repeated SYN has the same one.
            self.put(way, ip.tcp_seq.wrapping_add(1));
        }
        let over = ip.tcp_flags & FIN_OR_RST == 0x04;
        let new = ip.tcp_seq.wrapping_add(length);
        let known = if length > 0 { self.known(&way) } else { None };
        if over {
            self.young.remove(&way);
            self.old.remove(&way);
        }
        if length == 0 {
            return None;
        }
        let Some(next) = known else {
            if !over {
                self.put(way, new);
            }
            return Some(false);
        };
        let ahead = new.wrapping_sub(next).cast_signed();
        if ahead > 0 && !over {
            self.put(way, new);
        }
        // An acknowledged byte that is sent again is a keep-alive (RFC 9293, 3.8.4).
        let keep_alive = length == 1 && ahead == 0;
        Some(ahead <= 0 && !keep_alive)
    }

    fn known(&mut self, way: &Way) -> Option<u32> {
        if let Some(next) = self.young.get(way) {
            return Some(*next);
        }
        let next = self.old.remove(way)?;
        self.put(*way, next);
        Some(next)
    }

    fn put(&mut self, way: Way, next: u32) {
        if self.young.len() >= HALF && !self.young.contains_key(&way) {
            // Both tables keep their memory: tables that grow anew each time leave holes in the heap.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(way, next);
    }
}

/// Whether the TCP header is present.
pub(super) fn is_tcp(ip: &Ip) -> bool {
    ip.flags & ip_flags::TCP != 0 && ip.flags & ip_flags::FRAGMENT == 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wirelane::l3;

    use super::*;

    fn packet(port: u16, flags: u8, seq: u32, length: u32) -> Ip {
        Ip {
            src_port: port,
            l3: l3::IPV4,
            proto: 6,
            flags: ip_flags::TCP | ip_flags::PORTS,
            tcp_flags: flags,
            tcp_seq: seq,
            l3_off: 14,
            l4_off: 34,
            payload_off: 54,
            l3_len: 40 + length,
            ..Ip::default()
        }
    }

    #[test]
    fn what_comes_again_is_told_from_what_is_new() {
        let mut followed = Followed::default();
        let mut told = |flags, seq: u32, length| followed.segment(&packet(1, flags, seq, length), 0);
        let start = u32::MAX - 50;
        assert_eq!(told(SYN, start - 1, 0), None, "no payload");
        assert_eq!(told(0x10, start, 100), Some(false));
        assert_eq!(told(0x10, start, 100), Some(true), "numbers have begun anew behind 32 bits");
        assert_eq!(told(0x10, start.wrapping_add(100), 50), Some(false));
        assert_eq!(told(0x10, start.wrapping_add(50), 20), Some(true));
        assert_eq!(told(0x10, start.wrapping_add(120), 50), Some(false), "some of it is new");
        assert_eq!(told(0x10, start.wrapping_add(169), 1), Some(false), "is anybody there?");
        assert_eq!(told(0x04, start.wrapping_add(170), 0), None);
        assert_eq!(told(0x10, start, 100), Some(false), "another connection");
    }

    #[test]
    fn memory_is_bounded() {
        let mut followed = Followed::default();
        for number in 0..300_000u32 {
            let mut ip = packet(number as u16, 0x10, 1, 10);
            ip.src = u128::from(number).to_be_bytes();
            assert_eq!(followed.segment(&ip, 0), Some(false));
            assert!(followed.young.len() <= HALF && followed.old.len() <= HALF);
        }
    }

    proptest! {
        /// Battery: L6
        #[test]
        fn nothing_is_held_once_all_connections_are_reset(
            segments in prop::collection::vec((0..9u16, any::<u8>(), any::<u32>(), 0..1500u32), 0..300),
        ) {
            let mut followed = Followed::default();
            for (port, flags, seq, length) in segments {
                followed.segment(&packet(port, flags, seq, length), 0);
                prop_assert!(followed.young.len() + followed.old.len() <= 9);
            }
            for port in 0..9 {
                followed.segment(&packet(port, 0x04, 0, 0), 0);
            }
            prop_assert!(followed.young.is_empty() && followed.old.is_empty());
        }
    }
}
