//! Errors of sending.

use std::io;
use std::path::PathBuf;

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device that does not exist, or a request about a device that the kernel rejected.
    #[error(transparent)]
    Netdev(#[from] wirelane_netdev::Error),
    /// Missing rights, or a helper process that could not be started.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
    /// A capture file that cannot be read.
    #[error(transparent)]
    Pcapng(#[from] wirelane_pcapng::Error),
    /// An error of AF_XDP sockets.
    #[error(transparent)]
    Afxdp(#[from] wirelane_afxdp::Error),
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    BadOption {
        /// Name of the option in the library or on the command line.
        option: &'static str,
        /// Description of the fault, and of the expected value.
        reason: String,
    },
    /// The kernel rejected a request.
    #[error("{action}: {source}")]
    Kernel {
        /// Action that failed.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// libbpf could not load or attach a program.
    #[error("{action}: {source}")]
    Bpf {
        /// Action that failed.
        action: String,
        /// libbpf's error.
        source: libbpf_rs::Error,
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
    /// Whether the user has to correct an option or the name of a device.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::BadOption { .. }
                | Error::Netdev(wirelane_netdev::Error::BadSelector { .. })
                | Error::Pcapng(wirelane_pcapng::Error::BadOption { .. })
                | Error::Privsep(wirelane_privsep::Error::BadOption { .. })
        )
    }

    /// The kernel rejected `action` with the current `errno`.
    pub(crate) fn last_os(action: impl Into<String>) -> Error {
        Error::Kernel { action: action.into(), source: io::Error::last_os_error() }
    }

    /// The kernel rejected `action`.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// libbpf rejected `action`.
    pub(crate) fn bpf(action: impl Into<String>, source: libbpf_rs::Error) -> Error {
        Error::Bpf { action: action.into(), source }
    }

    /// The kernel's error, if the kernel rejected a request, in this crate or a lower one.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. }
            | Error::Netdev(wirelane_netdev::Error::Kernel { source, .. })
            | Error::Privsep(wirelane_privsep::Error::Kernel { source, .. })
            | Error::Afxdp(wirelane_afxdp::Error::Kernel { source, .. }) => Some(source),
            _ => None,
        }
    }
}
