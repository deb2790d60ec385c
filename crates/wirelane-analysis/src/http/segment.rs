//! Converts a packet to a TCP segment.

use wirelane::{Ip, Record, ip_flags, l3};

/// TCP flags.
pub const FIN: u8 = 0x01;
/// See [`FIN`].
pub const SYN: u8 = 0x02;
/// See [`FIN`].
pub const RST: u8 = 0x04;
const ACK: u8 = 0x10;

const NO_OFFSET: u16 = 0xffff;

/// A TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: Option<u32>,
    /// TCP flags.
    pub flags: u8,
    /// Payload bytes.
    pub len: u32,
    /// Captured payload: all of it, or its first part.
    pub data: &'a [u8],
    /// UTC time in nanoseconds.
    pub ts_ns: u64,
}

impl<'a> Segment<'a> {
    /// Segment from a reassembled datagram, from the TCP header on; sets the TCP fields of `ip`.
    pub fn of_datagram(datagram: &'a [u8], ip: &mut Ip, ts_ns: u64) -> Option<Segment<'a>> {
        let header = datagram.first_chunk::<20>()?;
        let word =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let size = usize::from(header[12] >> 4) * 4;
        let data = datagram.get(size..).filter(|_| size >= 20)?;
        ip.src_port = u16::from_ne_bytes([header[0], header[1]]);
        ip.dst_port = u16::from_ne_bytes([header[2], header[3]]);
        (ip.tcp_seq, ip.tcp_ack, ip.tcp_flags) = (word(4), word(8), header[13]);
        ip.flags = ip.flags & !(ip_flags::FRAGMENT | ip_flags::LATER) | ip_flags::PORTS | ip_flags::TCP;
        let ack = (ip.tcp_flags & ACK != 0).then_some(ip.tcp_ack);
        let len = u32::try_from(data.len()).ok()?;
        Some(Segment { seq: ip.tcp_seq, ack, flags: ip.tcp_flags, len, data, ts_ns })
    }

    /// Segment of a record with these headers; `None`: not TCP, or incomplete.
    pub fn of(record: &Record<'a>, ip: &Ip, ts_ns: u64) -> Option<Segment<'a>> {
        let tcp = ip.l3 != l3::NONE && ip.proto == 6 && ip.flags & ip_flags::TCP != 0;
        // A fragment has only a part of a segment, and its end is unknown: see [`Segment::of_datagram`].
        if !tcp || ip.flags & ip_flags::FRAGMENT != 0 || ip.payload_off == NO_OFFSET {
            return None;
        }
        let from = usize::from(ip.payload_off);
        let wire = record.wire_len() as usize;
        // Padding after the datagram is not payload. A jumbogram has no length field.
        let stated = match ip.l3_len {
            0 => wire,
            len => usize::from(ip.l3_off) + len as usize,
        };
        let len = stated.saturating_sub(from);
        let data = record.data().get(from..).unwrap_or_default();
        let data = &data[..data.len().min(len)];
        let len = u32::try_from(len).ok()?;
        let ack = (ip.tcp_flags & ACK != 0).then_some(ip.tcp_ack);
        Some(Segment { seq: ip.tcp_seq, ack, flags: ip.tcp_flags, len, data, ts_ns })
    }
}
