//! The writer of a store: a separate thread beside the capture.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde::{Serialize, Serializer};
use wirelane_export::words::counted;
use wirelane_export::{OutputState, folder};

use crate::file::{Ended, OpenFile};
use crate::newer;
use crate::paths::{self, Hour};
use crate::retention::{Keep, sweep};
use crate::tables::{Row, Storable, Table};
use crate::unfinished::FOLDER;
use crate::writers::{self, Mark};
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
    /// Whether the input is live. Then nothing waits for the disk: input that does not fit is counted as unwritten.
    pub live: bool,
    /// Memory limit in bytes: a quarter for batches that are sent to the thread, a quarter for encoding, and half for
    /// bytes that wait for a disk that accepts no writes. At least 4 MiB.
    pub memory: usize,
    /// Owner (user and group) of the folder, if root creates it here.
    pub owner: Option<(u32, u32)>,
}

/// Numbers of rows by table.
type Rows = BTreeMap<Table, u64>;

/// Results of storing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreCounts {
    /// The store.
    pub store: String,
    /// Rows in complete files on the disk, by table name.
    #[serde(flatten, serialize_with = "by_name")]
    pub rows: Rows,
    /// Rows that are not in any file: no space, no permission, or a disk that is too slow. Under `unwritten_flows`, and
    /// so on.
    #[serde(flatten, serialize_with = "by_unwritten")]
    pub unwritten: Rows,
    /// Files written.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that retention removed by age or total size.
    pub removed_files: u64,
    /// Bytes of the removed files.
    pub removed_bytes: u64,
    /// Rows of removed files that had not been shipped to every target.
    #[serde(skip_serializing_if = "is_zero")]
    pub unshipped_rows: u64,
    /// Removed unfinished files of dead writers.
    pub cleared_files: u64,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip)]
    first_error: Option<String>,
    /// Time of the first failure since the store was written to last.
    #[serde(skip)]
    failing: Option<SystemTime>,
}

fn by_name<S: Serializer>(rows: &Rows, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(rows.iter().map(|(table, rows)| (table.name(), rows)))
}

fn by_unwritten<S: Serializer>(rows: &Rows, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(rows.iter().map(|(table, rows)| (table.unwritten(), rows)))
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl StoreCounts {
    fn new(folder: &Path, tables: &[Table]) -> StoreCounts {
        let none: Rows = tables.iter().map(|table| (*table, 0)).collect();
        let store = folder.display().to_string();
        StoreCounts { store, rows: none.clone(), unwritten: none, ..StoreCounts::default() }
    }

    /// The error of a store with unwritten rows.
    pub fn failure(&self) -> Option<Error> {
        let first = self.first_error.clone().unwrap_or_default();
        let lacks = self.unwritten.iter().filter(|(_, rows)| **rows > 0);
        let lacks: Vec<String> = lacks.map(|(table, rows)| format!("{rows} {}", table.name())).collect();
        let (what, path) = (lacks.join(" and "), PathBuf::from(&self.store));
        (!lacks.is_empty()).then_some(Error::Unwritten { what, path, first })
    }

    fn unwritten(&mut self, table: Table, rows: u64) {
        *self.unwritten.entry(table).or_default() += rows;
    }

    fn failed(&mut self, why: String) {
        if self.error.as_ref() != Some(&why) {
            tracing::warn!("store {}: {why}", self.store);
            self.first_error.get_or_insert_with(|| why.clone());
            self.error = Some(why);
        }
    }
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
        Ok(Writer { settings, thread: None, latest, pending: Vec::new(), refused: Rows::new() })
    }

    /// Starts the thread, after privileges are dropped. `naming`: the capture's tables for the names of numbers.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(&mut self, naming: T::Naming) -> io::Result<()> {
        let (sender, inbox) = sync_channel((self.settings.memory / 4 / BATCH).max(4));
        let store = Store::new(self.settings.clone(), T::TABLES, Arc::clone(&self.latest));
        let names = T::Names::from(naming);
        let thread =
            std::thread::Builder::new().name("wl-store".into()).spawn(move || store.run(names, &inbox))?;
        self.thread = Some((sender, thread));
        Ok(())
    }

    /// Sends values to the thread.
    pub fn take(&mut self, mut these: Vec<T>) {
        let Some((sender, _)) = &self.thread else { return self.refuse(&these) };
        if !self.settings.live {
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
            Err(TrySendError::Full(these) | TrySendError::Disconnected(these)) => self.refuse(&these),
        }
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
        }
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
    /// This process's mark, from the first row on.
    mark: Option<Arc<Mark>>,
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
    fn new(settings: StoreSettings, tables: &'static [Table], latest: Arc<Mutex<StoreCounts>>) -> Store {
        let counts = StoreCounts::new(&settings.folder, tables);
        let (open, ended) = (BTreeMap::new(), VecDeque::new());
        let told = Instant::now();
        Store {
            settings,
            tables,
            open,
            ended,
            mark: None,
            counts,
            stuck: None,
            swept: None,
            is_shipped: false,
            latest,
            told,
        }
    }

    fn run<T: Storable>(mut self, mut names: T::Names, inbox: &Receiver<Vec<T>>) -> StoreCounts {
        self.sweep();
        loop {
            match inbox.recv_timeout(REST) {
                Ok(these) => self.take(&these, &mut names),
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
                self.counts.unwritten(*table, these.iter().map(|one| one.rows(*table)).sum());
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
            self.sign();
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

    /// Creates the mark of this process, if it has none.
    fn sign(&mut self) {
        if self.mark.is_none() {
            match Mark::of(&self.settings.folder, &self.settings.probe) {
                Ok(mark) => self.mark = Some(mark),
                // The next file tries again.
                Err(error) => self.counts.failed(format!("this process cannot leave its mark: {error}")),
            }
        }
    }

    /// The encoder rejected rows, which is a bug of ours: this file is lost, and reported as lost.
    fn broken(&mut self, place: TableHour, error: &datafusion::parquet::errors::ParquetError) {
        let lost = self.open.remove(&place).map_or(1, |file| file.rows);
        self.counts.unwritten(place.0, lost);
        self.counts.failed(format!("{} cannot be encoded, which is a bug: {error}", place.0.name()));
    }

    /// Ends an open file.
    fn end(&mut self, place: TableHour) {
        let Some(file) = self.open.remove(&place) else { return };
        let rows = file.rows;
        match file.end() {
            Ok(ended) => self.ended.push_back(ended),
            Err(error) => {
                self.counts.unwritten(place.0, rows);
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
        if let Some(mark) = &self.mark {
            mark.alive();
        }
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
                    self.counts.unwritten(ended.table, ended.rows);
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
            self.counts.unwritten(ended.table, ended.rows);
            ended.discard();
            // Without a next file nothing shows that the disk works again.
            if !self.ended.is_empty() {
                self.write();
            }
        }
        self.counts
    }
}

/// Seconds since 1970.
fn now_s() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}
