//! A group's description, in the memory that lanes read: its configuration, and its steering.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use wirelane_bpf::flow_cache::Splits;
use wirelane_bpf::instance::{self as layout, BUCKETS, Balance, Group};

use super::flows::FIRST_EPOCH;
use super::group_config::GroupConfig;
use super::instance::Instance;
use super::plugins::GroupPlugins;
use super::shed;

/// The initial workers of the buckets: all in turn.
pub(super) fn first_table(workers: usize) -> [u16; BUCKETS] {
    std::array::from_fn(|bucket| (bucket % workers) as u16)
}

/// Writes the bucket table of a new adaptive group for a lane, and resets the lane's counts.
pub(super) fn write_balance(instance: &Instance, group: usize, lane: usize, buckets: &[u16; BUCKETS]) {
    let start = instance.balance(group, lane);
    instance.balances.clear(start, size_of::<Balance>());
    for (word, workers) in buckets.as_chunks::<4>().0.iter().enumerate() {
        let bytes: Vec<u8> = workers.iter().flat_map(|worker| worker.to_ne_bytes()).collect();
        let value = bytes.as_chunks::<8>().0.first().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let offset = start + offset_of!(Balance, worker) + word * 8;
        instance.balances.word(offset).store(value, Ordering::Relaxed);
    }
}

/// Writes the group's configuration into the memory that lanes read. The group is not active yet. `program` is the slot
/// of its steering program, `placed` are its plug-ins, `filter` and `rules` are the numbers of
/// the filter and the rule set in use.
pub(super) fn write_group(
    instance: &Instance,
    group: usize,
    config: &GroupConfig,
    segments: usize,
    (program, placed): (u32, &GroupPlugins),
    (filter, rules): (u32, u32),
) {
    let (plugins, plugin_numbers) = (placed.mask(), placed.numbers());
    let mut queues = [0u64; layout::MAX_QUEUES / 64];
    for queue in &config.queues {
        queues[*queue as usize / 64] |= 1 << (queue % 64);
    }
    let config = Group {
        queues,
        snap_len: config.snap_len,
        workers: config.workers as u32,
        segments: segments as u32,
        steering: config.steering,
        flags: config.flags,
        publish_every: config.publish_every,
        owner_pid: std::process::id(),
        program,
        filter,
        rules,
        owner: owner_name(),
        joined_ns: crate::clock::monotonic_ns(),
        shed_low: config.shed.map_or(0, |(low, _)| low),
        shed_high: config.shed.map_or(0, |(_, high)| high),
        plugins,
        plugin_budget: config.plugin_budget,
        shares: config.share.map_or(0, |share| share.of),
        share: config.share.map_or(0, |share| share.number),
        share_seed: config.share.map_or(0, |share| share.seed),
        whole: config.flows.map_or(0, |flows| flows.whole),
        shed_refused: 0,
        shed_sets: shed::SETS,
        pad: 0,
        plugin_numbers,
        flow_sets: config.flows.map_or(0, |flows| flows.sets(config.workers) as u32),
        flow_epoch: FIRST_EPOCH,
        flow_sampling: config.flows.map_or(0, |flows| flows.sampling),
        flow_splits: config.flows.map_or_else(Splits::default, |flows| flows.splits()),
        buckets: first_table(config.workers),
    };
    let words = size_of::<Group>() / 8;
    for word in 0..words {
        // SAFETY: Group is plain integers without padding, its size a multiple of 8 (the layout test says
        // so); read_unaligned asks for nothing more.
        let value = unsafe { std::ptr::from_ref(&config).cast::<u64>().add(word).read_unaligned() };
        instance.groups.word(group * size_of::<Group>() + word * 8).store(value, Ordering::Relaxed);
    }
}

/// The kernel's name of this process.
fn owner_name() -> [u8; 16] {
    let mut name = [0; 16];
    if let Ok(comm) = std::fs::read("/proc/self/comm") {
        let len = comm.len().saturating_sub(1).min(15);
        name[..len].copy_from_slice(&comm[..len]);
    }
    name
}
