//! The segments that a lane delivers give the same log as all segments (`bpf/lib/http_way.h`).

use std::collections::{HashMap, VecDeque};

use wirelane::SkippedBytes;
use wirelane_analysis::http::{HttpSettings, HttpTable, Transaction};
use wirelane_bpf::flow::{FlowKey, NO_VLAN};
use wirelane_bpf::http::{HttpWay, WholeSegment};

use crate::wire::{FIN, Packet, RST, SYN, Talk, each_record, flushed, get, ok, run};

/// Flow key of a packet's direction, as in a lane.
fn key(packet: &Packet) -> FlowKey {
    let ends = [([10, 0, 0, 1], packet.port), ([10, 0, 0, 2], 8080)];
    let address = |ip: [u8; 4]| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&ip);
        address
    };
    let (from, to) = (ends[packet.dir], ends[1 - packet.dir]);
    FlowKey {
        src: address(from.0),
        dst: address(to.0),
        src_port: from.1.to_be(),
        dst_port: to.1.to_be(),
        l3: 4,
        proto: 6,
        vlan: NO_VLAN,
        ..FlowKey::default()
    }
}

/// Log of the packets that are delivered, and their number.
pub fn selected(packets: &[Packet], settings: HttpSettings) -> (Vec<Transaction>, usize) {
    let mut ways: HashMap<FlowKey, HttpWay> = HashMap::new();
    let mut up: Vec<Packet> = Vec::new();
    // Reports of skipped bytes, each with the index of the packet that follows it.
    let mut told: VecDeque<(usize, SkippedBytes)> = VecDeque::new();
    for packet in packets {
        let key = key(packet);
        if !ways.contains_key(&key) && packet.payload.is_empty() && packet.flags & SYN == 0 {
            // The lane does not know the direction, and does not start to track it.
            if packet.flags & (FIN | RST) != 0 {
                up.push(packet.clone());
            }
            continue;
        }
        let way = ways.entry(key).or_insert_with(|| HttpWay::new(packet.seq, packet.ts_ns));
        let segment = WholeSegment {
            now_ns: packet.ts_ns,
            seq: packet.seq,
            ack: packet.ack,
            flags: packet.flags,
            payload: &packet.payload,
        };
        let Some(before) = way.segment(&segment) else { continue };
        if before.bytes > 0 {
            told.push_back((up.len(), SkippedBytes { key, ..before }));
        }
        up.push(packet.clone());
    }
    // Skipped bytes that are queried at the end.
    for (key, way) in ways.iter().filter(|(_, way)| way.bytes > 0) {
        let rest = SkippedBytes { key: *key, last_ns: way.last_ns, from: way.from, bytes: way.bytes };
        told.push_back((up.len(), rest));
    }
    let mut table = HttpTable::new(settings);
    let mut number = 0;
    each_record(&up, |record| {
        while told.front().is_some_and(|(at, _)| *at <= number) {
            if let Some((_, told)) = told.pop_front() {
                table.offloaded(&told, told.last_ns);
            }
        }
        number += 1;
        table.record(record, record.header().ts_ns);
    });
    for (_, told) in told {
        table.offloaded(&told, told.last_ns);
    }
    (flushed(&mut table), up.len())
}

/// Sorted by connection, and by number within it.
fn sorted(mut transactions: Vec<Transaction>) -> Vec<Transaction> {
    transactions.sort_by_key(|transaction| (transaction.client, transaction.number));
    transactions
}

/// Both ways give the same log, with equal nanoseconds.
pub fn assert_same(packets: &[Packet], all: &[Transaction]) {
    let (selected, _) = selected(packets, HttpSettings::default());
    let (selected, all) = (sorted(selected), sorted(all.to_vec()));
    assert_eq!(selected.len(), all.len(), "{selected:#?}\n{all:#?}");
    for (selected, all) in selected.iter().zip(&all) {
        assert_eq!(selected, all);
    }
}

fn share(talk: &Talk) -> (usize, usize) {
    run(&talk.packets);
    (selected(&talk.packets, HttpSettings::default()).1, talk.packets.len())
}

/// Battery: I10
#[test]
fn bodies_stay_below() {
    let mut talk = Talk::new();
    talk.client(get("/large"))
        .server(ok(&"x".repeat(146_000)))
        .client(get("/next"))
        .server(ok("small"))
        .close();
    let (up, all) = share(&talk);
    // The handshake except its last ACK, two requests, the first and last segment of one response, the other response,
    // the end.
    assert_eq!((up, all), (2 + 2 + 2 + 1 + 3, 3 + 2 + 101 + 1 + 3));
}

#[test]
fn a_body_up_to_the_end_stays_below_and_is_told_with_it() {
    let mut talk = Talk::new();
    talk.client(get("/")).server(format!("HTTP/1.0 200 OK\r\n\r\n{}", "y".repeat(50_000)));
    talk.close();
    assert_eq!(share(&talk), (2 + 1 + 1 + 3, 3 + 1 + 35 + 3));
    let mut talk = Talk::new();
    talk.client(get("/")).server(format!("HTTP/1.0 200 OK\r\n\r\n{}", "y".repeat(50_000)));
    assert_eq!(share(&talk).0, 2 + 1 + 1, "asked for at the end");
}

#[test]
fn chunks_stay_below_and_their_sizes_come_up() {
    let chunk = format!("{:x}\r\n{}\r\n", 29_200, "z".repeat(29_200));
    let body = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}{chunk}0\r\n\r\n");
    let mut talk = Talk::new();
    talk.client(get("/")).server(&body).client(get("/b")).server(ok("b")).close();
    let (up, all) = share(&talk);
    // One segment for each boundary between chunks.
    assert_eq!((up, all), (2 + 2 + 4 + 1 + 3, 3 + 2 + 61 + 1 + 3));
}

#[test]
fn an_upload_stays_below() {
    let mut talk = Talk::new();
    let head = "POST /up HTTP/1.1\r\ncONTENT-lENGTH:  73000  \r\n\r\n";
    talk.client(format!("{head}{}", "u".repeat(73_000))).server(ok("done")).close();
    assert_eq!(share(&talk), (2 + 2 + 1 + 3, 3 + 51 + 1 + 3));
}

#[test]
fn what_is_no_http_stays_below() {
    let mut talk = Talk::new();
    for _ in 0..50 {
        talk.client(b"\x16\x03\x01\x02\0 hello").server(vec![0x17; 3000]);
    }
    talk.close();
    assert_eq!(share(&talk).0, 2 + 2 + 2, "what begins and ends it comes up, and what each end says first");
    let mut talk = Talk::new();
    talk.server("SSH-2.0-OpenSSH_9.2\r\n").client("SSH-2.0-OpenSSH_9.2\r\n");
    for _ in 0..50 {
        talk.client([0x80; 60]).server([0x81; 700]);
    }
    assert_eq!(share(&talk).0, 2 + 2, "a first line is looked at");
}

/// Everything is delivered if one direction alone is not sufficient to decide.
/// Battery: I10
#[test]
fn what_is_in_doubt_comes_up() {
    let mut talk = Talk::new();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n";
    talk.client("HEAD / HTTP/1.1\r\n\r\n").server(head);
    talk.client(get("/b")).server(ok(&"b".repeat(20_000))).close();
    run(&talk.packets);
    // Bodies with text that looks like a head, at every offset.
    for at in 0..20 {
        let body = format!("{}{}{}", "w".repeat(1460 * at), ok("in a body"), "w".repeat(20_000));
        let mut talk = Talk::new();
        talk.client(get("/warc"))
            .server("HTTP/1.1 200 OK\r\nContent-Length: ")
            .server(body.len().to_string());
        talk.server("\r\n\r\n").server(&body).client(get("/b")).server(ok("b")).close();
        run(&talk.packets);
    }
    for odd in [
        "Content-Length: 30000\r\nContent-Length: 30000",
        "Content-Length: 30000\r\nTransfer-Encoding: chunked",
        "Content-Length: 30000, 30000",
        "Content-Length: +30000",
        "Content-Length:",
        "Content-Length: 3\r\n 0000",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\n ,x",
        "Content\rLength: 30000",
        "Content-Length : 30000",
        "X: \0\r\nContent-Length: 30000",
    ] {
        let mut talk = Talk::new();
        talk.client(get("/odd")).server(format!("HTTP/1.1 200 OK\r\n{odd}\r\n\r\n{}", "o".repeat(30_000)));
        talk.client(get("/b")).server(ok(&"b".repeat(9000))).close();
        run(&talk.packets);
    }
}

/// A long body is delivered now and then as a sign of life.
#[test]
fn a_slow_body_comes_up_now_and_then() {
    let mut talk = Talk::new();
    talk.client(get("/slow")).server("HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n");
    for _ in 0..100 {
        talk.wait(99).server(vec![b's'; 1000]);
    }
    let (up, _) = share(&talk);
    assert_eq!(up, 2 + 2 + 100 / 2, "every 200 ms");
}
