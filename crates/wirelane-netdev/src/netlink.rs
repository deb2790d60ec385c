//! A synchronous netlink client: one request, all its replies (netlink(7), RFC 3549).
//!
//! The replies' attributes are parsed by hand rather than through a full model of rtnetlink: we need a dozen of them,
//! and an attribute that a newer kernel writes differently must not make the whole device unreadable.

use std::io;

use netlink_sys::{Socket, SocketAddr};

/// Bytes of `struct nlmsghdr`.
const HEADER: usize = 16;

/// A netlink socket with its sequence number. It stays in the network namespace that it was opened in.
pub struct Client {
    socket: Socket,
    sequence: u32,
    answer: Vec<u8>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Client {
    /// A socket of this protocol (`NETLINK_ROUTE`, `NETLINK_GENERIC`) in the current network namespace.
    pub fn open(protocol: i32) -> io::Result<Client> {
        let mut socket = Socket::new(protocol as isize)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Client { socket, sequence: 0, answer: Vec::new() })
    }

    /// Sends a request and calls `reply` with the body of each message of the answer.
    ///
    /// A dump that changed while it was read (`NLM_F_DUMP_INTR`) is used anyway: every entry in it was true when it was
    /// written, and the callers look devices up again before they act on them.
    pub fn request(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        mut reply: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.send(&message(kind, flags, self.sequence, body), 0)?;
        loop {
            // netlink-sys fills the spare capacity of a Vec. A dump's messages grow with the reader's buffer up to 32
            // KiB (af_netlink.c, netlink_recvmsg), so nothing is truncated at this size.
            self.answer.clear();
            self.answer.reserve(64 * 1024);
            self.socket.recv(&mut self.answer, 0)?;
            if read_datagram(&self.answer, self.sequence, &mut reply)? {
                return Ok(());
            }
        }
    }
}

/// Encodes a request.
pub fn message(kind: u16, flags: i32, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    // Requesting an acknowledgement gives every answer an end, both dumps and single replies.
    let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    message.extend_from_slice(&(flags as u16).to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

/// Parses the messages of one datagram; `true` when the answer ended in it. Allocates nothing: a forked process, which
/// must not allocate, uses it too.
pub fn read_datagram(datagram: &[u8], sequence: u32, reply: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    let mut rest = datagram;
    while rest.len() >= HEADER {
        let length = u32_at(rest, 0).unwrap_or(0) as usize;
        if length < HEADER || length > rest.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let (message, after) = rest.split_at(length);
        rest = after.get(length.next_multiple_of(4) - length..).unwrap_or_default();
        if u32_at(message, 8) != Some(sequence) {
            continue; // the end of an answer to an earlier, abandoned request
        }
        let body = &message[HEADER..];
        match i32::from(u16_at(message, 4).unwrap_or(0)) {
            libc::NLMSG_NOOP => {}
            libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                // Both carry an error number, zero or negative; a zero NLMSG_ERROR is the acknowledgement.
                return match u32_at(body, 0).unwrap_or(0) as i32 {
                    0.. => Ok(true),
                    error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
                };
            }
            _ => reply(body),
        }
    }
    Ok(false)
}

/// The messages of a datagram that the kernel sends unasked: type and body. Ends at the first one that does not fit.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let (kind, body) = (u16_at(rest, 4)?, rest.get(HEADER..length)?);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes (`struct nlattr`) in `bytes`: their type without the flag bits, and their value. Ends at the first
/// one that does not fit.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Appends an attribute, padded to a multiple of 4.
pub fn push_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The text of a NUL-terminated attribute.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// The 16-bit number at `offset`, in host byte order.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(offset..offset + 2)?.try_into().ok()?))
}

/// The 32-bit number at `offset`, in host byte order.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

/// The 64-bit number at `offset`, in host byte order.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reply(kind: i32, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&(kind as u16).to_ne_bytes());
        bytes.extend_from_slice(&0u16.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn an_answer_ends_at_its_acknowledgement_and_skips_older_answers() {
        let mut datagram = reply(99, 6, b"of an older request");
        datagram.extend(reply(99, 7, b"first"));
        datagram.extend(reply(99, 7, b"second"));
        let mut seen = Vec::new();
        assert!(!read_datagram(&datagram, 7, &mut |body| seen.push(body.to_vec())).unwrap());
        assert_eq!(seen, [b"first".to_vec(), b"second".to_vec()]);
        let end = reply(libc::NLMSG_DONE, 7, &0i32.to_ne_bytes());
        assert!(read_datagram(&end, 7, &mut |_| panic!("no body in it")).unwrap());
    }

    #[test]
    fn unasked_messages_are_read_up_to_a_damaged_one() {
        let mut datagram = reply(16, 0, b"first");
        datagram.extend(reply(17, 0, b"second"));
        let read: Vec<_> = messages(&datagram).collect();
        assert_eq!(read, [(16, b"first".as_slice()), (17, b"second")]);
        datagram.truncate(datagram.len() - 4);
        assert_eq!(messages(&datagram).count(), 1);
    }

    #[test]
    fn a_refusal_becomes_its_error_number() {
        let refusal = reply(libc::NLMSG_ERROR, 1, &(-libc::ENODEV).to_ne_bytes());
        let error = read_datagram(&refusal, 1, &mut |_| ()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn attributes_come_back_as_they_were_pushed(
            list in prop::collection::vec((0u16..0x3fff, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let mut body = Vec::new();
            for (kind, value) in &list {
                push_attribute(&mut body, *kind, value);
            }
            let read: Vec<_> = attributes(&body).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(read, list);
        }

        #[test]
        fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let total: usize = attributes(&bytes).map(|(_, value)| value.len()).sum();
            prop_assert!(total <= bytes.len());
            let total: usize = messages(&bytes).map(|(_, body)| body.len() + HEADER).sum();
            prop_assert!(total <= bytes.len());
            let _ = read_datagram(&bytes, 0, &mut |_| ());
            let _ = text(&bytes);
        }
    }
}
