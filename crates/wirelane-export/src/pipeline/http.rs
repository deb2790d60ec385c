//! Pipeline of HTTP: packets to connections, and finished transactions to logs.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use wirelane::{Record, Worker};
use wirelane_analysis::http::{HttpSettings, HttpTable, Totals, Transaction};

use super::{Handler, ON_ITS_WAY_NS, Sink, ended, now_ns};
use crate::flows::Exporters;
use crate::http::Logs;
use crate::metrics::HttpMetrics;
use crate::{Error, Result};

/// Time that the exporting thread waits for transactions before it flushes files for their readers.
const REST: Duration = Duration::from_millis(200);

/// Totals of all workers.
#[derive(Debug, Default)]
pub struct SharedTotals(Mutex<Totals>);

impl SharedTotals {
    /// The sums, once all workers have ended.
    pub fn totals(&self) -> Totals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's connections.
pub struct HttpWorker {
    table: HttpTable,
    time: wirelane::Timebase,
    sender: SyncSender<Vec<Transaction>>,
    totals: Arc<SharedTotals>,
    live: bool,
}

impl HttpWorker {
    /// A worker without connections.
    pub fn new(
        settings: HttpSettings,
        live: bool,
        worker: &Worker,
        sender: SyncSender<Vec<Transaction>>,
        totals: &Arc<SharedTotals>,
    ) -> HttpWorker {
        let mut table = HttpTable::new(settings);
        let time = worker.timebase();
        if let Some(below) = worker.http_offload() {
            table.ask(below, time.clone());
        }
        HttpWorker { table, time, sender, totals: Arc::clone(totals), live }
    }

    /// Sends finished transactions. If the logs do not keep up, the worker waits for them, and its rings fill: packets
    /// lost then are in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        while let Some(finished) = self.table.finished().take() {
            self.sender.send(finished).map_err(|_| ended("the logs"))?;
        }
        Ok(())
    }
}

impl Handler for HttpWorker {
    type Error = Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        if let Some(told) = record.http() {
            // The record has the time stamp of the packet after the skipped bytes, on the same clock.
            let before = record.header().ts_ns.saturating_sub(told.last_ns);
            self.table.offloaded(told, self.time.utc_ns(record).saturating_sub(before));
            return Ok(());
        }
        self.table.record(record, self.time.utc_ns(record));
        if self.table.finished().is_full() { self.hand_on() } else { Ok(()) }
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        // While packets come, their time stamps are the current time.
        if self.live && idle {
            while self.table.tick(now_ns().saturating_sub(ON_ITS_WAY_NS)) {
                self.hand_on()?;
            }
        }
        // For a file, sending at each batch would send single transactions.
        if self.live { self.hand_on() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        while self.table.flush() {
            self.hand_on()?;
        }
        self.hand_on()
    }
}

impl Drop for HttpWorker {
    fn drop(&mut self) {
        *self.totals.0.lock().unwrap_or_else(PoisonError::into_inner) += self.table.totals();
    }
}

/// Outputs of transactions.
pub struct Outputs {
    /// Logs.
    pub logs: Logs,
    /// Collectors, and IPFIX files.
    pub exporters: Exporters,
    /// Metrics.
    pub metrics: Option<HttpMetrics>,
}

/// Logs and exports transactions until the channel ends or `sink` returns an error. The results are in the outputs.
///
/// # Errors
/// The error of `sink`; all earlier transactions have been logged.
pub fn export<S: Sink<Transaction>>(
    Outputs { logs, exporters, metrics }: &mut Outputs,
    sink: &mut S,
    inbox: &Receiver<Vec<Transaction>>,
) -> std::result::Result<(), S::Error> {
    let mut result = Ok(());
    loop {
        sink.told(&|| [logs.states(), exporters.states()].concat());
        if exporters.is_full() {
            exporters.wait(REST);
            exporters.pump();
            continue;
        }
        match inbox.recv_timeout(exporters.rest(REST)) {
            Ok(transactions) => {
                logs.write(&transactions);
                exporters.transactions(&transactions);
                if let Some(metrics) = metrics {
                    metrics.take(&transactions);
                }
                result = sink.take(transactions);
                // Closing this end of the channel ends the workers.
                if result.is_err() {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                logs.flush();
                exporters.pump();
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let result = result.and_then(|()| sink.finish());
    logs.finish();
    exporters.finish();
    result
}
