//! The writer of a store: a separate thread beside the capture.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use wirelane_export::words::counted;
use wirelane_export::{OutputState, folder};

use crate::counts::{Rows, StoreCounts};
use crate::file::{Ended, OpenFile};
use crate::newer;
use crate::paths::{self, Hour};
use crate::retention::{Keep, sweep};
use crate::tables::{Row, Storable, Table};
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
/// Maximum number of hours for which files of a table are open at once. A capture file may have packets of any hour.
const MOST_OPEN: usize = 4;
/// Number of rows whose average size is that of others.
const MANY: u64 = 1000;
/// How long the thread may receive nothing before a live capture gives up values that do not fit.
const STILL: Duration = Duration::from_millis(20);
/// Interval in which it is tried to send them.
const BREATH: Duration = Duration::from_millis(1);
/// How long the thread waits for more, if it has nothing else to do.
const REST: Duration = Duration::from_millis(200);
/// Delay after a failed write before the next attempt.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval of retention, which also runs after every file.
const SWEEPS: Duration = Duration::from_secs(60);
/// Approximate size at which a file ends: smaller if the store is small.
const MOST_FILE: u64 = 128 << 20;
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
        let thread =
            std::thread::Builder::new().name("wl-store".into()).spawn(move || store.run(names, &inbox, &received))?;
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

/// The writer in the thread.
struct Store {
    settings: StoreSettings,
    tables: &'static [Table],
    open: BTreeMap<TableHour, OpenFile>,
    ended: VecDeque<Ended>,
    process: Arc<Process>,
    counts: StoreCounts,
    /// Time of the last failed write; `None`: writing works.
    stuck: Option<Instant>,
    swept: Option<Instant>,
    /// Whether the store is shipped, so that files end sooner.
    is_shipped: bool,
    /// Results for whoever asks, and the time of the last update.
    latest: Arc<Mutex<StoreCounts>>,
    told: Instant,
}

/// Key of an open file: the table and the hour of its rows.
type TableHour = (Table, Hour);

impl Store {
    fn new(
        settings: StoreSettings,
        tables: &'static [Table],
        latest: Arc<Mutex<StoreCounts>>,
        process: Arc<Process>,
    ) -> Store {
        let counts = StoreCounts::new(&settings.folder, tables);
        let (open, ended) = (BTreeMap::new(), VecDeque::new());
        let told = Instant::now();
        Store {
            settings,
            tables,
            open,
            ended,
            process,
            counts,
            stuck: None,
            swept: None,
            is_shipped: false,
            latest,
            told,
        }
    }

    fn run<T: Storable>(
        mut self,
        mut names: T::Names,
        inbox: &Receiver<Vec<T>>,
        received: &AtomicU64,
    ) -> StoreCounts {
        self.process.begin();
        self.sweep();
        loop {
            match inbox.recv_timeout(REST) {
                Ok(these) => {
                    // Relaxed: whoever waits looks for a change only.
                    received.fetch_add(1, Ordering::Relaxed);
                    self.take(&these, &mut names);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look_after();
        }
        self.finish()
    }

    /// Size in bytes at which a file ends.
    fn most_file(&self) -> u64 {
        self.settings.max_size.map_or(MOST_FILE, |most| MOST_FILE.min(most / 8))
    }

    fn waiting(&self) -> usize {
        self.open.values().map(OpenFile::waiting).chain(self.ended.iter().map(Ended::waiting)).sum()
    }

    fn take<T: Storable>(&mut self, these: &[T], names: &mut T::Names) {
        if self.stuck.is_some() && self.waiting() >= self.settings.memory / 2 {
            for table in T::TABLES {
                self.lost(*table, these.iter().map(|one| one.rows(*table)).sum());
            }
            return;
        }
        for one in these {
            one.put(names, &mut |table, end_ns, fill| {
                let place = (table, (end_ns / paths::HOUR_NS) as Hour);
                if let Err(error) = self.row(place, fill) {
                    self.broken(place, &error);
                }
            });
        }
    }

    fn row(
        &mut self,
        place: TableHour,
        fill: &mut dyn FnMut(&mut Row<'_>),
    ) -> datafusion::parquet::errors::Result<()> {
        let (table, hour) = place;
        if !self.open.contains_key(&place) {
            let its = self.open.iter().filter(|((of, _), _)| *of == table);
            if its.clone().count() >= MOST_OPEN {
                let oldest = its.min_by_key(|(_, file)| file.used).map(|(place, _)| *place);
                oldest.into_iter().for_each(|place| self.end(place));
            }
            // The next file tries again.
            if let Err(error) = self.process.sign() {
                self.counts.failed(format!("this process cannot leave its mark: {error}"));
            }
            let folder = paths::folder(&self.settings.folder.join(table.name()), hour);
            self.open.insert(place, OpenFile::new(folder, table, &self.settings.probe)?);
        }
        let most = self.most_file();
        let Some(file) = self.open.get_mut(&place) else { return Ok(()) };
        file.push(fill)?;
        // The clock is read only once in 256 rows.
        if file.rows.is_multiple_of(256) {
            file.used = Instant::now();
            if file.size() >= most {
                self.end(place);
            } else if self.open.values().map(OpenFile::encoding).sum::<usize>() >= self.settings.memory / 4
                && let Some(largest) = self.open.values_mut().max_by_key(|file| file.encoding())
            {
                largest.end_row_group()?;
            }
        }
        Ok(())
    }

    /// Counts rows that are in no file.
    fn lost(&mut self, table: Table, rows: u64) {
        self.counts.unwritten(table, rows);
        self.process.lost(rows);
    }

    /// The encoder rejected rows, which is a bug of ours: this file is lost, and reported as lost.
    fn broken(&mut self, place: TableHour, error: &datafusion::parquet::errors::ParquetError) {
        let lost = self.open.remove(&place).map_or(1, |file| file.rows);
        self.lost(place.0, lost);
        self.counts.failed(format!("{} cannot be encoded, which is a bug: {error}", place.0.name()));
    }

    /// Ends an open file.
    fn end(&mut self, place: TableHour) {
        let Some(file) = self.open.remove(&place) else { return };
        let rows = file.rows;
        match file.end() {
            Ok(ended) => self.ended.push_back(ended),
            Err(error) => {
                self.lost(place.0, rows);
                self.counts.failed(format!("{} cannot be encoded, which is a bug: {error}", place.0.name()));
            }
        }
    }

    /// Housekeeping between batches.
    fn look_after(&mut self) {
        let usual = if self.is_shipped { ROTATE_SHIPPED } else { ROTATE };
        let rotate = self.settings.rotate.unwrap_or(usual);
        let due: Vec<TableHour> = self
            .open
            .iter()
            .filter(|(_, file)| file.since.elapsed() >= rotate)
            .map(|(place, _)| *place)
            .collect();
        due.into_iter().for_each(|place| self.end(place));
        if self.stuck.is_none_or(|since| since.elapsed() >= PATIENCE) {
            self.write();
        }
        self.process.alive();
        if self.swept.is_none_or(|swept| swept.elapsed() >= SWEEPS) {
            self.sweep();
        }
        if self.told.elapsed() >= REST {
            self.told = Instant::now();
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = self.counts.clone();
        }
    }

    /// Writes waiting bytes to the disk.
    fn write(&mut self) {
        let mut finished = false;
        let mut result = Ok(());
        while result.is_ok()
            && let Some(mut ended) = self.ended.pop_front()
        {
            match ended.finish() {
                Ok(bytes) => {
                    *self.counts.rows.entry(ended.table).or_default() += ended.rows;
                    self.counts.files += 1;
                    self.counts.bytes += bytes;
                    finished = true;
                }
                // All bytes are written, but the file may not survive a power failure, or it was removed.
                Err(error) if ended.is_written() => {
                    self.lost(ended.table, ended.rows);
                    self.counts.failed(error.to_string());
                    ended.discard();
                }
                Err(error) => {
                    self.ended.push_front(ended);
                    result = Err(error);
                }
            }
        }
        for file in self.open.values_mut() {
            result = result.and_then(|()| file.drain());
        }
        match result {
            Ok(()) if self.stuck.take().is_some() => {
                (self.counts.error, self.counts.failing) = (None, None);
                let lost: u64 = self.counts.unwritten.values().sum();
                let lost = counted(lost, "row");
                tracing::warn!("store {}: is written to again; {lost} lost", self.counts.store);
            }
            Ok(()) => {}
            Err(error) => {
                self.stuck = Some(Instant::now());
                self.counts.failing.get_or_insert_with(SystemTime::now);
                self.counts.failed(error.to_string());
            }
        }
        if finished {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        self.swept = Some(Instant::now());
        // Reserves space for the file that is being written.
        let size = self.settings.max_size.map(|most| most - self.most_file());
        let keep = Keep { age: self.settings.max_age, size };
        let (gone, result) = sweep(&self.settings.folder, self.tables, keep, now_s());
        self.counts.removed_files += gone.files;
        self.counts.removed_bytes += gone.bytes;
        self.counts.unshipped_rows += gone.unshipped_rows;
        self.counts.cleared_files += gone.parts;
        self.is_shipped = crate::shipping::is_shipped(&self.settings.folder);
        if gone.parts > 0 {
            let (store, parts) = (&self.counts.store, gone.parts);
            tracing::warn!("store {store}: {parts} unfinished files of writers that had died are removed");
        }
        if let Err(error) = result {
            self.counts.failed(format!("old files cannot be removed: {error}"));
        }
    }

    /// Ends all files; rows that cannot be written now are counted.
    fn finish(mut self) -> StoreCounts {
        for place in self.open.keys().copied().collect::<Vec<_>>() {
            self.end(place);
        }
        self.write();
        // Discarding a file frees space for the next.
        while let Some(ended) = self.ended.pop_front() {
            self.lost(ended.table, ended.rows);
            ended.discard();
            // Without a next file nothing shows that the disk works again.
            if !self.ended.is_empty() {
                self.write();
            }
        }
        self.process.end();
        self.counts
    }
}

/// Seconds since 1970.
fn now_s() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}
