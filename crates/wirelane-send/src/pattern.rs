//! Description of generated traffic.
//!
//! The number of a packet determines its flow (`number % flows`) and its size (`number % sizes`), so the traffic is the
//! same on every run and with every method. [`super::template`] turns the description into packets.

use std::net::{IpAddr, Ipv4Addr};

use super::mac::MacAddr;
use super::stamp::{NUMBER_BYTES, STAMP_BYTES};
use crate::{Error, Result};

/// The sizes of `--size imix`, in the order in which they repeat: 60, 566 and 1514 bytes without FCS (64, 570 and 1518
/// on the wire) in the proportion 28:16:4, which is 7:4:1. The mean is 349.8 bytes.
pub const IMIX: [u16; 12] = [60, 566, 60, 60, 566, 60, 1514, 60, 566, 60, 566, 60];

/// Source address of the papers' traffic.
pub const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// First destination address of the papers' traffic.
pub const DST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 0);

/// The shortest Ethernet frame without its FCS (IEEE 802.3).
pub const SMALLEST_FRAME: u16 = 60;

/// Maximum number of alternating sizes; the kernel program has space for the same number.
pub const MOST_SIZES: usize = 64;

/// Maximum number of VLAN tags.
pub const MOST_TAGS: usize = 2;

const ETHERNET_HEADER: usize = 14;
const VLAN_TAG: usize = 4;

/// Transport protocol of the generated packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP with a valid checksum.
    Udp,
    /// TCP segments with ACK and PSH set that belong to no connection, with a valid checksum.
    Tcp,
}

impl Transport {
    pub(crate) fn header(self) -> usize {
        match self {
            Transport::Udp => 8,
            Transport::Tcp => 20,
        }
    }

    pub(crate) fn protocol(self) -> u8 {
        match self {
            Transport::Udp => 17,
            Transport::Tcp => 6,
        }
    }
}

/// The field that distinguishes the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// One source address, rotating destination addresses: the traffic of the papers (with 4096 addresses).
    Papers,
    /// Rotating source addresses, one destination address: a flood from many hosts.
    Sources,
    /// One pair of addresses, rotating source ports: many clients behind one address.
    Ports,
}

/// Description of the traffic to generate.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Share of this stream's packets among several streams: so many in a round of all weights.
    pub weight: u16,
    /// Number of the stream. The packets carry it with the time of sending; `None`: neither.
    pub stream: Option<u16>,
    /// Alternating frame sizes in bytes without FCS.
    pub sizes: Vec<u16>,
    /// Transport protocol.
    pub transport: Transport,
    /// The rotating field.
    pub pattern: Pattern,
    /// Number of values of the rotating field.
    pub flows: u32,
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// Destination MAC address.
    pub dst_mac: MacAddr,
    /// VLAN ids: none, that of an 802.1Q tag, or those of an 802.1ad tag and an 802.1Q tag inside.
    pub vlans: Vec<u16>,
    /// Source address; the first one with [`Pattern::Sources`].
    pub src: IpAddr,
    /// Destination address; the first one with [`Pattern::Papers`].
    pub dst: IpAddr,
    /// Source port; the first one with [`Pattern::Ports`].
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

impl Default for Traffic {
    /// The traffic of the papers: 60-byte UDP frames from 10.0.0.1 to 10.1.0.0 to 10.1.15.255, discard port (RFC 863),
    /// from and to locally administered MAC addresses that are not in use.
    fn default() -> Traffic {
        Traffic {
            weight: 1,
            stream: None,
            sizes: vec![SMALLEST_FRAME],
            transport: Transport::Udp,
            pattern: Pattern::Papers,
            flows: 4096,
            src_mac: MacAddr([0x02, 0x57, 0x4c, 0, 0, 1]),
            dst_mac: MacAddr([0x02, 0x57, 0x4c, 0, 0, 2]),
            vlans: Vec::new(),
            src: SRC.into(),
            dst: DST.into(),
            src_port: 1024,
            dst_port: 9,
        }
    }
}

impl Traffic {
    /// Whether the packets are IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.src.is_ipv6()
    }

    /// Bytes of the network header.
    pub(crate) fn network_header(&self) -> usize {
        if self.is_ipv6() { 40 } else { 20 }
    }

    /// Bytes of number, time and stream.
    pub(crate) fn stamp_bytes(&self) -> usize {
        if self.stream.is_some() { STAMP_BYTES } else { NUMBER_BYTES }
    }

    /// The smallest frame, in bytes without FCS, that can hold a packet's number, and its time if it has one.
    pub fn smallest_size(&self) -> u16 {
        let headers =
            ETHERNET_HEADER + VLAN_TAG * self.vlans.len() + self.network_header() + self.transport.header();
        SMALLEST_FRAME.max((headers + self.stamp_bytes()) as u16)
    }

    /// Mean bytes of a frame, without FCS.
    pub fn mean_size(&self) -> f64 {
        self.sizes.iter().map(|size| f64::from(*size)).sum::<f64>() / self.sizes.len().max(1) as f64
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.sizes.is_empty() || self.sizes.len() > MOST_SIZES {
            return Err(bad("--size", format!("give between 1 and {MOST_SIZES} sizes")));
        }
        if self.vlans.len() > MOST_TAGS {
            return Err(bad(
                "--vlan",
                "give one VLAN id, or two: the outer and the inner one, as in 100,7".into(),
            ));
        }
        if let Some(vlan) = self.vlans.iter().find(|vlan| !(1..=4094).contains(*vlan)) {
            return Err(bad("--vlan", format!("{vlan} is not a VLAN id; those go from 1 to 4094")));
        }
        if self.src.is_ipv6() != self.dst.is_ipv6() {
            let reason = format!("{} and {} are addresses of different IP versions", self.src, self.dst);
            return Err(bad("--dst", reason));
        }
        let smallest = self.smallest_size();
        if let Some(size) = self.sizes.iter().find(|size| **size < smallest) {
            let reason = if smallest == SMALLEST_FRAME {
                format!("{size} bytes are too few: an Ethernet frame has {smallest} or more")
            } else {
                format!(
                    "{size} bytes are too few: the headers of these packets, number and time have {smallest} bytes"
                )
            };
            return Err(bad("--size", reason));
        }
        let (first, room) = match self.pattern {
            Pattern::Papers => (low_bits(self.dst), u32::MAX),
            Pattern::Sources => (low_bits(self.src), u32::MAX),
            Pattern::Ports => (u32::from(self.src_port), u32::from(u16::MAX)),
        };
        if self.flows == 0 || self.flows - 1 > room - first {
            let most = u64::from(room - first) + 1;
            let reason = format!("{} flows are not possible here; ask for 1 to {most}", self.flows);
            return Err(bad("--flows", reason));
        }
        if self.weight == 0 {
            return Err(bad("--stream", "a weight is 1 or more".into()));
        }
        Ok(())
    }
}

/// The last 32 bits of an address, which rotate.
pub(crate) fn low_bits(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    }
}

fn bad(option: &'static str, reason: String) -> Error {
    Error::BadOption { option, reason }
}
