//! Errors of sending.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device that does not exist, or what the kernel refused about one.
    #[error(transparent)]
    Netdev(#[from] wirelane_netdev::Error),
    /// Rights that are missing, or a helper process that could not be started.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
    /// A capture file that cannot be read.
    #[error(transparent)]
    Pcapng(#[from] wirelane_pcapng::Error),
    /// What AF_XDP sockets refused.
    #[error(transparent)]
    Afxdp(#[from] wirelane_afxdp::Error),
    /// An option has a value that makes no sense.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option, as the library or the command line calls it.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// What was being done.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// libbpf could not load or attach.
    #[error("{action}: {source}")]
    Bpf {
        /// What was being done.
        action: String,
        /// What libbpf said.
        source: libbpf_rs::Error,
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
    /// Whether the user has to write something else: an option or a device's name.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::BadOption { .. }
                | Error::Netdev(wirelane_netdev::Error::BadSelector { .. })
                | Error::Pcapng(wirelane_pcapng::Error::BadOption { .. })
                | Error::Privsep(wirelane_privsep::Error::BadOption { .. })
        )
    }

    /// The kernel refused `action` with the current `errno`.
    pub(crate) fn last_os(action: impl Into<String>) -> Error {
        Error::Kernel { action: action.into(), source: io::Error::last_os_error() }
    }

    /// The kernel refused `action`.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// libbpf refused `action`.
    pub(crate) fn bpf(action: impl Into<String>, source: libbpf_rs::Error) -> Error {
        Error::Bpf { action: action.into(), source }
    }

    /// What the kernel said, where it refused something, in whichever crate.
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
