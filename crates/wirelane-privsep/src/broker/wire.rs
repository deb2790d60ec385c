//! The protocol between a process and its broker: datagrams over pairs of sockets. The control socket carries
//! registrations and requests to undo; each task that serves other requests has a channel of its own.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;

use super::task::LogLine;

const REGISTER: u8 = b'r';
const SERVE: u8 = b'c';
const SEAL: u8 = b's';
const UNDO: u8 = b'u';
const PART: u8 = b'p';

/// Maximum number of descriptors per message.
const MOST: usize = 4;
/// Maximum message size in bytes; most have a few hundred, and an RSS table some thousand.
const LONGEST: usize = 64 * 1024;

/// A message on the control socket.
pub(super) enum Message {
    /// Registers a task of this kind (its index), as JSON, with a channel if it serves requests.
    Register {
        kind: usize,
        task: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        channel: Option<OwnedFd>,
    },
    Seal,
    Undo(usize),
    /// The owner has ended in an orderly way.
    Part,
}

/// A pair of connected sockets: the owner's end and the broker's end.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Sets the timeout of answers on this socket. To be called before the sandbox, which does not allow it.
pub(super) fn limit(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, Some(limit))?)
}

/// Owner: registers a task with its descriptors, of which the last one is its channel, if it has one.
pub(super) fn register(
    control: &OwnedFd,
    kind: u8,
    task: &impl Serialize,
    with: &[BorrowedFd<'_>],
    channel: Option<&OwnedFd>,
) -> io::Result<()> {
    let mut message = vec![if channel.is_some() { SERVE } else { REGISTER }, kind];
    serde_json::to_writer(&mut message, task)?;
    let all: Vec<BorrowedFd<'_>> = with.iter().copied().chain(channel.map(AsFd::as_fd)).collect();
    send(control, &message, &all)
}

/// Owner: rejects all further tasks.
pub(super) fn seal(control: &OwnedFd) -> io::Result<()> {
    send(control, &[SEAL], &[])
}

/// Owner: undoes the change of this task now.
pub(super) fn undo(control: &OwnedFd, number: u32) -> io::Result<()> {
    let [a, b, c, d] = number.to_ne_bytes();
    send(control, &[UNDO, a, b, c, d], &[])
}

/// Owner: sends the last message, and waits until the broker has ended.
pub(super) fn part(control: &OwnedFd) {
    if send(control, &[PART], &[]).is_ok() && rustix::net::shutdown(control, Shutdown::Write).is_ok() {
        // Nothing to do if it does not end in time: it continues by itself.
        let _ = receive(control);
    }
}

/// Owner: reads the answer of the broker. An error if it does not arrive, in time or at all.
pub(super) fn answer(control: &OwnedFd) -> io::Result<Vec<LogLine>> {
    let (answer, _) = receive(control)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&answer)?)
}

/// Broker: sends an answer.
pub(super) fn reply(control: &OwnedFd, said: &[LogLine]) -> io::Result<()> {
    send(control, &serde_json::to_vec(said)?, &[])
}

/// Broker: the next message; `None` at the end of the stream or for a message that violates the protocol.
pub(super) fn next(control: &OwnedFd) -> Option<Message> {
    let (bytes, mut descriptors) = receive(control).ok()?;
    match bytes.split_first()? {
        (&form @ (REGISTER | SERVE), [kind, task @ ..]) => {
            let channel = if form == SERVE { Some(descriptors.pop()?) } else { None };
            Some(Message::Register { kind: usize::from(*kind), task: task.to_vec(), descriptors, channel })
        }
        (&SEAL, []) => Some(Message::Seal),
        (&UNDO, number) => Some(Message::Undo(u32::from_ne_bytes(number.try_into().ok()?).try_into().ok()?)),
        (&PART, []) => Some(Message::Part),
        _ => None,
    }
}

/// Sends a datagram. Never waits: neither end has more than one message on its way, and a peer that does not read must
/// not block the broker.
pub(super) fn send(socket: &OwnedFd, message: &[u8], with: &[BorrowedFd<'_>]) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = if with.is_empty() {
        // The sandbox does not allow sendmsg(2).
        rustix::net::send(socket, message, flags)?
    } else {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        // The sender's ancillary buffer may have more space than the receiver's.
        if with.len() > MOST || !along.push(SendAncillaryMessage::ScmRights(with)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut along, flags)?
    };
    if sent == message.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a datagram with its descriptors, which is empty at the end of the stream.
pub(super) fn receive(socket: &OwnedFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    receive_with(socket, RecvFlags::empty())
}

/// [`receive`] without waiting: `WouldBlock` if there is no message.
pub(super) fn receive_now(socket: &OwnedFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    receive_with(socket, RecvFlags::DONTWAIT)
}

fn receive_with(socket: &OwnedFd, flags: RecvFlags) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut along = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut into, &mut along, flags | RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    let mut descriptors = Vec::new();
    for message in along.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    bytes.truncate(length);
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const TASK: (&str, u32) = ("a \" name", 7);

    /// The message that the broker reads from these bytes.
    fn heard(bytes: &[u8]) -> Option<Message> {
        let (ours, control) = pair().unwrap();
        send(&ours, bytes, &[]).unwrap();
        next(&control)
    }

    #[test]
    fn what_is_said_is_heard_in_order() {
        let (ours, control) = pair().unwrap();
        let files = [File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap()];
        register(&ours, 3, &TASK, &files.each_ref().map(|file| file.as_fd()), None).unwrap();
        register(&ours, 3, &TASK, &[], None).unwrap();
        seal(&ours).unwrap();
        undo(&ours, 0x0102_0304).unwrap();
        for expected in [2, 0] {
            let Some(Message::Register { kind, task, descriptors, channel: None }) = next(&control) else {
                panic!("no task")
            };
            assert_eq!((kind, task), (3, serde_json::to_vec(&TASK).unwrap()));
            assert_eq!(descriptors.len(), expected);
            for (descriptor, file) in descriptors.into_iter().zip(&files) {
                let (theirs, own) = (File::from(descriptor).metadata().unwrap(), file.metadata().unwrap());
                assert_eq!(theirs.rdev(), own.rdev());
            }
        }
        assert!(matches!(next(&control), Some(Message::Seal)));
        assert!(matches!(next(&control), Some(Message::Undo(0x0102_0304))));
        // The last message, and the end of the stream.
        let parting = std::thread::spawn(move || part(&ours));
        assert!(matches!(next(&control), Some(Message::Part)));
        assert!(next(&control).is_none());
        assert!(!parting.is_finished(), "it waits for the end of the broker");
        drop(control);
        parting.join().unwrap();
    }

    #[test]
    fn a_channel_comes_after_the_descriptors() {
        let (ours, control) = pair().unwrap();
        let (channel, its) = pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        register(&ours, 1, &TASK, &[file.as_fd()], Some(&its)).unwrap();
        let Some(Message::Register { descriptors, channel: Some(theirs), .. }) = next(&control) else {
            panic!("no task with a channel")
        };
        assert_eq!(descriptors.len(), 1);
        send(&channel, b"question", &[]).unwrap();
        assert_eq!(receive(&theirs).unwrap().0, b"question");
        assert_eq!(receive_now(&theirs).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((channel, its));
        assert_eq!(receive(&theirs).unwrap().0, b"");
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
        send(&control, b"[nonsense", &[]).unwrap();
        assert!(answer(&ours).is_err());
        drop(control);
        assert_eq!(answer(&ours).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Writing to a broker that has ended is an error, and does not raise a signal that ends the capture.
        assert!(seal(&ours).is_err());
    }

    #[test]
    fn what_is_never_said_is_nothing() {
        for bytes in
            [&b"x"[..], b"r", b"c", b"c\0{}", b"s ", b"u", b"u123", b"u12345", b"pp", b"\0", &[b's'; 10_000]]
        {
            assert!(heard(bytes).is_none(), "{bytes:?}");
        }
        assert!(matches!(heard(b"s"), Some(Message::Seal)));
    }

    #[test]
    fn more_descriptors_than_any_task_has_are_refused() {
        let (ours, _control) = pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        let refused = register(&ours, 3, &TASK, &[file.as_fd(); MOST + 1], None).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        register(&ours, 3, &TASK, &[file.as_fd(); MOST], None).unwrap();
    }
}
