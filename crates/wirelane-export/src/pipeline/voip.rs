//! Pipeline of VoIP: packets to the call monitor, and ended calls to the exports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wirelane::ledger::Counters;
use wirelane::{Record, Timebase};
use wirelane_analysis::voip::{Exchange, Finished, Monitor, WorkerEnd};

use super::{Handler, ON_ITS_WAY_NS, Sink, ended, now_ns};
use crate::metrics::VoipMetrics;
use crate::voip::{Exporters, SavedCalls};
use crate::{Error, Result};

/// Time that the exporting thread waits for calls, if it has nothing else to do.
const REST: Duration = Duration::from_millis(100);
/// Time between two looks at the packets that workers hand over, if none of them wakes the thread.
const TURN: Duration = Duration::from_millis(5);
/// The same if no worker has had a packet since the last look.
const LONGEST_TURN: Duration = Duration::from_millis(40);

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

/// Monitor of the calls of a capture, with the channel to the exports.
pub struct Calls {
    /// Set until the monitor is left in the slot.
    monitor: Option<Monitor>,
    sender: SyncSender<Vec<Finished>>,
    loss: Arc<CaptureLoss>,
    left: Left,
    live: bool,
    metrics: Option<VoipMetrics>,
    watcher: Option<Watcher>,
}

impl Calls {
    /// Calls of a new monitor.
    pub fn new(
        monitor: Monitor,
        sender: SyncSender<Vec<Finished>>,
        loss: Arc<CaptureLoss>,
        left: Left,
        live: bool,
    ) -> Calls {
        Calls { monitor: Some(monitor), sender, loss, left, live, metrics: None, watcher: None }
    }

    /// Sets the metrics and the callback for active calls.
    #[must_use]
    pub fn watched(mut self, metrics: Option<VoipMetrics>, watcher: Option<Watcher>) -> Calls {
        (self.metrics, self.watcher) = (metrics, watcher);
        self
    }

    /// Sends ended calls. If the exports do not keep up, the worker waits for them, and its rings fill: packets lost
    /// then are in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        self.monitor.as_mut().map_or(Ok(()), |monitor| hand_on(monitor, &self.sender))
    }

    /// Updates everything that shows the calls of a live capture.
    fn show(&mut self) {
        if let Some(monitor) = self.monitor.as_mut().filter(|_| self.live) {
            monitor.lost_by_capture(self.loss.0.load(Ordering::Relaxed));
            if let Some(metrics) = &self.metrics {
                metrics.active(monitor.active());
            }
            if let Some(watcher) = &mut self.watcher {
                watcher(monitor);
            }
        }
    }

    /// Processes what workers hand over, until the last of them ends. The result is that of the exports.
    fn serve(mut self, exchange: &Exchange) -> Result<()> {
        exchange.serve();
        let (mut turn, mut before_ns) = (TURN, 0);
        loop {
            let until_ns = exchange.until_ns();
            let last = exchange.has_ended();
            while self.monitor.as_mut().is_some_and(Monitor::turn) {
                self.hand_on()?;
            }
            self.show();
            if self.live || last {
                self.hand_on()?;
            }
            if last {
                return Ok(());
            }
            turn = if until_ns == before_ns { (turn * 2).min(LONGEST_TURN) } else { TURN };
            before_ns = until_ns;
            exchange.wait(turn);
        }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = self.monitor.take();
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

/// Starts the thread of the calls of several workers. It ends after the last [`VoipWorker`] of the exchange.
///
/// # Errors
/// If the thread cannot be started.
pub fn serve(calls: Calls, exchange: Arc<Exchange>) -> std::io::Result<JoinHandle<Result<()>>> {
    std::thread::Builder::new().name("wl-calls".into()).spawn(move || {
        // Also where the thread panics: workers would wait for it.
        struct Ended(Arc<Exchange>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        let exchange = Ended(exchange);
        calls.serve(&exchange.0)
    })
}

/// A worker that monitors calls.
pub enum VoipWorker {
    /// The only one.
    Whole {
        /// Its calls.
        calls: Box<Calls>,
        /// Converts the time of records.
        time: Timebase,
    },
    /// One of several: calls are in a thread of their own ([`serve`]).
    Part {
        /// Its end of the exchange.
        end: WorkerEnd,
        /// Converts the time of records.
        time: Timebase,
        /// See [`wirelane::Worker::caught_up`].
        caught_up: Arc<AtomicU64>,
    },
}

impl Handler for VoipWorker {
    type Error = Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        match self {
            VoipWorker::Whole { calls, time } => {
                let ts_ns = time.utc_ns(record);
                if let Some(monitor) = &mut calls.monitor {
                    monitor.record(record, ts_ns);
                    if monitor.finished().is_full() {
                        return calls.hand_on();
                    }
                }
                Ok(())
            }
            VoipWorker::Part { end, time, .. } => end
                .record(record, time.steady_ns(record), time.utc_ns(record))
                .map_err(|_| ended("the calls")),
        }
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        match self {
            VoipWorker::Whole { calls, .. } => {
                calls.show();
                // While packets come, their time stamps are the current time.
                if idle && calls.live {
                    let now_ns = now_ns().saturating_sub(ON_ITS_WAY_NS);
                    while calls.monitor.as_mut().is_some_and(|monitor| monitor.tick(now_ns)) {
                        calls.hand_on()?;
                    }
                }
                // For a file, sending at each batch would send single calls.
                if calls.live { calls.hand_on() } else { Ok(()) }
            }
            VoipWorker::Part { end, time, caught_up } => {
                let until_ns = caught_up.load(Ordering::Relaxed);
                match idle {
                    true => end.caught_up(until_ns, time.utc_of_steady_ns(until_ns)),
                    false => end.flush(),
                }
                .map_err(|_| ended("the calls"))
            }
        }
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
