//! A scraper's connection: minimal HTTP/1, with or without TLS.
//!
//! Descriptors are non-blocking, and nothing waits here: while a slow client sends, others are served.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::ServerConnection;

use super::secured::Secured;

/// Maximum time of a request, from the start of its connection.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum size of a request head in bytes.
const MOST_HEAD: usize = 8 << 10;
/// First byte that a TLS client sends (RFC 8446, 5.1: a handshake record).
const HANDSHAKE: u8 = 22;

/// Protocol of the connection.
enum Speaks {
    /// TLS is required, and the client has not sent anything yet.
    Nothing,
    Plain,
    /// The client sends plain HTTP although TLS is required.
    PlainInstead,
    Tls(Box<ServerConnection>),
}

/// A client's connection.
pub(super) struct Connection {
    stream: TcpStream,
    secured: Option<Secured>,
    speaks: Speaks,
    head: Vec<u8>,
    /// Bytes to be sent without TLS, and how many of them were sent.
    output: Vec<u8>,
    sent: usize,
    is_answered: bool,
    end: Instant,
}

/// Response to a request.
pub(super) struct Answer {
    /// Status line, for example `200 OK`.
    pub status: &'static str,
    /// Content type.
    pub kind: &'static str,
    /// Body.
    pub text: String,
}

impl Answer {
    /// A response with one line for people.
    pub fn line(status: &'static str, line: &str) -> Answer {
        Answer { status, kind: "text/plain", text: format!("{line}\n") }
    }
}

impl Connection {
    /// A connection over a non-blocking stream.
    pub fn new(stream: TcpStream, secured: Option<Secured>) -> Connection {
        Connection {
            stream,
            speaks: if secured.is_some() { Speaks::Nothing } else { Speaks::Plain },
            secured,
            head: Vec::new(),
            output: Vec::new(),
            sent: 0,
            is_answered: false,
            end: Instant::now() + PATIENCE,
        }
    }

    /// The descriptor and events for poll(2).
    pub fn waits_for(&self) -> (BorrowedFd<'_>, PollFlags) {
        let writes = match &self.speaks {
            Speaks::Tls(tls) => tls.wants_write(),
            _ => self.sent < self.output.len(),
        };
        (self.stream.as_fd(), if writes { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Continues without blocking; `answer` is called with the head of a request. False: the connection has ended.
    pub fn serve(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> bool {
        self.go_on(answer).unwrap_or(false) && Instant::now() < self.end
    }

    fn go_on(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> io::Result<bool> {
        if let (Speaks::Nothing, Some(secured)) = (&self.speaks, &self.secured) {
            let mut first = [0];
            match self.stream.peek(&mut first) {
                Ok(0) => return Ok(false),
                Ok(_) if first[0] == HANDSHAKE => {
                    let mut tls = ServerConnection::new(secured.tls.clone()).map_err(io::Error::other)?;
                    // The buffer must accept a whole answer.
                    tls.set_buffer_limit(None);
                    self.speaks = Speaks::Tls(Box::new(tls));
                }
                Ok(_) => self.speaks = Speaks::PlainInstead,
                Err(error) if again(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        if !self.is_answered {
            let is_open = self.receive()?;
            if self.head.windows(4).any(|part| part == b"\r\n\r\n") {
                self.reply(answer)?;
            } else if !is_open || self.head.len() > MOST_HEAD {
                return Ok(false);
            }
        }
        self.send()
    }

    /// Reads available bytes. False: the client will not send more.
    fn receive(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        while self.head.len() <= MOST_HEAD {
            let read = match &mut self.speaks {
                Speaks::Tls(tls) => match read_tls(tls, &mut self.stream, &mut chunk) {
                    Err(error) if !again(&error) => {
                        // Sends the alert about the error, as far as the socket accepts it.
                        let _ = tls.write_tls(&mut self.stream);
                        return Err(error);
                    }
                    read => read,
                },
                _ => self.stream.read(&mut chunk),
            };
            match read {
                Ok(0) => return Ok(false),
                Ok(read) => self.head.extend_from_slice(&chunk[..read]),
                Err(error) if again(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Creates the response.
    fn reply(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> io::Result<()> {
        let answer = match (&self.speaks, &self.secured) {
            (Speaks::PlainInstead, _) => Answer::line("400 Bad Request", "this is TLS: ask by https"),
            (_, Some(secured)) if !secured.admits(&self.head) => {
                Answer::line("401 Unauthorized", "give the token: Authorization: Bearer TOKEN")
            }
            _ => answer(&self.head),
        };
        let Answer { status, kind, text } = answer;
        let length = text.len();
        let more = if status.starts_with("401") { "WWW-Authenticate: Bearer\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nAllow: GET, HEAD\r\n{more}\
             Connection: close\r\n\r\n"
        );
        if !self.head.starts_with(b"HEAD ") {
            bytes += &text;
        }
        self.is_answered = true;
        match &mut self.speaks {
            Speaks::Tls(tls) => {
                tls.writer().write_all(bytes.as_bytes())?;
                tls.send_close_notify();
            }
            _ => self.output = bytes.into_bytes(),
        }
        Ok(())
    }

    /// Sends the rest, as far as the socket accepts it. False: the whole response is sent.
    fn send(&mut self) -> io::Result<bool> {
        loop {
            let written = match &mut self.speaks {
                Speaks::Tls(tls) if tls.wants_write() => tls.write_tls(&mut self.stream),
                Speaks::Tls(_) => break,
                _ if self.sent < self.output.len() => {
                    let written = self.stream.write(&self.output[self.sent..]);
                    self.sent += written.as_ref().copied().unwrap_or(0);
                    written
                }
                _ => break,
            };
            match written {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if again(&error) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        if self.is_answered {
            // Closing with unread bytes would reset the connection, and lose the response.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(!self.is_answered)
    }
}

/// Reads decrypted bytes; `WouldBlock` if there is no byte of the request yet.
fn read_tls(tls: &mut ServerConnection, stream: &mut TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        // During a handshake our side must write from time to time.
        if tls.wants_write() || !tls.wants_read() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if tls.read_tls(stream)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(io::Error::other)?;
    }
}

fn again(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
