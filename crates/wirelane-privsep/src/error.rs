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
        /// What needs them.
        action: String,
    },
    /// The process is in a user namespace of its own, where capabilities do not count for BPF.
    #[error(
        "{action} needs CAP_BPF on the host itself, and this process is in a user namespace of its own (a rootless \
         container, unshare --user), whose capabilities the kernel does not take for BPF: run it outside of that"
    )]
    UserNamespace {
        /// What needs them.
        action: String,
    },
    /// An option has a value that makes no sense.
    #[error("{option}: {reason}")]
    BadOption {
        /// The option, as the library or the command line calls it.
        option: &'static str,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The CPU or kernel lacks something.
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
}
