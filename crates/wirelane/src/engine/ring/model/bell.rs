//! The wake-up: a worker that arms its bell, looks once more and sleeps, as `RingSource::sleep` does, against a lane
//! that publishes and checks whether to ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as StdOrdering};

use loom::sync::atomic::{Ordering, fence};
use loom::thread;
use wirelane_bpf::instance::AWAKE;

use super::{Lane, Ring, Rules, Worker};

const WATERMARK: u64 = 2;

/// Outcomes of a sleep, over all executions.
#[derive(Debug, Default)]
struct Sleeps {
    /// The last look found enough to stay awake.
    stayed_awake: AtomicU64,
    woken: AtomicU64,
    /// Nothing was above the watermark, and no bell rang.
    undisturbed: AtomicU64,
    /// The head passed the watermark and no bell rang: the time-out has to end the sleep.
    missed: AtomicU64,
}

fn explore(rules: Rules, sizes: &'static [u64]) -> Arc<Sleeps> {
    let sleeps: Arc<Sleeps> = Arc::default();
    let model = Arc::clone(&sleeps);
    loom::model(move || {
        let ring = Ring::new(2);
        let mut lane = Lane::new(&ring, rules);
        let mut worker = Worker::new(&ring, rules);
        let lane = thread::spawn(move || {
            for (number, size) in sizes.iter().enumerate() {
                lane.offer(number as u64, *size);
            }
            lane
        });
        worker.turn(false);
        worker.reader.arm(WATERMARK);
        if rules.fences {
            fence(Ordering::SeqCst);
        }
        let wake_at = worker.reader.position() + WATERMARK;
        let outcome = if worker.reader.peek() >= WATERMARK {
            worker.reader.disarm();
            worker.turn(true);
            lane.join().map(|lane| (lane, &model.stayed_awake))
        } else {
            // The worker sleeps until the lane has ended. Then the time is up, if no bell rang.
            lane.join().map(|lane| {
                let outcome = match (ring.rung.load(Ordering::Acquire), lane.published >= wake_at) {
                    (true, _) => &model.woken,
                    (false, true) => &model.missed,
                    (false, false) => &model.undisturbed,
                };
                worker.reader.disarm();
                (lane, outcome)
            })
        };
        let (lane, outcome) = outcome.unwrap();
        outcome.fetch_add(1, StdOrdering::Relaxed);
        assert!(lane.bells <= 1, "a worker that armed once was rung for {} times", lane.bells);
        // Woken, timed out or never asleep: all records are found, published or not.
        worker.drain();
        assert_eq!(worker.read, lane.delivered);
        assert_eq!(ring.wake_at.load(Ordering::Relaxed), AWAKE);
    });
    println!("{sleeps:?}");
    sleeps
}

/// Store buffering: the lane's load of `wake_at` may be older than its store of the head, and the worker's load of the
/// head older than the lane's store. Then both see old values, and the time-out bounds the delay. The documentation
/// permits this (ring.h, reader.rs); the test checks that it loses nothing.
#[test]
fn a_missed_wake_up_costs_a_time_out_and_nothing_else() {
    let sleeps = explore(Rules::default(), &[1, 1, 1]);
    for way in [&sleeps.stayed_awake, &sleeps.woken, &sleeps.undisturbed, &sleeps.missed] {
        assert!(way.load(StdOrdering::Relaxed) > 0, "a way that the model never took: {sleeps:?}");
    }
}

/// With a fence on both sides no bell is missed: the missing fence is the only cause, the logic is sound.
#[test]
fn with_fences_no_wake_up_is_missed() {
    let sleeps = explore(Rules { fences: true, ..Rules::default() }, &[1, 1, 1]);
    assert_eq!(sleeps.missed.load(StdOrdering::Relaxed), 0);
    assert!(sleeps.woken.load(StdOrdering::Relaxed) > 0);
}

/// Below `publish_every` the lane does not check whether to ring: such records wait for the time-out.
#[test]
fn unpublished_records_wait_for_the_time_out() {
    let sleeps = explore(Rules { publish_every: 8, ..Rules::default() }, &[1, 1, 1]);
    assert_eq!(sleeps.woken.load(StdOrdering::Relaxed), 0);
    assert_eq!(sleeps.missed.load(StdOrdering::Relaxed), 0);
}
