//! Flows in the kernel: settings and counters.

use serde::Serialize;
use wirelane_bpf::flow::Timeouts;
use wirelane_bpf::flow_cache::{Splits, WAYS};
use wirelane_bpf::instance::FLOW_LEAST_SETS;

/// How packets become flows in the kernel ([`crate::Builder::kernel_flows`]).
#[derive(Clone, Copy, Debug)]
pub struct KernelFlows {
    /// Flows that each lane has room for, shared among the workers. Each worker's share is rounded up to a power of two,
    /// and to 128 at least.
    pub entries: usize,
    /// The timeouts of the flows that the parts are merged to.
    pub timeouts: Timeouts,
    /// One packet of how many becomes part of a flow; the others are only counted.
    pub sampling: u32,
    /// Intervals that parts are added up by, so that none belongs to two of them.
    pub intervals: Option<Intervals>,
    /// Packets that a rule decides about ([`crate::Builder::rules`]) whose id is 1 to this come up as they are, and become
    /// part of no flow. 0: there are none. Those rules have to pass what they accept.
    pub whole: u32,
}

/// Intervals of time, one behind the other, which begin at multiples of their length in UTC since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Nanoseconds of each; not 0.
    length_ns: u64,
    /// How far UTC is ahead of the kernel's monotonic clock, as it was when this was made. Steps of the system's clock are
    /// not followed: intervals are of one length.
    ahead_ns: u64,
}

impl Intervals {
    /// Intervals of so many nanoseconds, at least 1, by the system's clock as it is set now.
    pub fn new(length_ns: u64) -> Intervals {
        let ahead_ns = crate::clock::utc_minus_monotonic_ns().max(0) as u64;
        Intervals { length_ns: length_ns.max(1), ahead_ns }
    }

    /// UTC nanoseconds since 1970 of a time of the kernel's monotonic clock ([`crate::Timebase::steady_ns`]).
    pub fn utc_ns(&self, steady_ns: u64) -> u64 {
        steady_ns.saturating_add(self.ahead_ns)
    }

    /// When one of them begins, by the monotonic clock.
    fn begin_ns(&self) -> u64 {
        self.length_ns - self.ahead_ns % self.length_ns
    }
}

impl KernelFlows {
    /// Room for 4096 flows in each lane.
    pub const ENTRIES: usize = 4096;
    /// Most room in a lane.
    pub const MOST_ENTRIES: usize = 1 << 20;

    /// Where parts end.
    pub(crate) fn splits(&self) -> Splits {
        let splits = Splits::of(&self.timeouts);
        self.intervals.map_or(splits, |of| splits.with_intervals(of.length_ns, of.begin_ns()))
    }

    /// Sets of the cache that a lane has for each of so many workers.
    pub(crate) fn sets(&self, workers: usize) -> usize {
        self.entries.div_ceil(workers.max(1)).div_ceil(WAYS).max(FLOW_LEAST_SETS).next_power_of_two()
    }
}

/// What flow caches in the kernel have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCacheLine {
    /// Flows that all of them have room for at a time, over lanes and workers.
    pub entries: u64,
    /// Memory that they take, in bytes.
    pub memory_bytes: u64,
    /// Packets that went into them, or were left out by sampling: a part of the ledger's `absorbed`.
    pub packets: u64,
    /// Their wire bytes.
    pub bytes: u64,
    /// Parts of flows that have come up, also through memory.
    pub parts: u64,
    /// Of these, the ones that had to make place, and came through a ring.
    pub written: u64,
    /// Packets that sampling has left out.
    pub unsampled: u64,
    /// Their wire bytes.
    pub unsampled_bytes: u64,
}

impl std::ops::AddAssign for FlowCacheLine {
    fn add_assign(&mut self, other: FlowCacheLine) {
        self.entries += other.entries;
        self.memory_bytes += other.memory_bytes;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.parts += other.parts;
        self.written += other.written;
        self.unsampled += other.unsampled;
        self.unsampled_bytes += other.unsampled_bytes;
    }
}
