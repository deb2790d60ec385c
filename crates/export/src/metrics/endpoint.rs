//! The endpoint: HTTP/1, as much of it as a scrape takes.
//!
//! By poll(2) and descriptors that do not block alone: a confined process may set no timeouts on sockets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};

use crate::{Error, Result};

/// What a request takes at most, of time and of bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// See [`PATIENCE`].
const MOST_HEAD: usize = 8 << 10;
/// How often the thread looks whether it is to end.
const LOOKS: Duration = Duration::from_millis(100);
/// What the text is.
const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A place where numbers are asked for, before anybody answers.
#[derive(Debug)]
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
}

/// The thread that answers. It ends when this goes.
#[derive(Debug)]
pub struct Serving {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Takes the place, before rights are given up.
    ///
    /// # Errors
    /// [`Error::Target`] where it is not this host's alone, or is taken.
    pub fn bind(address: SocketAddr) -> Result<Endpoint> {
        let wrong = |reason: String| Error::Target { target: address.to_string(), reason };
        if !address.ip().is_loopback() {
            let reason = "this would tell everybody: give an address of this host alone, as 127.0.0.1:9464, and let a \
                          proxy ask there";
            return Err(wrong(reason.into()));
        }
        let listener = TcpListener::bind(address).map_err(|error| wrong(error.to_string()))?;
        let set = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
        let address = set.map_err(|error| wrong(error.to_string()))?;
        Ok(Endpoint { listener, address })
    }

    /// Where it is: port 0 has become one that is free.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on, by a thread of its own.
    ///
    /// # Errors
    /// Where there can be no thread more.
    pub fn serve(self, registry: Registry) -> io::Result<Serving> {
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::Builder::new().name("wl-metrics".into());
        // Relaxed: it says that the thread is to end, and nothing of what was counted.
        let thread = thread.spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if wait(&self.listener, PollFlags::IN, LOOKS) {
                    answer(&self.listener, &registry);
                }
            }
        })?;
        Ok(Serving { end, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // A panic there has been told on standard error.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits until something can be done, for so long at most; whether it can.
fn wait(socket: &impl AsFd, what: PollFlags, most: Duration) -> bool {
    let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    poll(&mut [PollFd::new(socket, what)], Some(&time)).is_ok_and(|ready| ready > 0)
}

/// Answers one request. Whoever asks wrongly is told so, and whoever has gone is nobody's loss.
fn answer(listener: &TcpListener, registry: &Registry) {
    let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) else { return };
    let mut stream = TcpStream::from(socket);
    let end = Instant::now() + PATIENCE;
    let Some(head) = head(&mut stream, end) else { return };
    let mut words = head.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    let (status, kind, text) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let mut text = String::new();
            match encode(&mut text, registry) {
                Ok(()) => ("200 OK", KIND, text),
                Err(error) => ("500 Internal Server Error", "text/plain", format!("{error}\n")),
            }
        }
        (b"GET" | b"HEAD", _) => ("404 Not Found", "text/plain", "ask for /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "text/plain", "GET and HEAD only\n".to_owned()),
    };
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\nConnection: close\r\n\r\n",
        text.len()
    );
    if method != b"HEAD" {
        answer += &text;
    }
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        match stream.write(rest) {
            Ok(0) => return,
            Ok(written) => rest = &rest[written..],
            Err(error) if again(&error) => {
                if !wait(&stream, PollFlags::OUT, end.saturating_duration_since(Instant::now())) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
    // A close with bytes unread would reset the connection, and take the answer with it.
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The head of a request; `None` where none comes in time, or too much.
fn head(stream: &mut TcpStream, end: Instant) -> Option<Vec<u8>> {
    let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return None,
            Ok(read) => head.extend_from_slice(&buffer[..read]),
            Err(error) if again(&error) => {
                if !wait(stream, PollFlags::IN, end.saturating_duration_since(Instant::now())) {
                    return None;
                }
            }
            Err(_) => return None,
        }
        if head.windows(4).any(|part| part == b"\r\n\r\n") {
            return Some(head);
        }
        if head.len() > MOST_HEAD {
            return None;
        }
    }
}
