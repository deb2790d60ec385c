//! Bursts of the documented ring capacity, and load over time (RELIABILITY.md, L5 and L9).

use std::time::{Duration, Instant};

use wirelane::{Builder, Direction, HookChoice, Selector};
use wirelane_tests::numbers::{LIMIT, capture, column, drain, last_of, number_of, send, wirelane};
use wirelane_tests::{Lab, LabOptions, open_descriptors, require_root, resident_bytes, settled_bpf_objects};

/// Documented size of a record: the packet and 40 bytes, rounded up to a multiple of 8.
fn record(frame: u64) -> u64 {
    (frame + 40).div_ceil(8) * 8
}

/// While the worker does not read, a ring holds a burst of ring size / record size packets, and loses all later ones.
/// Battery: L9
#[test]
fn a_ring_holds_the_burst_that_it_is_documented_to() {
    if !require_root("a_ring_holds_the_burst_that_it_is_documented_to") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    for (frame, ring) in [(60u64, 1u64 << 20), (1514, 2 << 20)] {
        let selectors = Selector::parse_list(&end.device).unwrap();
        let mut live = lab
            .enter(&end.namespace, || {
                Builder::new(selectors)
                    .hook(HookChoice::Native)
                    .direction(Direction::Rx)
                    .ring_size(ring as usize)
                    .open()
            })
            .unwrap()
            .unwrap();
        let mut worker = live.workers().remove(0);
        let holds = ring / record(frame);
        let size = frame.to_string();
        // At full speed, and twice: an emptied ring holds as much again.
        for _ in 0..2 {
            send(&lab, holds, &["--size", &size]).unwrap();
            let mut seen = 0;
            drain(&mut worker, Duration::from_millis(300), |record| {
                seen += u64::from(number_of(record).is_some())
            })
            .unwrap();
            assert_eq!(seen, holds, "{frame}-byte frames");
        }
        assert_eq!(live.ledger().unwrap().total.lost, 0, "{frame}-byte frames");
        send(&lab, holds + 100, &["--size", &size]).unwrap();
        drop(worker);
        let ledger = live.close().unwrap();
        assert!(ledger.balances());
        assert_eq!(ledger.total.lost, 100, "{frame}-byte frames");
    }
}

/// For `WIRELANE_SOAK_SECONDS` (5) a paced load that a worker can handle is not lost, and the process does not grow.
/// Battery: L5
#[test]
fn a_paced_load_is_not_lost_and_nothing_grows() {
    if !require_root("a_paced_load_is_not_lost_and_nothing_grows") {
        return;
    }
    const RATE: u64 = 50_000;
    let seconds: u64 = std::env::var("WIRELANE_SOAK_SECONDS").map_or(5, |value| value.parse().unwrap());
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    let child = capture(
        &lab,
        &["count", "-i", &lab.receiver().device, "--json", "--workers", "2", "--ring-size", "16"],
    )
    .unwrap();
    // Warm-up: every allocation has been made after it.
    send(&lab, RATE, &["--rate", "50k"]).unwrap();
    let before = (resident_bytes(child.pid()).unwrap(), open_descriptors(child.pid()).unwrap());
    let objects = settled_bpf_objects();
    let (packets, end) = ((RATE * seconds).to_string(), lab.sender());
    let words =
        ["send", "-i", &end.device, "--packets", &packets, "--rate", "50k", "--method", "socket", "--json"];
    let start = Instant::now();
    let report = last_of(
        &wirelane(&lab, &end.namespace, &words)
            .unwrap()
            .finish(LIMIT + Duration::from_secs(2 * seconds))
            .unwrap(),
    )
    .unwrap();
    assert_eq!(column(&report, "sent"), RATE * seconds);
    let after = (resident_bytes(child.pid()).unwrap(), open_descriptors(child.pid()).unwrap());
    println!("{} s: resident {} bytes, then {}", start.elapsed().as_secs(), before.0, after.0);
    assert_eq!(after.1, before.1, "descriptors");
    assert_eq!(settled_bpf_objects(), objects, "programs, maps and links");
    assert!(after.0 <= before.0 + (1 << 20), "resident memory grew from {} to {} bytes", before.0, after.0);
    let last = last_of(&child.terminate(LIMIT).unwrap()).unwrap();
    let sent = RATE * (seconds + 1);
    assert_eq!((column(&last, "seen"), column(&last, "lost"), column(&last, "analysed")), (sent, 0, sent));
}
