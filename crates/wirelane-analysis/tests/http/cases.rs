//! Test cases: one kind of conversation each.

use crate::wire::{Packet, Talk, get, ok, run};

#[test]
fn a_connection_that_is_kept() {
    let mut talk = Talk::new();
    talk.client(get("/1")).server(ok("one")).client(get("/2")).server(ok(&"x".repeat(5000))).close();
    assert_eq!(talk.lines(), ["GET /1 0 -> 200 3", "GET /2 0 -> 200 5000"]);
    let transactions = talk.transactions();
    assert_eq!((transactions[0].number, transactions[1].number), (1, 2));
    assert_eq!(transactions[0].client, ("10.0.0.1".parse().unwrap(), 40_000));
    assert_eq!(transactions[0].server, ("10.0.0.2".parse().unwrap(), 8080));
    let (_, totals) = run(&talk.packets);
    assert_eq!((totals.connections, totals.http_connections), (1, 1));
    // Both requests, and the heads of both responses; three packets are bodies.
    assert_eq!((totals.head_packets, totals.body_packets), (4, 3));
    assert_eq!(totals.empty_packets, 6);
}

#[test]
fn times_are_those_of_the_packets() {
    let mut talk = Talk::new();
    talk.client("GET / HTTP/1.1\r\n").wait(10).client("\r\n").wait(50);
    talk.server("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").wait(30).server("cd").close();
    let transaction = &talk.transactions()[0];
    let (request, response) = (transaction.request.as_ref().unwrap(), transaction.response.as_ref().unwrap());
    assert_eq!(request.end_ns - request.start_ns, 11_000_000);
    assert_eq!(transaction.first_byte_ns(), Some(51_000_000));
    assert_eq!(response.head_ns, response.start_ns);
    assert_eq!(transaction.end_ns() - transaction.start_ns(), (11 + 51 + 31) * 1_000_000);
}

#[test]
fn requests_that_do_not_wait() {
    let mut talk = Talk::new();
    let many: String = (0..300).map(|n| get(&format!("/{n}"))).collect();
    talk.client(&many);
    let answers: String = (0..300).map(|n| ok(&"y".repeat(n))).collect();
    talk.server(answers).close();
    let expected: Vec<String> = (0..300).map(|n| format!("GET /{n} 0 -> 200 {n}")).collect();
    assert_eq!(talk.lines(), expected);
}

#[test]
fn responses_before_the_final_one() {
    let mut talk = Talk::new();
    talk.client("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    talk.server("HTTP/1.1 100 Continue\r\n\r\n").client("hello");
    talk.server("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n").server(ok("done")).close();
    assert_eq!(talk.lines(), ["POST / 5 -> 200 4 1xx:2"]);
}

#[test]
fn bodies_that_are_not_there() {
    let mut talk = Talk::new();
    talk.client("HEAD /h HTTP/1.1\r\n\r\n").server("HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n");
    talk.client(get("/n")).server("HTTP/1.1 204 No Content\r\n\r\n");
    talk.client(get("/m")).server("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n");
    talk.client(get("/e")).server(ok("end")).close();
    assert_eq!(
        talk.lines(),
        ["HEAD /h 0 -> 200 0", "GET /n 0 -> 204 0", "GET /m 0 -> 304 0", "GET /e 0 -> 200 3"]
    );
    assert_eq!(talk.transactions()[0].response.as_ref().unwrap().stated, Some(700));
}

#[test]
fn bodies_in_chunks_and_up_to_the_end() {
    let mut talk = Talk::new();
    let chunks = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: t\r\n\r\n";
    talk.client(format!("PUT /up HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"));
    talk.server(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"));
    talk.client(get("/close")).server("HTTP/1.0 200 OK\r\n\r\n").server("until the end").close();
    assert_eq!(talk.lines(), ["PUT /up 11 -> 200 11", "GET /close 0 -> 200 13"]);
    let response = talk.transactions().remove(0).response.unwrap();
    assert_eq!(response.bytes - response.head, chunks.len() as u64);
}

#[test]
fn tunnels_end_what_is_http() {
    let mut talk = Talk::new();
    talk.client("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n");
    talk.server("HTTP/1.1 200 Connection established\r\n\r\n");
    talk.client(get("/inside")).server(ok("inside")).close();
    assert_eq!(talk.lines(), ["CONNECT example.org:443 0 -> 200 0 [tunnel]"]);
    let (_, totals) = run(&talk.packets);
    assert_eq!(totals.tunnel_bytes, (get("/inside").len() + ok("inside").len()) as u64);
    let mut talk = Talk::new();
    talk.client("GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n");
    talk.server("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x01\x02")
        .client("\x03\x04")
        .close();
    assert_eq!(talk.lines(), ["GET /chat 0 -> 101 0 [tunnel]"]);
    let mut talk = Talk::new();
    talk.client("CONNECT a:1 HTTP/1.1\r\n\r\n").server("HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno");
    talk.client(get("/on")).server(ok("!")).close();
    assert_eq!(talk.lines(), ["CONNECT a:1 0 -> 403 2", "GET /on 0 -> 200 1"]);
}

#[test]
fn one_half_only() {
    let mut talk = Talk::new();
    talk.client(get("/unanswered")).wait(5000).ends(0).ends(1);
    assert_eq!(talk.lines(), ["GET /unanswered 0 -> - [no_response]"]);
    let mut talk = Talk::new();
    talk.client(get("/reset")).reset(1);
    assert_eq!(talk.lines(), ["GET /reset 0 -> - [no_response reset]"]);
    let mut talk = Talk::midway();
    talk.server(ok("timeout")).close();
    assert_eq!(talk.lines(), ["- -> 200 7 [no_request]"]);
    let mut talk = Talk::new();
    talk.client(get("/open")).server("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!(talk.lines(), ["GET /open 0 -> 200 4 [response_unfinished forced]"]);
}

/// Battery: I5
#[test]
fn mirrors_of_one_direction() {
    let mut talk = Talk::new();
    for n in 0..5 {
        talk.client(get(&format!("/{n}"))).server(ok(&"z".repeat(n))).wait(300);
    }
    talk.close();
    let of = |dir: usize| {
        let packets: Vec<_> = talk.packets.iter().filter(|packet| packet.dir == dir).cloned().collect();
        let (transactions, _) = run(&packets);
        transactions.iter().map(crate::wire::line).collect::<Vec<_>>()
    };
    assert_eq!(of(0), [0, 1, 2, 3, 4].map(|n| format!("GET /{n} 0 -> - [no_response]")));
    assert_eq!(of(1), [0, 1, 2, 3, 4].map(|n| format!("- -> 200 {n} [no_request]")));
}

#[test]
fn heads_over_many_segments() {
    let mut talk = Talk::new();
    talk.mss = 1;
    let fields: String = (0..200).map(|n| format!("X-Field-{n}: {}\r\n", "v".repeat(n % 50))).collect();
    talk.client(format!("GET /long HTTP/1.1\r\n{fields}User-Agent: last\r\n\r\n"))
        .server(ok("short"))
        .close();
    assert_eq!(talk.lines(), ["GET /long 0 -> 200 5"]);
    let request = talk.transactions().remove(0).request.unwrap();
    assert_eq!(request.field(wirelane_analysis::http::fields::USER_AGENT), Some(&b"last"[..]));
}

#[test]
fn what_is_no_http_is_left_alone() {
    let mut talk = Talk::new();
    talk.client("\x16\x03\x01\x02\0\x01\0\x01\u{fc}")
        .server("\x16\x03\x03")
        .client("GET key\r\n")
        .server("VALUE\r\n")
        .close();
    assert!(talk.lines().is_empty());
    let mut redis = Talk::new();
    redis.client("GET key\r\n").server("$3\r\nabc\r\n").client("OPTIONS rtsp://a RTSP/1.0\r\n\r\n").close();
    assert!(redis.lines().is_empty());
    let (_, totals) = run(&redis.packets);
    assert_eq!((totals.http_connections, totals.foreign_packets, totals.stray_bytes), (0, 3, 0));
}

#[test]
fn a_connection_that_is_joined_midway() {
    let mut talk = Talk::midway();
    talk.server("the rest of a body").client(get("/next")).server(ok("there")).close();
    assert_eq!(talk.lines(), ["GET /next 0 -> 200 5"]);
}

#[test]
fn a_port_that_is_used_again() {
    let mut talk = Talk::new();
    talk.client(get("/first"));
    let mut again = Talk::new();
    again.client(get("/second")).server(ok("x")).close();
    for packet in &mut again.packets {
        packet.seq = packet.seq.wrapping_add(77_777);
        packet.ack = packet.ack.wrapping_add(77_777);
        packet.ts_ns += 1_000_000_000;
    }
    talk.packets.extend(again.packets);
    assert_eq!(talk.lines(), ["GET /first 0 -> - [no_response]", "GET /second 0 -> 200 1"]);
}

#[test]
fn what_is_sent_again_after_the_end_is_nothing_new() {
    let mut talk = Talk::new();
    talk.client(get("/once")).server(ok("x")).close();
    let mut again = talk.packets[3..].to_vec();
    for packet in &mut again {
        packet.ts_ns += 2_000_000_000;
    }
    talk.packets.extend(again);
    assert_eq!(talk.lines(), ["GET /once 0 -> 200 1"]);
}

#[test]
fn lost_segments_of_bodies_cost_nothing_else() {
    let mut talk = Talk::new();
    talk.client(get("/a")).server("HTTP/1.1 200 OK\r\nContent-Length: 30000\r\n\r\n");
    talk.server("b".repeat(10_000)).lost(1, 10_000).server("b".repeat(10_000));
    talk.client(get("/b")).server(ok("next")).close();
    assert_eq!(talk.lines(), ["GET /a 0 -> 200 30000-10000 [response_lost]", "GET /b 0 -> 200 4"]);
}

/// Battery: I5
#[test]
fn after_a_loss_answers_find_their_requests() {
    // The head of one response is missing, with its body.
    let mut talk = Talk::new();
    talk.client(get("/1"))
        .server(ok("one"))
        .client(get("/2"))
        .lost(1, 5000)
        .client(get("/3"))
        .server(ok("three"));
    talk.client(get("/4")).server(ok("four")).close();
    assert_eq!(
        talk.lines(),
        [
            "GET /1 0 -> 200 3",
            "GET /2 0 -> - [no_response]",
            "GET /3 0 -> 200 5 [resynchronised]",
            "GET /4 0 -> 200 4"
        ]
    );
    // A request is missing.
    let mut talk = Talk::new();
    talk.client(get("/1"))
        .server(ok("one"))
        .lost(0, 60)
        .server(ok("of 2"))
        .client(get("/3"))
        .server(ok("three"));
    talk.close();
    assert_eq!(
        talk.lines(),
        ["GET /1 0 -> 200 3", "- -> 200 4 [no_request]", "GET /3 0 -> 200 5 [resynchronised]"]
    );
    // The end of a body and the next head are missing.
    let mut talk = Talk::new();
    talk.client(get("/1")).server("HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n").server("a".repeat(3000));
    talk.lost(1, 2000).client(get("/2")).lost(1, 300).client(get("/3")).server(ok("three")).close();
    assert_eq!(
        talk.lines(),
        [
            "GET /1 0 -> 200 5000-2000 [response_lost]",
            "GET /2 0 -> - [no_response]",
            "GET /3 0 -> 200 5 [resynchronised]"
        ]
    );
    // The middle of a head is missing.
    let mut talk = Talk::new();
    talk.client("GET /1 HTTP/1.1\r\nHost: a\r\n").lost(0, 100).client("X: y\r\n\r\n").server(ok("one"));
    talk.client(get("/2")).server(ok("two")).close();
    assert_eq!(
        talk.lines(),
        ["GET /1 108-100 -> 200 3 [request_lost]", "GET /2 0 -> 200 3 [resynchronised]"]
    );
    // Chunk framing is missing.
    let mut talk = Talk::new();
    talk.client(get("/1"))
        .server("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
        .lost(1, 50);
    talk.server("lo\r\n0\r\n\r\n").client(get("/2")).server(ok("two")).close();
    assert_eq!(talk.lines(), ["GET /1 0 -> 200 62-50 [response_lost]", "GET /2 0 -> 200 3 [resynchronised]"]);
}

/// Connections with TLS or HTTP/2 are counted once each, and are not transactions.
#[test]
fn tls_and_http_2_are_counted_and_not_read() {
    let hello = [&[0x16, 3, 1, 0, 48, 1, 0, 0, 44, 3, 3][..], &[7; 42]].concat();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut packets = Vec::new();
    for (port, first) in [(1, &hello[..]), (2, &hello), (3, preface), (4, b"GET / HTTP/1.1\r\n\r\n")] {
        let mut talk = Talk::new();
        talk.client(first).server(if port == 4 { ok("x").into_bytes() } else { hello.clone() });
        talk.client(&hello).close();
        packets.extend(talk.packets.into_iter().map(|packet| Packet { port, ..packet }));
    }
    let (transactions, totals) = run(&packets);
    assert_eq!((totals.connections, totals.http_connections), (4, 1));
    assert_eq!((totals.tls_connections, totals.http2_connections), (2, 1));
    assert_eq!((transactions.len(), totals.requests, totals.responses), (1, 1, 1));
}
