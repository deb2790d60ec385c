//! The writer of a store: the capture's side of a separate thread (`thread`).

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wirelane_export::{OutputState, folder};

use crate::counts::{Rows, StoreCounts};
use crate::newer;
use crate::paths;
use crate::tables::Storable;
use crate::thread::Store;
use crate::unfinished::FOLDER;
use crate::writers::{self, Process};
use crate::{Error, Result};

/// Maximum bytes of a batch that is sent to the thread.
const BATCH: usize = 256 << 10;
/// Minimum number of values that are sent together while the thread is busy.
const TOGETHER: usize = 256;
/// Default of [`StoreSettings::memory`]: maximum bytes that a writer uses.
pub const MEMORY: usize = 128 << 20;
/// Default of [`StoreSettings::rotate`].
pub const ROTATE: Duration = Duration::from_secs(300);
/// The same for a store that is shipped: rows are at the target within 15 s.
pub const ROTATE_SHIPPED: Duration = Duration::from_secs(10);
/// Number of rows whose average size is that of others.
const MANY: u64 = 1000;
/// How long the thread may receive nothing before a live capture gives up values that do not fit.
const STILL: Duration = Duration::from_millis(20);
/// Interval in which it is tried to send them.
const BREATH: Duration = Duration::from_millis(1);
/// Minimum size of a store: below that, the footers of files would be most of it.
pub const LEAST_SIZE: u64 = 1 << 20;

/// Settings of a store's writer.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The store's folder.
    pub folder: PathBuf,
    /// Name of the probe that writes: see [`crate::host_name`].
    pub probe: Arc<str>,
    /// How long rows of the written tables are kept after the end of their flows, calls or transactions, to the hour.
    pub max_age: Option<Duration>,
    /// Maximum bytes of all tables, of all writers. At least [`LEAST_SIZE`].
    pub max_size: Option<u64>,
    /// Time after which a file is ended, so that its rows can be queried and are safe. `None`: [`ROTATE`], or
    /// [`ROTATE_SHIPPED`] if the store is shipped.
    pub rotate: Option<Duration>,
    /// Whether the input is live. Then nothing waits for the disk until the capture ends ([`Writer::ending`]): input that does
    /// not fit is counted as unwritten.
    pub live: bool,
    /// Memory limit in bytes: a quarter for batches that are sent to the thread, a quarter for encoding, and half for
    /// bytes that wait for a disk that accepts no writes. At least 4 MiB.
    pub memory: usize,
    /// Owner (user and group) of the folder, if root creates it here.
    pub owner: Option<(u32, u32)>,
}

/// The capture's side of the writer.
#[derive(Debug)]
pub struct Writer<T> {
    settings: StoreSettings,
    thread: Option<(SyncSender<Vec<T>>, JoinHandle<StoreCounts>)>,
    /// The thread's latest results.
    latest: Arc<Mutex<StoreCounts>>,
    /// Fewer than [`TOGETHER`] values that were not sent because the thread was busy.
    pending: Vec<T>,
    process: Arc<Process>,
    /// Number of times that the thread has received values.
    received: Arc<AtomicU64>,
    /// Rows that were not stored because the thread was busy.
    refused: Rows,
}

impl<T: Storable> Writer<T> {
    /// Creates the store's folder if it is missing. Nothing is written yet, and the thread is not running.
    ///
    /// # Errors
    /// [`Error::Folder`]; [`Error::Newer`].
    pub fn open(settings: StoreSettings) -> Result<Writer<T>> {
        let failed = |source| Error::Folder { path: settings.folder.clone(), source };
        let tables = T::TABLES.iter().map(|table| settings.folder.join(table.name()));
        for folder in std::iter::once(settings.folder.clone()).chain(tables) {
            folder::make(&folder, FOLDER, settings.owner).map_err(failed)?;
        }
        writers::prepare(&settings.folder, settings.owner).map_err(failed)?;
        for table in T::TABLES {
            let listing = paths::list(&settings.folder.join(table.name())).map_err(failed)?;
            newer::refuse(listing.files.iter())?;
        }
        let latest = Arc::new(Mutex::new(StoreCounts::new(&settings.folder, T::TABLES)));
        let process = Process::of(&settings.folder, &settings.probe);
        Ok(Writer {
            settings,
            thread: None,
            latest,
            pending: Vec::new(),
            process,
            received: Arc::default(),
            refused: Rows::new(),
        })
    }

    /// Starts the thread, after privileges are dropped. `naming`: the capture's tables for the names of numbers.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(&mut self, naming: T::Naming) -> io::Result<()> {
        let (sender, inbox) = sync_channel((self.settings.memory / 4 / BATCH).max(4));
        let (latest, process) = (Arc::clone(&self.latest), Arc::clone(&self.process));
        let store = Store::new(self.settings.clone(), T::TABLES, latest, process);
        let (names, received) = (T::Names::from(naming), Arc::clone(&self.received));
        let thread = std::thread::Builder::new()
            .name("wl-store".into())
            .spawn(move || store.run(names, &inbox, &received))?;
        self.thread = Some((sender, thread));
        Ok(())
    }

    /// Sends values to the thread.
    pub fn take(&mut self, mut these: Vec<T>) {
        let Some((sender, _)) = &self.thread else { return self.refuse(&these) };
        // Relaxed: the rows of the end come through channels after the flag was set, which synchronize.
        if !self.settings.live || self.process.ending().load(Ordering::Relaxed) {
            self.pending.append(&mut these);
            let these = std::mem::take(&mut self.pending);
            if let Err(refused) = sender.send(these) {
                self.refuse(&refused.0);
            }
            return;
        }
        if !self.pending.is_empty() {
            self.pending.append(&mut these);
            these = std::mem::take(&mut self.pending);
        }
        match sender.try_send(these) {
            Ok(()) => {}
            Err(TrySendError::Full(these)) if these.len() < TOGETHER => self.pending = these,
            Err(TrySendError::Full(these)) => {
                if let Err(these) = self.insist(these) {
                    self.refuse(&these);
                }
            }
            Err(TrySendError::Disconnected(these)) => self.refuse(&these),
        }
    }

    /// Sends values while the thread receives others: a burst is longer than the channel. A thread that waits for the disk
    /// does not.
    fn insist(&self, mut these: Vec<T>) -> std::result::Result<(), Vec<T>> {
        let Some((sender, _)) = &self.thread else { return Err(these) };
        let received = || self.received.load(Ordering::Relaxed);
        let (mut before, mut since) = (received(), Instant::now());
        while since.elapsed() < STILL {
            std::thread::sleep(BREATH);
            match sender.try_send(these) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(refused)) => return Err(refused),
                Err(TrySendError::Full(refused)) => these = refused,
            }
            let now = received();
            if now != before {
                (before, since) = (now, Instant::now());
            }
        }
        Err(these)
    }

    /// Flag of the capture's end, for all writers of this process for this store and probe: from then on they wait for the disk.
    pub fn ending(&self) -> Arc<AtomicBool> {
        Arc::clone(self.process.ending())
    }

    /// State of the store. Its records are rows in complete files.
    pub fn state(&self) -> OutputState {
        let counts = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = counts.unwritten.values().chain(self.refused.values()).sum();
        OutputState {
            written: counts.rows.values().sum(),
            lost,
            ..OutputState::new(&counts.store, counts.failing, counts.error.as_ref())
        }
    }

    fn refuse(&mut self, these: &[T]) {
        for table in T::TABLES {
            let rows: u64 = these.iter().map(|one| one.rows(*table)).sum();
            *self.refused.entry(*table).or_default() += rows;
            self.process.lost(rows);
        }
    }

    /// Notes rows that the caller has not stored, because they exceed its write limit.
    pub fn suppressed(&self, rows: u64) {
        self.process.lost(rows);
    }

    /// Number of rows that this process has not stored here, whatever their table: unwritten and suppressed ones.
    pub fn unstored(&self) -> u64 {
        self.process.unstored()
    }

    /// Bytes of a row in the files of this writer, on average; `None` before it has written many.
    pub fn row_bytes(&self) -> Option<u64> {
        let counts = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: u64 = counts.rows.values().sum();
        (rows >= MANY).then(|| counts.bytes.div_ceil(rows))
    }

    /// Ends all files, after the last value, and returns the results.
    pub fn finish(mut self) -> StoreCounts {
        let pending = std::mem::take(&mut self.pending);
        if let Some(Err(refused)) = self.thread.as_ref().map(|(sender, _)| sender.send(pending)) {
            self.refuse(&refused.0);
        }
        let mut counts = match self.thread {
            None => StoreCounts::new(&self.settings.folder, T::TABLES),
            Some((sender, thread)) => {
                drop(sender);
                match thread.join() {
                    Ok(counts) => counts,
                    // The panic message is on standard error; the written rows are unknown.
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        };
        for (table, rows) in self.refused.into_iter().filter(|(_, rows)| *rows > 0) {
            counts.unwritten(table, rows);
            counts.failed(format!("the disk was too slow for {rows} {}", table.name()));
        }
        counts
    }
}
