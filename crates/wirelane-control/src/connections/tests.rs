//! Tests of connections: long lines, slow and silent peers.

use std::io::{Read as _, Write as _};

use super::super::protocol::BRING_RULES;
use super::*;

/// A connection and its peer.
fn connected() -> (Connection, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    (Connection::new(ours, 4 * TURN), theirs)
}

fn refuse(ask: Ask) -> Answer {
    Answer::Refused(format!("{ask:?}"))
}

#[test]
fn questions_are_answered_in_order_however_they_come() {
    let (mut connection, mut peer) = connected();
    let both = br#"{"version":1,"ask":"status"}
{"version":1,"ask":"stats"}
{"version":1,"#;
    // One byte at a time, and the last request is incomplete.
    for byte in both {
        peer.write_all(&[*byte]).unwrap();
        assert!(connection.serve(refuse, false));
    }
    let mut heard = vec![0; 4096];
    let length = peer.read(&mut heard).unwrap();
    let heard = String::from_utf8_lossy(&heard[..length]).into_owned();
    let lines: Vec<&str> = heard.lines().collect();
    assert_eq!(lines.len(), 2, "{heard}");
    assert!(lines[0].contains("Status") && lines[1].contains("Stats"), "{heard}");
    drop(peer);
    assert!(!connection.serve(refuse, false), "who has gone is let go");
}

#[test]
fn who_takes_no_answer_is_asked_no_question() {
    let (mut connection, mut peer) = connected();
    let mut asked = 0;
    let mut long = |_| {
        asked += 1;
        Answer::Refused("x".repeat(1 << 20))
    };
    peer.write_all(b"{\"version\":1,\"ask\":\"status\"}\n".repeat(3).as_slice()).unwrap();
    for _ in 0..10 {
        assert!(connection.serve(&mut long, false));
    }
    assert!(connection.unsent());
    let mut heard = 0;
    let mut some = vec![0; 1 << 16];
    while heard < 3 << 20 {
        heard += peer.read(&mut some).unwrap();
        assert!(connection.serve(&mut long, false));
    }
    assert_eq!(asked, 3);
}

#[test]
fn a_long_line_that_brings_no_rules_is_refused() {
    let (mut connections, mut peers) = many(1);
    peers[0].set_nonblocking(true).unwrap();
    let mut sent = 0;
    while !connections.connections.is_empty() {
        sent += peers[0].write(&[b'['; 1 << 16]).unwrap_or(0);
        connections.serve(refuse);
    }
    assert!(sent <= SMALL + TURN, "{sent}");
    let mut heard = [0; 200];
    let length = peers[0].read(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard[..length]).contains("brings no rules"));
}

/// Its end comes together with more bytes than a line may have.
#[test]
fn a_long_line_that_comes_whole_is_refused() {
    let (mut connection, mut peer) = connected();
    connection.input = vec![b'x'; SMALL + 1];
    peer.write_all(b"\n").unwrap();
    assert!(!connection.serve(|_| panic!("the line was taken"), false));
    let mut heard = [0; 200];
    let length = peer.read(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard[..length]).contains("brings no rules"));
}

#[test]
fn an_answer_quotes_no_long_request() {
    let (mut connection, mut peer) = connected();
    peer.write_all(&[&b"{\"version\":1,\"ask\":\""[..], &[b'x'; 9000], b"\"}\n"].concat()).unwrap();
    assert!(connection.serve(|_| panic!("the line was taken"), false));
    let mut heard = [0; 2000];
    let length = peer.read(&mut heard).unwrap();
    let heard = String::from_utf8_lossy(&heard[..length]);
    assert!(heard.contains("invalid request") && heard.contains("x...") && length < 600, "{heard}");
}

#[test]
fn a_line_without_an_end_is_refused() {
    let (mut connection, mut peer) = connected();
    let chunk = vec![b' '; TURN];
    peer.write_all(BRING_RULES[0]).unwrap();
    let mut open = true;
    for _ in 0..=4 {
        let mut sent = 0;
        while sent < chunk.len() && open {
            peer.set_nonblocking(true).unwrap();
            match peer.write(&chunk[sent..]) {
                Ok(length) => sent += length,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => panic!("{e}"),
            }
            open = connection.serve(refuse, false);
        }
    }
    assert!(!open);
    peer.set_nonblocking(false).unwrap();
    let mut heard = [0; 200];
    let length = peer.read(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard[..length]).contains("more than"));
}

/// Connections without a listening socket, and their peers.
fn many(count: usize) -> (Connections, Vec<UnixStream>) {
    let (connections, peers) = (0..count).map(|_| connected()).unzip();
    (Connections { listeners: Vec::new(), connections, full_until: None, longest: 4 * TURN }, peers)
}

#[test]
fn who_asks_nothing_whole_is_let_go() {
    let (mut connections, mut peers) = many(3);
    // The first is idle, the second sends a byte now and then, the third has just sent a request.
    for _ in 0..9 {
        for connection in &mut connections.connections[..2] {
            connection.since -= PATIENCE / 10;
        }
        peers[1].write_all(b"x").unwrap();
        connections.serve(refuse);
        assert_eq!(connections.connections.len(), 3);
        assert!(connections.connections[0].rest() < PATIENCE);
    }
    for connection in &mut connections.connections {
        connection.since -= PATIENCE / 10;
    }
    peers[2].write_all(b"{\"version\":1,\"ask\":\"status\"}\n").unwrap();
    connections.serve(refuse);
    assert_eq!(connections.connections.len(), 1);
    let mut heard = [0; 200];
    assert!(peers[2].read(&mut heard).unwrap() > 0, "the one that asks stays");
    assert_eq!(peers[0].read(&mut heard).unwrap(), 0, "the idle one has gone");
}

#[test]
fn who_waits_for_anothers_answer_is_not_let_go_for_that() {
    let (mut connections, mut peers) = many(2);
    peers[0].write_all(b"{\"version\":1,\"ask\":\"status\"}\n").unwrap();
    connections.connections[1].since -= PATIENCE - Duration::from_millis(100);
    connections.serve(|ask| {
        std::thread::sleep(Duration::from_millis(200));
        refuse(ask)
    });
    assert_eq!(connections.connections.len(), 2);
}

#[test]
fn one_long_line_comes_at_a_time() {
    let (mut connections, mut peers) = many(2);
    let mut write = |connections: &mut Connections, at: usize, bytes: usize| {
        peers[at].set_nonblocking(true).unwrap();
        let mut left = bytes;
        let _ = peers[at].write(BRING_RULES[1]);
        while left > 0 {
            match peers[at].write(&vec![b' '; left]) {
                Ok(length) => left -= length,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => connections.serve(refuse),
                Err(e) => return Err(e),
            }
        }
        connections.serve(refuse);
        Ok(())
    };
    write(&mut connections, 0, 2 * SMALL).unwrap();
    // The peer may be refused while it writes.
    let _ = write(&mut connections, 1, SMALL + 1);
    assert_eq!(connections.connections.len(), 1);
    let mut heard = [0; 200];
    let length = peers[1].read(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard[..length]).contains("while another one comes"));
    // The first connection continues, and gets an answer.
    peers[0].set_nonblocking(false).unwrap();
    peers[0].write_all(b"{}\n").unwrap();
    connections.serve(refuse);
    assert!(peers[0].read(&mut heard).unwrap() > 0);
}
