//! Congestion control, `bpf/lib/shed.h`: its layout in a capture program's maps, and the same function compiled natively,
//! for one ring over ordinary memory.

use crate::abi::wl_native_shed_refuses;
pub use crate::abi::{Shed, ShedPacket, ShedSet};

/// log2 of the nanoseconds of a tick (`WL_SHED_TICK_SHIFT`).
pub const TICK_SHIFT: u32 = crate::abi::WL_SHED_TICK_SHIFT;
/// Ticks after which a flow without packets is over (`WL_SHED_IDLE`).
pub const IDLE: u32 = crate::abi::WL_SHED_IDLE;
/// Flows of a set (`WL_SHED_WAYS`).
pub const WAYS: usize = crate::abi::WL_SHED_WAYS as usize;

/// Congestion control of one ring.
#[derive(Clone, Debug)]
pub struct OneRing {
    sets: Vec<ShedSet>,
    shed: Shed,
    congested: u32,
    low: u64,
    high: u64,
}

impl OneRing {
    /// A ring with these watermarks in bytes, and a table of so many sets of flows, rounded up to a power of two.
    ///
    /// # Panics
    /// If the watermarks are less than 4 bytes apart.
    pub fn new(low: u64, high: u64, sets: usize) -> OneRing {
        assert!(high.saturating_sub(low) >= 4, "watermarks {low} and {high} are too close");
        let sets = vec![ShedSet::default(); sets.next_power_of_two()];
        OneRing { sets, shed: Shed::default(), congested: 0, low, high }
    }

    /// Whether the ring, of which the bytes from `tail` to `head` are unread, refuses a packet with this flow hash.
    pub fn refuses(&mut self, hash: u32, tick: u32, head: u64, tail: u64) -> bool {
        let packet = ShedPacket { head, tail, low: self.low, high: self.high, hash, tick };
        let at = hash as usize & (self.sets.len() - 1);
        // SAFETY: all are live and have the layouts of C's structs; the function writes the first three only.
        unsafe {
            wl_native_shed_refuses(&mut self.shed, &mut self.sets[at], &mut self.congested, &packet) != 0
        }
    }
}
