//! HTTP detection: packets with heads.

use wirelane_bpf::http::{First, HEAD_MOST, HttpHalf, Line, first, head_end};

const METHODS: &str = "GET POST HEAD PUT OPTIONS CONNECT DELETE PATCH TRACE PROPFIND PROPPATCH MKCOL COPY MOVE LOCK \
    UNLOCK SEARCH REPORT ACL BIND REBIND UNBIND LINK UNLINK LABEL MERGE UPDATE UPDATEREDIRECTREF CHECKIN CHECKOUT \
    UNCHECKOUT MKACTIVITY MKCALENDAR MKREDIRECTREF MKWORKSPACE ORDERPATCH BASELINE-CONTROL VERSION-CONTROL NOTIFY \
    SUBSCRIBE UNSUBSCRIBE PURGE BAN SOURCE";

#[test]
fn methods_and_status_lines_are_known_and_their_beginnings_too_short() {
    for method in METHODS.split_whitespace() {
        let line = format!("{method} / HTTP/1.1\r\n");
        assert_eq!(first(line.as_bytes()), First::Request, "{line}");
        let enough = (method.len() + 1).min(8);
        for length in 0..line.len() {
            let expected = if length < enough { First::Short } else { First::Request };
            assert_eq!(first(&line.as_bytes()[..length]), expected, "{line} {length}");
        }
        // One letter changed, or no blank after the method.
        for at in 0..enough {
            let mut other = line.clone().into_bytes();
            other[at] ^= 0x20;
            assert_eq!(first(&other), First::Nothing, "{line} {at}");
        }
    }
    assert_eq!(first(b"HTTP/1.1 200 OK"), First::Response);
    assert_eq!(first(b"HTTP/1."), First::Response);
    assert_eq!(first(b"HTTP/1"), First::Short);
    for nothing in
        ["HTTP/2.0 200", "get / HTTP/1.1", "\x16\x03\x01", "GETS / H", "PRI * HTTP/2.0", "\0\0\0\0\0\0\0\0"]
    {
        assert_eq!(first(nothing.as_bytes()), First::Nothing, "{nothing}");
    }
    assert_eq!(first(b""), First::Short);
}

#[test]
fn heads_end_with_the_first_empty_line() {
    for (head, behind) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "body"),
        ("GET / HTTP/1.1\nHost: a\n\n", "\r\n\r\n"),
        ("GET / HTTP/1.1\n\r\n", "\n"),
        ("GET / HTTP/1.1\r\nA: \r\r\n\r \r\n\r\n", "x"),
    ] {
        let all = format!("{head}{behind}");
        for cut in 0..all.len() {
            let mut line = Line::TEXT;
            let (one, two) = all.as_bytes().split_at(cut);
            let before = head_end(&mut line, one);
            let end = before + if line == Line::END { 0 } else { head_end(&mut line, two) };
            assert_eq!((end, line), (head.len(), Line::END), "{all:?} {cut}");
        }
    }
}

/// Whether each of these consecutive packets contains a head.
fn chosen(packets: &[&[u8]]) -> (Vec<bool>, HttpHalf) {
    let (mut half, mut seq) = (HttpHalf::default(), u32::MAX - 20);
    let chosen = packets.iter().map(|packet| {
        let chosen = half.packet(seq, packet.len() as u32, packet);
        seq = seq.wrapping_add(packet.len() as u32);
        chosen
    });
    (chosen.collect(), half)
}

#[test]
fn packets_with_heads_are_chosen_and_bodies_are_counted() {
    let (up, half) = chosen(&[
        b"HTTP/1.1 200 OK\r\nA: b\r\n",
        b"C: d\r\n",
        b"\r\nbody",
        b"more body",
        b"HTTP/1.1 404 N\r\n\r\n",
    ]);
    assert_eq!(up, [true, true, true, false, true]);
    assert_eq!((half.heads, half.body), (2, 9));
    // Letter by letter, and two consecutive heads.
    let (up, half) = chosen(&[
        b"G",
        b"E",
        b"T",
        b" ",
        b"/ HTTP/1.1\r\n\r\nGET /2 HTTP",
        b"/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x03\x04\x05\x06",
    ]);
    assert_eq!(up, [true, true, true, true, true, true, false]);
    assert_eq!((half.heads, half.body), (2, 8));
    // Texts that begin like a head, but are not one.
    let (up, _) = chosen(&[b"GE", b"NTLE STRANGER", b"GET of nothing"]);
    assert_eq!(up, [true, false, true]);
    // A head that exceeds the maximum length.
    let many = vec![b'x'; HEAD_MOST];
    let (up, half) = chosen(&[b"GET / HTTP/1.1\r\n", &many, &many, b"POST / HTTP/1.1\r\n\r\n"]);
    assert_eq!(up, [true, true, false, true]);
    assert_eq!(half.heads, 2);
}

#[test]
fn what_was_there_before_is_passed_over_and_what_is_missing_is_counted() {
    let mut half = HttpHalf::default();
    let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert!(half.packet(1000, head.len() as u32, head));
    assert!(!half.packet(1000, head.len() as u32, head), "sent again");
    assert_eq!(half.heads, 1);
    // 72 bytes are missing.
    assert!(!half.packet(1100, 10, b"0123456789"));
    assert_eq!((half.body, half.next), (82 + 1, 1110));
    // Within a head, every segment is taken for a part of it.
    assert!(half.packet(1110, 5, b"GET /"));
    assert!(half.packet(1200, 3, b"abc"));
    assert!(half.packet(1203, 6, b"d\r\n\r\nx"));
    assert!(!half.packet(1209, 9, b"GETnothin"));
    // Only the new part is read.
    let mut half = HttpHalf::default();
    assert!(half.packet(0, 8, b"GET / HT"));
    assert!(half.packet(4, 12, b"/ HTTP/1.1\r\n"));
    assert!(half.packet(16, 2, b"\r\n"));
    assert!(!half.packet(18, 8, b"........"));
    assert_eq!(half.heads, 1);
}
