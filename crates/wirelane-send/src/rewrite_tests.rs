use etherparse::PacketBuilder;
use proptest::prelude::*;

use super::super::checksum;
use super::*;

fn rules() -> Rewrite {
    Rewrite {
        src_mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        dst_mac: None,
        addresses: ["10.0.0.0/8=172.0.0.0/8", "192.168.7.1=198.51.100.9", "fd00::/16=fdaa::/16"]
            .map(|text| text.parse().unwrap())
            .to_vec(),
        ports: ["80=8080", "53=5353"].map(|text| text.parse().unwrap()).to_vec(),
    }
}

/// The sum over pseudo header and payload of a frame with an IP packet without options; 0 if its checksum is right.
fn transport_sum(frame: &[u8]) -> u16 {
    let Layer::Ip(ip) = layer(frame) else { panic!("no IP: {frame:02x?}") };
    let (start, (addresses, length)) = (ip.transport.unwrap(), ip.addresses());
    let own = match ip.protocol {
        1 => 0,
        protocol => {
            let upper = (frame.len() - start) as u32 + u32::from(protocol);
            checksum::add_bytes(upper, &frame[addresses..addresses + 2 * length])
        }
    };
    checksum::finish(checksum::add_bytes(own, &frame[start..]))
}

fn header_sum(frame: &[u8], start: usize) -> u16 {
    checksum::finish(checksum::add_bytes(0, &frame[start..start + 20]))
}

/// A frame of these addresses; etherparse computes its checksums.
fn built(ipv6: bool, tcp: bool, (src, dst): (u32, u32), ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let wide = |address: u32| {
        let mut bytes = [0; 16];
        bytes[0] = 0xfd;
        bytes[12..].copy_from_slice(&address.to_be_bytes());
        bytes
    };
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]);
    let builder = if ipv6 {
        builder.ipv6(wide(src), wide(dst), 9)
    } else {
        builder.ipv4(src.to_be_bytes(), dst.to_be_bytes(), 9)
    };
    let mut frame = Vec::new();
    if tcp {
        builder.tcp(ports.0, ports.1, 7, 99).write(&mut frame, payload).unwrap();
    } else {
        builder.udp(ports.0, ports.1).write(&mut frame, payload).unwrap();
    }
    frame
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(80), Just(53), any::<u16>()]
}

fn address() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0x0a00_0001), Just(0xc0a8_0701), 0x0a00_0000..0x0aff_ffff_u32, any::<u32>()]
}

proptest! {
    /// The result is the packet that etherparse builds of the changed fields, byte by byte.
    #[test]
    fn a_changed_packet_is_one_built_of_the_changed_fields(
        ipv6: bool, tcp: bool, src in address(), dst in address(), from in port(), to in port(),
        payload in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let rules = rules();
        let mut frame = built(ipv6, tcp, (src, dst), (from, to), &payload);
        let whole = frame.clone();
        rules.apply(&mut frame);
        let port = |port: u16| match port { 80 => 8080, 53 => 5353, other => other };
        let address = |address: u32| match (ipv6, address) {
            (true, same) => same,
            (false, 0xc0a8_0701) => 0xc633_6409,
            (false, inside) if inside >> 24 == 10 => inside & 0xff_ffff | 172 << 24,
            (false, other) => other,
        };
        let mut expected = built(ipv6, tcp, (address(src), address(dst)), (port(from), port(to)), &payload);
        expected[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        if ipv6 {
            // The builder has no such addresses: fd00::/16 becomes fdaa::/16.
            prop_assert_eq!(&frame[22..24], &[0xfd, 0xaa]);
            prop_assert_eq!(&frame[38..40], &[0xfd, 0xaa]);
            prop_assert_eq!(transport_sum(&frame), 0);
            prop_assert_eq!(&frame[54..58], &expected[54..58]);
        } else {
            prop_assert_eq!(&frame, &expected);
        }
        // A frame of which the end is missing has the same bytes as far as it goes, once its checksum is there.
        // Addresses of which a part is missing stay.
        let cuts: &[usize] = if ipv6 { &[54, 58, 62, 70] } else { &[34, 38, 42, 50] };
        for cut in cuts.iter().copied() {
            let mut short = whole[..cut.min(whole.len())].to_vec();
            rules.apply(&mut short);
            prop_assert_eq!(&short[..], &frame[..short.len()], "cut at {}", cut);
        }
    }

    #[test]
    fn any_bytes_do_no_harm(mut frame in prop::collection::vec(any::<u8>(), 0..120), kind in 0..5_usize) {
        let start: [&[u8]; 5] = [&[], &[8, 0, 0x45], &[0x86, 0xdd, 0x60], &[0x81, 0, 0, 7, 8, 0, 0x4f], &[8, 6, 0, 1, 8, 0, 6, 4]];
        for (byte, value) in frame.iter_mut().skip(12).zip(start[kind]) {
            *byte = *value;
        }
        let length = frame.len();
        let mut rules = rules();
        rules.addresses.push("0.0.0.0/1=128.0.0.0/1".parse().unwrap());
        rules.addresses.push("::/1=8000::/1".parse().unwrap());
        rules.apply(&mut frame);
        prop_assert_eq!(frame.len(), length);
    }
}

#[test]
fn a_udp_checksum_of_zero_stays() {
    let mut frame = built(false, false, (0x0a00_0001, 1), (80, 53), b"abc");
    frame[40..42].fill(0);
    rules().apply(&mut frame);
    assert_eq!((&frame[34..38], &frame[40..42]), (&[0x1f, 0x90, 0x14, 0xe9][..], &[0, 0][..]));
    assert_eq!(header_sum(&frame, 14), 0);
}

/// The fragments of a changed datagram, joined, are the changed datagram.
#[test]
fn fragments_are_consistent() {
    let whole = built(false, false, (0x0a00_0001, 0x0a00_0002), (80, 4000), &[7; 40]);
    let mut changed = whole.clone();
    rules().apply(&mut changed);
    let (head, body) = whole.split_at(34);
    let mut joined = Vec::new();
    for (at, offset) in [(0, 0_u16), (24, 3)] {
        let more = if offset == 0 { 0x2000 } else { 0 };
        let part = if offset == 0 { &body[..24] } else { &body[at..] };
        let mut frame = [head, part].concat();
        frame[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        frame[20..22].copy_from_slice(&(more | offset).to_be_bytes());
        frame[24..26].fill(0);
        let sum = header_sum(&frame, 14);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        rules().apply(&mut frame);
        assert_eq!(header_sum(&frame, 14), 0);
        assert_eq!(frame[26..34], changed[26..34]);
        joined.extend_from_slice(&frame[34..]);
    }
    assert_eq!(joined, changed[34..]);
}

/// An ICMP error quotes the packet as it was on the wire of the replay: addresses, ports and checksums inside are changed,
/// and the checksum of the message with them.
#[test]
fn icmp_errors_quote_the_changed_packet() {
    for ipv6 in [false, true] {
        let quoted = built(ipv6, false, (0x0a00_0001, 0x0a00_0002), (53, 80), b"question");
        let mut message = vec![0; 8];
        message.extend_from_slice(&quoted[14..]);
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([1; 6], [2; 6]);
        let unreachable = if ipv6 { 1 } else { 3 };
        if ipv6 {
            let mut address = [0; 16];
            address[0] = 0xfd;
            let builder = builder.ipv6(address, address, 9);
            builder.icmpv6_raw(unreachable, 4, [0; 4]).write(&mut frame, &message[8..]).unwrap();
        } else {
            let builder = builder.ipv4([10, 0, 0, 9], [10, 0, 0, 1], 9);
            builder.icmpv4_raw(unreachable, 3, [0; 4]).write(&mut frame, &message[8..]).unwrap();
        }
        assert_eq!(transport_sum(&frame), 0);
        rules().apply(&mut frame);
        assert_eq!(transport_sum(&frame), 0, "ipv6: {ipv6}");
        let mut changed = quoted;
        rules().apply(&mut changed);
        let start = frame.len() - (changed.len() - 14);
        assert_eq!(frame[start..], changed[14..], "ipv6: {ipv6}");
    }
}

#[test]
fn arp_and_tags_are_changed() {
    let mut arp = vec![0xff; 12];
    arp.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    arp.extend_from_slice(&[2, 0, 0, 0, 0, 5, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 192, 168, 7, 1]);
    rules().apply(&mut arp);
    assert_eq!((&arp[28..32], &arp[38..42]), (&[172, 0, 0, 1][..], &[198, 51, 100, 9][..]));
    let plain = built(false, true, (0x0a00_0001, 1), (80, 1), b"x");
    let mut tagged = [&plain[..12], &[0x88, 0xa8, 0, 100, 0x81, 0, 0, 7], &plain[12..]].concat();
    let mut changed = plain;
    rules().apply(&mut changed);
    rules().apply(&mut tagged);
    assert_eq!(tagged[20..], changed[12..]);
}

#[test]
fn wrong_mappings_are_refused() {
    for text in [
        "",
        "10.0.0.1",
        "10.0.0.0/8=10.0.0.0/9",
        "10.0.0.1=fd00::1",
        "10.0.0.0/33=1.0.0.0/33",
        "10.0.0.1/8=1.0.0.0/8",
    ] {
        assert!(text.parse::<MapAddress>().is_err(), "{text}");
    }
    for text in ["", "80", "80=", "80=70000", "80:8080"] {
        assert!(text.parse::<MapPort>().is_err(), "{text}");
    }
}
