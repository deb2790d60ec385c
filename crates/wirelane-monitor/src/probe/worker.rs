//! The worker's side: adds packets to its tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::{Intervals, Record, Timebase};
use wirelane_probe::Worker;

use crate::run_loop::Handler;

/// Time that a packet captured earlier may still be on its way to a worker that has found none.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// Source of the current time.
enum Time {
    /// Time stamps of a file's packets.
    File(Timebase),
    /// Time stamps of packets, and the clock if there are no packets.
    Live(Timebase),
    /// The kernel measures: these are the intervals of its partial sums. Up to `settled`, all partial sums and all
    /// delivered packets have arrived.
    Kernel { intervals: Intervals, of: Timebase, settled: Arc<AtomicU64>, ticked: u64 },
}

/// One worker's measurements.
pub struct Prober {
    worker: Worker,
    time: Time,
}

/// Current time in UTC nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

fn taken(is_taken: bool) -> Result<()> {
    if is_taken { Ok(()) } else { Err(anyhow!("nobody takes the results")) }
}

impl Prober {
    /// Creates a prober without counts. Intervals of a live capture begin now, even without packets. With `intervals`
    /// the kernel measures.
    ///
    /// # Errors
    /// If the kernel does not measure, because the capture was opened without intervals.
    pub fn new(
        mut worker: Worker,
        of: &wirelane::Worker,
        live: bool,
        intervals: Option<Intervals>,
    ) -> Result<Prober> {
        let time = match (intervals, live) {
            (Some(intervals), _) => {
                let settled =
                    of.settled().ok_or_else(|| anyhow!("no parts of flows are made; this is a bug"))?;
                Time::Kernel { intervals, of: of.timebase(), settled, ticked: 0 }
            }
            (None, true) => Time::Live(of.timebase()),
            (None, false) => Time::File(of.timebase()),
        };
        if live {
            worker.tick(now_ns());
        }
        Ok(Prober { worker, time })
    }
}

impl Handler for Prober {
    type Error = anyhow::Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        match (&self.time, record.flow()) {
            (Time::File(time) | Time::Live(time), _) => {
                taken(self.worker.record(record, time.utc_ns(record)))
            }
            (Time::Kernel { intervals, .. }, Some(part)) => {
                let utc_ns = intervals.utc_ns(part.flow.first_ns);
                self.worker.part(&part.key, &part.flow, record.device() as u16, utc_ns);
                Ok(())
            }
            (Time::Kernel { intervals, of, .. }, None) => {
                self.worker.whole(record, intervals.utc_ns(of.steady_ns(record)));
                Ok(())
            }
        }
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        taken(self.worker.pause())?;
        match &mut self.time {
            // While packets come, their time stamps are the current time.
            Time::Live(_) if idle => taken(self.worker.tick(now_ns().saturating_sub(ON_ITS_WAY_NS))),
            Time::Kernel { intervals, settled, ticked, .. } => {
                // Relaxed: written by this thread.
                let now = settled.load(Ordering::Relaxed);
                if now == *ticked {
                    return Ok(());
                }
                *ticked = now;
                taken(self.worker.tick(intervals.utc_ns(now)))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        taken(self.worker.finish())
    }
}
