//! Malicious files: each is refused at the right byte, with a reason, in bounded memory.

use std::io::{Cursor, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use super::build::{Big, Little, MICRO, Order};
use super::{AS_WRITTEN, read, read_all};
use crate::engine::file::FileSource;
use crate::error::Error;

/// A section with an Ethernet interface and one packet.
fn good(order: Order) -> Vec<u8> {
    [order.section(), order.interface(1, 0, &[]), order.packet(0, 1, b"good")].concat()
}

/// A good start, then `bad`: one packet is delivered, and the damage is where `bad` starts.
#[track_caller]
fn refused(order: Order, bad: &[u8], reason: &str) {
    let start = good(order);
    let outcome = read_all(&[&start, bad].concat());
    assert_eq!(outcome.packets.len(), 1);
    let (offset, got) = outcome.damage();
    assert_eq!(offset, start.len() as u64, "{got}");
    assert!(got.contains(reason), "{got}");
}

/// Battery: I1, I9
#[test]
fn block_lengths() {
    for order in [Little, Big] {
        for kind in [1, 2, 3, 6, 5, 10, 0xbad] {
            let with_length = |length: u32| [&order.n32(kind)[..], &order.n32(length), &[0; 64]].concat();
            refused(order, &with_length(0), "length 0, less than the 12");
            refused(order, &with_length(8), "length 8, less than the 12");
            refused(order, &with_length(33), "length 33, which is not a multiple of 4");
            refused(order, &with_length(u32::MAX), "length 4294967295, which is not a multiple of 4");
            let known = matches!(kind, 1 | 2 | 3 | 6);
            let reason =
                if known { "more than the 16777216" } else { "4294967292 bytes are needed, 72 are there" };
            refused(order, &with_length(u32::MAX - 3), reason);
            refused(order, &with_length(32), "length 32 at its start and 0 at its end");
        }
        for kind in [1, 2, 3, 6] {
            let bare = order.block(kind, &[]);
            refused(order, &bare, "length 12, less than the");
        }
    }
}

#[test]
fn sections() {
    for (order, other) in [(Little, Big), (Big, Little)] {
        // Declared in one order, the rest in the other.
        let mixed = order.section().into_iter().take(12).chain(other.section().into_iter().skip(12));
        refused(order, &mixed.collect::<Vec<_>>(), "28");
        let length_in_other = [&order.section()[..4], &other.n32(28), &order.section()[8..]].concat();
        refused(order, &length_in_other, "more than the 16777216");
        let mut magic = order.section();
        magic[8] ^= 0xff;
        refused(order, &magic, "byte-order magic");
        refused(order, &order.block(0x0a0d_0d0a, &order.n32(0x1a2b_3c4d)), "less than the 28");
        let mut version = order.section();
        version[12..14].copy_from_slice(&order.n16(2));
        refused(order, &version, "version 2.0");
        // The first section is refused when the file is opened.
        for bad in [&length_in_other, &magic, &version] {
            let error = read(bad, AS_WRITTEN).err().expect("not opened");
            assert!(
                matches!(error, Error::Pcapng(wirelane_pcapng::Error::CaptureFile { offset: 0, .. })),
                "{error}"
            );
        }
    }
}

#[test]
fn packets_that_contradict_themselves() {
    for order in [Little, Big] {
        refused(order, &order.packet(1, 0, b"x"), "interface 1, and its section has described 1");
        refused(order, &order.packet(u32::MAX, 0, b"x"), "interface 4294967295");
        refused(order, &order.obsolete(9, 0, b"x", 1), "interface 9");
        let too_long = |at: usize| {
            let mut block = order.packet(0, 0, b"abcd");
            block[at..at + 4].copy_from_slice(&order.n32(5));
            block
        };
        refused(order, &too_long(20), "5 captured bytes in a block that has room for 4");
        refused(order, &order.simple(b"abcd", 5), "5 captured bytes in a block that has room for 4");
        // A section without an interface, and packets in it.
        for packet in [order.packet(0, 0, b"x"), order.simple(b"x", 1), order.obsolete(0, 0, b"x", 1)] {
            let start = [good(order), order.section()].concat();
            let outcome = read_all(&[start.clone(), packet].concat());
            assert_eq!(outcome.packets.len(), 1);
            assert_eq!(outcome.damage().0, start.len() as u64);
            assert!(outcome.damage().1.contains("interface 0, and its section has described 0"));
        }
    }
}

/// Battery: I1, I9
#[test]
fn options() {
    for order in [Little, Big] {
        let overrun = [&order.n16(2)[..], &order.n16(9), b"eth0"].concat();
        refused(order, &order.interface(1, 0, &overrun), "an option of code 2 and 9 bytes");
        refused(order, &order.interface(1, 0, &order.option(9, &[6, 6])), "2 bytes instead of 1");
        refused(order, &order.interface(1, 0, &order.option(9, &[])), "0 bytes instead of 1");
        refused(order, &order.interface(1, 0, &order.option(14, &[0; 4])), "4 bytes instead of 8");
        // An end-of-options with a length, followed by garbage, is the end all the same.
        let ended = [&order.option(2, b"a@7")[..], &order.n16(0), &[0xff; 6]].concat();
        let file = [order.section(), order.interface(1, 0, &ended), order.packet(0, 0, b"x")].concat();
        assert_eq!(read_all(&file).packets[0].queue, 7);
    }
}

/// Battery: I1, I9
#[test]
fn a_million_interfaces() {
    let mut file = Little.section();
    let interface = Little.interface(1, 0, &[]);
    for _ in 0..1_000_000 {
        file.extend_from_slice(&interface);
    }
    let started = Instant::now();
    let outcome = read_all(&file);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert_eq!(outcome.source.interfaces().len(), 65_536);
    let (offset, reason) = outcome.damage();
    assert_eq!(offset, 28 + 65_536 * interface.len() as u64);
    assert!(reason.contains("more than 65536 interfaces"), "{reason}");
}

#[test]
fn the_last_interface_that_is_accepted_works() {
    let mut file = Little.section();
    for _ in 0..65_536 {
        file.extend(Little.interface(1, 0, &[]));
    }
    file.extend(Little.packet(65_535, 0, b"x"));
    assert_eq!(read_all(&file).packets[0].device, 65_535);
}

#[test]
fn a_snap_length_of_zero_is_none() {
    let packet = Little.pcap_packet([0, 0, 4, 4], &[], b"abcd");
    assert_eq!(read_all(&[Little.pcap(MICRO, (2, 4), 0, 1), packet].concat()).packets[0].data, b"abcd");
    let ng = [Little.section(), Little.interface(1, 0, &[]), Little.simple(b"abcd", 4)].concat();
    assert_eq!(read_all(&ng).packets[0].data, b"abcd");
}

#[test]
fn pcap_packets_that_are_none() {
    let start = Little.pcap(MICRO, (2, 4), 65535, 1);
    for (cap_len, reason) in [
        (u32::MAX, "more than the 16777216"),
        (16 << 20, "more than the 16777216"),
        ((16 << 20) - 16, "16777216 bytes are needed, 20 are there"),
    ] {
        let outcome =
            read_all(&[start.clone(), Little.pcap_packet([0, 0, cap_len, 4], &[], b"abcd")].concat());
        assert!(outcome.packets.is_empty());
        assert_eq!(outcome.damage().0, 24);
        assert!(outcome.damage().1.contains(reason), "{}", outcome.damage().1);
        // A length alone does not grow the window: it stays as for the header.
        assert!(outcome.source.reader.memory() <= 256 << 10);
    }
    for version in [(1, 0), (2, 5), (3, 0), (0, 0)] {
        let error = read(&Little.pcap(MICRO, version, 65535, 1), AS_WRITTEN).err();
        assert!(error.expect("not opened").to_string().contains("pcap version"));
    }
}

/// The largest accepted packet takes the memory that it needs, and no more with every copy.
#[test]
fn the_largest_packet() {
    let size = (16 << 20) - 16;
    let mut file = Little.pcap(MICRO, (2, 4), 0, 1);
    file.extend(Little.pcap_packet([0, 0, size, size], &[], &vec![9; size as usize]));
    file.extend(Little.pcap_packet([0, 0, 1, 1], &[], b"x"));
    let outcome = read_all(&file);
    assert_eq!(outcome.packets.iter().map(|p| p.data.len()).collect::<Vec<_>>(), [size as usize, 1]);
}

/// A block that is only skipped may be long: 3 GiB pass through a window of 256 KiB.
#[test]
fn a_long_block_that_is_stepped_over() {
    let length = 3u32 << 30;
    let head = [good(Little), Little.n32(0xbad).to_vec(), Little.n32(length).to_vec()].concat();
    let tail = [Little.n32(length).to_vec(), Little.packet(0, 2, b"behind")].concat();
    let reader =
        Cursor::new(head).chain(std::io::repeat(0).take(u64::from(length) - 12)).chain(Cursor::new(tail));
    let mut source = FileSource::from_reader(reader, "long", AS_WRITTEN).unwrap();
    let mut got = Vec::new();
    while let Some(batch) = source.next_batch(Duration::ZERO).unwrap() {
        got.extend(batch.map(|record| record.data().to_vec()));
    }
    assert_eq!(got, [b"good".to_vec(), b"behind".to_vec()]);
    assert!(source.reader.memory() <= 256 << 10);
}

#[test]
fn what_is_no_capture_says_what_it_is() {
    for (bytes, reason) in [
        (&b""[..], "empty"),
        (b"abc", "4 bytes are needed, 3 are there"),
        (b"\x1f\x8b\x08\x00rest", "gzip -dc"),
        (b"\x28\xb5\x2f\xfdrest", "zstd -dc"),
        (b"snoop\0\0\0", "snoop"),
        (b"hello", "starts with 68 65 6c 6c"),
        (b"\xd4\xc3\xb2\xa1\x02", "the file ends inside the file header: 24 bytes are needed, 5 are there"),
    ] {
        let error = read(bytes, AS_WRITTEN).err().expect("not opened");
        let Error::Pcapng(wirelane_pcapng::Error::CaptureFile { offset: 0, reason: got, .. }) = error else {
            panic!("{error}")
        };
        assert!(got.contains(reason), "{got}");
    }
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    for path in ["/nonexistent/capture.pcap", "/"] {
        let error = FileSource::open(Path::new(path), AS_WRITTEN).expect_err("not opened");
        assert!(
            matches!(&error, Error::Pcapng(wirelane_pcapng::Error::Io { path: named, .. }) if named == Path::new(path)),
            "{error}"
        );
    }
}
