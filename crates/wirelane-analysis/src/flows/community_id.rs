//! Community ID, version 1: the same name for a conversation in all tools (specification by Corelight).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wirelane::l3;
use wirelane_bpf::flow::FlowKey;

use super::record::{icmp_counterpart, is_icmp};

/// Community ID of a flow with seed 0: the same for both directions. `None` for packets other than IP.
pub fn community_id(key: &FlowKey) -> Option<String> {
    let width = match key.l3 {
        l3::IPV4 => 4,
        l3::IPV6 => 16,
        _ => return None,
    };
    let (mut from, mut to) = (&key.src[..width], &key.dst[..width]);
    let (mut source, mut destination) = (u16::from_be(key.src_port), u16::from_be(key.dst_port));
    // ICMP messages without a counterpart have one direction, which is not normalised.
    let mut one_way = false;
    let ports = matches!(key.proto, 6 | 17 | 132) || is_icmp(key);
    if is_icmp(key) {
        let [kind, code] = destination.to_be_bytes();
        source = kind.into();
        match icmp_counterpart(key, kind) {
            Some(other) => destination = other.into(),
            None => (destination, one_way) = (code.into(), true),
        }
    }
    if !one_way && (from, source) > (to, destination) {
        (from, to, source, destination) = (to, from, destination, source);
    }
    let mut hash = sha1_smol::Sha1::new();
    hash.update(&[0, 0]);
    hash.update(from);
    hash.update(to);
    hash.update(&[key.proto, 0]);
    if ports {
        hash.update(&source.to_be_bytes());
        hash.update(&destination.to_be_bytes());
    }
    Some(format!("1:{}", STANDARD.encode(hash.digest().bytes())))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn key(proto: u8, from: &str, to: &str, ports: (u16, u16)) -> FlowKey {
        let mut key = FlowKey { proto, ..FlowKey::default() };
        for (place, address) in [(&mut key.src, from), (&mut key.dst, to)] {
            match address.parse().unwrap() {
                IpAddr::V4(address) => {
                    key.l3 = l3::IPV4;
                    place[..4].copy_from_slice(&address.octets());
                }
                IpAddr::V6(address) => (key.l3, *place) = (l3::IPV6, address.octets()),
            }
        }
        (key.src_port, key.dst_port) = (ports.0.to_be(), ports.1.to_be());
        key
    }

    /// Values of the reference implementation (communityid 1.5.0).
    #[test]
    fn ids_are_those_of_the_reference() {
        let (echo, answer) = (0x0800, 0x0000);
        for (proto, from, to, ports, id) in [
            (6, "127.0.0.1", "10.0.0.1", (1234, 80), "1:mgRgpIZSu0KHDp/QrtcWZpkJpMU="),
            (6, "10.0.0.1", "127.0.0.1", (80, 1234), "1:mgRgpIZSu0KHDp/QrtcWZpkJpMU="),
            (17, "192.168.1.52", "8.8.8.8", (54585, 53), "1:d/FP5EW3wiY1vCndhwleRRKHowQ="),
            (1, "192.168.0.89", "192.168.0.1", (0, echo), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (1, "192.168.0.1", "192.168.0.89", (0, answer), "1:X0snYXpgwiv9TZtqg64sgzUn6Dk="),
            (1, "192.168.0.89", "192.168.0.1", (0, 0x0301), "1:LXCfhMUFbYXe+CEMrQuZCbiLY3o="),
            (58, "fe80::1", "ff02::1", (0, 0x8700), "1:aiTDkLk3othnEubZO7BJEEW0vIM="),
            (132, "2001:db8::1", "2001:db8::2", (80, 70), "1:ru8HKZ8oIIRA4LiQi1/WyJ7iNvo="),
            (47, "10.0.0.2", "10.0.0.1", (0, 0), "1:+KlEHDT0vJgzs/eNmzHq0aSpRYw="),
        ] {
            assert_eq!(
                community_id(&key(proto, from, to, ports)).as_deref(),
                Some(id),
                "{proto} {from} {to}"
            );
        }
        assert_eq!(community_id(&FlowKey::default()), None);
    }
}
