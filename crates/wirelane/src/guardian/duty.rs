//! What a guardian undoes.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::control::SocketFile;
use crate::engine::ring::clsact::{NamespaceLock, Recipe, Removal};
use crate::tune::polling::Hold;

/// One thing that a capture changes, and how it is undone.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Duty {
    /// A clsact filter, which takes two descriptors: see [`Removal`].
    Filter(Recipe),
    /// How a device is polled.
    Polling(Hold),
    /// The file of a control socket.
    Socket(SocketFile),
}

/// What came of it, for the log of the capturing process: the guardian has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    Warning(String),
    Info(String),
}

impl Said {
    /// Says it in this process.
    pub(crate) fn log(&self) {
        match self {
            Said::Warning(text) => tracing::warn!("{text}"),
            Said::Info(text) => tracing::info!("{text}"),
        }
    }
}

/// A duty as the guardian has it.
pub(super) enum Task {
    Filter(Removal),
    Polling {
        hold: Hold,
        /// Its owner is out of the journal; once only, since a process can be in it twice.
        released: bool,
    },
    Socket(SocketFile),
}

impl Task {
    /// `None` where the descriptors are not those of the duty.
    pub(super) fn new(duty: Duty, descriptors: Vec<OwnedFd>) -> Option<Task> {
        match duty {
            Duty::Filter(recipe) => Some(Task::Filter(Removal::of(recipe, descriptors.try_into().ok()?))),
            Duty::Polling(hold) => descriptors.is_empty().then_some(Task::Polling { hold, released: false }),
            Duty::Socket(file) => descriptors.is_empty().then_some(Task::Socket(file)),
        }
    }

    /// Does it. False: it could not be done now, and may be a moment later. Allocates, but logs nothing, and takes no
    /// lock that another thread of the forked process could have held.
    pub(super) fn attempt(&mut self, lock: &NamespaceLock) -> (bool, Vec<Said>) {
        match self {
            Task::Filter(removal) => {
                // An error of the kernel's is the last word: the next Wirelane on the device tries again.
                let done = lock.with(|| removal.run_if_unused()).unwrap_or(true);
                (done, Vec::new())
            }
            Task::Polling { hold, released } => match hold.give_back(released) {
                Ok(given) => (given.complete, given.said),
                Err(e) => (false, vec![hold.not_given_back(&e)]),
            },
            // What cannot be removed now cannot be a moment later; whoever comes next tries again.
            Task::Socket(file) => {
                (true, file.remove().err().map(|e| file.not_removed(&e)).into_iter().collect())
            }
        }
    }
}
