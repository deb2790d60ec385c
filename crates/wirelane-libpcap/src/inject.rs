//! Sending packets through a packet socket that receives nothing.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use wirelane::Error;

/// A packet socket on one device.
#[derive(Debug)]
pub(crate) struct Sender(OwnedFd);

impl Sender {
    /// Opens the socket while the privileges exist: programs drop them once a handle is activated.
    pub(crate) fn open(ifindex: u32) -> Result<Sender, Error> {
        let refused =
            || Error::Kernel { action: "opening a packet socket".into(), source: io::Error::last_os_error() };
        // Protocol 0: the socket receives nothing.
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(refused());
        }
        // SAFETY: a descriptor that was just opened, and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain integers, for which zero is valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = ifindex as c_int;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: a live address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(refused());
        }
        Ok(Sender(socket))
    }

    /// Sends a packet; returns the number of bytes that were sent.
    ///
    /// # Safety
    /// `bytes` points to `length` readable bytes.
    pub(crate) unsafe fn send(&self, bytes: *const c_void, length: usize) -> io::Result<c_int> {
        // SAFETY: the caller's part.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes, length, 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as c_int) }
    }
}
