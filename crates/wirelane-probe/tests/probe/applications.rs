//! Application protocol as a key.

use serde_json::json;

use crate::traffic::*;

/// A ClientHello, as far as the detection reads it.
fn client_hello() -> Vec<u8> {
    let mut bytes = vec![22, 3, 1, 0, 100, 1, 0, 0, 96, 3, 3];
    bytes.resize(105, 7);
    bytes
}

/// A query for the name `a`.
fn dns() -> Vec<u8> {
    vec![1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1]
}

/// Conversations of several applications, on ports without a meaning or of another application, twice the same second.
fn talk() -> Vec<Timed> {
    let (client, server) = (host(1), host(2));
    let mut frames = Vec::new();
    let mut at = |frame: Vec<u8>| frames.push((frames.len() as u64 * MS, frame));
    for (port, first, answers) in [
        (8001, client_hello(), 5),
        (8002, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), 3),
        (443, b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), 2),
        (80, b"nothing that is known".to_vec(), 4),
    ] {
        // The handshake precedes the payload.
        at(tcp(client, server, (40_000, port), SYN, 0, 0));
        at(tcp(server, client, (port, 40_000), SYN_ACK, 0, 0));
        at(tcp_with(client, server, (40_000, port), ACK, 1, &first));
        for turn in 0..answers {
            at(tcp(server, client, (port, 40_000), ACK, 1 + turn * 10, 10));
        }
    }
    for port in [5000, 5001] {
        at(udp_with(client, server, (port, 53), &dns()));
        // Truncated by the responder: the application is already known.
        at(udp_with(server, client, (53, port), &[1, 2]));
    }
    at(arp(1, client));
    frames
}

const BY_APPLICATION: &str =
    "[[measurement]]\nname = \"m\"\nkey = [\"application\"]\nvalues = [\"packets\", \"bytes\", \"flows\"]\n";

#[test]
fn packets_are_counted_by_what_speaks_in_their_conversation() {
    let said = probe(BY_APPLICATION, &talk());
    let [interval] = said.of("m", false)[..] else { panic!() };
    let mut rows: Vec<_> = interval["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let number = |name: &str| row[name].as_u64().unwrap();
            (row["application"].as_str().unwrap(), number("packets"), number("flows"))
        })
        .collect();
    rows.sort_unstable();
    // Each conversation from the packet that reveals its application; four handshakes, and one unknown conversation.
    assert_eq!(rows, [("DNS", 4, 2), ("HTTP", 4, 1), ("SSH", 3, 1), ("TLS", 6, 1), ("unknown", 8 + 5, 4)]);
    assert_eq!((&interval["packets"], &interval["without_key"]), (&json!(31), &json!(1)), "ARP says nothing");
}

#[test]
fn names_are_remembered_over_intervals_and_tell_alarms_apart() {
    let mut frames = talk();
    // Packets of the TLS conversation, in the next second.
    frames.extend((0..20u64).map(|n| (SECOND + n * MS, tcp(host(2), host(1), (8001, 40_000), ACK, 900, 10))));
    let text = format!(
        "{BY_APPLICATION}[[alarm]]\nname = \"much\"\nmeasurement = \"m\"\nvalue = \"packets\"\nabove = 15\n"
    );
    let said = probe(&text, &frames);
    assert_eq!(said.alarms(), ["much raised TLS"]);
    assert_eq!(
        said.of("m", false)[1]["rows"],
        json!([{"application": "TLS", "packets": 20, "bytes": 1280, "flows": 1}])
    );
}

#[test]
fn several_workers_know_what_one_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.pcap");
    write(&path, &talk());
    let text = BY_APPLICATION.replace("[\"application\"]", "[\"application\", \"port\"]");
    let one = probe_files(config(&text), std::slice::from_ref(&path), 1, |_, _| {});
    let four = probe_files(config(&text), &[path], 4, |_, _| {});
    assert_eq!(one.shown, four.shown);
    assert_eq!(
        one.of("m", true)[0]["keys"],
        json!(8),
        "four at their ports, of which three have a name, and DNS"
    );
}
