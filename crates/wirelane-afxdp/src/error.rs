//! Errors of AF_XDP sockets.

use std::io;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel or the device lacks something.
    #[error("{what} needs {needs}; instead: {instead}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What it needs.
        needs: String,
        /// What would work.
        instead: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// What was being done.
        action: String,
        /// What the kernel said.
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

    /// What the kernel said, where it refused something, in whichever crate.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. } => Some(source),
            _ => None,
        }
    }
}
