//! Lines over a TCP connection; a broken connection is made again. A partly sent line is lost with the connection, and
//! so are data that the peer's kernel had accepted and its program had not read.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, connect, send, socket_with};

use crate::flows::tcp::has_closed;

/// Maximum time of the first connection attempt.
const FIRST: Duration = Duration::from_secs(10);
/// Delay after a failed connection attempt.
const RETRY: Duration = Duration::from_secs(1);

/// A connection to the first of these addresses that accepts one.
pub(super) struct Tcp {
    addresses: Vec<SocketAddr>,
    socket: Option<OwnedFd>,
    failed: Option<Instant>,
}

impl Tcp {
    /// Connects.
    pub fn connect(addresses: Vec<SocketAddr>) -> Result<Tcp, String> {
        let mut tcp = Tcp { addresses, socket: None, failed: None };
        tcp.begin(Instant::now() + FIRST).map_err(|error| error.to_string())?;
        Ok(tcp)
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn begin(&mut self, until: Instant) -> io::Result<()> {
        let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in &self.addresses {
            match connected(address, until) {
                Ok(socket) => {
                    (self.socket, self.failed) = (Some(socket), None);
                    return Ok(());
                }
                Err(error) => why = error,
            }
        }
        self.failed = Some(Instant::now());
        Err(why)
    }

    /// Sends a line within `patience`.
    pub fn send(&mut self, line: &[u8], patience: Duration) -> io::Result<()> {
        let until = Instant::now() + patience;
        if self.socket.as_ref().is_some_and(has_closed) {
            self.socket = None;
        }
        if self.socket.is_none() {
            if self.failed.is_some_and(|failed| failed.elapsed() < RETRY) {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "there is no connection"));
            }
            self.begin(until)?;
        }
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        let sent = all(socket, line, until);
        if sent.is_err() {
            // Another line would begin within this one.
            (self.socket, self.failed) = (None, Some(Instant::now()));
        }
        sent
    }
}

/// Waits until the socket is writable, or until this time.
fn wait(socket: &OwnedFd, until: Instant) -> io::Result<()> {
    let rest = until.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut fds, Timespec::try_from(rest).ok().as_ref()) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing was taken in time")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn connected(address: &SocketAddr, until: Instant) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match connect(&socket, address) {
        Ok(()) => return Ok(socket),
        Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    wait(&socket, until)?;
    socket_error(&socket)??;
    Ok(socket)
}

fn all(socket: &OwnedFd, line: &[u8], until: Instant) -> io::Result<()> {
    let mut rest = line;
    while !rest.is_empty() {
        match send(socket, rest, SendFlags::NOSIGNAL) {
            Ok(taken) => rest = &rest[taken..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(socket, until)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_that_breaks_is_made_again_and_nobody_is_waited_for_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut tcp = Tcp::connect(vec![address]).unwrap();
        let patience = Duration::from_millis(200);
        let read = |listener: &TcpListener| BufReader::new(listener.accept().unwrap().0);
        let mut line = String::new();
        let mut first = read(&listener);
        tcp.send(b"one\n", patience).unwrap();
        first.read_line(&mut line).unwrap();
        drop(first);
        // The peer's close may still be on its way.
        let begun = Instant::now();
        while !has_closed(tcp.socket.as_ref().unwrap()) {
            assert!(begun.elapsed() < FIRST);
        }
        tcp.send(b"two\n", patience).unwrap();
        let mut second = read(&listener);
        second.read_line(&mut line).unwrap();
        assert_eq!(line, "one\ntwo\n");
        // A peer that reads nothing: its buffers fill, and then the line is given up.
        let long = vec![b'x'; 1 << 20];
        let begun = Instant::now();
        let failed = (0..1000).find_map(|_| tcp.send(&long, patience).err()).unwrap();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(tcp.send(b"three\n", patience).is_err(), "not at once");
        assert!(begun.elapsed() < FIRST);
        drop((second, listener));
        std::thread::sleep(RETRY);
        assert_eq!(tcp.send(b"four\n", patience).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(Tcp::connect(vec![address]).is_err_and(|why| why.contains("refused")));
    }
}
