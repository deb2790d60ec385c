//! Errors of the store, for the person at the keyboard.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder of a store cannot be made or opened.
    #[error("the store {path} cannot be written to: {source}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no store where one was asked.
    #[error(
        "{path} is not a store: {reason}; 'wirelane flows --store {path}' creates one, and so do voip and http"
    )]
    NoStore {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// Rows that are in no file.
    #[error("{what} could not be stored in {path}; the first error was: {first}")]
    Unwritten {
        /// How many, of which tables.
        what: String,
        /// The store.
        path: PathBuf,
        /// The first thing that went wrong.
        first: String,
    },
    /// A question that makes no sense, or more than the program may do.
    #[error("{message}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Sql {
        /// What is wrong.
        message: String,
        /// Line and column, both from 1, where that is known.
        at: Option<(u64, u64)>,
        /// What would be right.
        hint: Option<String>,
    },
    /// An answer that takes more memory than it may.
    #[error(
        "the answer takes more than {mib} MiB of memory ({reason}); ask about less time (--last, --from, --to) or fewer \
         columns, or allow more (--memory)"
    )]
    Memory {
        /// How much it may take.
        mib: usize,
        /// What the engine said.
        reason: String,
    },
    /// Something failed while an answer was on its way out.
    #[error("the answer is not whole: {reason}")]
    Cut {
        /// What failed.
        reason: String,
    },
    /// Whoever takes the answer does not any more.
    #[error("{0}")]
    Output(Box<dyn std::error::Error + Send + Sync>),
    /// Anything else, of the engine.
    #[error("the question cannot be answered: {0}")]
    Engine(String),
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
