//! Counters of a worker: one writer, summed by readers only.

use std::sync::atomic::{AtomicU64, Ordering};

/// Packets and bytes that one worker has yielded from one RX queue.
#[derive(Debug, Default)]
struct QueueTally {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Refused by the worker's filter or rules.
    filtered: AtomicU64,
    /// Taken by the worker's rules, which only count.
    absorbed: AtomicU64,
    /// Of records that were taken from a socket: packets on the wire beside the first, and how many had such.
    further: AtomicU64,
    aggregates: AtomicU64,
}

/// What one worker has analysed of one device, per RX queue.
#[derive(Debug)]
pub(crate) struct DeviceTally {
    queues: Box<[QueueTally]>,
}

impl DeviceTally {
    /// Counters for RX queues 0 to `queues - 1`; at least one.
    pub(crate) fn new(queues: usize) -> DeviceTally {
        DeviceTally { queues: (0..queues.max(1)).map(|_| QueueTally::default()).collect() }
    }

    /// Counts a record of so many packets and bytes on the wire that was yielded. For the one worker that owns the
    /// counters.
    #[inline]
    pub(crate) fn count(&self, queue: u16, packets: u32, wire_bytes: u64) {
        // A queue that is not ours cannot come out of a ring; in a file it counts with the first.
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // One writer: a load and a store, no locked addition. Relaxed: readers want the value, and learn from
        // the end of the worker's thread (join) that it is final.
        let add =
            |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&tally.packets, packets.into());
        add(&tally.bytes, wire_bytes);
    }

    /// A record of so many packets on the wire from `queue` was refused by a filter or rule. For the one worker that owns
    /// the counters.
    pub(crate) fn refuse(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        tally.filtered.store(tally.filtered.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// A record of so many packets on the wire from `queue` was counted by a rule, and no more. For the one worker that
    /// owns the counters.
    pub(crate) fn absorb(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        tally.absorbed.store(tally.absorbed.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// An aggregate of so many packets on the wire was taken from a socket, which has counted it once. Wherever it goes.
    /// For the one worker that owns the counters.
    pub(crate) fn aggregate(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        let further = tally.further.load(Ordering::Relaxed) + u64::from(packets.saturating_sub(1));
        tally.further.store(further, Ordering::Relaxed);
        tally.aggregates.store(tally.aggregates.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Of one queue so far: the packets on the wire that its socket has not counted, and the aggregates.
    pub(crate) fn aggregates(&self, queue: usize) -> (u64, u64) {
        self.queues.get(queue).map_or((0, 0), |tally| {
            (tally.further.load(Ordering::Relaxed), tally.aggregates.load(Ordering::Relaxed))
        })
    }

    /// Packets of one queue that a rule has absorbed so far.
    pub(crate) fn absorbed(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |tally| tally.absorbed.load(Ordering::Relaxed))
    }

    /// Packets of one queue that a filter or rule has refused so far.
    pub(crate) fn filtered(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |tally| tally.filtered.load(Ordering::Relaxed))
    }

    /// `(packets, wire bytes)` of one queue so far.
    pub(crate) fn of(&self, queue: usize) -> (u64, u64) {
        self.queues.get(queue).map_or((0, 0), |tally| {
            (tally.packets.load(Ordering::Relaxed), tally.bytes.load(Ordering::Relaxed))
        })
    }

    /// `(packets, wire bytes)` over all queues so far.
    pub(crate) fn sum(&self) -> (u64, u64) {
        (0..self.queues.len()).map(|q| self.of(q)).fold((0, 0), |(p, b), (dp, db)| (p + dp, b + db))
    }
}
