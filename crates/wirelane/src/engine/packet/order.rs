//! Merging of sockets by timestamp. A worker has a socket per device, direction and RX queue, and the kernel hands over
//! the packets of each in blocks: when a block is full, or after its time (`retire_ms`).
//!
//! Packets of a block come in order (`block.rs`), and those of the socket's next block are later. So the earliest
//! packet of all open blocks may be yielded if no socket *without* an open block has an earlier one. The worker does
//! not need a timer to detect this: the kernel counts a packet in its block (`num_pkts`, which is in the shared memory)
//! before it reads the clock for it. The worker reads a socket's count after it has seen another's block handed over:
//!
//! - The count is 0: the socket's next packet is stamped later than all packets of that block. Nothing is held back.
//! - It is not 0: the socket may have an earlier packet, and hands it over when its block's time has passed. Until then
//!   the others are held back. The worker sleeps in poll(2), for the sockets without an open block only.
//!
//! This does not depend on the precision of the kernel's timer, which is late on a virtual CPU that is not scheduled. A
//! record is held back until the blocks that had a packet when its own block was seen are handed over: for `retire_ms`,
//! and on a kernel with coarse timers (before Linux 6.18) for up to two ticks more (8 ms at 250 Hz).
//!
//! The kernel's store to the count is visible before the clock is read: on x86 the lock that it takes in between
//! (`read_lock()` in `prb_fill_curr_block()`) is a full barrier. Other processors may keep the store in their store
//! buffer meanwhile, for less than a microsecond; there, a block is held for [`STORE`] before a socket's count is used.
//!
//! Exceptions, in which packets may be yielded out of order; [`Merge::late`] counts these:
//!
//! - A process of the machine has requested timestamps (SO_TIMESTAMP: ping, chrony). Then the kernel stamps packets
//!   when it takes them from the driver, and a packet socket gets this timestamp (`TP_STATUS_TS_SOFTWARE`). From the
//!   first such packet on, and for [`LOOSE_FOR`] after the last, blocks are held for [`LOOSE`] in addition to the
//!   above: for the time that a packet can wait in a queue of the stack. Packets of one socket that several CPUs have
//!   stamped may still be late.
//! - A block with packets is not handed over for [`LONGEST_HOLD`]: a CPU that writes to it is not scheduled. Then the
//!   others continue without it.
//!
//! Timestamps are UTC, which can be set. They are compared with each other only; all waiting is measured by
//! CLOCK_MONOTONIC. A timestamp later than UTC at the time when its block was seen is from before UTC was set back: it
//! comes first.

use std::time::Duration;

/// Time that a store to `num_pkts` can wait in a store buffer after the clock was read.
pub(super) const STORE: Duration = if cfg!(any(target_arch = "x86_64", target_arch = "x86")) {
    Duration::ZERO
} else {
    Duration::from_micros(10)
};
/// Time that a packet can wait in the stack between its stamp and the socket.
pub(super) const LOOSE: Duration = Duration::from_millis(10);
/// Time for which blocks are held by [`LOOSE`] after the last packet that was stamped early.
const LOOSE_FOR: Duration = Duration::from_secs(10);
/// Longest time that a socket whose block is not handed over holds back the packets of others.
pub(super) const LONGEST_HOLD: Duration = Duration::from_secs(1);
/// UTC that went back by less than this was slewed, not set.
const STEP: Duration = Duration::from_millis(1);

const fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Sort key of a packet: false for timestamps from before UTC was set back.
type Key = (bool, u64);

/// State of a socket. Times are of CLOCK_MONOTONIC, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The timestamp of the next packet of the socket's open block.
    head: Option<u64>,
    /// When the block was seen: its packets were stamped before.
    opened_ns: u64,
    /// When the socket was last seen without a packet in an unfinished block: later packets are stamped after that.
    quiet_ns: u64,
}

/// The socket to read from next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) socket: usize,
    /// The last key to yield.
    bound: Key,
    utc_ns: u64,
}

impl Run {
    /// Whether a packet of the socket with this timestamp is in the run.
    pub(super) fn has(&self, stamp: u64) -> bool {
        key(stamp, self.utc_ns) <= self.bound
    }
}

/// Result of [`Merge::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Run(Run),
    /// Packets are held back, for this long unless a socket hands over a block.
    Held(Duration),
    /// No socket has a packet.
    Nothing,
}

/// Merge of the sockets of a worker by timestamp.
#[derive(Debug)]
pub(super) struct Merge {
    sockets: Vec<Seen>,
    /// When the worker last looked at the sockets.
    looked_ns: u64,
    /// UTC at that time.
    utc_ns: u64,
    /// Time until which packets may have been stamped before their socket saw them.
    loose_until_ns: u64,
    /// The latest timestamp that was yielded.
    latest: u64,
    late: u64,
}

fn key(stamp: u64, utc_ns: u64) -> Key {
    (stamp <= utc_ns + ns(STEP), stamp)
}

impl Merge {
    /// A merge of `sockets` sockets.
    pub(super) fn new(sockets: usize) -> Merge {
        Merge {
            sockets: vec![Seen::default(); sockets],
            looked_ns: 0,
            utc_ns: 0,
            loose_until_ns: 0,
            latest: 0,
            late: 0,
        }
    }

    /// Begins a look at the sockets: blocks that were handed over have been seen before this time, and counts will be
    /// read after it.
    pub(super) fn looked(&mut self, monotonic_ns: u64, utc_ns: u64) {
        (self.looked_ns, self.utc_ns) = (monotonic_ns.max(self.looked_ns + 1), utc_ns);
        if self.latest > utc_ns + ns(STEP) {
            // UTC was set back: earlier timestamps are not late now.
            self.latest = 0;
        }
    }

    /// Records that a socket's block was seen, whose first packet has this timestamp.
    pub(super) fn opened(&mut self, socket: usize, head: u64) {
        let seen = &mut self.sockets[socket];
        (seen.head, seen.opened_ns) = (Some(head), self.looked_ns);
    }

    /// Records that packets were seen that were stamped before the socket saw them.
    pub(super) fn loosen(&mut self) {
        self.loose_until_ns = self.looked_ns + ns(LOOSE_FOR);
    }

    /// Whether no packet of the socket's block is known.
    pub(super) fn has_none(&self, socket: usize) -> bool {
        self.sockets[socket].head.is_none()
    }

    /// Records that a socket without an open block was found, after [`Merge::looked`], to have no packet.
    pub(super) fn quiet(&mut self, socket: usize) {
        self.sockets[socket].quiet_ns = self.looked_ns;
    }

    /// Records that a packet with this timestamp was taken.
    pub(super) fn took(&mut self, stamp: u64) {
        self.late += u64::from(stamp < self.latest);
        self.latest = self.latest.max(stamp);
    }

    /// Sets the timestamp of a socket's next packet, after some were taken.
    pub(super) fn goes_on(&mut self, socket: usize, head: Option<u64>) {
        self.sockets[socket].head = head;
    }

    /// The next run, from the results of the last look.
    pub(super) fn next(&self) -> Next {
        let mut first: Option<(Key, usize)> = None;
        let mut bound = (true, u64::MAX);
        for (at, seen) in self.sockets.iter().enumerate() {
            let Some(head) = seen.head else { continue };
            let key = key(head, self.utc_ns);
            match first {
                Some((earliest, _)) if earliest <= key => bound = bound.min(key),
                _ => {
                    bound = first.map_or(bound, |(earliest, _)| bound.min(earliest));
                    first = Some((key, at));
                }
            }
        }
        let Some((_, socket)) = first else { return Next::Nothing };
        let opened = self.sockets[socket].opened_ns;
        let settled = opened + self.slack_ns();
        let given_up = opened + ns(LONGEST_HOLD);
        let waits = self.sockets.iter().any(|seen| seen.head.is_none() && seen.quiet_ns < settled);
        if waits && self.looked_ns < given_up {
            // If it waits for blocks, poll(2) reports them; if for time, the time is known.
            let until = if self.looked_ns < settled { settled } else { given_up };
            return Next::Held(Duration::from_nanos(until - self.looked_ns));
        }
        Next::Run(Run { socket, bound, utc_ns: self.utc_ns })
    }

    /// Packets that were handed over after later ones had been yielded: the order of the records is not strict.
    pub(super) fn late(&self) -> u64 {
        self.late
    }

    fn slack_ns(&self) -> u64 {
        if self.looked_ns < self.loose_until_ns { ns(LOOSE) } else { ns(STORE) }
    }
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
