//! Model test: a worker reads what the lane wrote, complete, in order and once, under any interleaving.

use loom::thread;

use super::{Lane, Publish, Ring, Rules, Worker};

/// A lane offers records of these sizes while a worker takes these turns (true: it peeks); then the worker reads the
/// rest. Returns the number of records that did not fit.
pub(super) fn check(rules: Rules, segments: u64, sizes: &'static [u64], turns: &'static [bool]) -> usize {
    let ring = Ring::new(segments);
    let mut lane = Lane::new(&ring, rules);
    let mut worker = Worker::new(&ring, rules);
    let lane = thread::spawn(move || {
        for (number, size) in sizes.iter().enumerate() {
            lane.offer(number as u64, *size);
        }
        lane.delivered
    });
    for peek in turns {
        worker.turn(*peek);
    }
    let delivered = lane.join().unwrap();
    worker.drain();
    assert_eq!(worker.read, delivered, "what was read is not what was delivered");
    sizes.len() - delivered.len()
}

/// Runs [`check`] in every execution, and returns in how many (of all) records were lost: some tests are about full
/// rings, and must have had one.
fn explore(rules: Rules, segments: u64, sizes: &'static [u64], turns: &'static [bool]) -> (u64, u64) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let model = Arc::clone(&counts);
    loom::model(move || {
        let lost = check(rules, segments, sizes, turns);
        model.0.fetch_add(u64::from(lost > 0), Ordering::Relaxed);
        model.1.fetch_add(1, Ordering::Relaxed);
    });
    let counts = (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed));
    println!("{} executions, records lost in {}", counts.1, counts.0);
    counts
}

#[test]
fn a_ring_wraps_and_fills() {
    // Two cells: the third record overwrites the first, the fourth the second.
    let (full, all) = explore(Rules::default(), 1, &[1, 1, 1, 1], &[false, true, false]);
    assert!(full > 0 && full < all, "full in {full} of {all}");
}

#[test]
fn records_spill_into_slack() {
    // The second record starts in the last cell of the segment and ends in slack, twice over.
    let (full, all) = explore(Rules::default(), 2, &[1, 2, 1, 2], &[true, false, true]);
    assert!(full > 0 && full < all, "full in {full} of {all}");
}

#[test]
fn the_peeking_reader_runs_ahead_of_the_published_head() {
    // Published once in three records: a turn by the published head comes after one that has peeked past it.
    let rules = Rules { publish_every: 3, ..Rules::default() };
    explore(rules, 2, &[1, 1, 1, 1], &[true, false, true, false]);
}

#[test]
fn every_record_is_published_at_once() {
    let rules = Rules { publish_every: 0, ..Rules::default() };
    explore(rules, 1, &[1, 2, 1], &[false, false, false]);
}

#[test]
fn the_exchange_of_other_architectures_does_as_well() {
    let rules = Rules { publish: Publish::Exchange, ..Rules::default() };
    let (full, all) = explore(rules, 1, &[1, 1, 1, 1], &[false, true, false]);
    assert!(full > 0 && full < all, "full in {full} of {all}");
}
