//! Packets of calls that are handed out for storage.
//!
//! A message that arrived in several packets, or in one with other messages (TCP, fragments), is handed out alone: the
//! packets may contain messages of other calls.

use wirelane::LinkType;

use super::call::Way;

/// Packets of calls that are handed out. Packets of calls that are not selected never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// No packets.
    #[default]
    Nothing,
    /// Packets with messages.
    Signals,
    /// Packets with messages, and RTP and RTCP packets of counted streams.
    All,
}

/// A packet of a call for storage.
#[derive(Clone, Debug)]
pub struct Kept {
    /// [`super::Call::serial`] of its call.
    pub call: u64,
    /// Path and time.
    pub way: Way,
    /// Content.
    pub packet: Captured,
}

/// Content of a captured packet.
#[derive(Clone, Debug)]
pub enum Captured {
    /// The whole frame.
    Frame {
        /// Link type of the first header.
        link: LinkType,
        /// Bytes of the frame.
        bytes: Vec<u8>,
        /// Length on the wire in bytes.
        length: u32,
    },
    /// Payload of a datagram, or a message from a TCP connection, that arrived in several packets, or in one with
    /// others.
    Payload(Vec<u8>),
}

impl Captured {
    /// Memory of its bytes.
    pub(super) fn memory(&self) -> usize {
        match self {
            Captured::Frame { bytes, .. } | Captured::Payload(bytes) => bytes.len(),
        }
    }
}

/// The current packet, if packets are stored.
#[derive(Debug)]
pub(super) struct AtHand {
    link: LinkType,
    bytes: Vec<u8>,
    /// Length on the wire in bytes.
    pub(super) length: u32,
    /// Whether it contains a complete datagram.
    pub(super) whole: bool,
    /// Call to which its media belongs.
    pub(super) heard: Option<u32>,
}

impl Default for AtHand {
    fn default() -> AtHand {
        AtHand { link: LinkType::Other, bytes: Vec::new(), length: 0, whole: false, heard: None }
    }
}

impl AtHand {
    /// Sets the current packet.
    pub(super) fn is(&mut self, link: LinkType, bytes: &[u8]) {
        self.link = link;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
    }

    /// The frame; or only the payload if it was not alone in its packet.
    pub(super) fn captured(&self, way: &Way, payload: &[u8]) -> Captured {
        if self.whole && !way.tcp {
            Captured::Frame { link: self.link, bytes: self.bytes.clone(), length: self.length }
        } else {
            Captured::Payload(payload.to_vec())
        }
    }
}
