//! Latency and jitter of a stream.

use hdrhistogram::Histogram;

/// Latencies from 1 ns to an hour are told apart; longer ones count as an hour in the percentiles.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Significant decimal digits of percentiles.
const DIGITS: u8 = 3;

/// Latency and jitter, packet by packet.
#[derive(Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    min_ns: i64,
    max_ns: i64,
    sum_ns: i128,
    packets: u64,
    negative: u64,
    /// Latency of the packet before.
    before: Option<i64>,
    /// Sixteen times the jitter, in nanoseconds.
    jitter: f64,
}

/// The values of a stream, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Number of measured packets.
    pub packets: u64,
    /// Lowest latency; negative if the sender's clock is ahead.
    pub min_ns: i64,
    /// Mean.
    pub mean_ns: f64,
    /// Median, to three digits.
    pub p50_ns: u64,
    /// Latency that 99 % of the packets do not exceed, to three digits.
    pub p99_ns: u64,
    /// Highest latency.
    pub max_ns: i64,
    /// Number of negative latencies, which count as 0 in the percentiles.
    pub negative: u64,
    /// Interarrival jitter (RFC 3550, section 6.4.1).
    pub jitter_ns: f64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("the bounds are valid"),
            min_ns: i64::MAX,
            max_ns: i64::MIN,
            sum_ns: 0,
            packets: 0,
            negative: 0,
            before: None,
            jitter: 0.0,
        }
    }
}

impl Latency {
    /// Adds a packet.
    pub fn add(&mut self, sent_ns: u64, arrived_ns: u64) {
        let distance = i128::from(arrived_ns) - i128::from(sent_ns);
        let latency = i64::try_from(distance).unwrap_or(if distance < 0 { i64::MIN } else { i64::MAX });
        self.packets += 1;
        self.negative += u64::from(latency < 0);
        self.min_ns = self.min_ns.min(latency);
        self.max_ns = self.max_ns.max(latency);
        self.sum_ns += i128::from(latency);
        self.histogram.saturating_record(u64::try_from(latency).unwrap_or(0));
        if let Some(before) = self.before {
            // J += (|D| - J) / 16, where D is the difference of two latencies.
            let difference = latency.abs_diff(before) as f64;
            self.jitter += difference - self.jitter / 16.0;
        }
        self.before = Some(latency);
    }

    /// The values; `None` before the first packet with a time.
    pub fn measured(&self) -> Option<Measured> {
        (self.packets > 0).then(|| Measured {
            packets: self.packets,
            min_ns: self.min_ns,
            mean_ns: self.sum_ns as f64 / self.packets as f64,
            p50_ns: self.histogram.value_at_quantile(0.5),
            p99_ns: self.histogram.value_at_quantile(0.99),
            max_ns: self.max_ns,
            negative: self.negative,
            jitter_ns: self.jitter / 16.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_hundred_packets() {
        let mut latency = Latency::default();
        assert_eq!(latency.measured(), None);
        let start = 1_700_000_000_000_000_000;
        for packet in 1..=100 {
            latency.add(start + packet * 1000, start + packet * 1000 + packet * 10);
        }
        let measured = latency.measured().unwrap();
        assert_eq!((measured.packets, measured.min_ns, measured.max_ns), (100, 10, 1000));
        assert_eq!((measured.mean_ns, measured.p50_ns, measured.p99_ns), (505.0, 500, 990));
        // Each difference is 10 ns, so the jitter is 10 * (1 - (15/16)^99).
        assert!((measured.jitter_ns - 10.0 * (1.0 - (15.0_f64 / 16.0).powi(99))).abs() < 1e-9);
        assert_eq!(measured.negative, 0);
    }

    #[test]
    fn clocks_that_differ_do_no_harm() {
        let mut latency = Latency::default();
        latency.add(u64::MAX, 0);
        latency.add(0, u64::MAX);
        latency.add(100, 50);
        let measured = latency.measured().unwrap();
        assert_eq!((measured.min_ns, measured.max_ns, measured.negative), (i64::MIN, i64::MAX, 2));
        assert!(measured.p99_ns >= LONGEST_NS);
    }
}
