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
    /// What to wait on before reading, for pipes and the like. A regular file is always ready.
    pipe: Option<OwnedFd>,
    path: PathBuf,
    window: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the window's first unread byte is in the file.
    offset: u64,
    ended: bool,
    /// How far a regular file has been read.
    progress: Option<FileProgress>,
    /// What the file is compressed with.
    compression: Option<&'static str>,
}

/// A capture file that has been opened and not yet been looked at. Between the two a process can give up the rights
/// that the opening took (a sandbox).
#[derive(Debug)]
pub struct FileInput {
    file: File,
    name: PathBuf,
    /// Where it stood when it was opened; `None` of a pipe.
    start: Option<u64>,
    /// Records are yielded in the order of the file.
    any_order: bool,
}

impl FileInput {
    /// Yields records in the order of the file. Default: in the order of their time stamps.
    #[must_use]
    pub fn any_order(mut self, any_order: bool) -> FileInput {
        self.any_order = any_order;
        self
    }

    /// See [`FileInput::any_order`].
    pub fn is_any_order(&self) -> bool {
        self.any_order
    }

    /// Opens a file, or standard input for `-`.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be opened, [`Error::BadOption`] where standard input is a terminal.
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
        // Standard input may stand anywhere in its file, and a pipe stands nowhere.
        let start = file.stream_position().ok();
        Ok(FileInput { file, name, start, any_order: false })
    }

    /// The same file for another pass: from where it stood when it was opened, or, of a pipe, what has not been read
    /// yet. All passes share one position: only one is read at a time.
    ///
    /// # Errors
    /// [`Error::Io`] where the kernel refuses.
    pub fn again(&self) -> Result<FileInput> {
        let failed = |source| Error::Io { path: self.name.clone(), source };
        let mut file = self.file.try_clone().map_err(failed)?;
        if let Some(start) = self.start {
            file.seek(io::SeekFrom::Start(start)).map_err(failed)?;
        }
        Ok(FileInput { file, name: self.name.clone(), start: self.start, any_order: self.any_order })
    }

    /// What errors call it.
    pub fn name(&self) -> &Path {
        &self.name
    }
}

/// What came of asking for more bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There are more bytes.
    More,
    /// The wait ended first.
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
    /// Over a file that is open.
    pub(super) fn over(opened: FileInput) -> Result<Input> {
        let FileInput { file, name, .. } = opened;
        let failed = |source| Error::Io { path: name.clone(), source };
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            let pipe = Some(file.as_fd().try_clone_to_owned().map_err(failed)?);
            return Ok(Input { pipe, ..Input::new(Box::new(file), &name) });
        }
        let progress = FileProgress::new(metadata.len());
        let (reader, compression) = compressed::reader(file, progress.clone()).map_err(failed)?;
        Ok(Input { progress: Some(progress), compression, ..Input::new(reader, &name) })
    }

    /// How far a regular file has been read.
    pub(super) fn progress(&self) -> Option<FileProgress> {
        self.progress.clone()
    }

    /// Over any reader; `path` is what errors call it.
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

    /// Whether reading may have to wait for somebody else.
    pub(super) fn is_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// The bytes that are there, from the file offset of [`Input::offset`] on.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// Steps over bytes that are there.
    pub(super) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Where in the file the first unread byte is.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The error for what starts at this offset.
    pub(super) fn damage(&self, offset: u64, reason: String) -> Error {
        Error::CaptureFile { path: self.path.clone(), offset, reason }
    }

    /// The error for a wait that a signal ended before there was anything to give.
    pub(super) fn interrupted(&self) -> Error {
        Error::Io {
            path: self.path.clone(),
            source: io::Error::new(
                io::ErrorKind::Interrupted,
                "interrupted before the capture's header came",
            ),
        }
    }

    /// Reads until so many bytes are there or the input ends, however long that takes.
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

    /// Bytes that the window takes.
    pub(super) fn memory(&self) -> usize {
        self.window.capacity()
    }

    /// Reads more bytes behind those that are there, waiting up to `wait` for them.
    ///
    /// The window doubles when it is full, so it is never more than twice what has arrived. How far it goes is
    /// up to the caller, who does not ask for more once an item is longer than he accepts.
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

/// What errors call the input.
fn shown(path: &Path) -> PathBuf {
    match path.as_os_str() == "-" {
        true => PathBuf::from("standard input"),
        false => path.to_owned(),
    }
}

/// Whether a read will not block, after waiting up to `wait` for that. A signal ends the wait, so that a
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
