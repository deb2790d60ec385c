//! The exits of a group in its instance (`bpf/send.h`): devices, written before the group is active, and
//! what each lane has sent there.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use wirelane_bpf::instance::Exits;
use wirelane_bpf::rules::MAX_EXITS;

use super::instance::Instance;
use crate::exits::Exit;

/// Byte offset in [`Instance::exits`] of what a lane knows of a group's exits.
fn of(instance: &Instance, group: usize, lane: usize) -> usize {
    (group * instance.lanes + lane) * size_of::<Exits>()
}

/// Tells the lanes where a new group's exits are, and sets their counters to 0. The group is not active.
pub(super) fn write(instance: &Instance, group: usize, exits: &[Exit]) {
    let mut bytes = [0u8; MAX_EXITS * size_of::<u32>()];
    for (place, exit) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(exits) {
        *place = exit.ifindex.to_ne_bytes();
    }
    for lane in 0..instance.lanes {
        let start = of(instance, group, lane);
        instance.exits.clear(start, size_of::<Exits>());
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let offset = start + offset_of!(Exits, ifindex) + at * 8;
            instance.exits.word(offset).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }
}

/// How many packets and copies were sent to an exit, and how many could not be.
pub(super) fn read(instance: &Instance, group: usize, exit: usize) -> (u64, u64) {
    assert!(exit < MAX_EXITS, "exit {exit}");
    let sum = |counters: usize| {
        let word = |lane| of(instance, group, lane) + counters + exit * size_of::<u64>();
        // Relaxed: each number stands for itself, and is final once no lane writes any more.
        (0..instance.lanes).map(|lane| instance.exits.word(word(lane)).load(Ordering::Relaxed)).sum()
    };
    (sum(offset_of!(Exits, sent)), sum(offset_of!(Exits, unsent)))
}
