//! The thread of a writer: encodes rows, writes files, and applies retention.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use wirelane_export::words::counted;

use crate::counts::StoreCounts;
use crate::file::{Ended, OpenFile};
use crate::paths::{self, Hour};
use crate::retention::{Keep, sweep};
use crate::tables::{Row, Storable, Table};
use crate::writer::{ROTATE, ROTATE_SHIPPED, StoreSettings};
use crate::writers::Process;

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

/// The writer in its thread.
pub(crate) struct Store {
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
    pub(crate) fn new(
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

    pub(crate) fn run<T: Storable>(
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

    fn row(&mut self, place: TableHour, fill: &mut dyn FnMut(&mut Row<'_>)) -> parquet::errors::Result<()> {
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
    fn broken(&mut self, place: TableHour, error: &parquet::errors::ParquetError) {
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
