//! Layout of generated packets.
//!
//! ```text
//! Ethernet 14 | VLAN tags 4 each, up to 2 | IPv4 20 or IPv6 40 | UDP 8 or TCP 20 | number, time, stream | zeros
//! ```
//!
//! The bytes after the transport header are those of [`super::stamp`], the same for every protocol, so any receiver can
//! account for each packet.
//!
//! A [`Template`] holds one frame with all constant fields, and the sums of its constant parts; the fields that change
//! from packet to packet are written over it, here for the socket and in `bpf/generate.bpf.c` for live frames.

use std::net::IpAddr;

use super::checksum;
use super::pattern::{Pattern, Traffic, Transport, low_bits};
use super::stamp::{MAGIC, NUMBER_BYTES, STAMP_BYTES, STAMP_MAGIC};
use crate::Result;

/// One frame with all constant fields, with the offsets and sums for the variable fields.
#[derive(Clone, Debug)]
pub struct Template {
    /// The largest frame, with variable fields zero.
    pub(crate) frame: Vec<u8>,
    pub(crate) sizes: Vec<u16>,
    pub(crate) flows: u32,
    pub(crate) transport: Transport,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    pub(crate) ipv6: bool,
    /// Offset of the transport header.
    pub(crate) l4: usize,
    /// Offset of the magic.
    pub(crate) payload: usize,
    /// The stream, if packets carry it and the time.
    pub(crate) stream: Option<u16>,
    /// Offset of the rotating field.
    pub(crate) rotating: usize,
    /// Whether the rotating field is a 16-bit port rather than the last 32 bits of an address.
    pub(crate) rotates_port: bool,
    /// First value of the rotating field.
    pub(crate) first: u32,
    /// Sum over the IPv4 header without total length and rotating field.
    pub(crate) l3_sum: u32,
    /// Sum over pseudo header, transport header, magic and stream, without lengths, rotating field, number and time.
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
        for (at, vlan) in traffic.vlans.iter().enumerate() {
            // The outer one of two tags is a service tag (IEEE 802.1ad).
            let inner = at + 1 == traffic.vlans.len();
            let protocol: u16 = if inner { 0x8100 } else { 0x88a8 };
            frame.extend_from_slice(&protocol.to_be_bytes());
            frame.extend_from_slice(&vlan.to_be_bytes());
        }
        let ether_type: u16 = if traffic.is_ipv6() { 0x86dd } else { 0x0800 };
        frame.extend_from_slice(&ether_type.to_be_bytes());

        let l3 = frame.len();
        let protocol = traffic.transport.protocol();
        if traffic.is_ipv6() {
            frame.extend_from_slice(&[0x60, 0, 0, 0, 0, 0, protocol, 64]);
        } else {
            // Identification 0 with "don't fragment", as RFC 6864 requires for packets that are never fragmented.
            frame.extend_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        }
        let addresses = frame.len();
        for address in [traffic.src, traffic.dst] {
            match address {
                IpAddr::V4(address) => frame.extend_from_slice(&address.octets()),
                IpAddr::V6(address) => frame.extend_from_slice(&address.octets()),
            }
        }

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
        frame.extend_from_slice(if traffic.stream.is_some() { &STAMP_MAGIC } else { &MAGIC });
        frame.resize(largest, 0);
        if let Some(stream) = traffic.stream {
            frame[payload + STAMP_BYTES - 2..payload + STAMP_BYTES].copy_from_slice(&stream.to_be_bytes());
        }

        let half = (l4 - addresses) / 2;
        let (rotating, first) = match traffic.pattern {
            Pattern::Papers => (l4 - 4, low_bits(traffic.dst)),
            Pattern::Sources => (addresses + half - 4, low_bits(traffic.src)),
            Pattern::Ports => (l4, u32::from(traffic.src_port)),
        };
        let rotates_port = traffic.pattern == Pattern::Ports;
        frame[rotating..rotating + if rotates_port { 2 } else { 4 }].fill(0);

        let l3_sum = checksum::add_bytes(0, &frame[l3..l4]);
        let pseudo = checksum::add_bytes(u32::from(protocol), &frame[addresses..l4]);
        let l4_sum = checksum::add_bytes(pseudo, &frame[l4..payload + MAGIC.len()])
            + u32::from(traffic.stream.unwrap_or(0));
        Ok(Template {
            frame,
            sizes: traffic.sizes.clone(),
            flows: traffic.flows,
            transport: traffic.transport,
            l3,
            ipv6: traffic.is_ipv6(),
            l4,
            payload,
            stream: traffic.stream,
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

    /// Whether the frames have a VLAN tag for which a device accepts 4 bytes more than its MTU allows otherwise: an
    /// 802.1Q tag that is the first (net/packet/af_packet.c, `packet_extra_vlan_len_allowed()`).
    pub fn has_vlan(&self) -> bool {
        self.frame[12..14] == [0x81, 0]
    }

    /// Whether packets carry the time of sending.
    pub fn is_stamped(&self) -> bool {
        self.stream.is_some()
    }

    /// Bytes of all headers with number, time and stream.
    pub(crate) fn head(&self) -> usize {
        self.payload + if self.is_stamped() { STAMP_BYTES } else { NUMBER_BYTES }
    }

    /// Fills a buffer of [`Template::largest`] bytes or more with the constant fields.
    pub fn prepare(&self, frame: &mut [u8]) {
        frame[..self.frame.len()].copy_from_slice(&self.frame);
    }

    /// Turns a prepared buffer into the packet with this number, of this flow and, if packets are stamped, with this time
    /// of sending; returns the length of the frame in the buffer.
    pub fn write(&self, number: u64, flow: u64, sent_ns: u64, frame: &mut [u8]) -> usize {
        let size = self.sizes[(number % self.sizes.len() as u64) as usize];
        let value = self.first + flow as u32;
        let l3_len = size - self.l3 as u16;
        let l4_len = size - self.l4 as u16;
        let value_sum = (value >> 16) + (value & 0xffff);

        if self.rotates_port {
            frame[self.rotating..self.rotating + 2].copy_from_slice(&(value as u16).to_be_bytes());
        } else {
            frame[self.rotating..self.rotating + 4].copy_from_slice(&value.to_be_bytes());
        }
        if self.ipv6 {
            frame[self.l3 + 4..self.l3 + 6].copy_from_slice(&l4_len.to_be_bytes());
        } else {
            frame[self.l3 + 2..self.l3 + 4].copy_from_slice(&l3_len.to_be_bytes());
            let l3_sum = self.l3_sum + u32::from(l3_len) + if self.rotates_port { 0 } else { value_sum };
            frame[self.l3 + 10..self.l3 + 12].copy_from_slice(&checksum::finish(l3_sum).to_be_bytes());
        }

        let number = number.to_be_bytes();
        let at = self.payload + MAGIC.len();
        frame[at..at + number.len()].copy_from_slice(&number);
        let mut l4_sum = checksum::add_bytes(self.l4_sum + value_sum + u32::from(l4_len), &number);
        if self.is_stamped() {
            let time = sent_ns.to_be_bytes();
            let at = self.payload + NUMBER_BYTES;
            frame[at..at + time.len()].copy_from_slice(&time);
            l4_sum = checksum::add_bytes(l4_sum, &time);
        }
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
#[path = "template_tests.rs"]
mod tests;
