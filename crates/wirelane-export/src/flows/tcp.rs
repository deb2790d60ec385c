//! IPFIX over TCP (RFC 7011, 10.4): a broken connection is made again. Each connection begins with the templates, and
//! starts a new record count. A message that was begun on a broken connection is sent again completely on the next.
//! Data that the kernel had accepted and not delivered are lost with the connection; the sequence numbers of the first
//! connection end where its collector saw them end.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, recv, send, shutdown,
    socket_with,
};

use super::OutputCounts;
use super::carrier::{Backlog, Wait};
use super::encode::{Context, Encoder, Message};

/// Time until the next attempt, if a collector is unreachable.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum time for connecting, and for a connection to accept nothing before it is treated as broken.
const PATIENCE: Duration = Duration::from_secs(10);

enum State {
    /// Not connected; the next attempt is at this time.
    Away(Instant),
    /// Connecting since this time.
    Connecting(OwnedFd, Instant),
    Connected(OwnedFd),
}

/// A connection to one collector.
pub(super) struct Tcp {
    addresses: Vec<SocketAddr>,
    /// Index of the next address to try.
    next: usize,
    state: State,
    pub backlog: Backlog,
    /// The first message of the connection, until it is sent.
    preamble: Option<Message>,
    /// Bytes of the first message that the kernel accepted.
    begun: usize,
    sequence: u32,
    /// Time of the last accepted bytes.
    progress: Instant,
}

impl Tcp {
    /// Connects to the first address that answers, when it is pumped.
    pub fn new(addresses: Vec<SocketAddr>) -> Tcp {
        let now = Instant::now();
        Tcp {
            addresses,
            next: 0,
            state: State::Away(now),
            backlog: Backlog::default(),
            preamble: None,
            begun: 0,
            sequence: 0,
            progress: now,
        }
    }

    fn broke(&mut self, counts: &mut OutputCounts, why: impl std::fmt::Display) {
        counts.failed(why.to_string());
        (self.preamble, self.begun) = (None, 0);
        self.next = (self.next + 1) % self.addresses.len();
        self.state = State::Away(Instant::now() + RETRY);
    }

    fn begin(&mut self, counts: &mut OutputCounts) {
        let address = self.addresses[self.next];
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let begun = socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            match connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(errno) => Err(errno),
            }
        });
        match begun {
            Ok(socket) => self.state = State::Connecting(socket, Instant::now()),
            Err(errno) => self.broke(counts, errno),
        }
    }

    /// Sends as much as the connection accepts; connects first if necessary.
    pub fn pump(
        &mut self,
        encoder: &mut dyn Encoder,
        context: &Context<'_>,
        counts: &mut OutputCounts,
    ) -> Wait {
        if let State::Away(until) = self.state {
            if Instant::now() < until {
                return Wait::Until(until);
            }
            self.begin(counts);
        }
        if let State::Connecting(socket, since) = &self.state {
            let since = *since;
            match connected(socket) {
                None if since.elapsed() < PATIENCE => return Wait::Room,
                None => self.broke(counts, "no answer within 10 s"),
                Some(Err(errno)) => self.broke(counts, errno),
                Some(Ok(())) => {
                    if let State::Connecting(socket, _) =
                        std::mem::replace(&mut self.state, State::Away(Instant::now()))
                    {
                        self.state = State::Connected(socket);
                    }
                    (self.sequence, self.begun, self.progress) = (0, 0, Instant::now());
                    self.preamble = encoder.preamble(context);
                    counts.connections += 1;
                    counts.works();
                }
            }
        }
        self.write(counts)
    }

    fn write(&mut self, counts: &mut OutputCounts) -> Wait {
        loop {
            let State::Connected(socket) = &self.state else {
                return match self.state {
                    State::Away(until) => Wait::Until(until),
                    _ => Wait::Room,
                };
            };
            let preamble = self.preamble.is_some();
            let Some(message) = self.preamble.as_mut().or(self.backlog.queue.front_mut()) else {
                self.progress = Instant::now();
                return Wait::Idle;
            };
            if self.begun == 0 && has_closed(socket) {
                self.broke(counts, "the collector has closed the connection");
                continue;
            }
            if self.begun == 0 {
                message.bytes[8..12].copy_from_slice(&self.sequence.to_be_bytes());
            }
            match send(socket, &message.bytes[self.begun..], SendFlags::NOSIGNAL) {
                Ok(taken) => (self.begun, self.progress) = (self.begun + taken, Instant::now()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if self.progress.elapsed() < PATIENCE => return Wait::Room,
                Err(Errno::AGAIN) => {
                    self.broke(counts, "nothing was taken for 10 s");
                    continue;
                }
                Err(errno) => {
                    self.broke(counts, errno);
                    continue;
                }
            }
            if self.begun < message.bytes.len() {
                continue;
            }
            self.begun = 0;
            self.sequence = self.sequence.wrapping_add(message.records);
            let sent = if preamble { self.preamble.take() } else { self.backlog.pop() };
            if let Some(message) = sent {
                counts.sent(&message);
            }
        }
    }

    /// Whether the collector has accepted data within this time.
    pub fn moves(&self, within: Duration) -> bool {
        self.progress.elapsed() < within
    }

    /// Waits until sending is possible, or at most this long.
    pub fn wait(&self, most: Duration) {
        let (State::Connecting(socket, _) | State::Connected(socket)) = &self.state else {
            std::thread::sleep(most);
            return;
        };
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        // The next attempt to send shows the result.
        let _ = poll(&mut fds, Timespec::try_from(most).ok().as_ref());
    }

    /// Ends the connection after all messages were sent.
    pub fn end(&mut self) {
        if let State::Connected(socket) = &self.state {
            // Ignored: the connection may be gone already.
            let _ = shutdown(socket, Shutdown::Write);
        }
    }
}

/// Whether the peer has closed the connection: data written then are lost, and the kernel reports it only at the write
/// after that. Collectors send nothing else (RFC 7011), and data from them are ignored.
pub(crate) fn has_closed(socket: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    let asked = recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(asked, Ok((1, _)) | Err(Errno::AGAIN | Errno::INTR))
}

/// Whether a connection attempt has succeeded; `None`: not yet known.
fn connected(socket: &OwnedFd) -> Option<Result<(), Errno>> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(0) | Err(Errno::INTR) => None,
        Ok(_) => Some(socket_error(socket).and_then(|error| error)),
        Err(errno) => Some(Err(errno)),
    }
}
