//! The ledger's lines of a group, as its lanes write them.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use wirelane_bpf::instance::{Ring, Tally};

use super::instance::Instance;

/// Counts of the packets that were steered to one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerTally {
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) shed: u64,
    /// Packets that went into the worker's flow caches or were skipped by sampling, and parts that were delivered
    /// through its rings.
    pub(crate) offloaded: u64,
    pub(crate) parts: u64,
    pub(crate) unsampled: u64,
    pub(crate) unsampled_bytes: u64,
}

/// Counts of the packets that were steered to one worker of a group, over all lanes.
pub(super) fn worker_tally(instance: &Instance, group: usize, worker: usize) -> WorkerTally {
    let sum = |offset: usize| {
        (0..instance.lanes)
            .map(|lane| instance.ring(group, lane, worker) + offset)
            .map(|word| instance.rings.word(word).load(Ordering::Relaxed))
            .sum()
    };
    WorkerTally {
        delivered: sum(offset_of!(Ring, delivered)),
        lost: sum(offset_of!(Ring, lost)),
        shed: sum(offset_of!(Ring, shed)),
        offloaded: sum(offset_of!(Ring, offloaded)),
        parts: sum(offset_of!(Ring, parts)),
        unsampled: sum(offset_of!(Ring, unsampled)),
        unsampled_bytes: sum(offset_of!(Ring, unsampled_bytes)),
    }
}

/// One line of a group's ledger, as the lane has it now.
pub(crate) fn read_tally(instance: &Instance, group: usize, slot: usize) -> Tally {
    let start = instance.tally(group, slot);
    let read = |offset| instance.tallies.word(start + offset).load(Ordering::Relaxed);
    Tally {
        seen: read(offset_of!(Tally, seen)),
        filtered: read(offset_of!(Tally, filtered)),
        absorbed: read(offset_of!(Tally, absorbed)),
        shed: read(offset_of!(Tally, shed)),
        lost: read(offset_of!(Tally, lost)),
        delivered: read(offset_of!(Tally, delivered)),
        seen_bytes: read(offset_of!(Tally, seen_bytes)),
        turn: 0,
        blocked: read(offset_of!(Tally, blocked)),
        offloaded: read(offset_of!(Tally, offloaded)),
        offloaded_bytes: read(offset_of!(Tally, offloaded_bytes)),
        aggregates: read(offset_of!(Tally, aggregates)),
        in_flows: read(offset_of!(Tally, in_flows)),
        in_flows_bytes: read(offset_of!(Tally, in_flows_bytes)),
        measured: read(offset_of!(Tally, measured)),
        pad: 0,
    }
}
