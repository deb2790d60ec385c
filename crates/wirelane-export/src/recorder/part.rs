//! A file that gets its name when it is complete.
//!
//! While it is written, its name is `NAME.part`. It is created exclusively (O_EXCL), for its owner only (0600), never
//! through a link (O_NOFOLLOW), and relative to an open directory. When it is complete it is made durable (fsync),
//! renamed without replacing anything, and the directory is made durable. If the process is killed, a `.part` remains
//! that is readable up to its end.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::names;
use crate::{Error, Result};

/// Maximum names that are tried for a `.part`: each existing one was left by a dead run.
const ATTEMPTS: u32 = 1000;

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens a directory.
    pub(crate) fn open(path: &Path) -> Result<Arc<Directory>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Arc::new(Directory { fd, path: path.to_owned() })),
            Err(e) => Err(Error::Directory { path: path.to_owned(), source: e.into() }),
        }
    }

    /// Path of an entry of the directory, relative to the given path.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        match self.path.as_os_str() == "." {
            true => PathBuf::from(name),
            false => self.path.join(name),
        }
    }

    /// Type of an entry, without following links; `None`: the entry does not exist.
    fn kind(&self, name: &OsStr) -> io::Result<Option<FileType>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Size of a regular file, without following links; `None` for other types.
    pub(crate) fn file_size(&self, name: &OsStr) -> Option<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat.st_size as u64)
    }

    /// Removes a file; for a link, the link itself.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }
}

/// Options for creating a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creation {
    /// Whether an existing file with the final name may be replaced at the end.
    pub(crate) overwrite: bool,
    /// Whether the file is written past the page cache.
    pub(crate) direct: bool,
    /// Whether another name is tried if a dead run left its `.part`.
    pub(crate) beside: bool,
}

/// An unfinished file.
#[derive(Debug)]
pub(crate) struct PartFile {
    file: File,
    directory: Arc<Directory>,
    part: OsString,
    name: OsString,
    overwrite: bool,
}

impl PartFile {
    /// Creates the `.part` of `name`.
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::SymbolicLink`] if a name exists, [`Error::DirectIo`], [`Error::Open`].
    pub(crate) fn create(directory: &Arc<Directory>, name: OsString, creation: Creation) -> Result<PartFile> {
        let failed = |name: &OsStr, source: io::Error| Error::Open { path: directory.path_of(name), source };
        match directory.kind(&name).map_err(|e| failed(&name, e))? {
            None => {}
            Some(FileType::RegularFile) if creation.overwrite => {}
            Some(FileType::Symlink) => return Err(Error::SymbolicLink { path: directory.path_of(&name) }),
            Some(_) => return Err(Error::Exists { path: directory.path_of(&name) }),
        }
        // Also open for reading, because the last bytes may have to be written again as whole blocks.
        let access = if creation.direct { OFlags::RDWR | OFlags::DIRECT } else { OFlags::WRONLY };
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for attempt in 1..=ATTEMPTS {
            let part = names::part(&name, attempt);
            let path = directory.path_of(&part);
            match rustix::fs::openat(&directory.fd, &part, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => {
                    let directory = Arc::clone(directory);
                    let overwrite = creation.overwrite;
                    return Ok(PartFile { file: File::from(fd), directory, part, name, overwrite });
                }
                Err(Errno::EXIST) => match directory.kind(&part).map_err(|e| failed(&part, e))? {
                    Some(FileType::Symlink) => return Err(Error::SymbolicLink { path }),
                    _ if !creation.beside => return Err(Error::Exists { path }),
                    _ => tracing::warn!(
                        "{} is there already, from a recording that was cut or that still runs; it is left as it is",
                        path.display()
                    ),
                },
                Err(Errno::INVAL) if creation.direct => {
                    // Some file systems refuse direct I/O only after the file was created.
                    let _ = directory.remove(&part);
                    return Err(Error::DirectIo { path });
                }
                Err(e) => return Err(failed(&part, e.into())),
            }
        }
        Err(Error::Exists { path: directory.path_of(&names::part(&name, ATTEMPTS)) })
    }

    /// Name of the unfinished file in errors.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path_of(&self.part)
    }

    /// Directory of the file.
    pub(crate) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    /// Final name of the file.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Writes all bytes at an offset; an error contains the number of bytes written before.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> std::result::Result<(), (usize, io::Error)> {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write_at(&bytes[written..], offset + written as u64) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(more) => written += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err((written, e)),
            }
        }
        Ok(())
    }

    /// Reads written bytes back.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut read = 0;
        while read < bytes.len() {
            match self.file.read_at(&mut bytes[read..], offset + read as u64) {
                // The file ends within the last block.
                Ok(0) => break,
                Ok(more) => read += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Truncates the file to this length.
    pub(crate) fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    /// Switches to the page cache, which is required for the end of the file.
    pub(crate) fn leave_direct(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        Ok(rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?)
    }

    /// Removes the empty file.
    pub(crate) fn discard(self) -> io::Result<()> {
        self.directory.remove(&self.part)
    }

    /// Makes the file durable and gives it its final name. Returns its final path.
    ///
    /// # Errors
    /// [`Error::Sync`] if it cannot be made durable; [`Error::Vanished`] if the `.part` no longer exists;
    /// [`Error::Exists`] if another file has the final name: then the `.part` remains, as it does with [`Error::Open`].
    pub(crate) fn finish(self) -> Result<PathBuf> {
        let path = self.directory.path_of(&self.name);
        let part = self.path();
        self.file.sync_all().map_err(|source| Error::Sync { path: part.clone(), source })?;
        let ours = rustix::fs::fstat(&self.file)
            .map_err(|e| Error::Sync { path: part.clone(), source: e.into() })?;
        // The file may have been moved, or its directory removed.
        let named = rustix::fs::statat(&self.directory.fd, &self.part, AtFlags::SYMLINK_NOFOLLOW);
        if !named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)) {
            return Err(Error::Vanished { path: part });
        }
        let fd = &self.directory.fd;
        let renamed = match self.overwrite {
            true => rustix::fs::renameat(fd, &self.part, fd, &self.name),
            false => {
                match rustix::fs::renameat_with(fd, &self.part, fd, &self.name, RenameFlags::NOREPLACE) {
                    // Network file systems do not support this flag. A second link, and then removing the first, has
                    // the same effect: link(2) never replaces anything.
                    Err(Errno::INVAL | Errno::NOSYS) => {
                        rustix::fs::linkat(fd, &self.part, fd, &self.name, AtFlags::empty())
                            .and_then(|()| rustix::fs::unlinkat(fd, &self.part, AtFlags::empty()))
                    }
                    result => result,
                }
            }
        };
        match renamed {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(Error::Taken { path, part }),
            Err(e) => return Err(Error::Open { path, source: e.into() }),
        }
        rustix::fs::fsync(fd).map_err(|e| Error::Sync { path: path.clone(), source: e.into() })?;
        Ok(path)
    }
}
