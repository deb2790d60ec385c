//! Merging of rings by timestamp: the reader's half. The writer's half is `bpf/order.h`.
//!
//! [`Merge::look`] takes a snapshot: it reads the clock, then the mark of each lane, then the head of each ring. The
//! *horizon* is the earliest timestamp that any lane can still publish. Every record with an earlier timestamp is
//! before one of the heads, so records up to the horizon can be yielded in order. Later records are held back until the
//! next snapshot. A record is thus held for [`SLACK`], for the time to the next snapshot ([`BETWEEN_LOOKS`]), and for
//! as long as another lane is processing an earlier packet.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `wl_mark.in_flight` | the lane, around each packet | Acquire load in [`Merge::look`] | `wl_publish` in `wl_mark_end` and `wl_mark_begin` |
//! | `head` | the lane, every record | Acquire load, after the marks | `wl_publish` in `wl_ring_commit` |
//!
//! A lane that does not finish its packet (its virtual CPU is not scheduled) would hold all records back. After
//! [`LONGEST_HOLD`] the others continue without it. Its packet is then late, and counted as such.
//!
//! Barriers (`bpf/balance.h`) cannot deadlock here either: a barrier waits for records that were stamped before it, and
//! a worker that waits at a barrier yields all records of other lanes up to the barrier's time.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wirelane_bpf::instance::MARK_UNSTAMPED;
use wirelane_bpf::layout::{RECORD_HEADER, RecordHeader, flags, record_kind};

use super::lane_end::LaneEnd;
use crate::batch::{body_size, said_size};
use crate::clock::{Clock, monotonic_ns};
use crate::settings;

/// Time by which a lane's clock reading can precede the mark that a worker sees: the time that a store waits in a CPU's
/// store buffer, and the difference between `bpf_ktime_get_ns()` and `clock_gettime()` while the kernel adjusts its
/// clock. Both are below a microsecond.
const SLACK: Duration = Duration::from_micros(10);
/// The same for timestamps that are not read for each packet. A batch of packets shares one reading of the clock, and a
/// card stamps a packet before its interrupt: both are older than the lane's mark, by less than this.
const LOOSE_SLACK: Duration = Duration::from_millis(10);
/// Minimum time between two snapshots. Each moves the cache lines that lanes write at every packet away from them.
const BETWEEN_LOOKS: Duration = Duration::from_micros(20);
/// Longest time that a lane with an unfinished packet holds back the records of others.
pub(super) const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// No record, or no limit.
const NEVER: u64 = u64::MAX;

/// Snapshot of one lane.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The earliest timestamp that the lane can still publish.
    floor: u64,
    /// The lane's mark, and the time since which it has not changed.
    mark: u64,
    since_ns: u64,
    /// Position after the last record of the snapshot.
    end: u64,
    /// Timestamp of the next record before `end`; [`NEVER`]: no such record.
    next: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Merge {
    seen: Vec<Seen>,
    horizon: u64,
    looked_ns: u64,
    slack_ns: u64,
    /// Records that were published after the horizon had passed their timestamps.
    late: u64,
    /// Longest time for which a lane's unfinished packet has held back the records of others.
    longest_gap_ns: u64,
    /// Converts the timestamps of cards.
    clock: Option<Arc<Clock>>,
}

/// Records to yield next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) lane: usize,
    /// Bytes of the lane's snapshot.
    pub(super) unread: u64,
    /// Latest timestamp to yield.
    pub(super) bound: u64,
}

impl Merge {
    /// A merge of `lanes` lanes, whose packets are stamped by `stamped`. `clock` converts the timestamps of cards.
    pub(crate) fn new(lanes: usize, stamped: settings::Clock, clock: &Arc<Clock>) -> Merge {
        let slack = if stamped == settings::Clock::Packet { SLACK } else { LOOSE_SLACK };
        let clock = (stamped == settings::Clock::Card).then(|| Arc::clone(clock));
        let nothing = Seen { floor: 0, mark: 0, since_ns: 0, end: 0, next: NEVER };
        Merge {
            seen: vec![nothing; lanes],
            horizon: 0,
            looked_ns: 0,
            slack_ns: slack.as_nanos() as u64,
            late: 0,
            longest_gap_ns: 0,
            clock,
        }
    }

    /// Takes a snapshot, if the last one is old enough or `now` is set. `closed`: no lane writes any more, which the
    /// caller read (Acquire) before.
    pub(super) fn look(&mut self, lanes: &mut [LaneEnd], closed: bool, now: bool) {
        let now_ns = monotonic_ns();
        if !now && !closed && now_ns < self.looked_ns + BETWEEN_LOOKS.as_nanos() as u64 {
            return;
        }
        self.looked_ns = now_ns;
        let settled = now_ns.saturating_sub(self.slack_ns);
        let mut horizon = if closed { NEVER } else { settled };
        for (seen, lane) in self.seen.iter_mut().zip(lanes.iter()) {
            // Acquire: pairs with wl_mark_end(). The heads below include all packets before the mark.
            let mark = lane.mark.load(Ordering::Acquire);
            horizon = horizon.min(seen.meet(mark, now_ns, self.slack_ns, closed));
        }
        self.longest_gap_ns = self.longest_gap_ns.max(settled.saturating_sub(horizon));
        for (at, lane) in lanes.iter_mut().enumerate() {
            let end = lane.reader.position() + lane.reader.peek();
            let fresh = self.seen[at].end.max(lane.reader.position());
            if fresh < end {
                self.late += self.late_in(lane, fresh, end);
            }
            self.seen[at].end = end;
            self.refresh(at, lane);
        }
        self.horizon = self.horizon.max(horizon);
    }

    /// Updates a lane's next record, after some of its records were yielded.
    pub(super) fn refresh(&mut self, at: usize, lane: &mut LaneEnd) {
        self.seen[at].next = loop {
            let position = lane.reader.position();
            if position >= self.seen[at].end {
                break NEVER;
            }
            if lane.barrier.is_some() {
                if lane.is_blocked() {
                    // The record after the barrier, if it has been published: records of other lanes up to its time may
                    // pass.
                    let behind = position + RECORD_HEADER as u64;
                    break if behind < self.seen[at].end { self.stamp_at(lane, behind) } else { NEVER };
                }
                continue;
            }
            let (bytes, _) = lane.memory.run(position, RECORD_HEADER as u64);
            if lane.flows.is_none() && kind(bytes) == Some(record_kind::BARRIER) {
                lane.meet_barrier();
                continue;
            }
            break self.stamp_at(lane, position);
        };
    }

    /// The next records in order, within the snapshot.
    pub(super) fn next(&mut self, lanes: &mut [LaneEnd]) -> Option<Run> {
        let mut first: Option<(usize, u64)> = None;
        let mut bound = self.horizon;
        for (at, lane) in lanes.iter_mut().enumerate() {
            if lane.flows.is_some() && lane.half_is_due() {
                return Some(Run { lane: at, unread: 0, bound: NEVER });
            }
            if lane.barrier.is_some() && !lane.is_blocked() {
                self.refresh(at, lane);
            }
            let next = self.seen[at].next;
            if next == NEVER {
                continue;
            }
            match first {
                // A blocked lane bounds the others, and is not read.
                _ if lane.barrier.is_some() => bound = bound.min(next),
                Some((_, earliest)) if earliest <= next => bound = bound.min(next),
                Some((_, earliest)) => {
                    bound = bound.min(earliest);
                    first = Some((at, next));
                }
                None => first = Some((at, next)),
            }
        }
        let (lane, stamp) = first?;
        if stamp > bound {
            return None;
        }
        let unread = self.seen[lane].end - lanes[lane].reader.position();
        Some(Run { lane, unread, bound })
    }

    /// The time before which no record is left: neither in a snapshot nor to come.
    pub(super) fn caught_up(&self) -> u64 {
        self.seen.iter().map(|seen| seen.next).fold(self.horizon, u64::min)
    }

    /// Whether there are records that are held back.
    pub(super) fn holds(&self) -> bool {
        self.seen.iter().any(|seen| seen.next != NEVER)
    }

    /// Records that were published after the horizon had passed their timestamps: the order of the records is not
    /// strict.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    /// Longest time for which a lane's unfinished packet has held back the records of others.
    pub(super) fn longest_gap(&self) -> Duration {
        Duration::from_nanos(self.longest_gap_ns)
    }

    /// Number of a lane's new records, between two positions, with timestamps before the horizon.
    fn late_in(&self, lane: &LaneEnd, mut position: u64, end: u64) -> u64 {
        let mut late = 0;
        while position < end {
            let (bytes, _) = lane.memory.run(position, end - position);
            if kind(bytes) == Some(record_kind::BARRIER) {
                position += RECORD_HEADER as u64;
                continue;
            }
            match (self.stamp(lane, bytes), size(bytes)) {
                (Some(stamp), Some(size)) if stamp < self.horizon => position += size as u64,
                _ => break,
            }
            late += 1;
        }
        late
    }

    /// Number of bytes of the records with timestamps up to `bound`, of those that start before `end`; at least one
    /// record.
    pub(super) fn until(&self, lane: &LaneEnd, bytes: &[u8], end: usize, bound: u64) -> usize {
        until(bytes, end, bound, |head| self.stamp(lane, head))
    }

    fn stamp_at(&self, lane: &LaneEnd, position: u64) -> u64 {
        let (bytes, _) = lane.memory.run(position, RECORD_HEADER as u64);
        // Bytes that do not form a record have to be read to detect them.
        self.stamp(lane, bytes).unwrap_or(0)
    }

    /// The timestamp of the record that begins here, on the lane's clock.
    fn stamp(&self, lane: &LaneEnd, head: &[u8]) -> Option<u64> {
        let ts_ns = field(head, offset_of!(RecordHeader, ts_ns)).map(u64::from_ne_bytes)?;
        let Some(clock) = &self.clock else { return Some(ts_ns) };
        let flags = field(head, offset_of!(RecordHeader, flags)).map(u16::from_ne_bytes)?;
        let header = RecordHeader { ts_ns, flags: flags & flags::HW_CLOCK, ..RecordHeader::default() };
        Some(clock.monotonic_of_ns(&header, lane.device.place(header.queue).0.into()))
    }
}

impl Seen {
    /// Takes a lane's mark into account; returns the earliest timestamp that the lane can still publish.
    fn meet(&mut self, mark: u64, now_ns: u64, slack_ns: u64, closed: bool) -> u64 {
        if closed {
            return NEVER;
        }
        let settled = now_ns.saturating_sub(slack_ns);
        if mark != self.mark || mark == 0 {
            (self.mark, self.since_ns) = (mark, now_ns);
        }
        let floor = match mark {
            0 => settled,
            MARK_UNSTAMPED => self.floor,
            stamp => stamp.min(settled),
        };
        self.floor = self.floor.max(floor);
        if now_ns - self.since_ns > LONGEST_HOLD.as_nanos() as u64 { settled } else { self.floor }
    }
}

fn kind(head: &[u8]) -> Option<u8> {
    field(head, offset_of!(RecordHeader, kind)).map(u8::from_ne_bytes)
}

/// See [`Merge::until`].
fn until(bytes: &[u8], end: usize, bound: u64, stamp: impl Fn(&[u8]) -> Option<u64>) -> usize {
    let mut at = 0;
    while at < end {
        // The batch reports bytes that do not form a whole record.
        let Some(head) = bytes.get(at..) else { return end };
        let (Some(stamp), Some(size)) = (stamp(head), size(head)) else { return end };
        if at > 0 && stamp > bound {
            return at;
        }
        at += size;
    }
    end
}

fn field<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..at + N)?.try_into().ok()
}

/// Number of bytes of the record that begins here.
fn size(head: &[u8]) -> Option<usize> {
    if kind(head)? == record_kind::BARRIER {
        return None;
    }
    let cap_len = u32::from_ne_bytes(field(head, offset_of!(RecordHeader, cap_len))?);
    let set = u16::from_ne_bytes(field(head, offset_of!(RecordHeader, flags))?);
    let body = body_size(cap_len as usize);
    Some(body + said_size(set, head.get(body..)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(head: &[u8]) -> Option<u64> {
        field(head, offset_of!(RecordHeader, ts_ns)).map(u64::from_ne_bytes)
    }

    /// Records with these timestamps and lengths, one after the other.
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
    fn a_lane_holds_others_back_until_its_packet_is_done_or_the_longest_hold_is_over() {
        let (slack, hold) = (SLACK.as_nanos() as u64, LONGEST_HOLD.as_nanos() as u64);
        let mut seen = Seen { floor: 0, mark: 0, since_ns: 0, end: 0, next: NEVER };
        let start = 10 * hold;
        // Without a packet, all timestamps older than the slack are settled.
        assert_eq!(seen.meet(0, start, slack, false), start - slack);
        // A packet without a timestamp may get any from the last look on; then it has one.
        assert_eq!(seen.meet(MARK_UNSTAMPED, start + 500, slack, false), start - slack);
        assert_eq!(seen.meet(start + 400, start + 50_000, slack, false), start + 400);
        // The CPU is not scheduled: the others wait for its packet, and then continue without it.
        assert_eq!(seen.meet(start + 400, start + 50_000 + hold, slack, false), start + 400);
        let later = start + 50_001 + hold;
        assert_eq!(seen.meet(start + 400, later, slack, false), later - slack);
        // The CPU continues, with another packet.
        assert_eq!(seen.meet(later + 1000, later + 2 * slack, slack, false), later + 1000);
        assert_eq!(seen.meet(later + 1000, later, slack, true), NEVER);
    }

    #[test]
    fn a_batch_ends_before_the_first_record_that_is_later_than_another_lanes() {
        let of = [(10, 60), (20, 61), (20, 1500), (30, 8)];
        let bytes = records(&of);
        let size = |count: usize| of[..count].iter().map(|(_, length)| body_size(*length)).sum::<usize>();
        for (bound, count) in [(5, 1), (10, 1), (19, 1), (20, 3), (29, 3), (30, 4), (u64::MAX, 4)] {
            assert_eq!(until(&bytes, bytes.len(), bound, stamp), size(count), "up to {bound}");
        }
        assert_eq!(until(&bytes, size(2), 40, stamp), size(2), "no further than the batch goes");
        assert_eq!(until(&[], 0, 40, stamp), 0);
    }
}
