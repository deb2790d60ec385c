//! Conservation (L1 of tests/BATTERY.md): with any options, and any number of groups at once, every numbered packet is
//! in exactly one place.
//!
//! Cases are drawn at random: hook and direction, RX queues, frame size, and for each group its snap length, workers,
//! steering, ring size, congestion control, and whether it reads while packets come or only afterwards, so that its
//! rings overflow. `WIRELANE_MATRIX_SECONDS` sets how long cases are drawn (20), `WIRELANE_SEED` the first seed (by the
//! clock); a failure prints the case and the seed that begins with it.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Barrier;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirelane::{
    Balance, Builder, Capture, Direction, HookChoice, Selector, Steering, Watermarks, Worker, flags,
};
use wirelane_tests::numbers::{LIMIT, number_of, send, spread_by_hash};
use wirelane_tests::{Lab, LabOptions, kernel_version, require_root};

/// Ethernet, IPv4, UDP, and the payload with the number.
const NUMBERED: usize = 14 + 20 + 8 + 12;
const MTU: u32 = 9000;

/// xorshift64*: random enough to draw cases, and the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug)]
struct Group {
    hook: HookChoice,
    direction: Direction,
    snap: usize,
    workers: usize,
    steering: Steering,
    balance: Balance,
    ring_mib: usize,
    take: bool,
    inner: bool,
    immediate: bool,
    shed: bool,
    lazy: bool,
}

#[derive(Clone, Debug)]
struct Case {
    groups: Vec<Group>,
    size: usize,
    packets: u64,
    answers: u64,
}

impl Case {
    fn draw(random: &mut Random, tcx: bool) -> Case {
        let xdp = random.pick(&[HookChoice::Auto, HookChoice::Native, HookChoice::Generic]);
        // Since Linux 6.9 generic XDP and tc cannot be used together (tests/other_programs.rs).
        let mixed = tcx && xdp != HookChoice::Generic && random.one_in(3);
        let count = random.pick(&[1, 1, 2, 3, 5]);
        let only = if tcx && random.one_in(3) { HookChoice::Tc } else { xdp };
        let groups = (0..count)
            .map(|_| {
                let steering = random.pick(&[
                    Steering::Flow,
                    Steering::Flow,
                    Steering::Queue,
                    Steering::RoundRobin,
                    Steering::Copy,
                    Steering::Source,
                ]);
                let workers = random.pick(&[1, 2, 3, 8]);
                let buckets = matches!(steering, Steering::Flow | Steering::Source);
                Group {
                    hook: if mixed { random.pick(&[xdp, HookChoice::Tc]) } else { only },
                    direction: if tcx {
                        random.pick(&[Direction::Rx, Direction::Rx, Direction::Tx, Direction::Both])
                    } else {
                        Direction::Rx
                    },
                    snap: random.pick(&[0, 0, 1, 54, 64, 97, 1500]),
                    workers,
                    steering,
                    balance: if buckets && workers > 1 && random.one_in(3) {
                        Balance::Adaptive
                    } else {
                        Balance::Static
                    },
                    ring_mib: random.pick(&[1, 1, 2, 8]),
                    // Packets that XDP consumes never reach tc.
                    take: !mixed && random.one_in(4),
                    inner: random.one_in(4),
                    immediate: random.one_in(4),
                    shed: random.one_in(4),
                    lazy: random.one_in(4),
                }
            })
            .collect();
        Case {
            groups,
            size: random.pick(&[60, 61, 128, 590, 1514, 4000, 9014]),
            packets: random.pick(&[1, 700, 1500, 3000]),
            answers: if random.one_in(2) { random.below(300) as u64 } else { 0 },
        }
    }
}

fn open(lab: &Lab, group: &Group) -> Capture {
    let end = lab.receiver();
    let builder = Builder::new(Selector::parse_list(&end.device).unwrap())
        .hook(group.hook)
        .direction(group.direction)
        .snap_len(group.snap)
        .workers(group.workers)
        .steering(group.steering)
        .balance(group.balance)
        .ring_size(group.ring_mib << 20)
        .exclusive(group.take)
        .inner_headers(group.inner)
        .immediate(group.immediate)
        .congestion_control(group.shed.then(Watermarks::default));
    lab.enter(&end.namespace, || builder.open()).unwrap().unwrap()
}

/// Records of one worker.
#[derive(Debug, Default)]
struct Yielded {
    records: u64,
    bytes: u64,
    /// Numbers of received packets, and of transmitted packets; as far as the snap length leaves them.
    numbers: [BTreeSet<u64>; 2],
}

/// All records of a worker until its capture ends, each checked.
fn read(worker: &mut Worker, snap: usize, size: usize) -> Yielded {
    let mut yielded = Yielded::default();
    while let Some(batch) = worker.next_batch(Duration::from_millis(50)).unwrap() {
        for record in batch {
            let egress = record.header().flags & flags::EGRESS != 0;
            let wire = record.wire_len() as usize;
            assert_eq!(wire, if egress { NUMBERED } else { size });
            let kept = if snap == 0 { wire } else { snap.min(wire) };
            assert_eq!(record.data().len(), kept);
            assert_eq!(record.is_snapped(), kept < wire);
            if kept >= NUMBERED {
                let number = number_of(&record).expect("a packet that nobody sent");
                assert!(yielded.numbers[usize::from(egress)].insert(number), "{number} twice at one worker");
            }
            yielded.records += 1;
            yielded.bytes += wire as u64;
        }
    }
    yielded
}

/// Transmits numbered datagrams of `NUMBERED` bytes through the receiver's own stack.
fn answer(lab: &Lab, packets: u64) {
    let (from, to) = (lab.receiver(), lab.sender());
    // A closed port would answer with an ICMP error.
    let sink = lab.enter(&to.namespace, || UdpSocket::bind((to.address, 9)).unwrap()).unwrap();
    lab.enter(&from.namespace, || {
        let socket = UdpSocket::bind((from.address, 0)).unwrap();
        for number in 0..packets {
            let payload = [b"WLn1".as_slice(), &number.to_be_bytes()].concat();
            socket.send_to(&payload, (to.address, 9)).unwrap();
        }
    })
    .unwrap();
    drop(sink);
}

/// Number of packets that a group must see.
fn expected(group: &Group, case: &Case) -> u64 {
    let packets = match group.direction {
        Direction::Rx => case.packets,
        Direction::Tx => case.answers,
        Direction::Auto | Direction::Both => case.packets + case.answers,
    };
    if group.steering == Steering::Copy { packets * group.workers as u64 } else { packets }
}

/// Runs a case; returns how many packets were lost or shed in it, over all groups.
fn run(lab: &Lab, case: &Case) -> u64 {
    let mut captures: Vec<Capture> = case.groups.iter().map(|group| open(lab, group)).collect();
    let all: Vec<Vec<Worker>> = captures.iter_mut().map(Capture::workers).collect();
    let lazy = case.groups.iter().filter(|group| group.lazy).map(|group| group.workers).sum::<usize>();
    let over = Barrier::new(lazy + 1);
    let yielded: Vec<Vec<Yielded>> = std::thread::scope(|scope| {
        let over = &over;
        let mut threads = Vec::new();
        for (workers, group) in all.into_iter().zip(&case.groups) {
            let readers: Vec<_> = workers
                .into_iter()
                .map(|mut worker| {
                    scope.spawn(move || {
                        if group.lazy {
                            over.wait();
                        }
                        read(&mut worker, group.snap, case.size)
                    })
                })
                .collect();
            threads.push(readers);
        }
        send(lab, case.packets, &["--size", &case.size.to_string()]).unwrap();
        answer(lab, case.answers);
        let deadline = Instant::now() + LIMIT;
        for (capture, group) in captures.iter().zip(&case.groups) {
            while capture.ledger().unwrap().total.seen < expected(group, case) {
                assert!(Instant::now() < deadline, "not all seen: {:?}", capture.ledger().unwrap().total);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        over.wait();
        captures.iter().for_each(|capture| capture.stop().unwrap());
        threads
            .into_iter()
            .map(|readers| readers.into_iter().map(|reader| reader.join().unwrap()).collect())
            .collect()
    });
    let mut refused = 0;
    for ((capture, group), yielded) in captures.into_iter().zip(&case.groups).zip(&yielded) {
        let ledger = capture.close().unwrap();
        let total = &ledger.total;
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(total.seen, expected(group, case));
        assert_eq!((total.filtered, total.absorbed, total.in_flight), (0, 0, 0));
        assert_eq!(total.analysed + total.lost + total.shed, total.seen);
        assert!(group.shed || total.shed == 0);
        for (line, yielded) in ledger.workers.iter().zip(yielded) {
            let counted = (line.counters.analysed, line.counters.bytes);
            assert_eq!(counted, (yielded.records, yielded.bytes), "worker {}", line.worker);
        }
        for (egress, sent) in [(false, case.packets), (true, case.answers)] {
            let of = yielded.iter().map(|yielded| &yielded.numbers[usize::from(egress)]);
            let count: usize = of.clone().map(BTreeSet::len).sum();
            let numbers: BTreeSet<u64> = of.flatten().copied().collect();
            assert!(numbers.iter().all(|number| *number < sent), "a number that was not sent");
            assert!(group.steering == Steering::Copy || numbers.len() == count, "a number at two workers");
        }
        refused += total.lost + total.shed;
    }
    refused
}

/// Battery: L1
#[test]
fn every_packet_is_in_one_place_whatever_is_asked_for() {
    if !require_root("every_packet_is_in_one_place_whatever_is_asked_for") {
        return;
    }
    let of_environment = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seconds = Duration::from_secs(of_environment("WIRELANE_MATRIX_SECONDS").unwrap_or(20));
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut seed = of_environment("WIRELANE_SEED").unwrap_or(clock) | 1;
    let tcx = kernel_version().unwrap() >= (6, 6);
    let labs = [1, 4].map(|queues| {
        let lab = Lab::with(&LabOptions { queues, mtu: MTU, ..LabOptions::default() }).unwrap();
        if queues > 1 {
            spread_by_hash(&lab, queues).unwrap();
        }
        lab
    });
    let start = Instant::now();
    let (mut cases, mut with_loss) = (0, 0);
    while cases == 0 || start.elapsed() < seconds {
        let mut random = Random(seed);
        let case = Case::draw(&mut random, tcx);
        let lab = &labs[random.below(labs.len())];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(lab, &case)));
        match outcome {
            Ok(refused) => with_loss += u64::from(refused > 0),
            Err(panic) => {
                println!("WIRELANE_SEED={seed} begins with it: {case:#?}");
                std::panic::resume_unwind(panic);
            }
        }
        cases += 1;
        seed = random.next() << 16 | random.next() | 1;
    }
    println!("{cases} cases, {with_loss} of them with packets that were lost or shed");
}
