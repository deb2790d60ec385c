//! Limits of outputs under hostile traffic: a flood of small packets must not produce more bytes of records than it had
//! on the wire.
//!
//! By default an output may write for each record the bytes of its packets on the wire, divided by one more than the
//! number of outputs. Unused bytes are credit for later records, up to a bound. If the credit does not suffice,
//! [`LEAST_RATE`] records per second are written in any case, and their cost beyond their packets is a debt that later
//! records pay first. So the records of real traffic, whose flows, transactions and calls are larger than their log
//! lines, are all written, in any number.
//!
//! A configured rate is a hard limit instead.

use std::time::Instant;

use wirelane_analysis::flows::FlowRecord;
use wirelane_analysis::http::{Message, Transaction};
use wirelane_analysis::voip::{Finished, Stream};

/// Records per second of each output that are written without credit.
pub const LEAST_RATE: u32 = 1000;
/// Maximum credit or debt of an output in bytes.
const MOST_CREDIT: i64 = 1 << 20;
/// Bytes of the headers before a message or RTP: Ethernet, IPv4, UDP.
const HEADERS: u64 = 42;

/// Write limit of the outputs of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLimit {
    /// No limit: for reading files, whose user has requested all of their contents.
    None,
    /// Maximum records per second at each output.
    Rate(u32),
    /// Bytes of the packets, divided among this number of outputs, and [`LEAST_RATE`] records per second at each.
    Paid(u32),
}

/// A record whose packets have bytes on the wire.
pub trait OnWire {
    /// Minimum of the captured bytes on the wire that led to the record. 0: it is not a separate record at an output.
    fn wire_bytes(&self) -> u64;
}

impl OnWire for FlowRecord {
    fn wire_bytes(&self) -> u64 {
        FlowRecord::wire_bytes(self)
    }
}

impl OnWire for Transaction {
    fn wire_bytes(&self) -> u64 {
        let of = |message: &Message| message.bytes.saturating_sub(message.missing).saturating_add(HEADERS);
        [&self.request, &self.response].into_iter().flatten().map(of).fold(0, u64::saturating_add)
    }
}

impl OnWire for Stream {
    fn wire_bytes(&self) -> u64 {
        self.rtp.bytes.saturating_add(self.rtp.packets.saturating_mul(HEADERS))
    }
}

impl OnWire for Finished {
    fn wire_bytes(&self) -> u64 {
        match self {
            Finished::Call(record) => {
                let messages = record.call.message_bytes + record.call.messages * HEADERS;
                record.streams.iter().map(OnWire::wire_bytes).fold(messages, u64::saturating_add)
            }
            Finished::Stream(stream, _) => stream.wire_bytes(),
            Finished::Signal(_) | Finished::Kept(_) => 0,
        }
    }
}

/// The limit of one output, and the number of suppressed records.
#[derive(Debug)]
pub struct Limiter {
    limit: OutputLimit,
    /// Records that may be written now regardless of their cost.
    tokens: f64,
    filled: Instant,
    /// Bytes that may be written, or, if negative, the debt.
    credit: i64,
    suppressed: u64,
}

impl Limiter {
    /// A limiter in its initial state.
    pub fn new(limit: OutputLimit) -> Limiter {
        let tokens = f64::from(rate(limit));
        Limiter { limit, tokens, filled: Instant::now(), credit: 0, suppressed: 0 }
    }

    /// Whether to write a record with this many bytes on the wire. A rejected record is counted.
    pub fn admits(&mut self, wire_bytes: u64) -> bool {
        self.admits_group(1, wire_bytes)
    }

    /// Whether to write this number of records that belong together, with this many bytes on the wire. Each rejected
    /// record is counted.
    pub fn admits_group(&mut self, records: u64, wire_bytes: u64) -> bool {
        if self.limit == OutputLimit::None {
            return true;
        }
        if let OutputLimit::Paid(outputs) = self.limit {
            self.earn(wire_bytes / (u64::from(outputs) + 1));
            if self.credit > 0 {
                return true;
            }
        }
        self.admits_in_any_case(records)
    }

    /// Like [`Limiter::admits`] for a message that is forwarded unchanged in an envelope, as HEP does: all of its bytes
    /// count as credit, and [`Limiter::spent`] is already applied. Messages without credit make no debt, since the next
    /// ones could never pay it.
    pub fn admits_copy(&mut self, bytes: usize, cost: usize) -> bool {
        if self.limit == OutputLimit::None {
            return true;
        }
        if let OutputLimit::Paid(_) = self.limit {
            self.earn(bytes as u64 + HEADERS);
            if self.credit >= cost as i64 {
                self.spent(cost);
                return true;
            }
        }
        self.admits_in_any_case(1)
    }

    fn earn(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add_unsigned(bytes).min(MOST_CREDIT);
    }

    fn admits_in_any_case(&mut self, records: u64) -> bool {
        self.fill();
        // A group above the rate takes all tokens, and those of later seconds.
        if self.tokens >= (records as f64).min(f64::from(rate(self.limit)).max(1.0)) {
            self.tokens -= records as f64;
            return true;
        }
        if self.suppressed == 0 {
            tracing::warn!(
                "more records come than an output may write: the rest is suppressed and counted (--output-rate)"
            );
        }
        self.suppressed += records;
        false
    }

    /// Subtracts written bytes from the credit.
    pub fn spent(&mut self, bytes: usize) {
        if matches!(self.limit, OutputLimit::Paid(_)) {
            self.credit = self.credit.saturating_sub_unsigned(bytes as u64).max(-MOST_CREDIT);
        }
    }

    /// Number of records that were not written.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    fn fill(&mut self) {
        let (now, rate) = (Instant::now(), f64::from(rate(self.limit)));
        let earned = now.duration_since(self.filled).as_secs_f64() * rate;
        (self.tokens, self.filled) = ((self.tokens + earned).min(rate), now);
    }
}

/// Records per second that are written in any case.
fn rate(limit: OutputLimit) -> u32 {
    match limit {
        OutputLimit::None => 0,
        OutputLimit::Rate(rate) => rate,
        OutputLimit::Paid(_) => LEAST_RATE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes this many records of `cost` bytes for packets of `wire` bytes; returns how many were written.
    fn written(limiter: &mut Limiter, records: u64, wire: u64, cost: usize) -> u64 {
        (0..records)
            .filter(|_| {
                let admits = limiter.admits(wire);
                if admits {
                    limiter.spent(cost);
                }
                admits
            })
            .count() as u64
    }

    #[test]
    fn a_flood_pays_for_no_more_than_it_had_on_the_wire() {
        let mut limiter = Limiter::new(OutputLimit::Paid(1));
        // Earlier traffic has filled the credit.
        assert_eq!(written(&mut limiter, 10_000, 100_000, 500), 10_000);
        let records = 1_000_000;
        let written = written(&mut limiter, records, 60, 500);
        assert!(written * 500 <= records * 60, "{written} records");
        assert_eq!(limiter.suppressed(), records - written);
    }

    #[test]
    fn records_of_real_traffic_are_all_written_and_few_in_any_case() {
        let mut limiter = Limiter::new(OutputLimit::Paid(3));
        assert_eq!(written(&mut limiter, 1_000_000, 4000, 900), 1_000_000);
        let mut limiter = Limiter::new(OutputLimit::Paid(3));
        assert_eq!(written(&mut limiter, u64::from(LEAST_RATE), 60, 900), u64::from(LEAST_RATE));
    }

    #[test]
    fn messages_pay_for_their_copies_and_tiny_ones_for_fewer() {
        let copies = |limiter: &mut Limiter, bytes: usize| {
            (0..100_000).filter(|_| limiter.admits_copy(bytes, bytes + 130)).count() as u64
        };
        // The credit pays for 0.88 of them, however many there are.
        let mut limiter = Limiter::new(OutputLimit::Paid(5));
        assert!(copies(&mut limiter, 600) >= 87_000);
        let mut limiter = Limiter::new(OutputLimit::Paid(5));
        let written = copies(&mut limiter, 100);
        assert!(
            (60_000..70_000).contains(&written) && limiter.suppressed() == 100_000 - written,
            "{written}"
        );
        assert!((100..=110).contains(&copies(&mut Limiter::new(OutputLimit::Rate(100)), 600)));
        assert_eq!(copies(&mut Limiter::new(OutputLimit::None), 0), 100_000);
    }

    #[test]
    fn a_rate_is_a_hard_limit_and_none_is_none() {
        let mut limiter = Limiter::new(OutputLimit::Rate(100));
        let written_at_once = written(&mut limiter, 10_000, 1_000_000, 1);
        assert!((100..=110).contains(&written_at_once), "{written_at_once}");
        assert_eq!(written(&mut Limiter::new(OutputLimit::None), 10_000, 0, 1), 10_000);
    }

    #[test]
    fn each_record_of_a_group_counts() {
        let mut limiter = Limiter::new(OutputLimit::Rate(10));
        assert!(limiter.admits_group(8, 1_000_000) && !limiter.admits_group(7, 1_000_000));
        assert_eq!(limiter.suppressed(), 7);
        let mut limiter = Limiter::new(OutputLimit::Rate(10));
        assert!(limiter.admits_group(25, 1_000_000) && !limiter.admits(1_000_000));
    }
}
