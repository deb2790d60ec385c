//! The engines `packet` and `xsk` yield the same records as `ring`, and a ledger that is exact under every load, with
//! each loss by its cause.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use wirelane::{Builder, Capture, Clock, Direction, Engine, HookChoice, Selector};
use wirelane_tests::numbers::{
    LIMIT, capture, column, drain, finish, number_of, send, until_packets_come, wirelane,
};
use wirelane_tests::{Lab, LabOptions, Signal, require_root, settled_bpf_objects, wait_for_bpf_objects};

/// Longer than any wait in these tests, which are some milliseconds.
const QUIET: Duration = Duration::from_millis(400);

const BOTH: [Engine; 2] = [Engine::Packet, Engine::Xsk];

/// A capture on the lab's receiver; engine xsk consumes packets, which has to be requested.
fn open(lab: &Lab, engine: Engine, settings: impl FnOnce(Builder) -> Builder + Send) -> Capture {
    let end = lab.receiver();
    let builder = move || {
        let builder = Builder::new(Selector::parse_list(&end.device).unwrap()).engine(engine);
        settings(builder.exclusive(engine == Engine::Xsk)).open()
    };
    lab.enter(&end.namespace, builder).unwrap().unwrap()
}

/// The options of the command line for an engine.
fn options(engine: Engine) -> &'static [&'static str] {
    match engine {
        Engine::Packet => &["--engine", "packet"],
        Engine::Xsk => &["--engine", "xsk", "--exclusive"],
        Engine::Ring => &["--engine", "ring"],
        Engine::Auto => &[],
    }
}

/// Waits until the capture has seen so many packets.
fn settle(capture: &Capture, packets: u64) {
    let deadline = Instant::now() + LIMIT;
    while capture.ledger().unwrap().total.seen < packets {
        assert!(Instant::now() < deadline, "only {} seen", capture.ledger().unwrap().total.seen);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_snap_length_cuts_bytes_and_not_packets() {
    if !require_root("the_snap_length_cuts_bytes_and_not_packets") {
        return;
    }
    let lab = Lab::with(&LabOptions { mtu: 9000, ..LabOptions::default() }).unwrap();
    for engine in BOTH {
        for (snap, size) in [(1usize, 1000), (60, 1000), (300, 1000), (1514, 1000), (0, 9014), (5000, 9014)] {
            let mut capture = open(&lab, engine, |builder| builder.snap_len(snap).ring_size(16 << 20));
            let mut worker = capture.workers().remove(0);
            send(&lab, 300, &["--size", &size.to_string()]).unwrap();
            let expected = if snap == 0 { size } else { snap.min(size) };
            let mut next = 0;
            let records = drain(&mut worker, QUIET, |record| {
                assert_eq!((record.data().len(), record.wire_len() as usize), (expected, size), "{engine:?}");
                assert_eq!(record.is_snapped(), expected < size);
                // If the number is cut off, the parsed headers still give its offset.
                assert_eq!(record.header().payload_off, 42);
                if expected >= 60 {
                    assert_eq!(number_of(record), Some(next));
                }
                next += 1;
            });
            assert_eq!(records.unwrap(), 300, "{engine:?}, {snap} of {size}");
            drop(worker);
            let total = capture.close().unwrap().total;
            assert_eq!((total.analysed, total.bytes, total.lost), (300, 300 * size as u64, 0));
        }
    }
}

/// A process that is being started has copies of all descriptors until its program runs; they do not keep the device
/// busy. Its end sends a signal to any thread, which does not disturb a thread that loads a program.
#[test]
fn a_device_is_free_at_once_while_processes_are_started() {
    if !require_root("a_device_is_free_at_once_while_processes_are_started") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(Command::new("true").status().unwrap().success());
                }
            });
        }
        let opened = std::panic::catch_unwind(|| {
            for _ in 0..40 {
                assert_eq!(open(&lab, Engine::Xsk, |builder| builder).close().unwrap().total.lost, 0);
            }
        });
        done.store(true, Ordering::Relaxed);
        opened.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// The stack removes tags from packets before packet sockets see them; the engine puts them back.
#[test]
fn vlan_tags_are_where_they_were() {
    if !require_root("vlan_tags_are_where_they_were") {
        return;
    }
    let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
    for engine in BOTH {
        for snap in [0, 15, 60] {
            let mut capture = open(&lab, engine, |builder| builder.snap_len(snap));
            let mut worker = capture.workers().remove(0);
            send(&lab, 40, &["--vlan", "7", "--size", "100"]).unwrap();
            let expected = if snap == 0 { 100 } else { snap };
            let records = drain(&mut worker, QUIET, |record| {
                let data = record.data();
                assert_eq!((data.len(), record.wire_len()), (expected, 100), "{engine:?}");
                assert_eq!(data[12..15], [0x81, 0x00, 0x00]);
                assert_eq!((record.header().vlan_tci, record.header().l3_off), (7, 18));
                if snap != 15 {
                    assert_eq!(data[15..18], [7, 0x08, 0x00]);
                    assert!(number_of(record).is_some_and(|number| number < 40));
                }
            });
            assert_eq!(records.unwrap(), 40, "{engine:?}");
        }
    }
}

/// Both directions of a conversation, and all fragments of a datagram, go to one worker.
#[test]
fn packet_sockets_keep_flows_together() {
    if !require_root("packet_sockets_keep_flows_together") {
        return;
    }
    const WORKERS: usize = 4;
    let lab = Lab::new(2).unwrap();
    let (from, to) = (lab.sender(), lab.receiver());
    for direction in [Direction::Rx, Direction::Both] {
        let mut capture = open(&lab, Engine::Packet, |builder| builder.workers(WORKERS).direction(direction));
        let workers = capture.workers();
        // 100 conversations with answers, from the stack: each datagram of 4000 bytes is three fragments.
        lab.enter(&to.namespace, || {
            let sink = UdpSocket::bind((to.address, 4000)).unwrap();
            lab.enter(&from.namespace, || {
                // All sockets stay open, or the kernel may assign a port twice.
                let sources = [0; 100].map(|_| UdpSocket::bind((from.address, 0)).unwrap());
                for source in &sources {
                    source.set_read_timeout(Some(LIMIT)).unwrap();
                    source.send_to(b"a question", (to.address, 4000)).unwrap();
                    let mut buffer = [0; 64];
                    let (_, back) = sink.recv_from(&mut buffer).unwrap();
                    sink.send_to(b"an answer", back).unwrap();
                    source.recv(&mut buffer).unwrap();
                    source.send_to(&[7; 4000], (to.address, 4000)).unwrap();
                    sink.recv(&mut buffer).unwrap();
                }
            })
            .unwrap();
        })
        .unwrap();
        let mut home: BTreeMap<u32, usize> = BTreeMap::new();
        let (mut busy, mut fragments, mut egress) = (BTreeSet::new(), 0, 0);
        for (number, mut worker) in workers.into_iter().enumerate() {
            drain(&mut worker, QUIET, |record| {
                let header = record.header();
                // Our own hash is symmetric, and equal for fragments.
                assert_eq!(*home.entry(header.hash).or_insert(number), number, "a flow at two workers");
                busy.insert(number);
                fragments += u32::from(header.flags & wirelane_bpf::layout::flags::FRAGMENT != 0);
                egress += u32::from(record.is_egress());
            })
            .unwrap();
        }
        assert_eq!(fragments, 300, "{direction:?}");
        assert_eq!(egress, if direction == Direction::Both { 100 } else { 0 });
        // 100 conversations and the fragments.
        assert_eq!(home.len(), 101);
        assert_eq!(busy.len(), WORKERS);
        let total = capture.close().unwrap().total;
        assert_eq!((total.analysed, total.lost), (400 + u64::from(egress), 0));
    }
}

#[test]
fn a_slow_worker_loses_exactly_what_is_counted() {
    if !require_root("a_slow_worker_loses_exactly_what_is_counted") {
        return;
    }
    const SENT: u64 = 60_000;
    let lab = Lab::new(4).unwrap();
    for (engine, hook) in [
        (Engine::Packet, HookChoice::Auto),
        (Engine::Xsk, HookChoice::Native),
        (Engine::Xsk, HookChoice::Generic),
    ] {
        let mut capture = open(&lab, engine, |builder| builder.hook(hook).ring_size(1 << 20));
        let mut worker = capture.workers().remove(0);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut numbers = BTreeSet::new();
                while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
                    for (at, record) in batch.enumerate() {
                        assert!(numbers.insert(number_of(&record).unwrap()), "a number twice");
                        if at % 32 == 0 {
                            std::thread::sleep(Duration::from_millis(4));
                        }
                    }
                }
                numbers
            });
            // No faster than the stack takes them (net.core.netdev_max_backlog): packets that it drops are not counted
            // anywhere.
            send(&lab, SENT, &["--size", "1500", "--rate", "60k"]).unwrap();
            settle(&capture, SENT);
            capture.stop().unwrap();
            let numbers = reader.join().unwrap();
            let ledger = capture.close().unwrap();
            assert!(ledger.balances(), "{ledger:?}");
            let total = &ledger.total;
            assert_eq!((total.seen, total.lost + total.delivered), (SENT, SENT), "{engine:?} {hook:?}");
            assert_eq!((total.in_flight, total.analysed), (0, numbers.len() as u64));
            assert!(total.lost > 0, "{engine:?}: the worker was not slow enough to lose anything");
            assert_eq!(ledger.lost_by.values().sum::<u64>(), total.lost, "{:?}", ledger.lost_by);
            assert!(numbers.iter().all(|number| *number < SENT));
        });
    }
}

/// A worker that does not read keeps the packets in its sockets' buffers; later ones are lost, and there is room again
/// when it continues.
#[test]
fn a_stalled_worker_recovers() {
    if !require_root("a_stalled_worker_recovers") {
        return;
    }
    const SENT: u64 = 20_000;
    let lab = Lab::with(&LabOptions { mtu: 9000, ..LabOptions::default() }).unwrap();
    for engine in BOTH {
        for size in ["1000", "9000"] {
            let mut capture = open(&lab, engine, |builder| builder.ring_size(1 << 20));
            let mut worker = capture.workers().remove(0);
            send(&lab, SENT, &["--size", size, "--rate", "60k"]).unwrap();
            settle(&capture, SENT);
            let held = capture.ledger().unwrap().total.in_flight;
            assert!((50..SENT).contains(&held), "{engine:?}: {held} in flight");
            let mut next = 0;
            let first = drain(&mut worker, QUIET, |record| {
                assert_eq!(
                    (number_of(record), record.data().len()),
                    (Some(next), record.wire_len() as usize)
                );
                next += 1;
            });
            assert_eq!(first.unwrap(), held, "{engine:?}: what was held is whole");
            send(&lab, 80, &["--size", size]).unwrap();
            assert_eq!(drain(&mut worker, QUIET, |_| {}).unwrap(), 80, "{engine:?}: there is room again");
            drop(worker);
            let ledger = capture.close().unwrap();
            assert!(ledger.balances());
            let total = ledger.total;
            assert_eq!((total.seen, total.analysed, total.in_flight), (SENT + 80, held + 80, 0));
        }
    }
}

/// Packets that a dropped worker has not read count as in flight.
#[test]
fn what_is_not_read_is_in_flight() {
    if !require_root("what_is_not_read_is_in_flight") {
        return;
    }
    let lab = Lab::with(&LabOptions { mtu: 9000, ..LabOptions::default() }).unwrap();
    for engine in BOTH {
        let mut capture = open(&lab, engine, |builder| builder.ring_size(8 << 20));
        let mut worker = capture.workers().remove(0);
        send(&lab, 100, &["--size", "9000"]).unwrap();
        settle(&capture, 100);
        // A packet socket also closes a block when its time-out has passed: ten packets may be in more than one batch.
        let mut read = 0;
        while read < 10 {
            read += worker.next_batch(LIMIT).unwrap().unwrap().take(10 - read).count();
        }
        drop(worker);
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        let total = ledger.total;
        assert_eq!((total.seen, total.delivered, total.analysed, total.in_flight), (100, 100, 10, 90));
    }
}

#[test]
fn a_stop_under_load_loses_nothing_that_was_delivered() {
    if !require_root("a_stop_under_load_loses_nothing_that_was_delivered") {
        return;
    }
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.clone();
    for engine in BOTH.into_iter().cycle().take(6) {
        let words = [&["count", "-i", &device, "--json", "--interval", "0.05"], options(engine)].concat();
        let child = capture(&lab, &words).unwrap();
        let sender = lab.sender();
        let words = ["send", "-i", &sender.device, "--method", "socket", "--duration", "5", "--json"];
        let load = wirelane(&lab, &sender.namespace, &words).unwrap();
        until_packets_come(&child).unwrap();
        let last = finish(child).unwrap();
        assert!(load.terminate(LIMIT).unwrap().status.success());
        assert!(column(&last, "analysed") > 0);
        assert_eq!(column(&last, "analysed"), column(&last, "delivered"), "{engine:?}");
        assert_eq!(column(&last, "in_flight"), 0);
        assert_eq!(column(&last, "seen"), column(&last, "delivered") + column(&last, "lost"));
    }
}

#[test]
fn several_devices_and_virtual_devices_are_one_capture() {
    if !require_root("several_devices_and_virtual_devices_are_one_capture") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, links: 2, ..LabOptions::default() }).unwrap();
    let [first, second] = [&lab.links[0], &lab.links[1]];
    let (one, two) = (&first.receiver.device, &second.receiver.device);
    for engine in BOTH {
        let list = format!("{one},{two}@1");
        let mut words = [&["count", "-i", &list, "--json"], options(engine)].concat();
        if engine == Engine::Packet {
            words.extend(["--workers", "3"]);
        }
        let child = capture(&lab, &words).unwrap();
        // All packets of the second device, by the ring engine's tc: it counts queues as packet sockets do.
        let beside = capture(&lab, &["count", "-i", two, "--hook", "tc", "--json"]).unwrap();
        for (link, packets) in [(first, "3000"), (second, "500")] {
            let words = [
                "send",
                "-i",
                &link.sender.device,
                "--packets",
                packets,
                "--method",
                "socket",
                "--rate",
                "50k",
                "--json",
            ];
            let sent = wirelane(&lab, &link.sender.namespace, &words).unwrap().finish(LIMIT).unwrap();
            assert!(sent.status.success(), "{}", sent.stderr);
        }
        let (last, beside) = (finish(child).unwrap(), finish(beside).unwrap());
        let of = |object: &serde_json::Value, device: &str, queue: u64| -> u64 {
            let lines = object["virtual_devices"].as_array().unwrap().iter();
            lines.filter(|l| l["device"] == device && l["queue"] == queue).map(|l| column(l, "seen")).sum()
        };
        assert_eq!(of(&last, one, 0) + of(&last, one, 1), 3000, "{engine:?}");
        match engine {
            // Queue 1 only; xsk consumes packets before tc can see them.
            Engine::Packet => assert_eq!(of(&last, two, 1), of(&beside, two, 1)),
            _ => assert_eq!(of(&last, two, 1) + column(&beside, "seen"), 500),
        }
        assert_eq!(of(&last, two, 0), 0);
        assert_eq!(column(&last, "analysed"), 3000 + of(&last, two, 1));
    }
}

/// Records of packet sockets have the kernel's UTC; those of xsk the program's timestamps, or one per batch.
#[test]
fn every_engines_time_is_now() {
    if !require_root("every_engines_time_is_now") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for (engine, clock) in
        [(Engine::Packet, Clock::Packet), (Engine::Xsk, Clock::Packet), (Engine::Xsk, Clock::Batch)]
    {
        let mut capture = open(&lab, engine, |builder| builder.clock(clock));
        let mut worker = capture.workers().remove(0);
        let time = worker.timebase();
        let before = now();
        send(&lab, 200, &[]).unwrap();
        let after = now() + if clock == Clock::Batch { QUIET.as_nanos() as u64 } else { 0 };
        let mut stamps = Vec::new();
        drain(&mut worker, QUIET, |record| {
            assert_eq!(record.clock(), clock, "{engine:?}");
            stamps.push(time.utc_ns(record));
        })
        .unwrap();
        assert_eq!(stamps.len(), 200);
        assert!(stamps.is_sorted());
        // A tolerance of a millisecond for the offset between the clocks.
        assert!(stamps[0] + 1_000_000 > before && stamps[199] < after + 1_000_000, "{engine:?} {clock}");
    }
}

#[test]
fn taken_packets_come_back_when_the_taker_is_killed() {
    if !require_root("taken_packets_come_back_when_the_taker_is_killed") {
        return;
    }
    let lab = Lab::with(&LabOptions { queues: 2, alone: true, ..LabOptions::default() }).unwrap();
    let (from, to) = (lab.sender(), lab.receiver());
    let arrives = || {
        lab.enter(&to.namespace, || {
            let sink = UdpSocket::bind((to.address, 4000)).unwrap();
            sink.set_read_timeout(Some(QUIET)).unwrap();
            lab.enter(&from.namespace, || {
                let source = UdpSocket::bind((from.address, 0)).unwrap();
                source.send_to(b"through", (to.address, 4000)).unwrap();
            })
            .unwrap();
            sink.recv(&mut [0; 16]).is_ok()
        })
        .unwrap()
    };
    let before = settled_bpf_objects();
    for hook in ["native", "generic"] {
        // Each capture starts immediately after the previous one was killed: it waits for the release of its sockets.
        for _ in 0..3 {
            let words =
                ["count", "-i", &to.device, "--json", "--engine", "xsk", "--exclusive", "--hook", hook];
            let victim = capture(&lab, &words).unwrap();
            assert!(!arrives(), "{hook}: xsk takes packets");
            victim.signal(Signal::Kill).unwrap();
            assert!(!victim.finish(LIMIT).unwrap().status.success());
            let deadline = Instant::now() + LIMIT;
            while !arrives() {
                assert!(Instant::now() < deadline, "{hook}: packets do not come back");
            }
        }
    }
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

#[test]
fn an_interface_that_goes_down_or_away_is_told() {
    if !require_root("an_interface_that_goes_down_or_away_is_told") {
        return;
    }
    for engine in BOTH {
        let lab = Lab::new(2).unwrap();
        let end = lab.receiver();
        let words = [&["count", "-i", &end.device, "--json"], options(engine)].concat();
        let child = capture(&lab, &words).unwrap();
        send(&lab, 100, &[]).unwrap();
        lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "down"]).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        lab.exec(&end.namespace, &["ip", "link", "set", &end.device, "up"]).unwrap();
        std::thread::sleep(Duration::from_millis(600));
        send(&lab, 100, &[]).unwrap();
        lab.exec(&end.namespace, &["ip", "link", "del", &end.device]).unwrap();
        let finished = child.finish(LIMIT).unwrap();
        assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains("disappeared"), "{}", finished.stderr);
        let last = finished.last_json().unwrap();
        assert_eq!((last["final"] == true, column(&last, "analysed")), (true, 200), "{engine:?}");
    }
}
