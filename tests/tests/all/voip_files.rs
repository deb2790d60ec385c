//! `wirelane voip` from files: generated calls, exact to the last packet, and hostile input.

use std::process::Command;

use wirelane_tests::calls::{Scene, description, message, rtp, voip};
use wirelane_tests::numbers::column;
use wirelane_tests::wirelane_binary;

const ALICE: &str = "192.0.2.1:5060";
const BOB: &str = "192.0.2.2:5060";

/// The lines of a message head.
fn head<'a>(id: &'a str, from: &'a str, to: &'a str, cseq: &'a str) -> Vec<&'a str> {
    vec![from, to, id, cseq]
}

const FROM: &str = "From: \"Alice; <x>\" <sip:alice@example.com>;tag=a";
const TO: &str = "To: <sip:bob@example.org>";
const ANSWERED: &str = "To: <sip:bob@example.org>;tag=b";
const BACK: &str = "From: <sip:bob@example.org>;tag=b";
const BACK_TO: &str = "To: \"Alice\" <sip:alice@example.com>;tag=a";
const INVITE: &str = "INVITE sip:bob@example.org SIP/2.0";

/// Sequence numbers 0 to 999 from Alice: 5 lost in two bursts, one late, one duplicated; from Bob's port behind NAT:
/// all of them.
fn media(scene: &mut Scene, begin_us: u64) {
    for number in 0..1000u64 {
        let at = begin_us + number * 20_000;
        if !matches!(number, 100..=103 | 500) {
            // 200 arrives 50 ms late, after two others.
            let late = if number == 200 { 50_000 } else { 0 };
            scene.udp(at + late, "192.0.2.1:6000", "192.0.2.2:7000", &rtp(number + 65_000, 1));
        }
        if number == 300 {
            scene.udp(at + 100, "192.0.2.1:6000", "192.0.2.2:7000", &rtp(number + 65_000, 1));
        }
        scene.udp(at + 5_000, "203.0.113.9:17000", "192.0.2.1:6000", &rtp(number, 2));
    }
}

/// Sender report of `ssrc` at an NTP time, and a receiver report for it.
fn sender_report(ssrc: u32, middle: u32) -> Vec<u8> {
    let words = [0x80c8_0006, ssrc, middle >> 16, middle << 16, 0, 1000, 160_000];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

fn receiver_report(ssrc: u32, middle: u32, delay: u32) -> Vec<u8> {
    let words = [0x81c9_0007, 99, ssrc, 0x1900_0005, 1000, 80, middle, delay];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

/// A call by UDP that Bob ends after 20 s, with every kind of event.
fn long_call(scene: &mut Scene) {
    let id = "i: long@example.com";
    let offer = message(
        INVITE,
        &[head(id, FROM, TO, "CSeq: 1 INVITE"), vec!["User-Agent: phone"]].concat(),
        &description("192.0.2.1", 6000),
    );
    scene.udp(0, ALICE, BOB, &offer);
    scene.udp(500_000, ALICE, BOB, &offer);
    scene.udp(510_000, BOB, ALICE, &message("SIP/2.0 100 Trying", &head(id, FROM, TO, "CSeq: 1 INVITE"), ""));
    scene.udp(
        600_000,
        BOB,
        ALICE,
        &message("SIP/2.0 180 Ringing", &head(id, FROM, ANSWERED, "CSeq: 1 INVITE"), ""),
    );
    let fork = "To: <sip:bob@example.org>;tag=other";
    scene.udp(
        700_000,
        BOB,
        ALICE,
        &message("SIP/2.0 180 Ringing", &head(id, FROM, fork, "CSeq: 1 INVITE"), ""),
    );
    // Behind NAT: the address in Bob's description is not the source of his media.
    let answer = [head(id, FROM, ANSWERED, "CSeq: 1 INVITE"), vec!["Server: \x1b[31mbox"]].concat();
    scene.udp(1_600_000, BOB, ALICE, &message("SIP/2.0 200 OK", &answer, &description("192.0.2.2", 7000)));
    scene.udp(
        1_700_000,
        ALICE,
        BOB,
        &message("ACK sip:bob SIP/2.0", &head(id, FROM, ANSWERED, "CSeq: 1 ACK"), ""),
    );
    media(scene, 1_800_000);
    scene.udp(5_000_000, "192.0.2.1:6001", "192.0.2.2:7001", &sender_report(1, 0x1234_5678));
    // 40 ms later, 30 ms of which the receiver waited.
    scene.udp(
        5_040_000,
        "192.0.2.2:7001",
        "192.0.2.1:6001",
        &receiver_report(1, 0x1234_5678, 65_536 * 30 / 1000),
    );
    let again = head(id, FROM, ANSWERED, "CSeq: 2 INVITE");
    scene.udp(6_000_000, ALICE, BOB, &message(INVITE, &again, &description("192.0.2.1", 6000)));
    scene.udp(6_010_000, BOB, ALICE, &message("SIP/2.0 200 OK", &again, &description("192.0.2.2", 7000)));
    for (at, method) in [(7_000_000, "UPDATE"), (8_000_000, "REFER")] {
        let (start, cseq) = (format!("{method} sip:bob SIP/2.0"), format!("CSeq: 3 {method}"));
        scene.udp(at, ALICE, BOB, &message(&start, &head(id, FROM, ANSWERED, &cseq), ""));
    }
    let bye = [head(id, BACK, BACK_TO, "CSeq: 1 BYE"), vec!["Reason: Q.850;cause=16"]].concat();
    scene.udp(21_900_000, BOB, ALICE, &message("BYE sip:alice SIP/2.0", &bye, ""));
    scene.udp(21_910_000, ALICE, BOB, &message("SIP/2.0 200 OK", &bye[..4], ""));
}

/// Over TCP and IPv6, with compact headers, in segments of 7 bytes; refused.
fn call_by_tcp(scene: &mut Scene) {
    let (from, to) = ("[2001:db8::1]:40000", "[2001:db8::2]:5060");
    let lines = [
        "f: <sip:carol@example.com>;tag=c",
        "t: <sip:dan@example.org>",
        "i: tcp@example.com",
        "CSeq: 9 INVITE",
    ];
    let bytes = message("INVITE sip:dan@example.org SIP/2.0", &lines, &description("2001:db8::1", 6000));
    for (number, part) in bytes.chunks(7).enumerate() {
        scene.tcp(1_000_000 + number as u64, from, to, 1 + number as u32 * 7, part);
    }
    // Two responses in one segment.
    let both = [
        message("SIP/2.0 183 Progress", &lines, &description("2001:db8::2", 7000)),
        message("SIP/2.0 486 Busy Here", &lines, ""),
    ]
    .concat();
    scene.tcp(3_000_000, to, from, 77, &both);
}

fn other_calls(scene: &mut Scene) {
    let id = "Call-ID: canceled@example.com";
    scene.udp(2_000_000, ALICE, BOB, &message(INVITE, &head(id, FROM, TO, "CSeq: 1 INVITE"), ""));
    scene.udp(
        2_500_000,
        ALICE,
        BOB,
        &message("CANCEL sip:bob SIP/2.0", &head(id, FROM, TO, "CSeq: 1 CANCEL"), ""),
    );
    let ended = head(id, FROM, ANSWERED, "CSeq: 1 INVITE");
    scene.udp(2_600_000, BOB, ALICE, &message("SIP/2.0 487 Request Terminated", &ended, ""));
    // Authentication requested, answered, in fragments.
    let id = "Call-ID: fragments@example.com";
    let to_self = "To: <sip:alice@example.com>";
    scene.udp(3_000_000, ALICE, BOB, &message(INVITE, &head(id, FROM, to_self, "CSeq: 1 INVITE"), ""));
    let asked = head(id, FROM, to_self, "CSeq: 1 INVITE");
    scene.udp(3_100_000, BOB, ALICE, &message("SIP/2.0 407 Proxy Authentication Required", &asked, ""));
    let long = format!("X-Long: {}", "x".repeat(3000));
    let with = [head(id, FROM, to_self, "CSeq: 2 INVITE"), vec![&*long]].concat();
    scene.fragmented(3_200_000, ALICE, BOB, &message(INVITE, &with, &description("192.0.2.1", 6100)), 1480);
    let answered = head(id, FROM, to_self, "CSeq: 2 INVITE");
    scene.udp(3_300_000, BOB, ALICE, &message("SIP/2.0 200 OK", &answered, &description("192.0.2.2", 7100)));
    for (at, method) in [(4_000_000, "REGISTER"), (4_100_000, "OPTIONS")] {
        let (start, cseq) = (format!("{method} sip:x SIP/2.0"), format!("CSeq: 1 {method}"));
        let lines = head("Call-ID: none@example.com", FROM, TO, &cseq);
        scene.udp(at, ALICE, BOB, &message(&start, &lines, ""));
        scene.udp(at + 1000, BOB, ALICE, &message("SIP/2.0 200 OK", &lines, ""));
    }
    scene.udp(5_000_000, ALICE, BOB, b"INVITE sip:x SIP/2.0\r\nTo: nobody\r\n\r\n");
    scene.udp(5_100_000, ALICE, BOB, b"\r\n\r\n");
    scene.udp(5_200_000, ALICE, BOB, b"GET / HTTP/1.1\r\n\r\n");
}

/// Battery: I10
#[test]
fn made_up_calls_are_told_to_the_last_packet() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls.pcap");
    let mut scene = Scene::new();
    long_call(&mut scene);
    call_by_tcp(&mut scene);
    other_calls(&mut scene);
    let packets = scene.len() as u64;
    scene.write(&file).unwrap();
    let csv = format!("file:{}", folder.path().join("calls.csv").display());
    let results = voip(&file, &["--export", &csv]);
    assert_eq!(column(&results.last, "analysed"), packets);

    let call = results.call("long@example.com");
    for (name, text) in [
        ("from", "\"Alice; <x>\" <sip:alice@example.com>;tag=a"),
        ("to_uri", "sip:bob@example.org"),
        ("caller", ALICE),
        ("callee", BOB),
        ("transport", "udp"),
        ("caller_agent", "phone"),
        ("callee_agent", "\\u{1b}[31mbox"),
        ("state", "completed"),
        ("hung_up", "callee"),
        ("hang_up_reason", "Q.850;cause=16"),
        ("end_reason", "end"),
    ] {
        assert_eq!(call[name], text, "{name}");
    }
    for (name, number) in [
        ("status", 200),
        ("messages", 13),
        ("retransmitted", 1),
        ("reinvites", 1),
        ("updates", 1),
        ("refers", 1),
        ("forks", 2),
    ] {
        assert_eq!(column(call, name), number, "{name}");
    }
    assert_eq!((&call["post_dial_delay_ms"], &call["ring_ms"]), (&600.0.into(), &1000.0.into()));
    assert_eq!(call["talk_ms"], 20_300.0);
    let [forth, back] = &call["streams"].as_array().unwrap()[..] else { panic!("{call}") };
    for (name, number) in [
        ("packets", 996),
        ("expected", 1000),
        ("lost", 5),
        ("duplicate", 1),
        ("out_of_order", 1),
        ("stray", 0),
        ("loss_bursts", 2),
        ("longest_burst", 4),
    ] {
        assert_eq!(column(forth, name), number, "{name}");
    }
    assert_eq!(
        (&forth["toward"], &forth["codec"], &forth["learned"]),
        (&"callee".into(), &"PCMU".into(), &false.into())
    );
    assert_eq!(forth["burst_histogram"], serde_json::json!([1, 0, 1, 0, 0, 0, 0, 0]));
    // The delay is in units of 1/65536 s.
    assert!((forth["rtcp"]["round_trip_ms"].as_f64().unwrap() - 10.0).abs() < 0.02, "{}", forth["rtcp"]);
    assert_eq!((&forth["rtcp"]["lost"], &forth["rtcp"]["jitter_ms"]), (&5.into(), &10.0.into()));
    // R = 93.2 - Id - 95 Ppl / (Ppl / BurstR + 4.3), with Ppl = 0.5 and bursts of 2.5 where random loss has 1.005.
    let ie = 95.0 * 0.5 / (0.5 / (2.5 * 0.995) + 4.3);
    let r = forth["r_factor"].as_f64().unwrap();
    assert!(r < 93.2 - ie && r > 93.2 - ie - 1.0, "{r}, {ie}");
    assert!(forth["mos_model"].as_str().unwrap().starts_with("G.107"));
    assert_eq!(forth["intervals"].as_array().unwrap().len(), 2);
    assert_eq!((&back["toward"], &back["learned"]), (&"caller".into(), &true.into()));
    assert_eq!((column(back, "packets"), column(back, "lost")), (1000, 0));
    assert_eq!((&back["jitter_max_ms"], &back["delta_mean_ms"]), (&0.0.into(), &20.0.into()));

    let call = results.call("tcp@example.com");
    assert_eq!(
        (&call["state"], column(call, "status"), &call["transport"]),
        (&"failed".into(), 486, &"tcp".into())
    );
    assert_eq!((&call["caller"], &call["early_media"]), (&"[2001:db8::1]:40000".into(), &true.into()));
    let call = results.call("canceled@example.com");
    assert_eq!((&call["state"], &call["hung_up"]), (&"canceled".into(), &"caller".into()));
    assert_eq!(column(call, "status"), 487);
    let call = results.call("fragments@example.com");
    assert_eq!((&call["state"], &call["self_call"]), (&"answered".into(), &true.into()));
    assert_eq!((column(call, "challenges"), &call["early_media"]), (1, &false.into()));

    let last = &results.last;
    for (name, number) in [
        ("calls", 4),
        ("self_calls", 1),
        ("sip_no_call", 4),
        ("sip_malformed", 2),
        ("fragment_packets", 2),
        ("rtp_packets", 1996),
        ("rtcp_packets", 2),
        ("other_packets", 1),
        ("calls_evicted", 0),
        ("datagrams_given_up", 0),
    ] {
        assert_eq!(column(last, name), number, "{name}: {last}");
    }
    assert_eq!(column(&last["sip_faults"], "header"), 1);
    assert_eq!(column(&last["sip_requests"], "INVITE"), 7);
    let lines = std::fs::read_to_string(folder.path().join("calls.csv")).unwrap();
    assert_eq!(lines.lines().count(), 5);
    assert!(
        lines.contains("long@example.com,\"\"\"Alice; <x>\"\" <sip:alice@example.com>;tag=a\""),
        "{lines}"
    );

    // A selection of calls.
    let chosen = voip(&file, &["--from", "CAROL"]);
    assert_eq!((chosen.calls.len(), column(&chosen.last, "calls_left_out")), (1, 3));
    assert_eq!(
        (chosen.calls[0]["call_id"].as_str(), column(&chosen.last, "rtp_packets")),
        (Some("tcp@example.com"), 0)
    );
    assert_eq!(voip(&file, &["--to", "example.org", "--call-id", "long@example.com"]).calls.len(), 1);
    assert_eq!(voip(&file, &["--call-id", "long"]).calls.len(), 0);
    // Without the signalling, packets that look like RTP.
    let heard = voip(&file, &["--heuristic", "udp", "portrange", "6000-7000"]);
    assert_eq!((heard.calls.len(), heard.streams.len()), (0, 2));
    assert_eq!(column(&heard.streams[0], "lost") + column(&heard.streams[1], "lost"), 5);
}

/// Whichever packet comes first, media or messages, of one direction or of the other: an end is learned if no message
/// names it.
#[test]
fn learned_ends_do_not_depend_on_the_order_of_packets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("learned.pcap");
    let id = "Call-ID: learned@example.com";
    // Ends of the callee's media, and whether the streams of both directions are learned.
    for (callee, learned) in [("192.0.2.2:7000", false), ("203.0.113.9:17000", true)] {
        for order in 0..4u64 {
            let mut scene = Scene::new();
            let offer = description("192.0.2.1", 6000);
            scene.udp(0, ALICE, BOB, &message(INVITE, &head(id, FROM, TO, "CSeq: 1 INVITE"), &offer));
            let answered = head(id, FROM, ANSWERED, "CSeq: 1 INVITE");
            let answer = description("192.0.2.2", 7000);
            let at = if order < 2 { 10_000 } else { 900_000 };
            scene.udp(at, BOB, ALICE, &message("SIP/2.0 200 OK", &answered, &answer));
            for number in 0..50 {
                let shift = if order % 2 == 0 { [0, 1_000] } else { [1_000, 0] };
                let at = 20_000 + number * 20_000;
                scene.udp(at + shift[0], "192.0.2.1:6000", callee, &rtp(number, 1));
                scene.udp(at + shift[1], callee, "192.0.2.1:6000", &rtp(number, 2));
                // Another SSRC between the same ends.
                scene.udp(at + 5_000, callee, "192.0.2.1:6000", &rtp(number, 3));
            }
            scene.write(&file).unwrap();
            let results = voip(&file, &[]);
            let streams = results.call("learned@example.com")["streams"].as_array().unwrap().clone();
            assert_eq!(streams.len(), 3, "{callee}, order {order}");
            for stream in streams {
                assert_eq!(column(&stream, "packets"), 50, "{callee}, order {order}: {stream}");
                assert_eq!(stream["learned"], learned, "{callee}, order {order}: {stream}");
            }
        }
    }
}

/// Battery: I6
#[test]
fn hostile_signalling_and_media_are_bounded_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hostile.pcap");
    let mut scene = Scene::new();
    // Calls without an answer.
    for number in 0..30_000u64 {
        let id = format!("Call-ID: flood-{number}\x01\x7f\"");
        scene.udp(number, ALICE, BOB, &message(INVITE, &head(&id, FROM, TO, "CSeq: 1 INVITE"), ""));
    }
    // A call whose port receives everything.
    let id = "Call-ID: target";
    let many = description("192.0.2.2", 7000) + &"m=audio 9 RTP/AVP 0\r\n".repeat(999);
    scene.udp(
        40_000,
        ALICE,
        BOB,
        &message(INVITE, &head(id, FROM, TO, "CSeq: 1 INVITE"), &description("192.0.2.1", 6000)),
    );
    scene.udp(
        41_000,
        BOB,
        ALICE,
        &message("SIP/2.0 200 OK", &head(id, FROM, ANSWERED, "CSeq: 1 INVITE"), &many),
    );
    for number in 0..400u64 {
        let at = 50_000 + number * 20_000;
        scene.udp(at, "192.0.2.1:6000", "192.0.2.2:7000", &rtp(number, 7));
        // Another sender with the same SSRC, SSRCs that change with every packet, and packets that are not RTP.
        scene.udp(at + 1, "198.51.100.1:6000", "192.0.2.2:7000", &rtp(number * 7, 7));
        scene.udp(at + 2, "198.51.100.2:6000", "192.0.2.2:7000", &rtp(1, 1000 + number as u32));
        scene.udp(at + 3, "198.51.100.3:6000", "192.0.2.2:7000", b"\x9f\0\0\0\0\0\0\0\0\0\0\0");
        scene.udp(at + 4, "192.0.2.1:6001", "192.0.2.2:7001", b"\x81\xc8\0\x06\0\0\0\0");
    }
    // Endless heads, empty messages, and false lengths.
    let big = vec![b'x'; 60_000];
    for (number, payload) in [
        [b"INVITE sip:x SIP/2.0\r\nVia: ".as_slice(), &big].concat(),
        message(INVITE, &[head("Call-ID: via", FROM, TO, "CSeq: 1 INVITE"), vec!["Via: x"; 5000]].concat(), ""),
        message(INVITE, &[head("Call-ID: empty", FROM, TO, "CSeq: 1 INVITE"), vec!["Warning:"]].concat(), ""),
        b"INVITE sip:x SIP/2.0\r\n\r\n".to_vec(),
        b"BYE sip:x SIP/2.0\r\nCall-ID: x\r\nFrom: a\r\nTo: b\r\nCSeq: 1 BYE\r\nContent-Length: 4294967328\r\n\r\n".to_vec(),
        b"\xff\xfe".to_vec(),
    ]
    .iter()
    .enumerate()
    {
        scene.udp(9_000_000 + number as u64, ALICE, BOB, payload);
    }
    // A flood of connections with incomplete messages.
    for port in 10_000..14_000u64 {
        scene.tcp(
            9_100_000 + port,
            &format!("192.0.2.9:{port}"),
            BOB,
            1,
            b"INVITE sip:x SIP/2.0\r\nVia: x\r\n",
        );
    }
    let packets = scene.len() as u64;
    scene.write(&file).unwrap();
    let results = voip(&file, &["--memory", "2", "--heuristic"]);
    let last = &results.last;
    assert_eq!(column(last, "analysed"), packets);
    assert_eq!(results.calls.len(), 30_000 + 3, "every call is told once");
    assert!(column(last, "calls_evicted") > 25_000, "{last}");
    let target = results.call("target");
    assert_eq!(target["end_reason"], "forced", "the call that is answered stays");
    assert_eq!(column(target, "media_left_out"), 1000 - 16);
    let streams = target["streams"].as_array().unwrap();
    assert!(streams.len() <= 64, "{}", streams.len());
    let own = streams.iter().find(|stream| stream["src"] == "192.0.2.1").unwrap();
    assert_eq!((column(own, "packets"), column(own, "lost")), (400, 0), "whole in all that noise");
    assert_eq!(column(target, "ssrc_collisions"), 1);
    assert!(column(target, "ssrc_changes") >= 399);
    assert_eq!(column(last, "rtp_malformed"), 400);
    assert_eq!(column(last, "rtcp_malformed"), 400);
    assert_eq!(column(last, "rtp_packets"), 1600);
    let faults = &last["sip_faults"];
    // No Call-ID, twice; an invalid length; no first line.
    assert_eq!(
        (column(faults, "header"), column(faults, "length"), column(faults, "start_line")),
        (2, 1, 1),
        "{faults}"
    );
    assert_eq!((column(last, "sip_malformed"), column(last, "tcp_evicted")), (4, 0));
}

#[test]
fn what_is_not_there_yet_fails_and_says_so() {
    let run =
        |words: &[&str]| Command::new(wirelane_binary().unwrap()).arg("voip").args(words).output().unwrap();
    for (words, part) in [
        (&["-r", "x.pcap", "--analysis", "kernel"][..], "--analysis: a file is not analysed in the kernel"),
        (&["-i", "lo", "--analysis", "kernel", "--packets", "5"], "--packets: with --analysis kernel"),
        (&["-i", "lo", "--streams", "5"], "--streams: this is for --analysis kernel"),
        (&["-i", "lo", "--analysis", "kernel", "--clock", "card"], "--clock: streams that are measured"),
        (&["-i", "lo", "--analysis", "kernel", "--engine", "packet"], "--analysis: only --engine ring"),
        (&["-r", "x.pcap", "--export", "file:x.parquet"], "must end in .json, .csv or .ipfix"),
        (&["-r", "x.pcap", "--workers", "2"], "--workers: a file is read by one worker"),
        (
            &["-i", "lo", "--workers", "2", "--steering", "copy"],
            "--steering: each packet would count once for each",
        ),
        (&["-i", "lo", "--workers", "2", "--analysis", "kernel"], "--workers: with --analysis kernel"),
    ] {
        let output = run(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
}
