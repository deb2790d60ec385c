//! Addresses, ports and protocol of a packet, from the headers that the parser has found.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wirelane_bpf::layout::{Ip, NO_OFFSET, RecordHeader, ip_flags, l3};

/// Addresses, ports and protocol of the headers that a record is steered by: the outer ones, or with
/// [`crate::Builder::inner_headers`] those in the innermost tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// Source address; for ARP the sender's.
    pub src: IpAddr,
    /// Destination address; for ARP the target's.
    pub dst: IpAddr,
    /// Source and destination port, where the protocol has them and this packet contains them: later fragments do not.
    pub ports: Option<(u16, u16)>,
    /// IP protocol of the transport header (IANA's number: 6 is TCP); `None` for ARP.
    pub protocol: Option<u8>,
}

impl Headers {
    /// The headers that a digest describes.
    pub(crate) fn of_digest(ip: &Ip) -> Option<Headers> {
        Some(Headers {
            src: address(ip.l3, &ip.src)?,
            dst: address(ip.l3, &ip.dst)?,
            ports: (ip.flags & ip_flags::PORTS != 0)
                .then(|| (u16::from_be(ip.src_port), u16::from_be(ip.dst_port))),
            protocol: (ip.l3 != l3::ARP).then_some(ip.proto),
        })
    }

    /// The headers of a packet, at the offsets in its record. `None`: no network layer, or the packet was cut before.
    pub(crate) fn of_packet(header: &RecordHeader, data: &[u8]) -> Option<Headers> {
        let network = data.get(usize::from(header.l3_off)..)?;
        // Offsets of the addresses: RFC 826 (of Ethernet and IPv4), RFC 791, RFC 8200.
        let (src, dst, length) = match header.l3 {
            l3::ARP => (14, 24, 4),
            l3::IPV4 => (12, 16, 4),
            l3::IPV6 => (8, 24, 16),
            _ => return None,
        };
        // The same test as in wl_read_arp(): addresses of other kinds are not read.
        let is_known = header.l3 != l3::ARP || network.get(2..6)? == [8, 0, 6, 4];
        let at = |from: usize| address(header.l3, network.get(from..from + length)?);
        let ports = || {
            let transport = data.get(usize::from(header.l4_off)..)?;
            let &[a, b, c, d, ..] = transport else { return None };
            Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        };
        let has_ports = header.l4_off != NO_OFFSET && PORTED.contains(&header.proto);
        if !is_known {
            return None;
        }
        Some(Headers {
            src: at(src)?,
            dst: at(dst)?,
            ports: if has_ports { ports() } else { None },
            protocol: (header.l3 != l3::ARP).then_some(header.proto),
        })
    }
}

/// Protocols that begin with two ports: those of `bpf/lib/transport.h`.
const PORTED: [u8; 5] = [6, 17, 33, 132, 136];

/// An address of this layer in the first bytes; 4 bytes may be given instead of 16.
fn address(layer: u8, bytes: &[u8]) -> Option<IpAddr> {
    match layer {
        l3::ARP | l3::IPV4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        l3::IPV6 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wirelane_bpf::native;

    use super::*;
    use crate::{FileOptions, FileSource};
    use wirelane_testing::packets::{corpus, files};

    #[test]
    fn what_stands_at_the_offsets_is_what_the_parser_has_found() {
        let Some(corpus) = corpus("what_stands_at_the_offsets_is_what_the_parser_has_found") else { return };
        let (mut packets, mut ported) = (0, 0);
        for file in files(&corpus) {
            let Ok(mut source) = FileSource::open(&file, FileOptions::as_written()) else {
                continue;
            };
            while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
                for record in batch {
                    let found = record.headers();
                    let all = native::parse(record.link_type(), record.data(), true);
                    let expected = Headers::of_digest(&all.outer);
                    let header = record.header();
                    if found.is_none() && header.l3 == l3::ARP {
                        // Cut, or not of Ethernet and IPv4: the parser reports zeros.
                        assert_eq!(expected.map(|headers| headers.src), Some(Ipv4Addr::UNSPECIFIED.into()));
                        continue;
                    }
                    assert_eq!(found, expected, "{}: {header:?}", file.display());
                    packets += 1;
                    ported += u64::from(found.is_some_and(|headers| headers.ports.is_some()));
                }
            }
        }
        assert!(packets > 100_000 && ported > packets / 2, "{packets} {ported}");
    }
}
