//! Errors of privilege separation.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process lacks capabilities.
    #[error(
        "missing {missing}: {action} needs that; run it with sudo, or grant it once, to the members of a group only: \
         W=$(command -v wirelane); sudo groupadd -f wirelane && sudo chown root:wirelane $W && sudo chmod 0750 $W && \
         sudo setcap {grant}+ep $W"
    )]
    MissingCapability {
        /// The capabilities that are missing, as in `CAP_BPF, CAP_NET_ADMIN`.
        missing: String,
        /// The same in setcap's form.
        grant: String,
        /// The operation that needs them.
        action: String,
    },
    /// The process is in a user namespace of its own, where capabilities do not count for BPF.
    #[error(
        "{action} needs CAP_BPF on the host itself, and this process is in a user namespace of its own (a rootless \
         container, unshare --user), whose capabilities the kernel does not take for BPF: run it outside of that"
    )]
    UserNamespace {
        /// The operation that needs them.
        action: String,
    },
    /// An option has an invalid value.
    #[error("{option}: {reason}")]
    BadOption {
        /// The name of the option in the library or on the command line.
        option: &'static str,
        /// The reason, with the expected value.
        reason: String,
    },
    /// The CPU or kernel lacks something.
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
}
