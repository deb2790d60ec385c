//! Errors of shipping, for the person at the keyboard.

use std::io;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target is not valid.
    #[error(
        "'{target}': {reason}; expected clickhouse+https://USER@HOST:PORT/DATABASE, or clickhouse+http://"
    )]
    Target {
        /// The target as it was given.
        target: String,
        /// The mistake.
        reason: String,
    },
    /// A file with a password or with certificates cannot be used.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// The server cannot be reached, or its answer was lost: the request is repeated.
    #[error("{0}")]
    Unreachable(String),
    /// The server refuses the request.
    #[error("the server refuses it (HTTP status {status}): {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// The tables of the server are not those of this version.
    #[error("{0}: apply the schema with --create, or what --ddl prints")]
    Schema(String),
    /// The state of the store cannot be read or written.
    #[error("{0}")]
    State(#[from] io::Error),
    /// A file cannot be shipped.
    #[error("{0}")]
    Store(#[from] wirelane_store::Error),
    /// A bug in this program.
    #[error("a bug: {0}")]
    Bug(String),
}

impl Error {
    /// Whether a repetition fails until a person changes the configuration or the server.
    pub fn is_final(&self) -> bool {
        match self {
            Error::Unreachable(_) | Error::State(_) => false,
            // 5xx, too many requests, and a request that took too long.
            Error::Refused { status, .. } => !matches!(status, 408 | 429 | 500..),
            _ => true,
        }
    }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
