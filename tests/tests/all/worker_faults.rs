//! Workers that stop, are slow or panic (F5 of tests/BATTERY.md): the others go on, and losses are in the line of the
//! worker that had them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use wirelane::{Builder, Capture, Direction, HookChoice, Selector, Worker};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, number_of, send};
use wirelane_tests::{Lab, Signal, require_root};

/// Bytes of a ring: a few thousand small packets, so that a worker that does not read soon loses some.
const RING: usize = 1 << 20;

fn open(lab: &Lab, workers: usize) -> Capture {
    let end = lab.receiver();
    lab.enter(&end.namespace, || {
        Builder::new(Selector::parse_list(&end.device).unwrap())
            .hook(HookChoice::Native)
            .direction(Direction::Rx)
            .workers(workers)
            .ring_size(RING)
            .open()
    })
    .unwrap()
    .unwrap()
}

/// Waits until the capture has seen so many packets.
fn settle(capture: &Capture, packets: u64) {
    let deadline = Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < packets {
        assert!(Instant::now() < deadline, "only {} seen", capture.ledger().unwrap().total.seen);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// All numbers of a worker until the capture ends; `pace` is called for each.
fn numbers(worker: &mut Worker, mut pace: impl FnMut(usize)) -> BTreeSet<u64> {
    let mut numbers = BTreeSet::new();
    while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
        for record in batch {
            pace(numbers.len());
            assert!(numbers.insert(number_of(&record).unwrap()), "a number twice");
        }
    }
    numbers
}

/// A process that is stopped for five seconds loses the packets that its ring does not hold; the process beside it, on
/// the same instance, does not lose any; and the first one continues where it was.
/// Battery: F5
#[test]
fn a_process_stopped_for_five_seconds() {
    if !require_root("a_process_stopped_for_five_seconds") {
        return;
    }
    const SENT: u64 = 60_000;
    let lab = Lab::new(2).unwrap();
    let stopped =
        capture(&lab, &["count", "-i", "rx0", "--json", "--workers", "2", "--ring-size", "1"]).unwrap();
    let beside = capture(&lab, &["count", "-i", "rx0", "--json", "--ring-size", "64"]).unwrap();
    stopped.signal(Signal::Stop).unwrap();
    let start = Instant::now();
    send(&lab, SENT, &["--size", "200", "--rate", "20k"]).unwrap();
    std::thread::sleep(Duration::from_secs(5).saturating_sub(start.elapsed()));
    stopped.signal(Signal::Continue).unwrap();
    // It reads on, so there is room for these packets.
    std::thread::sleep(Duration::from_millis(500));
    send(&lab, 1000, &["--rate", "20k"]).unwrap();
    let (stopped, beside) = (finish(stopped).unwrap(), finish(beside).unwrap());
    assert_eq!((column(&beside, "analysed"), column(&beside, "lost")), (SENT + 1000, 0));
    let of = |name| column(&stopped, name);
    assert_eq!((of("seen"), of("in_flight")), (SENT + 1000, 0), "{stopped}");
    assert_eq!(of("analysed") + of("lost"), SENT + 1000, "{stopped}");
    // A record takes 240 bytes. All rings of the two queues and two workers were full in the end.
    let fit = 4 * (RING as u64 / 240);
    assert!(of("lost") > 0 && of("analysed") >= fit.min(SENT) / 2 + 1000, "{stopped}");
    let lost: u64 = stopped["workers"].as_array().unwrap().iter().map(|line| column(line, "lost")).sum();
    assert_eq!(lost, of("lost"), "{stopped}");
}

/// Battery: F5
#[test]
fn a_worker_that_dawdles_loses_in_its_own_line() {
    if !require_root("a_worker_that_dawdles_loses_in_its_own_line") {
        return;
    }
    const SENT: u64 = 60_000;
    const WORKERS: usize = 3;
    const SLOW: usize = 1;
    let lab = Lab::new(1).unwrap();
    let mut capture = open(&lab, WORKERS);
    let workers = capture.workers();
    let (yielded, ledger) = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    let slow = worker.index() == SLOW;
                    numbers(&mut worker, |at| {
                        if slow && at % 16 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                    })
                })
            })
            .collect();
        // Slow enough for the other workers, on a machine with other work.
        send(&lab, SENT, &["--size", "1000", "--rate", "25k"]).unwrap();
        settle(&capture, SENT);
        capture.stop().unwrap();
        let yielded: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        (yielded, capture.close().unwrap())
    });
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!((ledger.total.seen, ledger.total.in_flight), (SENT, 0));
    for (line, numbers) in ledger.workers.iter().zip(&yielded) {
        assert_eq!(line.counters.analysed, numbers.len() as u64, "worker {}", line.worker);
        assert_eq!(
            line.counters.lost > 0,
            line.worker == SLOW,
            "worker {}: {:?}",
            line.worker,
            line.counters
        );
    }
    assert_eq!(ledger.workers[SLOW].counters.lost, ledger.total.lost);
    assert_eq!(yielded.iter().map(BTreeSet::len).sum::<usize>() as u64 + ledger.total.lost, SENT);
}

/// A panic ends one worker's thread. The others have all of their packets; packets that the lost one had not yet
/// yielded are in flight, and later ones without room are lost, both in its line.
/// Battery: F5
#[test]
fn a_worker_that_panics_takes_nobody_with_it() {
    if !require_root("a_worker_that_panics_takes_nobody_with_it") {
        return;
    }
    const SENT: u64 = 30_000;
    const DOOMED: usize = 2;
    const YIELDED: usize = 100;
    let lab = Lab::new(2).unwrap();
    let mut capture = open(&lab, 3);
    let workers = capture.workers();
    let yielded = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    let doomed = worker.index() == DOOMED;
                    catch_unwind(AssertUnwindSafe(|| {
                        // resume_unwind() does not print to standard error.
                        numbers(&mut worker, |at| {
                            if doomed && at == YIELDED {
                                std::panic::resume_unwind(Box::new("a handler's bug"));
                            }
                        })
                    }))
                    .ok()
                })
            })
            .collect();
        send(&lab, SENT, &["--size", "500", "--rate", "20k"]).unwrap();
        settle(&capture, SENT);
        capture.stop().unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let ledger = capture.close().unwrap();
    assert!(ledger.balances(), "{ledger:?}");
    assert_eq!(ledger.total.seen, SENT);
    let [.., doomed] = ledger.workers.as_slice() else { panic!("no workers") };
    assert!(yielded[DOOMED].is_none());
    // The record at which it panicked was yielded too.
    assert_eq!(doomed.counters.analysed, YIELDED as u64 + 1);
    assert_eq!(
        (doomed.counters.in_flight, doomed.counters.lost),
        (ledger.total.in_flight, ledger.total.lost)
    );
    for (line, numbers) in ledger.workers.iter().zip(&yielded).take(DOOMED) {
        assert_eq!(numbers.as_ref().map(BTreeSet::len), Some(line.counters.seen as usize));
        assert!(
            line.counters.seen > 0 && line.counters.lost == 0 && line.counters.in_flight == 0,
            "{line:?}"
        );
    }
}
