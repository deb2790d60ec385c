//! Errors of control sockets.

use std::io;
use std::path::PathBuf;

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A running capture refused a change of its rules, or is unreachable.
    #[error("{reason}")]
    Control {
        /// Path of the control socket.
        path: PathBuf,
        /// The capture's answer, or the reason why it is unreachable.
        reason: String,
    },
    /// Missing rights, or a helper process that could not be started.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
    /// A feature that the kernel or the device does not support.
    #[error("{what} needs {needs}; instead: {instead}")]
    Unsupported {
        /// The requested feature.
        what: String,
        /// The requirement of the feature.
        needs: String,
        /// An alternative that works.
        instead: String,
    },
    /// The kernel rejected a request.
    #[error("{action}: {source}")]
    Kernel {
        /// Action that failed.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The kernel rejected `action`.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// The kernel's error, if the kernel rejected a request, in this crate or a lower one.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. } | Error::Privsep(wirelane_privsep::Error::Kernel { source, .. }) => {
                Some(source)
            }
            _ => None,
        }
    }
}
