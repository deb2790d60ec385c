//! A program of libpcap's on our libpcap: two processes share the conversations of a device, whose directions have
//! hooks of their own, and the share of a killed process goes to the next one.

use std::collections::BTreeMap;
use std::net::UdpSocket;

use wirelane_tests::libpcap::{Library, compile, start};
use wirelane_tests::{Child, Lab, Signal, require_root};

use super::LIMIT;

/// Source ports of the datagrams, and their destination port, which answers.
const FIRST: u16 = 2000;
const PORTS: u16 = 12;
const ANSWERS: u16 = 9;

/// Battery: L1
#[test]
fn programs_of_libpcap_divide_conversations_among_them() {
    if !require_root("programs_of_libpcap_divide_conversations_among_them") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let program = compile("behave", folder.path(), &[]).unwrap();
    let device = format!("{}:ids/2", lab.receiver().device);
    let words = [program.to_str().unwrap(), "conversations", &device, "0"];
    let begin = || {
        let child = start(&lab, Library::DropIn, folder.path(), &words).unwrap();
        // The program loads a BPF program for each direction.
        let first = child.next_line(4 * LIMIT).unwrap();
        (child, first)
    };
    let ready = |(child, first): (Child, Option<String>)| {
        assert_eq!(first.as_deref(), Some("ready"));
        child
    };
    let killed = ready(begin());
    let other = ready(begin());
    let (refused, first) = begin();
    let first = first.unwrap();
    assert!(first.contains("all 2 shares of group 'ids'") && first.contains("are taken"), "{first}");
    refused.finish(LIMIT).unwrap();
    killed.signal(Signal::Kill).unwrap();
    killed.finish(LIMIT).unwrap();
    let next = ready(begin());
    converse(&lab);
    let (one, two) = (conversations(&lab, next), conversations(&lab, other));
    let mut all = one.clone();
    all.extend(two.iter().map(|(port, packets)| (*port, *packets)));
    // No conversation is divided, and none is in both processes.
    assert_eq!(one.len() + two.len(), all.len(), "{one:?} {two:?}");
    let expected: BTreeMap<u16, u64> = (FIRST..FIRST + PORTS).map(|port| (port, 4)).collect();
    assert_eq!(all, expected);
}

/// Battery: L1
#[test]
fn what_a_program_takes_reaches_other_captures_and_no_socket() {
    if !require_root("what_a_program_takes_reaches_other_captures_and_no_socket") {
        return;
    }
    let (lab, folder) = (Lab::new(1).unwrap(), tempfile::tempdir().unwrap());
    let program = compile("behave", folder.path(), &[]).unwrap();
    let to = (lab.receiver().address, ANSWERS);
    let server = lab.enter(&lab.receiver().namespace, || UdpSocket::bind(to).unwrap()).unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    let send = |port: u16| {
        let from = (lab.sender().address, port);
        let client = lab.enter(&lab.sender().namespace, || UdpSocket::bind(from).unwrap()).unwrap();
        assert_eq!(client.send_to(&port.to_be_bytes(), to).unwrap(), 2);
    };
    let arrived = || {
        let mut bytes = [0; 2];
        server.recv(&mut bytes).map(|_| u16::from_be_bytes(bytes))
    };
    // Both hosts have resolved each other's addresses after this: a device whose packets are consumed does not answer
    // ARP.
    send(FIRST);
    assert_eq!(arrived().unwrap(), FIRST);
    let begin = |take: &str, count: &str, filter: &str| {
        let words = ["env", take, program.to_str().unwrap(), "loop", &lab.receiver().device, count, filter];
        let child = start(&lab, Library::DropIn, folder.path(), &words).unwrap();
        assert_eq!(child.next_line(4 * LIMIT).unwrap().as_deref(), Some("ready"));
        child
    };
    let everything = format!("udp dst port {ANSWERS}");
    let beside = begin("WIRELANE_EXCLUSIVE=0", &(PORTS + 2).to_string(), &everything);
    let taking = begin("WIRELANE_EXCLUSIVE=1", "2", &format!("udp src port {FIRST}"));
    // Packets that do not match its filter are sent first: it ends with the second matching packet.
    (1..=PORTS).map(|port| FIRST + port).for_each(send);
    (0..2).for_each(|_| send(FIRST));
    for (child, count) in [(taking, 2), (beside, PORTS + 2)] {
        let finished = child.finish(LIMIT).unwrap();
        let expected = format!("loop: 0, {count} packets");
        assert!(finished.lines.iter().any(|line| line.starts_with(&expected)), "{expected}: {finished:?}");
    }
    // The first datagram that arrives is the first one sent afterwards.
    send(FIRST + PORTS + 1);
    assert_eq!(arrived().unwrap(), FIRST + PORTS + 1);
    // An invalid value is refused and not taken as a default.
    let words = [
        "env",
        "WIRELANE_EXCLUSIVE=eth1",
        program.to_str().unwrap(),
        "loop",
        &lab.receiver().device,
        "1",
        "",
    ];
    let refused = start(&lab, Library::DropIn, folder.path(), &words).unwrap().finish(LIMIT).unwrap();
    assert!(refused.lines.join(" ").contains("WIRELANE_EXCLUSIVE: 'eth1' is neither 0 nor 1"), "{refused:?}");
}

/// Two datagrams from each port, and as many answers.
fn converse(lab: &Lab) {
    let to = (lab.receiver().address, ANSWERS);
    let server = lab.enter(&lab.receiver().namespace, || UdpSocket::bind(to).unwrap()).unwrap();
    let mut bytes = [0; 8];
    for port in FIRST..FIRST + PORTS {
        let from = (lab.sender().address, port);
        let client = lab.enter(&lab.sender().namespace, || UdpSocket::bind(from).unwrap()).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
        }
        for number in 0..2u64 {
            client.send_to(&number.to_be_bytes(), to).unwrap();
            let (_, whom) = server.recv_from(&mut bytes).unwrap();
            server.send_to(&bytes, whom).unwrap();
            assert_eq!(client.recv(&mut bytes).unwrap(), 8);
            assert_eq!(u64::from_be_bytes(bytes), number);
        }
    }
}

/// Ends a process, and returns the conversations that it has seen, each with its number of packets.
fn conversations(lab: &Lab, child: Child) -> BTreeMap<u16, u64> {
    // The groups of the process at both hooks: packets that were copied for it.
    let groups = lab.enter(&lab.receiver().namespace, wirelane::groups::list).unwrap().unwrap();
    let its = groups.iter().filter(|group| group.pid == child.pid());
    let count: u64 = its.map(|group| group.counters.delivered).sum();
    let mut packets = BTreeMap::new();
    for _ in 0..count {
        let line = child.next_line(LIMIT).unwrap().unwrap();
        *packets.entry(line.parse().unwrap()).or_default() += 1;
    }
    let finished = child.terminate(LIMIT).unwrap();
    assert!(finished.status.success(), "{}: {}", finished.status, finished.stderr);
    let said = ["loop -2".to_owned(), format!("stats: {count} received, 0 dropped, 0 by the device")];
    assert_eq!(finished.lines, said);
    packets
}
