//! Several processes on one device: each exact, whatever happens to the others, and nothing is left behind.

use std::time::{Duration, Instant};

use wirelane::{Builder, Capture, Direction, Selector};
use wirelane_tests::numbers::{LIMIT, capture, column, finish, number_of, send, wirelane};
use wirelane_tests::{
    Child, Lab, LabOptions, Signal, in_own_process, open_descriptors, require_root, resident_bytes,
    settled_bpf_objects, wait_for_bpf_objects,
};

fn alone(queues: u32) -> Lab {
    Lab::with(&LabOptions { queues, alone: true, ..LabOptions::default() }).unwrap()
}

fn count(lab: &Lab, options: &[&str]) -> Child {
    let device = lab.receiver().device.as_str();
    capture(lab, &[&["count", "-i", device, "--json"], options].concat()).unwrap()
}

fn kill(child: Child) {
    child.signal(Signal::Kill).unwrap();
    assert!(!child.finish(LIMIT).unwrap().status.success());
}

/// Battery: F5
#[test]
fn a_killed_process_disturbs_nobody_and_its_place_is_cleared() {
    if !require_root("a_killed_process_disturbs_nobody_and_its_place_is_cleared") {
        return;
    }
    let lab = alone(2);
    let survivor = count(&lab, &[]);
    // A second capture has the programs for several loaded.
    finish(count(&lab, &[])).unwrap();
    let with_one = settled_bpf_objects();
    for _ in 0..3 {
        let victim = count(&lab, &["--workers", "3"]);
        send(&lab, 500, &[]).unwrap();
        kill(victim);
        send(&lab, 500, &[]).unwrap();
        // Rings and bells of a killed process are released when the survivor has looked.
        assert_eq!(wait_for_bpf_objects(&with_one, Duration::from_secs(2)), with_one);
    }
    let last = finish(survivor).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (3000, 0));
}

/// Battery: F2, S12
#[test]
fn the_last_process_takes_everything_with_it_also_when_killed() {
    if !require_root("the_last_process_takes_everything_with_it_also_when_killed") {
        return;
    }
    let lab = alone(2);
    let before = settled_bpf_objects();
    for (options, hook) in
        [(["--hook", "native"], "xdp"), (["--hook", "generic"], "xdpgeneric"), (["--hook", "tc"], "")]
    {
        let victim = count(&lab, &[&options[..], &["--exclusive", "--direction", "rx"]].concat());
        let shown =
            lab.exec(&lab.receiver().namespace, &["ip", "-d", "link", "show", &lab.receiver().device]);
        assert!(shown.unwrap().contains(hook), "{hook}");
        kill(victim);
        assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
        // The host receives traffic again, which the victim had consumed.
        let (from, to) = (lab.sender(), lab.receiver());
        let arrived = lab.enter(&to.namespace, || {
            let sink = std::net::UdpSocket::bind((to.address, 4000)).unwrap();
            sink.set_read_timeout(Some(LIMIT)).unwrap();
            lab.enter(&from.namespace, || {
                let source = std::net::UdpSocket::bind((from.address, 0)).unwrap();
                source.send_to(b"through", (to.address, 4000)).unwrap();
            })
            .unwrap();
            sink.recv(&mut [0; 16]).unwrap()
        });
        assert_eq!(arrived.unwrap(), 7);
    }
}

#[test]
fn joining_and_leaving_disturbs_nobody() {
    if !require_root("joining_and_leaving_disturbs_nobody") {
        return;
    }
    const SENT: u64 = 100_000;
    let lab = Lab::new(4).unwrap();
    let stays = count(&lab, &["--ring-size", "16"]);
    let sender = lab.sender();
    let packets = SENT.to_string();
    let words = [
        "send",
        "-i",
        &sender.device,
        "--method",
        "socket",
        "--packets",
        &packets,
        "--rate",
        "25k",
        "--json",
    ];
    let mut load = wirelane(&lab, &sender.namespace, &words).unwrap();
    let mut guests = 0;
    while load.is_running().unwrap() {
        let guest = count(&lab, &["--workers", "2"]);
        std::thread::sleep(Duration::from_millis(30));
        let last = finish(guest).unwrap();
        assert_eq!(column(&last, "seen"), column(&last, "analysed") + column(&last, "lost"));
        guests += 1;
    }
    assert!(load.finish(LIMIT).unwrap().status.success());
    assert!(guests >= 3, "only {guests} guests came and went");
    let last = finish(stays).unwrap();
    assert_eq!((column(&last, "analysed"), column(&last, "lost")), (SENT, 0));
}

/// A shared group of more processes than a device has slots for otherwise. Each of them is a capture here, as it is for the
/// kernel.
#[test]
fn sixty_four_captures_divide_all_flows_and_a_further_one_is_refused() {
    if !require_root("sixty_four_captures_divide_all_flows_and_a_further_one_is_refused") {
        return;
    }
    const PARTS: u32 = 64;
    let lab = Lab::new(1).unwrap();
    let end = lab.receiver();
    let open = |number: u32, of: u32| {
        let builder = Builder::new(Selector::parse_list(&end.device).unwrap()).direction(Direction::Rx);
        builder.ring_size(1 << 20).share(number, of, 7).open()
    };
    let mut captures: Vec<Capture> = lab
        .enter(&end.namespace, || (0..PARTS).map(|number| open(number, PARTS).unwrap()).collect())
        .unwrap();
    let refused = lab.enter(&end.namespace, || open(0, PARTS).map(|_| ())).unwrap().unwrap_err().to_string();
    assert!(refused.contains("already has 64 groups, the maximum; stop one of them"), "{refused}");
    assert!(!refused.contains("there are more"), "{refused}");
    send(&lab, 20_000, &["--flows", "2000"]).unwrap();
    let mut seen = vec![false; 20_000];
    let mut least = u64::MAX;
    for capture in &mut captures {
        let mut worker = capture.workers().remove(0);
        let mut packets = 0;
        loop {
            let before = packets;
            for record in worker.next_batch(Duration::from_millis(20)).unwrap().unwrap() {
                let number = number_of(&record).unwrap() as usize;
                assert!(!seen[number], "packet {number} was delivered twice");
                seen[number] = true;
                packets += 1;
            }
            if packets == before {
                break;
            }
        }
        least = least.min(packets);
    }
    assert!(
        seen.iter().all(|seen| *seen),
        "{} packets are missing",
        seen.iter().filter(|seen| !**seen).count()
    );
    assert!(least > 0, "a part got no packets of 2,000 flows");
}

#[test]
fn a_seventeenth_group_is_refused() {
    if !require_root("a_seventeenth_group_is_refused") {
        return;
    }
    let lab = Lab::new(1).unwrap();
    let mut children: Vec<Child> = (0..16).map(|_| count(&lab, &["--ring-size", "1"])).collect();
    let device = lab.receiver().device.as_str();
    let refused = || {
        wirelane(&lab, &lab.receiver().namespace, &["count", "-i", device, "--json"])
            .unwrap()
            .finish(LIMIT)
            .unwrap()
    };
    let finished = refused();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("16 groups"), "{}", finished.stderr);
    send(&lab, 1000, &[]).unwrap();
    // The slot of a killed process can be taken immediately.
    kill(children.pop().unwrap());
    children.push(count(&lab, &[]));
    let counts: Vec<u64> =
        children.into_iter().map(|child| column(&finish(child).unwrap(), "analysed")).collect();
    assert_eq!(counts[..15], [1000; 15]);
    assert_eq!(counts[15], 0, "it came after the packets");
}

/// Battery: L12
#[test]
fn two_hundred_starts_and_stops_leak_nothing() {
    if !require_root("two_hundred_starts_and_stops_leak_nothing")
        || !in_own_process("processes::two_hundred_starts_and_stops_leak_nothing")
    {
        return;
    }
    // A start mostly waits for the kernel: four devices run it concurrently.
    let lab = Lab::with(&LabOptions { queues: 2, links: 4, alone: true, ..LabOptions::default() }).unwrap();
    let before = settled_bpf_objects();
    let lab = &lab;
    let cycles = |each: u32| {
        std::thread::scope(|scope| {
            for link in &lab.links {
                let end = &link.receiver;
                let work = move || {
                    for _ in 0..each {
                        let selectors = wirelane::Selector::parse_list(&end.device).unwrap();
                        let mut capture = wirelane::Builder::new(selectors)
                            .hook(wirelane::HookChoice::Native)
                            .direction(wirelane::Direction::Rx)
                            .workers(2)
                            .ring_size(1 << 20)
                            .open()
                            .unwrap();
                        drop(capture.workers());
                        assert!(capture.close().unwrap().balances());
                    }
                };
                scope.spawn(move || lab.enter(&end.namespace, work).unwrap());
            }
        });
    };
    let own = std::process::id();
    cycles(5);
    let descriptors = open_descriptors(own).unwrap();
    // Where threads meet, the allocator begins another arena, once: a leak grows in both halves.
    let grown = [(); 2].map(|()| {
        let start = resident_bytes(own).unwrap();
        cycles(23);
        resident_bytes(own).unwrap().saturating_sub(start)
    });
    assert_eq!(open_descriptors(own).unwrap(), descriptors, "file descriptors");
    assert!(grown.into_iter().min() < Some(2 << 20), "{grown:?} bytes more after 92 cycles, twice");
    assert_eq!(wait_for_bpf_objects(&before, Duration::from_secs(5)), before);
}

/// Without packets the worker sleeps 50 ms at a time, and the maintenance thread 200 ms.
#[test]
fn an_idle_capture_sleeps() {
    if !require_root("an_idle_capture_sleeps") {
        return;
    }
    let lab = Lab::new(4).unwrap();
    let child = count(&lab, &["--interval", "60"]);
    std::thread::sleep(Duration::from_millis(500));
    let look = || (wakings(child.pid()), wirelane_tests::cpu_time(child.pid()).unwrap());
    let (start, (woken, cpu)) = (Instant::now(), look());
    std::thread::sleep(Duration::from_secs(5));
    let (now_woken, now_cpu) = look();
    let elapsed = start.elapsed();
    // Neighbour discovery packets of a new device wake the worker too, and short sleeps follow.
    let most = elapsed.as_millis() as u64 / 40 + 150;
    let woken = now_woken - woken;
    assert!((1..=most).contains(&woken), "{woken} times in {elapsed:?}");
    let part = (now_cpu - cpu).as_secs_f64() / elapsed.as_secs_f64();
    assert!(part < 0.01, "{part} of a core");
    finish(child).unwrap();
}

/// Number of voluntary context switches of all threads of a process.
fn wakings(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |status: String| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
    };
    threads
        .map(|thread| of(std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap()).unwrap())
        .sum()
}
