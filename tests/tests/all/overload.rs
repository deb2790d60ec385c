//! More packets than a worker can handle: losses are counted exactly, and for the right worker.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use wirelane::{Builder, Capture, Direction, HookChoice, Ledger, Selector};
use wirelane_tests::numbers::{LIMIT, column, drain, finish, number_of, send, until_packets_come};
use wirelane_tests::{Lab, Signal, numbers, require_root};

const QUIET: Duration = Duration::from_millis(300);

fn open(lab: &Lab, settings: impl FnOnce(Builder) -> Builder + Send) -> Capture {
    let end = lab.receiver();
    let capture = lab.enter(&end.namespace, || {
        settings(
            Builder::new(Selector::parse_list(&end.device).unwrap())
                .hook(HookChoice::Native)
                .direction(Direction::Rx),
        )
        .open()
    });
    capture.unwrap().unwrap()
}

/// Waits until the capture has seen so many packets.
fn settle(capture: &Capture, packets: u64) {
    let deadline = Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < packets {
        assert!(Instant::now() < deadline, "only {} seen", capture.ledger().unwrap().total.seen);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn assert_balanced(ledger: &Ledger, sent: u64) {
    assert!(ledger.balances(), "{ledger:?}");
    let total = &ledger.total;
    assert_eq!(total.seen, sent);
    assert_eq!(total.lost + total.delivered, sent);
    let lost: u64 = ledger.workers.iter().map(|line| line.counters.lost).sum();
    assert_eq!(lost, total.lost, "the workers' losses are the total's");
}

/// Battery: L1
#[test]
fn a_slow_worker_loses_exactly_what_is_counted() {
    if !require_root("a_slow_worker_loses_exactly_what_is_counted") {
        return;
    }
    const SENT: u64 = 60_000;
    let lab = Lab::new(4).unwrap();
    let mut capture = open(&lab, |builder| builder.ring_size(1 << 20));
    let mut worker = capture.workers().remove(0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut numbers = BTreeSet::new();
            while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
                for (at, record) in batch.enumerate() {
                    // While the rings are short, a batch is followed by a sleep.
                    assert!(numbers.insert(number_of(&record).unwrap()), "a number twice");
                    if at % 64 == 0 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            }
            numbers
        });
        // 1500-byte frames: 700 fill a ring of 1 MiB.
        send(&lab, SENT, &["--size", "1500"]).unwrap();
        settle(&capture, SENT);
        capture.stop().unwrap();
        let numbers = reader.join().unwrap();
        let ledger = capture.close().unwrap();
        assert_balanced(&ledger, SENT);
        assert!(ledger.total.lost > 0, "the worker was not slow enough to lose anything");
        assert_eq!(ledger.total.in_flight, 0);
        assert_eq!(numbers.len() as u64, ledger.total.analysed);
        assert!(numbers.iter().all(|number| *number < SENT));
    });
}

/// Battery: F5
#[test]
fn a_worker_that_never_reads_fills_its_ring_and_nobody_elses() {
    if !require_root("a_worker_that_never_reads_fills_its_ring_and_nobody_elses") {
        return;
    }
    const SENT: u64 = 40_000;
    let lab = Lab::new(1).unwrap();
    let mut stalled = open(&lab, |builder| builder.ring_size(1 << 20));
    let idle = stalled.workers();
    let mut busy = open(&lab, |builder| builder.snap_len(64).ring_size(8 << 20));
    let mut worker = busy.workers().remove(0);
    send(&lab, SENT, &["--size", "1000"]).unwrap();
    settle(&stalled, SENT);
    settle(&busy, SENT);
    assert_eq!(drain(&mut worker, QUIET, |_| {}).unwrap(), SENT, "the other group loses nothing");

    let ledger = stalled.ledger().unwrap();
    // Records of 1000 bytes and a header of 40 in a ring of 1 MiB: those that fit are in flight.
    let fit = (1u64 << 20) / 1040;
    assert_eq!((ledger.total.in_flight, ledger.total.lost), (fit, SENT - fit));

    // The worker recovers: the packets in the ring are complete, and there is room again.
    let mut recovered = idle.into_iter().next().unwrap();
    let mut next = 0;
    let first = drain(&mut recovered, QUIET, |record| {
        assert_eq!(number_of(record), Some(next));
        next += 1;
    });
    assert_eq!(first.unwrap(), fit);
    send(&lab, 100, &[]).unwrap();
    assert_eq!(drain(&mut recovered, QUIET, |_| {}).unwrap(), 100);
    drop((recovered, worker));
    let ledger = stalled.close().unwrap();
    assert_balanced(&ledger, SENT + 100);
    assert_eq!(ledger.total.analysed, fit + 100);
    assert_eq!(busy.close().unwrap().total.lost, 0);
}

/// Battery: L12
#[test]
fn sigterm_under_load_yields_what_is_in_the_rings() {
    if !require_root("sigterm_under_load_yields_what_is_in_the_rings") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.clone();
    for _ in 0..5 {
        let words = ["count", "-i", &device, "--json", "--interval", "0.05"];
        let child = numbers::capture(&lab, &words).unwrap();
        let sender = lab.sender();
        let words = ["send", "-i", &sender.device, "--method", "socket", "--duration", "5", "--json"];
        let load = numbers::wirelane(&lab, &sender.namespace, &words).unwrap();
        until_packets_come(&child).unwrap();
        let last = finish(child).unwrap();
        assert!(load.terminate(LIMIT).unwrap().status.success());
        assert!(column(&last, "analysed") > 0);
        assert_eq!(column(&last, "analysed"), column(&last, "delivered"));
        assert_eq!(column(&last, "in_flight"), 0);
        assert_eq!(column(&last, "seen"), column(&last, "delivered") + column(&last, "lost"));
    }
}

#[test]
fn a_stopped_process_loses_its_own_packets_only() {
    if !require_root("a_stopped_process_loses_its_own_packets_only") {
        return;
    }
    const SENT: u64 = 50_000;
    let lab = Lab::new(1).unwrap();
    let device = lab.receiver().device.clone();
    let words = ["count", "-i", &device, "--json", "--ring-size", "1"];
    let stopped = numbers::capture(&lab, &words).unwrap();
    let other = numbers::capture(&lab, &["count", "-i", &device, "--json", "--ring-size", "64"]).unwrap();
    stopped.signal(Signal::Stop).unwrap();
    send(&lab, SENT, &["--size", "200"]).unwrap();
    stopped.signal(Signal::Continue).unwrap();
    let (stopped, other) = (finish(stopped).unwrap(), finish(other).unwrap());
    assert_eq!((column(&other, "analysed"), column(&other, "lost")), (SENT, 0));
    let fit = (1u64 << 20) / 240;
    assert_eq!(column(&stopped, "seen"), SENT);
    assert_eq!(column(&stopped, "analysed"), column(&stopped, "delivered"));
    assert_eq!(column(&stopped, "lost") + column(&stopped, "delivered"), SENT);
    assert!(column(&stopped, "delivered") >= fit, "{stopped}");
    assert!(column(&stopped, "lost") > 0, "{stopped}");
}
