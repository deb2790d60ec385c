//! Common parts of the decoders of the two formats: they look at the available bytes and return the next step. They
//! never read, wait or allocate per packet.

use crate::Aggregate;

/// Longest packet or block that is read into memory, in bytes. libpcap has the same limit for blocks. Blocks that are
/// skipped may be longer.
pub const MAX_ITEM: usize = 16 << 20;

/// The next step in decoding the bytes of a file.
#[derive(Debug)]
pub(super) enum Step {
    /// Call again when this many bytes are available, counted from here. If the file ends before that: with no bytes
    /// left and a `back` of 0 the end is valid, otherwise the file was truncated inside `what`, which starts `back`
    /// bytes before.
    Need { bytes: usize, what: &'static str, back: u64 },
    /// A packet.
    Packet(Packet),
    /// Skip this many bytes, which need not be available yet, of a block of this length.
    Skip { bytes: u64, block: u64 },
    /// The item that starts `back` bytes before cannot be read.
    Damage { back: u64, reason: String },
}

impl Step {
    /// The item that starts here cannot be read.
    pub(super) fn damage(reason: impl Into<String>) -> Step {
        Step::Damage { back: 0, reason: reason.into() }
    }

    /// Skip a whole block.
    pub(super) fn skip_block(bytes: usize) -> Step {
        Step::Skip { bytes: bytes as u64, block: bytes as u64 }
    }

    /// Call again when this many bytes of the item that starts here are available.
    pub(super) fn need(bytes: usize, what: &'static str) -> Step {
        Step::Need { bytes, what, back: 0 }
    }
}

/// A packet within the available bytes.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Bytes of the whole item, from the current position.
    pub size: usize,
    /// Range of the captured bytes within the item.
    pub data: std::ops::Range<usize>,
    /// Length on the wire, as the file states it.
    pub wire_len: u32,
    /// UTC nanoseconds.
    pub ts_ns: u64,
    /// Index of the interface, counted over all sections.
    pub interface: u16,
    /// Whether the file says that the packet was outbound.
    pub egress: bool,
    /// The aggregate that the file records for the packet.
    pub aggregate: Option<Aggregate>,
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// The 16-bit number at this offset, which must be in bounds.
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = [bytes[at], bytes[at + 1]];
        match self {
            Order::Little => u16::from_le_bytes(raw),
            Order::Big => u16::from_be_bytes(raw),
        }
    }

    /// The 32-bit number at this offset, which must be in bounds.
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self {
            Order::Little => u32::from_le_bytes(raw),
            Order::Big => u32::from_be_bytes(raw),
        }
    }
}
