//! Good captures that end too early: whole packets are delivered, and the offset is that of the incomplete item.

use proptest::prelude::*;

use super::build::{Big, Little, MICRO, Order};
use super::{AS_WRITTEN, read, read_all};
use crate::engine::file::FileOptions;
use crate::error::Error;

/// A capture and the offsets where an item of it starts, each with the number of packets before it. The last offset is
/// the end.
struct Marked {
    bytes: Vec<u8>,
    starts: Vec<(usize, usize)>,
}

fn mark(items: Vec<(Vec<u8>, bool)>) -> Marked {
    let mut marked = Marked { bytes: Vec::new(), starts: Vec::new() };
    let mut packets = 0;
    for (item, is_packet) in items {
        marked.starts.push((marked.bytes.len(), packets));
        marked.bytes.extend(item);
        packets += usize::from(is_packet);
    }
    marked.starts.push((marked.bytes.len(), packets));
    marked
}

fn pcapng(order: Order, lengths: &[usize]) -> Marked {
    let name = [order.option(2, b"eth0"), order.option(0, b"")].concat();
    let mut items = vec![(order.section(), false), (order.interface(1, 0, &name), false)];
    for (number, &length) in lengths.iter().enumerate() {
        let data = vec![number as u8; length];
        match number % 4 {
            0 => items.push((order.packet(0, 5, &data), true)),
            1 => items.push((order.simple(&data, length as u32), true)),
            2 => items.push((order.obsolete(0, 5, &data, length as u32), true)),
            _ => items.push((order.block(0x0a, &data), false)),
        }
    }
    items.push((order.section(), false));
    mark(items)
}

fn pcap(order: Order, lengths: &[usize]) -> Marked {
    let mut items = vec![(order.pcap(MICRO, (2, 4), 65535, 1), false)];
    for &length in lengths {
        let header = [1, 2, length as u32, length as u32];
        items.push((order.pcap_packet(header, &[], &vec![7; length]), true));
    }
    mark(items)
}

/// Cuts a capture at one offset and checks the complete result.
fn cut(marked: &Marked, at: usize) {
    let &(start, packets) = marked.starts.iter().rev().find(|(start, _)| *start <= at).expect("0 is one");
    let result = read(&marked.bytes[..at], AS_WRITTEN);
    if start == 0 {
        // The header itself is incomplete, so the file cannot be opened.
        let Err(Error::Pcapng(wirelane_pcapng::Error::CaptureFile { offset: 0, reason, .. })) = result else {
            panic!("cut at {at}")
        };
        assert!(reason.contains(if at == 0 { "empty" } else { "the file ends inside" }), "{reason}");
        return;
    }
    let outcome = result.expect("the header is whole");
    assert_eq!(outcome.packets.len(), packets, "cut at {at}");
    if at == start {
        assert!(outcome.error.is_none(), "a file may end at {at}: {:?}", outcome.error);
        return;
    }
    let (offset, reason) = outcome.damage();
    assert_eq!(offset, start as u64, "cut at {at}: {reason}");
    assert!(reason.contains(&format!("{} are there", at - start)), "cut at {at}: {reason}");
}

#[test]
fn every_cut_of_the_first_400_bytes() {
    for order in [Little, Big] {
        for marked in [pcapng(order, &[60, 0, 13, 5, 61, 62, 1, 40]), pcap(order, &[60, 0, 1, 99, 3, 200])] {
            assert!(marked.bytes.len() > 400);
            assert!(read_all(&marked.bytes).error.is_none());
            for at in 0..=400 {
                cut(&marked, at);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_cut_anywhere(
        big: bool,
        ng: bool,
        lengths in proptest::collection::vec(0usize..3000, 0..40),
        at: prop::sample::Index,
    ) {
        let order = if big { Big } else { Little };
        let marked = if ng { pcapng(order, &lengths) } else { pcap(order, &lengths) };
        cut(&marked, at.index(marked.bytes.len() + 1));
    }

    /// Changed bytes give packets or an error inside the file, never a panic, and the same result each time.
    /// Battery: I3
    #[test]
    fn changed_bytes(
        big: bool,
        ng: bool,
        lengths in proptest::collection::vec(0usize..200, 0..20),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10),
    ) {
        let order = if big { Big } else { Little };
        let mut bytes = if ng { pcapng(order, &lengths) } else { pcap(order, &lengths) }.bytes;
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        match (read(&bytes, AS_WRITTEN), read(&bytes, FileOptions { batch_bytes: 0, ..AS_WRITTEN })) {
            (Ok(first), Ok(second)) => {
                prop_assert_eq!(&first.packets, &second.packets);
                prop_assert_eq!(first.error.is_some(), second.error.is_some());
                if first.error.is_some() {
                    prop_assert_eq!(first.damage(), second.damage());
                    prop_assert!(first.damage().0 < bytes.len() as u64);
                }
            }
            (Err(first), Err(second)) => prop_assert_eq!(first.to_string(), second.to_string()),
            _ => prop_assert!(false, "the size of a batch decides whether a file opens"),
        }
    }

    /// A header of a capture, followed by noise.
    #[test]
    fn noise(ng: bool, noise in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let header = if ng { Little.section() } else { Little.pcap(MICRO, (2, 4), 65535, 1) };
        let outcome = read_all(&[header, noise.clone()].concat());
        prop_assert!(outcome.error.is_some() || noise.is_empty() || !outcome.packets.is_empty() || ng);
    }
}
