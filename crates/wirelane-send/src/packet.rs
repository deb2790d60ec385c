//! Packets as options and as text describe them: fields with values, streams with fields of their own.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::interface::Interface;
use crate::mac::MacAddr;
use crate::pattern::{IMIX, Pattern, Traffic, Transport};
use crate::{Error, Result};

/// Destination address of IPv6 packets, or the first of them: the counterpart of 10.1.0.0 (RFC 4193).
const IPV6_DST: Ipv6Addr = Ipv6Addr::new(0xfd57, 0x4c00, 0, 1, 0, 0, 0, 0);
/// Source address of IPv6 packets.
const IPV6_SRC: Ipv6Addr = Ipv6Addr::new(0xfd57, 0x4c00, 0, 0, 0, 0, 0, 1);

/// Patterns by name.
const PATTERNS: [(&str, Pattern); 3] =
    [("papers", Pattern::Papers), ("sources", Pattern::Sources), ("ports", Pattern::Ports)];
/// Transport protocols by name.
const TRANSPORTS: [(&str, Transport); 2] = [("udp", Transport::Udp), ("tcp", Transport::Tcp)];

/// Frame sizes in rotation.
#[derive(Clone, Debug)]
pub struct Sizes(pub Vec<u16>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Sizes, String> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Sizes(IMIX.to_vec()));
        }
        let size = |text: &str| {
            text.parse()
                .map_err(|_| format!("invalid frame size '{text}': expected bytes from 60 to 65535, or imix"))
        };
        text.split([',', '+']).map(size).collect::<std::result::Result<_, _>>().map(Sizes)
    }
}

/// VLAN ids, the outer one first.
#[derive(Clone, Debug)]
pub struct Vlans(pub Vec<u16>);

impl FromStr for Vlans {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Vlans, String> {
        let vlan = |text: &str| {
            text.parse().map_err(|_| format!("invalid VLAN id '{text}': expected a number from 1 to 4094"))
        };
        text.split([',', '+']).map(vlan).collect::<std::result::Result<_, _>>().map(Vlans)
    }
}

/// Fields of packets, as far as they are given.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    /// Share among several streams.
    pub weight: Option<u16>,
    /// Number of the stream.
    pub id: Option<u16>,
    /// Frame sizes.
    pub size: Option<Sizes>,
    /// Number of flows.
    pub flows: Option<u32>,
    /// The field in which flows differ.
    pub pattern: Option<Pattern>,
    /// Transport protocol.
    pub proto: Option<Transport>,
    /// Source MAC address.
    pub src_mac: Option<MacAddr>,
    /// Destination MAC address.
    pub dst_mac: Option<MacAddr>,
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// VLAN ids.
    pub vlans: Option<Vlans>,
}

/// Keys of --stream.
const KEYS: &str =
    "weight, id, size, flows, pattern, proto, src, dst, src-port, dst-port, src-mac, dst-mac, vlan";

impl FromStr for Packet {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Packet, String> {
        let mut packet = Packet::default();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!(
                    "'{part}' has no value: expected KEY=VALUE with commas between, as in weight=3,size=60+1514; keys are {KEYS}"
                ));
            };
            match key {
                "weight" => set(&mut packet.weight, key, value, "a number from 1 to 1024")?,
                "id" => set(&mut packet.id, key, value, "a number from 0 to 65535")?,
                "size" => set(&mut packet.size, key, value, "bytes, several with '+', or imix")?,
                "flows" => set(&mut packet.flows, key, value, "a number from 1")?,
                "pattern" => choose(&mut packet.pattern, key, value, &PATTERNS)?,
                "proto" => choose(&mut packet.proto, key, value, &TRANSPORTS)?,
                "src" => set(&mut packet.src, key, value, "an IPv4 or IPv6 address")?,
                "dst" => set(&mut packet.dst, key, value, "an IPv4 or IPv6 address")?,
                "src-port" => set(&mut packet.src_port, key, value, "a port from 0 to 65535")?,
                "dst-port" => set(&mut packet.dst_port, key, value, "a port from 0 to 65535")?,
                "src-mac" => set(&mut packet.src_mac, key, value, "a MAC address, as in 02:57:4c:00:00:02")?,
                "dst-mac" => set(&mut packet.dst_mac, key, value, "a MAC address, as in 02:57:4c:00:00:02")?,
                "vlan" => set(&mut packet.vlans, key, value, "a VLAN id, or two with '+'")?,
                _ => return Err(format!("unknown key '{key}': expected one of {KEYS}")),
            }
        }
        Ok(packet)
    }
}

/// Sets a field once.
fn set<T: FromStr>(
    field: &mut Option<T>,
    key: &str,
    value: &str,
    expected: &str,
) -> std::result::Result<(), String> {
    put(field, key, value, value.parse().ok(), expected)
}

/// Sets a field with words.
fn choose<T: Copy>(
    field: &mut Option<T>,
    key: &str,
    value: &str,
    words: &[(&str, T)],
) -> std::result::Result<(), String> {
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    put(field, key, value, found, &words.join(" or "))
}

/// Sets a field to the meaning of its value.
fn put<T>(
    field: &mut Option<T>,
    key: &str,
    value: &str,
    meaning: Option<T>,
    expected: &str,
) -> std::result::Result<(), String> {
    if field.is_some() {
        return Err(format!("{key} is given twice"));
    }
    *field = Some(meaning.ok_or_else(|| format!("invalid {key} '{value}': expected {expected}"))?);
    Ok(())
}

impl Packet {
    /// These fields, and for missing ones those of `base`.
    #[must_use]
    pub fn over(self, base: &Packet) -> Packet {
        let base = base.clone();
        // Addresses of different IP versions do not belong together.
        let versions = [self.src, self.dst].into_iter().flatten().map(|address| address.is_ipv6()).next();
        let fits = |address: &IpAddr| versions.is_none_or(|ipv6| ipv6 == address.is_ipv6());
        Packet {
            weight: self.weight.or(base.weight),
            id: self.id.or(base.id),
            size: self.size.or(base.size),
            flows: self.flows.or(base.flows),
            pattern: self.pattern.or(base.pattern),
            proto: self.proto.or(base.proto),
            src_mac: self.src_mac.or(base.src_mac),
            dst_mac: self.dst_mac.or(base.dst_mac),
            src: self.src.or(base.src.filter(fits)),
            dst: self.dst.or(base.dst.filter(fits)),
            src_port: self.src_port.or(base.src_port),
            dst_port: self.dst_port.or(base.dst_port),
            vlans: self.vlans.or(base.vlans),
        }
    }

    /// The traffic of this stream. Missing fields are those of [`Traffic::default`], the smallest size that carries a
    /// number, and the device's own MAC address.
    ///
    /// # Errors
    /// The device does not exist.
    pub fn traffic(self, device: &str, stream: Option<u16>) -> Result<Traffic> {
        let default = Traffic::default();
        let ipv6 = self.src.or(self.dst).is_some_and(|address| address.is_ipv6());
        let (src, dst) = if ipv6 { (IPV6_SRC.into(), IPV6_DST.into()) } else { (default.src, default.dst) };
        let mut traffic = Traffic {
            weight: self.weight.unwrap_or(1),
            stream,
            sizes: Vec::new(),
            transport: self.proto.unwrap_or(Transport::Udp),
            pattern: self.pattern.unwrap_or(Pattern::Papers),
            flows: self.flows.unwrap_or(default.flows),
            src_mac: match self.src_mac {
                Some(mac) => mac,
                None => Interface::find(device)?.mac,
            },
            dst_mac: self.dst_mac.unwrap_or(default.dst_mac),
            vlans: self.vlans.map(|vlans| vlans.0).unwrap_or_default(),
            src: self.src.unwrap_or(src),
            dst: self.dst.unwrap_or(dst),
            src_port: self.src_port.unwrap_or(default.src_port),
            dst_port: self.dst_port.unwrap_or(default.dst_port),
        };
        traffic.sizes = self.size.map_or_else(|| vec![traffic.smallest_size()], |sizes| sizes.0);
        Ok(traffic)
    }
}

/// The streams of a run: those of --stream, or the only one. `base`: the fields that streams do not name; `stamped`: packets
/// carry the time of sending.
///
/// # Errors
/// Two streams with one number, or a device that does not exist.
pub fn streams_of(device: &str, streams: &[Packet], base: &Packet, stamped: bool) -> Result<Vec<Traffic>> {
    if streams.is_empty() {
        return Ok(vec![base.clone().traffic(device, stamped.then_some(0))?]);
    }
    let mut all: Vec<Traffic> = Vec::new();
    for (at, stream) in (1..).zip(streams) {
        let id = stream.id.unwrap_or(at);
        let reason = format!("two streams have the number {id}; give one of them another id");
        if all.iter().any(|one| one.stream == Some(id)) {
            return Err(Error::BadOption { option: "--stream", reason });
        }
        all.push(stream.clone().over(base).traffic(device, Some(id))?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_take_missing_fields_from_the_options() {
        let base = Packet { dst_port: Some(5001), src: "10.9.9.9".parse().ok(), ..Packet::default() };
        let one: Packet = "weight=3,dst=fd00::1,size=100+200,vlan=7+8,proto=tcp".parse().unwrap();
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let one = Packet { src_mac: Some(mac), ..one }.over(&base).traffic("lo", Some(4)).unwrap();
        assert_eq!((one.weight, one.stream, one.dst_port, one.src_mac), (3, Some(4), 5001, mac));
        assert_eq!((one.sizes, one.vlans, one.transport), (vec![100, 200], vec![7, 8], Transport::Tcp));
        // The option's source has another IP version.
        assert_eq!((one.src, one.dst), (IPV6_SRC.into(), "fd00::1".parse().unwrap()));
    }

    #[test]
    fn wrong_streams_are_refused_with_what_is_expected() {
        for (text, part) in [
            ("", "expected KEY=VALUE"),
            ("dst", "'dst' has no value"),
            ("colour=red", "unknown key 'colour'"),
            ("weight=many", "invalid weight 'many': expected a number from 1 to 1024"),
            ("weight=1,weight=2", "weight is given twice"),
            ("proto=sctp", "invalid proto 'sctp': expected udp or tcp"),
            ("dst=10.0.0", "invalid dst '10.0.0': expected an IPv4 or IPv6 address"),
            ("size=60;90", "invalid size '60;90': expected bytes"),
        ] {
            let error = text.parse::<Packet>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
