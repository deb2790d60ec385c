//! The bytes of a capture file, in a window that grows only as bytes arrive.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::compressed::{self, FileProgress};
use crate::{Error, Result};

/// First size of the window in bytes.
const WINDOW: usize = 256 << 10;

/// A reader with a window over its bytes.
pub(super) struct Input {
    reader: Box<dyn Read + Send>,
    /// The descriptor to poll before reading, for pipes and the like. A regular file is always ready.
    pipe: Option<OwnedFd>,
    path: PathBuf,
    window: Vec<u8>,
    start: usize,
    end: usize,
    /// File offset of the window's first unread byte.
    offset: u64,
    ended: bool,
    /// Progress of reading a regular file.
    progress: Option<FileProgress>,
    /// The compression of the file.
    compression: Option<&'static str>,
}

/// A capture file that has been opened but not read yet. Between the two steps a process can give up the rights that
/// opening needed (a sandbox).
#[derive(Debug)]
pub struct FileInput {
    file: File,
    name: PathBuf,
    /// File position when it was opened; `None` for a pipe.
    start: Option<u64>,
    /// Records are yielded in the order of the file.
    any_order: bool,
    /// Progress of reading several files.
    progress: Option<FileProgress>,
}

impl FileInput {
    /// Yields records in the order of the file. Default: in the order of their time stamps.
    #[must_use]
    pub fn any_order(mut self, any_order: bool) -> FileInput {
        self.any_order = any_order;
        self
    }

    /// The setting of [`FileInput::any_order`].
    pub fn is_any_order(&self) -> bool {
        self.any_order
    }

    /// Opens a file, or standard input for `-`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened, [`Error::BadOption`] if standard input is a terminal.
    pub fn open(path: &Path) -> Result<FileInput> {
        let name = shown(path);
        let failed = |source| Error::Io { path: name.clone(), source };
        let mut file = if path.as_os_str() == "-" {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                return Err(Error::BadOption {
                    option: "-r -",
                    reason: "standard input is a terminal; pipe a capture into it, or give a file name"
                        .into(),
                });
            }
            File::from(stdin.as_fd().try_clone_to_owned().map_err(failed)?)
        } else {
            File::open(path).map_err(failed)?
        };
        // Standard input may be at any offset of its file, and a pipe has no offset.
        let start = file.stream_position().ok();
        Ok(FileInput { file, name, start, any_order: false, progress: None })
    }

    /// The same file for another pass: from its position when it was opened, or, for a pipe, the bytes that have not
    /// been read yet. All passes share one position: only one may be read at a time.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel refuses.
    pub fn again(&self) -> Result<FileInput> {
        let failed = |source| Error::Io { path: self.name.clone(), source };
        let mut file = self.file.try_clone().map_err(failed)?;
        if let Some(start) = self.start {
            file.seek(io::SeekFrom::Start(start)).map_err(failed)?;
        }
        let (name, progress) = (self.name.clone(), self.progress.clone());
        Ok(FileInput { file, name, start: self.start, any_order: self.any_order, progress })
    }

    /// The same file, from its position when it was opened.
    pub(super) fn rewound(mut self) -> Result<FileInput> {
        if let Some(start) = self.start {
            let sought = self.file.seek(io::SeekFrom::Start(start));
            sought.map_err(|source| Error::Io { path: self.name.clone(), source })?;
        }
        Ok(self)
    }

    /// Counts what is read as progress of several files.
    pub(super) fn counted(mut self, progress: FileProgress) -> FileInput {
        self.progress = Some(progress);
        self
    }

    /// Size of a regular file in bytes. Others cannot be read twice, and so not be merged.
    pub(super) fn size(&self) -> Result<u64> {
        let failed = |source| Error::Io { path: self.name.clone(), source };
        let metadata = self.file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let name = self.name.display();
            let reason =
                format!("{name} is not a regular file and cannot be merged with others: read it alone");
            return Err(Error::BadOption { option: "-r", reason });
        }
        Ok(metadata.len())
    }

    /// The name of the file in error messages.
    pub fn name(&self) -> &Path {
        &self.name
    }
}

/// Result of reading more bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// More bytes were read.
    More,
    /// The time limit expired first.
    Waited,
    /// There are no more bytes.
    End,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

impl Input {
    /// Creates an input over an open file.
    pub(super) fn over(opened: FileInput) -> Result<Input> {
        let FileInput { file, name, progress, .. } = opened;
        let failed = |source| Error::Io { path: name.clone(), source };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let pipe = Some(file.as_fd().try_clone_to_owned().map_err(failed)?);
            return Ok(Input { pipe, ..Input::new(Box::new(file), &name) });
        }
        let progress = progress.unwrap_or_else(|| FileProgress::new(metadata.len()));
        let (reader, compression) = compressed::reader(file, progress.clone()).map_err(failed)?;
        Ok(Input { progress: Some(progress), compression, ..Input::new(reader, &name) })
    }

    /// Progress of reading a regular file.
    pub(super) fn progress(&self) -> Option<FileProgress> {
        self.progress.clone()
    }

    /// Creates an input over any reader; `path` is its name in error messages.
    pub(super) fn new(reader: Box<dyn Read + Send>, path: &Path) -> Input {
        Input {
            reader,
            pipe: None,
            path: path.to_owned(),
            window: Vec::new(),
            start: 0,
            end: 0,
            offset: 0,
            ended: false,
            progress: None,
            compression: None,
        }
    }

    /// Whether reading may block on the writer of a pipe.
    pub(super) fn is_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// The available bytes, starting at the file offset [`Input::offset`].
    pub(super) fn bytes(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// Skips available bytes.
    pub(super) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// File offset of the first unread byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The error for a damaged item at this offset.
    pub(super) fn damage(&self, offset: u64, reason: String) -> Error {
        Error::CaptureFile { path: self.path.clone(), offset, reason }
    }

    /// The error for a wait that a signal interrupted before any data was available.
    pub(super) fn interrupted(&self) -> Error {
        Error::Io {
            path: self.path.clone(),
            source: io::Error::new(
                io::ErrorKind::Interrupted,
                "interrupted before the capture's header came",
            ),
        }
    }

    /// Reads until this many bytes are available or the input ends, without a time limit.
    pub(super) fn await_bytes(&mut self, bytes: usize) -> Result<()> {
        while self.bytes().len() < bytes {
            match self.fill(Duration::MAX)? {
                Filled::More => {}
                Filled::Waited => return Err(self.interrupted()),
                Filled::End => break,
            }
        }
        Ok(())
    }

    /// Size of the window in bytes.
    pub(super) fn memory(&self) -> usize {
        self.window.capacity()
    }

    /// Appends more bytes to the available ones, waiting up to `wait` for them.
    ///
    /// The window doubles when it is full, so it is never more than twice the size of the data that has arrived. The
    /// caller limits it by not asking for more once an item is too long.
    pub(super) fn fill(&mut self, wait: Duration) -> Result<Filled> {
        if self.ended {
            return Ok(Filled::End);
        }
        if let Some(pipe) = &self.pipe
            && !is_ready(pipe, wait).map_err(|source| Error::Io { path: self.path.clone(), source })?
        {
            return Ok(Filled::Waited);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.window.len() && self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.window.len() {
            self.window.resize((self.window.len() * 2).max(WINDOW), 0);
        }
        loop {
            match self.reader.read(&mut self.window[self.end..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(Filled::End);
                }
                Ok(read) => {
                    self.end += read;
                    return Ok(Filled::More);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Filled::Waited),
                Err(e) => {
                    self.ended = true;
                    return Err(match self.compression {
                        Some(with) => {
                            let there = self.offset + self.bytes().len() as u64;
                            self.damage(there, compressed::damage(with, &e))
                        }
                        None => Error::Io { path: self.path.clone(), source: e },
                    });
                }
            }
        }
    }
}

/// The name of the input in error messages.
fn shown(path: &Path) -> PathBuf {
    match path.as_os_str() == "-" {
        true => PathBuf::from("standard input"),
        false => path.to_owned(),
    }
}

/// Waits up to `wait` until a read does not block; returns whether it is ready. A signal ends the wait, so that a
/// capture can be stopped while its input is silent.
fn is_ready(fd: &OwnedFd, wait: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    // SAFETY: the pointer is to one pollfd that lives through the call, and the count is 1.
    match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
        -1 => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
            e => Err(e),
        },
        ready => Ok(ready > 0),
    }
}
