//! Waiting for sockets.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::ring::source::Shared;
use crate::{Error, Result};

/// Longest sleep in one go: an end of the capture is noticed within this time.
const LONGEST: Duration = Duration::from_millis(10);

/// The sockets of one worker, for poll(2).
#[derive(Debug)]
pub(crate) struct Poller(Vec<libc::pollfd>);

impl Poller {
    /// For these descriptors, which whoever waits keeps open.
    pub(crate) fn new(descriptors: impl Iterator<Item = RawFd>) -> Poller {
        Poller(descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect())
    }

    /// Sleeps until one of them has something, or for a few milliseconds, or `at_most`. `failed` is told of each
    /// that reports an error.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel refuses to wait.
    pub(crate) fn wait(
        &mut self,
        at_most: Duration,
        shared: &Shared,
        mut failed: impl FnMut(usize),
    ) -> Result<()> {
        let time = at_most.min(LONGEST);
        let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        shared.sleeps.fetch_add(1, Ordering::Relaxed);
        // SAFETY: pointer and length of a live vector; the time-out outlives the call; no signal mask.
        let ready = unsafe { libc::ppoll(self.0.as_mut_ptr(), self.0.len() as _, &time, std::ptr::null()) };
        if ready < 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::Interrupted => Ok(()),
                _ => Err(Error::kernel("waiting for packets", error)),
            };
        }
        shared.wakes.fetch_add((ready > 0).into(), Ordering::Relaxed);
        let mut errors = false;
        for (at, poll) in self.0.iter().enumerate() {
            if poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                errors = true;
                failed(at);
            }
        }
        if errors {
            // A device that is down goes on reporting it: do not spin.
            std::thread::sleep(at_most.min(LONGEST));
        }
        Ok(())
    }
}
