//! Flows of a day, generated in memory: a site of 50,000 hosts that talk to 200,000 others with a skewed distribution,
//! both directions of a conversation one after the other. The same flows in each run.

use std::time::Duration;

use wirelane_analysis::flows::{EndReason, Flow, FlowKey, FlowRecord, NO_VLAN, flow_flags};
use wirelane_bpf::layout::l3;

/// Start of the day: 2026-03-01 in UTC, in nanoseconds since 1970.
pub const FIRST_NS: u64 = 1_772_323_200_000_000_000;
/// Duration.
pub const DAY: Duration = Duration::from_secs(86_400);
/// Hosts of the site, and others.
const HOSTS: u64 = 50_000;
const OTHERS: u64 = 200_000;
/// A busy host of the site: in a quarter of a hundredth of all flows.
pub const SOMEBODY: &str = "10.0.0.5";
/// Number of flows that are passed on together, as at high rates.
pub const TOGETHER: usize = 256;

/// Generator of flows.
pub struct Flows {
    state: u64,
    made: u64,
    total: u64,
    /// Other direction of the last flow.
    back: Option<FlowRecord>,
    /// Packets of the generated flows.
    pub packets: u64,
}

impl Flows {
    /// This many flows, whose ends are evenly distributed over the day. `seed` selects the sequence.
    pub fn new(total: u64, seed: u64) -> Flows {
        Flows { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, made: 0, total, back: None, packets: 0 }
    }

    /// Next flows; `None` after the last.
    pub fn batch(&mut self) -> Option<Vec<FlowRecord>> {
        let count = (self.total - self.made).min(TOGETHER as u64);
        (count > 0).then(|| (0..count).map(|_| self.next()).collect())
    }

    /// A random number below `most`.
    fn below(&mut self, most: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.state >> 1) * u128::from(most)) >> 63) as u64
    }

    /// A random number below `most`, lower ones more often: half of all are in the first eighth.
    fn skewed(&mut self, most: u64) -> u64 {
        let part = self.below(1 << 20) as f64 / f64::from(1 << 20);
        ((part * part * part) * most as f64) as u64
    }

    fn next(&mut self) -> FlowRecord {
        let record = match self.back.take() {
            Some(back) => back,
            None => self.conversation(),
        };
        self.made += 1;
        self.packets += record.flow.packets;
        record
    }

    /// First direction of a conversation; the other one is stored.
    fn conversation(&mut self) -> FlowRecord {
        let (host, other) = (self.skewed(HOSTS), self.skewed(OTHERS));
        let six = self.below(10) == 0;
        let (proto, port): (u8, u16) = match self.below(100) {
            0..=49 => (6, 443),
            50..=59 => (17, 443),
            60..=69 => (6, 80),
            70..=89 => (17, 53),
            _ => (if self.below(2) == 0 { 6 } else { 17 }, 1024 + self.below(9000) as u16),
        };
        let (source_port, tcp) = (32_768 + self.below(28_000) as u16, proto == 6);
        let end_ns = FIRST_NS + (self.made as f64 / self.total as f64 * (DAY.as_nanos() as f64 - 1e9)) as u64;
        let duration_ns = self.skewed(60_000_000_000);
        let packets = if port == 53 { 1 } else { 2 + self.skewed(400) };
        let mut key = FlowKey {
            src_port: source_port.to_be(),
            dst_port: port.to_be(),
            l3: if six { l3::IPV6 } else { l3::IPV4 },
            proto,
            vlan: NO_VLAN,
            ..FlowKey::default()
        };
        key.src = address(six, 0x0a00_0000, host);
        key.dst = address(six, 0xc633_0000, other);
        let flow = Flow {
            packets,
            bytes: packets * (60 + self.below(500)),
            first_ns: end_ns - duration_ns,
            last_ns: end_ns,
            syn_ns: end_ns - duration_ns,
            ack_ns: end_ns - duration_ns + 20_000 + self.below(60_000_000).min(duration_ns),
            first_seq: if tcp { self.below(1 << 32) as u32 } else { 0 },
            last_seq: if tcp { self.below(1 << 32) as u32 } else { 0 },
            retransmitted: u32::from(self.below(50) == 0),
            min_length: 40 + self.below(20) as u32,
            max_length: 100 + self.below(1400) as u32,
            flags: flow_flags::TTL
                | if tcp { flow_flags::TCP | flow_flags::SYN | flow_flags::ACK } else { 0 },
            min_ttl: 64,
            max_ttl: 64,
            tcp_flags: if tcp { 0x1b } else { 0 },
            first_tcp_flags: if tcp { 0x02 } else { 0 },
            ..Flow::default()
        };
        let flow = Flow { wire_bytes: flow.bytes + packets * 14, ..flow };
        let reason = if tcp { EndReason::Ended } else { EndReason::Idle };
        let (mut back_key, answer) = (key, packets + self.skewed(1000));
        (back_key.src, back_key.dst) = (key.dst, key.src);
        (back_key.src_port, back_key.dst_port) = (key.dst_port, key.src_port);
        let bytes = answer * (60 + self.below(1300));
        let distance = 50 + self.below(14) as u8;
        let back = Flow {
            packets: answer,
            bytes,
            wire_bytes: bytes + answer * 14,
            min_ttl: distance,
            max_ttl: distance,
            flags: flow.flags & !flow_flags::SYN,
            first_tcp_flags: if tcp { 0x12 } else { 0 },
            ..flow
        };
        self.back = Some(FlowRecord { key: back_key, flow: back, reverse: None, reason });
        FlowRecord { key, flow, reverse: None, reason }
    }
}

/// Address in this network.
fn address(six: bool, network: u32, number: u64) -> [u8; 16] {
    let four = (network + number as u32).to_be_bytes();
    let mut bytes = [0; 16];
    if six {
        bytes[..6].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8, four[0], four[1]]);
        bytes[14..].copy_from_slice(&four[2..]);
    } else {
        bytes[..4].copy_from_slice(&four);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_as_wanted_and_they_are_of_that_day() {
        let mut flows = Flows::new(10_001, 1);
        let mut all = Vec::new();
        while let Some(batch) = flows.batch() {
            all.extend(batch);
        }
        assert_eq!(all.len(), 10_001);
        assert_eq!(all.iter().map(|flow| flow.flow.packets).sum::<u64>(), flows.packets);
        let day = FIRST_NS..FIRST_NS + DAY.as_nanos() as u64;
        assert!(all.iter().all(|flow| day.contains(&flow.flow.last_ns)));
        assert!(
            all.iter().all(
                |flow| flow.flow.first_ns <= flow.flow.last_ns && flow.rtt_ns().is_none_or(|rtt| rtt > 0)
            )
        );
        let somebody = all.iter().filter(|flow| {
            [flow.source(), flow.destination()]
                .iter()
                .flatten()
                .any(|address| address.to_string() == SOMEBODY)
        });
        assert!(somebody.count() > 0);
        assert!(all[0].source() == all[1].destination() && all[0].source_port() == all[1].destination_port());
    }
}
