//! Congestion control: a worker that falls behind is relieved of complete flows, and every packet of these is `shed`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wirelane::{Builder, Capture, Direction, Error, HookChoice, Selector, Watermarks};
use wirelane_tests::numbers::{number_of, send};
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

/// A worker that never reads: the ring fills to the watermarks and not beyond, and packets are refused by flow, the
/// lowest part of the hash space first.
#[test]
fn a_ring_fills_to_the_watermark_and_sheds_the_rest() {
    if !require_root("a_ring_fills_to_the_watermark_and_sheds_the_rest") {
        return;
    }
    const SENT: u64 = 30_000;
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, Some(Watermarks { low: 40, high: 80 })).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, SENT, &["--size", "500", "--flows", "1000"]).unwrap();
    capture.stop().unwrap();
    let mut flows: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let mut last_hashes = Vec::new();
    while let Some(batch) = worker.next_batch(Duration::from_millis(100)).unwrap() {
        for record in batch {
            if let Some(number) = number_of(&record) {
                flows.entry(record.header().hash).or_default().push(number);
                last_hashes.push((number, record.header().hash));
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
    // 540 bytes a record: between the two watermarks, and never beyond the upper one.
    let bytes = total.delivered * 544;
    assert!((1 << 20) * 4 / 10 < bytes && bytes <= (1 << 20) * 8 / 10 + 544, "{bytes} bytes were written");
    // Nothing was read, so the level only rose: a flow stayed refused.
    let turns = SENT / 1000;
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
    assert!(kept(192, 256) <= turns as f64);
}

#[test]
fn below_the_low_watermark_all_is_taken_again() {
    if !require_root("below_the_low_watermark_all_is_taken_again") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, Some(Watermarks::default())).unwrap();
    let mut worker = capture.workers().remove(0);
    send(&lab, 5_000, &["--size", "1000"]).unwrap();
    let shed = capture.ledger().unwrap().total.shed;
    assert!(shed > 0, "the ring was not full enough");
    // After everything is read, every packet is delivered again.
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
    drain();
    send(&lab, 400, &["--size", "1000"]).unwrap();
    assert_eq!(drain().len(), 400);
    let ledger = capture.ledger().unwrap();
    assert_eq!(ledger.total.shed, shed);
    assert_eq!(ledger.total.lost, 0);
}

#[test]
fn watermarks_that_make_no_sense_are_refused() {
    if !require_root("watermarks_that_make_no_sense_are_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for (low, high) in [(50, 50), (90, 50), (50, 101)] {
        let error = open(&lab, Some(Watermarks { low, high })).unwrap_err();
        assert!(matches!(error, Error::BadOption { option: "--congestion-control", .. }), "{error}");
    }
}
