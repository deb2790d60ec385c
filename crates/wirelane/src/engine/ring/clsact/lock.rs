//! One Wirelane at a time changes the clsact filters of a network namespace.
//!
//! The lock is flock(2) on the namespace's own file, /proc/thread-self/ns/net: nothing is left behind, and the
//! kernel gives it up with its holder. Any program may take it, so it is waited for only so long: it keeps two
//! Wirelanes that come and go in the same milliseconds apart, and nothing else rests on it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// How long the lock is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(5);

/// The file to lock. Its lock is independent of other descriptors'.
#[derive(Debug)]
pub(crate) struct NamespaceLock(OwnedFd);

impl NamespaceLock {
    /// Of the calling thread's network namespace; not taken yet.
    pub(crate) fn open() -> Result<NamespaceLock> {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).map_err(|source| Error::Io { path: path.into(), source })?;
        Ok(NamespaceLock(file.into()))
    }

    /// Does something under the lock, or without it where somebody else has it all the time.
    pub(crate) fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        self.wait();
        let result = work();
        self.release();
        result
    }

    /// Takes the lock within [`PATIENCE`]; false where somebody else has it all the time.
    fn wait(&self) -> bool {
        let start = Instant::now();
        loop {
            // SAFETY: flock(2) takes integers only.
            if unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return true;
            }
            let waits =
                matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EWOULDBLOCK | libc::EINTR));
            if !waits || start.elapsed() >= PATIENCE {
                return false;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Gives the lock up, also where a forked process still has a copy of the descriptor.
    fn release(&self) {
        // SAFETY: flock(2) takes integers only.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl AsRawFd for NamespaceLock {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The lock, held until drop.
pub(super) struct Lock(NamespaceLock);

impl Lock {
    /// Takes the lock of the calling thread's network namespace.
    pub(super) fn take() -> Result<Lock> {
        let lock = NamespaceLock::open()?;
        if !lock.wait() {
            tracing::warn!(
                "another program has held this network namespace's lock (flock on /proc/self/ns/net) for {} s: \
                 going on without it",
                PATIENCE.as_secs()
            );
        }
        Ok(Lock(lock))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.release();
    }
}
