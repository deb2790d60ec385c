//! The masks of an instance, a bit per group, which lanes read at every packet.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use wirelane_bpf::instance as layout;

use super::instance::Instance;
use crate::settings::Clock;

/// Sets or clears a group's bit in the mask that lanes read at every packet.
pub(super) fn set_active(instance: &Instance, group: usize, active: bool) {
    set_bit(instance, offset_of!(layout::Instance, active), group, active);
}

/// Sets whether a group is evaluated before the others, as its rules hold for the whole device.
pub(super) fn set_wide(instance: &Instance, group: usize, wide: bool) {
    set_bit(instance, offset_of!(layout::Instance, wide), group, wide);
}

/// Sets whether lanes mark their current packet for a group, as its workers merge lanes by time.
pub(super) fn set_ordered(instance: &Instance, group: usize, ordered: bool) {
    set_bit(instance, offset_of!(layout::Instance, ordered), group, ordered);
}

/// Sets how the packets of a group are stamped.
pub(super) fn set_clock(instance: &Instance, group: usize, clock: Clock) {
    set_bit(instance, offset_of!(layout::Instance, batch_clock), group, clock == Clock::Batch);
    set_bit(instance, offset_of!(layout::Instance, card_clock), group, clock == Clock::Card);
}

fn set_bit(instance: &Instance, mask: usize, group: usize, set: bool) {
    let mask = instance.state.word(mask);
    // SeqCst: other processes do the same; lanes see a group only after its maps are in place because the
    // update of an array of maps waits for running programs (kernel/bpf/syscall.c, maybe_wait_bpf_programs).
    if set {
        mask.fetch_or(1 << group, Ordering::SeqCst);
    } else {
        mask.fetch_and(!(1 << group), Ordering::SeqCst);
    }
}

/// Whether a group receives packets.
pub(crate) fn is_active(instance: &Instance, group: usize) -> bool {
    instance.state.word(offset_of!(layout::Instance, active)).load(Ordering::SeqCst) & (1 << group) != 0
}
