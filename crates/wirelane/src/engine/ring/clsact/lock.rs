//! Lock: one process at a time changes the clsact filters of a network namespace.
//!
//! The lock is flock(2) on the namespace's own file, /proc/thread-self/ns/net: nothing is left behind, and the kernel
//! releases it with its holder. Any program may take it, so the wait is limited: it separates two Wirelanes that start
//! and end in the same milliseconds, and nothing else depends on it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Maximum time to wait for the lock.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(5);
const PATH: &str = "/proc/thread-self/ns/net";

/// The file to lock, of the calling thread's network namespace. Its lock is independent of other descriptors'.
pub(super) fn open() -> io::Result<OwnedFd> {
    Ok(File::open(PATH)?.into())
}

/// Runs `work` under the lock of this file, or without it if another process holds it all the time.
pub(super) fn with<T>(file: BorrowedFd<'_>, work: impl FnOnce() -> T) -> T {
    wait(file);
    let result = work();
    release(file);
    result
}

/// Takes the lock within [`PATIENCE`]; false if another process holds it all the time.
fn wait(file: BorrowedFd<'_>) -> bool {
    let start = Instant::now();
    loop {
        // SAFETY: flock(2) takes integers only.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
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

/// Releases the lock, even if a forked process still has a copy of the descriptor.
fn release(file: BorrowedFd<'_>) {
    // SAFETY: flock(2) takes integers only.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// The lock, held until drop.
pub(super) struct Lock(OwnedFd);

impl Lock {
    /// Takes the lock of the calling thread's network namespace.
    pub(super) fn take() -> Result<Lock> {
        let lock = open().map_err(|source| Error::Io { path: PATH.into(), source })?;
        if !wait(lock.as_fd()) {
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
        release(self.0.as_fd());
    }
}
