//! Layout of generated packets.
//!
//! ```text
//! Ethernet 14 | 802.1Q 4, optional | IPv4 20 | UDP 8 or TCP 20 | magic 4 | number 8 | zeros
//! ```
//!
//! The twelve bytes after the transport header are the same for every protocol: [`MAGIC`], then the packet's number as
//! a big-endian u64. [`numbered`] reads the number back, so any receiver can account for each packet. The number
//! determines the packet's flow (`number % flows`) and its size (`number % sizes`), so the traffic is the same on every
//! run and with every method.
//!
//! A [`Template`] holds one frame with all constant fields, and the sums of its constant parts; the fields that change
//! from packet to packet are written over it, here for the socket and in `bpf/generate.bpf.c` for live frames.

use std::net::Ipv4Addr;

use super::checksum;
use super::mac::MacAddr;
use crate::{Error, Result};

/// The four bytes in front of every packet's number.
pub const MAGIC: [u8; 4] = *b"WLn1";

/// Bytes of magic and number.
pub const NUMBER_BYTES: usize = MAGIC.len() + size_of::<u64>();

/// The sizes of `--size imix`, in the order in which they repeat: 60, 566 and 1514 bytes without FCS (64, 570 and 1518
/// on the wire) in the proportion 28:16:4, which is 7:4:1. The mean is 349.8 bytes.
pub const IMIX: [u16; 12] = [60, 566, 60, 60, 566, 60, 1514, 60, 566, 60, 566, 60];

/// The shortest Ethernet frame without its FCS (IEEE 802.3).
pub const SMALLEST_FRAME: u16 = 60;

/// Maximum number of alternating sizes; the kernel program has space for the same number.
pub const MOST_SIZES: usize = 64;

const ETHERNET_HEADER: usize = 14;
const VLAN_TAG: usize = 4;
const IPV4_HEADER: usize = 20;

/// The number of a generated packet, read from its transport payload; `None` if the packet has no number.
pub fn numbered(payload: &[u8]) -> Option<u64> {
    let (magic, rest) = payload.split_first_chunk::<4>()?;
    let number = rest.first_chunk::<8>()?;
    (*magic == MAGIC).then(|| u64::from_be_bytes(*number))
}

/// Transport protocol of the generated packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP with a valid checksum.
    Udp,
    /// TCP segments with ACK and PSH set that belong to no connection, with a valid checksum.
    Tcp,
}

impl Transport {
    fn header(self) -> usize {
        match self {
            Transport::Udp => 8,
            Transport::Tcp => 20,
        }
    }

    fn protocol(self) -> u8 {
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
    /// VLAN id of an 802.1Q tag.
    pub vlan: Option<u16>,
    /// Source address; the first one with [`Pattern::Sources`].
    pub src: Ipv4Addr,
    /// Destination address; the first one with [`Pattern::Papers`].
    pub dst: Ipv4Addr,
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
            sizes: vec![SMALLEST_FRAME],
            transport: Transport::Udp,
            pattern: Pattern::Papers,
            flows: 4096,
            src_mac: MacAddr([0x02, 0x57, 0x4c, 0, 0, 1]),
            dst_mac: MacAddr([0x02, 0x57, 0x4c, 0, 0, 2]),
            vlan: None,
            src: Ipv4Addr::new(10, 0, 0, 1),
            dst: Ipv4Addr::new(10, 1, 0, 0),
            src_port: 1024,
            dst_port: 9,
        }
    }
}

impl Traffic {
    /// Bytes in front of the transport payload.
    fn headers(&self) -> usize {
        let tag = if self.vlan.is_some() { VLAN_TAG } else { 0 };
        ETHERNET_HEADER + tag + IPV4_HEADER + self.transport.header()
    }

    /// The smallest frame, in bytes without FCS, that can hold a packet's number.
    pub fn smallest_size(&self) -> u16 {
        SMALLEST_FRAME.max((self.headers() + NUMBER_BYTES) as u16)
    }

    fn check(&self) -> Result<()> {
        let smallest = self.smallest_size();
        if self.sizes.is_empty() || self.sizes.len() > MOST_SIZES {
            return Err(bad("--size", format!("give between 1 and {MOST_SIZES} sizes")));
        }
        if let Some(size) = self.sizes.iter().find(|size| **size < smallest) {
            let what = match (self.transport, self.vlan) {
                (Transport::Udp, _) => "an Ethernet frame",
                (Transport::Tcp, None) => "a numbered TCP frame",
                (Transport::Tcp, Some(_)) => "a numbered TCP frame with a VLAN tag",
            };
            return Err(bad("--size", format!("{size} bytes are too few: {what} has {smallest} or more")));
        }
        if let Some(vlan) = self.vlan.filter(|vlan| !(1..=4094).contains(vlan)) {
            return Err(bad("--vlan", format!("{vlan} is not a VLAN id; those go from 1 to 4094")));
        }
        let (first, room) = match self.pattern {
            Pattern::Papers => (u32::from(self.dst), u32::MAX),
            Pattern::Sources => (u32::from(self.src), u32::MAX),
            Pattern::Ports => (u32::from(self.src_port), u32::from(u16::MAX)),
        };
        if self.flows == 0 || self.flows - 1 > room - first {
            let most = u64::from(room - first) + 1;
            let reason = format!("{} flows are not possible here; ask for 1 to {most}", self.flows);
            return Err(bad("--flows", reason));
        }
        Ok(())
    }
}

fn bad(option: &'static str, reason: String) -> Error {
    Error::BadOption { option, reason }
}

/// One frame with all constant fields, with the offsets and sums for the variable fields.
#[derive(Clone, Debug)]
pub struct Template {
    /// The largest frame, with variable fields zero.
    pub(crate) frame: Vec<u8>,
    pub(crate) sizes: Vec<u16>,
    pub(crate) flows: u32,
    pub(crate) transport: Transport,
    /// Offset of the IPv4 header.
    pub(crate) l3: usize,
    /// Offset of the transport header.
    pub(crate) l4: usize,
    /// Offset of the magic.
    pub(crate) payload: usize,
    /// Offset of the rotating field.
    pub(crate) rotating: usize,
    /// Whether the rotating field is a 16-bit port rather than a 32-bit address.
    pub(crate) rotates_port: bool,
    /// First value of the rotating field.
    pub(crate) first: u32,
    /// Sum over the IPv4 header without total length and rotating field.
    pub(crate) l3_sum: u32,
    /// Sum over pseudo header, transport header and magic, without lengths, rotating field and number.
    pub(crate) l4_sum: u32,
}

impl Template {
    /// The template of this traffic; an error if a packet of it cannot be built.
    pub fn new(traffic: &Traffic) -> Result<Template> {
        traffic.check()?;
        let largest = traffic.sizes.iter().copied().max().map_or(0, usize::from);
        let mut frame = Vec::with_capacity(largest);
        frame.extend_from_slice(&traffic.dst_mac.0);
        frame.extend_from_slice(&traffic.src_mac.0);
        if let Some(vlan) = traffic.vlan {
            frame.extend_from_slice(&0x8100_u16.to_be_bytes());
            frame.extend_from_slice(&vlan.to_be_bytes());
        }
        frame.extend_from_slice(&0x0800_u16.to_be_bytes());

        let l3 = frame.len();
        // Identification 0 with "don't fragment", as RFC 6864 requires for packets that are never fragmented.
        frame.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, traffic.transport.protocol(), 0, 0]);
        frame.extend_from_slice(&traffic.src.octets());
        frame.extend_from_slice(&traffic.dst.octets());

        let l4 = frame.len();
        frame.extend_from_slice(&traffic.src_port.to_be_bytes());
        frame.extend_from_slice(&traffic.dst_port.to_be_bytes());
        match traffic.transport {
            Transport::Udp => frame.extend_from_slice(&[0; 4]),
            Transport::Tcp => {
                let (sequence, acknowledged) = (1_u32, 1_u32);
                frame.extend_from_slice(&sequence.to_be_bytes());
                frame.extend_from_slice(&acknowledged.to_be_bytes());
                // Data offset 5 words, ACK and PSH, a full window, no checksum yet, no urgent data.
                frame.extend_from_slice(&[0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
            }
        }
        let payload = frame.len();
        frame.extend_from_slice(&MAGIC);
        frame.resize(largest, 0);

        let (rotating, first) = match traffic.pattern {
            Pattern::Papers => (l3 + 16, u32::from(traffic.dst)),
            Pattern::Sources => (l3 + 12, u32::from(traffic.src)),
            Pattern::Ports => (l4, u32::from(traffic.src_port)),
        };
        let rotates_port = traffic.pattern == Pattern::Ports;
        frame[rotating..rotating + if rotates_port { 2 } else { 4 }].fill(0);

        let l3_sum = checksum::add_bytes(0, &frame[l3..l4]);
        let pseudo = checksum::add_bytes(u32::from(traffic.transport.protocol()), &frame[l3 + 12..l4]);
        let l4_sum = checksum::add_bytes(pseudo, &frame[l4..payload + MAGIC.len()]);
        Ok(Template {
            frame,
            sizes: traffic.sizes.clone(),
            flows: traffic.flows,
            transport: traffic.transport,
            l3,
            l4,
            payload,
            rotating,
            rotates_port,
            first,
            l3_sum,
            l4_sum,
        })
    }

    /// Bytes of the largest frame, without FCS: the buffer size that [`Template::write`] needs.
    pub fn largest(&self) -> usize {
        self.frame.len()
    }

    /// Whether the frames carry an 802.1Q tag.
    pub fn has_vlan(&self) -> bool {
        self.l3 > ETHERNET_HEADER
    }

    /// Fills a buffer of [`Template::largest`] bytes with the constant fields.
    pub fn prepare(&self, frame: &mut [u8]) {
        frame.copy_from_slice(&self.frame);
    }

    /// Turns a prepared buffer into the packet with this number; returns the length of the frame in the buffer.
    pub fn write(&self, number: u64, frame: &mut [u8]) -> usize {
        let size = self.sizes[(number % self.sizes.len() as u64) as usize];
        let value = self.first + (number % u64::from(self.flows)) as u32;
        let l3_len = size - self.l3 as u16;
        let l4_len = size - self.l4 as u16;
        let value_sum = (value >> 16) + (value & 0xffff);

        if self.rotates_port {
            frame[self.rotating..self.rotating + 2].copy_from_slice(&(value as u16).to_be_bytes());
        } else {
            frame[self.rotating..self.rotating + 4].copy_from_slice(&value.to_be_bytes());
        }
        frame[self.l3 + 2..self.l3 + 4].copy_from_slice(&l3_len.to_be_bytes());
        let l3_sum = self.l3_sum + u32::from(l3_len) + if self.rotates_port { 0 } else { value_sum };
        frame[self.l3 + 10..self.l3 + 12].copy_from_slice(&checksum::finish(l3_sum).to_be_bytes());

        let number = number.to_be_bytes();
        let at = self.payload + MAGIC.len();
        frame[at..at + number.len()].copy_from_slice(&number);
        let l4_sum = checksum::add_bytes(self.l4_sum + value_sum + u32::from(l4_len), &number);
        match self.transport {
            Transport::Udp => {
                frame[self.l4 + 4..self.l4 + 6].copy_from_slice(&l4_len.to_be_bytes());
                // A UDP checksum of 0 means "none", so 0 is sent as its equal 0xffff (RFC 768).
                let sum = match checksum::finish(l4_sum + u32::from(l4_len)) {
                    0 => 0xffff,
                    sum => sum,
                };
                frame[self.l4 + 6..self.l4 + 8].copy_from_slice(&sum.to_be_bytes());
            }
            Transport::Tcp => {
                let sum = checksum::finish(l4_sum);
                frame[self.l4 + 16..self.l4 + 18].copy_from_slice(&sum.to_be_bytes());
            }
        }
        usize::from(size)
    }

    /// Total bytes of the `count` packets with the numbers `first`, `first + stride`, ...
    pub fn bytes_of(&self, first: u64, stride: u64, count: u64) -> u64 {
        let cycle = self.sizes.len() as u64;
        let size = |k: u64| u64::from(self.sizes[((first + k * stride) % cycle) as usize]);
        // After `cycle` steps of any stride the sizes repeat.
        let round: u64 = (0..cycle).map(size).sum();
        count / cycle * round + (0..count % cycle).map(size).sum::<u64>()
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
