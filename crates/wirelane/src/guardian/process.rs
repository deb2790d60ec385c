//! The guardian's process: what it holds, and what it does (`forked/` has how it comes to be).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::PidfdFlags;

use super::duty::Task;
use super::wire::{self, Message};
use crate::engine::ring::clsact::NamespaceLock;
use crate::forked::{self, Rights};

/// How long it is tried again to undo what a killed process has left: others who end at the same time, or not all of
/// its descriptors are closed yet.
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds after which a guardian ends whose capture has ended, whatever it waits for.
const LONGEST: u32 = 30;

/// What the guardian holds from the start.
struct Inside {
    control: OwnedFd,
    /// Opened before the fork: /proc may be gone at the end. Its lock is the guardian's own.
    lock: NamespaceLock,
    /// The capturing process; `None` where it cannot be had (a filter of system calls). Others that it has forked may
    /// have its end of the control socket.
    parent: Option<OwnedFd>,
}

/// Forks a guardian; gives the capturing process's end of its control socket.
pub(super) fn start(rights: Rights) -> io::Result<OwnedFd> {
    let (ours, control) = wire::pair()?;
    let lock = NamespaceLock::open().map_err(io::Error::other)?;
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok();
    let mut keep = vec![control.as_raw_fd(), lock.as_raw_fd()];
    keep.extend(parent.as_ref().map(AsRawFd::as_raw_fd));
    let inside = Inside { control, lock, parent };
    forked::start(c"wl-guardian", rights, &keep, move || inside.serve())?;
    Ok(ours)
}

impl Inside {
    /// Listens to the capturing process, to its end; undoes what is left then.
    fn serve(&self) {
        // By number; none where it has been done.
        let mut tasks: Vec<Option<Task>> = Vec::new();
        let mut sealed = false;
        let killed = loop {
            match self.next() {
                Some(Message::Charge(duty, descriptors)) if !sealed => {
                    let Some(task) = Task::new(duty, descriptors) else { break true };
                    tasks.push(Some(task));
                    self.answer(&[]);
                }
                Some(Message::Seal) => {
                    sealed = true;
                    self.answer(&[]);
                }
                Some(Message::Fulfil(number)) => {
                    let Some(task) = tasks.get_mut(number) else { break true };
                    // Where it is not to be done, others go on to use it, or it stays in the journal.
                    let said = task.take().map(|mut task| task.attempt(&self.lock).1);
                    self.answer(&said.unwrap_or_default());
                }
                Some(Message::Part) => break false,
                Some(Message::Charge(..)) | None => break true,
            }
        };
        // SAFETY: an integer; the signal ends this process.
        unsafe { libc::alarm(LONGEST) };
        let mut tasks: Vec<Task> = tasks.into_iter().flatten().collect();
        let start = Instant::now();
        loop {
            tasks.retain_mut(|task| !task.attempt(&self.lock).0);
            // Who is there for longer has a guardian of its own.
            if tasks.is_empty() || !killed || start.elapsed() >= PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The next message; `None` when the capturing process has ended.
    fn next(&self) -> Option<Message> {
        if let Some(parent) = &self.parent {
            loop {
                let mut wait = [
                    PollFd::from_borrowed_fd(self.control.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(parent.as_fd(), PollFlags::IN),
                ];
                match poll(&mut wait, None) {
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(_) => return None,
                    Ok(_) => {}
                }
                // What it has said comes before its end.
                if !wait[0].revents().is_empty() {
                    break;
                }
                if !wait[1].revents().is_empty() {
                    return None;
                }
            }
        }
        wire::next(&self.control)
    }

    fn answer(&self, said: &[super::Said]) {
        // Where nobody listens any more, the next message says so.
        let _ = wire::reply(&self.control, said);
    }
}
