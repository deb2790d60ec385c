//! The protocol between a process and its cleanup process: datagrams over a pair of sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;

use super::action::LogLine;

const REGISTER: u8 = b'r';
const SEAL: u8 = b's';
const RUN: u8 = b'u';
const PART: u8 = b'p';

/// Maximum number of descriptors per action.
const MOST: usize = 4;
/// Maximum message size in bytes; an action has a few hundred, and an answer a few lines.
const LONGEST: usize = 64 * 1024;

/// A request to the cleanup process.
pub(super) enum Message {
    /// Registers an action of this kind (its index), as JSON.
    Register {
        kind: usize,
        action: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    },
    Seal,
    Run(usize),
    /// The owner has ended in an orderly way.
    Part,
}

/// A pair of connected sockets: the owner's end and the cleanup process's end.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sets the timeout of answers on this socket.
pub(super) fn limit(control: &OwnedFd, limit: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(control, sockopt::Timeout::Recv, Some(limit))?)
}

/// Owner: registers an action with its descriptors.
pub(super) fn register(
    control: &OwnedFd,
    kind: u8,
    action: &impl Serialize,
    with: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut message = vec![REGISTER, kind];
    serde_json::to_writer(&mut message, action)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    // The sender's ancillary buffer may have more space than the receiver's.
    if with.len() > MOST || !along.push(SendAncillaryMessage::ScmRights(with)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(control, &[IoSlice::new(&message)], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Owner: rejects all further actions.
pub(super) fn seal(control: &OwnedFd) -> io::Result<()> {
    say(control, &[SEAL])
}

/// Owner: runs this action now.
pub(super) fn run(control: &OwnedFd, number: u32) -> io::Result<()> {
    let [a, b, c, d] = number.to_ne_bytes();
    say(control, &[RUN, a, b, c, d])
}

/// Owner: sends the last message, and waits until the cleanup process has ended.
pub(super) fn part(control: &OwnedFd) {
    if say(control, &[PART]).is_ok() && rustix::net::shutdown(control, Shutdown::Write).is_ok() {
        // Nothing to do if it does not end in time: it continues by itself.
        let _ = hear(control);
    }
}

/// Owner: reads the answer of the cleanup process. An error if it does not arrive, in time or at all.
pub(super) fn answer(control: &OwnedFd) -> io::Result<Vec<LogLine>> {
    let answer = hear(control)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Cleanup process: sends an answer.
pub(super) fn reply(control: &OwnedFd, said: &[LogLine]) -> io::Result<()> {
    say(control, &serde_json::to_vec(said)?)
}

/// Cleanup process: the next message; `None` at the end of the stream or for a message that violates the protocol.
pub(super) fn next(control: &OwnedFd) -> Option<Message> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(control, &mut into, &mut along, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    };
    let mut descriptors = Vec::new();
    for message in along.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match (bytes.first()?, bytes.get(1..length)?) {
        (&REGISTER, [kind, action @ ..]) => {
            Some(Message::Register { kind: usize::from(*kind), action: action.to_vec(), descriptors })
        }
        (&SEAL, []) => Some(Message::Seal),
        (&RUN, number) => Some(Message::Run(u32::from_ne_bytes(number.try_into().ok()?).try_into().ok()?)),
        (&PART, []) => Some(Message::Part),
        _ => None,
    }
}

fn say(control: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let sent = rustix::net::send(control.as_fd(), message, SendFlags::NOSIGNAL)?;
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn hear(control: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; LONGEST];
    loop {
        match rustix::net::recv(control.as_fd(), &mut answer[..], RecvFlags::empty()) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((length, _)) => {
                answer.truncate(length);
                return Ok(answer);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const ACTION: (&str, u32) = ("a \" name", 7);

    /// The message that the cleanup process reads from these bytes.
    fn heard(bytes: &[u8]) -> Option<Message> {
        let (ours, control) = pair().unwrap();
        say(&ours, bytes).unwrap();
        next(&control)
    }

    #[test]
    fn what_is_said_is_heard_in_order() {
        let (ours, control) = pair().unwrap();
        let files = [File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap()];
        register(&ours, 3, &ACTION, &files.each_ref().map(|file| file.as_fd())).unwrap();
        register(&ours, 3, &ACTION, &[]).unwrap();
        seal(&ours).unwrap();
        run(&ours, 0x0102_0304).unwrap();
        for expected in [2, 0] {
            let Some(Message::Register { kind, action, descriptors }) = next(&control) else {
                panic!("no action")
            };
            assert_eq!((kind, action), (3, serde_json::to_vec(&ACTION).unwrap()));
            assert_eq!(descriptors.len(), expected);
            for (descriptor, file) in descriptors.into_iter().zip(&files) {
                let (theirs, own) = (File::from(descriptor).metadata().unwrap(), file.metadata().unwrap());
                assert_eq!(theirs.rdev(), own.rdev());
            }
        }
        assert!(matches!(next(&control), Some(Message::Seal)));
        assert!(matches!(next(&control), Some(Message::Run(0x0102_0304))));
        // The last message, and the end of the stream.
        let parting = std::thread::spawn(move || part(&ours));
        assert!(matches!(next(&control), Some(Message::Part)));
        assert!(next(&control).is_none());
        assert!(!parting.is_finished(), "it waits for the end of the cleanup process");
        drop(control);
        parting.join().unwrap();
    }

    #[test]
    fn an_answer_comes_back_or_is_an_error() {
        let (ours, control) = pair().unwrap();
        let said = [LogLine::Warning("a \n line".into()), LogLine::Info(String::new())];
        reply(&control, &said).unwrap();
        reply(&control, &[]).unwrap();
        assert_eq!(answer(&ours).unwrap(), said);
        assert_eq!(answer(&ours).unwrap(), []);
        // An answer that is late, a malformed one, and a missing one.
        limit(&ours, Duration::from_millis(10)).unwrap();
        assert_eq!(answer(&ours).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        say(&control, b"[nonsense").unwrap();
        assert!(answer(&ours).is_err());
        drop(control);
        assert_eq!(answer(&ours).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Writing to a cleanup process that has ended is an error, and does not raise a signal that ends the capture.
        assert!(seal(&ours).is_err());
    }

    #[test]
    fn what_is_never_said_is_nothing() {
        for bytes in [&b"x"[..], b"r", b"s ", b"u", b"u123", b"u12345", b"pp", b"\0", &[b's'; 10_000]] {
            assert!(heard(bytes).is_none(), "{bytes:?}");
        }
        assert!(matches!(heard(b"s"), Some(Message::Seal)));
    }

    #[test]
    fn more_descriptors_than_any_action_has_are_refused() {
        let (ours, _control) = pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let refused = register(&ours, 3, &ACTION, &[file.as_fd(); MOST + 1]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        register(&ours, 3, &ACTION, &[file.as_fd(); MOST]).unwrap();
    }
}
