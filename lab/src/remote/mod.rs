//! The roles on other machines: the manager here, an agent there, frames of JSON over TLS between them.
//!
//! ```text
//! manager                                            agent
//!   Agents -> Link -> thread  <== wire, tls ==>  front (no rights)  <==>  serve (root): a thread for each peer -> worker: roles/
//! ```
//! An agent starts `wirelane send` and sensors out of adapters that it has itself, and what a manager says are names and numbers:
//! its certificate is no remote shell. It works for one manager at a time and for one role. Both sides say something every second;
//! who hears nothing for ten takes the other for gone. An agent whose manager is gone kills what it has started for it, and what
//! an agent has started ends with it (`holder`).

mod agents;
mod front;
mod link;
mod message;
mod serve;
mod tls;
mod wire;
mod work;

use std::time::Duration;

pub use agents::Agents;
pub use front::run as run_front;
pub use message::{PROTOCOL, VERSION};
pub use serve::{Agent, Options};
pub use tls::{Files, Manager};

#[cfg(test)]
mod tests;

/// The frames in `said`, up to the first that is none, for fuzzing.
///
/// # Panics
/// Where there is no socket.
#[doc(hidden)]
pub fn read_frames(said: &[u8]) -> Vec<Vec<u8>> {
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    // What is called on the stream works on any socket.
    let socket = TcpStream::from(OwnedFd::from(ours));
    let mut wire = wire::Wire::new(socket.try_clone().expect("a socket"), socket);
    theirs.set_nonblocking(true).expect("a socket");
    // More than a socket's buffer holds is not sent.
    let _ = theirs.write(said).expect("a socket");
    drop(theirs);
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = wire.poll(AT_ONCE) {
        frames.push(frame);
    }
    frames
}

/// What a frame says as each kind of message, or why it is none, for fuzzing.
///
/// # Panics
/// Where a message is not read again as it was written.
#[doc(hidden)]
pub fn read_messages(frame: &[u8]) -> [Result<String, String>; 4] {
    fn again<T: serde::Serialize + for<'de> serde::Deserialize<'de> + std::fmt::Debug>(
        frame: &[u8],
    ) -> Result<String, String> {
        let said: T = message::read(frame).map_err(|error| format!("{error:#}"))?;
        let written = serde_json::to_vec(&said).expect("it was JSON");
        let read: T = message::read(&written).expect("what was read is read again");
        let shown = format!("{said:?}");
        assert_eq!(format!("{read:?}"), shown);
        Ok(shown)
    }
    let told = |error: anyhow::Error| format!("{error:#}");
    [
        again::<message::ToAgent>(frame),
        again::<message::FromAgent>(frame),
        message::read_hello(frame).map(|hello| format!("{hello:?}")).map_err(told),
        message::read_welcome(frame).map(|welcome| format!("{welcome:?}")).map_err(told),
    ]
}

/// How long a handshake may take, and connecting.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Who says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(10);
/// How often each side says something.
const PING: Duration = Duration::from_secs(1);
/// No time to speak of.
const AT_ONCE: Duration = Duration::from_millis(1);
/// How soon an end that waits for one thing sees to the other.
const SOON: Duration = Duration::from_millis(100);
