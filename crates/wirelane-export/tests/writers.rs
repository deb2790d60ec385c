//! Output of the writers, read by pcap-parser, tcpdump, capinfos, tshark, and our own reader.

mod common;

use std::io::Cursor;
use std::time::Duration;

use common::ask;
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapError, PcapNGReader};
use proptest::prelude::*;

use wirelane::{FileOptions, FileSource, LinkType, linktype};
use wirelane_bpf::layout::flags;
use wirelane_export::{Direction, Interface, InterfaceStatistics, PcapWriter, PcapngWriter, SectionInfo};

/// A UDP datagram of 4 bytes from 10.0.0.1:1000 to 10.0.0.2:2000 in an Ethernet frame.
const FRAME: &[u8] = &[
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0,
    0, 2, 3, 0xe8, 7, 0xd0, 0, 12, 0, 0, b'a', b'b', b'c', b'd',
];
const TIME: u64 = 1_700_000_000_123_456_789;

fn recording() -> Vec<u8> {
    let info = SectionInfo {
        hardware: "x86_64",
        os: "Linux 6.18",
        application: "wirelane 0.1.0",
        ..SectionInfo::default()
    };
    let mut writer = PcapngWriter::new(Vec::new(), &info).unwrap();
    for name in ["eth1@0", "eth1@1"] {
        let interface = Interface {
            name,
            description: "uplink",
            hardware: "veth",
            filter: "udp",
            link_number: linktype::ETHERNET,
            snap_len: 262_144,
            speed_bps: Some(10_000_000_000),
        };
        writer.add_interface(&interface).unwrap();
    }
    writer.write_packet(0, TIME, FRAME, FRAME.len() as u32, None).unwrap();
    writer.write_packet(1, TIME + 1, &FRAME[..45], 1514, Some(Direction::Inbound)).unwrap();
    writer.write_packet(1, TIME + 2, FRAME, FRAME.len() as u32, Some(Direction::Outbound)).unwrap();
    let statistics = InterfaceStatistics {
        at_ns: TIME + 3,
        start_ns: Some(TIME - 5),
        end_ns: Some(TIME + 3),
        received: Some(1000),
        dropped: Some(7),
        filter_accepted: Some(900),
        os_drop: Some(0),
        delivered: Some(u64::MAX),
    };
    writer.write_statistics(1, &statistics).unwrap();
    writer.finish().unwrap()
}

#[test]
fn pcap_parser_finds_every_field_of_a_recording() {
    let recording = recording();
    let mut rest = &recording[..];
    let mut seen = Vec::new();
    while !rest.is_empty() {
        let (after, block) = pcap_parser::pcapng::parse_block_le(rest).expect("a block");
        rest = after;
        match block {
            Block::SectionHeader(header) => {
                assert_eq!((header.major_version, header.minor_version, header.section_len), (1, 0, -1));
                assert_eq!(header.shb_hardware().unwrap().unwrap(), "x86_64");
                assert_eq!(header.shb_os().unwrap().unwrap(), "Linux 6.18");
                assert_eq!(header.shb_userappl().unwrap().unwrap(), "wirelane 0.1.0");
                seen.push("section");
            }
            Block::InterfaceDescription(interface) => {
                assert!(interface.if_name().unwrap().unwrap().starts_with("eth1@"));
                assert_eq!(interface.if_description().unwrap().unwrap(), "uplink");
                assert_eq!(interface.if_speed().unwrap().unwrap(), 10_000_000_000);
                assert_eq!((interface.if_tsresol, interface.linktype.0, interface.snaplen), (9, 1, 262_144));
                let value =
                    |code| interface.options.iter().find(|o| o.code.0 == code).unwrap().as_bytes().unwrap();
                assert_eq!((value(11), value(15)), (&b"\0udp"[..], &b"veth"[..]));
                seen.push("interface");
            }
            Block::EnhancedPacket(packet) => {
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                let number = units - TIME;
                let expected = [(0, 46, 46), (1, 45, 1514), (1, 46, 46)][number as usize];
                assert_eq!((packet.if_id, packet.caplen, packet.origlen), expected);
                assert_eq!(packet.packet_data(), &FRAME[..expected.1 as usize]);
                let flags: Vec<_> = packet.options.iter().filter(|o| o.code.0 == 2).collect();
                match number {
                    0 => assert!(packet.options.is_empty()),
                    _ => assert_eq!(flags[0].as_u32_le().unwrap(), number as u32),
                }
                seen.push("packet");
            }
            Block::InterfaceStatistics(statistics) => {
                assert_eq!(statistics.if_id, 1);
                let number =
                    |code| statistics.options.iter().find(|o| o.code.0 == code).unwrap().as_u64_le().unwrap();
                assert_eq!([4, 5, 6, 7, 8].map(number), [1000, 7, 900, 0, u64::MAX]);
                // Times consist of two halves, the upper one first.
                assert_eq!(number(2).rotate_left(32), TIME - 5);
                assert_eq!(number(3).rotate_left(32), TIME + 3);
                assert_eq!(u64::from(statistics.ts_high) << 32 | u64::from(statistics.ts_low), TIME + 3);
                seen.push("statistics");
            }
            other => panic!("not ours: {other:?}"),
        }
    }
    assert_eq!(seen, ["section", "interface", "interface", "packet", "packet", "packet", "statistics"]);
}

#[test]
fn tcpdump_reads_a_recording() {
    let arguments = ["-nn", "-tt", "--nano", "-r", "-"];
    if let Some(text) = ask("tcpdump", &arguments, &recording()) {
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].starts_with("1700000000.123456789 IP 10.0.0.1.1000 > 10.0.0.2.2000: UDP, length 4"),
            "{text}"
        );
        assert!(lines[2].starts_with("1700000000.123456791"), "{text}");
    }
}

#[test]
fn capinfos_and_tshark_read_a_recording() {
    // capinfos requires a file that it can read twice.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), recording()).unwrap();
    let path = file.path().to_str().unwrap();
    if let Some(text) = ask("capinfos", &["-M", path], b"") {
        for expected in [
            "Number of packets:   3",
            "Data size:           1606",
            "Capture application: wirelane 0.1.0",
            "Name = eth1@1",
            "Description = uplink",
            "Hardware = veth",
            "Speed = 10000000000",
            "Time resolution = 0x09",
            "Filter string = udp",
            "Number of stat entries = 1",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
    let fields = ["-r", path, "-n", "-T", "fields", "-e", "frame.interface_name", "-e", "frame.time_epoch"];
    if let Some(text) = ask("tshark", &fields, b"") {
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            ["eth1@0\t1700000000.123456789", "eth1@1\t1700000000.123456790", "eth1@1\t1700000000.123456791"]
        );
    }
}

#[test]
fn pcap_is_read_by_others() {
    let mut writer = PcapWriter::new(Vec::new(), linktype::ETHERNET, 1000).unwrap();
    writer.write_packet(linktype::ETHERNET, TIME, FRAME, 46).unwrap();
    writer.write_packet(linktype::ETHERNET, 999_999_999, &FRAME[..20], 46).unwrap();
    let file = writer.finish().unwrap();
    let mut reader = LegacyPcapReader::new(65536, Cursor::new(file.clone())).unwrap();
    let mut packets = Vec::new();
    loop {
        match reader.next() {
            Ok((size, PcapBlockOwned::Legacy(p))) => {
                packets.push((p.ts_sec, p.ts_usec, p.caplen, p.origlen, p.data.to_vec()));
                reader.consume(size);
            }
            Ok((size, PcapBlockOwned::LegacyHeader(header))) => {
                assert!(header.is_nanosecond_precision() && !header.is_bigendian());
                assert_eq!((header.network.0, header.snaplen), (1, 1000));
                reader.consume(size);
            }
            Ok((_, PcapBlockOwned::NG(_))) => panic!("not pcapng"),
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => reader.refill().expect("memory can be read"),
            Err(e) => panic!("{e:?}"),
        }
    }
    assert_eq!(
        packets,
        [
            (1_700_000_000, 123_456_789, 46, 46, FRAME.to_vec()),
            (0, 999_999_999, 20, 46, FRAME[..20].to_vec())
        ]
    );
    if let Some(text) = ask("tcpdump", &["-nn", "-tt", "--nano", "-r", "-"], &file) {
        assert!(text.starts_with("1700000000.123456789 IP 10.0.0.1.1000"), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("0.999999999"), "{text}");
    }
}

#[test]
fn what_a_format_cannot_hold_is_refused_and_nothing_is_written() {
    let mut writer = PcapWriter::new(Vec::new(), linktype::ETHERNET, 0).unwrap();
    let second = writer.write_packet(linktype::RAW, TIME, b"x", 1);
    assert!(matches!(second, Err(wirelane_pcapng::Error::SecondLinkType { first: 1, second: 101 })));
    let late = writer.write_packet(linktype::ETHERNET, u64::MAX, b"x", 1);
    assert!(matches!(late, Err(wirelane_pcapng::Error::Time { ts_ns: u64::MAX })));
    assert_eq!(writer.finish().unwrap().len(), 24);

    let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
    let interface = Interface { link_number: 65_536, ..Interface::default() };
    assert!(matches!(
        writer.add_interface(&interface),
        Err(wirelane_pcapng::Error::LinkType { number: 65_536 })
    ));
    let packet = writer.write_packet(0, TIME, b"x", 1, None);
    assert!(matches!(packet, Err(wirelane_pcapng::Error::NoInterface { id: 0, interfaces: 0 })));
    let statistics = writer.write_statistics(0, &InterfaceStatistics::default());
    assert!(matches!(statistics, Err(wirelane_pcapng::Error::NoInterface { id: 0, interfaces: 0 })));
    let file = writer.finish().unwrap();
    assert_eq!(
        u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize,
        file.len(),
        "a section header alone"
    );
}

#[test]
fn texts_that_are_too_long_are_cut_between_characters() {
    let long = "ä".repeat(40_000);
    let info = SectionInfo { application: &long, ..SectionInfo::default() };
    let mut writer = PcapngWriter::new(Vec::new(), &info).unwrap();
    let interface = Interface { name: &long, filter: &long, link_number: 1, ..Interface::default() };
    writer.add_interface(&interface).unwrap();
    let file = writer.finish().unwrap();
    let (rest, section) = pcap_parser::pcapng::parse_block_le(&file).unwrap();
    let Block::SectionHeader(section) = section else { panic!("{section:?}") };
    assert_eq!(section.shb_userappl().unwrap().unwrap().len(), 65_534);
    let (_, interface) = pcap_parser::pcapng::parse_block_le(rest).unwrap();
    let Block::InterfaceDescription(interface) = interface else { panic!("{interface:?}") };
    assert_eq!(interface.if_name().unwrap().unwrap().len(), 65_534);
}

#[derive(Clone, Debug)]
struct Sent {
    interface: usize,
    ts_ns: u64,
    data: Vec<u8>,
    wire_len: u32,
    direction: Option<Direction>,
}

fn packets(interfaces: usize) -> impl Strategy<Value = Vec<Sent>> {
    let direction = prop_oneof![Just(None), Just(Some(Direction::Inbound)), Just(Some(Direction::Outbound))];
    let data = proptest::collection::vec(any::<u8>(), 0..300);
    let packet = (0..interfaces, any::<u64>(), data, any::<u32>(), direction).prop_map(
        |(interface, ts_ns, data, wire_len, direction)| Sent { interface, ts_ns, data, wire_len, direction },
    );
    proptest::collection::vec(packet, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// pcapng through our own reader: every packet, in order, with all parts of a record.
    #[test]
    fn pcapng_round_trip(links in proptest::collection::vec(any::<u16>(), 1..5), sent in packets(5)) {
        let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
        for (queue, &link) in links.iter().enumerate() {
            let name = format!("eth1@{queue}");
            let interface = Interface { name: &name, link_number: link.into(), ..Interface::default() };
            writer.add_interface(&interface).unwrap();
        }
        let sent: Vec<_> = sent.into_iter().filter(|packet| packet.interface < links.len()).collect();
        for packet in &sent {
            let id = packet.interface as u32;
            writer.write_packet(id, packet.ts_ns, &packet.data, packet.wire_len, packet.direction).unwrap();
        }
        writer.write_statistics(0, &InterfaceStatistics::default()).unwrap();
        let file = writer.finish().unwrap();
        let mut source = FileSource::from_reader(Cursor::new(file), "memory", FileOptions::as_written()).unwrap();
        let mut number = 0;
        while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
            for record in batch {
                let expected = &sent[number];
                prop_assert_eq!(record.device(), expected.interface);
                prop_assert_eq!(usize::from(record.queue()), expected.interface);
                prop_assert_eq!(record.header().ts_ns, expected.ts_ns);
                prop_assert_eq!(record.data(), &expected.data[..]);
                prop_assert_eq!(record.wire_len(), expected.wire_len);
                prop_assert_eq!(record.link_type(), linktype::from_number(links[expected.interface].into()));
                let egress = record.header().flags & flags::EGRESS != 0;
                prop_assert_eq!(egress, expected.direction == Some(Direction::Outbound));
                number += 1;
            }
        }
        prop_assert_eq!(number, sent.len());
        for (interface, &link) in source.interfaces().iter().zip(&links) {
            prop_assert_eq!(interface.link_number, u32::from(link));
        }
    }

    /// pcapng through pcap-parser: the same packets.
    #[test]
    fn pcapng_as_pcap_parser_sees_it(sent in packets(1)) {
        let mut writer = PcapngWriter::new(Vec::new(), &SectionInfo::default()).unwrap();
        writer.add_interface(&Interface { link_number: 1, ..Interface::default() }).unwrap();
        for packet in &sent {
            writer.write_packet(0, packet.ts_ns, &packet.data, packet.wire_len, packet.direction).unwrap();
        }
        let mut reader = PcapNGReader::new(1 << 20, Cursor::new(writer.finish().unwrap())).unwrap();
        let mut number = 0;
        loop {
            match reader.next() {
                Ok((size, block)) => {
                    if let PcapBlockOwned::NG(Block::EnhancedPacket(packet)) = block {
                        prop_assert_eq!(packet.packet_data(), &sent[number].data[..]);
                        prop_assert_eq!(packet.origlen, sent[number].wire_len);
                        number += 1;
                    }
                    reader.consume(size);
                }
                Err(PcapError::Eof) => break,
                Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
                Err(e) => prop_assert!(false, "{:?}", e),
            }
        }
        prop_assert_eq!(number, sent.len());
    }

    /// pcap through our own reader.
    #[test]
    fn pcap_round_trip(link in 0u32..65_536, sent in packets(1)) {
        let mut writer = PcapWriter::new(Vec::new(), link, 65_535).unwrap();
        let sent: Vec<_> = sent
            .into_iter()
            .map(|packet| Sent { ts_ns: packet.ts_ns % (1_000_000_000 << 32), ..packet })
            .collect();
        for packet in &sent {
            writer.write_packet(link, packet.ts_ns, &packet.data, packet.wire_len).unwrap();
        }
        let file = writer.finish().unwrap();
        let mut source = FileSource::from_reader(Cursor::new(file), "memory", FileOptions::as_written()).unwrap();
        let mut got = Vec::new();
        while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
            got.extend(batch.map(|r| (r.header().ts_ns, r.wire_len(), r.data().to_vec(), r.link_type())));
        }
        let parsed: LinkType = linktype::from_number(link);
        let expected: Vec<_> = sent.iter().map(|p| (p.ts_ns, p.wire_len, p.data.clone(), parsed)).collect();
        prop_assert_eq!(got, expected);
    }
}
