//! Application protocol of conversations: detected in one packet, remembered for later ones.

use hashbrown::HashMap;
use wirelane::{Ip, ip_flags};
use wirelane_analysis::flows::speaks;

use super::segments::is_tcp;

/// Conversations with a name that are remembered in each of two halves.
const HALF: usize = 65_536;
const SYN: u8 = 0x02;
const SYN_OR_ACK: u8 = 0x12;
const UDP: u8 = 17;

/// A conversation: its two ends in canonical order, each an address and a port; network layer and protocol.
type Talk = ([u8; 16], u16, [u8; 16], u16, u8, u8);

/// Protocols of conversations. Conversations without one take no memory. Memory is bounded: if one half is full, the
/// other half, which was not used for longer, is cleared, and its conversations are unknown until they are detected
/// again.
#[derive(Clone, Debug, Default)]
pub(super) struct AppDetection {
    young: HashMap<Talk, u8, ahash::RandomState>,
    old: HashMap<Talk, u8, ahash::RandomState>,
}

impl AppDetection {
    /// Application protocol of the conversation of this packet, of which this was captured: the first that was certain;
    /// 0: not detected so far. `None`: neither TCP nor UDP, or a later fragment, which has no ports.
    #[inline]
    pub fn of(&mut self, data: &[u8], wire_len: u32, ip: &Ip) -> Option<u8> {
        if ip.flags & ip_flags::PORTS == 0 || !(ip.flags & ip_flags::TCP != 0 || ip.proto == UDP) {
            return None;
        }
        let (source, destination) = ((ip.src, ip.src_port), (ip.dst, ip.dst_port));
        let (low, high) = (source.min(destination), source.max(destination));
        let talk = (low.0, low.1, high.0, high.1, ip.l3, ip.proto);
        if is_tcp(ip) && ip.tcp_flags & SYN_OR_ACK == SYN {
            // A new conversation between the same ends.
            self.young.remove(&talk);
            self.old.remove(&talk);
        } else if let Some(known) = self.known(&talk) {
            return Some(known);
        }
        let said = speaks(data, wire_len, ip);
        if said != 0 {
            self.put(talk, said);
        }
        Some(said)
    }

    fn known(&mut self, talk: &Talk) -> Option<u8> {
        if let Some(known) = self.young.get(talk) {
            return Some(*known);
        }
        let known = self.old.remove(talk)?;
        self.put(*talk, known);
        Some(known)
    }

    fn put(&mut self, talk: Talk, said: u8) {
        if self.young.len() >= HALF && !self.young.contains_key(&talk) {
            // Both tables keep their memory: tables that grow anew each time leave holes in the heap.
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(talk, said);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wirelane::l3;
    use wirelane_bpf::flow::applications as c;
    use wirelane_bpf::layout::NO_OFFSET;

    use super::*;

    const HTTP: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SSH: &[u8] = b"SSH-2.0-OpenSSH_9.6\r\n";
    const DNS: &[u8] = &[1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1];

    /// Headers of a packet whose payload begins at 0; `back`: of the other direction.
    fn headers(proto: u8, number: u32, flags: u8, back: bool) -> Ip {
        let mut ip = Ip {
            src_port: 40_000u16.to_be(),
            dst_port: if proto == UDP { 53u16.to_be() } else { 8000u16.to_be() },
            l3: l3::IPV4,
            proto,
            flags: ip_flags::PORTS | if proto == 6 { ip_flags::TCP } else { 0 },
            tcp_flags: flags,
            payload_off: 0,
            ..Ip::default()
        };
        ip.src[..4].copy_from_slice(&number.to_be_bytes());
        ip.dst[..4].copy_from_slice(&0xffff_fffe_u32.to_be_bytes());
        if back {
            (ip.src, ip.dst) = (ip.dst, ip.src);
            (ip.src_port, ip.dst_port) = (ip.dst_port, ip.src_port);
        }
        ip
    }

    fn told(applications: &mut AppDetection, ip: &Ip, data: &[u8]) -> Option<u8> {
        applications.of(data, data.len() as u32, ip)
    }

    #[test]
    fn the_first_that_is_certain_is_kept_for_both_directions_and_a_new_connection_begins_anew() {
        let mut applications = AppDetection::default();
        let mut of = |flags, back, data: &[u8]| told(&mut applications, &headers(6, 7, flags, back), data);
        assert_eq!(of(SYN, false, b""), Some(0));
        assert_eq!(of(0x10, false, b"what?"), Some(0), "not known yet");
        assert_eq!(of(0x10, false, HTTP), Some(c::HTTP));
        assert_eq!(of(0x10, true, b"\x01\x02\x03"), Some(c::HTTP), "the other direction");
        assert_eq!(of(0x10, true, SSH), Some(c::HTTP), "the first is kept");
        assert_eq!(of(SYN_OR_ACK, true, b""), Some(c::HTTP), "no new conversation");
        assert_eq!(of(SYN, false, b""), Some(0));
        assert_eq!(of(0x10, true, SSH), Some(c::SSH));
        assert_eq!(of(0x10, false, b""), Some(c::SSH));
        let other = headers(6, 8, 0x10, false);
        assert_eq!(told(&mut applications, &other, b"who?"), Some(0), "another conversation");
        // The same ends with UDP.
        assert_eq!(told(&mut applications, &headers(UDP, 7, 0, false), b"who?"), Some(0));
        assert_eq!(told(&mut applications, &headers(UDP, 7, 0, false), DNS), Some(c::DNS));
    }

    #[test]
    fn what_has_no_ports_is_of_no_conversation() {
        let mut applications = AppDetection::default();
        let later = Ip { flags: ip_flags::FRAGMENT, payload_off: NO_OFFSET, ..headers(UDP, 1, 0, false) };
        assert_eq!(told(&mut applications, &later, DNS), None);
        assert_eq!(told(&mut applications, &headers(1, 1, 0, false), DNS), None, "ICMP");
        assert_eq!(told(&mut applications, &headers(132, 1, 0, false), DNS), None, "SCTP");
    }

    #[test]
    fn a_flood_of_conversations_is_bounded_and_those_that_go_on_keep_their_names() {
        let mut applications = AppDetection::default();
        let steady = headers(6, 0xff00_0000, 0x10, false);
        assert_eq!(told(&mut applications, &steady, SSH), Some(c::SSH));
        for number in 0..300_000u32 {
            assert_eq!(told(&mut applications, &headers(UDP, number, 0, false), DNS), Some(c::DNS));
            // A conversation without a detected protocol takes no entry.
            assert_eq!(told(&mut applications, &headers(6, number, 0x10, false), b"no name"), Some(0));
            if number % 10_000 == 0 {
                assert_eq!(told(&mut applications, &steady, b"sealed"), Some(c::SSH));
            }
            assert!(applications.young.len() <= HALF && applications.old.len() <= HALF);
        }
        let names = |number| applications.clone().known_by(number);
        assert_eq!((names(0), names(299_999)), (0, c::DNS), "the oldest are forgotten");
    }

    proptest! {
        /// Battery: L6
        #[test]
        fn nothing_is_held_once_all_conversations_begin_anew(
            packets in prop::collection::vec((0..9u32, 0..4usize, any::<u8>(), any::<bool>()), 0..300),
        ) {
            let mut applications = AppDetection::default();
            for (number, said, flags, back) in packets {
                let data = [HTTP, SSH, b"no name", b""][said];
                told(&mut applications, &headers(6, number, flags, back), data);
                prop_assert!(applications.young.len() + applications.old.len() <= 9);
            }
            for number in 0..9 {
                told(&mut applications, &headers(6, number, SYN, false), b"");
            }
            prop_assert!(applications.young.is_empty() && applications.old.is_empty());
        }
    }

    impl AppDetection {
        fn known_by(mut self, number: u32) -> u8 {
            told(&mut self, &headers(UDP, number, 0, false), b"sealed").unwrap()
        }
    }
}
