//! The worker's side: packets into its tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::{Intervals, Record, Timebase};
use wirelane_probe::Worker;

use crate::run_loop::Handler;

/// A packet that was taken up before may still be on its way to the worker, although the worker has found nothing.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// How late it is.
enum Time {
    /// A file's packets say it.
    File(Timebase),
    /// Packets say it, and the clock where none come.
    Live(Timebase),
    /// The kernel adds packets up: these intervals are its parts', and up to this time all parts have come, and what
    /// comes up beside them.
    Kernel { intervals: Intervals, of: Timebase, settled: Arc<AtomicU64>, ticked: u64 },
}

/// One worker's measurements.
pub struct Prober {
    worker: Worker,
    time: Time,
}

/// Now, UTC nanoseconds since 1970.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

fn taken(is_taken: bool) -> Result<()> {
    if is_taken { Ok(()) } else { Err(anyhow!("nobody takes the results")) }
}

impl Prober {
    /// Nothing counted yet. Intervals of a live capture begin now, whether or not packets come. With `intervals` the
    /// kernel adds packets up.
    ///
    /// # Errors
    /// Where it does not, as the capture was opened without them.
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
            // While packets come, it is they who say how late it is.
            Time::Live(_) if idle => taken(self.worker.tick(now_ns().saturating_sub(ON_ITS_WAY_NS))),
            Time::Kernel { intervals, settled, ticked, .. } => {
                // Relaxed: this thread has written it.
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
