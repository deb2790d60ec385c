//! Limits of outputs under hostile traffic: a flood of small packets must not become more bytes of records than it had on
//! the wire.
//!
//! By default the packets of a record pay for it: their bytes on the wire, divided by one more than the number of outputs,
//! are what an output may write of it. What is left over is kept for later records, up to a bound. Where that does not
//! suffice, [`LEAST_RATE`] records a second are written in any case, and what they cost beyond their packets is a debt that
//! later records pay first. So the records of real traffic, whose flows, transactions and calls are larger than the lines
//! about them, are all written, however many there are.
//!
//! A rate that was asked for is a hard limit instead.

use std::time::Instant;

use wirelane_analysis::flows::FlowRecord;
use wirelane_analysis::http::{Message, Transaction};
use wirelane_analysis::voip::{Finished, Stream};

/// Records a second of each output that need no packets to pay for them.
pub const LEAST_RATE: u32 = 1000;
/// Bytes that an output may have saved, or owe.
const MOST_CREDIT: i64 = 1 << 20;
/// Bytes of the headers below a message or below RTP: Ethernet, IPv4, UDP.
const HEADERS: u64 = 42;

/// How much the outputs of a command may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputLimit {
    /// No limit: for files that are read, whose user has asked for all that is in them.
    None,
    /// So many records a second at each output.
    Rate(u32),
    /// What the packets pay for, divided among so many outputs, and [`LEAST_RATE`] records a second at each.
    Paid(u32),
}

/// What has bytes on the wire.
pub trait OnWire {
    /// Captured bytes on the wire that have led to it, at least. 0: it is no record of its own at an output.
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

/// The limit of one output, and what it has suppressed.
#[derive(Debug)]
pub struct Limiter {
    limit: OutputLimit,
    /// Records that may be written now whatever they cost.
    tokens: f64,
    filled: Instant,
    /// Bytes that may be written, or, below 0, that are owed.
    credit: i64,
    suppressed: u64,
}

impl Limiter {
    /// A limiter that has not seen anything.
    pub fn new(limit: OutputLimit) -> Limiter {
        let tokens = f64::from(rate(limit));
        Limiter { limit, tokens, filled: Instant::now(), credit: 0, suppressed: 0 }
    }

    /// Whether a record of so many bytes on the wire is to be written. One that is not is counted.
    pub fn admits(&mut self, wire_bytes: u64) -> bool {
        if self.limit == OutputLimit::None {
            return true;
        }
        if let OutputLimit::Paid(outputs) = self.limit {
            self.earn(wire_bytes / (u64::from(outputs) + 1));
            if self.credit > 0 {
                return true;
            }
        }
        self.admits_in_any_case()
    }

    /// The same for a message that is sent on as it is, in an envelope, as by HEP: all of its bytes pay for it, and it is
    /// [`Limiter::spent`] already. Messages in any case make no debt, since the next ones could never pay it.
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
        self.admits_in_any_case()
    }

    fn earn(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add_unsigned(bytes).min(MOST_CREDIT);
    }

    fn admits_in_any_case(&mut self) -> bool {
        self.fill();
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return true;
        }
        if self.suppressed == 0 {
            tracing::warn!(
                "more records come than an output may write: the rest is suppressed and counted (--output-rate)"
            );
        }
        self.suppressed += 1;
        false
    }

    /// So many bytes have been written.
    pub fn spent(&mut self, bytes: usize) {
        if matches!(self.limit, OutputLimit::Paid(_)) {
            self.credit = self.credit.saturating_sub_unsigned(bytes as u64).max(-MOST_CREDIT);
        }
    }

    /// Records that were not written.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    fn fill(&mut self) {
        let (now, rate) = (Instant::now(), f64::from(rate(self.limit)));
        let earned = now.duration_since(self.filled).as_secs_f64() * rate;
        (self.tokens, self.filled) = ((self.tokens + earned).min(rate), now);
    }
}

/// Records a second in any case.
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

    /// Writes so many records of `cost` bytes for packets of `wire` bytes: how many were written.
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
        // Traffic before it has filled the account.
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
        // Credit pays for 0.88 of them, however many they are.
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
}
