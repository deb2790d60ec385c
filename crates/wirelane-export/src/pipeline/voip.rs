//! Packets to the monitor of calls, and calls that are over to the exports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wirelane::ledger::Counters;
use wirelane::{Record, Timebase};
use wirelane_analysis::voip::{Finished, Monitor};

use super::{Handler, ON_ITS_WAY_NS, Sink, ended, now_ns};
use crate::metrics::VoipMetrics;
use crate::voip::{Exporters, SavedCalls};
use crate::{Error, Result};

/// How long the exporting thread waits for calls, where nothing else is to be done.
const REST: Duration = Duration::from_millis(100);

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

/// Looks at the calls that go on.
pub type Watcher = Box<dyn FnMut(&mut Monitor) + Send>;

/// The worker.
pub struct VoipWorker {
    /// There until it is left behind.
    monitor: Option<Monitor>,
    time: Timebase,
    sender: SyncSender<Vec<Finished>>,
    loss: Arc<CaptureLoss>,
    left: Left,
    live: bool,
    metrics: Option<VoipMetrics>,
    watcher: Option<Watcher>,
}

impl VoipWorker {
    /// A worker with a monitor that has seen nothing.
    pub fn new(
        monitor: Monitor,
        time: Timebase,
        sender: SyncSender<Vec<Finished>>,
        loss: Arc<CaptureLoss>,
        left: Left,
        live: bool,
    ) -> VoipWorker {
        VoipWorker { monitor: Some(monitor), time, sender, loss, left, live, metrics: None, watcher: None }
    }

    /// The same, which tells others what goes on.
    #[must_use]
    pub fn watched(mut self, metrics: Option<VoipMetrics>, watcher: Option<Watcher>) -> VoipWorker {
        (self.metrics, self.watcher) = (metrics, watcher);
        self
    }

    /// Hands on what is over. Where the exports do not keep up, the worker waits for them, and its rings fill: what is
    /// lost then is in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        self.monitor.as_mut().map_or(Ok(()), |monitor| hand_on(monitor, &self.sender))
    }
}

/// Hands on what a monitor has to hand on.
///
/// # Errors
/// Where nobody takes it any more.
pub fn hand_on(monitor: &mut Monitor, sender: &SyncSender<Vec<Finished>>) -> Result<()> {
    while let Some(finished) = monitor.finished().take() {
        sender.send(finished).map_err(|_| ended("the exports"))?;
    }
    Ok(())
}

impl Handler for VoipWorker {
    type Error = Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let ts_ns = self.time.utc_ns(record);
        if let Some(monitor) = &mut self.monitor {
            monitor.record(record, ts_ns);
            if monitor.finished().is_full() {
                return self.hand_on();
            }
        }
        Ok(())
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        if let Some(monitor) = self.monitor.as_mut().filter(|_| self.live) {
            monitor.lost_by_capture(self.loss.0.load(Ordering::Relaxed));
            if let Some(metrics) = &self.metrics {
                metrics.active(monitor.active());
            }
            if let Some(watcher) = &mut self.watcher {
                watcher(monitor);
            }
            // While packets come, it is they who say how late it is.
            if idle {
                while monitor.tick(now_ns().saturating_sub(ON_ITS_WAY_NS)) {
                    hand_on(monitor, &self.sender)?;
                }
            }
        }
        // Of a file, batch by batch would be call by call.
        if self.live { self.hand_on() } else { Ok(()) }
    }
}

impl Drop for VoipWorker {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.monitor.take();
    }
}

/// Where calls go.
pub struct Outputs {
    /// Receivers and files.
    pub exporters: Exporters,
    /// Capture files, one for each call.
    pub saved: Option<SavedCalls>,
    /// Whoever counts them.
    pub metrics: Option<VoipMetrics>,
}

/// Exports what comes, until no more does or `sink` has had enough. What became of the calls is in the outputs.
///
/// # Errors
/// What `sink` says; everything that came before has been exported.
pub fn export<S: Sink<Finished>>(
    Outputs { exporters, saved, metrics }: &mut Outputs,
    sink: &mut S,
    inbox: &Receiver<Vec<Finished>>,
) -> std::result::Result<(), S::Error> {
    let mut result = Ok(());
    loop {
        if exporters.is_full() {
            std::thread::sleep(exporters.rest(REST).max(Duration::from_micros(100)));
            exporters.pump();
            continue;
        }
        match inbox.recv_timeout(exporters.rest(REST)) {
            Ok(finished) => {
                exporters.take(&finished);
                if let Some(metrics) = metrics {
                    metrics.take(&finished);
                }
                if let Some(saved) = saved {
                    saved.take(&finished);
                }
                result = sink.take(finished);
                // With this end of the channel the worker ends.
                if result.is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => exporters.pump(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let result = result.and_then(|()| sink.finish());
    exporters.finish();
    result
}
