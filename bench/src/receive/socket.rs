//! The system calls of the receivers, safe to call.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

/// Turns a status of -1 into errno.
fn check(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// The kernel's number of a device.
pub(super) fn interface_index(device: &str) -> io::Result<i32> {
    let name = CString::new(device)?;
    // SAFETY: `name` is NUL-terminated and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index.cast_signed()),
    }
}

/// A new raw socket.
pub(super) fn open(domain: i32, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes integers only.
    let fd = check(unsafe {
        libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol.to_be()))
    })?;
    // SAFETY: `fd` was returned just now, so it is open and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Types of the C interface that are only numbers, so that any bytes are a value and all bytes may be read.
///
/// # Safety
/// `Self` has no padding, no pointers that are followed, and is valid for every pattern of bytes.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for i32 {}
// SAFETY: integers of 64 and then of 32 bits, four of them: no padding.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: integers of 64 bits.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: integers of 64 bits.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: integers of 16, 16, 32, 32 and 32 bits, each at a multiple of its size: no padding.
unsafe impl Plain for libc::sockaddr_xdp {}
// SAFETY: seven integers of 32 bits.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: three integers of 32 bits.
unsafe impl Plain for libc::tpacket_stats_v3 {}
// SAFETY: integers and bytes without padding: 2, 2, 4, 2, 1, 1 and 8 bytes.
unsafe impl Plain for libc::sockaddr_ll {}

/// setsockopt(2).
pub(super) fn set_option<T: Plain>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` is readable for its size throughout the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// getsockopt(2).
pub(super) fn option<T: Plain>(socket: &OwnedFd, level: i32, name: i32, mut value: T) -> io::Result<T> {
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is writable for `size` bytes, both are exclusively borrowed, and any bytes are a value
    // of a plain type.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, ptr::from_mut(&mut value).cast(), &raw mut size)
    })?;
    Ok(value)
}

/// bind(2).
pub(super) fn bind<T: Plain>(socket: &OwnedFd, address: &T) -> io::Result<()> {
    // SAFETY: `address` is readable for its size throughout the call.
    check(unsafe {
        libc::bind(socket.as_raw_fd(), ptr::from_ref(address).cast(), size_of::<T>() as libc::socklen_t)
    })
    .map(drop)
}

/// Waits until the socket can be read or the time is over; a signal ends it as well.
pub(super) fn wait(socket: &OwnedFd, time: Duration) -> io::Result<()> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one exclusively borrowed entry.
    match check(unsafe { libc::poll(&raw mut poll, 1, time.as_millis() as i32) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Shared memory, unmapped when dropped.
pub(super) struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    /// Maps `length` bytes of a socket at `offset`, readable and writable; anonymous memory without a socket.
    pub(super) fn new(socket: Option<&OwnedFd>, length: usize, offset: i64) -> io::Result<Mapping> {
        let (fd, flags) = match socket {
            Some(socket) => (socket.as_raw_fd(), libc::MAP_SHARED | libc::MAP_POPULATE),
            None => (-1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE),
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without an address of ours mmap(2) touches no memory that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { start: start.cast(), length })
    }

    /// The address of `count` values of `T` at `offset`, all of them within the mapping and aligned.
    ///
    /// # Panics
    /// Where they are not.
    pub(super) fn at<T>(&self, offset: usize, count: usize) -> *mut T {
        assert!(offset + count * size_of::<T>() <= self.length, "beyond the mapping");
        let address = self.start.wrapping_add(offset).cast::<T>();
        assert!(address.is_aligned(), "not aligned");
        address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and pointers into it live no longer than it:
        // their holders own it.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}
