//! Adaptive steering: load moves between workers, and no flow is reordered by it.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use wirelane::{Balance, Builder, Capture, Direction, HookChoice, Ledger, Record, Selector, Worker};
use wirelane_bpf::instance::{BUCKETS, Group};
use wirelane_tests::numbers::{LIMIT, last_of, number_of, wirelane};
use wirelane_tests::{Lab, LabOptions, require_root};

fn open(lab: &Lab, workers: usize, ring_size: usize) -> Capture {
    let end = lab.receiver();
    let selectors = Selector::parse_list(&end.device).unwrap();
    lab.enter(&end.namespace, || {
        let builder = Builder::new(selectors).hook(HookChoice::Native).direction(Direction::Rx);
        builder.balance(Balance::Adaptive).workers(workers).ring_size(ring_size).open()
    })
    .unwrap()
    .unwrap()
}

/// One packet: its rank in the order of analysis over all workers, number, flow, worker.
type Seen = (u64, u64, u32, usize);

/// Analyses until the capture has stopped, in a thread for each worker; at odd workers every 64th packet takes longer,
/// so that their rings are fuller than the others'.
fn analyse(workers: Vec<Worker>, number: fn(&Record<'_>) -> Option<u64>) -> Vec<Seen> {
    let order = &AtomicU64::new(0);
    let mut all: Vec<Seen> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    let mut seen = Vec::new();
                    let index = worker.index();
                    while let Some(batch) = worker.next_batch(Duration::from_millis(100)).unwrap() {
                        for record in batch {
                            let Some(number) = number(&record) else { continue };
                            // SeqCst: one order of all packets of all workers.
                            let now = order.fetch_add(1, Ordering::SeqCst);
                            seen.push((now, number, record.header().hash, index));
                            if index % 2 == 1 && number % 64 == 0 {
                                std::thread::sleep(Duration::from_micros(5));
                            }
                        }
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    all
}

/// Waits until the capture has seen all packets, and stops it.
fn settle(capture: &Capture, packets: u64) {
    let deadline = Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < packets && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    capture.stop().unwrap();
}

/// Asserts that the packets of each flow were analysed in the order in which they were sent.
fn assert_in_order(all: &[Seen]) {
    let mut last: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
    let mut reordered = 0;
    for (_, number, flow, worker) in all {
        if let Some((before, _)) = last.insert(*flow, (*number, *worker))
            && before > *number
        {
            reordered += 1;
        }
    }
    assert_eq!(reordered, 0, "packets analysed before earlier ones of their flow");
}

fn assert_exact(ledger: &Ledger, analysed: usize) {
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.total.in_flight, 0);
    assert!(ledger.total.analysed >= analysed as u64);
    let by_worker: u64 = ledger.workers.iter().map(|line| line.counters.analysed).sum();
    assert_eq!(by_worker, ledger.total.analysed, "a barrier is no packet");
}

/// The map with the group's bucket table.
fn groups_map() -> MapHandle {
    let program = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
        .find(|program| program.name.to_string_lossy().starts_with("wirelane_xdp"))
        .expect("a capture program");
    let maps = program.map_ids.iter().filter_map(|id| MapHandle::from_map_id(*id).ok());
    maps.into_iter().find(|map| map.name() == "wl_groups").expect("its groups")
}

/// 300,000 packets of 2,000 flows, while the test overwrites the bucket table as another process would.
#[test]
fn packets_stay_in_order_while_buckets_jump() {
    if !require_root("packets_stay_in_order_while_buckets_jump") {
        return;
    }
    const PACKETS: usize = 300_000;
    // Alone: the group's table is found by name on the whole machine.
    let lab = Lab::with(&LabOptions { alone: true, queues: 2, ..LabOptions::default() }).unwrap();
    let mut capture = open(&lab, 4, 64 << 20);
    let groups = groups_map();
    let sent = AtomicBool::new(false);
    let workers = capture.workers();
    let all = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A small pseudo-random generator (Marsaglia's xorshift).
            let mut state = 0x9e37_79b9_7f4a_7c15u64;
            while !sent.load(Ordering::SeqCst) {
                let mut group = groups.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
                for _ in 0..64 {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let at = offset_of!(Group, buckets) + (state as usize % BUCKETS) * 2;
                    group[at..at + 2].copy_from_slice(&((state >> 40) as u16 % 4).to_ne_bytes());
                }
                groups.update(&0u32.to_ne_bytes(), &group, MapFlags::ANY).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let analysing = scope.spawn(|| analyse(workers, number_of));
        {
            let (end, packets) = (lab.sender(), PACKETS.to_string());
            let words = [
                "send",
                "-i",
                &end.device,
                "--packets",
                &packets,
                "--flows",
                "2000",
                "--rate",
                "400k",
                "--method",
                "kernel",
                "--json",
            ];
            let report = last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap());
            sent.store(true, Ordering::SeqCst);
            settle(&capture, PACKETS as u64);
            assert_eq!(report.unwrap()["sent"], PACKETS);
        }
        analysing.join().unwrap()
    });
    let ledger = capture.close().unwrap();
    assert_exact(&ledger, all.len());
    assert_eq!(all.len() as u64 + ledger.total.lost, PACKETS as u64, "nothing else is on the wire");
    assert_in_order(&all);
    let mut homes: BTreeMap<u32, std::collections::BTreeSet<usize>> = BTreeMap::new();
    all.iter().for_each(|(_, _, flow, worker)| {
        homes.entry(*flow).or_default().insert(*worker);
    });
    let travellers = homes.values().filter(|homes| homes.len() > 1).count();
    assert!(travellers > 1000, "only {travellers} flows ever changed their worker");
}

/// Zipf flows and an elephant: a capture file of frames whose payload is their number.
fn skewed(path: &Path, packets: u32, rate: u32) {
    const FLOWS: u32 = 500;
    let mut file = Vec::new();
    let words = [0xa1b2_3c4du32, 2 | 4 << 16, 0, 0, 65535, 1];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let weights: Vec<f64> = (1..=FLOWS).map(|rank| 1.0 / f64::from(rank).powf(0.8)).collect();
    let total: f64 = weights.iter().sum();
    for number in 0..packets {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Four in ten packets belong to the elephant flow.
        let flow = if state % 10 < 4 {
            0
        } else {
            let mut point = (state >> 11) as f64 / (1u64 << 53) as f64 * total;
            1 + weights
                .iter()
                .position(|weight| {
                    point -= weight;
                    point <= 0.0
                })
                .unwrap_or(0) as u32
        };
        let nanos = u64::from(number) * 1_000_000_000 / u64::from(rate);
        let header = [(nanos / 1_000_000_000) as u32, (nanos % 1_000_000_000) as u32, 60, 60];
        header.iter().for_each(|word| file.extend(word.to_le_bytes()));
        let mut frame = vec![0u8; 60];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
        frame[26..30].copy_from_slice(&[10, 1, 0, 1]);
        frame[30..34].copy_from_slice(&(0x0a02_0000 + flow).to_be_bytes());
        frame[34..42].copy_from_slice(&[3, 0xe8, 7, 0xd0, 0, 26, 0, 0]);
        frame[42..46].copy_from_slice(&number.to_be_bytes());
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}

/// The number that [`skewed`] wrote; `None` for others' packets.
fn skewed_number(record: &Record<'_>) -> Option<u64> {
    let ours = record.data().get(6..12) == Some(&[2, 0, 0, 0, 0, 1]) && record.data().len() == 60;
    ours.then(|| u64::from(u32::from_be_bytes(record.data()[42..46].try_into().unwrap())))
}

#[test]
fn skewed_load_is_even_after_two_seconds_and_the_elephant_alone() {
    if !require_root("skewed_load_is_even_after_two_seconds_and_the_elephant_alone") {
        return;
    }
    const RATE: u32 = 50_000;
    const PACKETS: u32 = 4 * RATE;
    let lab = Lab::new(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("skewed.pcap");
    skewed(&file, PACKETS, RATE);
    let mut capture = open(&lab, 4, 64 << 20);
    let workers = capture.workers();
    let all = std::thread::scope(|scope| {
        let analysing = scope.spawn(|| analyse(workers, skewed_number));
        {
            let end = lab.sender();
            let words = ["send", "-i", &end.device, "--replay", file.to_str().unwrap(), "--json"];
            let report = last_of(&wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap());
            settle(&capture, PACKETS.into());
            assert_eq!(report.unwrap()["sent"], PACKETS);
        }
        analysing.join().unwrap()
    });
    let ledger = capture.close().unwrap();
    assert_exact(&ledger, all.len());
    assert_eq!(ledger.total.lost, 0);
    assert_eq!(all.len() as u32, PACKETS);
    assert_in_order(&all);
    let report = ledger.balance.unwrap();
    assert!(report.moves > 0 && report.elephants == 1, "{report:?}");

    // Packets sent after the first two seconds.
    let mut load = [0u64; 4];
    let mut flows: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    for (_, _, flow, worker) in all.iter().filter(|(_, number, _, _)| *number >= u64::from(2 * RATE)) {
        load[*worker] += 1;
        *flows.entry((*worker, *flow)).or_default() += 1;
    }
    let ((home, elephant), _) = flows.iter().max_by_key(|(_, packets)| **packets).unwrap();
    let guests: u64 =
        flows.iter().filter(|((worker, flow), _)| worker == home && flow != elephant).map(|(_, n)| *n).sum();
    let rest: Vec<u64> = (0..4).filter(|worker| worker != home).map(|worker| load[worker]).collect();
    let mean = rest.iter().sum::<u64>() / 3;
    // Flows that share the elephant's bucket stay with it: one in 512, and packets that were in flight.
    assert!(guests * 50 <= load[*home], "the elephant's worker has {guests} packets of others: {load:?}");
    assert!(rest.iter().all(|load| *load * 100 <= mean * 110), "{rest:?}, elephant {}", load[*home]);
}
