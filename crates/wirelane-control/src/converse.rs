//! A conversation over a control socket without a capture, for fuzzing (`fuzz/targets/control.rs`).

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::connections::Connection;
use super::protocol::{Answer, Ask, LONGEST, Request, VERSION, line, question};

/// The answers to the bytes `said`, for fuzzing: the connection is a socket pair, and each request is answered with its
/// own text after a serialization round trip.
///
/// # Panics
/// If a request does not survive the round trip, or no socket can be created.
#[doc(hidden)]
pub fn converse(said: &[u8]) -> Vec<u8> {
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a socket");
    theirs.set_nonblocking(true).expect("a socket");
    let mut connection = Connection::new(ours, LONGEST);
    let answer = |ask: Ask| {
        let shown = format!("{ask:?}");
        let again = question(&line(&Request { version: VERSION, ask })).expect("it was one");
        assert_eq!(format!("{again:?}"), shown);
        Answer::Refused(shown)
    };
    let (mut sent, mut answers) = (0, Vec::new());
    loop {
        if sent < said.len() {
            sent += theirs.write(&said[sent..]).unwrap_or(0);
            if sent == said.len() {
                theirs.shutdown(Shutdown::Write).expect("a socket");
            }
        } else if said.is_empty() {
            theirs.shutdown(Shutdown::Write).expect("a socket");
        }
        let goes_on = connection.serve(answer, false);
        let mut chunk = [0; 1 << 14];
        while let Ok(length @ 1..) = theirs.read(&mut chunk) {
            answers.extend_from_slice(&chunk[..length]);
        }
        if !goes_on {
            return answers;
        }
    }
}
