//! Marks of the processes that write a store: one that is killed leaves its mark, so that the loss of its last rows is
//! not silent.
//!
//! ```text
//! DIR/.writers/20261123T041500Z-1f0c9a2b7d3e4f56     {"probe":"edge-1"}
//! ```
//!
//! A process creates its mark before its first file, holds a lock on it (flock(2)), writes it again every few seconds,
//! and removes it at its orderly end. A mark that is not locked was left by a killed process: the rows that this
//! process had in memory and in unfinished files are lost, and their number is unknown. The time of the mark's last
//! change tells when. Queries and shippers report such marks; retention removes them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use wirelane_export::folder;

use crate::paths::{self, Hour};
use crate::unfinished::{self, FOLDER, Unfinished};

/// Folder of the marks in a store.
const WRITERS: &str = ".writers";
/// Interval in which a process writes its mark again.
const ALIVE: Duration = Duration::from_secs(10);
/// Maximum number of bytes of a mark that are read.
const MOST: u64 = 4096;

/// Contents of a mark.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Contents {
    probe: String,
}

/// This process, as a writer of a store for a probe: what its threads (of flows, calls, the ledger) have together.
#[derive(Debug)]
pub(crate) struct Process {
    store: PathBuf,
    probe: Arc<str>,
    /// From the first row on.
    mark: Mutex<Option<Mark>>,
    /// Rows that are not stored.
    unstored: AtomicU64,
    /// Whether the capture has ended.
    ending: Arc<AtomicBool>,
    /// Threads that have not ended in an orderly way.
    threads: AtomicU32,
}

/// The complete mark of this process.
#[derive(Debug)]
struct Mark {
    /// Holds the lock.
    file: Unfinished,
    path: PathBuf,
    contents: Vec<u8>,
    written: Instant,
}

/// Store and probe of a process.
type Key = (PathBuf, Arc<str>);

static OURS: Mutex<BTreeMap<Key, Weak<Process>>> = Mutex::new(BTreeMap::new());

/// Creates the folder of the marks, before privileges are dropped.
pub(crate) fn prepare(store: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    folder::make(&store.join(WRITERS), FOLDER, owner)
}

impl Process {
    /// This process as a writer of this store for this probe.
    pub(crate) fn of(store: &Path, probe: &Arc<str>) -> Arc<Process> {
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (store.to_owned(), Arc::clone(probe));
        ours.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let process = Arc::new(Process {
                store: store.to_owned(),
                probe: Arc::clone(probe),
                mark: Mutex::default(),
                unstored: AtomicU64::new(0),
                ending: Arc::default(),
                threads: AtomicU32::new(0),
            });
            ours.insert(key, Arc::downgrade(&process));
            process
        })
    }

    /// Notes that a thread begins.
    pub(crate) fn begin(&self) {
        // Relaxed, here and in `end`: read when the last reference is dropped, which synchronizes with all others.
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a thread has ended in an orderly way.
    pub(crate) fn end(&self) {
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts rows that are not stored.
    pub(crate) fn lost(&self, rows: u64) {
        // Relaxed, here and in `unstored`: a number by itself.
        self.unstored.fetch_add(rows, Ordering::Relaxed);
    }

    /// Number of rows that are not stored.
    pub(crate) fn unstored(&self) -> u64 {
        self.unstored.load(Ordering::Relaxed)
    }

    /// Set by the capture at its end.
    pub(crate) fn ending(&self) -> &Arc<AtomicBool> {
        &self.ending
    }

    /// Creates the mark, if there is none.
    pub(crate) fn sign(&self) -> io::Result<()> {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        if mark.is_none() {
            *mark = Some(Mark::create(&self.store, &self.probe)?);
        }
        Ok(())
    }

    /// Writes the mark again, if it was last written some seconds ago.
    pub(crate) fn alive(&self) {
        let mut mark = self.mark.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mark) = mark.as_mut().filter(|mark| mark.written.elapsed() >= ALIVE) {
            mark.written = Instant::now();
            // On a full disk the mark is older than the process, and the report of a kill names an earlier time.
            let _ = mark.file.write_at(&mark.contents, 0);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mark = self.mark.get_mut().unwrap_or_else(PoisonError::into_inner);
        // The rows of a thread that panicked are lost.
        if let Some(mark) = mark
            && *self.threads.get_mut() == 0
        {
            // If the folder was removed, there is nothing left to do.
            let _ = fs::remove_file(&mark.path);
        }
    }
}

impl Mark {
    fn create(store: &Path, probe: &str) -> io::Result<Mark> {
        let contents = serde_json::to_vec(&Contents { probe: probe.to_owned() })?;
        let name = || paths::new_name(chrono::Utc::now()).replace(".parquet", "");
        let file = Unfinished::named(&store.join(WRITERS), 2, name)?;
        let finished = file.write_at(&contents, 0).1.and_then(|()| file.finish());
        match finished {
            Ok(path) => Ok(Mark { file, path, contents, written: Instant::now() }),
            Err(error) => {
                file.discard();
                Err(error)
            }
        }
    }
}

/// A process that wrote the store and did not end in an orderly way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interrupted {
    /// Path of the mark inside the store.
    pub(crate) mark: PathBuf,
    /// Hour of its last sign of life, since 1970.
    pub(crate) hour: Hour,
    /// Name of the probe, if the mark can be read.
    pub(crate) probe: Option<String>,
}

/// Processes that did not end in an orderly way, the oldest first.
///
/// # Errors
/// If the marks cannot be listed or read.
pub(crate) fn interrupted(store: &Path) -> io::Result<Vec<Interrupted>> {
    let mut found = Vec::new();
    for path in listed(store)?.0 {
        let Some(file) = abandoned(&path, OpenOptions::new().read(true))? else { continue };
        let hour = file.metadata()?.mtime().div_euclid(3600);
        let mut text = Vec::new();
        file.take(MOST).read_to_end(&mut text)?;
        // A power failure may have left an empty file.
        let probe = serde_json::from_slice::<Contents>(&text).ok().map(|contents| contents.probe);
        let mark = path.strip_prefix(store).unwrap_or(&path).to_owned();
        found.push(Interrupted { mark, hour, probe });
    }
    Ok(found)
}

/// Removes the marks of killed processes that are older than this, and that `may_go`.
///
/// # Errors
/// The last error of listing or removing; the rest is removed all the same.
pub(crate) fn sweep(
    store: &Path,
    age: Duration,
    now_s: i64,
    may_go: &dyn Fn(&Path) -> bool,
) -> io::Result<()> {
    let mut result = Ok(());
    let (marks, parts) = listed(store)?;
    for part in parts {
        // A process that is killed before its mark is complete has written no row.
        result = unfinished::clear(&part).map(|_| ()).and(result);
    }
    for path in marks {
        // A sandboxed process may open files only for writing.
        let removed = abandoned(&path, OpenOptions::new().write(true)).and_then(|file| match file {
            Some(file) if now_s - file.metadata()?.mtime() > age.as_secs() as i64 && may_go(&path) => {
                fs::remove_file(&path)
            }
            _ => Ok(()),
        });
        result = removed.and(result);
    }
    result
}

/// Paths of the complete marks, the oldest first, and of unfinished ones.
fn listed(store: &Path) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let folder = store.join(WRITERS);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        entries => entries.map_err(|error| named(&folder, &error))?,
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    let is_complete =
        |path: &PathBuf| path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."));
    Ok(paths.into_iter().partition(is_complete))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Opens a mark that no process holds.
fn abandoned(path: &Path, options: &OpenOptions) -> io::Result<Option<File>> {
    let opened = options.clone().custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| named(path, &error))?,
    };
    // Shared, so that several processes may look at the same time.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        // Its process may have ended in an orderly way since it was opened.
        Ok(()) => Ok((file.metadata()?.nlink() > 0).then_some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that has written a row.
    fn signed(store: &Path, probe: &str) -> Arc<Process> {
        let process = Process::of(store, &probe.into());
        process.begin();
        process.sign().unwrap();
        process
    }

    #[test]
    fn a_killed_process_leaves_its_mark_and_others_do_not() {
        let store = tempfile::tempdir().unwrap();
        assert_eq!(interrupted(store.path()).unwrap(), []);
        let process = signed(store.path(), "edge-1");
        let again = signed(store.path(), "edge-1");
        assert!(Arc::ptr_eq(&process, &again), "the threads of a process have one mark for a probe");
        let other = signed(store.path(), "edge-2");
        let there = || listed(store.path()).unwrap().0;
        assert_eq!((there().len(), interrupted(store.path()).unwrap().len()), (2, 0));
        process.lost(3);
        process.end();
        drop(process);
        assert_eq!((there().len(), again.unstored()), (2, 3), "a thread of the process goes on");
        again.end();
        drop(again);
        assert_eq!(there().len(), 1);

        // Copies that no process has locked stand for the marks of killed processes.
        let killed = signed(store.path(), "edge-1");
        assert_eq!(killed.unstored(), 0);
        let left = killed.mark.lock().unwrap().as_ref().unwrap().path.clone();
        fs::copy(&left, left.with_extension("copy")).unwrap();
        let damaged = left.with_extension("damaged");
        fs::write(&damaged, "{").unwrap();
        let found = interrupted(store.path()).unwrap();
        let probes: Vec<Option<&str>> = found.iter().map(|one| one.probe.as_deref()).collect();
        assert_eq!(probes, [Some("edge-1"), None]);
        let now_s = chrono::Utc::now().timestamp();
        assert!(found.iter().all(|one| (now_s / 3600 - one.hour) <= 1));
        assert_eq!(found[1].mark, Path::new(WRITERS).join(damaged.file_name().unwrap()));

        // Retention removes what is old and known, and what was never complete.
        let part = store.path().join(WRITERS).join(".begun.part");
        fs::write(&part, "").unwrap();
        let sweep = |later: i64, may_go: bool| {
            super::sweep(store.path(), Duration::from_secs(60), now_s + later, &|_| may_go).unwrap();
            (interrupted(store.path()).unwrap().len(), part.exists())
        };
        assert_eq!(
            [sweep(50, true), sweep(70, false), sweep(70, true)],
            [(2, false), (2, false), (0, false)]
        );
        assert_eq!(there().len(), 2, "the marks of live processes stay");
        drop((other, killed));
    }

    #[test]
    fn the_mark_of_a_thread_that_panics_stays() {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().to_owned();
        let thread = std::thread::spawn(move || {
            let _process = signed(&path, "edge-1");
            panic!("in a test");
        });
        thread.join().unwrap_err();
        assert_eq!(interrupted(store.path()).unwrap().len(), 1);
    }
}
