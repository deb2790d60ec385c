//! Records of several rings in the order of their stamps.

use std::mem::offset_of;

use wirelane_datapath::layout::{RECORD_HEADER, RecordHeader, record_kind};

use super::source::LaneEnd;
use crate::batch::{body_size, said_size};

/// The lane whose next record has the earliest stamp, how much of it may be read, and the stamp up to which that goes:
/// the earliest of the other lanes.
pub(super) fn earliest(lanes: &mut [LaneEnd]) -> Option<(usize, u64, u64)> {
    let mut first: Option<(usize, u64, u64)> = None;
    let mut bound = u64::MAX;
    for (at, lane) in lanes.iter_mut().enumerate() {
        if lane.is_blocked() {
            continue;
        }
        // What is published will do where there is any: what comes behind it is later. The last records of other lanes
        // have to be seen, or they would be late.
        let unread = match lane.reader.published() {
            0 => lane.reader.peek(),
            published => published,
        };
        if unread == 0 {
            continue;
        }
        let (bytes, _) = lane.memory.run(lane.reader.position(), RECORD_HEADER as u64);
        let Some(stamp) = stamp(bytes) else { continue };
        match first {
            Some((_, _, earliest)) if earliest <= stamp => bound = bound.min(stamp),
            Some((_, _, earliest)) => {
                bound = bound.min(earliest);
                first = Some((at, unread, stamp));
            }
            None => first = Some((at, unread, stamp)),
        }
    }
    first.map(|(at, unread, _)| (at, unread, bound))
}

/// How many bytes there are of records with stamps up to this one, of those that start before `end`; at least one
/// record.
pub(super) fn until(bytes: &[u8], end: usize, bound: u64) -> usize {
    if bound == u64::MAX {
        return end;
    }
    let mut at = 0;
    while at < end {
        let Some(head) = bytes.get(at..) else { return end };
        let stamped = stamp(head);
        if at > 0 && stamped.is_none_or(|stamp| stamp > bound) {
            return at;
        }
        // What is no record is for the batch to find.
        let Some(size) = size(head) else { return end };
        at += size;
    }
    end
}

fn field<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..at + N)?.try_into().ok()
}

fn stamp(head: &[u8]) -> Option<u64> {
    field(head, offset_of!(RecordHeader, ts_ns)).map(u64::from_ne_bytes)
}

/// Bytes of the record that begins here.
fn size(head: &[u8]) -> Option<usize> {
    let kind = u8::from_ne_bytes(field(head, offset_of!(RecordHeader, kind))?);
    if kind == record_kind::BARRIER {
        return None;
    }
    let cap_len = u32::from_ne_bytes(field(head, offset_of!(RecordHeader, cap_len))?);
    let flags = u16::from_ne_bytes(field(head, offset_of!(RecordHeader, flags))?);
    Some(body_size(cap_len as usize) + said_size(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records with these stamps and lengths, one behind the other.
    fn records(of: &[(u64, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (stamp, length) in of {
            let mut record = vec![0; body_size(*length)];
            record[..8].copy_from_slice(&stamp.to_ne_bytes());
            let at = offset_of!(RecordHeader, cap_len);
            record[at..at + 4].copy_from_slice(&(*length as u32).to_ne_bytes());
            bytes.extend(record);
        }
        bytes
    }

    #[test]
    fn a_batch_ends_before_the_first_record_that_is_later_than_another_lanes() {
        let of = [(10, 60), (20, 61), (20, 1500), (30, 8)];
        let bytes = records(&of);
        let size = |count: usize| of[..count].iter().map(|(_, length)| body_size(*length)).sum::<usize>();
        for (bound, count) in [(5, 1), (10, 1), (19, 1), (20, 3), (29, 3), (30, 4), (u64::MAX, 4)] {
            assert_eq!(until(&bytes, bytes.len(), bound), size(count), "up to {bound}");
        }
        assert_eq!(until(&bytes, size(2), 40), size(2), "no further than the batch goes");
        assert_eq!(until(&[], 0, 40), 0);
    }
}
