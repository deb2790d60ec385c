//! Choice of the worker with every steering; all packets are in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wirelane::{Builder, Capture, Direction, HookChoice, Ledger, Selector, Steering};
use wirelane_tests::numbers::{drain, number_of, send};
use wirelane_tests::{Lab, require_root};

const QUIET: Duration = Duration::from_millis(500);
const PACKETS: u64 = 6_000;

fn open(lab: &Lab, steering: Steering, workers: usize, hook: HookChoice) -> Capture {
    let end = lab.receiver();
    let selectors = Selector::parse_list(&end.device).unwrap();
    lab.enter(&end.namespace, || {
        Builder::new(selectors)
            .direction(Direction::Rx)
            .steering(steering)
            .workers(workers)
            .hook(hook)
            .ring_size(4 << 20)
            .open()
    })
    .unwrap()
    .unwrap()
}

/// Packets of a worker: number, and the bytes of source address, destination address and VLAN tag.
type Got = BTreeMap<u64, (Vec<u8>, Vec<u8>, Option<u16>)>;

/// Reads all packets, worker by worker, and closes the capture.
fn read(mut capture: Capture) -> (Vec<Got>, Ledger) {
    let workers = capture.workers();
    let mut all = Vec::new();
    for mut worker in workers {
        let mut got = Got::new();
        drain(&mut worker, QUIET, |record| {
            let Some(number) = number_of(record) else { return };
            let header = record.header();
            let l3 = usize::from(header.l3_off);
            let address = |at: usize| record.data()[l3 + at..l3 + at + 4].to_vec();
            let vlan = (header.flags & wirelane::flags::VLAN != 0).then_some(header.vlan_tci & 0xfff);
            assert!(got.insert(number, (address(12), address(16), vlan)).is_none(), "a number twice");
        })
        .unwrap();
        all.push(got);
    }
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.total.lost, 0);
    for (line, got) in ledger.workers.iter().zip(&all) {
        assert!(line.counters.analysed >= got.len() as u64);
    }
    (all, ledger)
}

fn all_numbers(got: &[Got]) -> BTreeSet<u64> {
    got.iter().flat_map(|got| got.keys().copied()).collect()
}

#[test]
fn copies_reach_every_worker() {
    if !require_root("copies_reach_every_worker") {
        return;
    }
    for hook in [HookChoice::Native, HookChoice::Generic, HookChoice::Tc] {
        let lab = Lab::new(2).unwrap();
        let capture = open(&lab, Steering::Copy, 3, hook);
        send(&lab, PACKETS, &[]).unwrap();
        let (got, ledger) = read(capture);
        for got in &got {
            assert_eq!(got.len() as u64, PACKETS, "{hook:?}");
        }
        // The namespaces' own stacks may have sent packets too, which are copied to all three as well.
        assert!(ledger.total.seen >= 3 * PACKETS && ledger.total.seen % 3 == 0);
        let columns: Vec<u64> = ledger.workers.iter().map(|line| line.counters.seen).collect();
        assert!(columns.iter().all(|seen| *seen == columns[0]), "{columns:?}");
    }
}

#[test]
fn round_robin_takes_turns_in_each_lane() {
    if !require_root("round_robin_takes_turns_in_each_lane") {
        return;
    }
    // More workers than queues, and fewer.
    for (queues, workers) in [(1, 8), (4, 3)] {
        let lab = Lab::new(queues).unwrap();
        let capture = open(&lab, Steering::RoundRobin, workers, HookChoice::Native);
        send(&lab, PACKETS, &[]).unwrap();
        let (got, ledger) = read(capture);
        assert_eq!(all_numbers(&got).len() as u64, PACKETS);
        let seen: Vec<u64> = ledger.workers.iter().map(|line| line.counters.seen).collect();
        // Each lane gives the workers the same number of packets, or one more.
        let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
        assert!(most - least <= u64::from(queues), "{seen:?}");
    }
}

/// Asserts that all packets with the same key are at one worker, and that the keys are spread.
fn assert_keyed<K: Ord + std::fmt::Debug>(got: &[Got], key: impl Fn(&(Vec<u8>, Vec<u8>, Option<u16>)) -> K) {
    assert_eq!(all_numbers(got).len() as u64, PACKETS);
    let mut homes: BTreeMap<K, BTreeSet<usize>> = BTreeMap::new();
    for (worker, got) in got.iter().enumerate() {
        for packet in got.values() {
            homes.entry(key(packet)).or_default().insert(worker);
        }
    }
    assert!(homes.values().all(|homes| homes.len() == 1), "{homes:?}");
    let used: BTreeSet<&usize> = homes.values().flatten().collect();
    assert_eq!(used.len(), got.len().min(homes.len()), "{homes:?}");
}

#[test]
fn an_address_has_one_worker() {
    if !require_root("an_address_has_one_worker") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let capture = open(&lab, Steering::Destination, 4, HookChoice::Native);
    send(&lab, PACKETS, &["--flows", "600"]).unwrap();
    let (got, _) = read(capture);
    assert_keyed(&got, |packet| packet.1.clone());

    // By the source address: the generator has only one.
    let capture = open(&lab, Steering::Source, 4, HookChoice::Native);
    send(&lab, PACKETS, &["--flows", "600"]).unwrap();
    let (got, _) = read(capture);
    assert_eq!(all_numbers(&got).len() as u64, PACKETS);
    let sources: BTreeSet<Vec<u8>> =
        got.iter().flat_map(|got| got.values().map(|packet| packet.0.clone())).collect();
    let busy = got.iter().filter(|got| !got.is_empty()).count();
    assert_eq!((sources.len(), busy), (1, 1));
}

#[test]
fn a_vlan_has_one_worker() {
    if !require_root("a_vlan_has_one_worker") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    for hook in [HookChoice::Native, HookChoice::Tc] {
        let mut capture = open(&lab, Steering::Vlan, 4, hook);
        let mut workers = capture.workers();
        let mut homes = BTreeMap::new();
        for vlan in 1..=24u16 {
            send(&lab, 50, &["--vlan", &vlan.to_string()]).unwrap();
            let mut total = 0;
            for worker in &mut workers {
                let index = worker.index();
                let records = drain(worker, Duration::from_millis(20), |record| {
                    if number_of(record).is_some() {
                        assert_eq!(record.header().vlan_tci & 0xfff, vlan);
                        assert_eq!(*homes.entry(vlan).or_insert(index), index, "VLAN {vlan} at two workers");
                    }
                });
                total += records.unwrap();
            }
            assert_eq!(total, 50, "VLAN {vlan}, {hook:?}");
        }
        let used: BTreeSet<usize> = homes.values().copied().collect();
        assert!(used.len() > 1, "24 VLANs at one worker: {homes:?}");
    }
}
