//! Interrupts a system call of another thread.
//!
//! A thread that generates inside the kernel spends the whole run in one system call, and only a signal makes it
//! return. The highest real-time signal is used; its handler does nothing, but is needed because an ignored signal
//! would not end the call. A signal that arrives just before the call begins is lost, so the caller repeats it until
//! the thread has reacted.

use std::sync::Once;

use crate::{Error, Result};

extern "C" fn nothing(_signal: libc::c_int) {}

/// Installs the handler, once per process, unless the program has its own handler for this signal.
pub(super) fn prepare() -> Result<()> {
    static INSTALLED: Once = Once::new();
    let mut outcome = Ok(());
    INSTALLED.call_once(|| outcome = install());
    outcome
}

fn install() -> Result<()> {
    let failed = || Error::last_os("preparing the signal that ends generating threads");
    // SAFETY: `sigaction` is integers and a pointer; all zero is SIG_DFL with no flags, a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action only queries; `action` is valid for the result.
    if unsafe { libc::sigaction(libc::SIGRTMAX(), std::ptr::null(), &raw mut action) } != 0 {
        return Err(failed());
    }
    if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN {
        return Ok(());
    }
    // Without SA_RESTART, so that the system call ends.
    action.sa_flags = 0;
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler is async-signal-safe, as it does nothing.
    if unsafe { libc::sigaction(libc::SIGRTMAX(), &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(failed());
    }
    Ok(())
}

/// The id of the calling thread, for [`wake`].
pub(super) fn own_id() -> i32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

/// Sends the signal to a thread of this process.
pub(super) fn wake(thread: i32) {
    // SAFETY: no memory is passed. A thread that has just ended gives ESRCH, which is the intended result; its id
    // cannot belong to another process, because the call names ours.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGRTMAX()) };
}
