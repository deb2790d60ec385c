//! Captures made by hand, byte by byte, in either byte order.

/// Byte order of what is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

pub(super) use Order::{Big, Little};

impl Order {
    pub(super) fn n16(self, value: u16) -> [u8; 2] {
        if self == Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(super) fn n32(self, value: u32) -> [u8; 4] {
        if self == Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    pub(super) fn n64(self, value: u64) -> [u8; 8] {
        if self == Big { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// A block of this type around a body, padded.
    pub(super) fn block(self, kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let length = self.n32(padded as u32 + 12);
        let padding = vec![0; padded - body.len()];
        [&self.n32(kind)[..], &length, body, &padding, &length].concat()
    }

    /// A Section Header Block.
    pub(super) fn section(self) -> Vec<u8> {
        let body = [&self.n32(0x1a2b_3c4d)[..], &self.n16(1), &self.n16(0), &self.n64(u64::MAX)].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    /// One option, padded.
    pub(super) fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = [&self.n16(code)[..], &self.n16(value.len() as u16), value].concat();
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    /// An Interface Description Block with these options, as bytes.
    pub(super) fn interface(self, link: u16, snap_len: u32, options: &[u8]) -> Vec<u8> {
        self.block(1, &[&self.n16(link)[..], &[0, 0], &self.n32(snap_len), options].concat())
    }

    /// An Enhanced Packet Block with these options, as bytes.
    pub(super) fn enhanced(
        self,
        interface: u32,
        units: u64,
        data: &[u8],
        wire: u32,
        options: &[u8],
    ) -> Vec<u8> {
        let numbers = [interface, (units >> 32) as u32, units as u32, data.len() as u32, wire];
        let mut body: Vec<u8> =
            numbers.iter().flat_map(|&n| self.n32(n)).chain(data.iter().copied()).collect();
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend_from_slice(options);
        self.block(6, &body)
    }

    /// An Enhanced Packet Block that was captured whole at microsecond `units`.
    pub(super) fn packet(self, interface: u32, units: u64, data: &[u8]) -> Vec<u8> {
        self.enhanced(interface, units, data, data.len() as u32, &[])
    }

    /// A Simple Packet Block.
    pub(super) fn simple(self, data: &[u8], wire: u32) -> Vec<u8> {
        self.block(3, &[&self.n32(wire)[..], data].concat())
    }

    /// A Packet Block, the obsolete kind.
    pub(super) fn obsolete(self, interface: u16, units: u64, data: &[u8], wire: u32) -> Vec<u8> {
        let numbers = [(units >> 32) as u32, units as u32, data.len() as u32, wire];
        let mut body = [self.n16(interface), self.n16(7)].concat();
        body.extend(numbers.iter().flat_map(|&n| self.n32(n)));
        body.extend_from_slice(data);
        self.block(2, &body)
    }

    /// The header of a pcap file.
    pub(super) fn pcap(self, magic: u32, version: (u16, u16), snap_len: u32, link: u32) -> Vec<u8> {
        [
            &self.n32(magic)[..],
            &self.n16(version.0),
            &self.n16(version.1),
            &[0; 8],
            &self.n32(snap_len),
            &self.n32(link),
        ]
        .concat()
    }

    /// A packet of a pcap file: header of four numbers, `extra` bytes behind them, data.
    pub(super) fn pcap_packet(self, header: [u32; 4], extra: &[u8], data: &[u8]) -> Vec<u8> {
        let mut packet: Vec<u8> = header.iter().flat_map(|&n| self.n32(n)).collect();
        packet.extend_from_slice(extra);
        packet.extend_from_slice(data);
        packet
    }
}

/// Magic of a pcap file with microseconds.
pub(super) const MICRO: u32 = 0xa1b2_c3d4;
/// Magic of a pcap file with nanoseconds.
pub(super) const NANO: u32 = 0xa1b2_3c4d;
/// Magic of the modified pcap format.
pub(super) const MODIFIED: u32 = 0xa1b2_cd34;
