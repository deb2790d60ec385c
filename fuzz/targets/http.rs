//! TCP streams and HTTP: for any packets in any order, every packet is in one counter, every head in one transaction,
//! memory is released, and a transaction is one line of each log without control characters. In-kernel skipped bytes
//! are reported before the next delivered packet.
//!
//! Input: packets of a few connections, each after a byte for its direction and connection, one for the TCP flags, two
//! for its offset from the end of the previous packet in its direction, and two for its length.
#![no_main]

use std::io::Cursor;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use wirelane::{FileOptions, FileSource};
use wirelane_analysis::http::{HttpSettings, HttpTable};
use wirelane_bpf::http::{HttpWay, WholeSegment};
use wirelane_export::http::LOG_FORMATS;

/// The bytes of a packet: a frame with IPv4 and TCP.
fn frame(dir: usize, port: u16, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0]);
    let ends = [([10, 0, 0, 1], port), ([10, 0, 0, 2], 80)];
    frame.extend(ends[dir].0.iter().chain(&ends[1 - dir].0));
    frame.extend(ends[dir].1.to_be_bytes().iter().chain(&ends[1 - dir].1.to_be_bytes()));
    frame.extend(seq.to_be_bytes().iter().chain(&ack.to_be_bytes()));
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

fuzz_target!(|data: &[u8]| {
    let mut pcap: Vec<u8> =
        [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1].into_iter().flat_map(u32::to_le_bytes).collect();
    let mut next = [[1000u32, 2000]; 4];
    let mut ways: [[Option<HttpWay>; 2]; 4] = Default::default();
    let (mut rest, mut packets) = (data, 0u32);
    while let [which, flags, step, steps, length, lengths, more @ ..] = rest {
        let (dir, connection) = (usize::from(which & 1), usize::from(which >> 1 & 3));
        let length = usize::from(u16::from_le_bytes([*length, *lengths]) & 0x3fff).min(more.len());
        let (payload, behind) = more.split_at(length);
        let step = i16::from_le_bytes([*step, *steps]);
        let seq = next[connection][dir].wrapping_add_signed(step.into());
        let ack = next[connection][1 - dir];
        let frame = frame(dir, 1024 + connection as u16, flags | 16, seq, ack, payload);
        // State of the lane: reported and unreported skipped bytes are no more than the bytes of the packets.
        let now_ns = u64::from(packets) * 20_000_000;
        let way = ways[connection][dir].get_or_insert_with(|| HttpWay::new(seq, now_ns));
        let before = way.bytes;
        let segment = WholeSegment { now_ns, seq, ack, flags: flags | 16, payload };
        match way.segment(&segment) {
            None => assert!(way.bytes <= before + length as u32 && way.last_ns == now_ns || length == 0),
            // A retransmitted SYN does not change the count.
            Some(told) if told.bytes == 0 => assert_eq!(way.bytes, before),
            Some(told) => assert_eq!((told.bytes, way.bytes), (before, 0), "all of it is told"),
        }
        // The upper bits give the delay: up to some seconds.
        let (seconds, ns) = (packets / 16 + u32::from(which >> 6), packets % 16 * 1_000_000);
        let header = [seconds, ns, frame.len() as u32, frame.len() as u32];
        pcap.extend(header.into_iter().flat_map(u32::to_le_bytes).chain(frame));
        next[connection][dir] = seq.wrapping_add(length as u32).wrapping_add(u32::from(flags & 3 != 0));
        packets += 1;
        rest = behind;
    }
    let Ok(mut source) = FileSource::from_reader(Cursor::new(pcap), "fuzzed", FileOptions::as_written())
    else {
        panic!("the file is sound");
    };
    let mut table = HttpTable::new(HttpSettings { memory: 0, ..HttpSettings::default() });
    let mut transactions = Vec::new();
    while let Ok(Some(batch)) = source.next_batch(Duration::ZERO) {
        for record in batch {
            table.record(&record, record.header().ts_ns);
            transactions.extend(table.finished().drain());
        }
    }
    while table.flush() {
        transactions.extend(table.finished().drain());
    }
    transactions.extend(table.finished().drain());
    let totals = *table.totals();
    assert!(totals.balance(), "{totals:?}");
    assert_eq!((totals.packets, table.len(), table.held()), (packets.into(), 0, 0));
    assert_eq!(transactions.len() as u64, totals.transactions);
    for (number, transaction) in transactions.iter().enumerate() {
        for (name, format) in LOG_FORMATS {
            let mut line = Vec::new();
            format.line(&mut line, number as u64, transaction, &[]);
            let last = line.pop();
            assert!(
                last == Some(b'\n') && line.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f),
                "{name}: {line:?}"
            );
        }
    }
});
