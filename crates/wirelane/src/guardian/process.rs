//! The guardian's process: how it comes to be, and what it does.
//!
//! It allocates, which a process may not that was forked from one with threads, but for C libraries that see to it:
//! glibc and musl keep their allocator usable over fork(2), and allocators with handlers for it (jemalloc, mimalloc)
//! do. It takes no other lock that a thread may have held at that moment: it does not log, and prints nothing. Commands
//! have no threads then anyway.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::PidfdFlags;

use super::duty::Task;
use super::rights::Rights;
use super::wire::{self, Message};
use crate::engine::ring::clsact::NamespaceLock;

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
    let inside = Inside { control, lock, parent };
    // SAFETY: the child never returns: it catches panics, and ends by _exit. It uses nothing that is locked by threads
    // that it does not have, as the head of this file says.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => detach(inside, rights),
        child => {
            wait_for(child)?;
            Ok(ours)
        }
    }
}

/// Waits for the child between us and the guardian, which ends at once.
fn wait_for(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    loop {
        // SAFETY: a live integer to write to.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            let forked = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            return if forked { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EAGAIN)) };
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // The program around us waits for all children, or ignores their ends.
            Some(libc::ECHILD) => return Ok(()),
            _ => return Err(error),
        }
    }
}

/// The child: makes the guardian a child of init, so that nobody has to wait for it, and ends.
fn detach(inside: Inside, rights: Rights) -> ! {
    // SAFETY: system calls without pointers; _exit runs nothing of the program that was forked.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => libc::_exit(1),
            0 => {}
            _ => libc::_exit(0),
        }
    }
    // A panic must not unwind into the program that was forked. What it leaves, the next Wirelane heals.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        // With more rights than it should have it does not serve: the capturing process finds its socket closed.
        if rights.assume().is_ok() {
            leave_behind(&inside);
            inside.serve();
        }
    }));
    // SAFETY: ends this process and runs nothing of the program that was forked.
    unsafe { libc::_exit(i32::from(ended.is_err())) }
}

/// Leaves behind what belongs to the program that was forked: its terminal, files, signals, folder.
fn leave_behind(inside: &Inside) {
    let [control, lock] = [inside.control.as_raw_fd(), inside.lock.as_raw_fd()];
    let parent = inside.parent.as_ref().map_or(control, AsRawFd::as_raw_fd);
    // SAFETY: sigset_t is an array of integers; all zero is a valid value, and the call below makes it the empty set.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: descriptors of this forked process only; signal numbers and dispositions without handlers, a live set,
    // and strings that are static and end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"wl-guardian".as_ptr());
        // Handlers of the program would write to descriptors that are other files here.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGHUP,
            libc::SIGQUIT,
            libc::SIGUSR1,
            libc::SIGUSR2,
            libc::SIGPIPE,
        ] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::chdir(c"/".as_ptr());
        // Whatever writes to standard output or error writes to a file that cannot be written, and to no other.
        for standard in 0..3 {
            if ![control, lock, parent].contains(&standard) {
                libc::dup2(lock, standard);
            }
        }
    }
    close_all_but([control, lock, parent]);
}

/// Closes every descriptor but these and the first three: nobody waits for a pipe or file because a guardian has it open.
fn close_all_but(mut keep: [RawFd; 3]) {
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep.map(|fd| fd as u32).into_iter().chain([u32::MAX]) {
        // SAFETY: descriptors of this forked process only; those of the values in use are kept.
        if fd > first && unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
            // Refused in some containers.
            for each in first..fd.min(1 << 16) {
                // SAFETY: as above.
                unsafe { libc::close(each as RawFd) };
            }
        }
        first = first.max(fd.saturating_add(1));
    }
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
