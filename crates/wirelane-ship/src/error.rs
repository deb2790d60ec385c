//! Errors of shipping, for the person at the keyboard.

use std::io;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target is not valid.
    #[error("'{target}': {reason}; expected {expected}")]
    Target {
        /// The target as it was given.
        target: String,
        /// The mistake.
        reason: String,
        /// Valid targets.
        expected: String,
    },
    /// This program was built without the target.
    #[error("this program was built without {what} (cargo: feature '{feature}' of the crate wirelane-cli)")]
    NotBuilt {
        /// The kind of the target.
        what: &'static str,
        /// The feature.
        feature: &'static str,
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
    /// Brokers, or a store of objects, did not take something.
    #[error("{message}")]
    Place {
        /// Why.
        message: String,
        /// Whether a repetition fails, too.
        is_final: bool,
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
            Error::Place { is_final, .. } => *is_final,
            // 5xx, too many requests, and a request that took too long.
            Error::Refused { status, .. } => !matches!(status, 408 | 429 | 500..),
            _ => true,
        }
    }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
