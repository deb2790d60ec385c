//! A connection of a scraper: minimal HTTP/1, with or without TLS.
//!
//! Descriptors do not block, and nothing is waited for here: what slow ones send comes when it comes, while others are
//! answered.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::ServerConnection;

use super::secured::Secured;

/// What a request takes at most, from its connection on.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most bytes of its head.
const MOST_HEAD: usize = 8 << 10;
/// The first byte of what a TLS client says (RFC 8446, 5.1: a handshake record).
const HANDSHAKE: u8 = 22;

/// What is spoken.
enum Speaks {
    /// Nobody has said anything yet, where TLS is wanted.
    Nothing,
    Plain,
    /// Plain HTTP, where TLS is wanted.
    PlainInstead,
    Tls(Box<ServerConnection>),
}

/// Somebody who asks.
pub(super) struct Connection<'s> {
    stream: TcpStream,
    secured: Option<&'s Secured>,
    speaks: Speaks,
    head: Vec<u8>,
    /// What is to be sent without TLS, and how much of it has gone.
    output: Vec<u8>,
    sent: usize,
    is_answered: bool,
    end: Instant,
}

/// What is answered to a request.
pub(super) struct Answer {
    /// `200 OK`.
    pub status: &'static str,
    /// What the text is.
    pub kind: &'static str,
    /// The text.
    pub text: String,
}

impl Answer {
    /// A line for people.
    pub fn line(status: &'static str, line: &str) -> Answer {
        Answer { status, kind: "text/plain", text: format!("{line}\n") }
    }
}

impl<'s> Connection<'s> {
    /// Of a stream that does not block.
    pub fn new(stream: TcpStream, secured: Option<&'s Secured>) -> Connection<'s> {
        Connection {
            stream,
            secured,
            speaks: if secured.is_some() { Speaks::Nothing } else { Speaks::Plain },
            head: Vec::new(),
            output: Vec::new(),
            sent: 0,
            is_answered: false,
            end: Instant::now() + PATIENCE,
        }
    }

    /// For poll(2): what is waited for.
    pub fn waits_for(&self) -> (BorrowedFd<'_>, PollFlags) {
        let writes = match &self.speaks {
            Speaks::Tls(tls) => tls.wants_write(),
            _ => self.sent < self.output.len(),
        };
        (self.stream.as_fd(), if writes { PollFlags::OUT } else { PollFlags::IN })
    }

    /// Goes on as far as it goes without waiting; `answer` is asked with the head of a request. False: it is over.
    pub fn serve(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> bool {
        self.go_on(answer).unwrap_or(false) && Instant::now() < self.end
    }

    fn go_on(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> io::Result<bool> {
        if let (Speaks::Nothing, Some(secured)) = (&self.speaks, self.secured) {
            let mut first = [0];
            match self.stream.peek(&mut first) {
                Ok(0) => return Ok(false),
                Ok(_) if first[0] == HANDSHAKE => {
                    let mut tls = ServerConnection::new(secured.tls.clone()).map_err(io::Error::other)?;
                    // An answer is put in as a whole.
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

    /// Reads what has come. False: nothing more will.
    fn receive(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        while self.head.len() <= MOST_HEAD {
            let read = match &mut self.speaks {
                Speaks::Tls(tls) => match read_tls(tls, &mut self.stream, &mut chunk) {
                    Err(error) if !again(&error) => {
                        // What is wrong is told by an alert, as far as it is taken.
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

    /// Makes the answer.
    fn reply(&mut self, answer: impl FnOnce(&[u8]) -> Answer) -> io::Result<()> {
        let answer = match (&self.speaks, self.secured) {
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

    /// Sends what is left, as far as it is taken now. False: all of the answer has gone.
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
            // A close with bytes unread would reset the connection, and take the answer with it.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
        Ok(!self.is_answered)
    }
}

/// Reads what has come by TLS; an error that says "again" where that is not enough for a byte of the request.
fn read_tls(tls: &mut ServerConnection, stream: &mut TcpStream, chunk: &mut [u8]) -> io::Result<usize> {
    loop {
        match tls.reader().read(chunk) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
        // In a handshake it is our turn now and then.
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
