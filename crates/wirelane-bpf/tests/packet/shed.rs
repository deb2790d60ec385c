//! Decisions of congestion control, by the native function over one ring.

use wirelane_bpf::shed::{IDLE, OneRing, WAYS};

const LOW: u64 = 500_000;
const HIGH: u64 = 900_000;

/// A ring, its unread bytes, and a clock.
struct Ring {
    shed: OneRing,
    head: u64,
    tail: u64,
    tick: u32,
}

impl Ring {
    fn new(sets: usize) -> Ring {
        Ring { shed: OneRing::new(LOW, HIGH, sets), head: 0, tail: 0, tick: 0 }
    }

    /// Whether a packet of the flow is admitted at so many unread bytes. No bytes come or go.
    fn admits(&mut self, flow: u32, unread: u64) -> bool {
        self.tail = self.head.wrapping_sub(unread);
        !self.shed.refuses(flow, self.tick, self.head, self.tail)
    }
}

#[test]
fn new_flows_are_refused_first_and_for_their_life() {
    let mut ring = Ring::new(1024);
    assert!(ring.admits(1, 0) && ring.admits(2, LOW - 1));
    assert!(!ring.admits(3, LOW));
    assert!(ring.admits(1, LOW) && ring.admits(2, (LOW + HIGH) / 2 - 1), "admitted flows stay");
    assert!(!ring.admits(3, 0), "a refused flow stays refused");
    assert!(ring.admits(4, 0), "a new flow is admitted once there is space");
    for flow in [1, 2, 4] {
        assert!(!ring.admits(flow, HIGH), "all are given up at the high watermark");
        assert!(!ring.admits(flow, 0), "and stay refused");
    }
}

#[test]
fn flows_are_given_up_from_the_middle_on_by_their_hash() {
    let mut ring = Ring::new(1 << 16);
    let flows: Vec<u32> = (0..256).map(|part| part << 24 | part).collect();
    assert!(flows.iter().all(|flow| ring.admits(*flow, 0)));
    // Without an excess, only the second half of the way gives flows up.
    let (middle, last) = ((LOW + HIGH) / 2, (LOW + HIGH) / 4 + HIGH / 2);
    assert!(flows.iter().all(|flow| ring.admits(*flow, middle) && ring.admits(*flow, last)));
    let half = last.midpoint(HIGH);
    let kept: Vec<u32> = flows.iter().copied().filter(|flow| ring.admits(*flow, half)).collect();
    assert_eq!(kept, flows[128..]);
}

#[test]
fn a_flow_that_was_idle_is_new() {
    let mut ring = Ring::new(1024);
    assert!(ring.admits(1, 0));
    ring.tick = IDLE - 1;
    assert!(ring.admits(1, LOW), "it was not idle for long enough");
    ring.tick += IDLE;
    assert!(!ring.admits(1, LOW), "a new flow is refused");
}

#[test]
fn refusals_lapse_when_congestion_is_over() {
    let mut ring = Ring::new(1024);
    assert!(!ring.admits(1, LOW));
    for _ in 0..3 {
        ring.tick += IDLE / 2;
        assert!(!ring.admits(2, LOW), "another flow is refused");
        assert!(!ring.admits(1, 0), "so the first one stays refused, however long it lasts");
        if ring.tick > IDLE {
            break;
        }
    }
    ring.tick += IDLE - 1;
    assert!(!ring.admits(1, 0));
    ring.tick += 1;
    assert!(ring.admits(1, 0), "nothing was refused for the idle time");
}

/// Ticks have 30 bits, and lanes may be a tick apart.
#[test]
fn clocks_wrap_and_differ() {
    let mut ring = Ring::new(1024);
    ring.tick = (1 << 30) - 2;
    assert!(ring.admits(1, 0) && !ring.admits(2, LOW));
    for tick in [(1 << 30) - 1, 1 << 30, (1 << 30) + 5, (1 << 30) + 4, (1 << 30) - 1] {
        ring.tick = tick;
        assert!(ring.admits(1, LOW) && !ring.admits(2, 0), "{tick}");
    }
}

#[test]
fn a_full_set_forgets_refused_flows_before_admitted_ones() {
    let mut ring = Ring::new(1);
    let ways = WAYS as u32;
    for flow in 1..ways {
        assert!(ring.admits(flow, 0));
    }
    ring.tick = 3;
    assert!(!ring.admits(100, LOW));
    // Each takes the place of the refused flow before.
    for flow in 101..120 {
        assert!(!ring.admits(flow, LOW));
    }
    assert!((1..ways).all(|flow| ring.admits(flow, LOW)), "admitted flows are still known");
    ring.tick = 4;
    assert!((2..ways).all(|flow| ring.admits(flow, LOW)));
    ring.tick = 400;
    assert!((2..ways).all(|flow| ring.admits(flow, LOW)) && !ring.admits(119, 0));
    assert!(ring.admits(200, 0), "in place of the flow that was idle longest");
    assert!(!ring.admits(1, LOW), "that one is new now");
}

/// The tail is memory of user space: whatever it is, the decision is one of both, and the group's own.
#[test]
fn any_tail_is_survived() {
    let mut ring = Ring::new(16);
    let mut random = 1_u64;
    for flow in 0..100_000 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ring.tick = ring.tick.wrapping_add(random as u32 & 0xff);
        ring.head = ring.head.wrapping_add(random >> 50);
        ring.shed.refuses(flow % 64, ring.tick, ring.head, random);
    }
}

/// Flows of 10,000 packets, 512 at once, of which a worker can analyse two fifths, in batches of 128 KiB.
#[test]
fn long_flows_begin_only_where_they_can_end() {
    const RECORD: u64 = 104;
    const BATCH: u64 = (128 << 10) / RECORD * RECORD;
    const LENGTH: u32 = 10_000;
    let mut ring =
        Ring { shed: OneRing::new(1 << 19, 9 * (1 << 20) / 10, 1 << 12), head: 0, tail: 0, tick: 0 };
    // Hash, packets so far, analysed ones.
    let mut flows: Vec<(u32, u32, u32)> =
        (0..512).map(|at: u32| (at.wrapping_mul(0x9e37_79b9), at * LENGTH / 512, 0)).collect();
    let (mut next, mut done, mut idle) = (512_u32, 0_u64, 0_u64);
    let (mut whole, mut cut, mut gaps) = (0, 0, 0);
    let sent = 20_000_000_u64;
    for packet in 0..sent {
        // The batch at hand is returned when all of it has been analysed.
        if packet % 5 < 2 {
            if done < BATCH && ring.head - ring.tail > done {
                done += RECORD;
            } else {
                idle += 1;
            }
            if done == BATCH || ring.head - ring.tail == done {
                ring.tail += done;
                done = 0;
            }
        }
        let flow = &mut flows[(packet % 512) as usize];
        let first = flow.1 == flow.2;
        if !ring.shed.refuses(flow.0, (packet >> 18) as u32, ring.head, ring.tail) {
            ring.head += RECORD;
            gaps += u64::from(!first && packet > sent / 2 && flow.1 != 0);
            flow.2 += 1;
        }
        flow.1 += 1;
        if flow.1 == LENGTH {
            if packet > sent / 2 {
                whole += u64::from(flow.2 == LENGTH);
                cut += u64::from(flow.2 > 0 && flow.2 < LENGTH);
            }
            *flow = (next.wrapping_mul(0x9e37_79b9), 0, 0);
            next += 1;
        }
    }
    assert_eq!(gaps, 0);
    assert!(whole > 300 && cut * 100 <= whole, "{whole} whole, {cut} cut");
    assert!(idle * 100 <= sent * 2 / 5 * 3, "the worker had nothing to do for {idle} packets");
}
