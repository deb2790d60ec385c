//! RTP statistics against a reference that stores every packet: packets are dropped, swapped, delayed and duplicated,
//! across the wrap of sequence numbers and of timestamps.

use std::collections::BTreeSet;

use proptest::prelude::*;
use wirelane_bpf::rtp::{ReadResult, RtpPacket, RtpPayload, RtpStream, kind, packet_flags};

const PCMU: RtpPayload = RtpPayload { clock: 8000, pt: 0, kind: kind::MEDIA, pad: 0 };
const MS: u64 = 1_000_000;

fn stream() -> RtpStream {
    let mut stream = RtpStream::default();
    stream.payload[0] = PCMU;
    stream.payload[1] = RtpPayload { clock: 8000, pt: 101, kind: kind::DIGIT, pad: 0 };
    stream
}

/// Packet with this number, of 20 ms.
fn packet(number: u64) -> RtpPacket {
    RtpPacket {
        seq: number as u16,
        ts: (number * 160) as u32,
        ssrc: 7,
        payload_len: 160,
        ..RtpPacket::default()
    }
}

fn after(numbers: impl IntoIterator<Item = u64>) -> RtpStream {
    let mut stream = stream();
    for (at, number) in numbers.into_iter().enumerate() {
        stream.update(&packet(number), at as u64 * 20 * MS);
    }
    stream.finish();
    stream
}

#[test]
fn chosen_packets_dropped_swapped_delayed_and_doubled() {
    // Across both wraps: the 100th number is 65,536.
    let first = 65_436u64;
    let mut numbers: Vec<u64> = (first..first + 1000).collect();
    // Dropped: bursts of 1, 2, 5 and 300.
    let dropped: BTreeSet<u64> = [first + 50, first + 98, first + 99]
        .into_iter()
        .chain(first + 120..first + 125)
        .chain(first + 400..first + 700)
        .collect();
    numbers.retain(|number| !dropped.contains(number));
    // Swapped: a pair, also across the wrap.
    let at = |wanted: u64, numbers: &[u64]| numbers.iter().position(|number| *number == wanted).unwrap();
    for pair in [first + 10, first + 101] {
        let place = at(pair, &numbers);
        numbers.swap(place, place + 1);
    }
    // Delayed by 200 packets: late, not lost.
    let place = at(first + 130, &numbers);
    let late = numbers.remove(place);
    numbers.insert(place + 200, late);
    // Doubled: at once, and 100 packets later.
    for (number, later) in [(first + 20, 1), (first + 30, 100)] {
        let place = at(number, &numbers);
        numbers.insert(place + later, number);
    }
    let stream = after(numbers.iter().copied());
    assert_eq!((stream.packets, stream.expected(), stream.received()), (694, 1000, 692));
    assert_eq!((stream.lost, stream.duplicate, stream.out_of_order, stream.stray), (308, 2, 3, 0));
    assert_eq!((stream.bursts, stream.longest_burst, stream.restarts), (4, 300, 0));
    assert_eq!(stream.burst, [1, 1, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn too_late_is_a_stray_and_a_jump_begins_anew() {
    // 300 numbers late: it is already counted as lost.
    let stream = after((0..10).chain(11..400).chain([10]).chain(400..410));
    assert_eq!((stream.expected(), stream.lost, stream.stray, stream.duplicate), (410, 1, 1, 0));
    // A stray packet, after which the stream continues.
    let stream = after((0..10).chain([40_000]).chain(10..20));
    assert_eq!((stream.expected(), stream.lost, stream.stray, stream.restarts), (20, 0, 1, 0));
    // A restarted sender: detected by two consecutive packets.
    let stream = after((0..10).chain(40_000..40_010));
    assert_eq!((stream.expected(), stream.lost, stream.stray, stream.restarts), (20, 0, 0, 1));
    assert_eq!(stream.packets, 20);
    // The first captured packet of a stream is late.
    let stream = after([5, 3, 4, 6]);
    assert_eq!((stream.expected(), stream.lost, stream.out_of_order), (4, 0, 2));
}

#[test]
fn jitter_and_delta_by_hand() {
    let mut stream = stream();
    // Arrivals in ms; every packet is 20 ms long.
    for (number, at) in [0u64, 20, 44, 60].into_iter().enumerate() {
        stream.update(&packet(number as u64), at * MS);
    }
    // D: 0, 4, 4; J: 0, 4/16, 4/16 + (4 - 4/16)/16, in the integer form.
    let step = |jitter16: u64, off: u64| jitter16 + off - ((jitter16 + 8) >> 4);
    let expected = step(step(step(0, 0), 4 * MS), 4 * MS);
    assert_eq!(stream.jitter16_ns, expected);
    assert!((stream.jitter_ns() as f64 / 1e6 - (0.25 + 3.75 / 16.0)).abs() < 1e-6);
    assert_eq!((stream.min_delta_ns, stream.max_delta_ns, stream.delta_ns), (16 * MS, 24 * MS, 60 * MS));
    assert_eq!((stream.transit_ns, stream.min_transit_ns, stream.max_transit_ns), (0, 0, 4 * MS as i64));
    // A packet with a marker does not count for the maximum delta, and a pause in the timestamps does not count as
    // jitter.
    let mut talk = packet(4);
    (talk.flags, talk.ts) = (packet_flags::MARKER, 4 * 160 + 80_000);
    stream.update(&talk, (80 + 10_000) * MS);
    assert_eq!((stream.max_delta_ns, stream.markers, stream.timestamp_jumps), (24 * MS, 1, 0));
    // Without a marker, a timestamp that deviates from the arrival counts as a jump.
    let mut jump = packet(5);
    jump.ts = talk.ts + 160 + 80_000;
    stream.update(&jump, (100 + 10_000) * MS);
    assert_eq!(stream.timestamp_jumps, 1);
}

#[test]
fn keys_are_counted_once_however_often_they_are_sent() {
    let mut stream = stream();
    let mut number = 0;
    for (event, ts) in [(1u8, 1000u32), (12, 3000)] {
        for turn in 0..7 {
            let event = RtpPacket {
                ts,
                pt: 101,
                payload_len: 4,
                event,
                event_end: u8::from(turn > 3),
                // Some senders send the end three times with the same sequence number.
                seq: number,
                flags: packet_flags::EVENT,
                ..RtpPacket::default()
            };
            stream.update(&event, u64::from(number) * 20 * MS);
            number += 1;
        }
    }
    assert_eq!((stream.digits, &stream.digit[..2]), (2, &[1, 12][..]));
    assert_eq!((stream.jitter16_ns, stream.payload_changes), (0, 0));
}

#[test]
fn headers_are_read_or_refused() {
    let header = [0x80u8, 0x80 | 8, 0x12, 0x34, 0, 0, 0, 9, 1, 2, 3, 4, 5, 6];
    let (result, packet) = RtpPacket::read(&header, header.len());
    assert_eq!((result, packet.seq, packet.ts, packet.ssrc), (ReadResult::Ok, 0x1234, 9, 0x0102_0304));
    assert_eq!((packet.pt, packet.flags & packet_flags::MARKER, packet.payload_len), (8, 1, 2));
    let with = |first: u8, rest: &[u8]| {
        let mut bytes = header[..12].to_vec();
        bytes[0] = first;
        bytes.extend(rest);
        let (result, packet) = RtpPacket::read(&bytes, bytes.len());
        (result, packet.payload_len)
    };
    assert_eq!(with(0x82, &[0; 9]), (ReadResult::Ok, 1), "two sources");
    assert_eq!(with(0x82, &[0; 7]).0, ReadResult::Malformed);
    assert_eq!(with(0x90, &[0, 0, 0, 1, 0, 0, 0, 0, 7]), (ReadResult::Ok, 1), "an extension");
    assert_eq!(with(0x90, &[0, 0, 0xff, 0xff, 0]).0, ReadResult::Malformed);
    assert_eq!(with(0xa0, &[9, 0, 2]), (ReadResult::Ok, 1), "padding");
    assert_eq!(with(0xa0, &[9, 0, 4]).0, ReadResult::Malformed);
    assert_eq!(with(0xa0, &[9, 0, 0]).0, ReadResult::Malformed);
    assert_eq!(with(0x40, &[]).0, ReadResult::Not);
    assert_eq!(RtpPacket::read(&header[..11], 11).0, ReadResult::Not);
    assert_eq!(RtpPacket::read(&header[..11], 172).0, ReadResult::Cut);
}

/// Fate of a packet: its delay, and the delay of a duplicate.
fn fates() -> impl Strategy<Value = Vec<(bool, u64, Option<u64>)>> {
    prop::collection::vec(
        (prop::bool::weighted(0.85), 0u64..60, prop::option::weighted(0.1, 0u64..60)),
        1..1500,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Battery: I6
    #[test]
    fn any_order_of_packets_is_counted_exactly(first in any::<u16>(), fates in fates()) {
        let mut sent: Vec<(u64, u64)> = Vec::new();
        for (number, (there, delay, again)) in fates.iter().enumerate() {
            // The first packet is in order, so that the start of the stream is unambiguous.
            if number == 0 {
                sent.push((0, 0));
            } else if *there {
                sent.push((number as u64 + delay, number as u64));
                sent.extend(again.map(|again| (number as u64 + delay + again + 1, number as u64)));
            }
        }
        sent.sort();
        let stream = after(sent.iter().map(|(_, number)| number + u64::from(first)));
        let numbers: BTreeSet<u64> = sent.iter().map(|(_, number)| *number).collect();
        let expected = numbers.last().unwrap() + 1;
        prop_assert_eq!(stream.expected(), expected);
        prop_assert_eq!(stream.lost, expected - numbers.len() as u64);
        prop_assert_eq!(stream.duplicate, (sent.len() - numbers.len()) as u64);
        prop_assert_eq!((stream.stray, stream.restarts), (0, 0));
        prop_assert_eq!(stream.packets - stream.duplicate - stream.stray, stream.expected() - stream.lost);
        // Late: after a higher number, and not seen before.
        let (mut highest, mut known, mut late) = (0, BTreeSet::new(), 0);
        for (_, number) in &sent {
            late += u64::from(known.insert(*number) && *number < highest);
            highest = highest.max(*number);
        }
        prop_assert_eq!(stream.out_of_order, late);
        // Bursts are runs of missing numbers.
        let (mut bursts, mut run, mut longest) = (0u32, 0u32, 0u32);
        for number in 0..expected {
            if numbers.contains(&number) {
                run = 0;
            } else {
                bursts += u32::from(run == 0);
                run += 1;
                longest = longest.max(run);
            }
        }
        prop_assert_eq!((stream.bursts, stream.longest_burst), (bursts, longest));
        prop_assert_eq!(stream.burst.iter().sum::<u32>(), bursts);
    }

    /// Battery: I6
    #[test]
    fn hostile_packets_keep_the_account(packets in prop::collection::vec((any::<u16>(), any::<u32>(), any::<u64>(), 0u8..128), 1..600)) {
        let mut stream = stream();
        for (seq, ts, at, pt) in &packets {
            let packet = RtpPacket { seq: *seq, ts: *ts, pt: *pt, ..RtpPacket::default() };
            stream.update(&packet, *at);
            prop_assert_eq!(stream.packets - stream.duplicate - stream.stray, stream.received());
            prop_assert!(stream.received() <= stream.expected());
        }
        stream.finish();
        stream.finish();
        prop_assert_eq!(stream.received() + stream.lost, stream.expected());
        prop_assert_eq!(stream.packets, packets.len() as u64);
    }
}
