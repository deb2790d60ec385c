//! Tasks of the broker.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use crate::Capability;

/// A registered task: undoes a change, serves requests, or both. Runs in the broker: it may allocate, but must not log,
/// and must take no lock that another thread of the forked process could have held.
pub trait Task {
    /// Undoes the change. False: it could not be undone now, but may succeed a moment later. `prepared` is the
    /// descriptor that [`Kind::prepare`] opened.
    fn undo(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        let _ = prepared;
        (true, Vec::new())
    }

    /// Serves a request, which an attacker may have written: checks it against what was registered. `None`: it violates
    /// the protocol, and the owner is treated as dead.
    fn serve(&mut self, request: &[u8]) -> Option<Reply> {
        let _ = request;
        None
    }
}

/// The reply to a request.
#[derive(Debug)]
pub struct Reply {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptor: Option<OwnedFd>,
}

impl Reply {
    /// A reply with a descriptor; `None` if the answer cannot be encoded as JSON.
    pub fn new(answer: &impl Serialize, descriptor: Option<OwnedFd>) -> Option<Reply> {
        Some(Reply { bytes: serde_json::to_vec(answer).ok()?, descriptor })
    }
}

/// Reads a task; see [`Kind::read`].
pub type ReadTask = fn(&[u8], Vec<OwnedFd>) -> Option<Box<dyn Task>>;

/// One kind of task. The owner and the broker have the same list of kinds, since one was forked from the other.
#[derive(Debug)]
pub struct Kind {
    /// The name of the kind, for error messages.
    pub name: &'static str,
    /// The capabilities that tasks of this kind need: the seal drops those that no registered task needs.
    pub capabilities: &'static [Capability],
    /// Opens the descriptor that all tasks of this kind need, before the fork; `/proc` may be unmounted at the end.
    pub prepare: fn() -> io::Result<Option<OwnedFd>>,
    /// Reads a task from JSON and the descriptors that were sent with it; `None` if they do not match.
    pub read: ReadTask,
}

impl Kind {
    /// [`Kind::prepare`] for kinds that need no descriptor.
    ///
    /// # Errors
    /// None.
    pub fn nothing() -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }
}

/// A line for the log of the owner: the broker has no log.
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
