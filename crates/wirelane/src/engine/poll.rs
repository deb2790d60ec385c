//! Waiting for sockets.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::engine::ring::source::Shared;
use crate::error::{Error, Result};

/// Longest single sleep: the end of the capture is noticed within this time.
const LONGEST: Duration = Duration::from_millis(10);

/// A worker that was woken less long ago sleeps instead of polling: packets are coming one by one, and a wake-up for
/// each would cost a system call per packet.
const SOON: Duration = Duration::from_millis(1);
/// Length of such a sleep.
const NAP: Duration = Duration::from_micros(500);

/// The sockets of one worker, for poll(2).
#[derive(Debug)]
pub(crate) struct Poller {
    polls: Vec<libc::pollfd>,
    last_wake: Option<Instant>,
    /// Whether every wake-up is wanted.
    immediate: bool,
}

impl Poller {
    /// A poller for these descriptors, which the caller keeps open.
    pub(crate) fn new(descriptors: impl Iterator<Item = RawFd>, immediate: bool) -> Poller {
        let polls = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        Poller { polls, last_wake: None, immediate }
    }

    /// Waits only for descriptors at positions for which `wanted` is true.
    pub(crate) fn only(&mut self, wanted: impl Fn(usize) -> bool) {
        for (at, poll) in self.polls.iter_mut().enumerate() {
            // poll(2) ignores negative descriptors; the complement of any descriptor is negative.
            if wanted(at) == (poll.fd < 0) {
                poll.fd = !poll.fd;
            }
            poll.revents = 0;
        }
    }

    /// Sleeps until a descriptor is ready, or for a few milliseconds, or `at_most`. `failed` is called for each
    /// descriptor that reports an error.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel refuses to wait.
    pub(crate) fn wait(
        &mut self,
        at_most: Duration,
        shared: &Shared,
        mut failed: impl FnMut(usize),
    ) -> Result<()> {
        if !self.immediate && self.last_wake.take().is_some_and(|wake| wake.elapsed() < SOON) {
            shared.sleeps.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(at_most.min(NAP));
            return Ok(());
        }
        let time = at_most.min(LONGEST);
        let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        shared.sleeps.fetch_add(1, Ordering::Relaxed);
        // SAFETY: pointer and length of a live vector; the time-out outlives the call; no signal mask.
        let ready =
            unsafe { libc::ppoll(self.polls.as_mut_ptr(), self.polls.len() as _, &time, std::ptr::null()) };
        if ready < 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::Interrupted => Ok(()),
                _ => Err(Error::kernel("waiting for packets", error)),
            };
        }
        shared.wakes.fetch_add((ready > 0).into(), Ordering::Relaxed);
        if ready > 0 {
            self.last_wake = Some(Instant::now());
        }
        let mut errors = false;
        for (at, poll) in self.polls.iter().enumerate() {
            if poll.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
                errors = true;
                failed(at);
            }
        }
        if errors {
            // A device that is down keeps reporting it: do not spin.
            std::thread::sleep(at_most.min(LONGEST));
        }
        Ok(())
    }
}
