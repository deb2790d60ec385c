//! The endpoint: a thread that answers whoever asks, several at a time.
//!
//! By poll(2) and descriptors that do not block alone: a confined process may set no timeouts on sockets.

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
use super::secured::Secured;
use crate::{Error, Result};

/// Who are answered at a time: one more drops the connection that has been there longest.
const MOST: usize = 64;
/// How often the thread looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(100);
/// What the text is.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A place where numbers are asked for, before anybody answers.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    secured: Option<Secured>,
}

/// The thread that answers. It ends when this goes.
#[derive(Debug)]
pub struct Serving {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Takes the place, before rights are given up. With `secured` whoever asks has to do so by TLS, and to give the token.
    ///
    /// # Errors
    /// [`Error::Target`] where it is not this host's alone and not secured, or is taken.
    pub fn bind(address: SocketAddr, secured: Option<Secured>) -> Result<Endpoint> {
        let wrong = |reason: String| Error::Target { target: address.to_string(), reason };
        if !address.ip().is_loopback() && secured.is_none() {
            let reason = "other hosts could read it: pass an address of this host, e.g. 127.0.0.1:9464, or \
                          --metrics-cert, --metrics-key and --metrics-token-file";
            return Err(wrong(reason.into()));
        }
        let listener = TcpListener::bind(address).map_err(|error| wrong(error.to_string()))?;
        let set = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let address = set.map_err(|error| wrong(error.to_string()))?;
        Ok(Endpoint { listener, address, secured })
    }

    /// Where it is: port 0 has become one that is free.
    pub fn url(&self) -> String {
        let scheme = if self.secured.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/metrics", self.address)
    }

    /// Answers from now on, by a thread of its own.
    ///
    /// # Errors
    /// Where there can be no thread more.
    pub fn serve(self, registry: Registry) -> io::Result<Serving> {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("wl-metrics".into());
        let thread = thread.spawn(move || self.run(&registry, &ended))?;
        Ok(Serving { end, thread: Some(thread) })
    }

    fn run(&self, registry: &Registry, ended: &AtomicBool) {
        let mut connections: Vec<Connection<'_>> = Vec::new();
        // Relaxed: it says that the thread is to end, and nothing of what was counted.
        while !ended.load(Ordering::Relaxed) {
            let mut polls: Vec<PollFd<'_>> = connections
                .iter()
                .map(|connection| {
                    let (descriptor, wanted) = connection.waits_for();
                    PollFd::from_borrowed_fd(descriptor, wanted)
                })
                .collect();
            polls.push(PollFd::new(&self.listener, PollFlags::IN));
            let time = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOKS.subsec_nanos()) };
            // Where it cannot be waited the next look is later all the same.
            if poll(&mut polls, Some(&time)).is_err() {
                std::thread::sleep(LOOKS);
            }
            connections.retain_mut(|connection| connection.serve(|head| answer(head, registry)));
            // So few at once that each is read from before others can drop it: a request is there already as a rule.
            for _ in 0..MOST / 4 {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let Ok(socket) = accept_with(&self.listener, flags) else { break };
                if connections.len() >= MOST {
                    connections.remove(0);
                }
                connections.push(Connection::new(TcpStream::from(socket), self.secured.as_ref()));
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // A panic there has been told on standard error.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What is answered to `said` where there are no numbers, for fuzzing.
///
/// # Panics
/// Where there is no socket.
#[doc(hidden)]
pub fn converse(said: &[u8]) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    // What is called on the stream works on any socket.
    let mut connection = Connection::new(TcpStream::from(OwnedFd::from(ours)), None);
    let registry = Registry::default();
    let (mut sent, mut answer_bytes) = (0, Vec::new());
    loop {
        if sent < said.len() {
            sent += theirs.write(&said[sent..]).unwrap_or(0);
        }
        if sent == said.len() {
            // The second time it is an error, which says the same.
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

/// Answers a request. Whoever asks wrongly is told so.
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
