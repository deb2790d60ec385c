//! Merging of small files that all targets have.
//!
//! While a store is shipped its writers end a file every few seconds. Once an hour is over and all targets have its
//! files, those of a probe and a table become one file with the same rows.
//!
//! ```text
//! merged file, hidden and synced -> DIR/.ship/merging (which file replaces which) -> noted as shipped to all targets
//!   -> visible -> replaced files removed -> DIR/.ship/merging removed
//! ```
//! All but the first step is done under the lock of claims, which queries share while they list files. Whoever is killed
//! between two steps leaves `merging`: queries leave the replaced files out, and the next shipper removes them.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::{Guard, Lock, SHIP, Target, append, described, durable, named, parquet, rows};
use crate::paths::{self, Stored};
use crate::tables::Table;
use crate::unfinished::Unfinished;

/// Size in bytes from which a file is not merged.
const SMALL: u64 = 4 << 20;
/// Size in bytes of the small files that become one: in memory they take many times of it.
const TOGETHER: u64 = 8 << 20;
/// Name of the note of a merge on its way.
const MERGING: &str = "merging";

/// Names of the files that this process has merged, for its shippers: no target needs them.
#[derive(Clone, Debug, Default)]
pub struct Merged(Arc<Mutex<HashSet<PathBuf>>>);

impl Merged {
    pub(super) fn contains(&self, inside: &Path) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(inside)
    }

    fn insert(&self, inside: PathBuf) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(inside);
    }
}

/// A merge on its way; paths are inside the store.
#[derive(Debug, Deserialize, Serialize)]
struct Merging {
    into: PathBuf,
    replaces: Vec<PathBuf>,
}

impl Merging {
    fn read(store: &Path) -> io::Result<Option<Merging>> {
        let path = store.join(SHIP).join(MERGING);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&path, &error)),
        }
    }

    /// Removes the replaced files, if the merged one is there, and the note.
    fn end(&self, store: &Path) -> io::Result<()> {
        if store.join(&self.into).exists() {
            for inside in &self.replaces {
                let path = store.join(inside);
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(named(&path, &error));
                    }
                    _ => {}
                }
            }
            // Before the note is gone, so that a crash brings back none of them.
            File::open(store.join(&self.into).parent().unwrap_or(store))?.sync_all()?;
        }
        let path = store.join(SHIP).join(MERGING);
        fs::remove_file(&path).map_err(|error| named(&path, &error))
    }
}

/// Merges the small files of a store, whose shipper's lock the caller holds.
#[derive(Debug)]
pub struct Merger {
    store: PathBuf,
    merged: Merged,
}

impl Merger {
    /// Creates a merger for the shippers that have `merged`.
    pub fn new(store: &Path, merged: Merged) -> Merger {
        Merger { store: store.to_owned(), merged }
    }

    /// Merges files of hours that ended at least an hour ago; returns the number of files that were replaced. `goes_on` is asked
    /// before each merged file.
    ///
    /// # Errors
    /// If the store or the state cannot be read or written.
    pub fn pass(&self, now_s: i64, goes_on: &dyn Fn() -> bool) -> io::Result<u64> {
        {
            let _lock = Lock::claims(&self.store)?;
            if let Some(merging) = Merging::read(&self.store)? {
                merging.end(&self.store)?;
            }
        }
        let mut replaced = 0;
        for table in Table::ALL {
            for files in self.groups(table, now_s.div_euclid(3600) - 1)? {
                if !goes_on() {
                    return Ok(replaced);
                }
                replaced += self.merge(table, &files)?;
            }
        }
        Ok(replaced)
    }

    /// Files that become one: of an hour before this one and a probe.
    fn groups(&self, table: Table, before: i64) -> io::Result<Vec<Vec<PathBuf>>> {
        let listing = match paths::list(&self.store.join(table.name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing?,
        };
        let Some(guard) = Guard::take(&self.store)? else { return Ok(Vec::new()) };
        let is_small = |file: &Stored| file.ours && file.size < SMALL && file.hour < before;
        let mut files: Vec<Stored> = listing.files.into_iter().filter(is_small).collect();
        files.retain(|file| guard.has_arrived(&file.path));
        drop(guard);
        let mut hours: BTreeMap<i64, Vec<Stored>> = BTreeMap::new();
        files.into_iter().for_each(|file| hours.entry(file.hour).or_default().push(file));
        let mut groups = Vec::new();
        for files in hours.into_values().filter(|files| files.len() > 1) {
            let mut probes: BTreeMap<String, (u64, Vec<PathBuf>)> = BTreeMap::new();
            for file in files {
                // A damaged file is left as it is, and one of schema version 1, whose rows do not name their probe.
                let Some(probe) = described(&file.path).and_then(|found| found.probe) else { continue };
                let group = probes.entry(probe).or_default();
                if group.0 + file.size > TOGETHER {
                    groups.push(std::mem::take(group).1);
                }
                group.0 += file.size;
                group.1.push(file.path);
            }
            groups.extend(probes.into_values().map(|(_, files)| files));
        }
        groups.retain(|files| files.len() > 1);
        Ok(groups)
    }

    /// Replaces these files, which are of one folder and one probe.
    fn merge(&self, table: Table, files: &[PathBuf]) -> io::Result<u64> {
        let probe = described(&files[0]).and_then(|found| found.probe);
        let (Some(folder), Some(probe)) = (files[0].parent(), probe) else { return Ok(0) };
        let rows = rows(table, files, &probe).map_err(io::Error::other)?;
        if !rows.damaged.is_empty() {
            return Ok(0);
        }
        let bytes = parquet(table, &probe, rows.batches()).map_err(io::Error::other)?;
        let part = Unfinished::create(folder).map_err(|error| named(folder, &error))?;
        let written = part.write_at(&bytes, 0).1.and_then(|()| part.sync());
        let result =
            written.map_err(|error| named(&part.path(), &error)).and_then(|()| self.replace(&part, files));
        if !matches!(result, Ok(true)) {
            part.discard();
        }
        Ok(if result? { files.len() as u64 } else { 0 })
    }

    /// Makes the merged file visible in place of these. `false`: something has changed, and nothing was done.
    fn replace(&self, part: &Unfinished, files: &[PathBuf]) -> io::Result<bool> {
        let inside =
            |path: &Path| path.strip_prefix(&self.store).map(Path::to_owned).map_err(io::Error::other);
        let Some(guard) = Guard::take(&self.store)? else { return Ok(false) };
        if !files.iter().all(|file| file.exists() && guard.has_arrived(file)) {
            return Ok(false);
        }
        let into = inside(&part.whole())?;
        let replaces = files.iter().map(|file| inside(file)).collect::<io::Result<Vec<_>>>()?;
        let merging = Merging { into: into.clone(), replaces };
        durable(&self.store.join(SHIP), MERGING, &merging)?;
        self.merged.insert(into.clone());
        let done = Target::folders(&self.store)?
            .iter()
            .try_for_each(|folder| append(&folder.join("shipped"), &[&into]))
            .and_then(|()| part.finish().map(|_| ()));
        merging.end(&self.store)?;
        done.map(|()| true)
    }
}

/// Complete files of all tables, each row in one of them, also while files are merged.
///
/// # Errors
/// If the store or its state cannot be read.
pub(crate) fn listed(store: &Path) -> io::Result<Vec<(Table, Stored)>> {
    let path = store.join(SHIP).join("claims");
    // Held until all is listed. A store that is not shipped has no lock.
    let lock = match File::open(&path) {
        Ok(file) => {
            flock(&file, FlockOperation::LockShared)?;
            Some(file)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(named(&path, &error)),
    };
    let mut files = Vec::new();
    for table in Table::ALL {
        let folder = store.join(table.name());
        match paths::list(&folder) {
            Ok(listing) => files.extend(listing.files.into_iter().map(|file| (table, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(&folder, &error)),
        }
    }
    if lock.is_some()
        && let Some(merging) = Merging::read(store)?
        && store.join(&merging.into).exists()
    {
        let replaced: HashSet<PathBuf> = merging.replaces.iter().map(|inside| store.join(inside)).collect();
        files.retain(|(_, file)| !replaced.contains(&file.path));
    }
    Ok(files)
}
