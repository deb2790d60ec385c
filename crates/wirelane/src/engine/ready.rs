//! A descriptor that is readable when a worker may have something to read: for programs that wait for several events at
//! once.
//!
//! It is an epoll set of the wakers of the worker (bells, sockets), and of a timer, which covers all conditions that
//! the wakers do not signal: unread remaining records, and records in a ring that has not rung.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::error::{Error, Result};

/// Time after a lane's last publication: a packet that comes more than a millisecond later (`WL_PUBLISH_NS`) is
/// published at once, and rings.
const SOON: Duration = Duration::from_millis(2);
/// Bounds the delay of a bell that was not rung because the worker turned away at that moment (`wl_ring_publish()`).
const LATE: Duration = Duration::from_millis(50);
/// Delay until the end of a capture is noticed when its devices have disappeared.
const IDLE: Duration = Duration::from_millis(999);
/// Immediately: a timer value of zero would disarm it.
const NOW: Duration = Duration::from_nanos(1);

/// State of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// It has fired: there is something to read.
    Now,
    /// Armed for packets that came right after the last look.
    Soon(Instant),
    /// Armed for a bell that was missed.
    Late(Instant),
    /// Armed for the end of the capture, periodically.
    Idle(Instant),
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Ready {
    set: OwnedFd,
    timer: OwnedFd,
    state: Timer,
}

impl Ready {
    /// A set of these wakers; readable at first.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel cannot create the descriptors.
    pub(crate) fn new<'a>(mut wakers: impl Iterator<Item = BorrowedFd<'a>>) -> Result<Ready> {
        let refused =
            |e: rustix::io::Errno| Error::kernel("making a descriptor to wait for packets", e.into());
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(refused)?;
        let add = |fd: BorrowedFd<'_>| {
            epoll::add(&set, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(refused)
        };
        wakers.try_for_each(add)?;
        add(timer.as_fd())?;
        let mut ready = Ready { set, timer, state: Timer::Idle(Instant::now()) };
        ready.full()?;
        Ok(ready)
    }

    /// Makes the descriptor readable: there is, or may be, something to read.
    pub(crate) fn full(&mut self) -> Result<()> {
        if self.state == Timer::Now { Ok(()) } else { self.set(Timer::Now, NOW) }
    }

    /// Makes the descriptor wait for a waker: there was nothing to read.
    pub(crate) fn empty(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.state {
            Timer::Now => self.set(Timer::Soon(now + SOON), SOON),
            Timer::Soon(end) if now >= end => self.set(Timer::Late(now + LATE), LATE),
            Timer::Late(end) | Timer::Idle(end) if now >= end => self.set(Timer::Idle(now + IDLE), IDLE),
            Timer::Soon(_) | Timer::Late(_) | Timer::Idle(_) => Ok(()),
        }
    }

    /// Makes the descriptor wait for a waker or a short time: there are records that are held back.
    pub(crate) fn held(&mut self) -> Result<()> {
        self.set(Timer::Soon(Instant::now() + SOON), SOON)
    }

    /// Sets whether this waker makes the descriptor readable.
    pub(crate) fn heed(&self, waker: BorrowedFd<'_>, heeded: bool) -> Result<()> {
        let events = if heeded { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.set, waker, epoll::EventData::new_u64(0), events)
            .map_err(|e| Error::kernel("choosing what to wait for", e.into()))
    }

    fn set(&mut self, state: Timer, time: Duration) -> Result<()> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        timerfd_settime(
            &self.timer,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: value },
        )
        .map_err(|e| Error::kernel("setting a timer to wait for packets", e.into()))?;
        self.state = state;
        Ok(())
    }
}

impl AsFd for Ready {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn readable(ready: &Ready, within: Duration) -> bool {
        let time = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
        let mut polled = [PollFd::new(ready, PollFlags::IN)];
        poll(&mut polled, Some(&time)).expect("poll") == 1
    }

    #[test]
    fn it_is_readable_until_it_was_found_empty_and_then_by_its_wakers_and_twice_by_itself() {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd");
        let mut ready = Ready::new([bell.as_fd()].into_iter()).expect("a set");
        assert!(readable(&ready, Duration::ZERO), "at first");
        ready.full().expect("full");
        assert!(readable(&ready, Duration::ZERO), "as long as there is something");
        for timer in ["soon", "late"] {
            ready.empty().expect("empty");
            assert!(!readable(&ready, Duration::ZERO), "nothing is there");
            assert!(readable(&ready, Duration::from_millis(900)), "{timer}");
        }
        ready.empty().expect("empty");
        assert!(!readable(&ready, LATE * 2), "no timer is left for the next second");
        rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("the bell rings");
        assert!(readable(&ready, Duration::ZERO), "by its bell");
        ready.heed(bell.as_fd(), false).expect("another choice");
        for round in 0..3 {
            ready.held().expect("held");
            assert!(!readable(&ready, Duration::ZERO), "what is there is held back");
            assert!(readable(&ready, Duration::from_millis(900)), "soon, each time: {round}");
        }
        ready.heed(bell.as_fd(), true).expect("another choice");
        assert!(readable(&ready, Duration::ZERO), "by its bell again");
    }
}
