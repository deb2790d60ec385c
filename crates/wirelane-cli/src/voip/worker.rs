//! The worker's side: packets to the monitor, what is over to the exports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::ledger::Counters;
use wirelane::{Record, Timebase};
use wirelane_analysis::voip::{Finished, Monitor};
use wirelane_export::metrics::VoipMetrics;

use super::top::Board;
use crate::session::Handler;

/// What is handed on together.
const TOGETHER: usize = 64;
/// A packet that was taken up before may still be on its way to the worker, although the worker has found nothing.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// What the capture has lost by now, for the worker: the main thread stores it at each interval, the worker loads it. The
/// number stands alone, so that relaxed order will do.
#[derive(Debug, Default)]
pub struct CaptureLoss(AtomicU64);

impl CaptureLoss {
    /// The ledger says so.
    pub fn set(&self, counters: &Counters) {
        self.0.store(lost(counters), Ordering::Relaxed);
    }
}

/// Packets that were for us, and that we do not have.
pub fn lost(counters: &Counters) -> u64 {
    counters.lost + counters.shed + counters.nic_missed.unwrap_or(0)
}

/// Where a worker leaves its monitor when it ends: what goes on then is handed out once the last ledger is known.
pub type Left = Arc<Mutex<Option<Monitor>>>;

/// The worker.
pub struct Listener {
    /// There until it is left behind.
    monitor: Option<Monitor>,
    time: Timebase,
    sender: SyncSender<Vec<Finished>>,
    loss: Arc<CaptureLoss>,
    left: Left,
    live: bool,
    metrics: Option<VoipMetrics>,
    board: Option<Arc<Board>>,
}

impl Listener {
    /// A worker with a monitor that has seen nothing.
    pub fn new(
        monitor: Monitor,
        time: Timebase,
        sender: SyncSender<Vec<Finished>>,
        loss: Arc<CaptureLoss>,
        left: Left,
        live: bool,
    ) -> Listener {
        Listener { monitor: Some(monitor), time, sender, loss, left, live, metrics: None, board: None }
    }

    /// The same, which tells others what goes on.
    pub fn watched(mut self, metrics: Option<VoipMetrics>, board: Option<Arc<Board>>) -> Listener {
        (self.metrics, self.board) = (metrics, board);
        self
    }

    /// Hands on what is over. Where the exports do not keep up, the worker waits for them, and its rings fill: what is
    /// lost then is in the ledger.
    fn hand_on(&mut self, least: usize) -> Result<()> {
        let Some(monitor) = &mut self.monitor else { return Ok(()) };
        if monitor.finished().len() < least.max(1) {
            return Ok(());
        }
        let finished = std::mem::take(monitor.finished());
        self.sender.send(finished).map_err(|_| anyhow!("the exports have ended"))
    }
}

impl Handler for Listener {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let ts_ns = self.time.utc_ns(record);
        if let Some(monitor) = &mut self.monitor {
            monitor.record(record, ts_ns);
        }
        self.hand_on(TOGETHER)
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        if let Some(monitor) = self.monitor.as_mut().filter(|_| self.live) {
            monitor.lost_by_capture(self.loss.0.load(Ordering::Relaxed));
            if let Some(metrics) = &self.metrics {
                metrics.active(monitor.active());
            }
            if let Some(board) = &self.board {
                board.look(monitor);
            }
            // While packets come, it is they who say how late it is.
            if idle {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
                monitor.tick(now_ns.saturating_sub(ON_ITS_WAY_NS));
            }
        }
        // Of a file, batch by batch would be call by call.
        if self.live { self.hand_on(1) } else { Ok(()) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.monitor.take();
    }
}
