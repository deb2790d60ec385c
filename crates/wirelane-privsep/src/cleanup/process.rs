//! The cleanup process itself: its state and its main loop (`forked/` starts it).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::PidfdFlags;

use super::action::{ActionKind, CleanupAction, LogLine};
use super::wire::{self, Message};
use crate::forked::{self, Rights};

/// How long undoing the changes of a killed owner is retried: other processes may be ending at the same time, or not
/// all descriptors of the owner may be closed yet.
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds after which a cleanup process ends once its owner has ended, even if it still waits for something.
const LONGEST: u32 = 30;

/// State of the cleanup process from the start.
struct Inside {
    control: OwnedFd,
    kinds: &'static [ActionKind],
    /// The descriptor that each kind opened before the fork.
    prepared: Vec<Option<OwnedFd>>,
    /// The owner: the process that registers actions; `None` if a pidfd is not available (a system call filter). Other
    /// processes that the owner has forked may hold its end of the control socket.
    parent: Option<OwnedFd>,
}

/// Forks a cleanup process; returns the owner's end of its control socket.
pub(super) fn start(kinds: &'static [ActionKind], rights: Rights) -> io::Result<OwnedFd> {
    let (ours, control) = wire::pair()?;
    let prepared = kinds.iter().map(|kind| (kind.prepare)()).collect::<io::Result<Vec<_>>>()?;
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok();
    let mut keep = vec![control.as_raw_fd()];
    keep.extend(prepared.iter().flatten().map(AsRawFd::as_raw_fd));
    keep.extend(parent.as_ref().map(AsRawFd::as_raw_fd));
    let inside = Inside { control, kinds, prepared, parent };
    forked::start(c"wl-cleanup", rights, &keep, move || inside.serve())?;
    Ok(ours)
}

impl Inside {
    /// Serves requests until the owner ends, then undoes what is left.
    fn serve(&self) {
        // Actions by number; `None` once an action has run.
        let mut tasks: Vec<Option<(usize, Box<dyn CleanupAction>)>> = Vec::new();
        let mut sealed = false;
        let killed = loop {
            match self.next() {
                Some(Message::Register { kind, action, descriptors }) if !sealed => {
                    let read = self.kinds.get(kind).and_then(|kind| (kind.read)(&action, descriptors));
                    let Some(action) = read else { break true };
                    tasks.push(Some((kind, action)));
                    self.answer(&[]);
                }
                Some(Message::Seal) => {
                    sealed = true;
                    self.answer(&[]);
                }
                Some(Message::Run(number)) => {
                    let Some(task) = tasks.get_mut(number) else { break true };
                    // An action that fails here is not retried: other processes still use the setting, or it stays in
                    // the journal.
                    let said = task.take().map(|mut task| self.attempt(&mut task).1);
                    self.answer(&said.unwrap_or_default());
                }
                Some(Message::Part) => break false,
                Some(Message::Register { .. }) | None => break true,
            }
        };
        // SAFETY: an integer; the signal ends this process.
        unsafe { libc::alarm(LONGEST) };
        let mut tasks: Vec<_> = tasks.into_iter().flatten().collect();
        let start = Instant::now();
        loop {
            tasks.retain_mut(|task| !self.attempt(task).0);
            // A process that still uses a setting after this time has a cleanup process of its own.
            if tasks.is_empty() || !killed || start.elapsed() >= PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn attempt(&self, (kind, action): &mut (usize, Box<dyn CleanupAction>)) -> (bool, Vec<LogLine>) {
        action.attempt(self.prepared[*kind].as_ref().map(AsFd::as_fd))
    }

    /// The next message; `None` when the owner has ended.
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
                // Messages that the owner has sent are read before its end is handled.
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

    fn answer(&self, said: &[LogLine]) {
        // If the owner no longer reads, the next message reports it.
        let _ = wire::reply(&self.control, said);
    }
}
