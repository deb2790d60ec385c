//! Changed addresses and ports in replayed frames, with correct checksums.
//!
//! Checksums are updated by the difference of the changed fields (RFC 1624, equation 3), so a checksum that was wrong in the
//! capture stays wrong, and fragments and cut frames are consistent: the checksum of the whole datagram is in the first
//! fragment, and its other bytes are not needed. A UDP checksum of 0 over IPv4 means that there is none, and stays.
//!
//! Addresses are changed in Ethernet, IPv4, IPv6 and ARP, ports in TCP, UDP and UDP-Lite, and both in the packet that an ICMP error
//! quotes. Checksums are those of IPv4, TCP, UDP, UDP-Lite, DCCP, ICMP and ICMPv6. Tunnels are not entered, and addresses inside
//! payloads (FTP, SIP, DNS), routing headers and
//! Home Address options stay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::layers::{Ip, Layer, is_icmp_error, layer, u16_at};
use super::mac::MacAddr;

/// Addresses of one network that become those of another: the bits after the prefix stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapAddress {
    from: u128,
    to: u128,
    /// Bits of the prefix.
    mask: u128,
    ipv6: bool,
}

impl MapAddress {
    fn map(&self, address: u128) -> Option<u128> {
        (address & self.mask == self.from).then_some(self.to | (address & !self.mask))
    }
}

impl FromStr for MapAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MapAddress, String> {
        let wrong = || {
            format!(
                "invalid mapping '{text}': expected two addresses or networks of the same IP version and length, as in \
                 10.1.0.0/16=192.168.0.0/16 or 10.1.2.3=192.168.0.9"
            )
        };
        let (from, to) = text.split_once('=').ok_or_else(wrong)?;
        let ((from, length), (to, other)) =
            (network(from).ok_or_else(wrong)?, network(to).ok_or_else(wrong)?);
        if from.is_ipv6() != to.is_ipv6() || length != other {
            return Err(wrong());
        }
        let bits = if from.is_ipv6() { 128 } else { 32 };
        let all = u128::MAX >> (128 - bits);
        let mask = if length == 0 { 0 } else { all & (all << (bits - length)) };
        let (from, to) = (number(from), number(to));
        if (from | to) & !mask & all != 0 {
            return Err(format!(
                "invalid mapping '{text}': an address has bits after its prefix of {length} bits; expected the \
                 network's own address"
            ));
        }
        Ok(MapAddress { from, to, mask: if bits == 32 { mask | !all } else { mask }, ipv6: bits == 128 })
    }
}

fn network(text: &str) -> Option<(IpAddr, u32)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    let length = length.unwrap_or(most);
    (length <= most).then_some((address, length))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// A port that becomes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPort {
    from: u16,
    to: u16,
}

impl FromStr for MapPort {
    type Err = String;

    fn from_str(text: &str) -> Result<MapPort, String> {
        let port = |text: &str| text.parse::<u16>().ok();
        let ports = text.split_once('=').and_then(|(from, to)| Some((port(from)?, port(to)?)));
        let (from, to) =
            ports.ok_or_else(|| format!("invalid mapping '{text}': expected two ports, as in 80=8080"))?;
        Ok(MapPort { from, to })
    }
}

/// Changes of each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// Source MAC address of all frames.
    pub src_mac: Option<MacAddr>,
    /// Destination MAC address of all frames.
    pub dst_mac: Option<MacAddr>,
    /// Networks; the first that fits an address is used.
    pub addresses: Vec<MapAddress>,
    /// Ports; the first that fits is used.
    pub ports: Vec<MapPort>,
}

/// The difference that changed fields make to a checksum.
#[derive(Clone, Copy, Debug, Default)]
struct Difference(u32);

impl Difference {
    /// Adds a changed word: `~m + m'`.
    fn word(&mut self, old: u16, new: u16) {
        self.0 += u32::from(!old) + u32::from(new);
        self.0 = (self.0 & 0xffff) + (self.0 >> 16);
    }

    fn add(&mut self, other: Difference) {
        self.0 += other.0;
        self.0 = (self.0 & 0xffff) + (self.0 >> 16);
    }

    /// The checksum after the change: `~(~HC + ~m + m')`.
    fn apply(self, checksum: u16) -> u16 {
        let sum = u32::from(!checksum) + self.0;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        !(sum as u16)
    }
}

/// Updates the checksum at an offset, if it was captured, and returns what that changed.
fn update(frame: &mut [u8], at: usize, difference: Difference, udp: bool) -> Difference {
    let mut changed = Difference::default();
    let Some(old) = u16_at(frame, at) else { return changed };
    if difference.0 == 0 || (udp && old == 0) {
        return changed;
    }
    let new = match difference.apply(old) {
        0 if udp => 0xffff,
        new => new,
    };
    frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
    changed.word(old, new);
    changed
}

/// Writes a field, and adds the changed words to the differences.
fn write(frame: &mut [u8], at: usize, new: &[u8], differences: &mut [&mut Difference]) {
    for (step, word) in new.chunks_exact(2).enumerate() {
        let at = at + 2 * step;
        let (old, new) =
            (u16::from_be_bytes([frame[at], frame[at + 1]]), u16::from_be_bytes([word[0], word[1]]));
        if old != new {
            differences.iter_mut().for_each(|difference| difference.word(old, new));
        }
    }
    frame[at..at + new.len()].copy_from_slice(new);
}

impl Rewrite {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Rewrite::default()
    }

    /// Changes a frame, of which the end may be missing.
    pub fn apply(&self, frame: &mut [u8]) {
        for (mac, at) in [(self.dst_mac, 0), (self.src_mac, 6)] {
            if let (Some(mac), Some(field)) = (mac, frame.get_mut(at..at + 6)) {
                field.copy_from_slice(&mac.0);
            }
        }
        if self.addresses.is_empty() && self.ports.is_empty() {
            return;
        }
        match layer(frame) {
            Layer::Ip(found) => _ = self.packet(frame, &found, true),
            Layer::Arp(start) => {
                for at in [start + 14, start + 24] {
                    self.address(frame, at, 4, &mut []);
                }
            }
            Layer::Other => {}
        }
    }

    /// Changes an address, if all of it was captured.
    fn address(&self, frame: &mut [u8], at: usize, length: usize, differences: &mut [&mut Difference]) {
        let Some(field) = frame.get(at..at + length) else { return };
        let old = field.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        let mut maps = self.addresses.iter().filter(|map| map.ipv6 == (length == 16));
        let Some(new) = maps.find_map(|map| map.map(old)) else { return };
        if length == 16 {
            write(frame, at, &Ipv6Addr::from_bits(new).octets(), differences);
        } else {
            write(frame, at, &Ipv4Addr::from_bits(new as u32).octets(), differences);
        }
    }

    /// Changes a packet; returns the difference of all its bytes. `outer`: it is not quoted by an ICMP error.
    fn packet(&self, frame: &mut [u8], ip: &Ip, outer: bool) -> Difference {
        let (mut header, mut transport, mut all) = <(Difference, Difference, Difference)>::default();
        let (addresses, length) = ip.addresses();
        if ip.from_home {
            self.address(frame, addresses, length, &mut [&mut header, &mut all]);
        } else {
            self.address(frame, addresses, length, &mut [&mut header, &mut transport, &mut all]);
        }
        if ip.routed {
            self.address(frame, addresses + length, length, &mut [&mut header, &mut all]);
        } else {
            self.address(frame, addresses + length, length, &mut [&mut header, &mut transport, &mut all]);
        }
        if !ip.ipv6 {
            all.add(update(frame, ip.start + 10, header, false));
        }
        let Some(start) = ip.transport else { return all };
        if matches!(ip.protocol, 6 | 17 | 136) {
            for at in [start, start + 2] {
                let port = u16_at(frame, at);
                let map = self.ports.iter().find(|map| Some(map.from) == port);
                if let Some(map) = map {
                    write(frame, at, &map.to.to_be_bytes(), &mut [&mut transport, &mut all]);
                }
            }
        }
        let mut inside = Difference::default();
        if outer
            && is_icmp_error(frame, ip, start)
            && let Some(quoted) = super::layers::ip(frame, start + 8)
        {
            inside = self.packet(frame, &quoted, false);
            all.add(inside);
        }
        if !ip.ipv6 && ip.protocol == 1 {
            // Without the addresses, which the checksum of ICMPv6 covers.
            all.add(update(frame, start + 2, inside, false));
        }
        if let Some(at) = ip.checksum() {
            transport.add(inside);
            all.add(update(frame, at, transport, matches!(ip.protocol, 17 | 136)));
        }
        all
    }
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
