//! Errors about devices.

use std::io;
use std::path::PathBuf;

/// Everything that can go wrong in this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device does not exist in this network namespace.
    #[error("no device '{name}' in this network namespace; there are: {known}")]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The names that exist, separated by commas.
        known: String,
    },
    /// The device has no such RX queue.
    #[error("'{device}' has no RX queue {queue}; it has {known}")]
    UnknownQueue {
        /// The device.
        device: String,
        /// The queue that was asked for.
        queue: u32,
        /// The queues that exist, as virtual devices.
        known: String,
    },
    /// A device selector that cannot be read.
    #[error("'{input}' is not a device: {reason}; write DEV, DEV@QUEUE or DEV@FIRST-LAST, as in eth1@0-3")]
    BadSelector {
        /// What was given.
        input: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The device went away.
    #[error("device {device} disappeared during the capture")]
    DeviceGone {
        /// The device.
        device: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// What was being done.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file could not be read.
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
