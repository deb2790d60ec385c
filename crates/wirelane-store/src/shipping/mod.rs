//! State of shipping a store: which files each target has, and which batch is on its way.
//!
//! ```text
//! DIR/.ship/lock                   held by the one process that ships this store
//! DIR/.ship/claims                 held while a batch is claimed, and while retention removes files
//! DIR/.ship/merging                a merge on its way: see [`merge`]
//! DIR/.ship/taken                  files that retention removed before they were shipped: JSON lines
//! DIR/.ship/TARGET/pending         the batch on its way: its token and its files
//! DIR/.ship/TARGET/shipped         names of the files that arrived: JSON lines
//! ```
//!
//! A batch is on the disk before it is sent: `pending` is written beside, synced and renamed. It is sent until the target
//! acknowledges it, always with the same files under the same token, so that the target can tell a repetition. Then its
//! files are appended to `shipped`, which is synced, and `pending` is removed. Names of files that are gone leave the list. A
//! process that is killed between two of these steps leaves a state from which the next one goes on. A last line of `shipped` without an end is cut off.
//!
//! Retention removes no file that a target lacks, except by size, and never a file of a pending batch: whether such a
//! batch has arrived is unknown.

mod body;
mod merge;

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use wirelane_export::folder;

pub(crate) use body::described;
pub use body::{Described, Rows, json_lines, parquet, rows};
pub(crate) use merge::listed;
pub use merge::{Merged, Merger};

use crate::paths;
use crate::tables::Table;
use crate::unfinished::FOLDER;
use crate::writers;

/// Folder of the state in a store.
pub const SHIP: &str = ".ship";
/// Names that are added to a list of shipped files before it is pruned again.
const PRUNE: usize = 10_000;
/// Mode of the files: whoever may enter the folder may read them, since retention reads what a shipper with another user wrote.
const FILE: u32 = 0o644;

/// A batch: complete files of a table that ended on the same day.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Batch {
    /// The token by which the target recognises a repetition.
    pub token: String,
    /// Name of the table.
    pub table: String,
    /// Paths of the files inside the store.
    pub files: Vec<PathBuf>,
}

/// Why rows are not shipped.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Retention removed their file before it was shipped.
    #[default]
    Unshipped,
    /// Their writer was killed.
    Interrupted,
}

impl Cause {
    /// Name in the table `shipments`.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Unshipped => "unshipped",
            Cause::Interrupted => "interrupted",
        }
    }
}

/// Rows that are not shipped.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The reason.
    #[serde(default)]
    pub cause: Cause,
    /// Path inside the store: of the removed file, or of the killed writer's mark.
    pub file: PathBuf,
    /// Name of the table; empty for a killed writer.
    pub table: String,
    /// Hour of its rows, since 1970.
    pub hour: i64,
    /// Name of the probe, if the file has one.
    pub probe: Option<String>,
    /// Number of rows; `None`: unknown, since the file could not be read, or the writer was killed.
    pub rows: Option<u64>,
}

/// A complete file that a target lacks.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Path inside the store.
    pub file: PathBuf,
    /// Hour of its rows, since 1970.
    pub hour: i64,
    /// Size in bytes.
    pub size: u64,
}

/// A locked file; the lock ends with it.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "holds the lock")] File);

impl Lock {
    /// Creates the folder of the state, and takes the lock of the one shipper. `None`: another process has it.
    ///
    /// # Errors
    /// If the folder or the file cannot be created.
    pub fn shipper(store: &Path) -> io::Result<Option<Lock>> {
        let metadata = fs::metadata(store)?;
        folder::make(&store.join(SHIP), FOLDER, Some((metadata.uid(), metadata.gid())))?;
        let path = store.join(SHIP);
        let files = ["lock", "claims", "taken"].map(|name| path.join(name));
        for file in &files {
            same_owner(file, &lockable(file)?)?;
        }
        let file = lockable(&files[0])?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for the lock of claims and of removing.
    fn claims(store: &Path) -> io::Result<Lock> {
        let file = lockable(&store.join(SHIP).join("claims"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Lock(file))
    }
}

fn lockable(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(FILE).custom_flags(libc::O_NOFOLLOW);
    options.open(path).map_err(|error| named(path, &error))
}

/// Gives a file that root creates to the owner of its folder, as whom captures remove files.
fn same_owner(path: &Path, file: &File) -> io::Result<()> {
    let (Some(parent), true) = (path.parent(), rustix::process::geteuid().is_root()) else { return Ok(()) };
    let parent = fs::metadata(parent)?;
    let owned = file.metadata()?;
    match (owned.uid(), owned.gid()) == (parent.uid(), parent.gid()) {
        true => Ok(()),
        false => std::os::unix::fs::fchown(file, Some(parent.uid()), Some(parent.gid())),
    }
}

/// Reads JSON lines; the last line counts only with its end.
fn lines<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(named(path, &error)),
    };
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |end| &text[..end]);
    let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parsed: Result<Vec<T>, _> = lines.map(serde_json::from_slice).collect();
    parsed.map_err(|error| named(path, &io::Error::other(format!("invalid state: {error}"))))
}

/// Writes a file as a whole, and syncs it.
fn durable(folder: &Path, name: &str, contents: &impl Serialize) -> io::Result<()> {
    let (part, path) = (folder.join(format!(".{name}.part")), folder.join(name));
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(FILE).open(&part)?;
        let mut text = serde_json::to_vec(contents)?;
        text.push(b'\n');
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&part, &path)?;
        File::open(folder)?.sync_all()
    })();
    written.map_err(|error| named(&path, &error))
}

/// Appends a JSON line and syncs it; on an error nothing is appended.
fn append(path: &Path, line: &impl Serialize) -> io::Result<()> {
    let result = (|| {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(FILE)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        let end = file.metadata()?.len();
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        if written.is_err() {
            file.set_len(end)?;
        }
        written?;
        File::open(path.parent().unwrap_or(path))?.sync_all()
    })();
    result.map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The state of one target.
#[derive(Debug)]
pub struct Outbox {
    store: PathBuf,
    folder: PathBuf,
    shipped: HashSet<PathBuf>,
    /// Number of names in `shipped` when files that are gone were removed from it.
    pruned: usize,
    merged: Merged,
    pending: Option<Batch>,
}

impl Outbox {
    /// Creates the folder of a target, before privileges are dropped.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn prepare(store: &Path, name: &str) -> io::Result<()> {
        let metadata = fs::metadata(store)?;
        folder::make(&store.join(SHIP).join(name), FOLDER, Some((metadata.uid(), metadata.gid())))
    }

    /// Opens the state of a target under this name, or creates it. The caller holds [`Lock::shipper`].
    /// `merged`: files that this process merges.
    ///
    /// # Errors
    /// If the state cannot be read or written.
    pub fn open(store: &Path, name: &str, merged: Merged) -> io::Result<Outbox> {
        let folder = store.join(SHIP).join(name);
        folder::make(&folder, FOLDER, None)?;
        let shipped = folder.join("shipped");
        if let Ok(text) = fs::read(&shipped) {
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            if whole < text.len() {
                OpenOptions::new().write(true).open(&shipped)?.set_len(whole as u64)?;
            }
        }
        let state = Target::read(&folder)?;
        let (store, shipped, pending) = (store.to_owned(), state.shipped, state.pending);
        let mut outbox = Outbox { store, folder, shipped, pruned: 0, merged, pending };
        // The process was killed after it had noted the arrival.
        if outbox
            .pending
            .as_ref()
            .is_some_and(|batch| batch.files.iter().all(|file| outbox.shipped.contains(file)))
        {
            outbox.remove_pending()?;
        }
        outbox.prune()?;
        Ok(outbox)
    }

    /// The batch on its way.
    pub fn pending(&self) -> Option<&Batch> {
        self.pending.as_ref()
    }

    /// Complete files of a table that were not shipped, the oldest first.
    ///
    /// # Errors
    /// If the folder of the table cannot be read.
    pub fn waiting(&self, table: Table) -> io::Result<Vec<Waiting>> {
        let folder = self.store.join(table.name());
        let listing = match paths::list(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listing => listing.map_err(|error| named(&folder, &error))?,
        };
        let waiting = listing.files.into_iter().filter(|file| file.ours).filter_map(|file| {
            let inside = file.path.strip_prefix(&self.store).ok()?.to_owned();
            let waits = !self.shipped.contains(&inside) && !self.merged.contains(&inside);
            waits.then_some(Waiting { file: inside, hour: file.hour, size: file.size })
        });
        Ok(waiting.collect())
    }

    /// Makes a batch of these files the pending one. `false`: a file is gone, and nothing is claimed.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub fn claim(&mut self, table: Table, files: Vec<PathBuf>) -> io::Result<bool> {
        let _lock = Lock::claims(&self.store)?;
        if !files.iter().all(|file| self.store.join(file).exists()) {
            return Ok(false);
        }
        let token = paths::new_name(chrono::Utc::now()).replace(".parquet", "");
        let batch = Batch { token, table: table.name().to_owned(), files };
        durable(&self.folder, "pending", &batch)?;
        self.pending = Some(batch);
        Ok(true)
    }

    /// Notes that the pending batch has arrived.
    ///
    /// # Errors
    /// If the state cannot be written; the batch is still pending then.
    pub fn arrived(&mut self) -> io::Result<()> {
        if let Some(batch) = self.pending.clone() {
            append(&self.folder.join("shipped"), &batch.files)?;
            self.shipped.extend(batch.files);
            self.remove_pending()?;
        }
        match self.shipped.len() > 2 * self.pruned + PRUNE {
            true => self.prune(),
            false => Ok(()),
        }
    }

    /// Forgets files that are gone, except those that retention has noted as removed, which would be reported again.
    fn prune(&mut self) -> io::Result<()> {
        // Merging adds names to the list under this lock.
        let _lock = Lock::claims(&self.store)?;
        self.shipped = Target::read(&self.folder)?.shipped;
        let noted = lines::<Taken>(&self.store.join(SHIP).join("taken"))?;
        let noted: HashSet<PathBuf> = noted.into_iter().map(|taken| taken.file).collect();
        let is_there = |file: &PathBuf| noted.contains(file) || self.store.join(file).exists();
        let (there, gone): (HashSet<PathBuf>, HashSet<PathBuf>) = self.shipped.drain().partition(is_there);
        (self.pruned, self.shipped) = (there.len(), there);
        if !gone.is_empty() {
            // A file that came back after a crash would be shipped again.
            let folder = |file: &PathBuf| {
                let path = self.store.join(file);
                path.ancestors().find(|folder| folder.is_dir()).map(Path::to_owned)
            };
            let folders: HashSet<PathBuf> = gone.iter().filter_map(folder).collect();
            folders.iter().try_for_each(|folder| File::open(folder)?.sync_all())?;
            durable(&self.folder, "shipped", &self.shipped)?;
        }
        Ok(())
    }

    /// Files that retention removed before they were shipped to this target, and killed writers, that were not reported yet.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn taken(&self) -> io::Result<Vec<Taken>> {
        let mut taken = killed(&self.store)?;
        if self.store.join(SHIP).join("taken").exists() {
            let _lock = Lock::claims(&self.store)?;
            taken.extend(self::taken(&self.store)?);
        }
        taken.retain(|one| !self.shipped.contains(&one.file));
        Ok(taken)
    }

    /// Notes that the target knows of a removed file or a killed writer.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub fn reported(&mut self, taken: &Taken) -> io::Result<()> {
        append(&self.folder.join("shipped"), &[&taken.file])?;
        self.shipped.insert(taken.file.clone());
        Ok(())
    }

    fn remove_pending(&mut self) -> io::Result<()> {
        let path = self.folder.join("pending");
        fs::remove_file(&path).map_err(|error| named(&path, &error))?;
        self.pending = None;
        Ok(())
    }
}

/// Files that retention removed before they were shipped to all targets.
///
/// # Errors
/// If the state cannot be read.
pub(crate) fn taken(store: &Path) -> io::Result<Vec<Taken>> {
    let mut seen = HashSet::new();
    let mut taken = lines::<Taken>(&store.join(SHIP).join("taken"))?;
    // A file that is still there was noted by a process that was killed before it removed the file.
    taken.retain(|one| !store.join(&one.file).exists() && seen.insert(one.file.clone()));
    Ok(taken)
}

/// Writers of the store that were killed, with rows that nobody can count.
///
/// # Errors
/// If their marks cannot be read.
pub(crate) fn killed(store: &Path) -> io::Result<Vec<Taken>> {
    let killed = writers::interrupted(store)?.into_iter().map(|one| Taken {
        cause: Cause::Interrupted,
        file: one.mark,
        table: String::new(),
        hour: one.hour,
        probe: one.probe,
        rows: None,
    });
    Ok(killed.collect())
}

/// State of files at a target.
#[derive(Debug, Default)]
struct Target {
    shipped: HashSet<PathBuf>,
    pending: Option<Batch>,
}

impl Target {
    /// Folders of all targets.
    fn folders(store: &Path) -> io::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(store.join(SHIP))?.collect::<io::Result<Vec<_>>>()?;
        Ok(entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
    }

    fn read(folder: &Path) -> io::Result<Target> {
        let shipped = lines::<Vec<PathBuf>>(&folder.join("shipped"))?.into_iter().flatten().collect();
        let path = folder.join("pending");
        let pending = match fs::read(&path) {
            Ok(text) => Some(
                serde_json::from_slice(&text)
                    .map_err(|error| named(&path, &io::Error::other(format!("invalid state: {error}"))))?,
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named(&path, &error)),
        };
        Ok(Target { shipped, pending })
    }
}

/// Hour since 1970 of a file, by the folder that it is in.
pub fn hour_of(path: &Path) -> Option<i64> {
    let mut folders =
        path.ancestors().skip(1).map(|folder| folder.file_name().unwrap_or_default().to_string_lossy());
    let (hour, date) = (folders.next()?, folders.next()?);
    let date = chrono::NaiveDate::parse_from_str(date.strip_prefix("date=")?, "%Y-%m-%d").ok()?;
    let time = date.and_hms_opt(hour.strip_prefix("hour=")?.parse().ok()?, 0, 0)?;
    Some(time.and_utc().timestamp() / 3600)
}

/// Folder of an hour since 1970, inside that of a table.
pub fn folder_of(hour: i64) -> String {
    paths::folder(Path::new(""), hour).to_string_lossy().into_owned()
}

/// Whether the store is shipped.
pub(crate) fn is_shipped(store: &Path) -> bool {
    store.join(SHIP).is_dir()
}

/// Retention's view of all targets, under the lock of claims.
pub(crate) struct Guard {
    store: PathBuf,
    targets: Vec<Target>,
    _lock: Lock,
}

impl Guard {
    /// `None`: the store is not shipped.
    pub(crate) fn take(store: &Path) -> io::Result<Option<Guard>> {
        if !is_shipped(store) {
            return Ok(None);
        }
        let lock = Lock::claims(store)?;
        let folders = Target::folders(store)?;
        let targets = folders.iter().map(|folder| Target::read(folder)).collect::<io::Result<_>>()?;
        Ok(Some(Guard { store: store.to_owned(), targets, _lock: lock }))
    }

    /// Whether all targets have the file.
    pub(crate) fn has_arrived(&self, path: &Path) -> bool {
        let Ok(inside) = path.strip_prefix(&self.store) else { return true };
        self.targets.iter().all(|target| target.shipped.contains(inside))
    }

    /// Whether the file is on its way to a target.
    pub(crate) fn is_pending(&self, path: &Path) -> bool {
        let inside = path.strip_prefix(&self.store).ok();
        let batches = self.targets.iter().filter_map(|target| target.pending.as_ref());
        batches.flat_map(|batch| &batch.files).any(|file| Some(file.as_path()) == inside)
    }

    /// Notes that a file is removed before it was shipped; returns its number of rows, if the file can be read.
    pub(crate) fn note(&self, path: &Path, table: Table, hour: i64) -> io::Result<Option<u64>> {
        let found = body::described(path);
        let rows = found.as_ref().map(|found| found.rows);
        let file = path.strip_prefix(&self.store).unwrap_or(path).to_owned();
        let probe = found.and_then(|found| found.probe);
        let taken =
            Taken { cause: Cause::Unshipped, file, table: table.name().to_owned(), hour, probe, rows };
        append(&self.store.join(SHIP).join("taken"), &taken)?;
        Ok(rows)
    }
}
