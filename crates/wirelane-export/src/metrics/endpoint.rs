//! The metrics endpoint: a thread that serves several clients at a time.
//!
//! Uses only poll(2) and non-blocking descriptors: a sandboxed process may not set timeouts on sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};

use super::connection::{Answer, Connection};
use super::secured::{Renewed, Secured, Sources};
use crate::{Error, Result};

/// Maximum concurrent clients: one more drops the oldest connection.
const MOST: usize = 64;
/// Interval at which the thread checks whether it must end.
const LOOKS: Duration = Duration::from_millis(100);
/// Content type of the metrics.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A bound socket, before requests are served.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    secured: Option<Renewed>,
}

/// The thread that serves requests. It ends on drop.
#[derive(Debug)]
pub struct Serving {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Binds the socket, before privileges are dropped. With `secured`, clients must use TLS and send the token,
    /// which are read from these files, and again when they change.
    ///
    /// # Errors
    /// [`Error::Target`] if the address is not a loopback address and not secured, or is in use.
    pub fn bind(address: SocketAddr, secured: Option<Sources>) -> Result<Endpoint> {
        let wrong = |reason: String| Error::Target { target: address.to_string(), reason };
        if !address.ip().is_loopback() && secured.is_none() {
            let reason = "other hosts could read it: pass an address of this host, e.g. 127.0.0.1:9464, or \
                          --metrics-cert, --metrics-key and --metrics-token-file or --metrics-token-env";
            return Err(wrong(reason.into()));
        }
        let secured = secured.map(Renewed::read).transpose()?;
        let listener = TcpListener::bind(address).map_err(|error| wrong(error.to_string()))?;
        let set = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let address = set.map_err(|error| wrong(error.to_string()))?;
        Ok(Endpoint { listener, address, secured })
    }

    /// URL of the endpoint; port 0 is replaced by the bound port.
    pub fn url(&self) -> String {
        let scheme = if self.secured.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }

    /// Starts a thread that serves requests.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn serve(mut self, registry: Registry) -> io::Result<Serving> {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("wl-metrics".into());
        let thread = thread.spawn(move || self.run(&registry, &ended))?;
        Ok(Serving { end, thread: Some(thread) })
    }

    /// TLS and token of a new connection.
    fn secured(&self) -> Option<Secured> {
        self.secured.as_ref().map(|renewed| renewed.secured.clone())
    }

    fn run(&mut self, registry: &Registry, ended: &AtomicBool) {
        let mut connections: Vec<Connection> = Vec::new();
        // Relaxed: the flag only ends the thread, and orders no counts.
        while !ended.load(Ordering::Relaxed) {
            if let Some(secured) = &mut self.secured {
                secured.look();
            }
            let mut polls: Vec<PollFd<'_>> = connections
                .iter()
                .map(|connection| {
                    let (descriptor, wanted) = connection.waits_for();
                    PollFd::from_borrowed_fd(descriptor, wanted)
                })
                .collect();
            polls.push(PollFd::new(&self.listener, PollFlags::IN));
            let time = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOKS.subsec_nanos()) };
            // If polling fails, the next check comes later all the same.
            if poll(&mut polls, Some(&time)).is_err() {
                std::thread::sleep(LOOKS);
            }
            connections.retain_mut(|connection| connection.serve(|head| answer(head, registry)));
            // Limits new connections per round, so that each is read before others can drop it: usually the request is
            // there already.
            for _ in 0..MOST / 4 {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let Ok(socket) = accept_with(&self.listener, flags) else { break };
                if connections.len() >= MOST {
                    connections.remove(0);
                }
                connections.push(Connection::new(TcpStream::from(socket), self.secured()));
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // The panic message was written to standard error.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The response to `said` with an empty registry, for fuzzing.
///
/// # Panics
/// If no socket can be created.
#[doc(hidden)]
pub fn converse(said: &[u8]) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    // The functions called on the stream work on any socket.
    let mut connection = Connection::new(TcpStream::from(OwnedFd::from(ours)), None);
    let registry = Registry::default();
    let (mut sent, mut answer_bytes) = (0, Vec::new());
    loop {
        if sent < said.len() {
            sent += theirs.write(&said[sent..]).unwrap_or(0);
        }
        if sent == said.len() {
            // A second shutdown returns an error, which does not matter.
            let _ = theirs.shutdown(std::net::Shutdown::Write);
        }
        let goes_on = connection.serve(|head| answer(head, &registry));
        let mut chunk = [0; 4096];
        while let Ok(length @ 1..) = theirs.read(&mut chunk) {
            answer_bytes.extend_from_slice(&chunk[..length]);
        }
        if !goes_on {
            return answer_bytes;
        }
    }
}

/// Answers a request; an invalid one gets an error status.
fn answer(head: &[u8], registry: &Registry) -> Answer {
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let mut text = String::new();
            match encode(&mut text, registry) {
                Ok(()) => Answer { status: "200 OK", kind: KIND, text },
                Err(error) => Answer::line("500 Internal Server Error", &error.to_string()),
            }
        }
        (b"GET" | b"HEAD", _) => Answer::line("404 Not Found", "ask for /metrics"),
        _ => Answer::line("405 Method Not Allowed", "GET and HEAD only"),
    }
}
