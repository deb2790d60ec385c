//! Errors for the user: the fault, the input that caused it, and the remedy.

use std::io;
use std::path::PathBuf;

/// Slots for groups of a device, if many processes that divide flows begin first.
const MOST: u32 = wirelane_bpf::instance::MAX_GROUPS as u32;
/// How to get as many.
const MORE_GROUPS: &str =
    "; there are more where a shared group of more than 8 processes is the first to capture";

/// All errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device or RX queue that does not exist, or a refused operation on one.
    #[error(transparent)]
    Netdev(#[from] wirelane_netdev::Error),
    /// A refused operation on an AF_XDP socket.
    #[error(transparent)]
    Afxdp(#[from] wirelane_afxdp::Error),
    /// Missing rights, or rights that could not be given up.
    #[error(transparent)]
    Privsep(#[from] wirelane_privsep::Error),
    /// A foreign XDP program is attached to the device.
    #[error(
        "{device} already runs the {mode} XDP program '{program}' (id {id}), which is not Wirelane's; \
         it is left alone: capture beside it with --hook tc, or stop the program that owns it"
    )]
    ForeignProgram {
        /// Name of the device.
        device: String,
        /// Name of the program.
        program: String,
        /// Id of the program, for `bpftool prog show id`.
        id: u32,
        /// Mode: `native`, `generic` or `offloaded`.
        mode: String,
    },
    /// A running Wirelane of another version uses the device.
    #[error(
        "{device} is captured by a Wirelane with interface version {theirs}, this one has {ours}; stop it first"
    )]
    OtherVersion {
        /// Name of the device.
        device: String,
        /// Interface version of the running instance.
        theirs: u32,
        /// Interface version of this program.
        ours: u32,
    },
    /// The kernel lacks a feature.
    #[error("{what} needs {needs}; instead: {instead}")]
    Unsupported {
        /// The requested feature.
        what: String,
        /// Its requirements.
        needs: String,
        /// A working alternative.
        instead: String,
    },
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option, as the library or the command line calls it.
        option: &'static str,
        /// The fault and the expected value.
        reason: String,
    },
    /// An invalid filter expression; the message marks the position.
    #[error(transparent)]
    Filter(#[from] wirelane_filter::Error),
    /// Invalid rules; the message has a line for each error.
    #[error(transparent)]
    Rules(#[from] wirelane_rules::Error),
    /// A running capture that has refused a request, or a control socket that cannot be opened.
    #[error(transparent)]
    Control(#[from] wirelane_control::Error),
    /// A device setting that could not be changed or restored.
    #[error(transparent)]
    Tune(#[from] wirelane_tune::Error),
    /// The device has the maximum number of groups.
    #[error("{device} already has {limit} groups, the maximum; stop one of them{}", if *limit < MOST { MORE_GROUPS } else { "" })]
    TooManyGroups {
        /// Name of the device.
        device: String,
        /// Maximum number of groups of a device.
        limit: u32,
    },
    /// A capture file that cannot be opened, is damaged or has another format.
    #[error(transparent)]
    Pcapng(#[from] wirelane_pcapng::Error),
    /// The kernel refused an operation.
    #[error("{action}: {source}")]
    Kernel {
        /// The attempted operation.
        action: String,
        /// The error that the kernel returned.
        source: io::Error,
    },
    /// libbpf could not load or attach.
    #[error("{action}: {source}")]
    Bpf {
        /// The attempted operation.
        action: String,
        /// The error that libbpf returned.
        source: libbpf_rs::Error,
    },
    /// A file could not be opened, read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error that the kernel returned.
        source: io::Error,
    },
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the user has to change the input: an option, a device's name, a filter.
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

    /// The error for a refused `action`, with the current `errno`.
    pub(crate) fn last_os(action: impl Into<String>) -> Error {
        Error::Kernel { action: action.into(), source: io::Error::last_os_error() }
    }

    /// The kernel's error, if the kernel refused an operation in any of the crates.
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

    /// The error for an `action` that the kernel refused.
    pub(crate) fn kernel(action: impl Into<String>, source: io::Error) -> Error {
        Error::Kernel { action: action.into(), source }
    }

    /// The error for an `action` that libbpf refused.
    pub(crate) fn bpf(action: impl Into<String>, source: libbpf_rs::Error) -> Error {
        Error::Bpf { action: action.into(), source }
    }
}
