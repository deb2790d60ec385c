//! The classic pcap format: one header, one link type, a sequence of packets (draft-ietf-opsawg-pcap; libpcap's
//! pcap-savefile(5)).

use super::decode::{MAX_ITEM, Order, Packet, Step};
use super::interface::FileInterface;
use super::time::{Clock, TimestampResolution};

/// Bytes of the file header.
pub(super) const FILE_HEADER: usize = 24;

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Alexey Kuznetzov's variant of 1999, whose packet headers also contain an interface index and a protocol.
const MODIFIED: u32 = 0xa1b2_cd34;

/// Decoder of the packets of one pcap file.
#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    /// Bytes of a packet header.
    header: usize,
    seconds: Clock,
    fraction: Clock,
    lengths: Lengths,
}

/// Order of a packet's two lengths. Files up to version 2.2 have the wire length first, those of version 2.3 may have
/// either order, later ones have the captured length first.
#[derive(Clone, Copy, Debug)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    SmallerIsCaptured,
}

/// The byte order of a file with these first bytes, if it is a pcap file.
pub(super) fn recognise(magic: [u8; 4]) -> Option<Order> {
    let is_ours = |magic| matches!(magic, MICROSECONDS | NANOSECONDS | MODIFIED);
    match () {
        () if is_ours(u32::from_le_bytes(magic)) => Some(Order::Little),
        () if is_ours(u32::from_be_bytes(magic)) => Some(Order::Big),
        () => None,
    }
}

impl Decoder {
    /// Reads the file header; the error is the reason why it is invalid.
    pub(super) fn new(
        header: &[u8; FILE_HEADER],
        order: Order,
    ) -> std::result::Result<(Decoder, FileInterface), String> {
        let magic = order.u32(header, 0);
        let version = (order.u16(header, 4), order.u16(header, 6));
        let lengths = match version {
            (2, 0..=2) | (543, 0) => Lengths::WireFirst,
            (2, 3) => Lengths::SmallerIsCaptured,
            (2, 4) => Lengths::CapturedFirst,
            (major, minor) => {
                return Err(format!(
                    "pcap version {major}.{minor} is not supported; versions 2.0 to 2.4 are"
                ));
            }
        };
        let resolution = TimestampResolution::Decimal(if magic == NANOSECONDS { 9 } else { 6 });
        // The highest bits indicate whether frames end in a check sequence; the link type is below them.
        let link_number = order.u32(header, 20) & 0x03ff_ffff;
        let decoder = Decoder {
            order,
            header: if magic == MODIFIED { 24 } else { 16 },
            seconds: Clock::new(TimestampResolution::Decimal(0), 0),
            fraction: Clock::new(resolution, 0),
            lengths,
        };
        Ok((decoder, FileInterface::new(link_number, order.u32(header, 16), resolution, 0)))
    }

    /// The next step, for bytes that start at a packet.
    pub(super) fn step(&self, bytes: &[u8]) -> Step {
        if bytes.len() < self.header {
            return Step::need(self.header, "a packet header");
        }
        let [sec, frac, first, second] = [0, 4, 8, 12].map(|at| self.order.u32(bytes, at));
        let (cap_len, wire_len) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::WireFirst => (second, first),
            Lengths::SmallerIsCaptured => (first.min(second), first.max(second)),
        };
        let size = self.header + cap_len as usize;
        if size > MAX_ITEM {
            return Step::damage(format!(
                "a packet of {cap_len} captured bytes, more than the {MAX_ITEM} that a packet may have; \
                 this is not where a packet starts"
            ));
        }
        if bytes.len() < size {
            return Step::need(size, "a packet");
        }
        Step::Packet(Packet {
            size,
            data: self.header..size,
            wire_len,
            // Both have 32 bits: their sum cannot overflow.
            ts_ns: self.seconds.nanoseconds(sec.into()) + self.fraction.nanoseconds(frac.into()),
            interface: 0,
            egress: false,
            aggregate: None,
        })
    }
}
