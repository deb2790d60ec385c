//! IPFIX over TCP (RFC 7011, 10.4): a connection that is made again where it breaks. Each begins with the templates, and
//! counts its records anew. A message that was begun on a connection that broke is sent again, whole, on the next.
//! What the kernel had taken by then and not delivered is lost with the connection; the sequence numbers of the first
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

/// Until the next try, where a collector is away.
const RETRY: Duration = Duration::from_secs(1);
/// How long a connection may take, and how long one may take nothing on before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(10);

enum State {
    /// Not connected; tried again at this moment.
    Away(Instant),
    /// Since this moment.
    Connecting(OwnedFd, Instant),
    Connected(OwnedFd),
}

/// A connection to one collector.
pub(super) struct Tcp {
    addresses: Vec<SocketAddr>,
    /// Which of them is tried next.
    next: usize,
    state: State,
    pub backlog: Backlog,
    /// What a connection begins with, until it is sent.
    preamble: Option<Message>,
    /// Bytes of the first message that were taken.
    begun: usize,
    sequence: u32,
    /// When something was taken last.
    progress: Instant,
}

impl Tcp {
    /// To the first of these addresses that answers. Connects when it is pumped.
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

    /// Sends what the connection takes; makes one first where there is none.
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

    /// Whether the collector has taken something within this time.
    pub fn moves(&self, within: Duration) -> bool {
        self.progress.elapsed() < within
    }

    /// Waits until something can be done, or this long.
    pub fn wait(&self, most: Duration) {
        let (State::Connecting(socket, _) | State::Connected(socket)) = &self.state else {
            std::thread::sleep(most);
            return;
        };
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        // Whatever it says, the next look tells.
        let _ = poll(&mut fds, Timespec::try_from(most).ok().as_ref());
    }

    /// All has been sent: says so to the collector.
    pub fn end(&mut self) {
        if let State::Connected(socket) = &self.state {
            // Where it is gone already, there is nobody to tell.
            let _ = shutdown(socket, Shutdown::Write);
        }
    }
}

/// Whether the other side has closed: what is written then is lost, and the kernel tells of it only with the write behind it.
/// Collectors say nothing else (RFC 7011), and if one does, nobody reads it.
pub(crate) fn has_closed(socket: &OwnedFd) -> bool {
    let mut byte = [0; 1];
    let asked = recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    !matches!(asked, Ok((1, _)) | Err(Errno::AGAIN | Errno::INTR))
}

/// Whether a connection that was begun is there; `None`: not yet known.
fn connected(socket: &OwnedFd) -> Option<Result<(), Errno>> {
    let mut fds = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut fds, Some(&Timespec::default())) {
        Ok(0) | Err(Errno::INTR) => None,
        Ok(_) => Some(socket_error(socket).and_then(|error| error)),
        Err(errno) => Some(Err(errno)),
    }
}
