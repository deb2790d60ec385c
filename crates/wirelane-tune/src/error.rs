//! Errors of tuning.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device that does not exist, or an operation on one that the kernel refused.
    #[error(transparent)]
    Netdev(#[from] wirelane_netdev::Error),
    /// Missing rights, or a helper process that could not be started.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
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
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    BadOption {
        /// The name of the option in the library or on the command line.
        option: &'static str,
        /// The reason, with the expected value.
        reason: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// The operation that failed, as a participle.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
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

    /// The kernel's error, if the kernel refused an operation, in whichever crate.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. }
            | Error::Netdev(wirelane_netdev::Error::Kernel { source, .. })
            | Error::Privsep(wirelane_privsep::Error::Kernel { source, .. }) => Some(source),
            _ => None,
        }
    }
}
