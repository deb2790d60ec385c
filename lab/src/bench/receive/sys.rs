//! System calls for sockets and their options, for the receivers of the benchmarks.

use std::ffi::{CString, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};

/// Index of a device in this network namespace.
pub(super) fn interface_index(device: &str) -> Result<u32> {
    let name = CString::new(device).context("a device's name has no NUL")?;
    // SAFETY: `name` is NUL-terminated and outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("no device {device}"));
    }
    Ok(index)
}

/// Opens a raw socket of this family.
pub(super) fn socket(family: c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes integers only.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by socket(2), so it is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option to a structure or integer without padding.
pub(super) fn set_option<T: Copy>(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is valid for reads of the length that is given, for the call.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Value of an option, as returned by the kernel.
///
/// # Safety
/// `T` is made of integers only, so that zero and any bytes of the kernel are valid values.
pub(super) unsafe fn get_option<T: Copy>(socket: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `length` bytes, which is the size that is passed to the kernel.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length)
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed before, and T is valid for any bytes, as the caller promised.
    Ok(unsafe { value.assume_init() })
}

/// Binds to an address that is a structure without pointers.
///
/// # Safety
/// `T` must be the `sockaddr_*` of the socket's family.
pub(super) unsafe fn bind<T: Copy>(socket: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    // SAFETY: `address` is valid for reads of its size, and of the socket's family as the caller promised.
    let status = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const *address).cast(), size_of::<T>() as libc::socklen_t)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sleeps until the socket is readable, a signal arrives, or the time is over.
pub(super) fn wait_readable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut wanted = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `wanted` is one pollfd, valid for the call.
    let status = unsafe { libc::poll(&raw mut wanted, 1, timeout.as_millis() as c_int) };
    if status >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Pins the calling thread to one core.
pub(super) fn pin(core: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is an array of integers; all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `core` is below the number of bits in the set, as checked.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: 0 is the calling thread; `set` is valid for reads of its size.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends this process SIGALRM after `first`, and every `then` after that, to interrupt system calls. A program that
/// calls this ends soon after.
pub(crate) fn alarm_after(first: Duration, then: Duration) -> io::Result<()> {
    // The default action would terminate the process.
    signal_hook::flag::register(signal_hook::consts::SIGALRM, Arc::new(AtomicBool::new(false)))?;
    let time = |duration: Duration| libc::timeval {
        tv_sec: duration.as_secs().cast_signed(),
        tv_usec: i64::from(duration.subsec_micros()),
    };
    let timer = libc::itimerval { it_interval: time(then), it_value: time(first) };
    // SAFETY: `timer` is valid for reads for the call; a null pointer means that the old one is not asked for.
    let status = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
