//! For any packets in any order, the memory account is 0 once a table is empty.

use proptest::prelude::*;
use wirelane_analysis::http::{HttpSettings, HttpTable, LEAST_MEMORY};

use crate::wire::{FIN, Packet, RST, SYN, each_record, flushed, get, ok};

/// Payload of a packet.
fn payloads() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => Just(Vec::new()),
        3 => Just(get("/x").into_bytes()),
        2 => Just(get("/x").repeat(20).into_bytes()),
        3 => Just(ok("hello").into_bytes()),
        1 => Just(b"GET /endless HTTP/1.1\r\nX: ".to_vec()),
        1 => Just(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel".to_vec()),
        1 => Just(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec()),
        1 => Just(b"CONNECT a:1 HTTP/1.1\r\n\r\n".to_vec()),
        2 => prop::collection::vec(any::<u8>(), 0..1400),
        1 => Just(vec![b'y'; 40_000]),
    ]
}

/// A packet: connection, direction, flags, offset of its sequence number from the next one, payload, and time since the
/// last.
type Event = (u16, usize, u8, i32, Vec<u8>, u64);

fn events() -> impl Strategy<Value = Vec<Event>> {
    let flags = prop_oneof![8 => Just(0), 1 => Just(SYN), 2 => Just(FIN), 2 => Just(RST), 1 => any::<u8>()];
    let step = prop_oneof![6 => Just(0), 2 => -3000..3000, 1 => any::<i32>()];
    let wait = prop_oneof![6 => 0..1_000_000u64, 2 => 0..4_000_000_000u64, 1 => 0..400_000_000_000u64, 1 => any::<u64>()];
    prop::collection::vec((0..6u16, 0..2usize, flags, step, payloads(), wait), 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_is_held_by_an_empty_table(events in events(), tick in 1..50usize) {
        let mut next = [[1000u32, 2000]; 6];
        let mut ts_ns = 1_700_000_000_000_000_000u64;
        let packets: Vec<Packet> = events
            .into_iter()
            .map(|(port, dir, flags, step, payload, wait)| {
                ts_ns = ts_ns.wrapping_add(wait);
                let ends = &mut next[usize::from(port)];
                let seq = ends[dir].wrapping_add_signed(step);
                let more = payload.len() as u32 + u32::from(flags & (SYN | FIN) != 0);
                let packet = Packet { dir, seq, ack: ends[1 - dir], flags: flags | 16, payload, ts_ns, port: 1024 + port };
                ends[dir] = seq.wrapping_add(more);
                packet
            })
            .collect();
        let mut table = HttpTable::new(HttpSettings { memory: 0, ..HttpSettings::default() });
        let (mut transactions, mut number) = (0, 0);
        each_record(&packets, |record| {
            table.record(record, packets[number].ts_ns);
            number += 1;
            assert!(table.held() <= LEAST_MEMORY - LEAST_MEMORY / 3, "{} bytes are held", table.held());
            transactions += table.finished().drain().count();
            if number.is_multiple_of(tick) {
                while table.tick(packets[number - 1].ts_ns.wrapping_add(number as u64 * 7_000_000_000)) {
                    transactions += table.finished().drain().count();
                }
            }
        });
        transactions += table.finished().drain().count();
        // `flushed` asserts that the account is 0 and the table is empty.
        transactions += flushed(&mut table).len();
        prop_assert_eq!(transactions as u64, table.totals().transactions);
    }
}
