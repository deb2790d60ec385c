//! Rule results, and sizes of aggregates, which follow the bytes of a record.

use wirelane_bpf::layout::{FOUND_MORE, Found, Tail, flags};
use wirelane_bpf::rules::{Evaluated, evaluated_flags};

use crate::batch::said_size;
use crate::record::FoundBytes;

/// Rule results for a packet, without the rule's number: the data stored after its bytes in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Said {
    /// [`flags::TAGGED`], [`flags::GSO`], [`flags::FOUND`], [`flags::HALF_SEARCHED`].
    pub(crate) flags: u16,
    pub(crate) tag: u32,
    /// Sizes of an aggregate: see [`Tail`]; with [`flags::GSO`].
    segment_size: u16,
    headers: u16,
    /// Patterns, in the layout of a [`Found`].
    pub(crate) found: FoundBytes,
}

impl Said {
    /// Results of an evaluation.
    pub(crate) fn of(evaluated: &Evaluated) -> Said {
        let flag = |there: bool, flag: u16| if there { flag } else { 0 };
        let is = |flag: u32| evaluated.flags & flag != 0;
        let flags = flag(is(evaluated_flags::TAGGED), flags::TAGGED)
            | flag(evaluated.pattern[0] != 0, flags::FOUND)
            | flag(is(evaluated_flags::HALF), flags::HALF_SEARCHED);
        let mut found = FoundBytes::default();
        for (place, id) in found.chunks_exact_mut(4).zip(evaluated.pattern) {
            place.copy_from_slice(&id.to_ne_bytes());
        }
        if let (true, Some(last)) = (is(evaluated_flags::FOUND), evaluated.pattern.last()) {
            let place = size_of::<Found>() - size_of::<u32>();
            found[place..].copy_from_slice(&(last | FOUND_MORE).to_ne_bytes());
        }
        Said { flags, tag: evaluated.tag, found, ..Said::default() }
    }

    /// Adds the sizes of an aggregate.
    pub(crate) fn of_aggregate(mut self, segment_size: u16, headers: u16) -> Said {
        self.flags |= flags::GSO;
        (self.segment_size, self.headers) = (segment_size, headers);
        self
    }

    /// The tail that follows the bytes of a packet.
    pub(crate) fn tail(&self) -> Tail {
        Tail { tag: self.tag, segment_size: self.segment_size, headers: self.headers }
    }

    /// Number of packets on the wire, and of their bytes, for a packet of `wire_len` bytes.
    pub(crate) fn on_wire(&self, wire_len: u32) -> (u32, u64) {
        let tail = self.tail();
        (tail.segments(wire_len), tail.wire_bytes(wire_len))
    }

    /// Writes the end of a packed record into the space reserved for it.
    pub(crate) fn write(&self, end: &mut [u8]) {
        let tail = said_size(self.flags & (flags::TAGGED | flags::GSO));
        let (tail, behind) = end.split_at_mut(tail.min(end.len()));
        if let Some((tag, sizes)) = tail.split_first_chunk_mut()
            && let Some((segment_size, headers)) = sizes.split_first_chunk_mut()
        {
            *tag = self.tag.to_ne_bytes();
            *segment_size = self.segment_size.to_ne_bytes();
            headers.copy_from_slice(&self.headers.to_ne_bytes());
        }
        if self.flags & flags::FOUND != 0
            && let Some(found) = behind.first_chunk_mut()
        {
            *found = self.found;
        }
    }
}
