//! The process of an agent that accepts connections: without privileges, so that a fault in TLS gains nothing.
//!
//! ```text
//! network  <== TLS ==>  front: a thread a connection  <== frames over a Unix socket ==>  agent, as root
//! ```
//! The front does the TLS handshakes, closes connections that do not finish one, and passes on the frames of peers whose
//! certificate the authority has signed. The agent reads no byte of any other peer. The agent starts the front as the same
//! program with a hidden subcommand, with the listening socket as standard input and the Unix socket as standard output.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use wirelane::sandbox::{Identity, Sandbox, Work};

use super::SOON;
use super::tls::{Files, Listening};
use super::wire::LONGEST;

/// Maximum connections: the manager's, and concurrent others. A further one drops the oldest without a complete
/// handshake.
const MOST_CONNECTIONS: usize = 32;
/// Maximum frames of a peer that wait for the agent: more than a manager sends without waiting for an answer.
const UNREAD: usize = 64;
/// Interval in which a connection checks for frames to send.
const LOOK: Duration = Duration::from_millis(3);

/// Messages between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// To the agent: the address of a peer whose certificate is valid.
    Opened = 1,
    /// A frame, from the peer or to it.
    Frame = 2,
    /// The connection is closed; to the agent with the reason.
    Closed = 3,
    /// To the agent: a line for the log.
    Log = 4,
}

/// Bytes before the content: number of the connection (4), kind (1), length of the content (4).
const HEAD: usize = 9;

fn put(stream: &mut impl Write, number: u32, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
    let mut message = Vec::with_capacity(HEAD + bytes.len());
    message.extend(number.to_be_bytes());
    message.push(kind as u8);
    message.extend((bytes.len() as u32).to_be_bytes());
    message.extend(bytes);
    stream.write_all(&message)
}

/// The next message; an error at the end.
fn next(stream: &mut impl Read) -> Result<(u32, Kind, Vec<u8>)> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let [a, b, c, d, kind, length @ ..] = head;
    let kind = match kind {
        1 => Kind::Opened,
        2 => Kind::Frame,
        3 => Kind::Closed,
        4 => Kind::Log,
        other => bail!("a message of kind {other}"),
    };
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= LONGEST, "a message of {length} bytes; {LONGEST} are the most");
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok((u32::from_be_bytes([a, b, c, d]), kind, bytes))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The agent's side of one connection.
#[derive(Debug)]
pub struct Session {
    number: u32,
    front: Arc<Mutex<UnixStream>>,
    frames: Receiver<Vec<u8>>,
}

impl Session {
    /// Sends a message.
    pub fn say<T: Serialize>(&mut self, message: &T) -> Result<()> {
        let text = serde_json::to_vec(message)?;
        ensure!(text.len() <= LONGEST, "a message of {} bytes is too long", text.len());
        put(&mut *locked(&self.front), self.number, Kind::Frame, &text).context("the front has gone")
    }

    /// The next frame, if one arrives within this time.
    pub fn poll(&mut self, most: Duration) -> Result<Option<Vec<u8>>> {
        match self.frames.recv_timeout(most) {
            Ok(frame) => Ok(Some(frame)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("it closed the connection"),
        }
    }

    /// The next frame.
    pub fn receive(&mut self, most: Duration) -> Result<Vec<u8>> {
        self.poll(most)?.with_context(|| format!("it says nothing for {most:?}"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A front that has gone needs no word.
        let _ = put(&mut *locked(&self.front), self.number, Kind::Closed, &[]);
    }
}

/// The agent's handle of the front; kills the front when dropped.
#[derive(Debug)]
pub struct Front {
    child: Child,
    stream: UnixStream,
}

impl Front {
    /// Starts the front with these arguments, followed by the three files.
    pub fn start(listener: &TcpListener, program: &[&str], files: &Files) -> Result<Front> {
        let (stream, its) = UnixStream::pair().context("a socket to the front")?;
        let listener = listener.as_fd().try_clone_to_owned().context("the listening socket")?;
        let child = Command::new("/proc/self/exe")
            .arg0("wirelane-agent-front")
            .args(program)
            .args([&files.cert, &files.key, &files.ca])
            .stdin(Stdio::from(listener))
            .stdout(Stdio::from(OwnedFd::from(its)))
            .spawn()
            .context("starting the front")?;
        Ok(Front { child, stream })
    }

    /// Calls `meet` for each peer with a valid certificate, each in a thread of its own, until the front ends.
    pub fn serve(&mut self, log: fn(&str), meet: impl Fn(SocketAddr, Session) + Sync) -> Result<()> {
        let front = Arc::new(Mutex::new(self.stream.try_clone()?));
        let mut sessions: HashMap<u32, SyncSender<Vec<u8>>> = HashMap::new();
        thread::scope(|scope| {
            loop {
                let message = next(&mut self.stream);
                let (number, kind, bytes) = match message {
                    Ok(message) => message,
                    Err(error) => {
                        // Without its sender, each session ends.
                        sessions.clear();
                        return Err(error.context("the process that accepts connections has ended"));
                    }
                };
                match kind {
                    Kind::Opened => {
                        let peer =
                            String::from_utf8_lossy(&bytes).parse().context("the address of a peer")?;
                        let (sender, frames) = sync_channel(UNREAD);
                        sessions.insert(number, sender);
                        let (session, meet) = (Session { number, front: Arc::clone(&front), frames }, &meet);
                        scope.spawn(move || meet(peer, session));
                    }
                    // A closed session takes no frame; a peer that sends too many without waiting for answers loses its session.
                    Kind::Frame => {
                        if sessions.get(&number).is_some_and(|sender| sender.try_send(bytes).is_err()) {
                            sessions.remove(&number);
                        }
                    }
                    Kind::Closed => _ = sessions.remove(&number),
                    Kind::Log => log(&String::from_utf8_lossy(&bytes)),
                }
            }
        })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// State that the threads of the front share.
struct Shared {
    tls: Listening,
    agent: Mutex<UnixStream>,
    /// Queues of frames to peers, by the number of the connection; `None` closes the connection.
    peers: Mutex<HashMap<u32, Sender<Option<Vec<u8>>>>>,
    /// Connections whose handshake is not finished, the oldest first.
    handshakes: Mutex<VecDeque<(u32, TcpStream)>>,
}

/// Runs the front until the agent ends: the listening socket is standard input, the socket to the agent is standard output.
///
/// # Errors
/// The files cannot be used, or the process cannot give up its privileges.
pub fn run(files: &Files) -> Result<()> {
    let descriptor = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
    let listener = TcpListener::from(descriptor(std::io::stdin().as_fd())?);
    let mut agent = UnixStream::from(descriptor(std::io::stdout().as_fd())?);
    let tls = Listening::new(files)?;
    let identity = Identity::unprivileged()?;
    Sandbox::new(Work::Serve).identity(identity).apply()?;
    let shared = Arc::new(Shared {
        tls,
        agent: Mutex::new(agent.try_clone()?),
        peers: Mutex::default(),
        handshakes: Mutex::default(),
    });
    let accepting = Arc::clone(&shared);
    thread::Builder::new().name("accept".into()).spawn(move || accepting.accept(&listener))?;
    // The end of the agent is the end of this process.
    while let Ok((number, kind, bytes)) = next(&mut agent) {
        let message = (kind == Kind::Frame).then_some(bytes);
        let peers = locked(&shared.peers);
        // A connection that was closed meanwhile takes no message.
        let _ = peers.get(&number).map(|peer| peer.send(message));
    }
    Ok(())
}

impl Shared {
    /// Accepts connections, for ever.
    fn accept(self: &Arc<Shared>, listener: &TcpListener) {
        for (number, connection) in (1u32..).zip(listener.incoming()) {
            let Ok(socket) = connection else {
                // Out of descriptors, or the peer has gone: waiting helps, asking again at once does not.
                thread::sleep(SOON);
                continue;
            };
            if locked(&self.peers).len() + locked(&self.handshakes).len() >= MOST_CONNECTIONS {
                // The oldest unfinished handshake makes room, so that no manager is kept out.
                let Some((_, oldest)) = locked(&self.handshakes).pop_front() else { continue };
                let _ = oldest.shutdown(Shutdown::Both);
            }
            let Ok(again) = socket.try_clone() else { continue };
            locked(&self.handshakes).push_back((number, again));
            let shared = Arc::clone(self);
            let spawned =
                thread::Builder::new().name("peer".into()).spawn(move || shared.meet(number, socket));
            if spawned.is_err() {
                locked(&self.handshakes).retain(|(other, _)| *other != number);
            }
        }
    }

    /// One connection.
    fn meet(&self, number: u32, socket: TcpStream) {
        let peer = socket.peer_addr();
        let accepted = self.tls.accept(socket);
        locked(&self.handshakes).retain(|(other, _)| *other != number);
        let Ok(peer) = peer else { return };
        let mut wire = match accepted {
            Ok(wire) => wire,
            Err(error) => return self.tell(number, Kind::Log, &format!("{peer} is refused: {error:#}")),
        };
        let (sender, messages) = channel();
        locked(&self.peers).insert(number, sender);
        self.tell(number, Kind::Opened, &peer.to_string());
        let ended = self.pass(number, &mut wire, &messages);
        locked(&self.peers).remove(&number);
        self.tell(number, Kind::Closed, &ended.err().map(|error| format!("{error:#}")).unwrap_or_default());
    }

    /// Passes frames on in both directions, until one side is gone.
    fn pass(
        &self,
        number: u32,
        wire: &mut super::wire::Wire,
        messages: &Receiver<Option<Vec<u8>>>,
    ) -> Result<()> {
        let mut closes: Option<Instant> = None;
        loop {
            while let Ok(message) = messages.try_recv() {
                match message {
                    Some(frame) => wire.send(&frame)?,
                    None => {
                        wire.close();
                        closes = Some(Instant::now() + Duration::from_secs(1));
                    }
                }
            }
            // The peer has a second to read the last message before the connection is closed.
            if closes.is_some_and(|closes| Instant::now() >= closes) {
                return Ok(());
            }
            if let Some(frame) = wire.poll(LOOK)? {
                put(&mut *locked(&self.agent), number, Kind::Frame, &frame)?;
            }
        }
    }

    fn tell(&self, number: u32, kind: Kind, text: &str) {
        // An error means that the agent has ended, and then this process ends, too.
        let _ = put(&mut *locked(&self.agent), number, kind, text.as_bytes());
    }
}
