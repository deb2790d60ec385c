//! Actions of the cleanup process.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

/// A change that the cleanup process can undo.
pub trait CleanupAction {
    /// Undoes it. False: it could not be done now, and may be a moment later. `prepared` is what
    /// [`ActionKind::prepare`] has opened. May allocate, but must not log, and must take no lock that another thread of
    /// the forked process could have held.
    fn attempt(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>);
}

/// Reads an action; see [`ActionKind::read`].
pub type ReadAction = fn(&[u8], Vec<OwnedFd>) -> Option<Box<dyn CleanupAction>>;

/// One kind of actions. The process that registers actions and the cleanup process have the same list of kinds, since one
/// was forked from the other.
#[derive(Debug)]
pub struct ActionKind {
    /// For error messages.
    pub name: &'static str,
    /// Opens what all actions of this kind need, before the fork; `/proc` may be gone at the end.
    pub prepare: fn() -> io::Result<Option<OwnedFd>>,
    /// Reads an action from JSON and the descriptors that were sent along; `None` where they do not fit.
    pub read: ReadAction,
}

impl ActionKind {
    /// [`ActionKind::prepare`] of kinds that need nothing.
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
    /// To be logged as a warning.
    Warning(String),
    /// To be logged as information.
    Info(String),
}

impl LogLine {
    /// Logs it in this process.
    pub fn log(&self) {
        match self {
            LogLine::Warning(text) => tracing::warn!("{text}"),
            LogLine::Info(text) => tracing::info!("{text}"),
        }
    }
}
