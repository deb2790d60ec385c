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
        /// The requested name.
        name: String,
        /// The existing names, separated by commas.
        known: String,
    },
    /// The device has no such RX queue.
    #[error("'{device}' has no RX queue {queue}; it has {known}")]
    UnknownQueue {
        /// The device.
        device: String,
        /// The requested queue.
        queue: u32,
        /// The existing queues, as virtual devices.
        known: String,
    },
    /// A device selector with a syntax error.
    #[error("'{input}' is not a device: {reason}; write DEV, DEV@QUEUE or DEV@FIRST-LAST, as in eth1@0-3")]
    BadSelector {
        /// The selector as given.
        input: String,
        /// The reason.
        reason: String,
    },
    /// The device disappeared.
    #[error("device {device} disappeared during the capture")]
    DeviceGone {
        /// The device.
        device: String,
    },
    /// The kernel refused something.
    #[error("{action}: {source}")]
    Kernel {
        /// The operation that failed, as a participle.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file could not be read.
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
