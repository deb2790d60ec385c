//! The first-level flow cache, `bpf/lib/flow_cache.h`: its layout in a capture program's maps, and the same functions
//! compiled natively, over ordinary memory.

pub use crate::abi::{FlowPart, FlowSet, FlowSplits as Splits, FlowTag};
use crate::abi::{wl_native_flow_keep, wl_native_flow_splits};
use crate::flow::{FlowPacket, Timeouts};
use crate::layout::Ip;

/// Slots of a set (`WL_FLOW_WAYS`).
pub const WAYS: usize = crate::abi::WL_FLOW_WAYS as usize;

impl Splits {
    /// Ends of parts of flows with these timeouts.
    pub fn of(timeouts: &Timeouts) -> Splits {
        let mut splits = Splits::default();
        // SAFETY: both are live and have the layouts of C's structs; only the first is written.
        unsafe { wl_native_flow_splits(&mut splits, timeouts) };
        splits
    }

    /// Parts also end at the ends of intervals of `period_ns` nanoseconds, one of which begins at `at_ns`. Keys have
    /// more fields then ([`crate::flow::KEY_PORTS`]).
    pub fn with_intervals(mut self, period_ns: u64, at_ns: u64) -> Splits {
        self.period_ns = period_ns;
        self.origin_ns = at_ns.checked_rem(period_ns).unwrap_or(0);
        self
    }
}

/// A first-level cache.
#[derive(Clone, Debug)]
pub struct FirstLevel {
    sets: Vec<FlowSet>,
    splits: Splits,
    epoch: u32,
    seed: u32,
}

impl FirstLevel {
    /// An empty cache with this number of sets, rounded up to a power of two.
    pub fn new(sets: usize, timeouts: &Timeouts, seed: u32) -> FirstLevel {
        FirstLevel::with_splits(sets, Splits::of(timeouts), seed)
    }

    /// An empty cache whose parts end as `splits` specifies.
    pub fn with_splits(sets: usize, splits: Splits, seed: u32) -> FirstLevel {
        let sets = vec![FlowSet::default(); sets.next_power_of_two()];
        FirstLevel { sets, splits, epoch: 1, seed }
    }

    /// Adds a packet with these chosen headers. Returns the part that was evicted for it, if any.
    pub fn keep(&mut self, ip: &Ip, packet: &FlowPacket) -> Option<FlowPart> {
        let mut out = FlowPart::default();
        // SAFETY: all are live and have the layouts of C's structs. The number of sets is a power of two, as the
        // function requires. Only the sets and `out` are written.
        let handed_on = unsafe {
            wl_native_flow_keep(
                self.sets.as_mut_ptr(),
                self.sets.len() as u32,
                self.epoch,
                self.seed,
                &self.splits,
                ip,
                packet,
                &mut out,
            )
        };
        (handed_on != 0).then_some(out)
    }

    /// Begins another epoch; returns the parts of the last one.
    pub fn turn(&mut self) -> Vec<FlowPart> {
        let epoch = self.epoch;
        self.epoch += 1;
        let places = self.sets.iter().flat_map(|set| set.tags.iter().zip(&set.parts));
        places.filter(|(tag, _)| tag.epoch == epoch).map(|(_, part)| *part).collect()
    }
}
