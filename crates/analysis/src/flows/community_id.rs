//! Community ID, version 1: one name for a conversation, whoever has seen it (corelight's specification).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use wirelane::l3;
use wirelane_datapath::flow::FlowKey;

use super::record::{icmp_counterpart, is_icmp};

/// The Community ID of a flow with seed 0: the same for both directions. `None` of what is no IP.
pub fn community_id(key: &FlowKey) -> Option<String> {
    let width = match key.l3 {
        l3::IPV4 => 4,
        l3::IPV6 => 16,
        _ => return None,
    };
    let (mut from, mut to) = (&key.src[..width], &key.dst[..width]);
    let (mut source, mut destination) = (u16::from_be(key.src_port), u16::from_be(key.dst_port));
    // ICMP that nobody answers has one direction, which stays as it is.
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
