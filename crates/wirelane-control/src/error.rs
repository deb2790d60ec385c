//! Errors of control sockets.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A running capture has refused a change of its rules, or cannot be reached.
    #[error("{reason}")]
    Control {
        /// Its control socket.
        path: PathBuf,
        /// What it said, or why it cannot be reached.
        reason: String,
    },
    /// Rights that are missing, or a helper process that could not be started.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
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
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
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
            Error::Kernel { source, .. } | Error::Privsep(wirelane_privsep::Error::Kernel { source, .. }) => {
                Some(source)
            }
            _ => None,
        }
    }
}
