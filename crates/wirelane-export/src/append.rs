//! A file to which whole records are appended: lines of logs and exports, or IPFIX messages.
//!
//! - A failed write is repeated each second. Records wait meanwhile, up to a limit; records beyond it are counted.
//! - A record is either completely in the file, or counted as unwritten: the rest of a torn record is written before
//!   any other, or its beginning is cut off at the end.
//! - A file that is renamed or removed (logrotate) is opened again under its name; one that is truncated
//!   (`copytruncate`) continues at its beginning, since it is opened with O_APPEND. Both begin with the header.
//!
//! Standard output, pipes and devices are written to without rotation.

use std::collections::VecDeque;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::words::counted;
use crate::{Error, OutputOptions, Result};

/// Bytes that are collected before they are written.
const GATHERED: usize = 64 << 10;
/// Default limit for the bytes of records that wait for space on the disk.
const WAITING: usize = 8 << 20;
/// Time between two attempts to write, and between two checks of the file's name.
const RETRY: Duration = Duration::from_secs(1);
/// Interval of warnings about a file that cannot be written to.
const REMINDER: Duration = Duration::from_secs(60);
/// Maximum time that a record waits while others follow it.
const PATIENCE: Duration = Duration::from_millis(250);

/// Number of calls of [`reopen`].
static REOPENED: AtomicU64 = AtomicU64::new(0);

/// Makes all files of the process check their names at their next flush, instead of within a second: for a signal that
/// reports renamed files.
pub fn reopen() {
    // Relaxed: the counter publishes no other data.
    REOPENED.fetch_add(1, Ordering::Relaxed);
}

/// Results of the records. Records have weights: a line counts one, an IPFIX message the records in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendCounts {
    /// Weight of the records that are completely in the file.
    pub written: u64,
    /// Weight of the records that were given up.
    pub unwritten: u64,
    /// Weight of the records that wait.
    pub waiting: u64,
    /// Records in the file.
    pub records: u64,
    /// Bytes in the file, headers included.
    pub bytes: u64,
    /// Number of times that the file was opened again after it was renamed.
    pub reopened: u64,
    /// The last error, even if a later attempt succeeded.
    pub error: Option<String>,
}

/// A record that is not yet completely written.
#[derive(Clone, Copy, Debug)]
struct Pending {
    bytes: usize,
    weight: u64,
    is_header: bool,
}

/// A file to which records are appended. See the [module](self).
#[derive(Debug)]
pub struct AppendFile {
    path: PathBuf,
    file: File,
    regular: bool,
    owner: Option<(u32, u32)>,
    header: Vec<u8>,
    /// Bytes that are not written yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    pending: VecDeque<Pending>,
    /// Bytes of the first pending record that are already in the file.
    torn: usize,
    counts: AppendCounts,
    retry_at: Option<Instant>,
    /// Time of the first failed write since the last one that succeeded.
    failing: Option<SystemTime>,
    /// Maximum bytes of records that wait for space on the disk.
    most_waiting: usize,
    /// Time of the last warning, while nothing can be written.
    reminded: Option<Instant>,
    /// Whether the reader of a pipe has closed it.
    closed: bool,
    looked: Instant,
    flushed: Instant,
    reopened: u64,
}

impl AppendFile {
    /// Opens or creates the file; `-` is standard output. An existing file is appended to, or truncated if
    /// [`OutputOptions::overwrite`] is set. `header`: bytes that an empty file begins with. `owner`: user and group of
    /// a new file.
    ///
    /// # Errors
    /// [`Error::SymbolicLink`], [`Error::NotAnOutput`], or [`Error::Open`] with the kernel's error.
    pub fn open(
        path: &Path,
        options: OutputOptions,
        owner: Option<(u32, u32)>,
        header: Vec<u8>,
    ) -> Result<AppendFile> {
        let (file, path, regular) = if path.as_os_str() == "-" {
            standard()?
        } else {
            let file = open(path, owner)?;
            let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
            if regular && options.overwrite {
                file.set_len(0).map_err(|source| Error::Open { path: path.to_owned(), source })?;
            }
            (file, path.to_owned(), regular)
        };
        let mut this = AppendFile {
            path,
            file,
            regular,
            owner,
            header,
            buffer: Vec::new(),
            start: 0,
            pending: VecDeque::new(),
            torn: 0,
            counts: AppendCounts::default(),
            retry_at: None,
            failing: None,
            most_waiting: WAITING,
            reminded: None,
            closed: false,
            looked: Instant::now(),
            flushed: Instant::now(),
            reopened: REOPENED.load(Ordering::Relaxed),
        };
        this.begin();
        Ok(this)
    }

    /// Like [`AppendFile::open`], for lines of text: an incomplete last line of another process is ended.
    ///
    /// # Errors
    /// Those of [`AppendFile::open`].
    pub fn open_lines(
        path: &Path,
        options: OutputOptions,
        owner: Option<(u32, u32)>,
        header: Vec<u8>,
    ) -> Result<AppendFile> {
        let mut this = AppendFile::open(path, options, owner, header)?;
        if this.ends_torn() {
            this.put(b"\n");
        }
        Ok(this)
    }

    /// Sets the maximum bytes that wait for space on the disk, at least 64 KiB. Default: 8 MiB.
    pub fn holding(self, bytes: usize) -> AppendFile {
        AppendFile { most_waiting: bytes.clamp(GATHERED, WAITING), ..self }
    }

    /// Whether the file ends in an incomplete line.
    fn ends_torn(&self) -> bool {
        let Ok(own) = self.file.metadata() else { return false };
        // The file descriptor is open only for writing.
        let Ok(file) = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())) else { return false };
        let mut last = [b'\n'];
        self.regular && own.len() > 0 && file.read_at(&mut last, own.len() - 1).is_ok() && last != [b'\n']
    }

    /// The path, for errors.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file that must be reopenable later; `None` for standard output, pipes and devices.
    pub fn rotates(&self) -> Option<&Path> {
        self.regular.then_some(&self.path)
    }

    /// Results of the records.
    pub fn counts(&self) -> &AppendCounts {
        &self.counts
    }

    /// Time since which nothing can be written; `None`: writing works.
    pub fn failing(&self) -> Option<SystemTime> {
        self.failing
    }

    /// Whether the file is a pipe whose reader has closed it.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Number of waiting bytes.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Sets the bytes that an empty file begins with. The first header is written in any case: IPFIX templates belong
    /// to this process.
    pub fn set_header(&mut self, header: Vec<u8>) {
        let first = self.header.is_empty();
        self.header = header;
        if first {
            let header = std::mem::take(&mut self.header);
            self.put(&header);
            self.header = header;
        }
    }

    /// Appends the record that `make` writes. False: there was no space, and the record is counted as unwritten.
    pub fn append(&mut self, weight: u64, make: impl FnOnce(&mut Vec<u8>)) -> bool {
        let before = self.buffer.len();
        make(&mut self.buffer);
        let bytes = self.buffer.len() - before;
        if self.retry_at.is_some() && self.waiting() > self.most_waiting {
            self.buffer.truncate(before);
            self.counts.unwritten += weight;
            self.flush();
            return false;
        }
        self.pending.push_back(Pending { bytes, weight, is_header: false });
        self.counts.waiting += weight;
        if self.waiting() >= GATHERED || self.flushed.elapsed() >= PATIENCE {
            self.flush();
        }
        true
    }

    /// Writes waiting records, unless an attempt failed less than a second ago, and reopens the file if it was renamed.
    pub fn flush(&mut self) {
        self.flushed = Instant::now();
        self.retry();
        let reopened = REOPENED.load(Ordering::Relaxed);
        if self.regular && (self.reopened != reopened || self.looked.elapsed() >= RETRY) {
            self.reopened = reopened;
            self.looked = Instant::now();
            self.follow();
        }
    }

    /// Ends the file: makes a last attempt to write waiting records. The rest is counted as unwritten, and the
    /// beginning of a torn record is cut off from the file.
    pub fn finish(&mut self) {
        self.retry_at = None;
        self.write();
        if self.pending.is_empty() {
            return;
        }
        if self.torn > 0 && self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            // If the file ends where this process wrote last, no other process has appended since.
            let length = self.file.metadata().map(|metadata| metadata.len());
            let place = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Current(0));
            if let (Ok(length), Ok(place)) = (length, place)
                && length == place
                && self.file.set_len(length - self.torn as u64).is_ok()
            {
                self.counts.bytes -= self.torn as u64;
            }
        }
        self.counts.unwritten += std::mem::take(&mut self.counts.waiting);
        self.pending.clear();
        self.buffer.clear();
        (self.start, self.torn) = (0, 0);
    }

    /// Queues the header before all waiting records, if the file is empty and no record is torn.
    fn begin(&mut self) {
        let empty = !self.regular || self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        let waits = self.pending.front().is_some_and(|first| first.is_header);
        if self.header.is_empty() || !empty || waits || self.torn > 0 {
            return;
        }
        let header = std::mem::take(&mut self.header);
        self.put(&header);
        self.header = header;
    }

    /// Queues bytes that are not a record before all waiting records, none of which is torn.
    fn put(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.splice(..0, bytes.iter().copied());
        self.pending.push_front(Pending { bytes: bytes.len(), weight: 0, is_header: true });
    }

    fn retry(&mut self) {
        if self.retry_at.is_none_or(|moment| Instant::now() >= moment) {
            self.retry_at = None;
            // The file may be empty after copytruncate.
            if self.regular && self.counts.bytes > 0 {
                self.begin();
            }
            self.write();
        }
    }

    fn write(&mut self) {
        while self.start < self.buffer.len() {
            match self.file.write(&self.buffer[self.start..]) {
                Ok(0) => return self.fail(&ErrorKind::WriteZero.into()),
                Ok(written) => self.wrote(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.fail(&error),
            }
        }
        self.buffer.clear();
        self.start = 0;
        self.failing = None;
        if self.reminded.take().is_some() {
            let (path, unwritten) = (self.path.display(), counted(self.counts.unwritten, "record"));
            tracing::warn!("{path}: is written to again; {unwritten} missing from it");
        }
    }

    fn wrote(&mut self, written: usize) {
        self.start += written;
        self.counts.bytes += written as u64;
        self.torn += written;
        while let Some(first) = self.pending.front().copied().filter(|first| first.bytes <= self.torn) {
            self.torn -= first.bytes;
            self.pending.pop_front();
            self.counts.written += first.weight;
            self.counts.waiting -= first.weight;
            self.counts.records += u64::from(!first.is_header);
        }
    }

    fn fail(&mut self, error: &io::Error) {
        self.retry_at = Some(Instant::now() + RETRY);
        self.failing.get_or_insert_with(SystemTime::now);
        self.closed = error.kind() == ErrorKind::BrokenPipe;
        if !self.closed {
            self.warn(error.to_string());
            self.remind();
        }
        self.buffer.drain(..self.start);
        self.start = 0;
    }

    /// Warns regularly while nothing can be written.
    fn remind(&mut self) {
        let now = Instant::now();
        if self.reminded.is_some_and(|reminded| now - reminded >= REMINDER) {
            let AppendCounts { waiting, unwritten, .. } = self.counts;
            let path = self.path.display();
            let waiting = counted(waiting, "record");
            tracing::warn!("{path}: still not written to; {waiting} waiting, {unwritten} missing");
            self.reminded = Some(now);
        }
        self.reminded.get_or_insert(now);
    }

    /// Warns about an error, unless it repeats the last one.
    fn warn(&mut self, error: String) {
        if self.counts.error.as_ref() != Some(&error) {
            tracing::warn!("{}: {error}", self.path.display());
            self.counts.error = Some(error);
        }
    }

    /// Reopens the path if the open file was renamed or removed.
    fn follow(&mut self) {
        let Ok(own) = self.file.metadata() else { return };
        let same = |other: &Metadata| (other.dev(), other.ino()) == (own.dev(), own.ino());
        match std::fs::symlink_metadata(&self.path) {
            Ok(other) if same(&other) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return self.warn(format!("looking for the file: {error}")),
        }
        // The rest of a torn record goes to the file that has its beginning.
        if self.torn > 0 {
            return;
        }
        match open(&self.path, self.owner) {
            Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => {
                self.file = file;
                self.counts.reopened += 1;
                self.retry_at = None;
                self.retry();
            }
            Ok(_) => self.warn("the name is no longer that of a file: the renamed file is written on".into()),
            Err(error) => self.warn(format!("{error}: the renamed file is written on")),
        }
    }
}

/// Opens a file for appending, which is created if it is missing, accessible only for its owner.
fn open(path: &Path, owner: Option<(u32, u32)>) -> Result<File> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            // Only root can change the owner of a file; a process that has changed to that user owns it already.
            if let Some((uid, gid)) = owner
                && rustix::process::geteuid().is_root()
            {
                fchown(&file, Some(uid), Some(gid)).map_err(failed)?;
            }
            return Ok(file);
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(error)),
    }
    let not = |kind| Error::NotAnOutput { path: path.to_owned(), kind };
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => Error::SymbolicLink { path: path.to_owned() },
        Some(libc::EISDIR) => not("a directory"),
        Some(libc::ENXIO) => not("a socket"),
        _ => failed(error),
    })?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if file.is_terminal() {
        return Err(not("a terminal"));
    }
    if kind.is_block_device() {
        return Err(not("a block device"));
    }
    Ok(file)
}

fn standard() -> Result<(File, PathBuf, bool)> {
    let path = PathBuf::from("standard output");
    let stdout = io::stdout();
    let file = match stdout.as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(source) => return Err(Error::Open { path, source }),
    };
    Ok((file, path, false))
}
