//! Counters of a worker: one writer, summed by readers only.

use std::sync::atomic::{AtomicU64, Ordering};

/// Packets and bytes that one worker has yielded from one RX queue.
#[derive(Debug, Default)]
struct QueueTally {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Refused by the worker's filter or rules.
    filtered: AtomicU64,
    /// Absorbed by the worker's rules that only count.
    absorbed: AtomicU64,
    /// For records taken from a socket: packets on the wire beyond the first, and the number of records with such
    /// packets.
    further: AtomicU64,
    aggregates: AtomicU64,
}

/// Counters of one worker for one device, per RX queue.
#[derive(Debug)]
pub(crate) struct DeviceTally {
    queues: Box<[QueueTally]>,
    /// Records of plug-ins, which are no packets.
    plugin_records: AtomicU64,
}

impl DeviceTally {
    /// Counters for RX queues 0 to `queues - 1`; at least one.
    pub(crate) fn new(queues: usize) -> DeviceTally {
        let queues = (0..queues.max(1)).map(|_| QueueTally::default()).collect();
        DeviceTally { queues, plugin_records: AtomicU64::default() }
    }

    /// Counts a yielded record of `packets` packets and `wire_bytes` bytes on the wire. To be called only by the worker
    /// that owns the counters.
    #[inline]
    pub(crate) fn count(&self, queue: u16, packets: u32, wire_bytes: u64) {
        // A ring contains only our queues; in a file, an unknown queue counts with the first.
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // One writer: a load and a store, no locked addition. Relaxed: readers want the value, and learn from the end
        // of the worker's thread (join) that it is final.
        let add =
            |counter: &AtomicU64, n| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&tally.packets, packets.into());
        add(&tally.bytes, wire_bytes);
    }

    /// Counts a record of a plug-in. To be called only by the worker that owns the counters.
    pub(crate) fn plugin_record(&self) {
        // As in `count`.
        self.plugin_records.store(self.plugin_records() + 1, Ordering::Relaxed);
    }

    /// Records of plug-ins so far.
    pub(crate) fn plugin_records(&self) -> u64 {
        self.plugin_records.load(Ordering::Relaxed)
    }

    /// Counts a record of `packets` packets on the wire from `queue` that a filter or rule refused. To be called only
    /// by the worker that owns the counters.
    pub(crate) fn refuse(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        tally.filtered.store(tally.filtered.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// Counts a record of `packets` packets on the wire from `queue` that a rule only counted. To be called only by the
    /// worker that owns the counters.
    pub(crate) fn absorb(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        tally.absorbed.store(tally.absorbed.load(Ordering::Relaxed) + u64::from(packets), Ordering::Relaxed);
    }

    /// Counts an aggregate of `packets` packets on the wire that the socket counted as one, whatever its verdict. To be
    /// called only by the worker that owns the counters.
    pub(crate) fn aggregate(&self, queue: u16, packets: u32) {
        let tally = self.queues.get(usize::from(queue)).unwrap_or(&self.queues[0]);
        // As in `count`.
        let further = tally.further.load(Ordering::Relaxed) + u64::from(packets.saturating_sub(1));
        tally.further.store(further, Ordering::Relaxed);
        tally.aggregates.store(tally.aggregates.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// For one queue so far: packets on the wire that its socket has not counted, and the number of aggregates.
    pub(crate) fn aggregates(&self, queue: usize) -> (u64, u64) {
        self.queues.get(queue).map_or((0, 0), |tally| {
            (tally.further.load(Ordering::Relaxed), tally.aggregates.load(Ordering::Relaxed))
        })
    }

    /// Packets of one queue that rules have absorbed so far.
    pub(crate) fn absorbed(&self, queue: usize) -> u64 {
        self.queues.get(queue).map_or(0, |tally| tally.absorbed.load(Ordering::Relaxed))
    }

    /// Packets of one queue that a filter or rules have refused so far.
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
