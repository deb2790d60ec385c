//! Rows of a table, read from its files: the columns that are asked for, of the rows that meet the conditions.
//!
//! ```text
//! files -> row groups (left out by their statistics) -> rows (decoded where the conditions hold) -> batches
//! ```

mod condition;
mod part;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field};

pub(super) use condition::{Condition, Operator, Value};
#[cfg(feature = "remote")]
pub(super) use part::Each;
pub(super) use part::{Part, Parts};

use super::functions::Network;
use super::guarded::guarded;
use super::{AskSettings, Remote};
use crate::Table;
use crate::paths::Stored;

/// Batches that wait for their reader.
const AHEAD: usize = 4;

/// Why a scan has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// A file cannot be read: its name and the reason.
    File(String),
    /// Collected rows or sums exceed the memory limit.
    Memory,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::File(why)
    }
}

/// The files of a table, and the rows of them that a query may see.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) table: Table,
    /// Columns of the files, then `date` and `hour` from the names of their folders.
    pub(super) columns: Arc<[Field]>,
    files: Arc<[Stored]>,
    remote: Option<Remote>,
    conditions: Vec<Condition>,
}

impl Source {
    /// The files of `table` among these.
    pub(super) fn new(
        table: Table,
        files: &[(Table, Stored)],
        settings: &AskSettings,
        remote: Option<&Remote>,
    ) -> Source {
        let schema = table.schema();
        let folders = [Field::new("date", DataType::Utf8, false), Field::new("hour", DataType::Int32, false)];
        let columns: Vec<Field> =
            schema.fields().iter().map(|field| field.as_ref().clone()).chain(folders).collect();
        let at = |name: &str| columns.iter().position(|field| field.name() == name).unwrap_or_default();
        // Times are stored to the microsecond, and a time within one is later than its beginning.
        let us = |ns: i64| Value::Int(ns.div_euclid(1000) + i64::from(ns.rem_euclid(1000) != 0));
        let mut conditions = Vec::new();
        if let Some(from) = settings.from_ns {
            conditions.push(Condition::new(at("end_time"), Operator::AtLeast, us(from)));
        }
        if let Some(to) = settings.to_ns {
            conditions.push(Condition::new(at("end_time"), Operator::Less, us(to)));
        }
        if let Some(probe) = &settings.probe {
            conditions.push(Condition::new(at("probe"), Operator::Equal, Value::Text(probe.clone())));
        }
        let its = files.iter().filter(|(of, _)| *of == table).map(|(_, file)| file.clone());
        Source { table, columns: columns.into(), files: its.collect(), remote: remote.cloned(), conditions }
    }

    /// Position of a column.
    pub(super) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|field| field.name() == name)
    }

    /// Size of all files in bytes.
    pub(super) fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// Rows to read.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    source: Source,
    /// Positions of the columns, in the order of the batches.
    wanted: Vec<usize>,
    conditions: Vec<Condition>,
    /// Restricts to flows with an end in this network.
    peer: Option<Network>,
}

impl Scan {
    /// `conditions`: in addition to those of the source.
    pub(super) fn new(source: &Source, wanted: Vec<usize>, conditions: Vec<Condition>) -> Scan {
        let conditions = source.conditions.iter().cloned().chain(conditions).collect();
        Scan { source: source.clone(), wanted, conditions, peer: None }
    }

    /// Restricts the rows to flows with an end in this network.
    pub(super) fn with_peer(mut self, peer: Option<Network>) -> Scan {
        self.peer = peer;
        self
    }

    /// Reads on all processors. `new` makes what a thread collects, `add` adds a batch to it.
    ///
    /// # Errors
    /// The first failure of reading, or that of `add`.
    pub(super) fn collect<T: Send>(
        &self,
        new: impl Fn() -> T + Sync,
        add: impl Fn(&mut T, &RecordBatch) -> Result<(), Failure> + Sync,
    ) -> Result<Vec<T>, Failure> {
        let parts = Parts::new(self.source.files.len());
        let is_over = AtomicBool::new(false);
        let one = || {
            let mut collected = new();
            let read = guarded(|| {
                while let Some(part) = parts.next() {
                    self.read(part, &parts, &mut |batch| {
                        // Relaxed: it ends other threads early, and orders nothing.
                        if is_over.load(Ordering::Relaxed) {
                            return Ok(false);
                        }
                        add(&mut collected, &batch).map(|()| true)
                    })?;
                }
                Ok(())
            });
            let read = read.map_err(Failure::File).and_then(|read| read);
            if read.is_err() {
                is_over.store(true, Ordering::Relaxed);
            }
            read.map(|()| collected)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads()).map(|_| scope.spawn(one)).collect();
            let ended = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(Failure::File("a thread has ended".to_owned())))
            });
            // All are joined before the first failure is returned.
            ended.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Reads in the order of the files, in a thread that ends when nobody receives.
    pub(super) fn stream(self) -> Receiver<Result<RecordBatch, Failure>> {
        let (to, from) = sync_channel(AHEAD);
        std::thread::spawn(move || {
            let parts = Parts::new(self.source.files.len());
            let read = guarded(|| {
                while let Some(part) = parts.next() {
                    let mut is_wanted = true;
                    self.read(part, &parts, &mut |batch| {
                        is_wanted = to.send(Ok(batch)).is_ok();
                        Ok(is_wanted)
                    })?;
                    if !is_wanted {
                        break;
                    }
                }
                Ok(())
            });
            if let Err(why) = read.map_err(Failure::File).and_then(|read| read) {
                // Nobody may want it.
                let _ = to.send(Err(why));
            }
        });
        from
    }

    /// Reads a part, as long as `each` returns true.
    fn read(&self, part: Part, parts: &Parts, each: &mut part::Each<'_>) -> Result<(), Failure> {
        let file = &self.source.files[part.file()];
        let read = match &self.source.remote {
            #[cfg(feature = "remote")]
            Some(remote) => remote.read(self, file, part, parts, each),
            #[cfg(not(feature = "remote"))]
            Some(remote) => match *remote {},
            None => part::local(self, file, part, parts, each),
        };
        read.map_err(|why| match why {
            Failure::File(why) => Failure::File(format!("{}: {why}", file.path.display())),
            Failure::Memory => why,
        })
    }
}

/// Number of threads that read.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Files that cannot be read completely, and the reasons; without those that were removed meanwhile.
pub(super) fn damaged(files: &[(Table, Stored)]) -> Vec<(PathBuf, String)> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            // Relaxed: the counter hands out indexes and orders nothing; the lock and the scope's end do.
            scope.spawn(|| {
                while let Some((table, file)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let read = guarded(|| part::check(*table, &file.path)).and_then(|read| read);
                    let Err(why) = read else { continue };
                    if Path::new(&file.path).exists() {
                        found.lock().unwrap_or_else(PoisonError::into_inner).push((file.path.clone(), why));
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort();
    found
}
