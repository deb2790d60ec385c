//! The worker's side: packets into its connections, transactions that are over to the logs.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Result, anyhow};
use wirelane::{Record, Worker};
use wirelane_analysis::http::{HttpSettings, HttpTable, Totals, Transaction};

use crate::session::Handler;

/// Transactions that are handed on together.
const TOGETHER: usize = 256;
/// A packet that was taken up before may still be on its way to the worker, although the worker has found nothing.
const ON_ITS_WAY_NS: u64 = 100_000_000;

/// What all workers have come to.
#[derive(Debug, Default)]
pub struct Homes(Mutex<Totals>);

impl Homes {
    /// The sums, once all workers have ended.
    pub fn totals(&self) -> Totals {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's connections.
pub struct Probe {
    table: HttpTable,
    time: wirelane::Timebase,
    sender: SyncSender<Vec<Transaction>>,
    homes: Arc<Homes>,
    live: bool,
}

impl Probe {
    /// A worker without connections.
    pub fn new(
        settings: HttpSettings,
        live: bool,
        worker: &Worker,
        sender: SyncSender<Vec<Transaction>>,
        homes: &Arc<Homes>,
    ) -> Probe {
        let mut table = HttpTable::new(settings);
        let time = worker.timebase();
        if let Some(below) = worker.http_below() {
            table.ask(below, time.clone());
        }
        Probe { table, time, sender, homes: Arc::clone(homes), live }
    }

    /// Hands on what is over. Where the logs do not keep up, the worker waits for them, and its rings fill: what is lost
    /// then is in the ledger.
    fn hand_on(&mut self) -> Result<()> {
        if self.table.finished().is_empty() {
            return Ok(());
        }
        let finished = std::mem::take(self.table.finished());
        self.sender.send(finished).map_err(|_| anyhow!("the logs have ended"))
    }
}

impl Handler for Probe {
    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        if let Some(told) = record.http() {
            // Its stamp is that of the packet behind it, on the same clock.
            let before = record.header().ts_ns.saturating_sub(told.last_ns);
            self.table.below(told, self.time.utc_ns(record).saturating_sub(before));
            return Ok(());
        }
        self.table.record(record, self.time.utc_ns(record));
        if self.table.finished().len() >= TOGETHER { self.hand_on() } else { Ok(()) }
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        // While packets come, it is they who say how late it is.
        if self.live && idle {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
            self.table.tick(now_ns.saturating_sub(ON_ITS_WAY_NS));
        }
        // Of a file, batch by batch would be one by one.
        if self.live { self.hand_on() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        self.table.flush();
        self.hand_on()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        *self.homes.0.lock().unwrap_or_else(PoisonError::into_inner) += self.table.totals();
    }
}
