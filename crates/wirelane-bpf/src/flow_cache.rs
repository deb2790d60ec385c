//! The first-level flow cache, `bpf/lib/flow_cache.h`: its layout in a capture program's maps, and the same
//! functions compiled natively, over memory of our own.

use crate::flow::{Flow, FlowKey, FlowPacket, Timeouts};
use crate::layout::Ip;

/// Places of a set (`WL_FLOW_WAYS`).
pub const WAYS: usize = 4;

/// A part of a flow (`struct wl_flow_part`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowPart {
    /// The key of its packets.
    pub key: FlowKey,
    /// What they come to.
    pub flow: Flow,
}

/// What is in a place (`struct wl_flow_tag`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowTag {
    /// When it was filled; 0: never.
    pub epoch: u32,
    /// Hash of the key.
    pub hash: u32,
}

/// A set (`struct wl_flow_set`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowSet {
    /// What is in each place.
    pub tags: [FlowTag; WAYS],
    /// What has been added up there.
    pub parts: [FlowPart; WAYS],
}

/// Where parts end (`struct wl_flow_splits`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Splits {
    /// After so many nanoseconds of silence.
    pub gap_ns: u64,
    /// At times that are multiples of 1 << this nanoseconds.
    pub grid_shift: u32,
    #[doc(hidden)]
    pub pad: u32,
    /// At the ends of intervals that parts are added up by, of so many nanoseconds; 0: there are none.
    pub period_ns: u64,
    /// Where one of them begins; less than `period_ns`.
    pub origin_ns: u64,
}

unsafe extern "C" {
    fn wl_native_flow_splits(splits: *mut Splits, timeouts: *const Timeouts);
    fn wl_native_flow_keep(
        sets: *mut FlowSet,
        count: u32,
        epoch: u32,
        seed: u32,
        splits: *const Splits,
        ip: *const Ip,
        packet: *const FlowPacket,
        out: *mut FlowPart,
    ) -> u32;
}

impl Splits {
    /// Where parts of flows with these timeouts end.
    pub fn of(timeouts: &Timeouts) -> Splits {
        let mut splits = Splits::default();
        // SAFETY: both are live and have the layouts of C's structs, which a test compares; only the first is written.
        unsafe { wl_native_flow_splits(&mut splits, timeouts) };
        splits
    }

    /// And at the ends of intervals of `period_ns` nanoseconds, one of which begins at `at_ns`. Keys say more then
    /// ([`crate::flow::KEY_PORTS`]).
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
    /// An empty one with so many sets, rounded up to a power of two.
    pub fn new(sets: usize, timeouts: &Timeouts, seed: u32) -> FirstLevel {
        FirstLevel::with_splits(sets, Splits::of(timeouts), seed)
    }

    /// The same, whose parts end there.
    pub fn with_splits(sets: usize, splits: Splits, seed: u32) -> FirstLevel {
        let sets = vec![FlowSet::default(); sets.next_power_of_two()];
        FirstLevel { sets, splits, epoch: 1, seed }
    }

    /// Adds a packet with these chosen headers. Where a part has to make place for it, that is what is returned.
    pub fn keep(&mut self, ip: &Ip, packet: &FlowPacket) -> Option<FlowPart> {
        let mut out = FlowPart::default();
        // SAFETY: all are live and have the layouts of C's structs, which a test compares. The number of sets is a power
        // of two, which is what the function takes it for. Only the sets and `out` are written.
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

    /// Another epoch begins: what was there in the last one.
    pub fn turn(&mut self) -> Vec<FlowPart> {
        let epoch = self.epoch;
        self.epoch += 1;
        let places = self.sets.iter().flat_map(|set| set.tags.iter().zip(&set.parts));
        places.filter(|(tag, _)| tag.epoch == epoch).map(|(_, part)| *part).collect()
    }
}
