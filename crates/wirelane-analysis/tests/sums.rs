//! No packet is lost or in two flows for any input: clocks that jump, floods, full caches.

use proptest::prelude::*;
use wirelane::Ip;
use wirelane_analysis::flows::{
    CacheSettings, EndReason, FlowCache, FlowPacket, FlowRecord, LEAST_MEMORY, Timeouts, Totals,
};

fn ip(from: u32, to: u32, port: u16, flags: u8) -> Ip {
    let mut ip = Ip {
        l3: 4,
        proto: 6,
        ttl: 64,
        l3_off: 14,
        payload_off: 54,
        l3_len: 60,
        flags: 0x0c,
        tcp_flags: flags,
        src_port: port.to_be(),
        dst_port: 80u16.to_be(),
        ..Ip::default()
    };
    ip.src[..4].copy_from_slice(&from.to_be_bytes());
    ip.dst[..4].copy_from_slice(&to.to_be_bytes());
    ip
}

fn packet(ts_ns: u64) -> FlowPacket {
    FlowPacket { ts_ns, wire_len: 74, ..FlowPacket::default() }
}

/// All flows that a cache hands out until it is empty; their sums are its own totals.
fn ended(cache: &mut FlowCache) -> Vec<FlowRecord> {
    let mut all = std::mem::take(cache.finished());
    while cache.flush() {
        assert_eq!(cache.finished().len(), 256, "flows are handed out in steps");
        all.append(cache.finished());
    }
    all.append(cache.finished());
    assert!(cache.is_empty());
    assert_eq!(added_up(&all), *cache.totals());
    all
}

fn added_up(records: &[FlowRecord]) -> Totals {
    records.iter().fold(Totals::default(), |mut totals, record| {
        totals += record;
        totals
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_packet_is_in_one_flow(
        packets in prop::collection::vec((0..40u32, 0..40u32, 0..3u16, any::<u8>(), prop_oneof![0..30_000_000_000u64, any::<u64>()], 0..20u8), 0..3000),
        biflow: bool,
    ) {
        let mut cache = FlowCache::new(CacheSettings { memory: 0, biflow, ..CacheSettings::default() });
        for (from, to, port, flags, ts_ns, tick) in &packets {
            cache.packet(&ip(*from, *to, *port, *flags), &packet(*ts_ns));
            if *tick == 0 {
                let _ = cache.tick(ts_ns.rotate_left(3));
            }
            prop_assert!(cache.len() <= cache.capacity());
        }
        let totals = added_up(&ended(&mut cache));
        prop_assert_eq!(totals.packets, packets.len() as u64);
        prop_assert_eq!(totals.bytes, 60 * packets.len() as u64);
        prop_assert_eq!(totals.wire_bytes, 74 * packets.len() as u64);
        prop_assert_eq!(totals.by_reason.iter().sum::<u64>(), totals.flows);
    }
}

/// Memory stays within the limit under four times as many flows as fit; flows with traffic stay whole.
/// Battery: L6
#[test]
fn a_flood_of_new_flows_costs_only_itself() {
    // Some of these sizes nearly fill a hash table, whose number of buckets is a power of two.
    for part in 8..=32 {
        flood(LEAST_MEMORY / 4 * part);
    }
}

fn flood(memory: usize) {
    let settings = CacheSettings { memory, ..CacheSettings::default() };
    let mut cache = FlowCache::new(settings);
    assert!(cache.memory() <= settings.memory, "{} of {}", cache.memory(), settings.memory);
    let flood = cache.capacity() as u32 * 4;
    let mut sent = 0;
    for n in 0..flood {
        // Ten flows of which each has a packet for every hundred of the flood.
        if n % 10 == 0 {
            cache.packet(&ip(1, 2, (n / 10 % 10) as u16, 0x10), &packet(u64::from(n) * 1000));
            sent += 1;
        }
        cache.packet(&ip(0x0a00_0000 + n, 2, 1, 0x02), &packet(u64::from(n) * 1000));
        sent += 1;
    }
    assert!(cache.memory() <= settings.memory, "{} of {}", cache.memory(), settings.memory);
    let all = ended(&mut cache);
    let totals = added_up(&all);
    assert_eq!(totals.packets, sent);
    let evicted = totals.by_reason[EndReason::Resources as usize];
    assert_eq!(evicted, u64::from(flood) + 10 - cache.capacity() as u64);
    let heavy: Vec<_> = all.iter().filter(|record| record.key.src[..4] == [0, 0, 0, 1]).collect();
    assert_eq!(heavy.len(), 10, "each is one flow from the beginning to the end");
    assert!(heavy.iter().all(|record| record.reason == EndReason::Forced));
    assert_eq!(heavy.iter().map(|record| record.flow.packets).sum::<u64>(), sent - u64::from(flood));
}

/// A connection with `--biflow`: one flow in the direction of the sender of the SYN, whichever was seen first.
#[test]
fn both_directions_are_one_flow_from_the_initiator_on() {
    let timeouts = Timeouts { active_ns: u64::MAX, idle_ns: 15_000_000_000, ended_ns: 1 };
    for answer_first in [false, true] {
        let mut cache = FlowCache::new(CacheSettings { timeouts, biflow: true, ..CacheSettings::default() });
        let (ms, mut at) = (1_000_000, 0);
        let mut step = |cache: &mut FlowCache, ip: Ip| {
            at += ms;
            cache.packet(&ip, &packet(at));
        };
        let there = |flags| ip(1, 2, 1000, flags);
        let back = |flags| {
            let there = ip(1, 2, 1000, flags);
            Ip { src: there.dst, dst: there.src, src_port: there.dst_port, dst_port: there.src_port, ..there }
        };
        let (first, second) =
            if answer_first { (back(0x12), there(0x02)) } else { (there(0x02), back(0x12)) };
        step(&mut cache, first);
        step(&mut cache, second);
        step(&mut cache, there(0x10));
        step(&mut cache, back(0x18));
        step(&mut cache, there(0x11));
        assert_eq!(cache.len(), 2, "a direction that has closed waits for the other");
        step(&mut cache, back(0x11));
        assert!(!cache.tick(at + ms));
        assert!(cache.is_empty());
        let [record] = cache.finished()[..] else { panic!("{:?}", cache.finished()) };
        assert_eq!(record.key.src[3], 1);
        assert_eq!((record.flow.packets, record.reverse.unwrap().packets), (3, 3));
        assert_eq!(record.reason, EndReason::Ended);
        assert_eq!((record.first_ns(), record.last_ns()), (ms, 6 * ms));
        assert_eq!(record.rtt_ns(), Some(if answer_first { ms } else { 2 * ms }));
    }
}

/// In a live capture without packets, flows still end in time. A clock that is set back ends flows with future times.
/// Battery: F7
#[test]
fn silence_and_clocks_that_are_set_back_end_flows() {
    let second = 1_000_000_000;
    let mut cache = FlowCache::new(CacheSettings::default());
    cache.packet(&ip(1, 2, 3, 0x10), &packet(1000 * second));
    assert!(!cache.tick(1015 * second));
    assert_eq!(cache.len(), 1);
    assert!(!cache.tick(1015 * second + 1));
    assert_eq!(cache.finished().pop().unwrap().reason, EndReason::Idle);
    for n in 0..120 {
        cache.packet(&ip(1, 2, 3, 0x10), &packet((2000 + n) * second));
    }
    // 0 to 59 s belong to the first flow: at the next step, 59.5 s, it is 60 s old within a second.
    assert_eq!(
        cache.finished().pop().map(|record| (record.reason, record.flow.packets)),
        Some((EndReason::Active, 60))
    );
    assert!(!cache.tick(1000 * second));
    assert_eq!(cache.finished().pop().map(|record| record.flow.packets), Some(60));
    cache.packet(&ip(1, 2, 3, 0x04), &packet(1000 * second));
    assert!(!cache.tick(1002 * second + 1));
    assert_eq!(cache.finished().pop().map(|record| record.reason), Some(EndReason::Ended));
}

/// An advance of the time ends at most as many flows as may wait, whether they are idle or have future times.
#[test]
fn flows_that_are_due_at_once_are_handed_out_in_steps() {
    let second = 1_000_000_000;
    for now_ns in [1100 * second, 900 * second] {
        let mut cache = FlowCache::new(CacheSettings::default());
        for n in 0..1000 {
            cache.packet(&ip(n, 2, 3, 0x10), &packet(1000 * second));
        }
        let mut steps = Vec::new();
        while cache.tick(now_ns) {
            steps.push(cache.finished().drain(..).count());
        }
        steps.push(cache.finished().len());
        assert_eq!(steps, [256, 256, 256, 232]);
        assert!(cache.is_empty());
    }
}
