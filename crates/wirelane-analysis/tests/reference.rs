//! Flows against a reference that stores every packet and computes sums at the end, written independently of the code
//! under test. Times only advance here; for others see `sums.rs`.

use std::collections::HashMap;

use proptest::prelude::*;
use wirelane::Ip;
use wirelane_analysis::flows::{
    Busiest, CacheSettings, EndReason, Flow, FlowCache, FlowKey, FlowPacket, FlowRecord, Timeouts,
};
use wirelane_bpf::flow_cache::{FirstLevel, FlowPart};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const SECOND: u64 = 1_000_000_000;
const TIMEOUTS: Timeouts = Timeouts { active_ns: 60 * SECOND, idle_ns: 15 * SECOND, ended_ns: 2 * SECOND };

/// A generated packet.
#[derive(Clone, Debug)]
struct Made {
    gap_ns: u64,
    from: u8,
    to: u8,
    source: u16,
    destination: u16,
    proto: u8,
    flags: u8,
    seq: u32,
    payload: u16,
    ttl: u8,
    vlan: Option<u16>,
    fragment: bool,
    label: Option<u32>,
    application: u8,
}

impl Made {
    fn ip(&self) -> Ip {
        let tcp = self.proto == 6;
        let ports = matches!(self.proto, 6 | 17);
        let headers = 20 + if tcp { 20 } else { 8 };
        let mut ip = Ip {
            l3: 4,
            proto: self.proto,
            ttl: self.ttl,
            tos: self.ttl / 2,
            l3_off: 14,
            l4_off: 34,
            payload_off: 14 + headers,
            l3_len: u32::from(headers) + u32::from(self.payload),
            flags: if tcp {
                0x08 | 0x04
            } else if ports {
                0x04
            } else {
                0
            },
            ..Ip::default()
        };
        (ip.src[3], ip.dst[3]) = (self.from, self.to);
        if ports {
            (ip.src_port, ip.dst_port) = (self.source.to_be(), self.destination.to_be());
        }
        if tcp {
            (ip.tcp_flags, ip.tcp_seq) = (self.flags, self.seq);
        }
        if self.proto == 1 {
            (ip.icmp_type, ip.icmp_code) = (self.flags & 8, self.flags & 1);
            ip.flags |= 0x10;
        }
        if self.fragment {
            ip.flags |= 0x01;
        }
        ip
    }

    fn packet(&self, ts_ns: u64) -> FlowPacket {
        FlowPacket {
            ts_ns,
            wire_len: self.ip().l3_len + 18,
            flags: if self.vlan.is_some() { 0x10 } else { 0 } | if self.label.is_some() { 0x20 } else { 0 },
            vlan_tci: self.vlan.unwrap_or(0),
            mpls_label: self.label.unwrap_or(0),
            queue: self.ttl.into(),
            application: self.application,
            ..FlowPacket::default()
        }
    }
}

fn made() -> impl Strategy<Value = Made> {
    let gap = prop_oneof![
        8 => 0..2_000_000u64,
        4 => 0..10_000_000u64,
        2 => 0..3 * SECOND,
        1 => Just(15 * SECOND),
        1 => 14 * SECOND..20 * SECOND,
    ];
    let flags = prop_oneof![
        6 => Just(ACK), 1 => Just(SYN), 1 => Just(SYN | ACK), 1 => Just(FIN | ACK), 1 => Just(RST), 1 => any::<u8>(),
    ];
    let seq = prop_oneof![6 => 0..40u32, 1 => u32::MAX - 40..=u32::MAX, 1 => any::<u32>()];
    let ends = (0..3u8, 0..3u8, 0..2u16, 0..2u16);
    let proto = prop_oneof![5 => Just(6u8), 2 => Just(17u8), 1 => Just(1u8), 1 => Just(50u8)];
    let application = prop_oneof![4 => Just(0u8), 1 => 1..4u8];
    let odd = (1..4u8, prop::option::weighted(0.1, 0..2u16), prop::bool::weighted(0.1), application);
    (gap, ends, proto, flags, seq, 0..40u16, odd, prop::option::weighted(0.1, 0..9u32)).prop_map(
        |(
            gap_ns,
            (from, to, source, destination),
            proto,
            flags,
            seq,
            payload,
            (ttl, vlan, fragment, application),
            label,
        )| Made {
            gap_ns,
            from,
            to,
            source,
            destination,
            proto,
            flags,
            seq,
            payload,
            ttl,
            vlan,
            fragment,
            label,
            application,
        },
    )
}

/// The reference: a list of packets for each key, cut by its own implementation of the rules.
#[derive(Default)]
struct Reference {
    open: HashMap<FlowKey, Packets>,
    done: Vec<(FlowKey, Packets, EndReason)>,
}

/// Packets with their times.
type Packets = Vec<(u64, Made)>;

fn has_ended(packets: &[(u64, Made)]) -> bool {
    packets.iter().any(|(_, made)| made.proto == 6 && made.flags & (FIN | RST) != 0)
}

/// Time and reason of the end of this flow if no further packets arrive.
fn over(packets: &[(u64, Made)], active_ns: u64) -> (u64, EndReason) {
    let (first, last) = (packets[0].0, packets[packets.len() - 1].0);
    let quiet = match has_ended(packets) {
        true => (last + 2 * SECOND, EndReason::Ended),
        false => (last + 15 * SECOND, EndReason::Idle),
    };
    let old = old_at(first, active_ns);
    if old < quiet.0 { (old, EndReason::Active) } else { quiet }
}

/// Last nanosecond before a flow reaches the active timeout, counted in steps of time that are a power of two and at
/// most a 32nd of it.
fn old_at(first: u64, active_ns: u64) -> u64 {
    let mut step = 1u128;
    while step * 2 <= u128::from(active_ns) / 32 {
        step *= 2;
    }
    let line = (u128::from(first) / step + u128::from(active_ns).div_ceil(step)) * step;
    u64::try_from(line - 1).unwrap_or(u64::MAX)
}

impl Reference {
    fn packet(&mut self, ts_ns: u64, made: &Made, active_ns: u64) {
        let key = FlowKey {
            src: made.ip().src,
            dst: made.ip().dst,
            src_port: made.ip().src_port,
            dst_port: match made.proto {
                1 => u16::from_ne_bytes([made.flags & 8, made.flags & 1]),
                _ => made.ip().dst_port,
            },
            l3: 4,
            proto: made.proto,
            vlan: made.vlan.unwrap_or(0xffff),
            ..FlowKey::default()
        };
        if let Some(packets) = self.open.get(&key) {
            let (at, mut why) = over(packets, active_ns);
            let anew = has_ended(packets) && made.proto == 6 && made.flags & SYN != 0;
            if ts_ns > at || anew {
                if ts_ns <= at {
                    why = EndReason::Ended;
                }
                let packets = self.open.remove(&key).unwrap_or_default();
                self.done.push((key, packets, why));
            }
        }
        self.open.entry(key).or_default().push((ts_ns, made.clone()));
    }

    fn records(mut self, now_ns: u64, active_ns: u64) -> Vec<FlowRecord> {
        for (key, packets) in self.open.drain() {
            let (at, why) = over(&packets, active_ns);
            self.done.push((key, packets, if now_ns > at { why } else { EndReason::Forced }));
        }
        self.done
            .iter()
            .map(|(key, packets, reason)| FlowRecord {
                key: *key,
                flow: added_up(packets),
                reverse: None,
                reason: *reason,
            })
            .collect()
    }
}

/// Flow statistics, computed by a scan of all packets for each field.
fn added_up(packets: &[(u64, Made)]) -> Flow {
    let ips: Vec<Ip> = packets.iter().map(|(_, made)| made.ip()).collect();
    let lengths = || ips.iter().map(|ip| ip.l3_len);
    let ttls = || ips.iter().map(|ip| ip.ttl);
    let tcp = packets[0].1.proto == 6;
    let mut flow = Flow {
        packets: packets.len() as u64,
        bytes: lengths().map(u64::from).sum(),
        wire_bytes: lengths().map(|length| u64::from(length) + 18).sum(),
        first_ns: packets[0].0,
        last_ns: packets[packets.len() - 1].0,
        min_length: lengths().min().unwrap(),
        max_length: lengths().max().unwrap(),
        min_ttl: ttls().min().unwrap(),
        max_ttl: ttls().max().unwrap(),
        tos: ips[0].tos,
        queue: packets[0].1.ttl.into(),
        fragments: packets.iter().filter(|(_, made)| made.fragment).count() as u32,
        flags: 0x40,
        ..Flow::default()
    };
    flow.application =
        packets.iter().map(|(_, made)| made.application).find(|known| *known != 0).unwrap_or(0);
    if let Some(label) = packets.iter().find_map(|(_, made)| made.label) {
        (flow.flags, flow.mpls_label) = (flow.flags | 0x20, label);
    }
    if !tcp {
        return flow;
    }
    flow.flags |= 0x08;
    flow.first_seq = packets[0].1.seq;
    flow.last_seq = packets[packets.len() - 1].1.seq;
    flow.first_tcp_flags = packets[0].1.flags;
    flow.tcp_flags = packets.iter().fold(0, |all, (_, made)| all | made.flags);
    let acks = |made: &Made| made.flags & ACK != 0 && made.flags & (SYN | RST) == 0;
    let first_ack = packets.iter().position(|(_, made)| acks(made));
    let before = &packets[..first_ack.unwrap_or(packets.len())];
    if let Some((ts_ns, made)) = before.iter().rev().find(|(_, made)| made.flags & SYN != 0) {
        flow.flags |= 0x01 | if made.flags & ACK != 0 { 0x02 } else { 0 };
        flow.syn_ns = *ts_ns;
    }
    if let Some(at) = first_ack {
        flow.flags |= 0x04;
        flow.ack_ns = packets[at].0;
    }
    let room = |made: &Made| {
        u32::from(made.payload) + u32::from(made.flags & SYN != 0) + u32::from(made.flags & FIN != 0)
    };
    let data: Vec<_> = packets.iter().filter(|(_, made)| !made.fragment && room(made) > 0).collect();
    if let (Some(first), Some(last)) = (data.first(), data.last()) {
        flow.flags |= 0x10;
        (flow.first_data_ns, flow.first_data_seq) = (first.0, first.1.seq);
        (flow.last_data_ns, flow.next_seq) = (last.0, last.1.seq.wrapping_add(room(&last.1)));
    }
    for pair in data.windows(2) {
        let end = pair[0].1.seq.wrapping_add(room(&pair[0].1));
        if (pair[1].1.seq.wrapping_sub(end) as i32) < 0 {
            match pair[1].0 - pair[0].0 < 3_000_000 {
                true => flow.reordered += 1,
                false => flow.retransmitted += 1,
            }
        }
    }
    flow
}

/// In a fixed order, independent of the implementation.
fn sorted(mut records: Vec<FlowRecord>) -> Vec<FlowRecord> {
    records.sort_by_key(|r| {
        (
            r.flow.first_ns,
            r.key.src,
            r.key.dst,
            r.key.src_port,
            r.key.dst_port,
            r.key.proto,
            r.key.vlan,
            r.flow.packets,
        )
    });
    records
}

fn stamped(packets: &[Made]) -> Vec<(u64, Made)> {
    let mut now = SECOND;
    let stamp = |made: &Made| {
        now += made.gap_ns;
        (now, made.clone())
    };
    packets.iter().map(stamp).collect()
}

fn reference(packets: &[(u64, Made)], active_ns: u64) -> Vec<FlowRecord> {
    let mut reference = Reference::default();
    for (ts_ns, made) in packets {
        reference.packet(*ts_ns, made, active_ns);
    }
    sorted(reference.records(packets.last().map_or(0, |(ts_ns, _)| *ts_ns), active_ns))
}

/// All flows of a cache that is ended at this time.
fn ended(cache: &mut FlowCache, now_ns: u64) -> Vec<FlowRecord> {
    let mut all = Vec::new();
    while cache.tick(now_ns) {
        all.append(cache.finished());
    }
    while cache.flush() {
        all.append(cache.finished());
    }
    all.append(cache.finished());
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_cache_finds_the_flows_of_the_reference(packets in prop::collection::vec(made(), 1..300)) {
        let packets = stamped(&packets);
        let mut cache = FlowCache::new(CacheSettings { timeouts: TIMEOUTS, ..CacheSettings::default() });
        for (ts_ns, made) in &packets {
            cache.packet(&made.ip(), &made.packet(*ts_ns));
        }
        let flows = ended(&mut cache, packets[packets.len() - 1].0);
        prop_assert!(cache.is_empty());
        prop_assert_eq!(sorted(flows), reference(&packets, TIMEOUTS.active_ns));
    }

    /// However often the busiest flows are read, every packet is reported once, with its flow.
    #[test]
    fn what_was_busy_adds_up(
        packets in prop::collection::vec((made(), prop::bool::weighted(0.1)), 1..300),
        biflow in any::<bool>(),
    ) {
        let (made, looks): (Vec<Made>, Vec<bool>) = packets.into_iter().unzip();
        let mut cache = FlowCache::new(CacheSettings { timeouts: TIMEOUTS, biflow, ..CacheSettings::default() });
        cache.watch();
        let (mut shown, mut expected) = (HashMap::new(), HashMap::new());
        let mut look = |cache: &mut FlowCache| {
            let busy = cache.busiest(usize::MAX);
            prop_assert!(busy.flows.is_sorted_by_key(|flow| std::cmp::Reverse(flow.wire_bytes)));
            prop_assert_eq!((busy.other_packets, busy.other_wire_bytes), (0, 0));
            for flow in busy.flows {
                let sum: &mut (u64, u64) = shown.entry(flow.key).or_default();
                *sum = (sum.0 + flow.packets, sum.1 + flow.wire_bytes);
            }
            Ok(())
        };
        for ((ts_ns, made), looks) in stamped(&made).iter().zip(looks) {
            let (ip, packet) = (made.ip(), made.packet(*ts_ns));
            let sum: &mut (u64, u64) = expected.entry(FlowKey::of(&ip, &packet)).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(packet.wire_len));
            cache.packet(&ip, &packet);
            if looks {
                look(&mut cache)?;
            }
        }
        look(&mut cache)?;
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(cache.busiest(9), Busiest::default(), "nothing since");
    }

    /// The merged output of a first-level cache of any size, with any timeouts and times of flushing, has the same
    /// flows as the reference and as the packets one by one.
    /// Battery: I10
    #[test]
    fn parts_come_to_the_same_flows(
        packets in prop::collection::vec((made(), prop::bool::weighted(0.05)), 1..300),
        sets in prop_oneof![Just(1usize), 2..9usize, Just(256)],
        active_ns in prop_oneof![
            Just(60 * SECOND), Just(u64::MAX), Just(SECOND), 1..100 * SECOND, 1..1000u64,
        ],
        seed: u32,
    ) {
        let (made, turns): (Vec<Made>, Vec<bool>) = packets.into_iter().unzip();
        let packets = stamped(&made);
        let timeouts = Timeouts { active_ns, ..TIMEOUTS };
        let settings = CacheSettings { timeouts, ..CacheSettings::default() };
        let (mut whole, mut second) = (FlowCache::new(settings), FlowCache::new(settings));
        let mut first = FirstLevel::new(sets, &timeouts, seed);
        let hand_on = |part: &FlowPart, second: &mut FlowCache| second.part(&part.key, &part.flow);
        for ((ts_ns, made), turn) in packets.iter().zip(turns) {
            if turn {
                first.turn().iter().for_each(|part| hand_on(part, &mut second));
                // No later packet is older.
                let _ = second.tick(*ts_ns);
            }
            let (ip, packet) = (made.ip(), made.packet(*ts_ns));
            whole.packet(&ip, &packet);
            if let Some(part) = first.keep(&ip, &packet) {
                hand_on(&part, &mut second);
            }
        }
        first.turn().iter().for_each(|part| hand_on(part, &mut second));
        let [whole, second] = [whole, second]
            .map(|mut cache| sorted(ended(&mut cache, packets[packets.len() - 1].0)));
        prop_assert_eq!(&second, &whole);
        prop_assert_eq!(second, reference(&packets, active_ns));
    }
}

/// Of flows that end between two calls only some are handed out; the others are in a sum.
#[test]
fn flows_that_are_not_among_the_busiest_are_added_up() {
    const FLOWS: u64 = 10_000;
    let mut cache =
        FlowCache::new(CacheSettings { timeouts: TIMEOUTS, memory: 0, ..CacheSettings::default() });
    cache.watch();
    let room = cache.capacity() as u64;
    assert!(room < FLOWS / 4, "most flows make room for others: {room}");
    let mut bytes = 0;
    for number in 0..FLOWS {
        let mut ip = Ip { l3: 4, proto: 17, l4_off: 34, flags: 0x04, ..Ip::default() };
        (ip.src_port, ip.dst_port) = ((number as u16).to_be(), 53_u16.to_be());
        let wire_len = 64 + (number % 1000) as u32;
        cache.packet(&ip, &FlowPacket { ts_ns: SECOND + number, wire_len, ..FlowPacket::default() });
        cache.finished().clear();
        bytes += u64::from(wire_len);
    }
    let busiest = cache.busiest(300);
    assert_eq!(busiest.flows.len(), 300);
    assert!(busiest.flows.iter().all(|flow| flow.packets == 1));
    let sum: u64 = busiest.flows.iter().map(|flow| flow.wire_bytes).sum();
    assert_eq!((300 + busiest.other_packets, sum + busiest.other_wire_bytes), (FLOWS, bytes));
    assert_eq!(cache.busiest(usize::MAX), Busiest::default(), "nothing since");
}
