//! Traffic by flow, host, conversation and application, with averages over the last 2, 10 and 40 seconds.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use wirelane_analysis::flows::{Busiest, BusyFlow, EndReason, FlowKey, FlowRecord};

/// Windows of the averages, in seconds.
pub const WINDOWS: [f64; 3] = [2.0, 10.0, 40.0];
/// Minimum length of a remembered part, in seconds: shorter intervals are joined.
const PART: f64 = 1.0;
/// Rows of each grouping that a worker remembers; the others become one row.
const ROWS: usize = 4096;

/// Number of groupings.
pub const GROUPINGS: usize = 4;
/// Names of the groupings.
pub const GROUPING: [&str; GROUPINGS] = ["flow", "host", "conversation", "application"];

/// Subject of a row's sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// One direction of a flow.
    Flow(FlowKey),
    /// An address, as source or destination.
    Host(IpAddr),
    /// Two addresses, in ascending order.
    Pair(IpAddr, IpAddr),
    /// An application protocol, or a protocol of the network.
    Application(String),
    /// Frames without IP, by EtherType.
    Other(u16),
    /// Rows that are not remembered, and flows of which only the sum is known.
    Rest,
}

/// Sums of a row.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Name of the application of a flow.
    pub application: &'static str,
    /// Packets.
    pub packets: u64,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Parts of the last 40 s: end, length in seconds, bytes.
    parts: VecDeque<(f64, f64, u64)>,
}

impl Sum {
    fn add(&mut self, now: f64, seconds: f64, packets: u64, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
        let longest = WINDOWS[WINDOWS.len() - 1];
        while self.parts.front().is_some_and(|(end, ..)| *end < now - longest) {
            self.parts.pop_front();
        }
        match self.parts.back_mut() {
            Some((end, length, before)) if now <= *end => *before += bytes,
            // Only parts without a gap between them are joined.
            Some((end, length, before)) if *length + seconds <= PART && now - *end <= seconds * 1.5 => {
                *length += now - *end;
                *end = now;
                *before += bytes;
            }
            _ => self.parts.push_back((now, seconds, bytes)),
        }
    }

    /// Bits per second in each window up to now; `age`: time since the capture began, in seconds.
    pub fn rates(&self, now: f64, age: f64) -> [f64; WINDOWS.len()] {
        WINDOWS.map(|window| {
            let window = window.min(age.max(1e-9));
            let inside = |(end, length, bytes): &(f64, f64, u64)| {
                let overlap = end.min(now) - (end - length).max(now - window);
                *bytes as f64 * (overlap / length).clamp(0.0, 1.0)
            };
            self.parts.iter().map(inside).sum::<f64>() * 8.0 / window
        })
    }

    /// Adds the sums of another worker.
    fn join(&mut self, other: &Sum) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.parts.extend(&other.parts);
    }
}

/// The sums of one worker, or of all.
#[derive(Clone, Debug, Default)]
pub struct Sums([HashMap<Key, Sum>; GROUPINGS]);

impl Sums {
    /// Adds the traffic of flows in this many seconds before `now` (seconds since any time).
    pub fn add(&mut self, busiest: &Busiest, now: f64, seconds: f64) {
        let (packets, bytes) = (busiest.other_packets, busiest.other_wire_bytes);
        if packets > 0 {
            for (rows, name) in self.0.iter_mut().zip(GROUPING) {
                // A packet belongs to two hosts.
                let times = if name == "host" { 2 } else { 1 };
                rows.entry(Key::Rest).or_default().add(now, seconds, times * packets, times * bytes);
            }
        }
        for flow in &busiest.flows {
            for (rows, key) in self.0.iter_mut().zip(keys(flow)) {
                // A packet from a host to itself counts once.
                let ends = match key {
                    [Some(one), Some(other)] if one == other => [Some(one), None],
                    ends => ends,
                };
                for key in ends.into_iter().flatten() {
                    let sum = rows.entry(key).or_default();
                    sum.application = application(flow);
                    sum.add(now, seconds, flow.packets, flow.wire_bytes);
                }
            }
            if self.0.iter().any(|rows| rows.len() > 2 * ROWS) {
                self.prune();
            }
        }
    }

    /// Keeps the rows with the most traffic in the last 40 s, then those with the most bytes.
    fn prune(&mut self) {
        for rows in &mut self.0 {
            if rows.len() <= ROWS {
                continue;
            }
            let recent = |sum: &Sum| sum.parts.iter().map(|(.., bytes)| bytes).sum::<u64>();
            let mut all: Vec<(Key, Sum)> = rows.drain().collect();
            all.sort_by_key(|(_, sum)| std::cmp::Reverse((recent(sum), sum.bytes)));
            let mut rest = Sum::default();
            for (at, (key, sum)) in all.into_iter().enumerate() {
                if at < ROWS && key != Key::Rest {
                    rows.insert(key, sum);
                } else {
                    rest.join(&sum);
                }
            }
            rest.parts = summed(&rest.parts);
            rows.insert(Key::Rest, rest);
        }
    }

    /// Adds the sums of another worker.
    pub fn join(&mut self, other: &Sums) {
        for (rows, others) in self.0.iter_mut().zip(&other.0) {
            for (key, sum) in others {
                let known = rows.entry(key.clone()).or_default();
                known.application = sum.application;
                known.join(sum);
            }
        }
    }

    /// The rows of each grouping, as they are now.
    pub fn rows(&self, now: f64, age: Duration) -> [Vec<Row>; GROUPINGS] {
        let row = |(key, sum): (&Key, &Sum)| Row {
            key: key.clone(),
            application: sum.application,
            packets: sum.packets,
            bytes: sum.bytes,
            rates: sum.rates(now, age.as_secs_f64()),
        };
        [0, 1, 2, 3].map(|at| self.0[at].iter().map(row).collect())
    }
}

/// Parts with the same end and length as one, in the order of their ends, without those before all windows.
fn summed(parts: &VecDeque<(f64, f64, u64)>) -> VecDeque<(f64, f64, u64)> {
    let last = parts.iter().map(|(end, ..)| *end).fold(0.0, f64::max);
    let longest = WINDOWS[WINDOWS.len() - 1];
    let mut sums: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (end, length, bytes) in parts.iter().filter(|(end, ..)| *end >= last - longest) {
        // The bits of positive numbers have their order.
        *sums.entry((end.to_bits(), length.to_bits())).or_default() += bytes;
    }
    sums.into_iter()
        .map(|((end, length), bytes)| (f64::from_bits(end), f64::from_bits(length), bytes))
        .collect()
}

/// A row of the screen.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Subject of the sums.
    pub key: Key,
    /// Application of a flow.
    pub application: &'static str,
    /// Packets since the capture began.
    pub packets: u64,
    /// Bytes on the wire since the capture began.
    pub bytes: u64,
    /// Bits per second in [`WINDOWS`].
    pub rates: [f64; WINDOWS.len()],
}

/// A record of a flow that goes on, for the functions that read records.
pub fn record(flow: &BusyFlow) -> FlowRecord {
    FlowRecord { key: flow.key, flow: flow.flow, reverse: None, reason: EndReason::Active }
}

fn application(flow: &BusyFlow) -> &'static str {
    record(flow).application().map_or("", |known| known.name)
}

/// The keys of a flow in each grouping: two for hosts.
fn keys(flow: &BusyFlow) -> [[Option<Key>; 2]; GROUPINGS] {
    let record = record(flow);
    let itself = [Some(Key::Flow(flow.key)), None];
    let name = match application(flow) {
        "" => wirelane_export::flows::protocol(&record).to_string(),
        name => name.to_owned(),
    };
    let application = [Some(Key::Application(name)), None];
    match (record.source(), record.destination()) {
        (Some(one), Some(other)) => {
            let pair = Key::Pair(one.min(other), one.max(other));
            [itself, [Some(Key::Host(one)), Some(Key::Host(other))], [Some(pair), None], application]
        }
        _ => {
            let other = || [Some(Key::Other(flow.key.eth_type)), None];
            [itself, other(), other(), application]
        }
    }
}

#[cfg(test)]
mod tests {
    use wirelane_analysis::flows::Flow;

    use super::*;

    fn flow(last: u8, bytes: u64) -> BusyFlow {
        let mut key = FlowKey { l3: 4, proto: 17, ..FlowKey::default() };
        key.src[..4].copy_from_slice(&[192, 0, 2, last]);
        key.dst[..4].copy_from_slice(&[192, 0, 2, 1]);
        (key.src_port, key.dst_port) = (4000u16.to_be(), 53u16.to_be());
        BusyFlow { key, flow: Flow::default(), packets: 1, wire_bytes: bytes }
    }

    fn only(flow: BusyFlow) -> Busiest {
        Busiest { flows: vec![flow], ..Busiest::default() }
    }

    #[test]
    fn averages_are_those_of_the_last_2_10_and_40_seconds() {
        let mut sums = Sums::default();
        // 1000 bytes each second for 20 s, then nothing for 5 s.
        for second in 1..=20 {
            sums.add(&only(flow(2, 1000)), f64::from(second), 1.0);
        }
        let rates = |now: f64| sums.rows(now, Duration::from_secs_f64(now))[0][0].rates;
        assert_eq!(rates(20.0), [8000.0, 8000.0, 8000.0]);
        assert_eq!(rates(25.0), [0.0, 4000.0, 6400.0]);
        assert_eq!(rates(100.0), [0.0; 3]);
    }

    #[test]
    fn short_and_long_intervals_have_the_same_averages() {
        for (seconds, number) in [(0.25, 400), (1.0, 100), (5.0, 20)] {
            let mut sums = Sums::default();
            for at in 1..=number {
                sums.add(&only(flow(2, (seconds * 4000.0) as u64)), f64::from(at) * seconds, seconds);
            }
            let rates = sums.rows(100.0, Duration::from_secs(100))[0][0].rates;
            assert!(rates.iter().all(|rate| (rate - 32_000.0).abs() < 1e-6), "{seconds} s: {rates:?}");
        }
    }

    #[test]
    fn all_groupings_have_all_packets_also_with_more_hosts_than_rows() {
        let mut sums = Sums::default();
        for number in 0..20_000u32 {
            let mut one = flow(2, 100);
            one.key.src[..4].copy_from_slice(&(number + 0x0a00_0000).to_be_bytes());
            sums.add(&only(one), f64::from(number / 1000), 1.0);
        }
        let rows = sums.rows(20.0, Duration::from_secs(20));
        for (grouping, number) in [(0, 20_000), (1, 40_000), (2, 20_000), (3, 20_000)] {
            assert!(rows[grouping].len() <= 2 * ROWS + 1);
            let sum: u64 = rows[grouping].iter().map(|row| row.packets).sum();
            assert_eq!(sum, number, "{}", GROUPING[grouping]);
            // 100 bytes per packet; the parts end at 0 to 19 s.
            let rate = |window: usize| rows[grouping].iter().map(|row| row.rates[window]).sum::<f64>();
            let bits = number as f64 * 800.0;
            for (window, seconds, parts) in [(1, 10.0, 9.0), (2, 20.0, 19.0)] {
                let (rate, expected) = (rate(window), bits / 20.0 * parts / seconds);
                assert!((rate - expected).abs() < 1e-3, "{}: {rate} {expected}", GROUPING[grouping]);
            }
        }
        assert_eq!(rows[3][0].key, Key::Application("DNS".into()));
        // Flows of which only the sum is known.
        let others = |sums: &Sums| {
            sums.rows(20.0, Duration::from_secs(20)).map(|rows| {
                rows.iter().find(|row| row.key == Key::Rest).map_or((0, 0), |row| (row.packets, row.bytes))
            })
        };
        let before = others(&sums);
        sums.add(&Busiest { flows: Vec::new(), other_packets: 7, other_wire_bytes: 700 }, 20.0, 1.0);
        for (((packets, bytes), before), times) in others(&sums).into_iter().zip(before).zip([1, 2, 1, 1]) {
            assert_eq!((packets - before.0, bytes - before.1), (7 * times, 700 * times));
        }
        // Two workers with the same host.
        let mut one = Sums::default();
        one.add(&only(flow(2, 100)), 1.0, 1.0);
        let mut both = one.clone();
        both.join(&one);
        assert_eq!(both.rows(1.0, Duration::from_secs(1))[2][0].bytes, 200);
    }
}
