//! Output of a recording.
//!
//! Packets contain private data. A recording is created for its owner only (mode 0600), never through a symbolic link
//! planted by another user, and never over an existing file unless that was requested. An existing named pipe or device
//! such as `/dev/null` is written to directly.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes that are buffered before they are written.
const BUFFER: usize = 256 << 10;

/// Options for opening an output.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutputOptions {
    /// Whether an existing regular file may be overwritten. It keeps its owner and its mode.
    pub overwrite: bool,
}

/// A buffered output whose errors contain its name.
#[derive(Debug)]
pub struct Output {
    writer: BufWriter<Named>,
    regular: bool,
}

/// A file whose errors contain its path.
#[derive(Debug)]
struct Named {
    file: File,
    path: PathBuf,
}

impl Output {
    /// Opens or creates the output; `-` is standard output.
    ///
    /// Opening a named pipe without a reader blocks until there is one, as in the kernel.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::SymbolicLink`], [`Error::NotAnOutput`], or [`Error::Open`] with the kernel's error.
    pub fn open(path: &Path, options: OutputOptions) -> Result<Output> {
        if path.as_os_str() == "-" {
            return Output::standard();
        }
        let failed = |source| Error::Open { path: path.to_owned(), source };
        let created = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        match created {
            Ok(file) => return Ok(Output::over(file, path.to_owned(), true)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(failed(e)),
        }
        // The path exists. The kind is checked on the opened descriptor, since the path may refer to something else by
        // then. Nothing is truncated before the check.
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
            .open(path)
            .map_err(|e| match e.raw_os_error() {
                Some(libc::ELOOP) => Error::SymbolicLink { path: path.to_owned() },
                Some(libc::EISDIR) => Error::NotAnOutput { path: path.to_owned(), kind: "a directory" },
                Some(libc::ENXIO) => Error::NotAnOutput { path: path.to_owned(), kind: "a socket" },
                _ => failed(e),
            })?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if kind.is_file() {
            if !options.overwrite {
                return Err(Error::Exists { path: path.to_owned() });
            }
            file.set_len(0).map_err(failed)?;
        } else if file.is_terminal() {
            return Err(Error::NotAnOutput { path: path.to_owned(), kind: "a terminal" });
        } else if !kind.is_fifo() && !kind.is_char_device() {
            return Err(Error::NotAnOutput { path: path.to_owned(), kind: "a block device" });
        }
        Ok(Output::over(file, path.to_owned(), kind.is_file()))
    }

    fn standard() -> Result<Output> {
        let path = PathBuf::from("standard output");
        let stdout = io::stdout();
        if stdout.is_terminal() {
            return Err(Error::NotAnOutput { path, kind: "a terminal" });
        }
        let file = match stdout.as_fd().try_clone_to_owned() {
            Ok(fd) => File::from(fd),
            Err(source) => return Err(Error::Open { path, source }),
        };
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Ok(Output::over(file, path, regular))
    }

    fn over(file: File, path: PathBuf, regular: bool) -> Output {
        Output { writer: BufWriter::with_capacity(BUFFER, Named { file, path }), regular }
    }

    /// Name of the output in errors.
    pub fn path(&self) -> &Path {
        &self.writer.get_ref().path
    }

    /// Writes a large block with its own system call, without copying it into the buffer.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write_through(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.flush()?;
        self.writer.get_mut().write_all(bytes)
    }

    /// Changes the owner of a regular file to this user and group: a command run as root changes to another user, who
    /// must own the file.
    ///
    /// # Errors
    /// The kernel's error, if this process is not root.
    pub fn give_to(&self, uid: u32, gid: u32) -> Result<()> {
        let Named { file, path } = self.writer.get_ref();
        if !self.regular {
            return Ok(());
        }
        std::os::unix::fs::fchown(file, Some(uid), Some(gid))
            .map_err(|source| Error::Open { path: path.clone(), source })
    }

    /// Whether the output is a regular file. Any other kind may have a reader that waits for buffered data.
    pub fn is_regular(&self) -> bool {
        self.regular
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.file.write(bytes) {
            // The callers above retry on this kind, and must see it unchanged.
            Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                Err(io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
            }
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
