//! The ring between kernel and user space, for a while: the capture program writes, the library reads, on two cores.
//!
//! Numbered packets of random sizes go through rings of the smallest size, faster than their readers take them
//! and at times much faster, so that rings fill, wrap, spill into slack and run empty over and over. A packet's
//! content follows from its number, and every byte of every record is compared.
//!
//! `WIRELANE_SOAK_SECONDS` sets how long; 20 by default.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wirelane::{Builder, Record, Selector, Worker};
use wirelane_tests::{Lab, LabOptions, require_root};

/// Bytes of a ring, and of its only segment.
const RING: u64 = 1 << 20;
/// Ethernet, IPv4 without options, UDP.
const HEADERS: usize = 14 + 20 + 8;
/// The longest payload: the limit of an IPv4 datagram on this MTU.
const LONGEST: usize = MTU as usize - 20 - 8;
const MTU: u32 = 65_000;
/// Enough flows for each of the four rings to get some: the capture's seed decides which ring a flow uses.
const FLOWS: u16 = 64;

/// A well-mixed function of a number (the finaliser of MurmurHash3).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// Random bytes from which payloads are cut: cheap to make and to compare in any build.
struct Contents(Vec<u8>);

impl Contents {
    fn new() -> Contents {
        Contents((0..2 * LONGEST as u64 / 8 + 1).flat_map(|word| mix(!word).to_ne_bytes()).collect())
    }

    /// Bytes of a packet's payload: mostly small, some as long as an Ethernet frame, a few very long.
    fn length(number: u64) -> usize {
        let random = mix(number);
        let (low, high) = match random % 256 {
            0 => (9000, LONGEST),
            1..16 => (1473, 9000),
            16..80 => (200, 1473),
            _ => (8, 200),
        };
        low + (random >> 16) as usize % (high - low)
    }

    /// The payload after the number.
    fn rest(&self, number: u64) -> &[u8] {
        let start = (mix(number) >> 32) as usize % LONGEST;
        &self.0[start..start + Contents::length(number) - 8]
    }
}

/// The flow of a packet: a source port.
fn flow(number: u64) -> u16 {
    (mix(number) >> 8) as u16 % FLOWS
}

/// State of one worker for one ring.
#[derive(Debug, Default)]
struct RingSeen {
    next_number: u64,
    last_ts_ns: u64,
    records: u64,
    /// Bytes of its records: the position in the ring.
    position: u64,
    spills: u64,
}

impl RingSeen {
    /// Checks everything about a record that follows from its number and its position.
    fn check(&mut self, record: &Record<'_>, contents: &Contents) {
        let header = record.header();
        let payload = record.payload().expect("a packet that nobody sent");
        let (number, rest) = payload.split_first_chunk::<8>().expect("a number");
        let number = u64::from_be_bytes(*number);
        assert!(number >= self.next_number, "{number} behind {}: twice, or out of order", self.next_number);
        self.next_number = number + 1;
        assert_eq!(rest.len() + 8, Contents::length(number), "packet {number} has another's length");
        assert!(rest == contents.rest(number), "packet {number} has another's bytes");
        assert_eq!(usize::from(header.payload_off), HEADERS);
        assert_eq!(header.cap_len, header.wire_len);
        assert_eq!(record.data().len(), HEADERS + payload.len());
        let port = u16::from_be_bytes([record.data()[34], record.data()[35]]);
        assert_eq!(port, FIRST_PORT + flow(number), "packet {number} has another's headers");
        assert!(header.ts_ns >= self.last_ts_ns, "packet {number} came before the one before it");
        self.last_ts_ns = header.ts_ns;

        self.records += 1;
        let size = (size_of_val(header) + record.data().len()).next_multiple_of(8) as u64;
        let end = self.position + size;
        self.spills += u64::from(self.position / RING != end / RING && !end.is_multiple_of(RING));
        self.position = end;
    }
}

const FIRST_PORT: u16 = 20_000;

/// Reads until the capture has been stopped and the rings are empty. At times it reads slowly, or leaves a batch half
/// read.
fn read(worker: &mut Worker, contents: &Contents, queues: usize) -> (Vec<RingSeen>, u64) {
    let mut rings: Vec<RingSeen> = (0..queues).map(|_| RingSeen::default()).collect();
    let (mut batches, mut empty) = (0u64, 0u64);
    while let Some(batch) = worker.next_batch(Duration::from_millis(1)).unwrap() {
        empty += u64::from(batch.is_empty());
        batches += 1;
        let mood = mix(batches);
        let most = if mood.is_multiple_of(4) { 1 + (mood >> 8) as usize % 64 } else { usize::MAX };
        for record in batch.take(most) {
            rings[usize::from(record.queue())].check(&record, contents);
        }
        // Phases of some thousand batches: keeping up, being slow, falling far behind.
        match (batches / 2048 % 4, mood >> 16 & 0xff) {
            (1, ..16) => std::thread::sleep(Duration::from_millis(1)),
            (2, ..2) => std::thread::sleep(Duration::from_millis(40)),
            _ => {}
        }
    }
    (rings, empty)
}

/// Sends until `end` is set, and returns the number of packets.
fn send(to: SocketAddr, from: std::net::Ipv4Addr, contents: &Contents, end: &AtomicBool) -> u64 {
    let sockets: Vec<UdpSocket> = (0..FLOWS)
        .map(|flow| {
            let socket = UdpSocket::bind((from, FIRST_PORT + flow)).unwrap();
            socket.connect(to).unwrap();
            socket
        })
        .collect();
    let mut datagram = Vec::with_capacity(LONGEST);
    let mut number = 0u64;
    while !end.load(Ordering::Relaxed) {
        datagram.clear();
        datagram.extend_from_slice(&number.to_be_bytes());
        datagram.extend_from_slice(contents.rest(number));
        sockets[usize::from(flow(number))].send(&datagram).unwrap();
        number += 1;
        // Pauses, so that the readers find the rings empty.
        if number % 65_536 < 8 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    number
}

/// Packets that the sending device dropped, because the other end's queue was full.
fn dropped_on_the_way(lab: &Lab) -> u64 {
    let end = lab.sender();
    let words = ["ip", "-json", "-s", "link", "show", "dev", &end.device];
    let links: serde_json::Value = serde_json::from_str(&lab.exec(&end.namespace, &words).unwrap()).unwrap();
    links[0]["stats64"]["tx"]["dropped"].as_u64().expect("a number of dropped packets")
}

/// Battery: L1
#[test]
fn every_byte_survives_full_wrapping_and_empty_rings() {
    if !require_root("every_byte_survives_full_wrapping_and_empty_rings") {
        return;
    }
    const QUEUES: u32 = 2;
    let seconds = std::env::var("WIRELANE_SOAK_SECONDS").map_or(20, |seconds| seconds.parse().unwrap());
    let lab = Lab::with(&LabOptions { queues: QUEUES, mtu: MTU, ..LabOptions::default() }).unwrap();
    let (contents, end_of_sending) = (Contents::new(), AtomicBool::new(false));
    let receiver = lab.receiver();
    let mut capture = lab
        .enter(&receiver.namespace, || {
            let selectors = Selector::parse_list(&receiver.device).unwrap();
            // Packets are kept from the stack: no process listens there.
            Builder::new(selectors).workers(2).ring_size(RING as usize).exclusive(true).open().unwrap()
        })
        .unwrap();
    let workers = capture.workers();
    let (sent, seen) = std::thread::scope(|scope| {
        let readers: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let contents = &contents;
                scope.spawn(move || read(&mut worker, contents, QUEUES as usize))
            })
            .collect();
        let (lab, contents, end_of_sending) = (&lab, &contents, &end_of_sending);
        let sender = scope.spawn(move || {
            let end = lab.sender();
            let to = SocketAddr::from((lab.receiver().address, 9));
            lab.enter(&end.namespace, || send(to, end.address, contents, end_of_sending)).unwrap()
        });
        std::thread::sleep(Duration::from_secs(seconds));
        end_of_sending.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap();
        // The last packets may still be between the devices.
        let deadline = Instant::now() + Duration::from_secs(10);
        while capture.ledger().unwrap().total.seen + dropped_on_the_way(lab) < sent {
            assert!(Instant::now() < deadline, "not every packet arrived or was dropped");
            std::thread::sleep(Duration::from_millis(10));
        }
        capture.stop().unwrap();
        (sent, readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>())
    });
    let ledger = capture.close().unwrap();
    let total = &ledger.total;
    let rings: Vec<&RingSeen> = seen.iter().flat_map(|(rings, _)| rings).collect();
    let sum = |of: fn(&RingSeen) -> u64| -> u64 { rings.iter().map(|ring| of(ring)).sum() };
    let (records, bytes) = (sum(|ring| ring.records), sum(|ring| ring.position));
    let (laps, spills, empty) =
        (bytes / RING, sum(|ring| ring.spills), seen.iter().map(|s| s.1).sum::<u64>());
    println!(
        "{sent} packets in {seconds} s, {} MB/s; {} lost; {laps} laps, {spills} spills, empty {empty} times",
        bytes / 1_000_000 / seconds.max(1),
        total.lost
    );
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(total.seen + dropped_on_the_way(&lab), sent);
    assert_eq!((total.delivered, total.in_flight), (records, 0));
    assert_eq!(total.seen, total.delivered + total.lost);
    // Otherwise the test has not covered the cases that it names.
    assert!(rings.iter().all(|ring| ring.records > 0), "a ring that got nothing: {rings:?}");
    assert!(total.lost > 0 && laps > 100 && spills > 100 && empty > 10, "not enough happened");
}
