//! Well-formed captures of every kind, built by hand, whose packets are known.

use std::io::{Cursor, Read, Write};
use std::time::Duration;

use wirelane_bpf::layout::flags;

use super::build::{Big, Little, MICRO, MODIFIED, NANO};
use super::{AS_WRITTEN, read, read_all};
use crate::engine::file::{FileOptions, FileSource};
use wirelane_bpf::layout::LinkType;
use wirelane_pcapng::TimestampResolution;

const SECOND: u64 = 1_000_000_000;

#[test]
fn pcap_in_both_byte_orders_and_three_variants() {
    for order in [Little, Big] {
        for (magic, extra, nanos) in [(MICRO, 0, 5_000), (NANO, 0, 5), (MODIFIED, 8, 5_000)] {
            let mut file = order.pcap(magic, (2, 4), 65535, 1);
            file.extend(order.pcap_packet([1_700_000_000, 5, 3, 60], &[0xee; 8][..extra], b"abc"));
            file.extend(order.pcap_packet([1_700_000_001, 0, 0, 0], &[0xee; 8][..extra], b""));
            let outcome = read_all(&file);
            assert!(outcome.error.is_none());
            let [first, second] = &outcome.packets[..] else { panic!("{order:?} {magic:#x}") };
            assert_eq!(first.ts_ns, 1_700_000_000 * SECOND + nanos);
            assert_eq!((&first.data[..], first.wire_len), (&b"abc"[..], 60));
            assert_eq!((first.flags & flags::SNAPPED, first.link), (flags::SNAPPED, LinkType::Ethernet));
            assert_eq!((second.data.len(), second.wire_len, second.flags & flags::SNAPPED), (0, 0, 0));
            let [interface] = outcome.source.interfaces() else { panic!("pcap has one interface") };
            assert_eq!((interface.snap_len, interface.link_number, &*interface.name), (65535, 1, ""));
        }
    }
}

/// As libpcap reads them: pcap-savefile(5) does not document it, the source does.
#[test]
fn old_pcap_versions_have_their_lengths_in_another_order() {
    for (version, lengths) in
        [((2, 4), [3, 60]), ((2, 3), [3, 60]), ((2, 3), [60, 3]), ((2, 2), [60, 3]), ((543, 0), [60, 3])]
    {
        let mut file = Little.pcap(MICRO, version, 0, 1);
        file.extend(Little.pcap_packet([1, 0, lengths[0], lengths[1]], &[], b"abc"));
        let outcome = read_all(&file);
        assert!(outcome.error.is_none(), "{version:?}");
        assert_eq!((outcome.packets[0].data.len(), outcome.packets[0].wire_len), (3, 60), "{version:?}");
    }
}

#[test]
fn link_types_keep_their_number() {
    for (number, link) in [
        (0, LinkType::Null),
        (1, LinkType::Ethernet),
        (12, LinkType::Raw),
        (101, LinkType::Raw),
        (108, LinkType::Loop),
        (113, LinkType::Sll),
        (127, LinkType::Radiotap),
        (147, LinkType::Other),
        (228, LinkType::Raw),
        (229, LinkType::Raw),
        (276, LinkType::Sll2),
    ] {
        // The upper bits of a pcap file's field describe frame check sequences.
        for upper in [0, 0x4400_0000] {
            let outcome = read_all(&Big.pcap(NANO, (2, 4), 65535, number | upper));
            assert_eq!(outcome.source.interfaces()[0].link_number, number);
            assert_eq!(outcome.source.interfaces()[0].link_type, link);
        }
        let outcome = read_all(&[Big.section(), Big.interface(number as u16, 0, &[])].concat());
        assert_eq!(outcome.source.interfaces()[0].link_number, number);
        assert_eq!(outcome.source.interfaces()[0].link_type, link);
    }
}

#[test]
fn sections_with_orders_interfaces_and_clocks_of_their_own() {
    let nanos = [Big.option(2, b"eth1@3"), Big.option(3, b"uplink"), Big.option(9, &[9])].concat();
    let offset = [Little.option(9, &[0x80 | 10]), Little.option(14, &Little.n64(100)), Little.option(0, &[])];
    let file = [
        Big.section(),
        Big.interface(1, 128, &nanos),
        Big.interface(113, 0, &[]),
        Big.packet(0, 7 * SECOND + 9, b"first"),
        Big.packet(1, 8_000_000, b"second"),
        Big.block(0x0a, b"TLSK secrets that are none of our business"),
        Big.block(0x4000_0001, &[0; 5000]),
        Little.section(),
        Little.interface(276, 0, &offset.concat()),
        Little.packet(0, 512, b"third"),
        Little.obsolete(0, 1024, b"fourth", 2000),
        Little.simple(b"fifth", 5),
    ]
    .concat();
    let outcome = read_all(&file);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let got: Vec<_> = outcome
        .packets
        .iter()
        .map(|p| (std::str::from_utf8(&p.data).unwrap(), p.ts_ns, p.device, p.queue, p.link, p.wire_len))
        .collect();
    assert_eq!(
        got,
        [
            ("first", 7 * SECOND + 9, 0, 3, LinkType::Ethernet, 5),
            ("second", 8 * SECOND, 1, 0, LinkType::Sll, 6),
            ("third", 100 * SECOND + SECOND / 2, 2, 0, LinkType::Sll2, 5),
            ("fourth", 101 * SECOND, 2, 0, LinkType::Sll2, 2000),
            ("fifth", 0, 2, 0, LinkType::Sll2, 5),
        ]
    );
    let interfaces = outcome.source.interfaces();
    assert_eq!((&*interfaces[0].name, &*interfaces[0].description), ("eth1@3", "uplink"));
    assert_eq!(interfaces[0].resolution, TimestampResolution::Decimal(9));
    assert_eq!((interfaces[2].resolution, interfaces[2].offset_s), (TimestampResolution::Binary(10), 100));
}

#[test]
fn offsets_and_the_extreme_resolutions() {
    for order in [Little, Big] {
        for (resolution, offset_s, units, seconds) in [
            (0, -4, 104, 100),
            (6, -4, 3_000_000, 0),
            (0x80 | 63, 4, 1 << 63, 5),
            (0x80 | 127, 4, u64::MAX, 4),
            (19, 4, u64::MAX, 5),
            (127, 4, u64::MAX, 4),
            (0, i64::MAX, u64::MAX, u64::MAX / SECOND),
        ] {
            let clock =
                [order.option(9, &[resolution]), order.option(14, &order.n64(i64::cast_unsigned(offset_s)))];
            let file =
                [order.section(), order.interface(1, 0, &clock.concat()), order.packet(0, units, b"x")];
            assert_eq!(
                read_all(&file.concat()).packets[0].ts_ns / SECOND,
                seconds,
                "{resolution} {offset_s}"
            );
        }
    }
}

#[test]
fn a_simple_packet_is_cut_at_the_snap_length_of_the_first_interface() {
    let file = [Little.section(), Little.interface(1, 4, &[]), Little.simple(b"abcd", 1500)].concat();
    let outcome = read_all(&file);
    assert_eq!((&outcome.packets[0].data[..], outcome.packets[0].wire_len), (&b"abcd"[..], 1500));
    assert_eq!(outcome.packets[0].flags & flags::SNAPPED, flags::SNAPPED);
}

#[test]
fn the_direction_of_a_packet() {
    for order in [Little, Big] {
        for (value, egress) in [(0, false), (1, false), (2, true), (3, false), (0xffff_fffe, true)] {
            let options =
                [order.option(1, b"comment"), order.option(2, &order.n32(value)), order.option(0, b"")];
            let file = [
                order.section(),
                order.interface(1, 0, &[]),
                order.enhanced(0, 0, b"abc", 3, &options.concat()),
                // Damaged options do not invalidate the packet.
                order.enhanced(0, 0, b"abc", 3, &[0xff; 12]),
            ];
            let outcome = read_all(&file.concat());
            assert_eq!(outcome.packets[0].flags & flags::EGRESS != 0, egress, "{value:#x}");
            assert_eq!(outcome.packets[1].flags & flags::EGRESS, 0);
        }
    }
}

/// A reader that returns a few bytes at a time.
struct Dribble(Cursor<Vec<u8>>, usize);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer.len().min(self.1);
        self.0.read(&mut buffer[..len])
    }
}

#[test]
fn how_the_bytes_arrive_and_how_large_batches_are_makes_no_difference() {
    let mut file = [Little.section(), Little.interface(1, 0, &[]), Little.interface(1, 0, &[])].concat();
    for number in 0..300u32 {
        let data = vec![number as u8; (number as usize * 37) % 9000];
        file.extend(Little.packet(number / 7 % 2, u64::from(number), &data));
        if number % 50 == 0 {
            file.extend(Little.block(0xbad, &vec![0xff; 3 * number as usize]));
        }
    }
    let expected = read_all(&file).packets;
    assert_eq!(expected.len(), 300);
    for batch_bytes in [0, 1, 10_000, usize::MAX] {
        let outcome = read(&file, FileOptions { batch_bytes, ..AS_WRITTEN }).expect("the header is good");
        assert_eq!(outcome.packets, expected);
    }
    for bytes in [1, 7, 4096] {
        let reader = Dribble(Cursor::new(file.clone()), bytes);
        let mut source = FileSource::from_reader(reader, "dribble", AS_WRITTEN).unwrap();
        let mut got = Vec::new();
        while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
            got.extend(batch.map(|r| (r.header().ts_ns, r.device(), r.data().to_vec())));
        }
        assert!(
            got.iter().eq(&expected.iter().map(|p| (p.ts_ns, p.device, p.data.clone())).collect::<Vec<_>>())
        );
    }
}

#[test]
fn a_batch_that_is_dropped_half_way_continues() {
    let mut file = Little.pcap(MICRO, (2, 4), 65535, 1);
    for number in 0..10 {
        file.extend(Little.pcap_packet([number, 0, 1, 1], &[], &[number as u8]));
    }
    let mut source = FileSource::from_reader(Cursor::new(file), "memory", AS_WRITTEN).unwrap();
    let mut got = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        let before = got.len();
        got.extend(batch.take(3).map(|record| record.data()[0]));
        let counters = source.counters(0);
        assert_eq!((counters.read_packets, counters.analysed_packets), (10, got.len() as u64));
        assert!(got.len() > before);
    }
    assert_eq!(got, (0..10).collect::<Vec<u8>>());
}

/// A pipe gives the packets that have arrived, waits no longer than requested, and the capture ends with the writer.
#[test]
fn a_pipe_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pipe");
    let status = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(status.success());
    let (go, wait_for_go) = std::sync::mpsc::channel::<()>();
    let writer = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            pipe.write_all(&[Little.section(), Little.interface(1, 0, &[])].concat()).unwrap();
            wait_for_go.recv().unwrap();
            pipe.write_all(&Little.packet(0, 1, b"one")).unwrap();
            wait_for_go.recv().unwrap();
            let two = Little.packet(0, 1, b"two");
            pipe.write_all(&two[..20]).unwrap();
            wait_for_go.recv().unwrap();
            pipe.write_all(&two[20..]).unwrap();
        }
    });
    let short = Duration::from_millis(5);
    let mut source = FileSource::open(&path, AS_WRITTEN).unwrap();
    assert_eq!(source.interfaces().len(), 1, "known before the first packet comes");
    assert!(source.next_batch(short).unwrap().expect("not the end").is_empty());
    go.send(()).unwrap();
    let one: Vec<_> = source.next_batch(Duration::from_secs(20)).unwrap().expect("not the end").collect();
    assert_eq!(one.iter().map(|r| r.data()).collect::<Vec<_>>(), [b"one"]);
    go.send(()).unwrap();
    assert!(source.next_batch(short).unwrap().expect("not the end").is_empty(), "half a packet is none");
    go.send(()).unwrap();
    let mut rest = Vec::new();
    while let Some(batch) = source.next_batch(Duration::from_secs(20)).unwrap() {
        rest.extend(batch.map(|r| r.data().to_vec()));
    }
    assert_eq!(rest, [b"two"]);
    writer.join().unwrap();
}
