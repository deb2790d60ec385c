//! The system calls of the lab: the only `unsafe` of the tests.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A signal for [`crate::Child::signal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Signal {
    /// SIGINT, as Ctrl-C sends it.
    Interrupt = libc::SIGINT,
    /// SIGTERM.
    Terminate = libc::SIGTERM,
    /// SIGKILL.
    Kill = libc::SIGKILL,
    /// SIGSTOP.
    Stop = libc::SIGSTOP,
    /// SIGCONT.
    Continue = libc::SIGCONT,
}

/// Sends a signal to one process.
pub(crate) fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: kill(2) takes integers only. `pid` is positive, so it means one process and no group.
    if unsafe { libc::kill(pid, signal as i32) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this process has root's user id.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid(2) takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Moves the calling thread into a network namespace.
pub(crate) fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: setns(2) takes an open descriptor, which `namespace` holds for the call, and a constant. It
    // changes the network namespace of the calling thread alone.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Waits for a lock on a file (flock(2)), which ends when the file is closed.
pub(crate) fn lock(file: &File, exclusive: bool) -> io::Result<()> {
    let how = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    loop {
        // SAFETY: flock(2) takes an open descriptor, which `file` holds for the call, and a constant.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Clock ticks a second, the unit of CPU times in `/proc` (proc_pid_stat(5)).
pub(crate) fn clock_ticks() -> u64 {
    // SAFETY: sysconf(3) takes a constant. _SC_CLK_TCK is always known.
    unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.cast_unsigned()
}
