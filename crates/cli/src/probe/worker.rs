//! The worker's side: packets into its tables.

use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::{Record, Timebase};
use wirelane_probe::Worker;

use crate::session::Handler;

/// A packet that was taken up before may still be on its way to the worker, although the worker has found nothing.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// One worker's measurements.
pub struct Prober {
    worker: Worker,
    time: Timebase,
    live: bool,
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
    /// Nothing counted yet. Intervals of a live capture begin now, whether or not packets come.
    pub fn new(mut worker: Worker, time: Timebase, live: bool) -> Prober {
        if live {
            worker.tick(now_ns());
        }
        Prober { worker, time, live }
    }
}

impl Handler for Prober {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        taken(self.worker.record(record, self.time.utc_ns(record)))
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        taken(self.worker.pause())?;
        // While packets come, it is they who say how late it is.
        if self.live && idle {
            taken(self.worker.tick(now_ns().saturating_sub(ON_ITS_WAY_NS)))
        } else {
            Ok(())
        }
    }

    fn finish(&mut self) -> Result<()> {
        taken(self.worker.finish())
    }
}
