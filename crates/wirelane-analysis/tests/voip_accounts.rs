//! For any packets in any order, the memory accounts of calls, streams, TCP connections and fragments are 0 once all
//! are removed.

use proptest::prelude::*;
use wirelane::LinkType;
use wirelane_analysis::voip::{Finished, Keep, LEAST_MEMORY, Monitor, Settings};

const SDP: &str =
    "v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\ns=-\r\nc=IN IP4 10.0.0.1\r\nt=0 0\r\nm=audio 6000 RTP/AVP 0\r\n";

fn ip(proto: u8, id: u16, fragment: u16, host: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend((20 + payload.len() as u16).to_be_bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, proto, 0, 0, 10, 0, 0, host, 10, 0, 0, 9]);
    packet.extend(payload);
    packet
}

fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let header = [from.to_be_bytes(), to.to_be_bytes(), length.to_be_bytes(), [0; 2]].concat();
    [&header, payload].concat()
}

fn tcp(port: u16, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = [port.to_be_bytes(), 5060u16.to_be_bytes()].concat();
    header.extend(seq.to_be_bytes());
    header.extend([0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    [&header, payload].concat()
}

/// A SIP message of one of a few calls.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        4 => Just(("INVITE sip:b SIP/2.0", "INVITE")),
        1 => Just(("BYE sip:b SIP/2.0", "BYE")),
        1 => Just(("CANCEL sip:b SIP/2.0", "CANCEL")),
        1 => Just(("SIP/2.0 180 Ringing", "INVITE")),
        2 => Just(("SIP/2.0 200 OK", "INVITE")),
        1 => Just(("SIP/2.0 486 Busy", "INVITE")),
        1 => Just(("OPTIONS sip:b SIP/2.0", "OPTIONS")),
    ];
    (start, 0..200u32, any::<bool>(), 0..3000usize).prop_map(|((start, method), call, described, length)| {
        let body = if described { SDP } else { "" };
        let pad = "x".repeat(length);
        format!(
            "{start}\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK{call}\r\nFrom: <sip:a@b>;tag={length}\r\nTo: <sip:b@c>\r\n\
             Call-ID: {call}\r\nCSeq: 1 {method}\r\nX: {pad}\r\nContent-Type: application/sdp\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    })
}

fn rtp(seq: u16, ssrc: u32) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend(seq.to_be_bytes());
    packet.extend((u32::from(seq) * 160).to_be_bytes());
    packet.extend(ssrc.to_be_bytes());
    packet.extend([0; 20]);
    packet
}

/// A packet.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let parts = |bytes: Vec<u8>, cut: usize| {
        let cut = (cut & !7).min(bytes.len() & !7);
        (bytes[..cut].to_vec(), bytes[cut..].to_vec(), cut)
    };
    prop_oneof![
        4 => message().prop_map(|bytes| ip(17, 0, 0, 1, &udp(5060, 5060, &bytes))),
        2 => (any::<u16>(), 0..30u32).prop_map(|(seq, ssrc)| ip(17, 0, 0, 2, &udp(7000 + ssrc as u16, 6000, &rtp(seq, ssrc)))),
        2 => (message(), 0..4u16, 0..9u32, any::<u8>(), any::<bool>()).prop_map(|(bytes, port, step, flags, end)| {
            let flags = if end { flags } else { 0x10 };
            ip(6, 0, 0, 3, &tcp(4000 + port, step * 1000, flags, &bytes))
        }),
        2 => (message(), any::<u16>(), 8..2000usize, any::<bool>()).prop_map(move |(bytes, id, cut, second)| {
            let (head, tail, at) = parts(udp(5060, 5060, &bytes), cut);
            if second { ip(17, id % 600, (at / 8) as u16, 4, &tail) } else { ip(17, id % 600, 0x2000, 4, &head) }
        }),
        1 => (any::<u16>(), 0..8190u16).prop_map(|(id, at)| ip(17, id, 0x2000 | at, 5, &[7; 16])),
        1 => prop::collection::vec(any::<u8>(), 0..200),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_held_once_there_are_no_calls(
        packets in prop::collection::vec((packet(), prop_oneof![8 => 0..50_000_000u64, 1 => 0..20_000_000_000u64, 1 => any::<u64>()]), 0..600),
        heuristic: bool,
        in_order: bool,
    ) {
        let settings = Settings {
            memory: 0,
            heuristic,
            reorder_ns: if in_order { 0 } else { 50_000_000 },
            signals: true,
            keep: Keep::All,
            ..Settings::default()
        };
        let mut monitor = Monitor::new(settings);
        let (mut ts_ns, mut calls, mut number) = (1_700_000_000_000_000_000u64, 0, 0);
        let mut take = |monitor: &mut Monitor| {
            calls += monitor.finished().drain().filter(|one| matches!(one, Finished::Call(_))).count() as u64;
        };
        for (packet, wait) in packets {
            ts_ns = ts_ns.wrapping_add(wait);
            monitor.packet(LinkType::Raw, &packet, ts_ns);
            prop_assert!(monitor.memory() <= LEAST_MEMORY / 4 * 3, "{}", monitor.memory());
            // Fragments always have room for the longest datagram.
            prop_assert!(monitor.held() <= LEAST_MEMORY / 8 + (256 << 10) + LEAST_MEMORY / 16, "{}", monitor.held());
            take(&mut monitor);
            number += 1;
        }
        while monitor.flush() {
            take(&mut monitor);
        }
        take(&mut monitor);
        prop_assert_eq!((monitor.memory(), monitor.held(), monitor.active()), (0, 0, 0));
        prop_assert_eq!(monitor.counts().packets(), number);
        prop_assert_eq!(calls, monitor.counts().calls);
    }
}
