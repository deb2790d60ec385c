use etherparse::{NetSlice, SlicedPacket, TransportSlice};

use super::*;

fn packet(template: &Template, number: u64) -> Vec<u8> {
    let mut frame = vec![0xa5; template.largest()];
    template.prepare(&mut frame);
    // All data of an earlier packet has to be overwritten.
    template.write(number.wrapping_mul(31) ^ 0xffff_ffff_0f0f, &mut frame);
    let size = template.write(number, &mut frame);
    frame.truncate(size);
    frame
}

/// Parses a packet with an independent parser: source, destination, source port, payload.
fn read(frame: &[u8]) -> (Ipv4Addr, Ipv4Addr, u16, Vec<u8>) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("no IPv4 in {frame:02x?}") };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let offset = if sliced.link_exts.is_empty() { 14 } else { 18 };
    assert_eq!(usize::from(header.total_len), frame.len() - offset);
    let (port, payload) = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
            assert_eq!(udp.checksum(), sum);
            assert_ne!(udp.checksum(), 0);
            assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
            (udp.source_port(), udp.payload())
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let sum = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).unwrap();
            assert_eq!(tcp.checksum(), sum);
            (tcp.source_port(), tcp.payload())
        }
        other => panic!("no transport: {other:?}"),
    };
    (header.source.into(), header.destination.into(), port, payload.to_vec())
}

fn variants() -> Vec<Traffic> {
    let mut all = Vec::new();
    for transport in [Transport::Udp, Transport::Tcp] {
        for pattern in [Pattern::Papers, Pattern::Sources, Pattern::Ports] {
            for vlan in [None, Some(42)] {
                for sizes in [vec![70], IMIX.iter().map(|size| (*size).max(70)).collect()] {
                    all.push(Traffic { sizes, transport, pattern, vlan, flows: 1000, ..Traffic::default() });
                }
            }
        }
    }
    all
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
            assert_eq!(numbered(&payload), Some(number));
            let expected = match traffic.pattern {
                Pattern::Papers => {
                    (traffic.src, Ipv4Addr::from(u32::from(traffic.dst) + flow), traffic.src_port)
                }
                Pattern::Sources => {
                    (Ipv4Addr::from(u32::from(traffic.src) + flow), traffic.dst, traffic.src_port)
                }
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
fn numbered_reads_only_what_is_numbered() {
    let mut payload = MAGIC.to_vec();
    payload.extend_from_slice(&7_u64.to_be_bytes());
    assert_eq!(numbered(&payload), Some(7));
    assert_eq!(numbered(&payload[..11]), None);
    payload[0] ^= 1;
    assert_eq!(numbered(&payload), None);
    assert_eq!(numbered(&[]), None);
}

#[test]
fn smallest_sizes_have_room_for_the_number() {
    for transport in [Transport::Udp, Transport::Tcp] {
        for vlan in [None, Some(1)] {
            let mut traffic = Traffic { transport, vlan, ..Traffic::default() };
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
        Traffic { vlan: Some(0), ..Traffic::default() },
        Traffic { vlan: Some(4095), ..Traffic::default() },
        Traffic { pattern: Pattern::Ports, src_port: 65_535, flows: 2, ..Traffic::default() },
        Traffic { dst: Ipv4Addr::BROADCAST, flows: 2, ..Traffic::default() },
    ];
    for traffic in wrong {
        assert!(Template::new(&traffic).is_err(), "{traffic:?}");
    }
    let last = Traffic { dst: Ipv4Addr::BROADCAST, flows: 1, ..Traffic::default() };
    assert!(Template::new(&last).is_ok());
}

#[test]
fn bytes_are_counted_as_they_are_sent() {
    let template = Template::new(&Traffic { sizes: IMIX.to_vec(), ..Traffic::default() }).unwrap();
    let mut frame = template.frame.clone();
    for (first, stride) in [(0, 1), (1, 2), (2, 3), (0, 12), (5, 7)] {
        for count in [0, 1, 5, 12, 13, 100] {
            let written: usize = (0..count).map(|k| template.write(first + k * stride, &mut frame)).sum();
            assert_eq!(template.bytes_of(first, stride, count), written as u64, "{first} {stride} {count}");
        }
    }
}
