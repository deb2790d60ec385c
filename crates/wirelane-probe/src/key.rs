//! Keys of measurements: six words, made from the parsed headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::{Map, json};
use wirelane::{Ip, ip_flags, l3};
use wirelane_analysis::flows::applications;
use wirelane_bpf::sketch;

use crate::config::{Field, Measurement};

/// Words 0 and 1: source address. 2 and 3: destination address. 4: source port, destination port, lower port, VLAN. 5:
/// RX queue, device, protocol, network layer, application. Fields that are not part of the key are 0.
pub type Key = sketch::Key;

/// The VLAN of a packet without a tag.
const UNTAGGED: u16 = 0xffff;

/// Fields of a packet from which keys are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'p> {
    pub ip: &'p Ip,
    /// VLAN id of the outermost tag.
    pub vlan: Option<u16>,
    pub queue: u16,
    pub device: u16,
    /// Application protocol of its TCP or UDP conversation; 0: not detected.
    pub application: Option<u8>,
}

/// The key of one field.
pub(crate) fn of_field(field: Field, seen: &Seen<'_>) -> Option<Key> {
    let mut key = Key::default();
    put(&mut key, field, seen, (32, 128))?;
    Some(key)
}

/// The key of a measurement; `None`: the packet lacks a field of it.
pub(crate) fn of(measurement: &Measurement, seen: &Seen<'_>) -> Option<Key> {
    let mut key = Key::default();
    for field in &measurement.key {
        put(&mut key, *field, seen, (measurement.prefix, measurement.prefix6))?;
    }
    Some(key)
}

/// Whether the source comes first in the canonical order of a packet's ends.
pub(crate) fn is_forward(seen: &Seen<'_>) -> bool {
    let Ip { src, dst, src_port, dst_port, .. } = seen.ip;
    (src, u16::from_be(*src_port)) <= (dst, u16::from_be(*dst_port))
}

fn put(key: &mut Key, field: Field, seen: &Seen<'_>, (prefix, prefix6): (u8, u8)) -> Option<()> {
    let ip = seen.ip;
    let has_ports = ip.flags & ip_flags::PORTS != 0;
    let (src_port, dst_port) = (u16::from_be(ip.src_port), u16::from_be(ip.dst_port));
    let port = |port: u16| has_ports.then_some(u64::from(port));
    let protocol = (ip.l3 != l3::ARP && ip.l3 != l3::NONE).then_some(u64::from(ip.proto));
    match field {
        Field::Src => address(key, 0, ip.l3, &ip.src, (32, 128))?,
        Field::Dst => address(key, 2, ip.l3, &ip.dst, (32, 128))?,
        Field::SrcNet => address(key, 0, ip.l3, &ip.src, (prefix, prefix6))?,
        Field::DstNet => address(key, 2, ip.l3, &ip.dst, (prefix, prefix6))?,
        Field::SrcPort => key[4] |= port(src_port)?,
        Field::DstPort => key[4] |= port(dst_port)? << 16,
        Field::Port => key[4] |= port(src_port.min(dst_port))? << 32,
        Field::Protocol => key[5] |= protocol? << 32,
        Field::Vlan => key[4] |= u64::from(seen.vlan.unwrap_or(UNTAGGED)) << 48,
        Field::Queue => key[5] |= u64::from(seen.queue),
        Field::Device => key[5] |= u64::from(seen.device) << 16,
        Field::Application => key[5] |= u64::from(seen.application?) << 48,
        Field::Pair | Field::Flow => {
            let forward = match field {
                Field::Pair => ip.src <= ip.dst,
                _ => is_forward(seen),
            };
            let (low, high) = if forward { (&ip.src, &ip.dst) } else { (&ip.dst, &ip.src) };
            address(key, 0, ip.l3, low, (32, 128))?;
            address(key, 2, ip.l3, high, (32, 128))?;
            if field == Field::Flow {
                key[5] |= protocol? << 32;
                // Packets without ports, and later fragments, belong to the conversation of their addresses.
                if has_ports {
                    let (low, high) = if forward { (src_port, dst_port) } else { (dst_port, src_port) };
                    key[4] |= u64::from(low) | u64::from(high) << 16;
                }
            }
        }
    }
    Some(())
}

fn address(key: &mut Key, at: usize, layer: u8, bytes: &[u8; 16], prefix: (u8, u8)) -> Option<()> {
    match layer {
        l3::IPV4 | l3::ARP => {
            let word = u32::from_be_bytes(*bytes.first_chunk()?);
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.0)).unwrap_or(0);
            key[at] = u64::from(word & mask);
            key[5] |= 4 << 40;
        }
        l3::IPV6 => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.1)).unwrap_or(0);
            let word = u128::from_be_bytes(*bytes) & mask;
            key[at] = (word >> 64) as u64;
            key[at + 1] = word as u64;
            key[5] |= 6 << 40;
        }
        _ => return None,
    }
    Some(())
}

fn address_of(key: &Key, at: usize) -> IpAddr {
    if key[5] >> 40 & 0xff == 6 {
        Ipv6Addr::from(u128::from(key[at]) << 64 | u128::from(key[at + 1])).into()
    } else {
        Ipv4Addr::from(key[at] as u32).into()
    }
}

fn text_of(key: &Key, field: Field, (prefix, prefix6): (u8, u8)) -> String {
    let (src, dst) = (|| address_of(key, 0), || address_of(key, 2));
    let net = |address: IpAddr| format!("{address}/{}", if address.is_ipv6() { prefix6 } else { prefix });
    let half = |word: u64, at: u32| (word >> at) as u16;
    match field {
        Field::Src => src().to_string(),
        Field::Dst => dst().to_string(),
        Field::SrcNet => net(src()),
        Field::DstNet => net(dst()),
        Field::SrcPort => half(key[4], 0).to_string(),
        Field::DstPort => half(key[4], 16).to_string(),
        Field::Port => half(key[4], 32).to_string(),
        Field::Protocol => protocol_name((key[5] >> 32) as u8),
        Field::Vlan => match half(key[4], 48) {
            UNTAGGED => "none".to_owned(),
            id => id.to_string(),
        },
        Field::Queue => half(key[5], 0).to_string(),
        Field::Device => half(key[5], 16).to_string(),
        Field::Application => application_name((key[5] >> 48) as u8).to_owned(),
        Field::Pair => format!("{} {}", src(), dst()),
        Field::Flow => {
            let end = |address: IpAddr, port: u16| match port {
                0 => address.to_string(),
                _ => std::net::SocketAddr::new(address, port).to_string(),
            };
            let protocol = protocol_name((key[5] >> 32) as u8);
            format!("{} {} {protocol}", end(src(), half(key[4], 0)), end(dst(), half(key[4], 16)))
        }
    }
}

/// Names of common protocols; the number of others.
fn protocol_name(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        _ => number.to_string(),
    }
}

/// Name of an application as in flows; `unknown` otherwise, which is not a name of any application.
fn application_name(number: u8) -> &'static str {
    applications().find(|(known, _)| *known == number).map_or("unknown", |(_, name)| name)
}

/// Key as text for people: the values of its fields, separated by spaces; empty without fields.
pub(crate) fn text(measurement: &Measurement, key: &Key) -> String {
    let prefixes = (measurement.prefix, measurement.prefix6);
    let fields: Vec<String> = measurement.key.iter().map(|field| text_of(key, *field, prefixes)).collect();
    fields.join(" ")
}

/// Key of one field as text for people.
pub(crate) fn field_text(field: Field, key: &Key) -> String {
    text_of(key, field, (32, 128))
}

/// Key as JSON: fields by name, with `_` for `-`.
pub(crate) fn json(measurement: &Measurement, key: &Key) -> Map<String, serde_json::Value> {
    let prefixes = (measurement.prefix, measurement.prefix6);
    let field = |field: &Field| (field.name().replace('-', "_"), json!(text_of(key, *field, prefixes)));
    measurement.key.iter().map(field).collect()
}
