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
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The output exists, and overwriting was not asked for.
    #[error("{path} exists already; give another name, or ask for it to be overwritten (--overwrite)")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A finished file could not get its name, because something else has it by now.
    #[error("{path} was created meanwhile and is not replaced; the recording is whole in {part}")]
    Taken {
        /// The name that it should have got.
        path: PathBuf,
        /// The name that it has.
        part: PathBuf,
    },
    /// The directory of a recording cannot be opened.
    #[error("the directory {path} cannot be written to: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file that was being written is not where it was.
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
        /// What the kernel said.
        source: io::Error,
    },
    /// The file system has no direct I/O.
    #[error(
        "{path} cannot be written past the page cache: its file system refuses direct I/O; leave --direct-io out"
    )]
    DirectIo {
        /// The file.
        path: PathBuf,
    },
    /// A recording was ended by a write that failed.
    #[error("{0}")]
    Ended(String),
    /// Packets were lost between the worker and the disk.
    #[error("{packets} packets were captured but not written; the first error was: {first}")]
    Unwritten {
        /// How many.
        packets: u64,
        /// The first thing that went wrong.
        first: String,
    },
    /// Everything was written, but something else about the files failed.
    #[error("every packet was written, with errors: {0}")]
    Flawed(String),
    /// There is no name left for one more file.
    #[error(
        "no name is left for one more file in {path}; give the recording another name, or another directory"
    )]
    NumbersUsedUp {
        /// The directory.
        path: PathBuf,
    },
    /// The name cannot be that of a file.
    #[error("{path} is not a valid file name")]
    NoName {
        /// What was given.
        path: PathBuf,
    },
    /// Nothing but files can be asked for this.
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
    /// The output is something that a recording cannot go to.
    #[error("{path} is {kind}; expected a file, a pipe or standard output")]
    NotAnOutput {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Somewhere that flows cannot be exported to.
    #[error("--export {target}: {reason}")]
    Target {
        /// As it was given.
        target: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A log that cannot be written, or makes no sense.
    #[error("--log {target}: {reason}")]
    Log {
        /// As it was given.
        target: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A capture file cannot hold this.
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
