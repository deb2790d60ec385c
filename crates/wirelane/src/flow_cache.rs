//! Flows in the kernel: settings and counters.

use serde::Serialize;
use wirelane_bpf::flow::Timeouts;
use wirelane_bpf::flow_cache::{Splits, WAYS};
use wirelane_bpf::instance::FLOW_LEAST_SETS;

use crate::error::{Error, Result};

/// Settings of the in-kernel flow cache ([`crate::Builder::kernel_flows`]).
#[derive(Clone, Copy, Debug)]
pub struct KernelFlows {
    /// Capacity of each lane in flows, shared among the workers. Each worker's share is rounded up to a power of two,
    /// and to 128 at least.
    pub entries: usize,
    /// Timeouts of the flows that result from merging the parts.
    pub timeouts: Timeouts,
    /// Sampling: one packet of this many becomes part of a flow; the others are only counted.
    pub sampling: u32,
    /// Intervals at which parts are split, so that no part belongs to two of them.
    pub intervals: Option<Intervals>,
    /// Packets that are decided by a rule ([`crate::Builder::rules`]) with an id from 1 to this number are delivered
    /// whole, and do not become part of a flow. 0: no such rules. Those rules have to pass the packets that they
    /// accept.
    pub whole: u32,
    /// Whether packets that become part of a flow are also delivered to the workers: they are `delivered` in the ledger
    /// then, and not `absorbed`. For other analyses of the same packets.
    pub deliver: bool,
}

/// Consecutive intervals of time, which begin at multiples of their length in UTC since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Length in nanoseconds; not 0.
    length_ns: u64,
    /// UTC minus the kernel's monotonic clock, in nanoseconds, when this value was made. Steps of the system's clock
    /// are not followed: all intervals have the same length.
    ahead_ns: u64,
}

impl Intervals {
    /// Intervals of `length_ns` nanoseconds, at least 1, by the system's clock as it is set now.
    pub fn new(length_ns: u64) -> Intervals {
        let ahead_ns = crate::clock::utc_minus_monotonic_ns().max(0) as u64;
        Intervals { length_ns: length_ns.max(1), ahead_ns }
    }

    /// UTC nanoseconds since 1970 of a time of the kernel's monotonic clock ([`crate::Timebase::steady_ns`]).
    pub fn utc_ns(&self, steady_ns: u64) -> u64 {
        steady_ns.saturating_add(self.ahead_ns)
    }

    /// Start of an interval, on the monotonic clock.
    fn begin_ns(&self) -> u64 {
        self.length_ns - self.ahead_ns % self.length_ns
    }
}

impl KernelFlows {
    /// Default capacity of a lane in flows.
    pub const ENTRIES: usize = 4096;
    /// Maximum capacity of a lane in flows.
    pub const MOST_ENTRIES: usize = 1 << 20;

    /// Refuses a capacity that is not possible.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    pub(crate) fn check_entries(&self) -> Result<()> {
        if (1..=KernelFlows::MOST_ENTRIES).contains(&self.entries) {
            return Ok(());
        }
        let reason = format!("{} is not between 1 and {}", self.entries, KernelFlows::MOST_ENTRIES);
        Err(Error::BadOption { option: "--cache-entries", reason })
    }

    /// The conditions under which a part ends.
    pub(crate) fn splits(&self) -> Splits {
        let splits = Splits::of(&self.timeouts);
        self.intervals.map_or(splits, |of| splits.with_intervals(of.length_ns, of.begin_ns()))
    }

    /// Number of cache sets in a lane for each of `workers` workers.
    pub(crate) fn sets(&self, workers: usize) -> usize {
        self.entries.div_ceil(workers.max(1)).div_ceil(WAYS).max(FLOW_LEAST_SETS).next_power_of_two()
    }
}

/// Counts of the in-kernel flow caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FlowCacheLine {
    /// Total capacity in flows, over lanes and workers.
    pub entries: u64,
    /// Memory of the caches, in bytes.
    pub memory_bytes: u64,
    /// Packets that went into the caches, or were skipped by sampling: a part of the ledger's `absorbed`.
    pub packets: u64,
    /// Wire bytes of `packets`.
    pub bytes: u64,
    /// Delivered parts of flows, including those delivered through memory.
    pub parts: u64,
    /// Of `parts`: those that were evicted, and delivered through a ring.
    pub written: u64,
    /// Packets that were skipped by sampling.
    pub unsampled: u64,
    /// Wire bytes of `unsampled`.
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
