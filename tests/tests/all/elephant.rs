//! One flow with nine tenths of the load beside 10,000 small ones: workers do not lose packets by the imbalance, and
//! both directions of each flow go to one worker.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wirelane::{Builder, Direction, Selector, Worker};
use wirelane_tests::calls::Scene;
use wirelane_tests::frames::replay_stream;
use wirelane_tests::numbers::LIMIT;
use wirelane_tests::recordings::{NOON_NS, write_header, write_packet};
use wirelane_tests::{Lab, require_root};

const MICE: u32 = 10_000;
/// Packets of the large flow between two packets of small ones.
const SHARE: u32 = 9;
/// Packets per second that a worker of an unoptimised build can handle.
const RATE: u64 = 40_000;

/// A conversation, with the lower of its ends first.
type Flow = ([u8; 6], [u8; 6]);

/// Packets of each conversation, both directions together.
fn read(worker: &mut Worker, over: &AtomicBool) -> HashMap<Flow, u64> {
    let mut flows = HashMap::new();
    loop {
        let ending = over.load(Ordering::Acquire);
        let Some(batch) = worker.next_batch(Duration::from_millis(20)).unwrap() else { return flows };
        let mut records = 0;
        for record in batch {
            let data = record.data();
            let end = |address: usize, port: usize| {
                let bytes = [&data[address..address + 4], &data[port..port + 2]].concat();
                <[u8; 6]>::try_from(bytes).unwrap()
            };
            let (from, to) = (end(26, 34), end(30, 36));
            *flows.entry((from.min(to), from.max(to))).or_insert(0) += 1;
            records += 1;
        }
        if ending && records == 0 {
            return flows;
        }
    }
}

/// Battery: L8
#[test]
fn an_elephant_costs_no_mouse_a_packet() {
    if !require_root("an_elephant_costs_no_mouse_a_packet") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let end = lab.receiver();
    let mut live = lab
        .enter(&end.namespace, || {
            let selectors = Selector::parse_list(&end.device).unwrap();
            Builder::new(selectors).direction(Direction::Rx).workers(2).ring_size(16 << 20).open().unwrap()
        })
        .unwrap();
    let over = AtomicBool::new(false);
    let workers = live.workers();
    let flows: Vec<HashMap<Flow, u64>> = std::thread::scope(|scope| {
        let over = &over;
        let readers: Vec<_> =
            workers.into_iter().map(|mut worker| scope.spawn(move || read(&mut worker, over))).collect();
        let mut sent = 0u64;
        replay_stream(&lab, "recorded", |output| {
            write_header(output)?;
            for mouse in 0..MICE {
                let mut scene = Scene::new();
                // Both directions.
                let (client, server) = (format!("10.1.{}.{}:5000", mouse >> 8, mouse & 255), "10.2.0.1:80");
                scene.udp(0, &client, server, b"ask");
                scene.udp(0, server, &client, b"answer");
                for packet in 0..2 * SHARE {
                    let (from, to) = ("10.3.0.1:6000", "10.3.0.2:6000");
                    let (from, to) = if packet % 2 == 0 { (from, to) } else { (to, from) };
                    scene.udp(0, from, to, &[b'e'; 400]);
                }
                for frame in scene.into_frames() {
                    write_packet(output, NOON_NS + sent * 1_000_000_000 / RATE, &frame)?;
                    sent += 1;
                }
            }
            Ok(())
        })
        .unwrap();
        let deadline = Instant::now() + LIMIT;
        while live.ledger().unwrap().total.seen < sent {
            assert!(Instant::now() < deadline, "not everything has come");
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    let ledger = live.close().unwrap();
    assert!(ledger.balances());
    let total = u64::from(MICE) * u64::from(2 + 2 * SHARE);
    assert_eq!((ledger.total.seen, ledger.total.lost, ledger.total.analysed), (total, 0, total));
    // No conversation is at both workers, and none is missing.
    assert!(!flows[0].keys().any(|flow| flows[1].contains_key(flow)), "a conversation is at both workers");
    assert_eq!(flows[0].len() + flows[1].len(), MICE as usize + 1);
    let largest = flows.iter().flat_map(HashMap::values).max();
    assert_eq!(largest, Some(&(u64::from(MICE) * u64::from(2 * SHARE))));
    let small = flows.iter().flat_map(HashMap::values).filter(|packets| **packets == 2).count();
    assert_eq!(small, MICE as usize);
    // The small flows are spread over both workers.
    let shares = flows.iter().map(|flows| flows.len() as f64 / f64::from(MICE)).collect::<Vec<_>>();
    assert!(shares.iter().all(|share| (0.3..0.7).contains(share)), "{shares:?}");
}
