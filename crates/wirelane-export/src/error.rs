//! Errors of outputs, for the person at the keyboard.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Writing failed. Errors of an [`crate::Output`] name the path.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// An output file could not be opened.
    #[error("{path} cannot be written: {source}")]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The output exists, and overwriting was not requested.
    #[error("{path} exists already; give another name, or ask for it to be overwritten (--overwrite)")]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// A finished file could not be renamed to its final name, because another file has that name.
    #[error("{path} was created meanwhile and is not replaced; the recording is whole in {part}")]
    Taken {
        /// The final name.
        path: PathBuf,
        /// The current name.
        part: PathBuf,
    },
    /// The directory of a recording cannot be opened.
    #[error("the directory {path} cannot be written to: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The file that is being written was moved or removed.
    #[error(
        "{path} or its directory was moved or removed while it was written; \
         its packets are counted as unwritten"
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be made durable.
    #[error("{path} may not have reached the disk: {source}; its packets are counted as unwritten")]
    Sync {
        /// The file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The file system does not support direct I/O.
    #[error(
        "{path} cannot be written past the page cache: its file system refuses direct I/O; leave --direct-io out"
    )]
    DirectIo {
        /// The file.
        path: PathBuf,
    },
    /// A failed write ended the recording.
    #[error("{0}")]
    Ended(String),
    /// Packets were lost between the worker and the disk.
    #[error("{packets} packets were captured but not written; the first error was: {first}")]
    Unwritten {
        /// Number of packets.
        packets: u64,
        /// The first error.
        first: String,
    },
    /// Everything was written, but another operation on the files failed.
    #[error("every packet was written, with errors: {0}")]
    Flawed(String),
    /// There is no unused name for another file.
    #[error(
        "no name is left for one more file in {path}; give the recording another name, or another directory"
    )]
    NumbersUsedUp {
        /// The directory.
        path: PathBuf,
    },
    /// The path cannot be the name of a file.
    #[error("{path} is not a valid file name")]
    NoName {
        /// The given path.
        path: PathBuf,
    },
    /// The option is only available for files.
    #[error("{path} is not a regular file, which {option} needs")]
    NeedsFile {
        /// The output.
        path: PathBuf,
        /// The option.
        option: &'static str,
    },
    /// The output is a symbolic link.
    #[error(
        "{path} is a symbolic link, which is not followed, so that no one can redirect a recording; \
         give the name that it points to, or - for standard output"
    )]
    SymbolicLink {
        /// The link.
        path: PathBuf,
    },
    /// A recording cannot be written to this kind of file.
    #[error("{path} is {kind}; expected a file, a pipe or standard output")]
    NotAnOutput {
        /// The path.
        path: PathBuf,
        /// Kind of the file.
        kind: &'static str,
    },
    /// Invalid export target of flows.
    #[error("--export {target}: {reason}")]
    Target {
        /// The target as it was given.
        target: String,
        /// The fault, and the expected form.
        reason: String,
    },
    /// Invalid log, or a log that cannot be written.
    #[error("--log {target}: {reason}")]
    Log {
        /// The log as it was given.
        target: String,
        /// The fault, and the expected form.
        reason: String,
    },
    /// Data that a capture file cannot represent.
    #[error(transparent)]
    Pcapng(wirelane_pcapng::Error),
}

impl From<wirelane_pcapng::Error> for Error {
    fn from(error: wirelane_pcapng::Error) -> Error {
        match error {
            wirelane_pcapng::Error::Write(error) => Error::Write(error),
            error => Error::Pcapng(error),
        }
    }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
