//! Congestion control: a worker that falls behind is relieved of complete flows, and every packet of these is `shed`.
//! Flows that it gets stay whole.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use wirelane::{Builder, Capture, Direction, Error, HookChoice, Selector, Watermarks};
use wirelane_tests::numbers::{LIMIT, number_of, send};
use wirelane_tests::{Lab, require_root};

fn open(lab: &Lab, watermarks: Option<Watermarks>) -> wirelane::Result<Capture> {
    let end = lab.receiver();
    let selectors = Selector::parse_list(&end.device).unwrap();
    lab.enter(&end.namespace, || {
        Builder::new(selectors)
            .hook(HookChoice::Native)
            .direction(Direction::Rx)
            .congestion_control(watermarks)
            .ring_size(1 << 20)
            .open()
    })
    .unwrap()
}

/// A worker that never reads: the ring fills to the middle of the watermarks and some way beyond; new flows are refused from
/// the low watermark on, admitted ones are given up later, the lowest part of the hash space first.
#[test]
fn a_ring_fills_to_the_watermark_and_sheds_the_rest() {
    if !require_root("a_ring_fills_to_the_watermark_and_sheds_the_rest") {
        return;
    }
    const SENT: u64 = 30_000;
    const RECORD: u64 = 544;
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, Some(Watermarks { low: 40, high: 80 })).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, SENT, &["--size", "500", "--flows", "1000"]).unwrap();
    capture.stop().unwrap();
    let mut flows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    while let Some(batch) = worker.next_batch(Duration::from_millis(100)).unwrap() {
        for record in batch {
            if let Some(number) = number_of(&record) {
                flows.entry(record.header().hash).or_default().push(number);
            }
        }
    }
    drop(worker);
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    let total = &ledger.total;
    assert_eq!(total.lost, 0, "what is refused in time is not lost");
    assert!(total.shed > 0 && total.shed + total.delivered == total.seen);
    assert_eq!(ledger.workers[0].counters.shed, total.shed, "the worker's line has it too");
    // Before the ring reached the low watermark every packet was of a new flow.
    let before_low = ((1 << 20) * 4 / 10 / RECORD + 1) as usize;
    assert_eq!(flows.len(), before_low, "flows that were new beyond the low watermark");
    let bytes = total.delivered * RECORD;
    assert!((1 << 20) * 6 / 10 < bytes && bytes <= (1 << 20) * 8 / 10 + RECORD, "{bytes} bytes were written");
    for (hash, numbers) in &flows {
        let rounds: Vec<u64> = numbers.iter().map(|number| number / 1000).collect();
        let expected: Vec<u64> = (0..rounds.len() as u64).collect();
        assert_eq!(rounds, expected, "flow {hash:#x} has gaps");
    }
    // Flows with a higher hash were kept longer.
    let kept = |low: u32, high: u32| {
        let counts: Vec<usize> = flows
            .iter()
            .filter(|(hash, _)| (low..high).contains(&(*hash >> 24)))
            .map(|(_, numbers)| numbers.len())
            .collect();
        counts.iter().sum::<usize>() as f64 / counts.len() as f64
    };
    assert!(kept(0, 64) < kept(192, 256), "{} {}", kept(0, 64), kept(192, 256));
}

/// Refused flows stay refused when the ring is empty again; new flows are admitted.
#[test]
fn below_the_low_watermark_new_flows_are_admitted_again() {
    if !require_root("below_the_low_watermark_new_flows_are_admitted_again") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, Some(Watermarks::default())).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, 5_000, &["--size", "1000", "--flows", "5000"]).unwrap();
    let mut drain = || {
        let mut numbers = BTreeSet::new();
        loop {
            let batch = worker.next_batch(Duration::from_millis(200)).unwrap().unwrap();
            if batch.is_empty() {
                return numbers;
            }
            numbers.extend(batch.filter_map(|record| number_of(&record)));
        }
    };
    let admitted = drain();
    let shed = capture.ledger().unwrap().total.shed;
    assert!(shed > 0, "the ring was not full enough");
    assert_eq!(admitted.len() as u64 + shed, 5_000);
    // The same flows: each has the same fate.
    send(&lab, 5_000, &["--size", "60", "--flows", "5000"]).unwrap();
    assert_eq!(drain(), admitted);
    assert_eq!(capture.ledger().unwrap().total.shed, 2 * shed);
    send(&lab, 400, &["--size", "1000", "--flows", "400", "--pattern", "sources"]).unwrap();
    assert_eq!(drain().len(), 400);
    let ledger = capture.ledger().unwrap();
    assert_eq!(ledger.total.shed, 2 * shed);
    assert_eq!(ledger.total.lost, 0);
}

/// Flows that end and are followed by others, beside elephants that do not end, from the sender's namespace of a lab.
struct Flows {
    sockets: Vec<UdpSocket>,
    to: Ipv4Addr,
    /// Number and next packet of each present flow.
    present: Vec<(u64, u64)>,
    length: u64,
    elephants: u64,
    sent: u64,
    /// Flows that have begun.
    begun: u64,
}

/// Destination ports of flows.
const PORTS: std::ops::Range<u64> = 1024..65_024;

impl Flows {
    fn new(lab: &Lab, at_once: u64, length: u64, elephants: u64) -> Flows {
        let bind = || (0..4).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
        let sockets = lab.enter(&lab.sender().namespace, bind).unwrap();
        // The first flows end one after the other: they begin in the middle.
        let present = (0..at_once).map(|flow| (flow, flow * length / at_once)).collect();
        Flows {
            sockets,
            to: lab.receiver().address,
            present,
            length,
            elephants,
            sent: 0,
            begun: at_once + elephants,
        }
    }

    /// Sends a packet with the number of its flow, and its number in the flow. One packet out of five is an elephant's.
    fn send(&mut self) {
        let (flow, number) = if self.elephants > 0 && self.sent.is_multiple_of(5) {
            (self.present.len() as u64 + self.sent / 5 % self.elephants, self.sent)
        } else {
            let place = self.sent as usize % self.present.len();
            let now = self.present[place];
            self.present[place].1 += 1;
            if now.1 + 1 == self.length {
                self.present[place] = (self.begun, 0);
                self.begun += 1;
            }
            now
        };
        let ports = PORTS.end - PORTS.start;
        let socket = &self.sockets[(flow / ports) as usize];
        let port = (PORTS.start + flow % ports) as u16;
        let payload = [flow.to_be_bytes(), number.to_be_bytes()].concat();
        socket.send_to(&payload, (self.to, port)).unwrap();
        self.sent += 1;
    }
}

/// Packets of a flow that a worker got.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    first: u64,
    last: u64,
    packets: u64,
}

/// Sends flows, and reads 2 packets of 5 that were sent: what a worker can analyse that is slower than its packets come, but
/// without a clock. Checks that no flow of which anything was analysed has a gap, that the worker had packets for at least 97
/// of 100 that it could have read, and that of the flows that began after the first refusal this percentage is whole: some of
/// long flows are given up before they end.
fn flows_stay_whole(at_once: u64, length: u64, elephants: u64, packets: u64, whole_percent: usize) {
    /// Packets that are sent before the lane is waited for: fewer than a veth's queue holds.
    const BURST: u64 = 200;
    /// Packets that the worker reads in one go.
    const READ: u64 = 1000;
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, Some(Watermarks::default())).unwrap();
    let mut worker = capture.workers().remove(0);
    let mut flows = Flows::new(&lab, at_once, length, elephants);
    let mut got: BTreeMap<u64, Got> = BTreeMap::new();
    let mut analysed = 0;
    // The numbers of elephants are those of all packets: one of theirs follows `5 * elephants` later.
    let step = |flow: u64| if (at_once..at_once + elephants).contains(&flow) { 5 * elephants } else { 1 };
    let mut gaps = Vec::new();
    let mut read = |most: u64| {
        let mut records = 0;
        while records < most {
            let Some(batch) = worker.next_batch(Duration::ZERO).unwrap() else { break };
            let before = records;
            for record in batch.take((most - records) as usize) {
                let (words, _) = record.payload().unwrap().as_chunks::<8>();
                let (flow, number) = (u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1]));
                let known = got.entry(flow).or_insert(Got { first: number, last: number, packets: 0 });
                if known.packets > 0 && number != known.last + step(flow) {
                    gaps.push((flow, known.last, number));
                }
                known.last = number;
                known.packets += 1;
                records += 1;
            }
            if records == before {
                break;
            }
        }
        records
    };
    let (mut begun_before, mut credit) = (None, 0);
    while flows.sent < packets {
        for _ in 0..BURST {
            flows.send();
        }
        let deadline = Instant::now() + LIMIT;
        let total = loop {
            let total = capture.ledger().unwrap().total;
            if total.seen == flows.sent {
                break total;
            }
            assert!(Instant::now() < deadline, "{} of {} packets came", total.seen, flows.sent);
            std::thread::yield_now();
        };
        if total.shed > 0 {
            begun_before.get_or_insert(flows.begun);
        }
        credit += BURST * 2 / 5;
        if credit >= READ {
            credit -= READ;
            analysed += read(READ);
        }
    }
    capture.stop().unwrap();
    read(u64::MAX);
    drop(worker);
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    let total = &ledger.total;
    assert_eq!((total.seen, total.lost, total.analysed), (packets, 0, total.delivered));
    assert_eq!(gaps, [], "flows with gaps: number of the flow, packets before and after");
    let begun_before = begun_before.expect("packets were refused");
    let later = || got.iter().filter(|(flow, _)| **flow >= begun_before);
    let present: BTreeSet<u64> = flows.present.iter().map(|(flow, _)| *flow).collect();
    let is_whole =
        |flow: u64, got: &Got| got.first == 0 && (got.packets == length || present.contains(&flow));
    let whole = later().filter(|(flow, got)| is_whole(**flow, got)).count();
    println!(
        "{} flows of {}, {} of {} later ones whole; {analysed} of {} packets",
        got.len(),
        flows.begun,
        whole,
        later().count(),
        packets * 2 / 5
    );
    assert!(later().all(|(_, got)| got.first == 0), "flows that were admitted in their middle");
    assert!(whole * 100 >= later().count() * whole_percent, "{whole} of {} are whole", later().count());
    assert!(analysed * 100 >= packets * 2 / 5 * 97, "{analysed} packets of {}", packets * 2 / 5);
}

/// Battery: L13
#[test]
fn short_flows_are_whole_at_four_tenths_of_the_load() {
    if require_root("short_flows_are_whole_at_four_tenths_of_the_load") {
        flows_stay_whole(256, 16, 0, 400_000, 99);
    }
}

/// Battery: L13
#[test]
fn short_flows_beside_elephants_are_whole() {
    if require_root("short_flows_beside_elephants_are_whole") {
        flows_stay_whole(256, 16, 2, 400_000, 99);
    }
}

/// Battery: L13
#[test]
fn flows_of_ten_thousand_packets_are_whole() {
    if require_root("flows_of_ten_thousand_packets_are_whole") {
        flows_stay_whole(64, 10_000, 0, 2_000_000, 0);
    }
}

#[test]
fn watermarks_that_make_no_sense_are_refused() {
    if !require_root("watermarks_that_make_no_sense_are_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for (low, high) in [(50, 50), (90, 50), (50, 101), (0, 90)] {
        let error = open(&lab, Some(Watermarks { low, high })).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "--congestion-control", .. }), "{error}");
    }
}
