//! The kernel side does not trust a reader's memory: a reader that writes nonsense into its words harms only itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use wirelane_bpf::instance::{AWAKE, ELEMENT, Reader, SEGMENT};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, send};
use wirelane_tests::{KernelLog, Lab, LabOptions, maps_named, require_root};

/// Writes nonsense into the readers' ends of a group until `end` is set, as any process of root may; returns how often.
/// A whole element at a time, so that readers' words change while lanes read them.
fn write_nonsense(map: &MapHandle, end: &AtomicBool) -> u64 {
    let ring = SEGMENT as u64;
    let key = 0u32.to_ne_bytes();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut rounds = 0;
    while !end.load(Ordering::Relaxed) {
        let mut element = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        for reader in element.chunks_exact_mut(size_of::<Reader>()).take(8) {
            let (tail, rest) = reader.split_first_chunk_mut::<8>().unwrap();
            let real = u64::from_ne_bytes(*tail);
            let nonsense = match next() % 8 {
                0 => next(),                             // anything
                1 => real.wrapping_add(next() % ring),   // into what is not written yet
                2 => real.wrapping_add(ring * 1000 + 8), // far ahead of the head
                3 => real.wrapping_sub(ring + 8),        // behind the ring's length
                4 => real ^ 1 << (next() % 64),
                5 => u64::MAX,
                6 => real | 3, // off alignment
                _ => 0,
            };
            *tail = nonsense.to_ne_bytes();
            let wake_at = [next(), 0, real.wrapping_add(next() % 8192), AWAKE][next() as usize % 4];
            rest[56..64].copy_from_slice(&wake_at.to_ne_bytes());
        }
        map.update(&key, &element, MapFlags::ANY).unwrap();
        rounds += 1;
    }
    rounds
}

/// Battery: S12
#[test]
fn a_reader_that_writes_nonsense_harms_itself_only() {
    if !require_root("a_reader_that_writes_nonsense_harms_itself_only") {
        return;
    }
    const SENT: u64 = 150_000;
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    let device = lab.receiver().device.clone();
    let log = KernelLog::begin().unwrap();
    let others = maps_named("wl_ring");
    let victim = capture(
        &lab,
        &["count", "-i", &device, "--hook", "native", "--direction", "rx", "--json", "--ring-size", "1"],
    )
    .unwrap();
    let own: Vec<u32> = maps_named("wl_ring").difference(&others).copied().collect();
    assert_eq!(own.len(), 1, "one group, one map");
    let map = MapHandle::from_map_id(own[0]).unwrap();
    assert_eq!(map.value_size() as usize, ELEMENT);
    let exact = capture(
        &lab,
        &["count", "-i", &device, "--hook", "native", "--direction", "rx", "--json", "--ring-size", "64"],
    )
    .unwrap();
    let end = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_nonsense(&map, &end));
        send(&lab, SENT, &["--size", "300", "--rate", "50k"]).unwrap();
        end.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(rounds > 100, "nonsense was written only {rounds} times");
    drop(map);
    // In any state the victim can be killed, and its leftovers are cleared.
    drop(victim);
    let exact = finish(exact).unwrap();
    assert_eq!((column(&exact, "analysed"), column(&exact, "lost")), (SENT, 0));
    // Its slot serves the next group like a new one.
    let next =
        capture(&lab, &["count", "-i", &device, "--hook", "native", "--direction", "rx", "--json"]).unwrap();
    send(&lab, 1000, &[]).unwrap();
    let next = finish(next).unwrap();
    assert_eq!((column(&next, "seen"), column(&next, "analysed")), (1000, 1000));
    assert_eq!(log.complaints().unwrap(), Vec::<String>::new(), "the kernel complains");
}

/// An invalid tail counts as a full ring: everything is lost, and counted.
#[test]
fn a_tail_ahead_of_the_head_means_no_room() {
    if !require_root("a_tail_ahead_of_the_head_means_no_room") {
        return;
    }
    const SENT: u64 = 5000;
    let lab = Lab::with(&LabOptions { alone: true, ..LabOptions::default() }).unwrap();
    let end = lab.receiver();
    let others = maps_named("wl_ring");
    let mut capture = lab
        .enter(&end.namespace, || {
            let selectors = wirelane::Selector::parse_list(&end.device).unwrap();
            wirelane::Builder::new(selectors)
                .hook(wirelane::HookChoice::Native)
                .direction(wirelane::Direction::Rx)
                .ring_size(SEGMENT)
                .open()
                .unwrap()
        })
        .unwrap();
    // The worker is never asked for a batch: the tail stays as the test sets it.
    let _worker = capture.workers();
    let id = maps_named("wl_ring").into_iter().find(|id| !others.contains(id)).unwrap();
    let map = MapHandle::from_map_id(id).unwrap();
    let mut element = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    element[..8].copy_from_slice(&(1u64 << 40).to_ne_bytes());
    map.update(&0u32.to_ne_bytes(), &element, MapFlags::ANY).unwrap();
    send(&lab, SENT, &["--size", "1000"]).unwrap();
    let deadline = std::time::Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < SENT {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    let ledger = capture.close().unwrap();
    // The cached tail of 0 is valid for one ring: the nonsense is first read when that is full.
    let fit = SEGMENT as u64 / 1040;
    assert_eq!((ledger.total.delivered, ledger.total.lost), (fit, SENT - fit));
    assert!(ledger.balances());
}
