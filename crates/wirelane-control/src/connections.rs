//! Connections of a control socket: one thread reads and writes lines without blocking.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, sockopt};

use super::place::Listener;
use super::protocol::{Answer, Ask, Reply, VERSION, brings_rules, line, question};
use crate::{Error, Result};

/// Maximum number of connections: one more replaces the connection that has been idle longest.
const MOST: usize = 16;
/// Timeout of a connection until a request is complete, or until an answer is read completely. Lines of more than
/// [`RATE`] bytes get another second for each [`RATE`] bytes.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes per additional second, see [`PATIENCE`].
const RATE: usize = 1 << 20;
/// Maximum bytes of a line on every connection: enough for all requests except those that carry many rules. At most one
/// connection at a time may exceed it, so that all connections together hold at most `MOST * (SMALL + TURN)` bytes and
/// the longest line.
const SMALL: usize = 1 << 20;
/// Maximum bytes read from one connection before the others are served.
const TURN: usize = 1 << 20;
/// Pause of accepting connections after the limit of open files was reached.
const FULL: Duration = Duration::from_secs(1);

/// A thread that is stopped and joined on drop.
#[derive(Debug)]
pub(super) struct Thread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Thread {
    /// Starts the thread; `run` gets a descriptor that becomes readable when the thread has to end.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(super) fn start(name: &'static str, run: impl FnOnce(&OwnedFd) + Send + 'static) -> Result<Thread> {
        let failed = |source| Error::kernel(format!("starting the thread {name}"), source);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).map_err(|e| failed(e.into()))?);
        let signal = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.into());
        let thread = thread.spawn(move || run(&signal)).map_err(failed)?;
        Ok(Thread { stop, thread: Some(thread) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let told = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Err(e) = told {
            tracing::error!("telling the thread of a control socket to end: {e}");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a control socket panicked");
        }
    }
}

/// Listening sockets, and their connections.
pub(super) struct Connections {
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
    /// Time until which no connection is accepted, because there are too many open files.
    full_until: Option<Instant>,
    /// Maximum bytes of a line.
    longest: usize,
}

impl Connections {
    /// A set without connections.
    pub(super) fn new(listeners: impl IntoIterator<Item = Listener>, longest: usize) -> Connections {
        let listeners = listeners.into_iter().collect();
        Connections { listeners, connections: Vec::new(), full_until: None, longest }
    }

    /// Waits until a connection is ready, or for `at_most`. Returns true if the thread has to end.
    pub(super) fn wait(&self, stop: &OwnedFd, at_most: Duration) -> rustix::io::Result<bool> {
        let mut polls = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        polls.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.unsent() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), wanted)
        }));
        if self.accepts() {
            polls.extend(self.listeners.iter().map(|listener| PollFd::new(&listener.socket, PollFlags::IN)));
        }
        let due = self.connections.iter().map(Connection::rest).min();
        let at_most = due.map_or(at_most, |due| at_most.min(due));
        let time = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        match poll(&mut polls, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => Ok(!polls[0].revents().is_empty()),
            Err(e) => Err(e),
        }
    }

    /// Whether new connections can be accepted now.
    fn accepts(&self) -> bool {
        self.full_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Accepts waiting connections of permitted users, as many in one call as there may be. Connections accepted in the same
    /// call are not replaced: they may have a pending request.
    fn accept(&mut self) {
        let mut turn = 0..MOST;
        for at in 0..self.listeners.len() {
            self.accept_of(at, &mut turn);
        }
    }

    /// Accepts the connections to one of the sockets.
    fn accept_of(&mut self, at: usize, turn: &mut Range<usize>) {
        let listener = &self.listeners[at];
        while self.accepts() && turn.next().is_some() {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let stream = match rustix::net::accept_with(&listener.socket, flags) {
                Ok(stream) => stream,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(e) => {
                    tracing::warn!("accepting a connection to the control socket: {e}");
                    // Waiting peers keep waiting, and must not keep the thread busy.
                    self.full_until = Some(Instant::now() + FULL);
                    return;
                }
            };
            // The file's mode excludes other users; this check also excludes processes that were passed a descriptor of
            // a socket that has one user.
            match sockopt::socket_peercred(&stream) {
                Ok(peer)
                    if peer.uid.is_root() || listener.user.is_none_or(|user| peer.uid.as_raw() == user) =>
                {
                    if self.connections.len() >= MOST {
                        let idle = self.connections.iter().enumerate().min_by_key(|(_, one)| one.active);
                        if let Some((at, _)) = idle {
                            // Connections are in the order of their arrival, so those accepted in this call are the
                            // last.
                            self.connections.remove(at);
                        }
                    }
                    self.connections.push(Connection::new(UnixStream::from(stream), self.longest));
                }
                Ok(peer) => tracing::warn!(
                    "user {} (process {}) was refused: no access to this capture",
                    peer.uid.as_raw(),
                    peer.pid.as_raw_nonzero()
                ),
                Err(e) => tracing::warn!("refused a client without credentials: {e}"),
            }
        }
    }

    /// Accepts waiting connections, and serves all connections as far as possible without blocking.
    pub(super) fn serve(&mut self, mut answer: impl FnMut(Ask) -> Answer) {
        self.accept();
        let begun = Instant::now();
        let mut large = self.connections.iter().position(|connection| connection.input.len() > SMALL);
        let mut at = 0;
        self.connections.retain_mut(|connection| {
            let others = large.is_some_and(|large| large != at);
            let goes_on = connection.serve(&mut answer, others);
            if goes_on && connection.input.len() > SMALL {
                large = Some(at);
            } else if !others {
                large = None;
            }
            at += 1;
            goes_on
        });
        // While one connection is answered, the others wait because of us.
        let took = begun.elapsed();
        for connection in &mut self.connections {
            connection.since += took;
        }
        self.connections.retain(|connection| !connection.rest().is_zero());
    }
}

/// A connected peer.
pub(super) struct Connection {
    stream: UnixStream,
    /// Bytes received of the next request, and the number of those that were already searched for a line end.
    input: Vec<u8>,
    looked: usize,
    /// The last answer, and the number of bytes that were sent.
    output: Vec<u8>,
    sent: usize,
    /// Time of the last progress in either direction.
    active: Instant,
    /// Start of the wait for the next request, or for the end of an answer.
    since: Instant,
    /// Maximum bytes of a line.
    longest: usize,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, longest: usize) -> Connection {
        Connection {
            stream,
            input: Vec::new(),
            looked: 0,
            output: Vec::new(),
            sent: 0,
            active: Instant::now(),
            since: Instant::now(),
            longest,
        }
    }

    fn unsent(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Remaining time until the timeout.
    fn rest(&self) -> Duration {
        let bytes = self.input.len().max(self.output.len());
        let patience = PATIENCE + Duration::from_secs((bytes / RATE) as u64);
        patience.saturating_sub(self.since.elapsed())
    }

    /// Serves the connection as far as possible without blocking. `small`: the line may have at most [`SMALL`] bytes.
    /// Returns false if the connection is finished.
    pub(super) fn serve(&mut self, mut answer: impl FnMut(Ask) -> Answer, small: bool) -> bool {
        let served = self.send().and_then(|()| {
            if self.unsent() {
                return Ok(true);
            }
            let open = self.receive()?;
            // One request at a time: a peer that does not read an answer gets no further one.
            while !self.unsent()
                && let Some(end) = self.end_of_line()
            {
                // A line can be longer when its last bytes come, as they come many at a time.
                if end > SMALL && !brings_rules(&self.input[..end]) {
                    self.reply(Answer::Refused(brings_none()));
                    self.send()?;
                    return Ok(false);
                }
                let said = match question(&self.input[..end]) {
                    Ok(ask) => answer(ask),
                    Err(reason) => Answer::Refused(clipped(reason)),
                };
                self.input.drain(..=end);
                self.looked = 0;
                self.reply(said);
                self.send()?;
            }
            // Bytes after a complete request stay in the buffer until its answer is read, and do not count as a long
            // line.
            let refusal = if self.unsent() {
                None
            } else if self.input.len() > self.longest {
                Some(format!("a line of more than {} bytes", self.longest))
            } else if self.input.len() > SMALL && !brings_rules(&self.input) {
                Some(brings_none())
            } else if self.input.len() > SMALL && small {
                Some(format!("a line of more than {SMALL} bytes, while another one comes: try again"))
            } else {
                None
            };
            if let Some(reason) = refusal {
                self.reply(Answer::Refused(reason));
                self.send()?;
                return Ok(false);
            }
            Ok(open || self.unsent())
        });
        served.unwrap_or(false)
    }

    /// The end of the first complete line.
    fn end_of_line(&mut self) -> Option<usize> {
        let end = self.input[self.looked..].iter().position(|byte| *byte == b'\n');
        let end = end.map(|end| self.looked + end);
        self.looked = end.unwrap_or(self.input.len());
        end
    }

    fn reply(&mut self, answer: Answer) {
        self.output = line(&Reply { version: VERSION, answer });
        self.sent = 0;
        self.since = Instant::now();
    }

    /// Reads the available bytes. Returns false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        let mut got = 0;
        let mut chunk = vec![0; 1 << 16];
        while got < TURN {
            match rustix::net::recv(&self.stream, &mut chunk[..], RecvFlags::empty()) {
                Ok((0, _)) => return Ok(false),
                Ok((length, _)) => {
                    self.input.extend_from_slice(&chunk[..length]);
                    self.active = Instant::now();
                    got += length;
                }
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Sends the rest of an answer as far as possible without blocking.
    fn send(&mut self) -> io::Result<()> {
        if !self.unsent() {
            return Ok(());
        }
        while self.unsent() {
            match rustix::net::send(&self.stream, &self.output[self.sent..], SendFlags::NOSIGNAL) {
                Ok(length) => {
                    self.sent += length;
                    self.active = Instant::now();
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.output = Vec::new();
        self.sent = 0;
        self.since = Instant::now();
        Ok(())
    }
}

/// The refusal of a long line.
fn brings_none() -> String {
    format!("a line of more than {SMALL} bytes that brings no rules")
}

/// A reason that quotes a request, without the rest of a long quotation.
fn clipped(mut reason: String) -> String {
    const MOST: usize = 400;
    if let Some((end, _)) = reason.char_indices().nth(MOST) {
        reason.truncate(end);
        reason.push_str("...");
    }
    reason
}

#[cfg(test)]
mod tests;
