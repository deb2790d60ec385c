//! The stream between a capture and the process that sets the RSS table. Neither blocks on the other if it can be
//! avoided.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

/// Sends a complete message, which fits into the socket's buffer; raises no signal if the peer has ended.
pub(super) fn send(socket: &UnixStream, message: &[u8]) -> io::Result<()> {
    // SAFETY: a live buffer of this length, only read.
    let sent = unsafe {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), flags)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == message.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Reads available bytes without waiting: `WouldBlock` if nothing is available, 0 at the end of the stream.
pub(super) fn receive(socket: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: a live buffer of this length, exclusively borrowed.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
