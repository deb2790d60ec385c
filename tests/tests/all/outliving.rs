//! Workers and captures that end in an unusual order, waits of any length, and devices with very many queues.

use std::time::Duration;

use wirelane::{Builder, Capture, Direction, HookChoice, Selector, Worker};
use wirelane_tests::numbers::{drain, number_of, send};
use wirelane_tests::{Lab, require_root};

fn open(lab: &Lab, settings: impl FnOnce(Builder) -> Builder + Send) -> (Capture, Worker) {
    let end = lab.receiver();
    let mut capture = lab
        .enter(&end.namespace, || {
            settings(
                Builder::new(Selector::parse_list(&end.device).unwrap())
                    .hook(HookChoice::Native)
                    .direction(Direction::Rx),
            )
            .open()
        })
        .unwrap()
        .unwrap();
    let worker = capture.workers().remove(0);
    (capture, worker)
}

/// A worker yields the packets that were in its rings when its capture was dropped, and then ends, although another
/// group is created meanwhile and its lanes write to rings of their own.
#[test]
fn a_worker_outlives_its_capture_and_sees_nothing_of_the_next() {
    if !require_root("a_worker_outlives_its_capture_and_sees_nothing_of_the_next") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    // Keeps the instance running in between.
    let (keeps, mut keeper) = open(&lab, |builder| builder);
    let (first, mut orphan) = open(&lab, |builder| builder);
    send(&lab, 100, &[]).unwrap();
    drop(first);
    let (second, mut worker) = open(&lab, |builder| builder);
    send(&lab, 1000, &["--size", "500"]).unwrap();
    let mut next = 0;
    let yielded = drain(&mut orphan, Duration::from_millis(300), |record| {
        assert_eq!(number_of(record), Some(next));
        next += 1;
    });
    assert_eq!(yielded.unwrap(), 100);
    assert!(orphan.next_batch(Duration::from_secs(5)).unwrap().is_none(), "its capture has ended");
    assert_eq!(drain(&mut worker, Duration::from_millis(300), |_| {}).unwrap(), 1000);
    assert_eq!(drain(&mut keeper, Duration::from_millis(300), |_| {}).unwrap(), 1100);
    drop((orphan, worker, keeper));
    for capture in [keeps, second] {
        assert!(capture.close().unwrap().balances());
    }
}

#[test]
fn a_worker_can_wait_for_ever() {
    if !require_root("a_worker_can_wait_for_ever") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (capture, mut worker) = open(&lab, |builder| builder);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || worker.next_batch(Duration::MAX).unwrap().map(Iterator::count));
        std::thread::sleep(Duration::from_millis(50));
        send(&lab, 1, &[]).unwrap();
        assert_eq!(waiting.join().unwrap(), Some(1));
    });
    drop(capture);
}

/// A single packet rings its worker's bell, in an immediate capture and in others.
#[test]
fn single_packets_wake_their_worker() {
    if !require_root("single_packets_wake_their_worker") {
        return;
    }
    const SENT: u64 = 50;
    let lab = Lab::new(1).unwrap();
    let wakes = |immediate: bool| {
        let (capture, mut worker) = open(&lab, |builder| builder.immediate(immediate));
        std::thread::scope(|scope| {
            let reader =
                scope.spawn(move || drain(&mut worker, Duration::from_millis(1500), |_| {}).unwrap());
            send(&lab, SENT, &["--rate", "50"]).unwrap();
            assert_eq!(reader.join().unwrap(), SENT);
        });
        capture.close().unwrap().workers[0].wakes
    };
    for immediate in [false, true] {
        let wakes = wakes(immediate);
        assert!(wakes > SENT / 2, "woken {wakes} times for {SENT} packets; immediate: {immediate}");
    }
}
