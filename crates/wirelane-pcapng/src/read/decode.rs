//! What the decoders of the two formats have in common: they look at the bytes that are there and say what the
//! next step is. They never read, wait or allocate per packet.

use crate::Aggregate;

/// Longest packet or block that is read into memory, in bytes. libpcap has the same limit for blocks. Blocks
/// that are only stepped over may be longer.
pub const MAX_ITEM: usize = 16 << 20;

/// What to do next with the bytes of a file.
#[derive(Debug)]
pub(super) enum Step {
    /// Come again when this many bytes are there, counted from here. If the file ends before: where nothing is
    /// left and `back` is 0 it ended well, otherwise it was cut inside `what`, which starts `back` bytes ago.
    Need { bytes: usize, what: &'static str, back: u64 },
    /// A packet.
    Packet(Packet),
    /// Step over this many bytes, which need not be there yet, of a block of this length.
    Skip { bytes: u64, block: u64 },
    /// What starts `back` bytes ago cannot be read.
    Damage { back: u64, reason: String },
}

impl Step {
    /// What starts here cannot be read.
    pub(super) fn damage(reason: impl Into<String>) -> Step {
        Step::Damage { back: 0, reason: reason.into() }
    }

    /// Step over a whole block.
    pub(super) fn skip_block(bytes: usize) -> Step {
        Step::Skip { bytes: bytes as u64, block: bytes as u64 }
    }

    /// Come again when so many bytes of an item that starts here are there.
    pub(super) fn need(bytes: usize, what: &'static str) -> Step {
        Step::Need { bytes, what, back: 0 }
    }
}

/// A packet among the bytes that are there.
#[derive(Debug)]
pub struct Packet {
    /// Bytes of the whole item, from here on.
    pub size: usize,
    /// Where in them the captured bytes are.
    pub data: std::ops::Range<usize>,
    /// Length on the wire, as the file states it.
    pub wire_len: u32,
    /// UTC nanoseconds.
    pub ts_ns: u64,
    /// Index of the interface, counted over all sections.
    pub interface: u16,
    /// Whether the file says that the packet was outbound.
    pub egress: bool,
    /// What the file says of an aggregate.
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
    /// The 16-bit number at this place, which must be there.
    pub(super) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = [bytes[at], bytes[at + 1]];
        match self {
            Order::Little => u16::from_le_bytes(raw),
            Order::Big => u16::from_be_bytes(raw),
        }
    }

    /// The 32-bit number at this place, which must be there.
    pub(super) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match self {
            Order::Little => u32::from_le_bytes(raw),
            Order::Big => u32::from_be_bytes(raw),
        }
    }
}
