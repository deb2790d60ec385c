//! The broker itself: its state and its main loop (`forked/` starts it).

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::PidfdFlags;

use super::task::{Kind, LogLine, Task};
use super::wire::{self, Message};
use crate::Capability;
use crate::forked::{self, Rights};

/// Time for which undoing the changes of a killed owner is retried: other processes may be ending at the same time, or not
/// all descriptors of the owner may be closed yet.
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds after which a broker ends once its owner has ended, even if it still waits for something.
const LONGEST: u32 = 30;

/// State of the broker from the start.
struct Inside {
    control: OwnedFd,
    kinds: &'static [Kind],
    /// The descriptor that each kind opened before the fork.
    prepared: Vec<Option<OwnedFd>>,
    /// The owner: the process that registers tasks; `None` if a pidfd is not available (a system call filter). Other
    /// processes that the owner has forked may hold its ends of the sockets.
    parent: Option<OwnedFd>,
    /// Tasks by number; `None` once a change has been undone.
    tasks: Vec<Option<Registered>>,
    sealed: bool,
}

struct Registered {
    kind: usize,
    task: Box<dyn Task>,
    /// The socket for requests; `None` if the owner makes none.
    channel: Option<OwnedFd>,
}

/// The next event of the main loop.
enum Event {
    Control,
    /// A request to the task with this number.
    Request(usize),
    OwnerEnded,
}

/// The reason for the end of the main loop.
enum End {
    /// The owner has ended in an orderly way.
    Parted,
    /// The owner has ended without a word, or has violated the protocol.
    Killed,
}

/// Forks a broker; returns the owner's end of its control socket.
pub(super) fn start(kinds: &'static [Kind], rights: Rights) -> io::Result<OwnedFd> {
    let (ours, control) = wire::pair()?;
    let prepared = kinds.iter().map(|kind| (kind.prepare)()).collect::<io::Result<Vec<_>>>()?;
    let parent = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok();
    let mut keep = vec![control.as_raw_fd()];
    keep.extend(prepared.iter().flatten().map(AsRawFd::as_raw_fd));
    keep.extend(parent.as_ref().map(AsRawFd::as_raw_fd));
    let inside = Inside { control, kinds, prepared, parent, tasks: Vec::new(), sealed: false };
    forked::start(c"wl-broker", rights, &keep, move || inside.serve())?;
    Ok(ours)
}

impl Inside {
    /// Serves until the owner ends, then undoes what is left.
    fn serve(mut self) {
        let end = loop {
            let done = match self.next() {
                Event::Control => self.obey(),
                Event::Request(number) => self.request(number),
                Event::OwnerEnded => Err(End::Killed),
            };
            if let Err(end) = done {
                break end;
            }
        };
        // SAFETY: an integer; the signal ends this process.
        unsafe { libc::alarm(LONGEST) };
        let mut tasks: Vec<Registered> = self.tasks.drain(..).flatten().collect();
        let start = Instant::now();
        loop {
            tasks.retain_mut(|task| !task.undo(&self.prepared).0);
            // A process that still uses a setting after this time has a broker of its own.
            if tasks.is_empty() || matches!(end, End::Parted) || start.elapsed() >= PATIENCE {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Obeys the next message on the control socket.
    fn obey(&mut self) -> Result<(), End> {
        let mut said = Vec::new();
        match wire::next(&self.control).ok_or(End::Killed)? {
            Message::Register { kind, task, descriptors, channel } if !self.sealed => {
                let read = self.kinds.get(kind).and_then(|kind| (kind.read)(&task, descriptors));
                self.tasks.push(Some(Registered { kind, task: read.ok_or(End::Killed)?, channel }));
            }
            Message::Register { .. } => return Err(End::Killed),
            Message::Seal => {
                self.sealed = true;
                let needed: Vec<Capability> = self.needed().copied().collect();
                // A process with too many rights must not serve.
                forked::keep_only(&needed).map_err(|_| End::Killed)?;
            }
            Message::Undo(number) => {
                let task = self.tasks.get_mut(number).ok_or(End::Killed)?;
                // A failure here is not retried: other processes still use the setting, or it stays in the journal.
                said = task.take().map(|mut task| task.undo(&self.prepared).1).unwrap_or_default();
            }
            Message::Part => return Err(End::Parted),
        }
        // If the owner no longer reads, the next message reports it.
        let _ = wire::reply(&self.control, &said);
        Ok(())
    }

    /// Serves a request; a closed channel is forgotten.
    fn request(&mut self, number: usize) -> Result<(), End> {
        let Some(Some(Registered { task, channel, .. })) = self.tasks.get_mut(number) else { return Ok(()) };
        let Some(socket) = channel else { return Ok(()) };
        let served = match wire::receive(socket) {
            Ok((request, _)) if !request.is_empty() => {
                let reply = task.serve(&request).ok_or(End::Killed)?;
                let descriptor = reply.descriptor.as_ref().map(AsFd::as_fd);
                wire::send(socket, &reply.bytes, descriptor.as_slice()).is_ok()
            }
            _ => false,
        };
        if !served {
            *channel = None;
        }
        Ok(())
    }

    /// The capabilities that registered tasks need.
    fn needed(&self) -> impl Iterator<Item = &Capability> {
        self.tasks.iter().flatten().flat_map(|task| self.kinds[task.kind].capabilities)
    }

    /// Waits for the next event.
    fn next(&self) -> Event {
        let channels: Vec<(usize, &OwnedFd)> = (0..)
            .zip(&self.tasks)
            .filter_map(|(number, task)| Some((number, task.as_ref()?.channel.as_ref()?)))
            .collect();
        let mut wait: Vec<PollFd<'_>> = std::iter::once(&self.control)
            .chain(channels.iter().map(|(_, channel)| *channel))
            .chain(&self.parent)
            .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN))
            .collect();
        loop {
            match poll(&mut wait, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Event::OwnerEnded,
                Ok(_) => {}
            }
            let ready = |at: usize| wait.get(at).is_some_and(|one| !one.revents().is_empty());
            // The last message of the owner is read before its end is handled, but no more requests: other processes
            // may hold the owner's ends, and must not delay the end.
            if ready(0) {
                return Event::Control;
            }
            if ready(channels.len() + 1) {
                return Event::OwnerEnded;
            }
            if let Some(at) = (0..channels.len()).find(|at| ready(at + 1)) {
                return Event::Request(channels[at].0);
            }
        }
    }
}

impl Registered {
    fn undo(&mut self, prepared: &[Option<OwnedFd>]) -> (bool, Vec<LogLine>) {
        self.task.undo(prepared[self.kind].as_ref().map(AsFd::as_fd))
    }
}
