//! Errors of the store, for the person at the keyboard.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder of a store cannot be created or opened.
    #[error("the store {path} cannot be written to: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The folder is not a store.
    #[error(
        "{path} is not a store: {reason}; 'wirelane flows --store {path}' creates one, and so do voip and http"
    )]
    NoStore {
        /// The folder.
        path: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A newer version has written to the store.
    #[error(
        "{path} was written by a newer Wirelane ({by}, schema {theirs}; this one knows up to {ours}): use that version, or \
         another folder"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Program and version.
        by: String,
        /// Schema version of the file.
        theirs: u32,
        /// Schema version of this program.
        ours: u32,
    },
    /// Rows that are not in any file.
    #[error("{what} could not be stored in {path}; the first error was: {first}")]
    Unwritten {
        /// Number of rows, by table.
        what: String,
        /// The store.
        path: PathBuf,
        /// The first error.
        first: String,
    },
    /// Invalid SQL, or SQL that exceeds the program's rights.
    #[error("{message}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Sql {
        /// Error message.
        message: String,
        /// Line and column, both from 1, if known.
        at: Option<(u64, u64)>,
        /// Suggested correction.
        hint: Option<String>,
    },
    /// An answer that exceeds the memory limit.
    #[error(
        "the answer takes more than {mib} MiB of memory ({reason}); ask about less time (--last, --from, --to) or fewer \
         columns, or allow more (--memory)"
    )]
    Memory {
        /// Memory limit in MiB.
        mib: usize,
        /// Error message of the engine.
        reason: String,
    },
    /// A failure after a part of the answer was written.
    #[error("the answer is not whole: {reason}")]
    Cut {
        /// Error message.
        reason: String,
    },
    /// The consumer of the answer reported an error.
    #[error("{0}")]
    Output(Box<dyn std::error::Error + Send + Sync>),
    /// Any other error of the engine.
    #[error("the question cannot be answered: {0}")]
    Engine(String),
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
