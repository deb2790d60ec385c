use std::net::Ipv4Addr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::super::pattern::{IMIX, Transport};
use super::super::stamp::{Stamp, numbered};
use super::*;

/// The time of sending of stamped packets.
const TIME: u64 = 1_700_000_000_123_456_789;

/// VLAN tags: none, one, two.
const TAGS: [&[u16]; 3] = [&[], &[42], &[100, 7]];

fn packet(template: &Template, number: u64) -> Vec<u8> {
    let mut frame = vec![0xa5; template.largest()];
    template.prepare(&mut frame);
    // All data of an earlier packet has to be overwritten.
    let flows = u64::from(template.flows);
    let other = number.wrapping_mul(31) ^ 0xffff_ffff_0f0f;
    template.write(other, other % flows, u64::MAX, &mut frame);
    let size = template.write(number, number % flows, TIME, &mut frame);
    frame.truncate(size);
    frame
}

/// Parses a packet with an independent parser: source, destination, source port, payload.
fn read(frame: &[u8]) -> (IpAddr, IpAddr, u16, Vec<u8>) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let offset = 14 + 4 * sliced.link_exts.len();
    let (source, destination): (IpAddr, IpAddr) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            assert_eq!(usize::from(header.total_len), frame.len() - offset);
            (header.source.into(), header.destination.into())
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.payload_length), frame.len() - offset - 40);
            (header.source.into(), header.destination.into())
        }
        other => panic!("no IP: {other:?}"),
    };
    let (port, payload) = match (&sliced.transport, &sliced.net) {
        (Some(TransportSlice::Udp(udp)), Some(net)) => {
            let sum = match net {
                NetSlice::Ipv4(ip) => {
                    udp.to_header().calc_checksum_ipv4(&ip.header().to_header(), udp.payload())
                }
                NetSlice::Ipv6(ip) => {
                    udp.to_header().calc_checksum_ipv6(&ip.header().to_header(), udp.payload())
                }
                NetSlice::Arp(_) => panic!("UDP over ARP"),
            };
            assert_eq!(udp.checksum(), sum.unwrap());
            assert_ne!(udp.checksum(), 0);
            assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
            (udp.source_port(), udp.payload())
        }
        (Some(TransportSlice::Tcp(tcp)), Some(net)) => {
            let sum = match net {
                NetSlice::Ipv4(ip) => {
                    tcp.to_header().calc_checksum_ipv4(&ip.header().to_header(), tcp.payload())
                }
                NetSlice::Ipv6(ip) => {
                    tcp.to_header().calc_checksum_ipv6(&ip.header().to_header(), tcp.payload())
                }
                NetSlice::Arp(_) => panic!("TCP over ARP"),
            };
            assert_eq!(tcp.checksum(), sum.unwrap());
            (tcp.source_port(), tcp.payload())
        }
        other => panic!("no transport: {other:?}"),
    };
    (source, destination, port, payload.to_vec())
}

fn variants() -> Vec<Traffic> {
    let mut all = Vec::new();
    for transport in [Transport::Udp, Transport::Tcp] {
        for pattern in [Pattern::Papers, Pattern::Sources, Pattern::Ports] {
            for vlans in TAGS {
                for ipv6 in [false, true] {
                    for stream in [None, Some(65_535)] {
                        let mut traffic =
                            Traffic { transport, pattern, vlans: vlans.to_vec(), stream, ..with(ipv6) };
                        traffic.flows = 1000;
                        traffic.sizes = vec![traffic.smallest_size() + 1];
                        all.push(traffic.clone());
                        traffic.sizes = IMIX.map(|size| size.max(traffic.smallest_size())).to_vec();
                        all.push(traffic);
                    }
                }
            }
        }
    }
    all
}

/// Default traffic of an IP version; the last 16 bits of its addresses overflow with 1000 flows.
fn with(ipv6: bool) -> Traffic {
    if ipv6 {
        let (src, dst) = ("2001:db8::fffe:fe00", "2001:db8:1::1:ff00");
        return Traffic { src: src.parse().unwrap(), dst: dst.parse().unwrap(), ..Traffic::default() };
    }
    Traffic { src: Ipv4Addr::new(10, 0, 254, 1).into(), ..Traffic::default() }
}

fn plus(address: IpAddr, flow: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() + flow).into(),
        IpAddr::V6(address) => std::net::Ipv6Addr::from_bits(address.to_bits() + u128::from(flow)).into(),
    }
}

#[test]
fn an_independent_parser_agrees() {
    for traffic in variants() {
        let template = Template::new(&traffic).unwrap();
        let numbers = (0..3000).chain([0xffff, 0x1_0000, u64::from(u32::MAX), u64::MAX - 7, u64::MAX]);
        for number in numbers {
            let frame = packet(&template, number);
            assert_eq!(
                frame.len(),
                usize::from(traffic.sizes[(number % traffic.sizes.len() as u64) as usize])
            );
            let flow = (number % 1000) as u32;
            let (src, dst, port, payload) = read(&frame);
            let sent_ns = traffic.stream.map(|_| TIME);
            let stream = traffic.stream.unwrap_or(0);
            assert_eq!(Stamp::read(&payload), Some(Stamp { number, stream, sent_ns }));
            let expected = match traffic.pattern {
                Pattern::Papers => (traffic.src, plus(traffic.dst, flow), traffic.src_port),
                Pattern::Sources => (plus(traffic.src, flow), traffic.dst, traffic.src_port),
                Pattern::Ports => (traffic.src, traffic.dst, traffic.src_port + flow as u16),
            };
            assert_eq!((src, dst, port), expected);
        }
    }
}

#[test]
fn imix_is_28_16_4() {
    let of = |size| IMIX.iter().filter(|each| **each == size).count() * 4;
    assert_eq!((of(60), of(566), of(1514)), (28, 16, 4));
}

#[test]
fn smallest_sizes_have_room_for_the_number() {
    for transport in [Transport::Udp, Transport::Tcp] {
        for (vlans, ipv6) in TAGS.into_iter().flat_map(|tags| [(tags, false), (tags, true)]) {
            let mut traffic = Traffic { transport, vlans: vlans.to_vec(), ..with(ipv6) };
            let smallest = traffic.smallest_size();
            traffic.sizes = vec![smallest];
            let frame = packet(&Template::new(&traffic).unwrap(), 99);
            assert_eq!(numbered(&read(&frame).3), Some(99));
            traffic.sizes = vec![smallest - 1];
            assert!(Template::new(&traffic).is_err());
        }
    }
    assert_eq!(Traffic::default().smallest_size(), 60);
}

#[test]
fn nonsense_is_refused() {
    let wrong = [
        Traffic { flows: 0, ..Traffic::default() },
        Traffic { sizes: vec![], ..Traffic::default() },
        Traffic { vlans: vec![0], ..Traffic::default() },
        Traffic { vlans: vec![7, 4095], ..Traffic::default() },
        Traffic { vlans: vec![1, 2, 3], ..Traffic::default() },
        Traffic { src: "fd00::1".parse().unwrap(), ..Traffic::default() },
        Traffic { weight: 0, ..Traffic::default() },
        Traffic { pattern: Pattern::Ports, src_port: 65_535, flows: 2, ..Traffic::default() },
        Traffic { dst: Ipv4Addr::BROADCAST.into(), flows: 2, ..Traffic::default() },
    ];
    for traffic in wrong {
        assert!(Template::new(&traffic).is_err(), "{traffic:?}");
    }
    let last = Traffic { dst: Ipv4Addr::BROADCAST.into(), flows: 1, ..Traffic::default() };
    assert!(Template::new(&last).is_ok());
}

#[test]
fn bytes_are_counted_as_they_are_sent() {
    let template = Template::new(&Traffic { sizes: IMIX.to_vec(), ..Traffic::default() }).unwrap();
    let mut frame = template.frame.clone();
    for (first, stride) in [(0, 1), (1, 2), (2, 3), (0, 12), (5, 7)] {
        for count in [0, 1, 5, 12, 13, 100] {
            let written: usize =
                (0..count).map(|k| template.write(first + k * stride, 0, TIME, &mut frame)).sum();
            assert_eq!(template.bytes_of(first, stride, count), written as u64, "{first} {stride} {count}");
        }
    }
}
