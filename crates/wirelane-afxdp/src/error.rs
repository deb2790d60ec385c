//! Errors of AF_XDP sockets.

use std::io;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel or the device lacks something.
    #[error("{what} needs {needs}; instead: {instead}")]
    Unsupported {
        /// The feature that was requested.
        what: String,
        /// The requirement that is not met.
        needs: String,
        /// An alternative that works.
        instead: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// The operation that failed, as a participle.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kernel refused `action`.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// The kernel's error, if the kernel refused an operation.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. } => Some(source),
            _ => None,
        }
    }
}
