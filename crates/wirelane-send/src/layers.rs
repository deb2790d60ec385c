//! Positions of headers in an Ethernet frame of a replay.

/// Maximum number of VLAN tags that are skipped.
const MOST_TAGS: usize = 8;

/// The IP packet of a frame, or the packet inside of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ip {
    /// Offset of the IP header.
    pub(super) start: usize,
    pub(super) ipv6: bool,
    /// Protocol of the transport header.
    pub(super) protocol: u8,
    /// Offset of the transport header; `None`: the packet is a later fragment, or its headers are cut.
    pub(super) transport: Option<usize>,
    /// Identification, if the packet is a fragment.
    pub(super) fragment: Option<u32>,
    /// Whether the destination in the header is not the final one, which is in a routing header and in the checksum.
    pub(super) routed: bool,
    /// Whether the checksum covers the address of a Home Address option instead of the source in the header (RFC 6275).
    pub(super) from_home: bool,
}

impl Ip {
    /// Offset and length of the addresses, source before destination.
    pub(super) fn addresses(&self) -> (usize, usize) {
        if self.ipv6 { (self.start + 8, 16) } else { (self.start + 12, 4) }
    }

    /// Offset of the checksum of the transport header, if the protocol has one that covers the addresses.
    pub(super) fn checksum(&self) -> Option<usize> {
        let inside = match (self.protocol, self.ipv6) {
            (6, _) => 16,
            // UDP, DCCP, UDP-Lite.
            (17 | 33 | 136, _) => 6,
            (58, true) => 2,
            _ => return None,
        };
        Some(self.transport? + inside)
    }
}

/// Payload of a frame's link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Ip(Ip),
    /// ARP for IPv4 over Ethernet: offset of its header.
    Arp(usize),
    Other,
}

pub(super) fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Finds the headers of an Ethernet frame.
pub(super) fn layer(frame: &[u8]) -> Layer {
    let mut at = 12;
    for _ in 0..MOST_TAGS {
        match u16_at(frame, at) {
            // 802.1Q, 802.1ad, and the usual value before that.
            Some(0x8100 | 0x88a8 | 0x9100) => at += 4,
            Some(0x0800 | 0x86dd) => return ip(frame, at + 2).map_or(Layer::Other, Layer::Ip),
            Some(0x0806) if frame.get(at + 2..at + 8) == Some(&[0, 1, 8, 0, 6, 4]) => {
                return Layer::Arp(at + 2);
            }
            _ => return Layer::Other,
        }
    }
    Layer::Other
}

/// The IP packet whose header begins here; `None` if there is none.
pub(super) fn ip(frame: &[u8], start: usize) -> Option<Ip> {
    match frame.get(start)? >> 4 {
        4 => ipv4(frame, start),
        6 => ipv6(frame, start),
        _ => None,
    }
}

fn ipv4(frame: &[u8], start: usize) -> Option<Ip> {
    let header = usize::from(frame[start] & 0xf) * 4;
    if header < 20 {
        return None;
    }
    let flags = u16_at(frame, start + 6)?;
    let protocol = *frame.get(start + 9)?;
    let fragment = if flags & 0x3fff == 0 { None } else { u16_at(frame, start + 4).map(u32::from) };
    let transport = (flags & 0x1fff == 0).then_some(start + header);
    Some(Ip { start, ipv6: false, protocol, transport, fragment, routed: false, from_home: false })
}

fn ipv6(frame: &[u8], start: usize) -> Option<Ip> {
    let mut ip = Ip {
        start,
        ipv6: true,
        protocol: *frame.get(start + 6)?,
        transport: None,
        fragment: None,
        routed: false,
        from_home: false,
    };
    let mut at = start + 40;
    // Each header has 8 bytes or more, so the end of the frame ends the loop.
    loop {
        let (Some(next), Some(length)) = (frame.get(at).copied(), frame.get(at + 1).copied()) else {
            return Some(ip);
        };
        match ip.protocol {
            // Hop-by-hop options, destination options, routing.
            0 | 60 | 43 => {
                let end = at + (usize::from(length) + 1) * 8;
                ip.from_home |= ip.protocol == 60 && has_home_address(frame.get(at + 2..end));
                ip.routed |= ip.protocol == 43 && frame.get(at + 3).is_some_and(|left| *left > 0);
                at = end;
            }
            44 => {
                let offset = u16_at(frame, at + 2).map(|field| field >> 3);
                let id = frame.get(at + 4..).and_then(|bytes| bytes.first_chunk());
                ip.fragment = id.map(|id| u32::from_be_bytes(*id));
                if offset != Some(0) {
                    ip.protocol = next;
                    return Some(ip);
                }
                at += 8;
            }
            // Authentication header.
            51 => at += (usize::from(length) + 2) * 4,
            _ => {
                ip.transport = Some(at);
                return Some(ip);
            }
        }
        ip.protocol = next;
    }
}

/// Whether an ICMP message quotes a packet: destination unreachable, source quench, redirect, time exceeded and parameter
/// problem (RFC 792); error messages of ICMPv6 (RFC 4443).
pub(super) fn is_icmp_error(frame: &[u8], ip: &Ip, start: usize) -> bool {
    let Some(kind) = frame.get(start) else { return false };
    match (ip.protocol, ip.ipv6) {
        (1, false) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (58, true) => *kind < 128,
        _ => false,
    }
}

/// Whether destination options have a Home Address option.
fn has_home_address(options: Option<&[u8]>) -> bool {
    let mut rest = options.unwrap_or_default();
    loop {
        match rest {
            [0xc9, ..] => return true,
            // One byte of padding.
            [0, ..] => rest = &rest[1..],
            [_, length, ..] => rest = rest.get(2 + usize::from(*length)..).unwrap_or_default(),
            _ => return false,
        }
    }
}
