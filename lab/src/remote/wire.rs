//! Frames over TLS: four bytes of length, big endian, followed by this many bytes of JSON.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

/// Maximum frame length. A welcome contains adapters.
pub const LONGEST: usize = 4 << 20;
const HEAD: usize = 4;

/// A TLS stream.
pub trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// One end of a connection.
pub struct Wire {
    stream: Box<dyn Stream>,
    /// The same connection, to set time-outs.
    socket: TcpStream,
    /// Received bytes of an incomplete frame.
    read: Vec<u8>,
}

impl Wire {
    /// A connection over this stream, whose handshake is complete.
    pub fn new(stream: impl Stream + 'static, socket: TcpStream) -> Wire {
        Wire { stream: Box::new(stream), socket, read: Vec::new() }
    }

    /// Sends a message.
    pub fn say<T: Serialize>(&mut self, message: &T) -> Result<()> {
        self.send(&serde_json::to_vec(message)?)
    }

    /// Sends a frame.
    pub fn send(&mut self, text: &[u8]) -> Result<()> {
        ensure!(text.len() <= LONGEST, "a message of {} bytes is too long", text.len());
        let length = u32::try_from(text.len())?.to_be_bytes();
        let mut write = || {
            self.stream.write_all(&length)?;
            self.stream.write_all(text)?;
            self.stream.flush()
        };
        write().context("the connection broke")
    }

    /// Ends the stream in this direction.
    pub fn close(&mut self) {
        // The other side may be gone already.
        let _ = self.stream.flush().and_then(|()| self.socket.shutdown(std::net::Shutdown::Write));
    }

    /// Next frame, if it is complete within this time, which must not be zero.
    pub fn poll(&mut self, most: Duration) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + most;
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            self.socket.set_read_timeout(Some(most)).context("a connection's time-out")?;
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => bail!("it closed the connection"),
                Ok(bytes) => {
                    self.read.extend_from_slice(&chunk[..bytes]);
                    // Ends the wait if the other side sends only parts of a frame.
                    if Instant::now() >= end {
                        return self.whole();
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(None),
                    ErrorKind::Interrupted => {}
                    ErrorKind::UnexpectedEof => bail!("it closed the connection"),
                    _ => return Err(error).context("the connection broke"),
                },
            }
        }
    }

    /// Next frame.
    pub fn receive(&mut self, most: Duration) -> Result<Vec<u8>> {
        let end = Instant::now() + most;
        while Instant::now() < end {
            if let Some(frame) = self.poll(super::SOON)? {
                return Ok(frame);
            }
        }
        bail!("it says nothing for {most:?}")
    }

    fn whole(&mut self) -> Result<Option<Vec<u8>>> {
        let Some((head, rest)) = self.read.split_first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        ensure!(length <= LONGEST, "it sends a frame of {length} bytes; {LONGEST} are the most");
        if rest.len() < length {
            return Ok(None);
        }
        let frame = rest[..length].to_vec();
        self.read.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (Wire::new(near.try_clone().unwrap(), near), far)
    }

    #[test]
    fn frames_come_whole_however_they_arrive() {
        let (mut wire, mut far) = pair();
        let soon = Duration::from_millis(20);
        assert_eq!(wire.poll(soon).unwrap(), None);
        far.write_all(&[0, 0, 0]).unwrap();
        assert_eq!(wire.poll(soon).unwrap(), None);
        far.write_all(&[3, b'a', b'b']).unwrap();
        assert_eq!(wire.poll(soon).unwrap(), None);
        far.write_all(&[b'c', 0, 0, 0, 0, 0, 0, 0, 1, b'd']).unwrap();
        for expected in ["abc", "", "d"] {
            assert_eq!(wire.receive(Duration::from_secs(20)).unwrap(), expected.as_bytes());
        }
        wire.say(&"x").unwrap();
        let mut said = [0; 7];
        far.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"\0\0\0\x03\"x\"");
        drop(far);
        assert!(wire.receive(Duration::from_secs(20)).unwrap_err().to_string().contains("closed"));
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let (mut wire, mut far) = pair();
        far.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let error = wire.receive(Duration::from_secs(20)).unwrap_err().to_string();
        assert!(error.contains("1195725856 bytes"), "{error}");
        let (mut wire, _far) = pair();
        assert!(wire.receive(Duration::from_millis(1)).unwrap_err().to_string().contains("nothing"));
    }
}
