//! A file that is hidden until it is whole.
//!
//! Its writer holds a lock on it (flock(2)), which the kernel takes away with the process: a file that is hidden and not
//! locked is what a dead writer left, and the next writer removes it. It is nobody's loss: without its end a Parquet file cannot
//! be read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chrono::Utc;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock};
use rustix::io::Errno;
use wirelane_export::folder;

use crate::paths;

/// Folders are for their owner to write, and for the group to read: analysts need not be who captures.
pub(crate) const FOLDER: u32 = 0o750;
/// See [`FOLDER`].
const FILE: u32 = 0o640;
/// How often a file is tried to be made while others remove the folder that is empty still, or take it for a dead one's.
const ATTEMPTS: u32 = 16;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Unfinished {
    file: File,
    folder: PathBuf,
    name: String,
}

impl Unfinished {
    /// Makes one in this folder, which is made where it is missing.
    pub(crate) fn create(folder: &Path) -> io::Result<Unfinished> {
        for _ in 0..ATTEMPTS {
            folder::make(folder, FOLDER, None)?;
            let name = paths::new_name(Utc::now());
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(FILE).custom_flags(libc::O_NOFOLLOW);
            let file = match options.open(folder.join(paths::part_of(&name))) {
                Ok(file) => file,
                // Somebody has cleared the empty folder away; a name that is taken has 64 bits in common with ours.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Before the lock, another writer may have taken it for a dead one's.
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if file.metadata()?.nlink() > 0 => {
                    return Ok(Unfinished { file, folder: folder.to_owned(), name });
                }
                Ok(()) | Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("the folder was removed repeatedly by another process"))
    }

    /// What errors call it.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(paths::part_of(&self.name))
    }

    /// Writes all of it at an offset; how much was written, and what went wrong then.
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

    /// Makes it durable and gives it its name. On failure it is still there, hidden.
    pub(crate) fn finish(&self) -> io::Result<PathBuf> {
        self.file.sync_all()?;
        let (part, path) = (self.path(), self.folder.join(&self.name));
        match rustix::fs::renameat_with(CWD, &part, CWD, &path, RenameFlags::NOREPLACE) {
            // Network file systems know no such flag; a second name, and then the first one gone, is the same.
            Err(Errno::INVAL | Errno::NOSYS) => {
                fs::hard_link(&part, &path)?;
                fs::remove_file(&part)?;
            }
            result => result?,
        }
        // The name, and those of the folders above, which may be new.
        for folder in self.folder.ancestors().take(3) {
            File::open(folder)?.sync_all()?;
        }
        Ok(path)
    }

    /// Removes it.
    pub(crate) fn discard(self) {
        // Whoever removed it before has done what was to be done.
        let _ = fs::remove_file(self.path());
    }
}

/// Removes a hidden file where its writer is dead; whether it was.
pub(crate) fn clear(part: &Path) -> io::Result<bool> {
    // Writing is what a confined process may open files for.
    let opened = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(part);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        // It may have got its name since it was opened, and another file that of it.
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
