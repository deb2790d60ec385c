//! Hostile input: memory stays within bounds, counts are exact, and faults are marked (RELIABILITY: I5, I7).

use wirelane_analysis::http::{HttpSettings, HttpTable, LEAST_MEMORY, Mark};

use crate::wire::{Packet, Talk, each_record, flushed, get, line, ok, run, run_with};

fn lines(packets: &[Packet]) -> Vec<String> {
    run(packets).0.iter().map(line).collect()
}

/// Battery: I5
#[test]
fn a_million_fields_and_a_line_without_end() {
    let mut talk = Talk::new();
    talk.client("GET /many HTTP/1.1\r\nHost: a\r\n");
    let fields: String = (0..5000).map(|n| format!("X-{n}: y\r\n")).collect();
    for _ in 0..200 {
        talk.client(&fields);
    }
    talk.client("\r\n").server(ok("fine"));
    talk.client("GET /");
    let part = "x".repeat(1_000_000);
    for _ in 0..20 {
        talk.client(&part);
    }
    talk.client(" HTTP/1.1\r\n\r\n").server("HTTP/1.1 414 Too long\r\nContent-Length: 0\r\n\r\n").close();
    let (transactions, totals) = run(&talk.packets);
    assert_eq!((totals.requests, totals.responses, transactions.len()), (2, 2, 2));
    let many = transactions[0].request.as_ref().unwrap();
    assert!(transactions[0].marks.has(Mark::HeadCut));
    assert_eq!((&*many.target, many.head), (&b"/many"[..], 31 + 200 * fields.len() as u64));
    let long = transactions[1].request.as_ref().unwrap();
    assert_eq!((long.head, long.line.len()), (20_000_018, 16 << 10));
    assert!(
        transactions[1].marks.has(Mark::HeadCut) && transactions[1].response.as_ref().unwrap().status == 414
    );
}

/// Battery: I5
#[test]
fn a_head_without_end_is_one_transaction() {
    let mut talk = Talk::new();
    talk.client("GET /endless HTTP/1.1\r\n");
    for _ in 0..100 {
        talk.client("X: y\r\n".repeat(10_000));
    }
    talk.close();
    let (transactions, _) = run(&talk.packets);
    assert_eq!(transactions.len(), 1);
    assert!(
        transactions[0].marks.has(Mark::RequestUnfinished) && transactions[0].marks.has(Mark::NoResponse)
    );
}

/// Battery: I5
#[test]
fn smuggling_and_lengths_that_lie() {
    let answer = ok("x");
    for (head, expected) in [
        (
            "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / 0 -> 200 1 [length_and_coding]",
        ),
        ("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n", "POST / 15 -> 200 1 [bad_chunk]"),
        (
            "Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
            "POST / 0 -> 200 1 [bad_chunk]",
        ),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n", "POST / 12 -> 200 1 [bad_chunk]"),
        ("Transfer-Encoding: identity\r\n\r\nabc", "POST / 3 -> 200 1 [bad_coding]"),
        ("Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "POST / 4 -> 200 1 [bad_length]"),
        ("Content-Length: 99999999999999999999\r\n\r\nabcd", "POST / 4 -> 200 1 [bad_length]"),
        ("Content-Length: 3\r\n\tfolded\r\n\r\nabc", "POST / 3 -> 200 1 [bad_length folded]"),
        ("A: b\0c\r\nContent-Length: 3\r\n\r\nabc", "POST / 3 -> 200 1 [malformed nul]"),
        ("Content-Length: 3\n\nabc", "POST / 3 -> 200 1 [bare_lf]"),
        ("no field at all\r\nContent-Length: 3\r\n\r\nabc", "POST / 3 -> 200 1 [malformed]"),
    ] {
        let mut talk = Talk::new();
        talk.client(get("/before"))
            .server(ok("b"))
            .client(format!("POST / HTTP/1.1\r\n{head}"))
            .server(&answer);
        talk.client(get("/after")).server(ok("after")).close();
        let found = lines(&talk.packets);
        assert_eq!(found[0], "GET /before 0 -> 200 1");
        if expected.contains("bad_chunk") {
            // The number of bytes read up to there depends only on the chunk framing.
            assert!(
                found[1].starts_with("POST / ") && found[1].ends_with("-> 200 1 [bad_chunk]"),
                "{found:#?}"
            );
        } else {
            assert_eq!(found[1], expected, "{head:?}");
        }
        assert_eq!((found[2].as_str(), found.len()), ("GET /after 0 -> 200 5", 3), "{head:?} {found:#?}");
    }
}

/// Maximum lengths: no overflow, whichever part of them is lost.
/// Battery: I5
#[test]
fn the_greatest_length_does_not_overflow() {
    let most = i64::MAX as u64;
    for (length, mark) in [(most, "request_unfinished"), (most + 1, "bad_length"), (u64::MAX, "bad_length")] {
        let mut talk = Talk::new();
        talk.client(format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\nabcd"))
            .server(ok("x"))
            .close();
        assert_eq!(lines(&talk.packets), [format!("POST / 4 -> 200 1 [{mark}]")]);
    }
    let mut talk = Talk::new();
    talk.client(get("/")).server(format!("HTTP/1.1 200 OK\r\nContent-Length: {most}\r\n\r\nabcd"));
    talk.lost(1, 1000).server("e").close();
    assert_eq!(lines(&talk.packets), ["GET / 0 -> 200 1005-1000 [response_lost response_unfinished]"]);
}

/// Battery: I5
#[test]
fn ten_thousand_requests_that_do_not_wait() {
    let mut talk = Talk::new();
    talk.client((0..10_000).map(|n| get(&format!("/{n}"))).collect::<String>());
    talk.server(ok("z").repeat(10_000)).close();
    let (transactions, totals) = run(&talk.packets);
    assert_eq!((transactions.len(), totals.requests, totals.responses), (10_000, 10_000, 10_000));
    let in_order = transactions.iter().enumerate().all(|(n, transaction)| {
        let request = transaction.request.as_ref().unwrap();
        *request.target == *format!("/{n}").as_bytes() && transaction.response.is_some()
    });
    assert!(in_order);
    assert_eq!(totals.without_request + totals.without_response, 0);
}

/// Battery: I5
#[test]
fn requests_that_are_never_answered_are_bounded_and_counted() {
    let mut talk = Talk::new();
    // Many thousand requests that wait: more than a connection may hold.
    talk.client((0..40_000).map(|n| get(&format!("/{n}"))).collect::<String>());
    talk.server(ok("z").repeat(40_000)).close();
    let (transactions, totals) = run(&talk.packets);
    assert_eq!((totals.requests, totals.responses), (40_000, 40_000));
    let evicted =
        transactions.iter().filter(|transaction| transaction.marks.has(Mark::Evicted)).count() as u64;
    assert!(evicted > 1000, "{evicted}");
    assert_eq!((totals.without_response, totals.without_request), (evicted, evicted));
    // Answered requests have their own responses.
    let whole = transactions
        .iter()
        .filter(|transaction| transaction.request.is_some() && transaction.response.is_some());
    assert_eq!(whole.count() as u64, 40_000 - evicted);
}

/// Of twice as many connections as fit in memory, all are logged, and evicted ones are counted.
/// Battery: I5
#[test]
fn memory_is_bounded_under_twice_the_load() {
    let mut packets = Vec::new();
    for n in 0..3000u32 {
        let mut talk = Talk::midway();
        talk.client(format!("GET /{n} HTTP/1.1\r\n{}\r\n", "X: yyyyyyyyyyyyyyyy\r\n".repeat(200)));
        // Another half of a head, which is held.
        talk.client(format!("GET /more HTTP/1.1\r\n{}", "X: yyyyyyyyyyyyyyyy\r\n".repeat(40)));
        for mut packet in talk.packets {
            packet.port = 1024 + n as u16;
            packet.ts_ns += u64::from(n) * 1000;
            packets.push(packet);
        }
    }
    let settings = HttpSettings { memory: LEAST_MEMORY, ..HttpSettings::default() };
    let (transactions, totals) = run_with(&packets, settings);
    assert_eq!((totals.connections, totals.requests), (3000, 6000));
    assert_eq!(transactions.len(), 6000);
    assert!(totals.evicted > 1500, "{}", totals.evicted);
    let evicted =
        transactions.iter().filter(|transaction| transaction.marks.has(Mark::Evicted)).count() as u64;
    assert!(evicted >= totals.evicted, "{evicted}");
}

/// A reset connection does not hold anything, whatever follows the reset.
#[test]
fn what_comes_after_a_reset_is_not_held_for_ever() {
    let mut talk = Talk::midway();
    talk.client(get("/x")).reset(1).wait(1000);
    talk.push(0, 0x10, b"");
    // `run` asserts that nothing is held at the end.
    let (transactions, totals) = run(&talk.packets);
    assert_eq!((transactions.len(), totals.requests), (1, 1));
}

/// Times near the maximum of 64 bits, and steps back from there.
#[test]
fn times_at_the_end_of_time_are_taken() {
    for times in [[u64::MAX; 4], [0, u64::MAX, 1, u64::MAX - 1], [u64::MAX, 0, u64::MAX, 0]] {
        let mut talk = Talk::midway();
        talk.client(get("/x")).server(ok("y")).client("GET /cut HTTP").server("");
        let mut table = HttpTable::new(HttpSettings::default());
        let mut times = times.into_iter();
        each_record(&talk.packets, |record| table.record(record, times.next().unwrap_or(u64::MAX)));
        assert_eq!(flushed(&mut table).len() as u64, table.totals().transactions);
    }
}

/// Battery: I5
#[test]
fn overlaps_with_other_bytes_are_marked_and_the_first_count() {
    let mut talk = Talk::new();
    talk.client(get("/true"));
    let whole = talk.packets.pop().unwrap();
    let at = |from: usize, payload: &[u8], later: u64| Packet {
        seq: whole.seq.wrapping_add(from as u32),
        payload: payload.to_vec(),
        ts_ns: whole.ts_ns + later,
        ..whole.clone()
    };
    let bytes = &whole.payload;
    // First the end, then a different beginning for bytes that are known.
    talk.packets.push(at(8, &bytes[8..], 1));
    talk.packets.push(at(4, b"/fabled HTTP/1.1", 2));
    talk.packets.push(at(0, &bytes[..6], 3));
    talk.server(ok("x")).close();
    assert_eq!(lines(&talk.packets), ["GET /fabe 0 -> 200 1 [conflict]"].map(|line| line.to_owned()));
}

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Segments in the worst order take linear time; with a thousand of them out of order, nothing is lost.
/// Battery: I5
#[test]
fn the_worst_order_costs_no_more_than_its_number() {
    let time = |count: usize| {
        let mut talk = Talk::new();
        talk.mss = 10;
        let body = "b".repeat(count * 10);
        talk.client(format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len()));
        let head = talk.packets.len();
        talk.client(&body);
        talk.packets[head..].reverse();
        talk.server(ok("x")).close();
        let begun = cpu_ns();
        let found = lines(&talk.packets);
        let took = cpu_ns() - begun;
        assert_eq!(found, [format!("POST / {} -> 200 1", body.len())]);
        took
    };
    time(1000);
    let (one, eight) = (time(4000), time(32_000));
    assert!(eight < one * 8 * 3, "{one} ns, of eight times as many {eight} ns");
}

/// Battery: I5
#[test]
fn halves_that_close_early_and_resets() {
    let mut talk = Talk::new();
    talk.client(get("/half")).ends(0).server(ok("still answered")).ends(1);
    assert_eq!(lines(&talk.packets), ["GET /half 0 -> 200 14"]);
    let mut talk = Talk::new();
    talk.client(get("/cut")).server("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart").reset(1);
    assert_eq!(lines(&talk.packets), ["GET /cut 0 -> 200 4 [response_unfinished reset]"]);
    let mut talk = Talk::new();
    talk.client("POST /early HTTP/1.1\r\nContent-Length: 100\r\n\r\npart").server(ok("enough")).close();
    assert_eq!(lines(&talk.packets), ["POST /early 4 -> 200 6 [request_unfinished]"]);
}

/// The packets with heads that in-kernel selection delivers are sufficient for the same log, if bodies have lengths.
#[test]
fn packets_with_heads_are_enough() {
    use wirelane_bpf::http::HttpHalf;
    let mut talk = Talk::new();
    for n in 0..50 {
        talk.client(get(&format!("/{n}"))).server(ok(&"b".repeat(n * 777))).wait(2);
    }
    talk.client(format!("PUT /up HTTP/1.1\r\nContent-Length: 20000\r\n\r\n{}", "u".repeat(20_000)))
        .server(ok("stored"));
    talk.client(get("/last")).server(ok("end")).close();
    let mut halves = [HttpHalf::default(); 2];
    let up: Vec<Packet> = talk
        .packets
        .iter()
        .filter(|packet| {
            let half = &mut halves[packet.dir];
            packet.payload.is_empty() || half.packet(packet.seq, packet.payload.len() as u32, &packet.payload)
        })
        .cloned()
        .collect();
    let plain = |packets: &[Packet]| -> Vec<String> {
        let of = run(packets).0;
        let bare = of.iter().map(|transaction| {
            let (request, response) =
                (transaction.request.as_ref().unwrap(), transaction.response.as_ref().unwrap());
            format!("{:?} {} {} {}", request.target, request.body, response.status, response.body)
        });
        bare.collect()
    };
    assert!(up.len() * 2 < talk.packets.len(), "{} of {}", up.len(), talk.packets.len());
    assert_eq!(plain(&up), plain(&talk.packets));
}
