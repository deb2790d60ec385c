//! Pipeline of VoIP: packets to the call monitor, and ended calls to the exports.

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

/// Time that the exporting thread waits for calls, if it has nothing else to do.
const REST: Duration = Duration::from_millis(100);

/// Packets lost by the capture so far, for the worker: the main thread stores the number at each interval, the worker
/// loads it. The number is independent of other data, so relaxed order is sufficient.
#[derive(Debug, Default)]
pub struct CaptureLoss(AtomicU64);

impl CaptureLoss {
    /// Sets the number from the ledger.
    pub fn set(&self, counters: &Counters) {
        self.0.store(lost(counters), Ordering::Relaxed);
    }
}

/// Packets for this capture that did not reach it.
pub fn lost(counters: &Counters) -> u64 {
    counters.lost + counters.shed + counters.nic_missed.unwrap_or(0)
}

/// Slot for a worker's monitor when the worker ends: active calls are handed out once the final ledger is known.
pub type Left = Arc<Mutex<Option<Monitor>>>;

/// Callback for the active calls.
pub type Watcher = Box<dyn FnMut(&mut Monitor) + Send>;

/// A worker that monitors calls.
pub struct VoipWorker {
    /// Set until the monitor is left in the slot.
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
    /// A worker with a new monitor.
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

    /// Sets the metrics and the callback for active calls.
    #[must_use]
    pub fn watched(mut self, metrics: Option<VoipMetrics>, watcher: Option<Watcher>) -> VoipWorker {
        (self.metrics, self.watcher) = (metrics, watcher);
        self
    }

    /// Sends ended calls. If the exports do not keep up, the worker waits for them, and its rings fill: packets lost
    /// then are in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        self.monitor.as_mut().map_or(Ok(()), |monitor| hand_on(monitor, &self.sender))
    }
}

/// Sends the finished items of a monitor.
///
/// # Errors
/// If the exporting thread has ended.
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
            // While packets come, their time stamps are the current time.
            if idle {
                while monitor.tick(now_ns().saturating_sub(ON_ITS_WAY_NS)) {
                    hand_on(monitor, &self.sender)?;
                }
            }
        }
        // For a file, sending at each batch would send single calls.
        if self.live { self.hand_on() } else { Ok(()) }
    }
}

impl Drop for VoipWorker {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.monitor.take();
    }
}

/// Outputs of calls.
pub struct Outputs {
    /// Receivers and files.
    pub exporters: Exporters,
    /// Capture files, one for each call.
    pub saved: Option<SavedCalls>,
    /// Metrics.
    pub metrics: Option<VoipMetrics>,
}

/// Exports calls until the channel ends or `sink` returns an error. The results are in the outputs.
///
/// # Errors
/// The error of `sink`; all earlier calls have been exported.
pub fn export<S: Sink<Finished>>(
    Outputs { exporters, saved, metrics }: &mut Outputs,
    sink: &mut S,
    inbox: &Receiver<Vec<Finished>>,
) -> std::result::Result<(), S::Error> {
    let mut result = Ok(());
    loop {
        sink.told(&|| exporters.states().into_iter().chain(saved.as_ref().map(SavedCalls::state)).collect());
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
                // Closing this end of the channel ends the worker.
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
