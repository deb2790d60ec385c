//! Sends the batches of a store to one target.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use wirelane_store::shipping::{Batch, Cause, Merged, Outbox, Taken, Waiting};
use wirelane_store::{Table, shipping};

use crate::place::{Destination, Place, Shipment};
use crate::{Error, Result};

/// First delay after a failure, and the longest one.
const DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Hours of a day: a batch has rows of one day, which is one partition.
const DAY: i64 = 24;

/// Settings of shipping.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The store's folder.
    pub store: PathBuf,
    /// Size in bytes at which a batch is sent.
    pub batch_size: u64,
    /// How long a file waits for others at most.
    pub batch_age: Duration,
    /// Whether the schema is applied first.
    pub create: bool,
    /// Name of the probe for rows of files that do not name theirs.
    pub probe: String,
}

/// Counts of a target: shipped, and waiting.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// The target.
    pub to: String,
    /// Rows that arrived since the start.
    pub shipped_rows: u64,
    /// Files that arrived since the start.
    pub shipped_files: u64,
    /// Batches that arrived since the start.
    pub batches: u64,
    /// Files that wait, with those of the batch on its way.
    pub waiting_files: u64,
    /// Bytes of these files.
    pub waiting_bytes: u64,
    /// Seconds since the oldest of them was complete.
    pub lag_s: f64,
    /// Repeated requests since the start.
    pub retries: u64,
    /// Files that could not be read, and are not shipped.
    pub damaged_files: u64,
    /// Rows that retention removed before they were shipped, as far as known since the start.
    pub unshipped_rows: u64,
    /// The last error, until something arrives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Ships a store to one target.
#[derive(Debug)]
pub struct Shipper {
    settings: Settings,
    destination: Box<dyn Destination>,
    outbox: Outbox,
    status: Status,
    /// Whether the schema was applied, or is not to be.
    is_created: bool,
    /// Whether the server's tables were checked since the last refusal.
    is_checked: bool,
    /// Whether the pending batch may have been sent before.
    is_repeated: bool,
    delay: Duration,
    first_seen: BTreeMap<PathBuf, Instant>,
}

impl Shipper {
    /// Opens the state of the target in the store, whose shipper's lock the caller holds. `destination`: the target, opened.
    /// `merged`: files that this process merges.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn open(
        settings: Settings,
        place: &Place,
        destination: Box<dyn Destination>,
        merged: Merged,
    ) -> Result<Shipper> {
        let outbox = Outbox::open(&settings.store, &place.name(), merged)?;
        let status = Status { to: place.to_string(), ..Status::default() };
        let is_repeated = outbox.pending().is_some();
        let (delay, first_seen, is_created) = (DELAYS.0, BTreeMap::new(), !settings.create);
        let is_checked = false;
        Ok(Shipper {
            settings,
            destination,
            outbox,
            status,
            is_created,
            is_checked,
            is_repeated,
            delay,
            first_seen,
        })
    }

    /// Sends one batch, if one is due. `all`: whatever waits is due. Returns whether something was sent.
    ///
    /// # Errors
    /// Why nothing was sent, or is not known to have arrived.
    pub fn step(&mut self, all: bool) -> Result<bool> {
        let result = self.attempt(all);
        match &result {
            Ok(true) => (self.status.error, self.delay) = (None, DELAYS.0),
            Ok(false) => {}
            Err(error) => {
                self.status.error = Some(error.to_string());
                self.status.retries += 1;
                // The tables may have been changed.
                self.is_checked &= !matches!(error, Error::Refused { .. });
            }
        }
        result
    }

    /// Delay before the next attempt after a failure: it doubles, and half of it is random, so that many probes do not
    /// return to a server at the same moment.
    pub fn delay(&mut self) -> Duration {
        let (delay, random) = (self.delay, RandomState::new().hash_one(self.status.retries));
        self.delay = (delay * 2).min(DELAYS.1);
        delay / 2 + delay.mul_f64(random as f64 / u64::MAX as f64 / 2.0)
    }

    /// The state; files are counted now.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn status(&mut self) -> Result<Status> {
        let mut waiting = Vec::new();
        for table in Table::ALL {
            waiting.extend(self.outbox.waiting(table)?);
        }
        self.status.waiting_files = waiting.len() as u64;
        self.status.waiting_bytes = waiting.iter().map(|file| file.size).sum();
        let now = SystemTime::now();
        let age = |file: &Waiting| {
            let changed =
                self.settings.store.join(&file.file).metadata().and_then(|metadata| metadata.modified());
            changed.ok().and_then(|changed| now.duration_since(changed).ok()).unwrap_or_default()
        };
        let lag = waiting.iter().map(age).max().unwrap_or_default();
        self.status.lag_s = (lag.as_secs_f64() * 10.0).round() / 10.0;
        Ok(self.status.clone())
    }

    fn attempt(&mut self, all: bool) -> Result<bool> {
        if !self.is_created {
            self.destination.create()?;
            self.is_created = true;
        }
        if self.outbox.pending().is_none() && !self.claim(all)? {
            return self.report_taken();
        }
        if !self.is_checked {
            self.destination.check()?;
            self.is_checked = true;
        }
        let Some(batch) = self.outbox.pending().cloned() else { return Ok(false) };
        if self.is_repeated {
            tracing::info!("batch {} is sent again under its token", batch.token);
        }
        self.is_repeated = true;
        self.send(&batch)?;
        self.is_repeated = false;
        self.status.batches += 1;
        Ok(true)
    }

    /// Claims a batch that is due.
    fn claim(&mut self, all: bool) -> Result<bool> {
        let mut seen = BTreeMap::new();
        let mut due: Option<(Table, Vec<PathBuf>)> = None;
        for table in Table::ALL {
            let waiting = self.outbox.waiting(table)?;
            let Some(day) = waiting.first().map(|file| file.hour.div_euclid(DAY)) else { continue };
            for file in &waiting {
                let since = self.first_seen.get(&file.file).copied().unwrap_or_else(Instant::now);
                seen.insert(file.file.clone(), since);
            }
            let (mut size, mut files, mut is_old) = (0, Vec::new(), false);
            for file in waiting.into_iter().filter(|file| file.hour.div_euclid(DAY) == day) {
                if size > 0 && size + file.size > self.settings.batch_size {
                    is_old = true;
                    break;
                }
                size += file.size;
                // By the monotonic clock, since that of the files may jump.
                is_old |= seen[&file.file].elapsed() >= self.settings.batch_age;
                files.push(file.file);
            }
            if due.is_none() && (all || is_old || size >= self.settings.batch_size) {
                due = Some((table, files));
            }
        }
        self.first_seen = seen;
        match due {
            Some((table, files)) => Ok(self.outbox.claim(table, files)?),
            None => Ok(false),
        }
    }

    fn send(&mut self, batch: &Batch) -> Result<()> {
        let table = Table::ALL.into_iter().find(|table| table.name() == batch.table);
        let table = table.ok_or_else(|| Error::Bug(format!("a batch of the table '{}'", batch.table)))?;
        let paths: Vec<PathBuf> = batch.files.iter().map(|file| self.settings.store.join(file)).collect();
        let own = self.settings.probe.as_str();
        let rows = shipping::rows(table, &paths, own)?;
        for (path, why) in &rows.damaged {
            tracing::warn!("{} cannot be read and is not shipped: {why:?}", path.display());
        }
        if !rows.files.is_empty() {
            self.destination.send(table, &rows, own, &batch.token)?;
        }
        let mut sums: BTreeMap<(&str, i64, &str), (u64, u64)> = BTreeMap::new();
        let files = rows.files.iter().map(|(file, _)| file);
        let found = files
            .clone()
            .map(|file| (file.path.as_path(), file.probe.as_deref().unwrap_or(own), "shipped", file.rows));
        let damaged = rows.damaged.iter().map(|(path, _)| (path.as_path(), own, "damaged", 0));
        for (path, probe, kind, rows) in found.chain(damaged) {
            let sum = sums.entry((probe, hour_s(path), kind)).or_default();
            *sum = (sum.0 + 1, sum.1 + rows);
        }
        let shipments = sums.into_iter().map(|((probe, hour, kind), (files, rows))| Shipment {
            probe,
            time: now_s(),
            hour,
            table: &batch.table,
            kind,
            batch: &batch.token,
            files,
            rows,
        });
        self.destination.describe(&shipments.collect::<Vec<_>>(), &batch.token)?;
        self.outbox.arrived()?;
        self.status.shipped_files += rows.files.len() as u64;
        self.status.shipped_rows += files.map(|file| file.rows).sum::<u64>();
        self.status.damaged_files += rows.damaged.len() as u64;
        Ok(())
    }

    /// Tells the target of files that retention removed before they were shipped, and of killed writers.
    fn report_taken(&mut self) -> Result<bool> {
        let taken = self.outbox.taken()?;
        for one in &taken {
            let Taken { cause, file, table, hour, probe, rows } = one;
            let batch = file.file_stem().unwrap_or_default().to_string_lossy();
            let probe = probe.as_deref().unwrap_or(&self.settings.probe);
            let rows = rows.unwrap_or(0);
            let (time, hour, kind) = (now_s(), hour * 3600, cause.name());
            if *cause == Cause::Interrupted {
                tracing::warn!(
                    "a process that wrote this store for the probe {probe} was killed: rows after its last complete file are lost"
                );
            }
            self.destination.describe(
                &[Shipment { probe, time, hour, table, kind, batch: &batch, files: 1, rows }],
                &batch,
            )?;
            self.outbox.reported(one)?;
            self.status.unshipped_rows += rows;
        }
        Ok(!taken.is_empty())
    }
}

/// Start of the hour of a file's folder, in seconds since 1970.
fn hour_s(path: &Path) -> i64 {
    shipping::hour_of(path).unwrap_or_default() * 3600
}

/// Seconds since 1970.
fn now_s() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |now| (now.as_secs_f64() * 1e3).round() / 1e3)
}
