//! Account of the generator: requested, offered, and the device's counters.

use std::time::Duration;

use serde::Serialize;

use super::interface::{Counters, Gauge, Interface};
use crate::Result;

/// How long to wait for a device's counters to account for what was offered. Drivers count at completion, and
/// a veth counts when its peer has polled.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_STEP: Duration = Duration::from_millis(2);

/// What happened since the interval before.
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
    /// The CPU that it was pinned to.
    pub cpu: usize,
    /// Packets that it handed to the kernel.
    pub offered: u64,
    /// Its first number; none where it sent nothing.
    pub first_sequence: Option<u64>,
    /// Its last number.
    pub last_sequence: Option<u64>,
    /// From one of its numbers to the next.
    pub stride: u64,
}

/// The whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device.
    pub device: String,
    /// `kernel`, `socket`, `xsk`, or `xsk, zero copy`.
    pub method: &'static str,
    /// Why this method, where the choice was left to the generator.
    pub method_reason: Option<String>,
    /// The rate that was asked for, in packets per second; none: as fast as possible.
    pub asked_pps: Option<f64>,
    /// The number of packets that was asked for.
    pub asked_packets: Option<u64>,
    /// The time that was asked for, in seconds.
    pub asked_duration_s: Option<f64>,
    /// Packets handed to the kernel.
    pub offered: u64,
    /// Of these, what the device counted as transmitted; by zero copy, what its driver gave back as sent.
    pub sent: u64,
    /// Of these, what the device counted as dropped.
    pub dropped: u64,
    /// Offered and neither counted as sent nor as dropped: refused before the device, or lost by a driver's
    /// own counters, which on a veth are inexact while more threads send than its peer has RX queues.
    pub unaccounted: u64,
    /// Packets that the device counted beyond what was offered: something else sends on it too, so `sent` and
    /// `dropped` may include packets of others.
    pub others: u64,
    /// Times that the device had no room and a packet was tried again.
    pub refused: u64,
    /// Bytes of the offered packets, without FCS.
    pub bytes: u64,
    /// From the first packet to the end of the last, in seconds.
    pub duration_s: f64,
    /// Offered packets per second.
    pub pps: f64,
    /// Offered bits per second, without FCS, preamble and gap.
    pub bps: f64,
    /// Packets that were due and were given up because the generator was too slow.
    pub given_up: u64,
    /// Whether the generator stayed more than 1 % below the rate that was asked for.
    pub fell_short: bool,
    /// The lowest number that was offered.
    pub first_sequence: Option<u64>,
    /// The highest number that was offered. With several threads and a run that ended by time, a few numbers
    /// below it may not have been: see each thread's own.
    pub last_sequence: Option<u64>,
    /// Each thread.
    pub threads: Vec<ThreadReport>,
}

/// What the device counted since a moment.
#[derive(Debug)]
pub(super) struct Meter {
    gauge: Gauge,
    start: Counters,
}

/// How offered packets divide; see the fields of [`Report`].
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

    /// What was counted up to now. Attempts that were turned down and tried again are no drops.
    pub(super) fn read(&self, refused: u64) -> Result<Counters> {
        let now = self.gauge.counters()?;
        Ok(Counters {
            sent: now.sent.saturating_sub(self.start.sent),
            dropped: now.dropped.saturating_sub(self.start.dropped).saturating_sub(refused),
        })
    }

    /// What was counted once the counters account for all that was offered, or no longer move.
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

/// Whether this is more than 1 % below the rate, beyond one burst that was not due yet at the end.
pub(super) fn fell_short(offered: u64, asked_pps: Option<f64>, duration_s: f64, burst: u64) -> bool {
    asked_pps.is_some_and(|pps| (offered + burst) as f64 <= pps * duration_s * 0.99)
}

/// `count` per second; 0 for no time at all.
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
