//! The guardian: a process that takes a filter off when the one that captures has ended, however it ended.
//!
//! It is forked before the filter is attached, and waits on a socket whose other end only the capturing process
//! has. A byte means that the capture has ended well, the end of the stream that the process was killed. It is a
//! session of its own, so that Ctrl-C and hang-ups do not reach it, has no descriptor but those it needs, no
//! capability but CAP_NET_ADMIN, and does not allocate: the process it was forked from may have threads.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::lock;
use super::removal::Removal;
use crate::{Error, Result};

/// How long others who end at the same time are waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the guardian is waited for: the lock's patience and a few answers of the kernel.
const LIMIT: Duration = Duration::from_secs(8);

/// The capturing process's end of a guardian.
#[derive(Debug)]
pub(super) struct Guardian(UnixStream);

impl Guardian {
    /// Forks a guardian that will do this removal.
    pub(super) fn start(removal: &Removal) -> Result<Guardian> {
        let failed = |e| Error::kernel("starting the process that guards the tc filter", e);
        let (ours, its) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        // Opened here and not by the guardian: /proc may be gone by then. Its lock is the guardian's own.
        let lock = lock::open()?;
        // SAFETY: the child runs `detach`, which makes system calls only, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(failed(io::Error::last_os_error())),
            0 => detach(its.as_raw_fd(), &lock, removal),
            child => {
                wait_for(child).map_err(failed)?;
                Ok(Guardian(ours))
            }
        }
    }

    /// Tells the guardian that this process is no longer present, and waits until it has ended. False where
    /// it was not there to hear it.
    pub(super) fn finish(&mut self) -> bool {
        // SAFETY: a live buffer of this length, only read. No signal where the guardian is gone.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), b"x".as_ptr().cast(), 1, libc::MSG_NOSIGNAL) };
        if sent != 1 {
            return false;
        }
        // It answers nothing: its end is the end of the stream. A reset means that the byte was not read.
        loop {
            match self.0.read(&mut [0]) {
                Ok(_) => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
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
fn detach(control: RawFd, lock: &OwnedFd, removal: &Removal) -> ! {
    // SAFETY: system calls without pointers; _exit runs nothing of the program that was forked.
    unsafe {
        libc::setsid();
        match libc::fork() {
            -1 => libc::_exit(1),
            0 => {}
            _ => libc::_exit(0),
        }
    }
    guard(control, lock, removal)
}

fn guard(control: RawFd, lock: &OwnedFd, removal: &Removal) -> ! {
    let [socket, owners] = removal.descriptors();
    close_all_but([control, lock.as_raw_fd(), socket, owners]);
    // SAFETY: constants, and strings that are static and end with a zero.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"wl-guardian".as_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2]
        {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::chdir(c"/".as_ptr());
    }
    keep_net_admin_only();
    let killed = wait_for_the_end(control);
    let start = Instant::now();
    loop {
        lock::wait(lock.as_raw_fd());
        // An error of the kernel's is the last word: the next Wirelane on the device tries again.
        let done = removal.run_if_unused().unwrap_or(true);
        lock::release(lock.as_raw_fd());
        // Others may be about to end too, or not all of the killed process's descriptors are closed yet. Who
        // is there for longer has a guardian of its own.
        if done || !killed || start.elapsed() >= PATIENCE {
            // SAFETY: ends this process and runs nothing of the program that was forked.
            unsafe { libc::_exit(0) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True where the process was killed.
fn wait_for_the_end(control: RawFd) -> bool {
    let mut byte = 0u8;
    loop {
        // SAFETY: one live byte to write to.
        match unsafe { libc::read(control, (&raw mut byte).cast(), 1) } {
            1 => return false,
            0 => return true,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return true,
        }
    }
}

/// Closes every descriptor but these: nobody waits for a pipe or file because a guardian has it open.
fn close_all_but(mut keep: [RawFd; 4]) {
    keep.sort_unstable();
    let mut first = 0;
    for fd in keep.map(|fd| fd as u32).into_iter().chain([u32::MAX]) {
        // SAFETY: descriptors of this forked process only; those of the values in use are kept.
        if fd > first && unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) } != 0 {
            // Refused in some containers.
            for each in first..fd.min(1 << 16) {
                // SAFETY: as above.
                unsafe { libc::close(each as RawFd) };
            }
        }
        first = fd.saturating_add(1);
    }
}

/// capset(2): `struct __user_cap_header_struct` and two of `struct __user_cap_data_struct`.
fn keep_net_admin_only() {
    const VERSION_3: u32 = 0x2008_0522;
    const NET_ADMIN: u32 = 1 << 12;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable; first for capabilities 0 to 31, then for the others.
    let sets = [NET_ADMIN, NET_ADMIN, 0, 0, 0, 0];
    // SAFETY: live arrays of the layout of those structs, only read; and constants.
    unsafe {
        libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr());
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    }
}
