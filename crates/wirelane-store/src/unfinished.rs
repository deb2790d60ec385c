//! A file that is hidden until it is complete.
//!
//! Its writer holds a lock on it (flock(2)), which the kernel releases when the process ends: a hidden file that is not
//! locked was left by a dead writer, and the next writer removes it. Nothing is lost by that: without its footer a
//! Parquet file cannot be read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chrono::Utc;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock};
use rustix::io::Errno;
use wirelane_export::folder;

use crate::paths;

/// Folders are writable for the owner, and readable for the group: analysts may use another account than the capture.
pub(crate) const FOLDER: u32 = 0o750;
/// Mode of files; see [`FOLDER`].
const FILE: u32 = 0o640;
/// Attempts to create a file while other processes remove the still empty folder, or take the file for a dead writer's.
const ATTEMPTS: u32 = 16;

/// An unfinished file; see the module documentation.
#[derive(Debug)]
pub(crate) struct Unfinished {
    file: File,
    folder: PathBuf,
    name: String,
    /// Number of folders that may be new: this one and those above it.
    depth: usize,
}

impl Unfinished {
    /// Creates a file of rows in this folder, which is created if it is missing.
    pub(crate) fn create(folder: &Path) -> io::Result<Unfinished> {
        // The hour, the date, and the table.
        Unfinished::named(folder, 3, || paths::new_name(Utc::now()))
    }

    /// Creates a file with a name that `name` makes, another one in each attempt. `depth`: number of folders that may be
    /// new, this one and those above it.
    pub(crate) fn named(folder: &Path, depth: usize, name: impl Fn() -> String) -> io::Result<Unfinished> {
        for _ in 0..ATTEMPTS {
            folder::make(folder, FOLDER, None)?;
            let name = name();
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(FILE).custom_flags(libc::O_NOFOLLOW);
            let file = match options.open(folder.join(paths::part_of(&name))) {
                Ok(file) => file,
                // Another process removed the empty folder, or the name exists already (64 equal random bits).
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Before the lock, another writer may have removed it as a dead writer's file.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata()?.nlink() > 0 => {
                    return Ok(Unfinished { file, folder: folder.to_owned(), name, depth });
                }
                Ok(()) | Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("the folder was removed repeatedly by another process"))
    }

    /// Path of the file, for error messages.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(paths::part_of(&self.name))
    }

    /// Writes all bytes at an offset; returns the number of written bytes, and the error that stopped it.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> (usize, io::Result<()>) {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write_at(&bytes[written..], offset + written as u64) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    /// Makes the contents durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Path of the file once it is complete.
    pub(crate) fn whole(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Makes the file durable and gives it its final name. On failure it still exists, hidden.
    pub(crate) fn finish(&self) -> io::Result<PathBuf> {
        self.file.sync_all()?;
        let (part, path) = (self.path(), self.whole());
        match rustix::fs::renameat_with(CWD, &part, CWD, &path, RenameFlags::NOREPLACE) {
            // Network file systems do not support this flag; a second link, and then removing the first, has the same
            // effect.
            Err(Errno::INVAL | Errno::NOSYS) => {
                fs::hard_link(&part, &path)?;
                fs::remove_file(&part)?;
            }
            result => result?,
        }
        // Makes the name durable, and those of the parent folders, which may be new.
        let synced =
            self.folder.ancestors().take(self.depth).try_for_each(|folder| File::open(folder)?.sync_all());
        if synced.is_err() {
            // The rows count as unwritten, so queries must not find them.
            fs::rename(&path, &part)?;
        }
        synced.map(|()| path)
    }

    /// Removes the file.
    pub(crate) fn discard(self) {
        // If another process removed it, there is nothing left to do.
        let _ = fs::remove_file(self.path());
    }
}

/// Removes a hidden file if its writer is dead; returns whether it did.
pub(crate) fn clear(part: &Path) -> io::Result<bool> {
    // A sandboxed process may open files only for writing.
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(part);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // The file may have been renamed since it was opened, and another file may have this name now.
        Ok(()) => {
            let (ours, named) = (file.metadata()?, fs::symlink_metadata(part));
            if !named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
                return Ok(false);
            }
            fs::remove_file(part)?;
            Ok(true)
        }
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
