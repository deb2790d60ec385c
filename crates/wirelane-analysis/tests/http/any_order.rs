//! The same streams give the same log in any segments and any order.

use proptest::prelude::*;

use crate::wire::{Packet, Talk, get, line, ok, run};

/// A turn of a conversation: direction, bytes.
type Turn = (usize, Vec<u8>);

fn exchange() -> impl Strategy<Value = Vec<Turn>> {
    let body = "[a-zA-Z \r\n/:.]{0,400}";
    let chunked = |body: &str| {
        let chunks: String = body
            .as_bytes()
            .chunks(37)
            .map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part)))
            .collect();
        format!("{chunks}0\r\n\r\n")
    };
    prop_oneof![
        (0..99u32, body).prop_map(|(n, body)| vec![(0, get(&format!("/{n}")).into()), (1, ok(&body).into())]),
        (0..9u32).prop_map(|n| vec![
            (0, format!("HEAD /{n} HTTP/1.1\r\nUser-Agent: x\r\n\r\n").into()),
            (1, b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n".to_vec()),
        ]),
        (body, body).prop_map(move |(up, down)| vec![
            (0, format!("POST /up HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunked(&up)).into()),
            (1, format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunked(&down)).into()),
        ]),
        body.prop_map(|up| vec![
            (
                0,
                format!("PUT /w HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", up.len())
                    .into()
            ),
            (1, b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
            (0, up.into()),
            (1, ok("stored").into()),
        ]),
        prop::collection::vec(0..50usize, 2..6).prop_map(|sizes| vec![
            (0, sizes.iter().map(|n| get(&format!("/p{n}"))).collect::<String>().into()),
            (1, sizes.iter().map(|n| ok(&"p".repeat(*n))).collect::<String>().into()),
        ]),
    ]
}

fn last() -> impl Strategy<Value = Vec<Turn>> {
    prop_oneof![
        Just(vec![]),
        "[a-z]{0,90}".prop_map(|body| vec![
            (0, get("/last").into()),
            (1, format!("HTTP/1.0 200 OK\r\n\r\n{body}").into())
        ]),
        Just(vec![(0, get("/unanswered").into())]),
        Just(vec![
            (0, b"CONNECT a:443 HTTP/1.1\r\n\r\n".to_vec()),
            (1, b"HTTP/1.1 200 Go\r\n\r\n".to_vec()),
            (0, get("/hidden").into()),
            (1, ok("hidden").into()),
        ]),
    ]
}

/// The conversation in segments of these sizes, used cyclically.
fn segments(turns: &[Turn], sizes: &[usize]) -> Vec<Packet> {
    let mut talk = Talk::new();
    let mut sizes = sizes.iter().cycle();
    for (dir, bytes) in turns {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            talk.say(*dir, part);
            rest = behind;
        }
    }
    talk.close();
    talk.packets
}

/// After the SYN of each end, packets are swapped, repeated, and made to overlap.
fn mixed(packets: &[Packet], moves: &[(usize, usize, bool)]) -> Vec<Packet> {
    let times: Vec<u64> = packets.iter().map(|packet| packet.ts_ns).collect();
    let (shaken, mut packets) = (packets[..3].to_vec(), packets[3..].to_vec());
    for (from, by, again) in moves {
        let from = from % packets.len();
        let packet = packets[from].clone();
        if !again {
            packets.remove(from);
        }
        let to = (from + by).min(packets.len());
        packets.insert(to, packet);
    }
    // Overlaps with the previous packet.
    for at in 1..packets.len() {
        let (before, this) = (packets[at - 1].clone(), &mut packets[at]);
        let follows =
            before.dir == this.dir && before.seq.wrapping_add(before.payload.len() as u32) == this.seq;
        if follows && at % 3 == 0 && !this.payload.is_empty() && !before.payload.is_empty() {
            let part = before.payload.len().div_ceil(2);
            this.payload.splice(..0, before.payload[before.payload.len() - part..].iter().copied());
            this.seq = this.seq.wrapping_sub(part as u32);
        }
    }
    let mut all = [shaken, packets].concat();
    for (packet, at) in all.iter_mut().zip(0..) {
        packet.ts_ns = times.get(at).copied().unwrap_or(times[times.len() - 1] + at as u64);
    }
    all
}

fn lines(packets: &[Packet]) -> Vec<String> {
    run(packets).0.iter().map(line).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Battery: I5
    #[test]
    fn any_segments_in_any_order_are_the_same_log(
        exchanges in prop::collection::vec(exchange(), 1..6),
        last in last(),
        sizes in prop::collection::vec(1..700usize, 1..8),
        moves in prop::collection::vec((0..1000usize, 0..20usize, any::<bool>()), 0..40),
    ) {
        let turns: Vec<Turn> = exchanges.into_iter().flatten().chain(last).collect();
        let whole = segments(&turns, &[usize::from(u16::MAX) - 100]);
        let expected = lines(&whole);
        prop_assert!(!expected.is_empty());
        prop_assert!(expected.iter().all(|line| !line.contains("lost")), "{:#?}", expected);
        let parts = segments(&turns, &sizes);
        prop_assert_eq!(&lines(&parts), &expected);
        let bytes = segments(&turns, &[1]);
        prop_assert_eq!(&lines(&bytes), &expected);
        prop_assert_eq!(&lines(&mixed(&parts, &moves)), &expected);
    }
}
