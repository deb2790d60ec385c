//! Packets of calls that are handed out, to be kept.
//!
//! A message that came in several packets, or in one with other messages (TCP, fragments), is handed out alone: the packets may
//! have others' calls in them.

use wirelane::LinkType;

use super::call::Way;

/// Which packets of calls are handed out. Those of calls that are not chosen never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// None.
    #[default]
    Nothing,
    /// Those with messages.
    Signals,
    /// Those with messages, and RTP and RTCP of streams that are counted.
    All,
}

/// A packet of a call, to be kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// [`super::Call::serial`] of its call.
    pub call: u64,
    /// How it came.
    pub way: Way,
    /// What it was.
    pub packet: Captured,
}

/// What there is of a packet.
#[derive(Clone, Debug)]
pub enum Captured {
    /// It, as it was captured.
    Frame {
        /// What it begins with.
        link: LinkType,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Bytes that it had on the wire.
        length: u32,
    },
    /// The payload of a datagram, or a message out of a TCP connection, which came in several packets, or in one with others.
    Payload(Vec<u8>),
}

impl Captured {
    /// Memory that its bytes take.
    pub(super) fn memory(&self) -> usize {
        match self {
            Captured::Frame { bytes, .. } | Captured::Payload(bytes) => bytes.len(),
        }
    }
}

/// The packet at hand, where packets are kept.
#[derive(Debug)]
pub(super) struct AtHand {
    link: LinkType,
    bytes: Vec<u8>,
    /// Bytes that it had on the wire.
    pub(super) length: u32,
    /// Whether all of a datagram is in it.
    pub(super) whole: bool,
    /// The call whose media it was.
    pub(super) heard: Option<u32>,
}

impl Default for AtHand {
    fn default() -> AtHand {
        AtHand { link: LinkType::Other, bytes: Vec::new(), length: 0, whole: false, heard: None }
    }
}

impl AtHand {
    /// It begins so, and these are its bytes.
    pub(super) fn is(&mut self, link: LinkType, bytes: &[u8]) {
        self.link = link;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// It, or where it was not alone in a packet of its own, what it carried.
    pub(super) fn captured(&self, way: &Way, payload: &[u8]) -> Captured {
        if self.whole && !way.tcp {
            Captured::Frame { link: self.link, bytes: self.bytes.clone(), length: self.length }
        } else {
            Captured::Payload(payload.to_vec())
        }
    }
}
