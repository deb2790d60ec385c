//! Account of the generator: requested, offered, and the device's counters.

use std::time::Duration;

use serde::Serialize;

use super::interface::{Counters, Gauge, Interface};
use crate::Result;

/// Maximum time without progress to wait until a device's counters account for the offered packets. Drivers count at
/// completion, and a veth counts after its peer has polled.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_STEP: Duration = Duration::from_millis(2);

/// Counters of one interval.
#[derive(Clone, Debug, Serialize)]
pub struct Interval {
    /// Number of the interval, from 1.
    pub interval: u64,
    /// Packets handed to the kernel.
    pub offered: u64,
    /// Packets that the device counted as transmitted. It may count later than the packet was offered.
    pub sent: u64,
    /// Packets that the device counted as dropped.
    pub dropped: u64,
    /// Bytes of the offered packets, without FCS.
    pub bytes: u64,
    /// Length of the interval in seconds.
    pub duration_s: f64,
    /// Offered packets per second.
    pub pps: f64,
    /// Offered bits per second, without FCS, preamble and gap.
    pub bps: f64,
}

/// One sending thread.
#[derive(Clone, Debug, Serialize)]
pub struct ThreadReport {
    /// CPU that the thread was pinned to.
    pub cpu: usize,
    /// Packets handed to the kernel by the thread.
    pub offered: u64,
    /// First number of the thread; `None` if it sent nothing.
    pub first_sequence: Option<u64>,
    /// Last number of the thread.
    pub last_sequence: Option<u64>,
    /// Difference between two consecutive numbers of the thread.
    pub stride: u64,
}

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device.
    pub device: String,
    /// `kernel`, `socket`, `xsk`, or `xsk, zero copy`.
    pub method: &'static str,
    /// Reason for this method, if the generator chose it.
    pub method_reason: Option<String>,
    /// Requested rate in packets per second; `None`: as fast as possible.
    pub asked_pps: Option<f64>,
    /// Requested number of packets.
    pub asked_packets: Option<u64>,
    /// Requested duration in seconds.
    pub asked_duration_s: Option<f64>,
    /// Packets handed to the kernel.
    pub offered: u64,
    /// Offered packets that the device counted as transmitted; with zero copy, that its driver reported as completed.
    pub sent: u64,
    /// Offered packets that the device counted as dropped.
    pub dropped: u64,
    /// Offered packets neither counted as sent nor as dropped: rejected before the device, or missing in a driver's
    /// counters, which on a veth are inexact while more threads send than its peer has RX queues.
    pub unaccounted: u64,
    /// Packets that the device counted beyond the offered ones: another sender uses the device too, so `sent` and
    /// `dropped` may include its packets.
    pub others: u64,
    /// Number of retries because the device had no space for a packet.
    pub refused: u64,
    /// Bytes of the offered packets, without FCS.
    pub bytes: u64,
    /// Time from the first packet to the end of the last, in seconds.
    pub duration_s: f64,
    /// Offered packets per second.
    pub pps: f64,
    /// Offered bits per second, without FCS, preamble and gap.
    pub bps: f64,
    /// Packets that were due and were skipped because the generator was too slow.
    pub given_up: u64,
    /// Whether the rate stayed more than 1 % below the requested rate.
    pub fell_short: bool,
    /// Lowest number that was offered.
    pub first_sequence: Option<u64>,
    /// Highest number that was offered. With several threads and a run that ended by time, a few lower numbers may not
    /// have been offered: see the numbers of each thread.
    pub last_sequence: Option<u64>,
    /// Reports of the threads.
    pub threads: Vec<ThreadReport>,
}

/// Counters of a device since the start of the meter.
#[derive(Debug)]
pub(super) struct Meter {
    gauge: Gauge,
    start: Counters,
}

/// Classification of the offered packets; see the fields of [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Divided {
    pub(super) sent: u64,
    pub(super) dropped: u64,
    pub(super) unaccounted: u64,
    pub(super) others: u64,
}

impl Meter {
    pub(super) fn start(interface: &Interface) -> Result<Meter> {
        let gauge = interface.gauge()?;
        Ok(Meter { start: gauge.counters()?, gauge })
    }

    /// The counters since the start. Rejected attempts that were retried are not counted as drops.
    pub(super) fn read(&self, refused: u64) -> Result<Counters> {
        let now = self.gauge.counters()?;
        Ok(Counters {
            sent: now.sent.saturating_sub(self.start.sent),
            dropped: now.dropped.saturating_sub(self.start.dropped).saturating_sub(refused),
        })
    }

    /// The counters, once they account for all offered packets or do not change any more.
    pub(super) fn settle(&self, offered: u64, refused: u64) -> Result<Divided> {
        let mut counted = self.read(refused)?;
        let mut waited = Duration::ZERO;
        while counted.sent + counted.dropped < offered && waited < SETTLE {
            std::thread::sleep(SETTLE_STEP);
            waited += SETTLE_STEP;
            let now = self.read(refused)?;
            if (now.sent, now.dropped) != (counted.sent, counted.dropped) {
                waited = Duration::ZERO;
            }
            counted = now;
        }
        Ok(divide(offered, counted))
    }
}

pub(super) fn divide(offered: u64, counted: Counters) -> Divided {
    let sent = counted.sent.min(offered);
    let dropped = counted.dropped.min(offered - sent);
    Divided {
        sent,
        dropped,
        unaccounted: offered - sent - dropped,
        others: counted.sent - sent + (counted.dropped - dropped),
    }
}

/// Whether the number is more than 1 % below the rate, beyond one burst that was not due yet at the end.
pub(super) fn fell_short(offered: u64, asked_pps: Option<f64>, duration_s: f64, burst: u64) -> bool {
    asked_pps.is_some_and(|pps| (offered + burst) as f64 <= pps * duration_s * 0.99)
}

/// `count` per second; 0 for a duration of 0.
pub(super) fn per_second(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_packet_is_in_one_place() {
        for (sent, dropped) in
            [(0, 0), (100, 0), (0, 100), (60, 40), (60, 20), (101, 0), (90, 20), (500, 500)]
        {
            let divided = divide(100, Counters { sent, dropped });
            assert_eq!(divided.sent + divided.dropped + divided.unaccounted, 100, "{sent} {dropped}");
            assert_eq!(divided.sent + divided.dropped + divided.others, sent + dropped, "{sent} {dropped}");
        }
    }

    #[test]
    fn falling_short_is_more_than_one_percent() {
        assert!(!fell_short(990, Some(1000.0), 1.0, 1));
        assert!(fell_short(980, Some(1000.0), 1.0, 1));
        assert!(!fell_short(980, Some(1000.0), 1.0, 64));
        assert!(!fell_short(1, None, 1.0, 1));
    }
}
