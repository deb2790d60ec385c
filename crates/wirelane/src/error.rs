//! Errors for the person at the keyboard: what was wrong, which input, what to do.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or RX queue that does not exist, or what the kernel refused about one.
    #[error(transparent)]
    Netdev(#[from] wirelane_netdev::Error),
    /// What an AF_XDP socket was refused.
    #[error(transparent)]
    Afxdp(#[from] wirelane_afxdp::Error),
    /// Rights that are missing, or that could not be given up.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
    /// Somebody else's XDP program is on the device.
    #[error(
        "{device} already runs the {mode} XDP program '{program}' (id {id}), which is not Wirelane's; \
         it is left alone: capture beside it with --hook tc, or stop the program that owns it"
    )]
    ForeignProgram {
        /// The device.
        device: String,
        /// Name of the program.
        program: String,
        /// Its id, as `bpftool prog show id` takes it.
        id: u32,
        /// `native`, `generic` or `offloaded`.
        mode: String,
    },
    /// A running Wirelane of another version holds the device.
    #[error(
        "{device} is captured by a Wirelane with interface version {theirs}, this one has {ours}; stop it first"
    )]
    OtherVersion {
        /// The device.
        device: String,
        /// Interface version of the running instance.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The kernel lacks something.
    #[error("{what} needs {needs}; instead: {instead}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What it needs.
        needs: String,
        /// What would work.
        instead: String,
    },
    /// An option has a value that makes no sense.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option, as the library or the command line calls it.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A filter expression that cannot be used; the message shows the place.
    #[error(transparent)]
    Filter(#[from] wirelane_filter::Error),
    /// Rules that cannot be used; the message has a line for each mistake.
    #[error(transparent)]
    Rules(#[from] wirelane_rules::Error),
    /// A running capture that has refused something, or a control socket that cannot be had.
    #[error(transparent)]
    Control(#[from] wirelane_control::Error),
    /// A setting of a device that could not be changed or put back.
    #[error(transparent)]
    Tune(#[from] wirelane_tune::Error),
    /// All places of a device are taken.
    #[error("{device} already has {limit} groups, the maximum; stop one of them")]
    TooManyGroups {
        /// The device.
        device: String,
        /// The most groups that a device serves.
        limit: u32,
    },
    /// A capture file that cannot be opened, is damaged or is none.
    #[error(transparent)]
    Pcapng(#[from] wirelane_pcapng::Error),
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
    /// Whether the user has to write something else: an option, a device's name, a filter.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Error::BadOption { .. }
                | Error::Filter(_)
                | Error::Netdev(wirelane_netdev::Error::BadSelector { .. })
                | Error::Pcapng(wirelane_pcapng::Error::BadOption { .. })
                | Error::Tune(wirelane_tune::Error::BadOption { .. })
                | Error::Rules(wirelane_rules::Error::BadOption { .. })
                | Error::Privsep(wirelane_privsep::Error::BadOption { .. })
        )
    }

    /// The kernel refused `action` with the current `errno`.
    pub(crate) fn last_os(action: impl Into<String>) -> Error {
        Error::Kernel { action: action.into(), source: io::Error::last_os_error() }
    }

    /// What the kernel said, where it refused something, in whichever crate.
    pub fn kernel_error(&self) -> Option<&io::Error> {
        match self {
            Error::Kernel { source, .. }
            | Error::Afxdp(wirelane_afxdp::Error::Kernel { source, .. })
            | Error::Netdev(wirelane_netdev::Error::Kernel { source, .. })
            | Error::Privsep(wirelane_privsep::Error::Kernel { source, .. }) => Some(source),
            Error::Control(error) => error.kernel_error(),
            Error::Tune(error) => error.kernel_error(),
            _ => None,
        }
    }

    /// The kernel refused `action`.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// libbpf refused `action`.
    pub(crate) fn bpf(action: impl Into<String>, source: libbpf_rs::Error) -> Error {
        Error::Bpf { action: action.into(), source }
    }
}
