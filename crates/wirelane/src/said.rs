//! Rule results, and sizes of aggregates, which follow the bytes of a record.

use wirelane_bpf::layout::{FOUND_HITS, FOUND_MORE, FOUND_MORE_HITS, Found, Hits, Tail, flags};
use wirelane_bpf::rules::{Evaluated, evaluated_flags};

use crate::batch::{has_hits, tail_size};
use crate::record::{FoundBytes, HitBytes};

/// Rule results for a packet, without the rule's number: the data stored after its bytes in a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// [`flags::TAGGED`], [`flags::GSO`], [`flags::FOUND`], [`flags::HALF_SEARCHED`].
    pub(crate) flags: u16,
    pub(crate) tag: u32,
    /// Sizes of an aggregate: see [`Tail`]; with [`flags::GSO`].
    segment_size: u16,
    headers: u16,
    /// Patterns, in the layout of a [`Found`].
    pub(crate) found: FoundBytes,
    /// Rules that the packet hit, in the layout of a [`Hits`], if `found` says so.
    pub(crate) hits: HitBytes,
}

impl Default for Said {
    fn default() -> Said {
        Said {
            flags: 0,
            tag: 0,
            segment_size: 0,
            headers: 0,
            found: FoundBytes::default(),
            hits: [0; size_of::<Hits>()],
        }
    }
}

impl Said {
    /// Results of an evaluation.
    pub(crate) fn of(evaluated: &Evaluated) -> Said {
        let flag = |there: bool, flag: u16| if there { flag } else { 0 };
        let is = |flag: u32| evaluated.flags & flag != 0;
        let several = evaluated.hit_count > 1;
        let flags = flag(is(evaluated_flags::TAGGED), flags::TAGGED)
            | flag(several || evaluated.pattern[0] != 0, flags::FOUND)
            | flag(is(evaluated_flags::HALF), flags::HALF_SEARCHED);
        let mut pattern = evaluated.pattern;
        if let (true, Some(last)) = (is(evaluated_flags::FOUND), pattern.last_mut()) {
            *last |= FOUND_MORE;
        }
        let mut said = Said { flags, tag: evaluated.tag, ..Said::default() };
        if several {
            pattern[1] |= FOUND_HITS;
            if is(evaluated_flags::HITS) || is(evaluated_flags::MORE) {
                pattern[2] |= FOUND_MORE_HITS;
            }
            put(&mut said.hits, &evaluated.hit);
        }
        put(&mut said.found, &pattern);
        said
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

    /// Size in bytes of the end of a packed record.
    pub(crate) fn size(&self) -> usize {
        let found = if self.flags & flags::FOUND != 0 { size_of::<Found>() } else { 0 };
        tail_size(self.flags) + found + if self.has_hits() { size_of::<Hits>() } else { 0 }
    }

    fn has_hits(&self) -> bool {
        self.flags & flags::FOUND != 0 && has_hits(&self.found)
    }

    /// Writes the end of a packed record into the space reserved for it.
    pub(crate) fn write(&self, end: &mut [u8]) {
        let tail = tail_size(self.flags);
        let (tail, behind) = end.split_at_mut(tail.min(end.len()));
        if let Some((tag, sizes)) = tail.split_first_chunk_mut()
            && let Some((segment_size, headers)) = sizes.split_first_chunk_mut()
        {
            *tag = self.tag.to_ne_bytes();
            *segment_size = self.segment_size.to_ne_bytes();
            headers.copy_from_slice(&self.headers.to_ne_bytes());
        }
        if self.flags & flags::FOUND != 0
            && let Some((found, behind)) = behind.split_first_chunk_mut()
        {
            *found = self.found;
            if self.has_hits()
                && let Some(hits) = behind.first_chunk_mut()
            {
                *hits = self.hits;
            }
        }
    }
}

fn put(place: &mut [u8], ids: &[u32]) {
    for (place, id) in place.chunks_exact_mut(4).zip(ids) {
        place.copy_from_slice(&id.to_ne_bytes());
    }
}
