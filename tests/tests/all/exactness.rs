//! Every numbered packet is yielded exactly once, in order, and counted in the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use wirelane::{Builder, Capture, Direction, HookChoice, Selector, Steering};
use wirelane_tests::numbers::{LIMIT, column, drain, finish, number_of, send};
use wirelane_tests::{Lab, LabOptions, numbers, require_root};

/// Longer than any wait for packets that were sent, which is some milliseconds.
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

/// Numbers of one worker in order of arrival, per (queue, flow hash).
type Yielded = BTreeMap<(u16, u32), Vec<u64>>;

/// Sends `packets` through a capture and returns the numbers of each worker, and the final ledger.
fn through(
    lab: &Lab,
    packets: u64,
    options: &[&str],
    settings: impl FnOnce(Builder) -> Builder + Send,
) -> (Vec<Yielded>, wirelane::Ledger) {
    let mut capture = open(lab, settings);
    let workers = capture.workers();
    let yielded = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                scope.spawn(move || {
                    let mut yielded = Yielded::new();
                    // To the end: packets in the rings when the capture stops are yielded too.
                    while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
                        for record in batch {
                            let number = number_of(&record).expect("a packet that nobody sent");
                            let header = record.header();
                            assert_eq!(header.cap_len as usize, record.data().len());
                            yielded.entry((record.queue(), header.hash)).or_default().push(number);
                        }
                    }
                    yielded
                })
            })
            .collect();
        send(lab, packets, options).unwrap();
        // The last packets may still be between the devices.
        let deadline = Instant::now() + LIMIT;
        while capture.ledger().unwrap().total.seen < packets && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        capture.stop().unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (yielded, capture.close().unwrap())
}

fn assert_exact(case: &str, packets: u64, yielded: &[Yielded], ledger: &wirelane::Ledger) {
    assert!(ledger.balances(), "{case}: {ledger:?}");
    let total = &ledger.total;
    assert_eq!((total.seen, total.delivered, total.analysed), (packets, packets, packets), "{case}");
    assert_eq!((total.lost, total.in_flight), (0, 0), "{case}");
    let mut all: Vec<u64> = yielded.iter().flat_map(|worker| worker.values().flatten().copied()).collect();
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..packets), "{case}: not every number exactly once");
    for (worker, line) in yielded.iter().zip(&ledger.workers) {
        let count: usize = worker.values().map(Vec::len).sum();
        assert_eq!(count as u64, line.counters.analysed, "{case}: worker {}", line.worker);
    }
    for line in &ledger.virtual_devices {
        let of_queue = |((queue, _), numbers): (&(u16, u32), &Vec<u64>)| {
            if u32::from(*queue) == line.queue { numbers.len() as u64 } else { 0 }
        };
        let count: u64 = yielded.iter().flat_map(BTreeMap::iter).map(of_queue).sum();
        assert_eq!(count, line.counters.analysed, "{case}: queue {}", line.queue);
    }
    // Within a queue and flow, numbers ascend.
    for numbers in yielded.iter().flat_map(BTreeMap::values) {
        assert!(numbers.is_sorted(), "{case}: a flow out of order");
    }
}

/// Battery: L1, L12
#[test]
fn every_number_once_through_one_and_four_queues() {
    if !require_root("every_number_once_through_one_and_four_queues") {
        return;
    }
    for queues in [1, 4] {
        let lab = Lab::new(queues).unwrap();
        for (hook, name) in
            [(HookChoice::Native, "native"), (HookChoice::Generic, "generic"), (HookChoice::Tc, "tc")]
        {
            for workers in [1, 3, 8] {
                for steering in [Steering::Flow, Steering::Queue] {
                    let case = format!("{queues} queues, {name}, {workers} workers, {steering:?}");
                    let (yielded, ledger) = through(&lab, 8192, &[], |builder| {
                        builder.hook(hook).workers(workers).steering(steering).ring_size(1 << 20)
                    });
                    assert_exact(&case, 8192, &yielded, &ledger);
                    let used: BTreeSet<u16> = yielded.iter().flat_map(|w| w.keys().map(|k| k.0)).collect();
                    if name == "native" {
                        assert_eq!(used.len(), queues as usize, "{case}: queues {used:?} were used");
                    }
                    let busy = yielded.iter().filter(|worker| !worker.is_empty()).count();
                    match steering {
                        // With 4096 flows each of 8 workers has some.
                        Steering::Flow => assert_eq!(busy, workers, "{case}"),
                        // tests/steering.rs tests the others.
                        _ => assert_eq!(busy, used.len().min(workers), "{case}"),
                    }
                }
            }
        }
    }
}

/// As large cards have them, and beyond what can be told apart.
/// Battery: F1
#[test]
fn every_number_once_through_hundreds_of_queues() {
    if !require_root("every_number_once_through_hundreds_of_queues") {
        return;
    }
    let hooks = [(HookChoice::Native, "native"), (HookChoice::Generic, "generic"), (HookChoice::Tc, "tc")];
    for (queues, most) in [(200, 200), (300, 256)] {
        let lab = Lab::new(queues).unwrap();
        for (hook, name) in hooks {
            let case = format!("{queues} queues, {name}");
            if queues > 256 && name == "native" {
                let device = lab.receiver().device.as_str();
                let words = ["count", "-i", device, "--hook", "native"];
                let refused = numbers::wirelane(&lab, &lab.receiver().namespace, &words).unwrap();
                let said = refused.finish(LIMIT).unwrap().stderr;
                assert!(said.contains("at most 256 RX queues, and there are 300"), "{said}");
                continue;
            }
            let (yielded, ledger) =
                through(&lab, 8192, &[], |builder| builder.hook(hook).workers(2).ring_size(1 << 20));
            assert_exact(&case, 8192, &yielded, &ledger);
            let used: BTreeSet<u16> = yielded.iter().flat_map(|w| w.keys().map(|k| k.0)).collect();
            assert!(used.len() <= most, "{case}: queues {used:?} were used");
            assert!(name == "tc" || used.len() > 64, "{case}: queues {used:?} were used");
            if queues > 256 && name == "generic" {
                assert!(used.contains(&255) && used.iter().all(|queue| *queue < 256), "{used:?}");
                let device = format!("{}@299", lab.receiver().device);
                let words = ["count", "-i", &device, "--hook", "generic"];
                let refused = numbers::wirelane(&lab, &lab.receiver().namespace, &words).unwrap();
                let said = refused.finish(LIMIT).unwrap().stderr;
                assert!(said.contains("only queues below 256 can be told apart"), "{said}");
            }
        }
    }
}

#[test]
fn a_flow_has_one_worker_and_so_have_its_answers() {
    if !require_root("a_flow_has_one_worker_and_so_have_its_answers") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let settings = |builder: Builder| builder.workers(4).ring_size(1 << 20);
    let (there, _) =
        through(&lab, 4096, &["--src", "10.0.0.1", "--src-port", "1000", "--dst-port", "2000"], settings);
    let mut home = BTreeMap::new();
    for (worker, yielded) in there.iter().enumerate() {
        for (_, hash) in yielded.keys() {
            assert_eq!(*home.entry(*hash).or_insert(worker), worker, "a flow at two workers");
        }
    }
    assert!(home.len() > 4000, "{} hashes of 4096 flows", home.len());
}

#[test]
fn the_snap_length_cuts_bytes_and_not_packets() {
    if !require_root("the_snap_length_cuts_bytes_and_not_packets") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    for snap in [1usize, 60, 64, 1514, 0] {
        let mut capture = open(&lab, |builder| builder.snap_len(snap));
        let mut worker = capture.workers().remove(0);
        send(&lab, 300, &["--size", "1000"]).unwrap();
        let expected = if snap == 0 { 1000 } else { snap.min(1000) };
        let records = drain(&mut worker, QUIET, |record| {
            assert_eq!((record.data().len(), record.wire_len()), (expected, 1000));
            assert_eq!(record.is_snapped(), expected < 1000);
        });
        assert_eq!(records.unwrap(), 300);
        drop(worker);
        let ledger = capture.close().unwrap();
        assert_eq!((ledger.total.analysed, ledger.total.bytes), (300, 300_000));
    }
}

#[test]
fn virtual_devices_see_their_queue_only() {
    if !require_root("virtual_devices_see_their_queue_only") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let device = lab.receiver().device.clone();
    let part = |queues: &str| {
        numbers::capture(&lab, &["count", "-i", &format!("{device}{queues}"), "--json"]).unwrap()
    };
    let all = [part(""), part("@0"), part("@1"), part("@2"), part("@3"), part("@1-2")];
    send(&lab, 8192, &[]).unwrap();
    let seen: Vec<u64> = all.into_iter().map(|child| column(&finish(child).unwrap(), "analysed")).collect();
    assert_eq!(seen[0], 8192);
    assert_eq!(seen[1..5].iter().sum::<u64>(), 8192, "{seen:?}");
    assert!(seen[1..5].iter().all(|queue| *queue > 0), "{seen:?}");
    assert_eq!(seen[5], seen[2] + seen[3]);
}

#[test]
fn captured_packets_go_on_to_the_stack_unless_taken() {
    if !require_root("captured_packets_go_on_to_the_stack_unless_taken") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let (from, to) = (lab.sender(), lab.receiver());
    for hook in ["native", "generic", "tc"] {
        for (take, arrive) in [(false, true), (true, false)] {
            let mut words = vec!["count", "-i", &to.device, "--json", "--hook", hook];
            if take {
                words.push("--exclusive");
            }
            let child = numbers::capture(&lab, &words).unwrap();
            let arrived = lab
                .enter(&to.namespace, || {
                    let sink = std::net::UdpSocket::bind((to.address, 4000)).unwrap();
                    sink.set_read_timeout(Some(QUIET)).unwrap();
                    lab.enter(&from.namespace, || {
                        let source = std::net::UdpSocket::bind((from.address, 0)).unwrap();
                        source.send_to(b"on to the stack", (to.address, 4000)).unwrap();
                    })
                    .unwrap();
                    sink.recv(&mut [0; 64]).is_ok()
                })
                .unwrap();
            assert_eq!(arrived, arrive, "{hook}, take: {take}");
            assert_eq!(column(&finish(child).unwrap(), "analysed"), 1, "{hook}, take: {take}");
        }
    }
}

#[test]
fn several_devices_are_one_capture() {
    if !require_root("several_devices_are_one_capture") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, links: 2, ..LabOptions::default() }).unwrap();
    let [first, second] = [&lab.links[0], &lab.links[1]];
    assert_eq!(first.receiver.namespace, second.receiver.namespace);
    let list = format!("{},{}", first.receiver.device, second.receiver.device);
    let both =
        numbers::capture(&lab, &["count", "-i", &list, "--hook", "native", "--json", "--workers", "2"])
            .unwrap();
    let words =
        ["count", "-i", &first.receiver.device, "-i", &format!("{}@1", second.receiver.device), "--json"];
    let part = numbers::capture(&lab, &words).unwrap();
    for (link, packets) in [(first, "3000"), (second, "500")] {
        let words = ["send", "-i", &link.sender.device, "--packets", packets, "--method", "socket", "--json"];
        let sent = numbers::wirelane(&lab, &link.sender.namespace, &words).unwrap().finish(LIMIT).unwrap();
        numbers::last_of(&sent).unwrap();
    }
    let (both, part) = (finish(both).unwrap(), finish(part).unwrap());
    let of = |object: &serde_json::Value, device: &str, queue: u64| -> u64 {
        let lines = object["virtual_devices"].as_array().unwrap().iter();
        lines.filter(|l| l["device"] == device && l["queue"] == queue).map(|l| column(l, "analysed")).sum()
    };
    let (one, two) = (&first.receiver.device, &second.receiver.device);
    assert_eq!((of(&both, one, 0) + of(&both, one, 1), of(&both, two, 0) + of(&both, two, 1)), (3000, 500));
    assert_eq!(column(&both, "analysed"), 3500);
    assert_eq!(column(&part, "analysed"), 3000 + of(&both, two, 1));
}
