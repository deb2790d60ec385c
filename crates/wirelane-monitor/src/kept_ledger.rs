//! The ledger of a live capture in its store, beside what the analyses store: whether anything is missing is asked of
//! the store, too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use wirelane::Ledger;
use wirelane_probe::{Entry, Growth};

use crate::probe::worker::now_ns;
use crate::shares::Shares;
use crate::store::{Store, StoreOptions, Stored};

/// Stores the growth of a ledger, a row for each interval in which it grows.
pub struct KeptLedger {
    store: Store<Entry>,
    growth: Growth,
}

impl KeptLedger {
    /// Opens the store, before privileges are dropped; `None` if there is none, or the packets are of files.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(options: &StoreOptions, live: bool, owner: Option<(u32, u32)>) -> Result<Option<KeptLedger>> {
        if !live {
            return Ok(None);
        }
        let store = Store::open(options, live, owner, Shares::UNLIMITED, |_| 0)?;
        Ok(store.map(|store| KeptLedger { store, growth: Growth::default() }))
    }

    /// Starts the writer's thread, after privileges are dropped.
    ///
    /// # Errors
    /// As [`Store::start`].
    pub fn start(&mut self) -> Result<()> {
        self.growth = Growth::from(now_ns());
        self.store.start(())
    }

    /// Flag of the capture's end, for all writers of this store.
    pub fn ending(&self) -> Arc<AtomicBool> {
        self.store.ending()
    }

    /// Stores what has been added since the last call.
    pub fn add(&mut self, ledger: &Ledger) {
        if let Some(part) = self.growth.part(&ledger.total, self.store.unstored(), now_ns()) {
            self.store.take(vec![Entry::Ledger(part)]);
        }
    }

    /// Ends the store. `ledger`: the final one, if there is one.
    pub fn finish(mut self, ledger: Option<&Ledger>) -> Stored {
        if let Some(ledger) = ledger {
            self.add(ledger);
        }
        self.store.finish()
    }
}
