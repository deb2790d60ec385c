//! Steering programs of users (`--steering-program`): each packet reaches the worker that the program returns, and
//! every packet is in the ledger. The programs are those of `tests/programs/`; refusals are in
//! `steering_program_refusals.rs`.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use wirelane::{Builder, Direction, HookChoice, Selector};
use wirelane_tests::numbers::{column, drain, last_of, number_of, send, wirelane};
use wirelane_tests::{
    Child, Lab, LabOptions, Signal, kernel_version, program_file, require_root, settled_bpf_objects,
    tag_beside, wait_for_bpf_objects, wirelane_binary,
};

/// An emulated machine's verifier is a hundred times slower than a real one's.
const LIMIT: Duration = Duration::from_secs(240);
const HOOKS: [&str; 4] = ["native", "generic", "tc", "clsact"];
/// Packets of a run: a multiple of 2, 3 and 4.
const PACKETS: u64 = 6000;
/// First kernel on which the device-bound program, which reads the tag that the driver removed from a packet, runs on
/// veth.
const BOUND: (u32, u32) = (6, 8);

struct Bench {
    lab: Lab,
    folder: TempDir,
}

impl Bench {
    fn new(options: LabOptions) -> Bench {
        Bench { lab: Lab::with(&options).unwrap(), folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        program_file(self.folder.path(), name).unwrap().to_str().unwrap().to_owned()
    }

    fn spawn(&self, options: &[&str]) -> Child {
        let end = self.lab.receiver();
        let words = ["count", "-i", &end.device, "--direction", "rx", "--json"];
        wirelane(&self.lab, &end.namespace, &[&words, options].concat()).unwrap()
    }

    /// Starts `wirelane count` with a program and waits until it captures.
    fn count(&self, program: &str, options: &[&str]) -> Child {
        self.plain(&[&["--steering-program", &self.path(program)], options].concat())
    }

    fn plain(&self, options: &[&str]) -> Child {
        let mut child = self.spawn(options);
        child.wait_ready(LIMIT).unwrap();
        child
    }

    fn send(&self, packets: u64, options: &[&str]) {
        send(&self.lab, packets, &[&["--rate", "20k"], options].concat()).unwrap();
    }
}

/// Counts of a capture's last object.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    seen: u64,
    filtered: u64,
    workers: Vec<u64>,
}

/// Ends a capture; every packet must be in one column, and none lost.
fn end(child: Child) -> Got {
    let finished = child.terminate(LIMIT).unwrap();
    got(&last_of(&finished).unwrap())
}

fn got(last: &Value) -> Got {
    let (seen, filtered) = (column(last, "seen"), column(last, "filtered"));
    let workers: Vec<u64> =
        last["workers"].as_array().unwrap().iter().map(|line| column(line, "analysed")).collect();
    assert_eq!((column(last, "lost"), column(last, "shed"), column(last, "absorbed")), (0, 0, 0), "{last}");
    assert_eq!(column(last, "delivered"), column(last, "analysed"), "{last}");
    assert_eq!(seen, filtered + column(last, "analysed"), "{last}");
    assert_eq!(workers.iter().sum::<u64>(), column(last, "analysed"), "{last}");
    Got { seen, filtered, workers }
}

#[track_caller]
fn assert_got(case: &str, child: Child, seen: u64, filtered: u64, workers: &[u64]) {
    assert_eq!(end(child), Got { seen, filtered, workers: workers.to_vec() }, "{case}");
}

/// Battery: L1
#[test]
fn each_packet_reaches_the_worker_that_the_program_names() {
    if !require_root("each_packet_reaches_the_worker_that_the_program_names") {
        return;
    }
    let bench = Bench::new(LabOptions { queues: 2, ..LabOptions::default() });
    let (lab, program) = (&bench.lab, bench.path("number"));
    let receiver = lab.receiver();
    for hook in [HookChoice::Native, HookChoice::Generic, HookChoice::Tc, HookChoice::Clsact] {
        let open = || {
            let selectors = Selector::parse_list(&receiver.device).unwrap();
            Builder::new(selectors)
                .direction(Direction::Rx)
                .steering_program(&program)
                .workers(3)
                .hook(hook)
                .open()
        };
        let mut capture = lab.enter(&receiver.namespace, open).unwrap().unwrap();
        let workers = capture.workers();
        bench.send(PACKETS, &[]);
        for mut worker in workers {
            let index = worker.index() as u64;
            let mut seen = BTreeMap::new();
            drain(&mut worker, Duration::from_millis(500), |record| {
                let number = number_of(record).expect("nobody else sends");
                *seen.entry(number).or_insert(0) += 1;
            })
            .unwrap();
            let expected: BTreeMap<u64, i32> =
                (0..PACKETS).filter(|number| number % 3 == index).map(|number| (number, 1)).collect();
            assert_eq!(seen, expected, "{hook:?}, worker {index}");
        }
        let ledger = capture.close().unwrap();
        assert!(ledger.balances(), "{ledger:?}");
        let total = ledger.total;
        assert_eq!((total.seen, total.filtered, total.lost, total.analysed), (PACKETS, 0, 0, PACKETS));
    }
}

/// Also with `--exclusive`: packets that the program rejects go to the host, and no others.
#[test]
fn what_a_program_does_not_want_is_filtered_and_left_to_the_host() {
    if !require_root("what_a_program_does_not_want_is_filtered_and_left_to_the_host") {
        return;
    }
    // As many datagrams as a socket's buffer holds.
    const SENT: u64 = 200;
    let bench = Bench::new(LabOptions::default());
    let (from, to) = (bench.lab.sender().clone(), bench.lab.receiver().clone());
    let mac = to.mac.map(|byte| format!("{byte:02x}")).join(":");
    let (source, target) = (from.address.to_string(), to.address.to_string());
    let packets =
        ["--src", &source, "--dst", &target, "--dst-mac", &mac, "--flows", "1", "--dst-port", "4000"];
    for hook in HOOKS {
        let child = bench.count("even", &["--hook", hook, "--exclusive"]);
        let socket = bench.lab.enter(&to.namespace, || UdpSocket::bind((to.address, 4000)).unwrap()).unwrap();
        bench.send(SENT, &packets);
        let mut datagram = [0; 64];
        for expected in (1..SENT).step_by(2) {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            let len = socket.recv(&mut datagram).unwrap();
            assert_eq!(wirelane_send::numbered(&datagram[..len]), Some(expected), "{hook}");
        }
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(socket.recv(&mut datagram).is_err(), "{hook}: a packet that was taken");
        assert_got(hook, child, SENT, SENT / 2, &[SENT / 2]);
    }
}

#[test]
fn numbers_that_no_worker_has_wrap_around() {
    if !require_root("numbers_that_no_worker_has_wrap_around") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    for hook in HOOKS {
        let far = bench.count("far", &["--hook", hook, "--workers", "3"]);
        // A raw hash of the whole range: no value means "not mine".
        let hash = bench.count("hash", &["--hook", hook, "--workers", "4"]);
        bench.send(PACKETS, &["--flows", "500"]);
        let part = PACKETS / 4;
        // 2^31 - 1 is 1 modulo 3; the number of workers is 0; the last worker is 2; a negative number rejects the
        // packet.
        assert_got(hook, far, PACKETS, part, &[part, part, part]);
        let got = end(hash);
        assert_eq!((got.seen, got.filtered), (PACKETS, 0), "{hook}");
        // 12 packets of each of 500 flows, all of a flow at one worker.
        assert!(got.workers.iter().all(|packets| *packets > 0 && packets % 12 == 0), "{hook}: {got:?}");
    }
}

#[test]
fn a_program_sees_headers_and_the_first_bytes() {
    if !require_root("a_program_sees_headers_and_the_first_bytes") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    for hook in HOOKS {
        let described = bench.count("described", &["--hook", hook, "--workers", "2"]);
        let words =
            ["--proto", "tcp", "--size", "300", "--dst", "10.77.0.2", "--flows", "1", "--dst-port", "4000"];
        bench.send(256, &words);
        // Numbers above 255 do not match the program's expectation.
        bench.send(300, &words);
        assert_got(hook, described, 556, 0, &[512, 44]);

        let table = bench.count("table", &["--hook", hook, "--workers", "4"]);
        for (port, packets) in [("4789", 400), ("7", 100), ("53", 300), ("54", 50), ("9", 200)] {
            bench.send(packets, &["--dst-port", port]);
        }
        bench.send(60, &["--dst-port", "7", "--proto", "tcp"]);
        assert_got(hook, table, 1110, 110, &[100, 200, 300, 400]);
    }
}

/// Tags in the packet, and tags that were removed from it before the program could see it.
#[test]
fn a_program_sees_vlan_tags() {
    if !require_root("a_program_sees_vlan_tags") {
        return;
    }
    let bench = Bench::new(LabOptions { offloads: true, ..LabOptions::default() });
    for hook in HOOKS {
        let child = bench.count("tagged", &["--hook", hook, "--workers", "4"]);
        for (id, packets) in [("1", 100), ("2", 200), ("4094", 50)] {
            bench.send(packets, &["--vlan", id]);
        }
        bench.send(30, &[]);
        assert_got(hook, child, 380, 30, &[0, 100, 250, 0]);
    }
    tag_beside(&bench.lab).unwrap();
    let hooks = if kernel_version().unwrap() < BOUND { &HOOKS[2..] } else { &["native", "tc", "clsact"] };
    for hook in hooks {
        let child = bench.count("tagged", &["--hook", hook, "--workers", "4"]);
        // The generator bypasses tc.
        let (from, to) = (bench.lab.sender(), bench.lab.receiver().address);
        let socket =
            bench.lab.enter(&from.namespace, || UdpSocket::bind((from.address, 0)).unwrap()).unwrap();
        for _ in 0..100 {
            assert_eq!(socket.send_to(b"tagged", (to, 4000)).unwrap(), 6);
        }
        assert_got(&format!("{hook}, beside the packet"), child, 100, 0, &[0, 0, 0, 100]);
    }
}

#[test]
fn groups_have_programs_of_their_own_and_share_equal_ones() {
    if !require_root("groups_have_programs_of_their_own_and_share_equal_ones") {
        return;
    }
    let bench = Bench::new(LabOptions { queues: 2, ..LabOptions::default() });
    for hook in HOOKS {
        let by_number = bench.count("number", &["--hook", hook, "--workers", "3"]);
        let even = bench.count("even", &["--hook", hook]);
        let none = bench.plain(&["--hook", hook, "--workers", "2"]);
        let constant = bench.count("constant_1", &["--hook", hook, "--workers", "2"]);
        let hash = bench.count("hash", &["--hook", hook]);
        // A fifth group, with a program that is already loaded.
        let same = bench.count("number", &["--hook", hook, "--workers", "2"]);
        bench.send(PACKETS, &[]);
        let listed = wirelane(&bench.lab, &bench.lab.receiver().namespace, &["groups", "--json"]).unwrap();
        let listed = listed.finish(LIMIT).unwrap().json().unwrap();
        let steering: Vec<&str> = listed.iter().filter_map(|group| group["steering"].as_str()).collect();
        assert_eq!(steering, ["program", "program", "flow", "program", "program", "program"], "{hook}");
        let third = PACKETS / 3;
        assert_got(hook, by_number, PACKETS, 0, &[third, third, third]);
        assert_got(hook, even, PACKETS, PACKETS / 2, &[PACKETS / 2]);
        assert_got(hook, constant, PACKETS, 0, &[0, PACKETS]);
        assert_got(hook, hash, PACKETS, 0, &[PACKETS]);
        assert_got(hook, same, PACKETS, 0, &[PACKETS / 2, PACKETS / 2]);
        let none = end(none);
        assert_eq!((none.seen, none.filtered), (PACKETS, 0), "{hook}");
        assert!(none.workers.iter().all(|packets| *packets > 0), "{hook}: {none:?}");
    }
}

#[test]
fn a_ninth_program_is_refused_until_an_owner_is_killed() {
    if !require_root("a_ninth_program_is_refused_until_an_owner_is_killed") {
        return;
    }
    let bench = Bench::new(LabOptions { alone: true, ..LabOptions::default() });
    let before = settled_bpf_objects();
    for hook in ["native", "tc"] {
        let options = ["--hook", hook, "--workers", "4", "--ring-size", "1"];
        let mut children: Vec<Child> =
            (0..8).map(|number| bench.count(&format!("constant_{number}"), &options)).collect();
        let path = bench.path("constant_8");
        let refused =
            bench.spawn(&[&["--steering-program", &path], &options[..]].concat()).finish(LIMIT).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{hook}: {}", refused.stderr);
        let device = &bench.lab.receiver().device;
        for part in ["constant_8.bpf.o", device, "8 other programs", "wirelane groups"] {
            assert!(refused.stderr.contains(part), "{hook}: {part}: {}", refused.stderr);
        }
        bench.send(100, &[]);
        let killed = children.remove(1);
        killed.signal(Signal::Kill).unwrap();
        assert!(!killed.finish(LIMIT).unwrap().status.success());
        // The slot is free immediately. The ninth program returns worker 8 of 4, which is the first.
        let ninth = bench.count("constant_8", &options);
        bench.send(100, &[]);
        assert_got(hook, ninth, 100, 0, &[100, 0, 0, 0]);
        for (child, number) in children.into_iter().zip([0, 2, 3, 4, 5, 6, 7]) {
            let mut workers = [0; 4];
            workers[number % 4] = 200;
            assert_got(hook, child, 200, 0, &workers);
        }
    }
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(10)), before);
}

/// The program on the device is replaced whenever a capture joins: no packet is lost in between.
/// Battery: L1
#[test]
fn joining_with_a_program_loses_nobody_a_packet() {
    if !require_root("joining_with_a_program_loses_nobody_a_packet") {
        return;
    }
    let bench = Bench::new(LabOptions { queues: 2, ..LabOptions::default() });
    let sender = bench.lab.sender();
    for hook in HOOKS {
        let ring = ["--hook", hook, "--ring-size", "16"];
        let by_number = bench.count("number", &[&ring[..], &["--workers", "2"]].concat());
        let none = bench.plain(&ring);
        let words = ["send", "-i", &sender.device, "--method", "socket", "--rate", "5k", "--json"];
        let load = wirelane(&bench.lab, &sender.namespace, &words).unwrap();
        for guest in ["even", "constant_1", "hash", "even"] {
            let guest = bench.count(guest, &ring);
            std::thread::sleep(Duration::from_millis(50));
            end(guest);
        }
        let sent = last_of(&load.terminate(LIMIT).unwrap()).unwrap();
        let (sent, offered) = (column(&sent, "sent"), column(&sent, "offered"));
        assert_eq!(sent, offered);
        // Numbers start at 0: there is one more even number if the count is odd.
        assert_got(hook, by_number, sent, 0, &[sent.div_ceil(2), sent / 2]);
        assert_got(hook, none, sent, 0, &[sent]);
    }
}

/// Captures that start concurrently link and replace one after the other, and each finds the changes of the others.
#[test]
fn many_come_with_programs_at_once() {
    if !require_root("many_come_with_programs_at_once") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    for hook in HOOKS {
        let start = |group: usize| {
            let program = bench.path(&format!("constant_{}", group % 4));
            bench.spawn(&[
                "--hook",
                hook,
                "--workers",
                "4",
                "--ring-size",
                "1",
                "--steering-program",
                &program,
            ])
        };
        let mut children: Vec<Child> = (0..8).map(start).collect();
        for child in &mut children {
            child.wait_ready(LIMIT).unwrap();
        }
        bench.send(200, &[]);
        for (group, child) in children.into_iter().enumerate() {
            let mut workers = [0; 4];
            workers[group % 4] = 200;
            assert_got(&format!("{hook}, group {group}"), child, 200, 0, &workers);
        }
    }
}

/// A capture killed while it joins does not affect others: they run on, and all slots can be taken.
/// Battery: F2
#[test]
fn killed_at_any_moment_of_joining() {
    if !require_root("killed_at_any_moment_of_joining") {
        return;
    }
    const KILLED: u32 = 12;
    let bench = Bench::new(LabOptions { alone: true, ..LabOptions::default() });
    let before = settled_bpf_objects();
    for hook in ["native", "clsact"] {
        let options = ["--hook", hook, "--workers", "4", "--ring-size", "1"];
        let stays = bench.count("constant_0", &options);
        let path = bench.path("constant_1");
        let words = [&options[..], &["--steering-program", &path]].concat();
        let start = Instant::now();
        let mut whole = bench.spawn(&words);
        whole.wait_ready(LIMIT).unwrap();
        let took = start.elapsed();
        end(whole);
        for moment in 0..KILLED {
            let killed = bench.spawn(&words);
            std::thread::sleep(took * moment / KILLED);
            killed.signal(Signal::Kill).unwrap();
            bench.send(100, &[]);
            assert!(!killed.finish(LIMIT).unwrap().status.success());
        }
        let others: Vec<Child> =
            (1..4).map(|worker| bench.count(&format!("constant_{worker}"), &options)).collect();
        bench.send(100, &[]);
        assert_got(hook, stays, u64::from(KILLED + 1) * 100, 0, &[u64::from(KILLED + 1) * 100, 0, 0, 0]);
        for (child, worker) in others.into_iter().zip(1..) {
            let mut workers = [0; 4];
            workers[worker] = 100;
            assert_got(hook, child, 100, 0, &workers);
        }
    }
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(10)), before);
}

/// A filter runs first. Short and long filters are evaluated differently, and if the program is bound to its device,
/// all of it has to fit into the reserved pages (`crates/wirelane-bpf/bpf/prog_padding.h`).
#[test]
fn filters_go_with_programs_and_the_program_is_not_moved() {
    if !require_root("filters_go_with_programs_and_the_program_is_not_moved") {
        return;
    }
    let bench = Bench::new(LabOptions::default());
    let hosts: Vec<String> = (1..60).map(|host| format!("host 10.9.8.{host}")).collect();
    let long = format!("udp port 7 or {}", hosts.join(" or "));
    let by_number = bench.path("number");
    for hook in HOOKS {
        for filter in ["udp port 7", &long] {
            let end_of = bench.lab.receiver();
            let binary = wirelane_binary().unwrap();
            let mut command = bench.lab.command(&end_of.namespace, binary);
            command.args(["count", "-i", &end_of.device, "--json", "--hook", hook, "--workers", "2"]);
            command.args(["--steering-program", &by_number, filter]).env("WIRELANE_LOG", "debug");
            let mut child = Child::spawn(&mut command).unwrap();
            child.wait_ready(LIMIT).unwrap();
            let even = bench.count("even", &["--hook", hook, filter]);
            let all = bench.count("even", &["--hook", hook]);
            bench.send(1000, &[]);
            bench.send(1000, &["--dst-port", "7"]);
            let finished = child.terminate(LIMIT).unwrap();
            let last = got(&last_of(&finished).unwrap());
            assert_eq!(last, Got { seen: 2000, filtered: 1000, workers: vec![500, 500] }, "{hook}: {filter}");
            assert_got(hook, even, 2000, 1500, &[500]);
            assert_got(hook, all, 2000, 1000, &[1000]);

            let said = |part: &str| finished.stderr.lines().filter(|line| line.contains(part)).count();
            assert_eq!(said("than it had room for"), 0, "{}", finished.stderr);
            // It is loaded once, with the filter and the steering program.
            let bound = hook == "native" && kernel_version().unwrap() >= BOUND;
            let expected = if bound { 1 } else { 0 };
            assert_eq!(said("instructions given"), expected, "{hook}: {}", finished.stderr);
        }
    }
}

mod examples;

/// The path of a file in a folder, as a command-line argument.
fn word(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}
