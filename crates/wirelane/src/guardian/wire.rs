//! What a capturing process and its guardian say to each other: datagrams over a pair of sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, sockopt,
};

use super::duty::{Duty, Said};

const CHARGE: u8 = b'c';
const SEAL: u8 = b's';
const FULFIL: u8 = b'f';
const PART: u8 = b'p';

/// Most descriptors that go with one duty.
const MOST: usize = 4;
/// Most bytes of a message; a duty has some hundred, and an answer some lines.
const LONGEST: usize = 64 * 1024;

/// What the guardian is told.
pub(super) enum Message {
    Charge(Duty, Vec<OwnedFd>),
    Seal,
    Fulfil(usize),
    /// The capture has ended well.
    Part,
}

/// A pair of connected sockets: ours, and the guardian's.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// How long one waits for an answer there.
pub(super) fn limit(control: &OwnedFd, limit: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(control, sockopt::Timeout::Recv, Some(limit))?)
}

/// The capturing process: gives a duty, with the descriptors that it takes.
pub(super) fn charge(control: &OwnedFd, duty: &Duty, with: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut message = vec![CHARGE];
    serde_json::to_writer(&mut message, duty)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !along.push(SendAncillaryMessage::ScmRights(with)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::net::sendmsg(control, &[IoSlice::new(&message)], &mut along, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The capturing process: there are no more duties.
pub(super) fn seal(control: &OwnedFd) -> io::Result<()> {
    say(control, &[SEAL])
}

/// The capturing process: this duty is to be done now.
pub(super) fn fulfil(control: &OwnedFd, number: u32) -> io::Result<()> {
    let [a, b, c, d] = number.to_ne_bytes();
    say(control, &[FULFIL, a, b, c, d])
}

/// The capturing process: this was the last word. Waits until the guardian has ended.
pub(super) fn part(control: &OwnedFd) {
    if say(control, &[PART]).is_ok() && rustix::net::shutdown(control, Shutdown::Write).is_ok() {
        // Nothing to be done where it does not end in time: it goes on by itself.
        let _ = hear(control);
    }
}

/// The capturing process: what the guardian says. An error where that does not come, in time or at all.
pub(super) fn answer(control: &OwnedFd) -> io::Result<Vec<Said>> {
    let answer = hear(control)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// The guardian: what has been said.
pub(super) fn reply(control: &OwnedFd, said: &[Said]) -> io::Result<()> {
    say(control, &serde_json::to_vec(said)?)
}

/// The guardian: the next message; `None` at the end, or where what is said is nothing that is ever said.
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
        (&CHARGE, duty) => Some(Message::Charge(serde_json::from_slice(duty).ok()?, descriptors)),
        (&SEAL, []) => Some(Message::Seal),
        (&FULFIL, number) => {
            Some(Message::Fulfil(u32::from_ne_bytes(number.try_into().ok()?).try_into().ok()?))
        }
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
