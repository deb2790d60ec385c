//! Filter expressions on devices: every hook and engine accepts exactly the sent packets that match, as tcpdump beside
//! it does, and a change while packets flow loses none.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane::{Builder, Capture, Direction, Engine, Error, HookChoice, Record, Selector, Worker};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, in_file, number_of, send, wirelane};
use wirelane_tests::{Child, Lab, LabOptions, require_root};

/// Every engine and hook that evaluates filters.
const ALL: [(Engine, HookChoice); 7] = [
    (Engine::Ring, HookChoice::Native),
    (Engine::Ring, HookChoice::Generic),
    (Engine::Ring, HookChoice::Tc),
    (Engine::Ring, HookChoice::Clsact),
    (Engine::Packet, HookChoice::Auto),
    (Engine::Xsk, HookChoice::Native),
    (Engine::Xsk, HookChoice::Generic),
];

/// A capture on the lab's receiver.
fn open(
    lab: &Lab,
    (engine, hook): (Engine, HookChoice),
    settings: impl FnOnce(Builder) -> Builder + Send,
) -> Result<Capture, Error> {
    let end = lab.receiver();
    let builder = move || {
        let builder = Builder::new(Selector::parse_list(&end.device).unwrap())
            .direction(Direction::Rx)
            .engine(engine)
            .hook(hook);
        settings(builder.exclusive(engine == Engine::Xsk)).open()
    };
    lab.enter(&end.namespace, builder).unwrap()
}

/// Changes the filter in the network namespace of the card, where a program that uses the driver's kfuncs is loaded.
fn set_filter(lab: &Lab, capture: &mut Capture, expression: &str) -> Result<(), Error> {
    lab.enter(&lab.receiver().namespace, move || capture.set_filter(expression)).unwrap()
}

/// Reads until the capture has seen so many packets and each of them is counted in one column; returns the number of
/// records.
fn drain(capture: &Capture, worker: &mut Worker, seen: u64, mut each: impl FnMut(&Record<'_>)) -> u64 {
    let (mut records, deadline) = (0, Instant::now() + LIMIT);
    loop {
        for record in worker.next_batch(Duration::from_millis(20)).unwrap().expect("it goes on") {
            each(&record);
            records += 1;
        }
        let total = capture.ledger().unwrap().total;
        if total.seen >= seen && total.analysed + total.filtered + total.lost >= total.seen {
            return records;
        }
        assert!(Instant::now() < deadline, "{total:?} of {seen}");
    }
}

/// Packets from source ports 1000 to 1255, in turn, each of 100 bytes.
const PORTS: [&str; 8] = ["--pattern", "ports", "--flows", "256", "--src-port", "1000", "--size", "100"];

/// Battery: L1
#[test]
fn every_hook_and_engine_accepts_exactly_what_was_sent() {
    if !require_root("every_hook_and_engine_accepts_exactly_what_was_sent") {
        return;
    }
    const SENT: u64 = 512;
    let cases = [
        ("udp src portrange 1000-1063", 128),
        ("src port 1005", 2),
        ("udp and not (src port 1000 or src port 1001)", 508),
        ("tcp", 0),
        ("len = 100 and inbound", SENT),
        ("len > 100 or outbound", 0),
        // The generator's magic in the payload, and the last byte of the packet.
        ("udp[8:4] = 0x574c6e31 and ether[96:4] >= 0", SENT),
        ("ether[97:4] >= 0 or ether[100] = 0", 0),
        ("udp[19] & 1 = 1", SENT / 2),
        ("", SENT),
        ("ip6 or arp or vlan or mpls", 0),
    ];
    for at in ALL {
        let lab = Lab::new(1).unwrap();
        // The snap length limits the stored bytes, not the evaluated ones.
        let mut capture = open(&lab, at, |builder| builder.filter(cases[0].0).snap_len(60)).unwrap();
        let mut worker = capture.workers().remove(0);
        let (mut seen, mut accepted) = (0, 0);
        for (expression, expected) in cases {
            set_filter(&lab, &mut capture, expression).unwrap();
            send(&lab, SENT, &PORTS).unwrap();
            seen += SENT;
            let mut numbers = BTreeSet::new();
            let records = drain(&capture, &mut worker, seen, |record| {
                assert_eq!((record.wire_len(), record.data().len()), (100, 60));
                let number = number_of(record).expect("a packet that nobody sent");
                assert!(numbers.insert(number), "twice");
            });
            assert_eq!(records, expected, "{at:?} {expression:?}");
            accepted += expected;
            let total = capture.ledger().unwrap().total;
            assert_eq!((total.analysed, total.lost), (accepted, 0), "{at:?}");
        }
        // A wrong expression leaves the previous one active.
        for wrong in ["tcp prot 80", "ip6 protochain 6", "ifindex 1"] {
            assert!(matches!(set_filter(&lab, &mut capture, wrong), Err(Error::Filter(_))), "{wrong}");
        }
        send(&lab, 1, &PORTS).unwrap();
        assert_eq!(drain(&capture, &mut worker, seen + 1, |_| {}), 0, "{at:?}");
        drop(worker);
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        let total = ledger.total;
        assert_eq!((total.seen, total.filtered), (seen + 1, seen + 1 - accepted), "{at:?}");
        assert_eq!((total.delivered, total.analysed, total.bytes), (accepted, accepted, accepted * 100));
    }
}

/// Starts tcpdump on the lab's receiver and waits until it captures.
fn tcpdump(lab: &Lab, file: &Path, options: &[&str], expression: &str) -> Child {
    let end = lab.receiver();
    let words = [
        &[
            "tcpdump",
            "-i",
            &end.device,
            "-n",
            "-U",
            "--immediate-mode",
            "-B",
            "16384",
            "-w",
            file.to_str().unwrap(),
        ],
        options,
        &[expression],
    ]
    .concat();
    let child = lab.spawn(&end.namespace, &words).unwrap();
    let deadline = Instant::now() + LIMIT;
    // tcpdump writes the file's header after it has set its filter.
    while !std::fs::metadata(file).is_ok_and(|file| file.len() >= 24) {
        assert!(Instant::now() < deadline, "tcpdump did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// `record` with an expression, beside tcpdump with the same expression on the same device: both files have the same
/// packets.
#[test]
fn a_recording_has_the_packets_that_tcpdump_has() {
    if !require_root("a_recording_has_the_packets_that_tcpdump_has") {
        return;
    }
    const SENT: u64 = 2048;
    let expression = "udp src portrange 1000-1063 and udp[19] & 1 = 0";
    let folder = tempfile::tempdir().unwrap();
    for options in [
        ["--hook", "native"],
        ["--hook", "generic"],
        ["--hook", "tc"],
        ["--hook", "clsact"],
        ["--engine", "packet"],
    ] {
        let lab = Lab::new(2).unwrap();
        let device = lab.receiver().device.clone();
        let ours = folder.path().join(format!("{}.pcapng", options[1]));
        let theirs = folder.path().join(format!("{}.pcap", options[1]));
        let words =
            [&["record", "-i", &device, "-w", ours.to_str().unwrap(), "--json"], &options[..], &[expression]]
                .concat();
        let recorder = capture(&lab, &words).unwrap();
        let beside = tcpdump(&lab, &theirs, &["-Z", "root"], expression);
        send(&lab, SENT, &PORTS).unwrap();
        let deadline = Instant::now() + LIMIT;
        while in_file(&theirs).map_or(0, |numbers| numbers.len()) < SENT as usize / 8
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        let last = finish(recorder).unwrap();
        beside.terminate(LIMIT).unwrap();
        // Lanes are read one after the other, so the order differs.
        let [ours, theirs] = [ours, theirs].map(|file| {
            let mut numbers = in_file(&file).unwrap();
            numbers.sort_unstable();
            numbers
        });
        assert_eq!(ours, theirs, "{options:?}");
        assert_eq!(ours.len() as u64, SENT / 8);
        assert_eq!(
            (column(&last, "seen"), column(&last, "filtered")),
            (SENT, SENT - SENT / 8),
            "{options:?}"
        );
        assert_eq!((column(&last, "analysed"), column(&last, "lost")), (SENT / 8, 0));
    }
}

/// A tag that the device has removed from the packet is evaluated at its original place.
#[test]
fn vlan_tags_beside_the_packet_are_evaluated_in_it() {
    if !require_root("vlan_tags_beside_the_packet_are_evaluated_in_it") {
        return;
    }
    const SENT: u64 = 40;
    let words = ["--vlan", "5", "--size", "100", "--flows", "1", "--src-port", "4000", "--dst-port", "53"];
    let cases = [
        ("vlan 5 and udp port 53", SENT),
        ("vlan and src port 4000 and dst port 53", SENT),
        ("ether[12:4] = 0x81000005 and ether[16:2] = 0x0800", SENT),
        // Across both ends of the tag.
        ("ether[10:4] & 0xffff = 0x8100 and ether[15:2] = 0x0508 and ether[14:4] = 0x00050800", SENT),
        ("len = 100 and ether[18] = 0x45 and ether[46:4] = 0x574c6e31 and ether[96:4] >= 0", SENT),
        ("ether[97:4] >= 0 or len = 96", 0),
        ("vlan 6", 0),
        ("udp port 53", 0),
        ("not vlan", 0),
    ];
    for at in ALL {
        // After XDP the stack has moved the tag from the packet to its metadata.
        let lab = Lab::with(&LabOptions { offloads: true, ..LabOptions::default() }).unwrap();
        let mut capture = open(&lab, at, |builder| builder).unwrap();
        let mut worker = capture.workers().remove(0);
        let mut wrong = Vec::new();
        for ((expression, expected), seen) in cases.into_iter().zip((1..).map(|turn| turn * SENT)) {
            set_filter(&lab, &mut capture, expression).unwrap();
            send(&lab, SENT, &words).unwrap();
            let records = drain(&capture, &mut worker, seen, |record| {
                assert_eq!(record.data()[12..18], [0x81, 0, 0, 5, 8, 0], "{at:?}");
                assert_eq!((record.header().vlan_tci, record.wire_len()), (5, 100));
            });
            if records != expected {
                wrong.push(format!("{at:?} {expression:?}: {records}, not {expected}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

fn groups(lab: &Lab) -> Vec<Value> {
    let namespace = &lab.receiver().namespace;
    let finished = wirelane(lab, namespace, &["groups", "--json"]).unwrap().finish(LIMIT).unwrap();
    assert!(finished.status.success(), "{}", finished.stderr);
    finished.json().unwrap()
}

/// Each group on a device has its own filter, which is also listed.
#[test]
fn groups_have_filters_of_their_own() {
    if !require_root("groups_have_filters_of_their_own") {
        return;
    }
    const SENT: u64 = 1024;
    let lab = Lab::new(2).unwrap();
    let device = lab.receiver().device.clone();
    // Longer than the text that an instance stores for display.
    let long = vec!["src port 1007"; 80].join(" or ");
    let wanted =
        [("src port 1005", 4), ("udp src portrange 1000-1127", SENT / 2), ("", SENT), (&long, 4), ("tcp", 0)];
    let captures: Vec<Child> = wanted
        .iter()
        .map(|(expression, _)| capture(&lab, &["count", "-i", &device, "--json", expression]).unwrap())
        .collect();
    send(&lab, SENT, &PORTS).unwrap();
    let listed = groups(&lab);
    for (child, (expression, accepted)) in captures.iter().zip(&wanted) {
        let group = listed.iter().find(|group| group["pid"] == child.pid()).unwrap();
        let shown = group["filter"].as_str().unwrap_or_default();
        if expression.len() > 1016 {
            assert_eq!(shown, format!("{}...", &expression[..1016]));
        } else {
            assert_eq!((shown, group["filter"].is_null()), (*expression, expression.is_empty()));
        }
        let counters = &group["counters"];
        assert_eq!(
            (column(counters, "seen"), column(counters, "filtered")),
            (SENT, SENT - accepted),
            "{expression}"
        );
    }
    let end = lab.receiver();
    let table = wirelane(&lab, &end.namespace, &["groups"]).unwrap().finish(LIMIT).unwrap();
    let table = table.lines.join("\n");
    assert!(
        table.contains("udp src portrange 1000-1127")
            && table.contains("src port 1007 or src port 1007 or src..."),
        "{table}"
    );
    for (child, (expression, accepted)) in captures.into_iter().zip(wanted) {
        let last = finish(child).unwrap();
        assert_eq!((column(&last, "analysed"), column(&last, "lost")), (accepted, 0), "{expression}");
        assert_eq!((column(&last, "seen"), column(&last, "filtered")), (SENT, SENT - accepted));
    }
}

/// A change while packets flow: each packet is evaluated by the old or the new expression, and none is lost.
/// Battery: L1
#[test]
fn a_change_under_load_loses_no_packet() {
    if !require_root("a_change_under_load_loses_no_packet") {
        return;
    }
    // Four classes, by source port: 1000 is always accepted, 1003 never, and of the other two one at a time.
    const SENT: u64 = 48_000;
    const FLOWS: [&str; 8] = ["--pattern", "ports", "--flows", "4", "--src-port", "1000", "--rate", "20k"];
    // With the interpreter, which serves where no program can be loaded, and without.
    let without = ALL.into_iter().filter(|(engine, _)| *engine == Engine::Ring).map(|at| (at, false));
    for (at, later) in ALL.into_iter().map(|at| (at, true)).chain(without) {
        let lab = Lab::new(1).unwrap();
        let first = "src port 1000 or src port 1001";
        let second = "udp and (src port 1000 or src port 1002)";
        // Rings for all that is sent, so that a slow reader does not lose any.
        let settings = |builder: Builder| builder.filter(first).filter_later(later).ring_size(64 << 20);
        let mut capture = open(&lab, at, settings).unwrap();
        let mut worker = capture.workers().remove(0);
        let (by_class, changes) = std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut by_class = [0u64; 4];
                let mut numbers = BTreeSet::new();
                while let Some(batch) = worker.next_batch(Duration::from_secs(1)).unwrap() {
                    for record in batch {
                        let number = number_of(&record).expect("a packet that nobody sent");
                        assert!(numbers.insert(number), "twice");
                        by_class[(number % 4) as usize] += 1;
                    }
                }
                by_class
            });
            let sender = scope.spawn(|| send(&lab, SENT, &FLOWS).unwrap());
            let mut changes = 0;
            while !sender.is_finished() {
                let expression = if changes % 2 == 0 { second } else { first };
                if later {
                    capture.set_filter(expression).unwrap();
                } else {
                    set_filter(&lab, &mut capture, expression).unwrap();
                }
                changes += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            sender.join().unwrap();
            let deadline = Instant::now() + LIMIT;
            while capture.ledger().unwrap().total.seen < SENT && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            capture.stop().unwrap();
            (reader.join().unwrap(), changes)
        });
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{at:?} {ledger:?}");
        let total = ledger.total;
        assert!(changes >= 2, "{changes}");
        assert_eq!((total.seen, total.lost), (SENT, 0), "{at:?}");
        assert_eq!((by_class[0], by_class[3]), (SENT / 4, 0), "{at:?}: {by_class:?} after {changes} changes");
        assert!(by_class[1] > 0 && by_class[2] > 0, "{at:?}: {by_class:?}");
        assert_eq!(total.analysed, by_class.iter().sum::<u64>());
        assert_eq!(total.filtered, SENT - total.analysed);
    }
}

/// A capture of both directions knows the direction of each packet.
#[test]
fn inbound_and_outbound_are_told_apart() {
    if !require_root("inbound_and_outbound_are_told_apart") {
        return;
    }
    const IN: u64 = 100;
    const OUT: u64 = 60;
    for at in [
        (Engine::Ring, HookChoice::Native),
        (Engine::Ring, HookChoice::Tc),
        (Engine::Packet, HookChoice::Auto),
    ] {
        let lab = Lab::new(1).unwrap();
        let (here, there) = (lab.receiver(), lab.sender());
        // A socket receives the outbound packets: a closed port would answer.
        let _sink = lab.enter(&there.namespace, || UdpSocket::bind((there.address, 9)).unwrap()).unwrap();
        for (expression, expected) in
            [("inbound", IN), ("outbound", OUT), ("udp", IN + OUT), ("not inbound", OUT)]
        {
            let settings = |builder: Builder| builder.direction(Direction::Both).filter(expression);
            let mut capture = open(&lab, at, settings).unwrap();
            let mut worker = capture.workers().remove(0);
            send(&lab, IN, &[]).unwrap();
            lab.enter(&here.namespace, || {
                let socket = UdpSocket::bind((here.address, 0)).unwrap();
                for _ in 0..OUT {
                    socket.send_to(&[0; 100], (there.address, 9)).unwrap();
                }
            })
            .unwrap();
            let mut egress = 0;
            let records =
                drain(&capture, &mut worker, IN + OUT, |record| egress += u64::from(record.is_egress()));
            assert_eq!(records, expected, "{at:?} {expression}");
            assert_eq!(egress, if expression == "inbound" { 0 } else { OUT });
            drop(worker);
            let total = capture.close().unwrap().total;
            assert_eq!((total.seen, total.filtered), (IN + OUT, IN + OUT - expected), "{at:?} {expression}");
        }
    }
}

/// Wrong expressions are usage errors, before anything is attached.
#[test]
fn a_wrong_expression_stops_a_capture_before_it_starts() {
    if !require_root("a_wrong_expression_stops_a_capture_before_it_starts") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    for options in [&["--engine", "ring"][..], &["--engine", "packet"], &["--engine", "xsk", "--exclusive"]] {
        for (expression, message) in [
            ("tcp prot 80", "tcp prot 80\n      ^"),
            ("ip6 protochain 6", "takes a loop"),
            ("ifindex 2", "ifindex is not known here: name the device with -i"),
            ("arp and ip", "no packet can be all of this"),
        ] {
            let words = [&["count", "-i", &end.device], options, &[expression]].concat();
            let finished = wirelane(&lab, &end.namespace, &words).unwrap().finish(LIMIT).unwrap();
            assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
            assert!(finished.stderr.contains(message), "{options:?}: {}", finished.stderr);
            assert!(finished.lines.is_empty());
        }
    }
    assert_eq!(groups(&lab).len(), 1, "only the last object: nobody captures");
}
