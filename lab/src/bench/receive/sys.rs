//! System calls for sockets and their options, memory that the kernel shares, and a timer: for the receivers and
//! generators of the benchmarks.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

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

/// Binds an AF_PACKET socket to a device, for all protocols.
pub(super) fn bind_to_device(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: index.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: `address` is valid for reads of its size, for the call.
    let status = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Memory of a socket, which the kernel writes while this process reads it; unmapped when dropped.
pub(super) struct Area {
    start: *mut u8,
    length: usize,
}

// SAFETY: an area is memory of the process, mapped until it is dropped, and belongs to no thread; the owner of the
// value has exclusive access.
unsafe impl Send for Area {}

impl Area {
    /// Maps this many bytes of a socket.
    pub(super) fn of(socket: BorrowedFd<'_>, length: usize) -> io::Result<Area> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a null hint lets the kernel choose free addresses, so no memory in use is replaced; the
        // other arguments are integers, and the kernel checks them.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, socket.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Area { start: start.cast(), length })
    }

    /// Pointer to a `T` at this offset.
    ///
    /// # Panics
    /// It would not be completely within the area, or not aligned.
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length), "beyond the area");
        let at = self.start.wrapping_add(offset).cast::<T>();
        assert!(at.is_aligned(), "not aligned");
        at
    }

    /// An integer that both sides modify.
    pub(super) fn atomic(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` checked bounds and alignment. The area lives as long as the reference. The kernel
        // accesses the integer whole, and this side through atomics only.
        unsafe { &*self.at::<AtomicU32>(offset) }
    }

    /// Copies out the header of a packet that the kernel has finished writing.
    pub(super) fn header(&self, offset: usize) -> libc::tpacket3_hdr {
        // SAFETY: `at` checked bounds and alignment; the structure has integers only (linux/if_packet.h). The read
        // is volatile because the bytes change behind the compiler's back between two reads.
        unsafe { self.at::<libc::tpacket3_hdr>(offset).read_volatile() }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area was mapped by `of` with this length and is unmapped once; no reference into it
        // outlives `self`. It fails only for arguments that mmap would not have returned.
        unsafe { libc::munmap(self.start.cast(), self.length) };
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
    let status = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
