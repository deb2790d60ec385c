//! Roles on other machines: JSON frames over TLS between the manager here and an agent there.
//!
//! ```text
//! manager                                            agent
//!   Agents -> Link -> thread  <== wire, tls ==>  front (no rights)  <==>  serve (root): a thread for each peer -> worker: roles/
//! ```
//! An agent starts only `wirelane send` and sensors from its own adapters, and managers send only names and numbers: a
//! manager's certificate does not give a remote shell. An agent serves one manager and one role at a time. Both sides
//! send a message every second; after ten seconds of silence the other side counts as gone. An agent whose manager is
//! gone kills all processes that it started for it, and all processes of an agent end with it (`holder`).

mod agents;
mod arrange;
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

/// Frames in `said`, up to the first invalid one, for fuzzing.
///
/// # Panics
/// A socket cannot be created.
#[doc(hidden)]
pub fn read_frames(said: &[u8]) -> Vec<Vec<u8>> {
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    // The calls on the stream work on any socket.
    let socket = TcpStream::from(OwnedFd::from(ours));
    let mut wire = wire::Wire::new(socket.try_clone().expect("a socket"), socket);
    theirs.set_nonblocking(true).expect("a socket");
    // Bytes beyond the socket buffer are not sent.
    let _ = theirs.write(said).expect("a socket");
    drop(theirs);
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = wire.poll(AT_ONCE) {
        frames.push(frame);
    }
    frames
}

/// The frame parsed as each kind of message, or the error, for fuzzing.
///
/// # Panics
/// A message changes when it is written and parsed again.
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

/// Maximum duration of a handshake, and of connecting.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time without messages after which the other side counts as gone.
const SILENCE: Duration = Duration::from_secs(10);
/// Interval between messages of each side.
const PING: Duration = Duration::from_secs(1);
/// Minimum wait.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Interval in which an end that waits for one side checks the other.
const SOON: Duration = Duration::from_millis(100);
