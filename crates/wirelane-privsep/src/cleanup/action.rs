//! Actions of the cleanup process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// A change that the cleanup process can undo.
pub trait CleanupAction {
    /// Undoes the change. False: it could not be undone now, but may succeed a moment later. `prepared` is the
    /// descriptor that [`ActionKind::prepare`] opened. May allocate, but must not log, and must take no lock that
    /// another thread of the forked process could have held.
    fn attempt(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>);
}

/// Reads an action; see [`ActionKind::read`].
pub type ReadAction = fn(&[u8], Vec<OwnedFd>) -> Option<Box<dyn CleanupAction>>;

/// One kind of action. The process that registers actions and the cleanup process have the same list of kinds, since
/// one was forked from the other.
#[derive(Debug)]
pub struct ActionKind {
    /// The name of the kind, for error messages.
    pub name: &'static str,
    /// Opens the descriptor that all actions of this kind need, before the fork; `/proc` may be unmounted at the end.
    pub prepare: fn() -> io::Result<Option<OwnedFd>>,
    /// Reads an action from JSON and the descriptors that were sent with it; `None` if they do not match.
    pub read: ReadAction,
}

impl ActionKind {
    /// [`ActionKind::prepare`] for kinds that need no descriptor.
    ///
    /// # Errors
    /// None.
    pub fn nothing() -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// A line for the log of the process that registered the action: the cleanup process has no log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogLine {
    /// A warning.
    Warning(String),
    /// An informational message.
    Info(String),
}

impl LogLine {
    /// Logs the line in this process.
    pub fn log(&self) {
        match self {
            LogLine::Warning(text) => tracing::warn!("{text}"),
            LogLine::Info(text) => tracing::info!("{text}"),
        }
    }
}
