//! Sums of packets with the same headers, made before they are counted: the counterpart in user space of `analysis =
//! "kernel"`.
//!
//! Each measurement has a table of its own, so a packet takes one lookup per measurement. Most packets follow others of
//! their flow: with sums they take one lookup, and the tables are updated when the interval ends or a part is evicted.

use std::net::IpAddr;

use wirelane::{Record, flags};
use wirelane_bpf::layout::{Ip, Parsed};

use crate::worker::headers_of;

/// Sets of two parts, 1 MiB in all: the size of the L2 cache of current cores.
const SETS: usize = 1 << 13;

/// Fields that the packets of a part share: all fields that a measurement from parts, or its rule, can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    /// Address bytes in the parser's layout; as integers they are compared at once.
    src: u128,
    dst: u128,
    /// Network byte order; 0 without ports.
    src_port: u16,
    dst_port: u16,
    l3: u8,
    proto: u8,
    has_ports: bool,
    pub is_egress: bool,
    /// [`NO_VLAN`] for a packet without a tag.
    vlan: u16,
    pub queue: u16,
    pub device: u16,
}

/// The VLAN of a packet without a tag.
const NO_VLAN: u16 = 0xffff;

impl Common {
    pub fn new(ip: &Ip, vlan: Option<u16>, is_egress: bool, (queue, device): (u16, u16)) -> Common {
        let has_ports = ip.flags & wirelane::ip_flags::PORTS != 0;
        Common {
            src: u128::from_ne_bytes(ip.src),
            dst: u128::from_ne_bytes(ip.dst),
            src_port: if has_ports { ip.src_port } else { 0 },
            dst_port: if has_ports { ip.dst_port } else { 0 },
            l3: ip.l3,
            proto: ip.proto,
            has_ports,
            is_egress,
            vlan: vlan.unwrap_or(NO_VLAN),
            queue,
            device,
        }
    }

    /// The same fields of a packet that the engine has already parsed. `None`: headers are missing, or differ from what
    /// this module needs, so that the parser has to run.
    #[inline]
    pub fn of_record(record: &Record<'_>) -> Option<Common> {
        let (header, found) = (record.header(), record.headers()?);
        let (src_port, dst_port) = found.ports.unwrap_or_default();
        Some(Common {
            src: number(found.src),
            dst: number(found.dst),
            src_port: src_port.to_be(),
            dst_port: dst_port.to_be(),
            l3: header.l3,
            proto: header.proto,
            has_ports: found.ports.is_some(),
            is_egress: record.is_egress(),
            vlan: if header.flags & flags::VLAN != 0 { header.vlan_tci & 0xfff } else { NO_VLAN },
            queue: record.queue(),
            device: record.device() as u16,
        })
    }

    pub fn vlan(&self) -> Option<u16> {
        (self.vlan != NO_VLAN).then_some(self.vlan)
    }

    /// The parser's result, as far as the fields are known.
    pub fn parsed(&self) -> Parsed {
        let addresses = (self.src.to_ne_bytes(), self.dst.to_ne_bytes());
        let ports = (self.src_port, self.dst_port);
        let outer = headers_of(addresses, self.has_ports.then_some(ports), (self.l3, self.proto));
        let mut parsed = Parsed { outer, ..Parsed::default() };
        if let Some(vlan) = self.vlan() {
            parsed.flags |= flags::VLAN;
            (parsed.vlan_tci[0], parsed.vlan_count) = (vlan, 1);
        }
        parsed
    }
}

/// Address in the parser's layout: an IPv4 address is in the first four bytes.
#[inline]
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            u128::from_ne_bytes(bytes)
        }
        IpAddr::V6(address) => u128::from_ne_bytes(address.octets()),
    }
}

/// A part: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Part {
    pub common: Common,
    /// 0: the entry is empty.
    pub packets: u64,
    pub bytes: u64,
}

/// Sums of one interval.
pub(super) struct Parts {
    /// Each set has the most recently used part first.
    sets: Box<[[Part; 2]]>,
    any: bool,
}

impl Parts {
    pub fn new() -> Parts {
        Parts { sets: vec![[Part::default(); 2]; SETS].into_boxed_slice(), any: false }
    }

    /// Adds packets and bytes; returns the part that was evicted. `hash` is the flow hash of the packet: another one
    /// only costs time.
    #[inline]
    pub fn add(&mut self, common: &Common, hash: u32, (packets, bytes): (u64, u64)) -> Option<Part> {
        self.any = true;
        let spread = hash.wrapping_mul(0x9e37_79b1) >> (32 - SETS.trailing_zeros());
        let set = &mut self.sets[spread as usize];
        if set[0].packets == 0 || set[0].common != *common {
            set.swap(0, 1);
            if set[0].packets == 0 || set[0].common != *common {
                let other = std::mem::replace(&mut set[0], Part { common: *common, packets, bytes });
                return (other.packets > 0).then_some(other);
            }
        }
        set[0].packets += packets;
        set[0].bytes += bytes;
        None
    }

    /// Removes all parts and passes them on.
    pub fn drain(&mut self, mut hand_on: impl FnMut(&Part)) {
        if !std::mem::take(&mut self.any) {
            return;
        }
        for part in self.sets.iter_mut().flatten().filter(|part| part.packets > 0) {
            hand_on(part);
            part.packets = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Flows in the same set, and many in different ones: no packet is lost or added to another flow.
    #[test]
    fn parts_come_to_their_packets() {
        let mut parts = Parts::new();
        let common = |number: u32| {
            let mut ip = Ip { l3: 4, proto: 17, ..Ip::default() };
            ip.src[..4].copy_from_slice(&number.to_be_bytes());
            Common::new(
                &ip,
                (number.is_multiple_of(3)).then_some(7),
                number.is_multiple_of(2),
                (number as u16 % 5, 1),
            )
        };
        let (mut sent, mut got): (HashMap<u32, _>, HashMap<u32, _>) = Default::default();
        let add = |got: &mut HashMap<u32, (u64, u64)>, part: &Part| {
            let number = u32::from_be_bytes(*part.common.src.to_ne_bytes().first_chunk().unwrap());
            assert_eq!(part.common, common(number));
            let sum = got.entry(number).or_default();
            (sum.0, sum.1) = (sum.0 + part.packets, sum.1 + part.bytes);
        };
        let mut made_place = 0;
        for turn in 0..200_000u32 {
            let number = turn.wrapping_mul(2_654_435_761) % 30_000;
            // A quarter of the flows has the same hash.
            let hash = if number.is_multiple_of(4) { 9 } else { number };
            let bytes = u64::from(turn % 1500);
            let sum = sent.entry(number).or_insert((0, 0));
            (sum.0, sum.1) = (sum.0 + 1, sum.1 + bytes);
            if let Some(part) = parts.add(&common(number), hash, (1, bytes)) {
                made_place += 1;
                add(&mut got, &part);
            }
            if turn == 100_000 {
                parts.drain(|part| add(&mut got, part));
            }
        }
        parts.drain(|part| add(&mut got, part));
        assert_eq!(got, sent);
        assert!(made_place > 50_000, "{made_place}");
        parts.drain(|_| panic!("there are none any more"));
    }
}
