use super::*;

/// Difference of UTC and the monotonic clock in these tests.
const UTC: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;

/// A merge for which the test makes the looks.
struct Bench {
    merge: Merge,
    now: u64,
}

impl Bench {
    fn new(sockets: usize) -> Bench {
        Bench { merge: Merge::new(sockets), now: 1_000 * MS }
    }

    /// A look, `after` nanoseconds after the last one: the sockets in `opened` have new blocks with these timestamps,
    /// in nanoseconds from UTC on, and those in `quiet` have no packet.
    fn look(&mut self, after: u64, opened: &[(usize, &[u64])], quiet: &[usize]) {
        self.now += after;
        self.merge.looked(self.now, UTC + self.now);
        for (socket, stamps) in opened {
            self.merge.opened(*socket, UTC + stamps[0]);
        }
        quiet.iter().for_each(|socket| self.merge.quiet(*socket));
    }

    /// The socket that may be read, and which of these timestamps are in the run.
    fn run(&self, stamps: &[u64]) -> Option<(usize, Vec<u64>)> {
        let Next::Run(run) = self.merge.next() else { return None };
        Some((run.socket, stamps.iter().copied().filter(|stamp| run.has(UTC + stamp)).collect()))
    }

    fn took(&mut self, socket: usize, last: u64, head: Option<u64>) {
        self.merge.took(UTC + last);
        self.merge.goes_on(socket, head.map(|head| UTC + head));
    }

    fn is_held(&self) -> bool {
        matches!(self.merge.next(), Next::Held(_))
    }
}

#[test]
fn a_run_ends_before_the_first_packet_of_another_socket() {
    let mut bench = Bench::new(3);
    bench.look(MS, &[(0, &[10, 20, 30]), (1, &[20, 25]), (2, &[40])], &[]);
    assert_eq!(bench.run(&[10, 20, 30]), Some((0, vec![10, 20])));
    bench.took(0, 20, Some(30));
    assert_eq!(bench.run(&[20, 25]), Some((1, vec![20, 25])));
    bench.took(1, 25, None);
    // The second socket has no block any more, and may have a packet.
    assert!(bench.is_held());
    bench.look(MS, &[], &[]);
    assert!(bench.is_held());
    bench.look(MS, &[(1, &[29, 50])], &[]);
    assert_eq!(bench.run(&[29, 50]), Some((1, vec![29])));
    bench.took(1, 29, Some(50));
    assert_eq!(bench.run(&[30]), Some((0, vec![30])));
    assert_eq!(bench.merge.late(), 0);
}

#[test]
fn a_block_waits_for_the_sockets_that_had_a_packet_when_it_was_seen() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.merge.next(), Next::Nothing);
    // No socket has a packet; then one comes for each, and the first socket's block is handed over.
    bench.look(MS, &[], &[0, 1]);
    bench.look(MS, &[(0, &[100])], &[]);
    assert!(bench.is_held(), "the other one was without a packet before, and not since");
    bench.look(ns(STORE) / 2, &[], &[1]);
    assert_eq!(bench.run(&[100]).is_some(), STORE.is_zero());
    bench.look(MS, &[], &[1]);
    assert_eq!(bench.run(&[100]), Some((0, vec![100])));
    bench.took(0, 100, None);
    assert_eq!(bench.merge.next(), Next::Nothing);
    // The socket was seen without a packet in the look that has seen the block: nothing is held back.
    bench.look(MS, &[(0, &[200])], &[1]);
    bench.look(ns(STORE), &[], &[1]);
    assert_eq!(bench.run(&[200]), Some((0, vec![200])));
}

#[test]
fn a_block_that_is_not_handed_over_holds_others_back_for_a_second() {
    let mut bench = Bench::new(2);
    bench.look(MS, &[(0, &[100])], &[]);
    bench.look(999 * MS, &[], &[]);
    assert_eq!(bench.merge.next(), Next::Held(Duration::from_millis(1)));
    bench.look(MS, &[], &[]);
    assert_eq!(bench.run(&[100]), Some((0, vec![100])));
    bench.took(0, 100, None);
    // Packets that the socket hands over afterwards are late.
    bench.look(MS, &[(1, &[50, 99, 100, 101])], &[0]);
    for (last, head) in [(50, Some(99)), (99, Some(100)), (100, Some(101)), (101, None)] {
        bench.took(1, last, head);
    }
    assert_eq!(bench.merge.late(), 2);
}

#[test]
fn packets_that_were_stamped_early_are_waited_for() {
    let mut bench = Bench::new(2);
    bench.now += MS;
    bench.merge.looked(bench.now, UTC + bench.now);
    bench.merge.opened(0, UTC + 100);
    bench.merge.loosen();
    bench.merge.quiet(1);
    assert_eq!(bench.merge.next(), Next::Held(LOOSE));
    bench.look(ns(LOOSE) - MS, &[], &[1]);
    assert_eq!(bench.merge.next(), Next::Held(Duration::from_nanos(MS)));
    bench.look(MS, &[], &[1]);
    assert_eq!(bench.run(&[100]), Some((0, vec![100])));
    bench.took(0, 100, None);
    // No process requests early timestamps any more.
    bench.look(ns(LOOSE_FOR), &[(0, &[200])], &[1]);
    bench.look(ns(STORE), &[], &[1]);
    assert_eq!(bench.run(&[200]), Some((0, vec![200])));
}

#[test]
fn packets_from_before_utc_was_set_back_come_first_and_later_ones_are_not_late() {
    let mut bench = Bench::new(2);
    bench.look(MS, &[(0, &[500 * MS])], &[1]);
    bench.look(ns(STORE), &[], &[1]);
    bench.took(0, 500 * MS, None);
    // UTC is set back by an hour while both have packets.
    let hour = 3_600_000 * MS;
    bench.now += MS;
    bench.merge.looked(bench.now, UTC + bench.now - hour);
    bench.merge.opened(0, UTC + 600 * MS);
    bench.merge.opened(1, UTC + 601 * MS - hour);
    let Next::Run(run) = bench.merge.next() else { panic!("{:?}", bench.merge.next()) };
    assert_eq!((run.socket, run.has(UTC + 600 * MS)), (0, true));
    bench.took(0, 600 * MS, None);
    bench.now += MS;
    bench.merge.looked(bench.now, UTC + bench.now - hour);
    bench.merge.opened(0, UTC + 602 * MS - hour);
    let Next::Run(run) = bench.merge.next() else { panic!("{:?}", bench.merge.next()) };
    assert_eq!((run.socket, run.has(UTC + 601 * MS - hour), run.has(UTC + 602 * MS - hour)), (1, true, true));
    assert_eq!(bench.merge.late(), 0);
}

#[test]
fn any_blocks_come_in_order() {
    // Deterministic: a generator of its own.
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for sockets in 2..6 {
        let mut bench = Bench::new(sockets);
        // Timestamps in the kernel's block and in the open block of each socket.
        let mut filling: Vec<Vec<u64>> = vec![Vec::new(); sockets];
        let mut open: Vec<Vec<u64>> = vec![Vec::new(); sockets];
        let (mut time, mut sent, mut got, mut latest) = (0u64, 0, 0, 0);
        for turn in 0..20_000 {
            time += 1 + random(3);
            if turn < 15_000 && random(3) > 0 {
                // Some sockets have few packets.
                let socket = random(sockets as u64).min(random(sockets as u64)) as usize;
                filling[socket].push(time);
                sent += 1;
            }
            // Blocks are handed over at any time.
            let (mut opened, mut quiet): (Vec<(usize, Vec<u64>)>, Vec<usize>) = Default::default();
            for socket in 0..sockets {
                if open[socket].is_empty() && random(8) == 0 {
                    open[socket] = std::mem::take(&mut filling[socket]);
                    if !open[socket].is_empty() {
                        opened.push((socket, open[socket].clone()));
                    }
                }
                if open[socket].is_empty() && filling[socket].is_empty() {
                    quiet.push(socket);
                }
            }
            let opened: Vec<_> = opened.iter().map(|(socket, stamps)| (*socket, &stamps[..])).collect();
            bench.look(ns(STORE), &opened, &quiet);
            while let Next::Run(run) = bench.merge.next() {
                let block = &mut open[run.socket];
                let count = block.iter().take_while(|stamp| run.has(UTC + **stamp)).count().min(3);
                let taken: Vec<u64> = block.drain(..count).collect();
                for stamp in &taken {
                    assert!(latest <= *stamp, "{stamp} came after {latest}");
                    latest = *stamp;
                    bench.took(run.socket, latest, None);
                }
                got += taken.len();
                let head = open[run.socket].first().map(|head| UTC + head);
                bench.merge.goes_on(run.socket, head);
            }
        }
        assert_eq!((got, bench.merge.late()), (sent, 0), "{sockets} sockets");
    }
}
