//! Lists the groups of all running instances in this network namespace.

use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use libbpf_rs::{MapCore as _, MapFlags};
use serde::Serialize;
use wirelane_bpf::instance::{Group as Layout, MAX_GROUPS, SEGMENT, group_flags, steering};

use crate::engine::ring::filters;
use crate::engine::ring::instance::{Instance, running};
use crate::engine::ring::masks::is_active;
use crate::engine::ring::tallies::read_tally;
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::hook::HookPoint;
use crate::ledger::Counters;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::Capability;

/// Maximum number of groups of a device and direction.
pub const MOST: u32 = MAX_GROUPS as u32;

/// One group of an instance, as its memory describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Name of the device.
    pub device: String,
    /// The hook that the instance is attached to.
    pub hook: HookPoint,
    /// Slot among the instance's groups, 0 to 15.
    pub place: usize,
    /// The owner's command, as written by the owner.
    pub owner: String,
    /// The owner's process id, as written by the owner. In another PID namespace the process has another number.
    pub pid: u32,
    /// Whether the owner still exists. A slot that has lost its owner is cleared within a second, if another process
    /// captures on the device.
    pub alive: bool,
    /// Seconds since 1970 at which the group joined.
    pub since: u64,
    /// The captured RX queues; empty for transmitted packets.
    pub queues: Vec<u32>,
    /// Number of the group's workers.
    pub workers: u32,
    /// Steering, in the words of `--steering`, or `program`.
    pub steering: &'static str,
    /// Whether load moves between workers.
    pub adaptive: bool,
    /// Maximum number of captured bytes of a packet.
    pub snap_len: u32,
    /// Bytes of each ring.
    pub ring_size: u64,
    /// The tcpdump expression of the accepted packets; `None`: all packets.
    pub filter: Option<String>,
    /// Whether captured packets are kept from the host stack.
    pub exclusive: bool,
    /// Whether packets that the rules drop are kept from the host stack and from all other groups.
    pub device_wide: bool,
    /// The ledger, as far as the kernel side knows it: `analysed` is known to the owner only, and is 0 here.
    pub counters: Counters,
}

/// Lists all groups, by device and hook. Nothing is changed.
///
/// # Errors
/// [`wirelane_privsep::Error::MissingCapability`]: reading BPF objects needs the capabilities of a capture.
pub fn list() -> Result<Vec<Group>> {
    wirelane_privsep::require(&Capability::CAPTURE, "looking at groups")?;
    let mut groups = Vec::new();
    // Inspecting a filter's instance keeps the filter on the device meanwhile.
    let broker = crate::broker::for_filters();
    for device in Device::list()? {
        for hook in [Hook::Xdp(XdpMode::Native), Hook::Ingress, Hook::Egress] {
            match running(&device, hook, &broker) {
                Ok(Some(instance)) => of(&device, &instance, &mut groups)?,
                // Foreign programs have no groups; a kernel without this hook has no groups either.
                Ok(None) | Err(Error::ForeignProgram { .. } | Error::Unsupported { .. }) => {}
                Err(Error::OtherVersion { .. }) => {
                    tracing::warn!(
                        "{}: captured by another version of Wirelane: its groups are not shown",
                        device.name
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(groups)
}

fn of(device: &Device, instance: &Instance, groups: &mut Vec<Group>) -> Result<()> {
    for place in (0..instance.group_slots).filter(|place| is_active(instance, *place)) {
        let start = place * size_of::<Layout>();
        // Relaxed: the owner wrote all this before the group became active.
        let word =
            |offset: usize| instance.groups.word(start + (offset & !7)).load(Ordering::Relaxed).to_ne_bytes();
        let number = |offset: usize| {
            let at = offset & 7;
            let bytes = word(offset);
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let name: Vec<u8> = (0..2).flat_map(|half| word(offset_of!(Layout, owner) + half * 8)).collect();
        let wanted = |queue: usize| {
            u64::from_ne_bytes(word(offset_of!(Layout, queues) + queue / 64 * 8)) & (1 << (queue % 64)) != 0
        };
        let flags = number(offset_of!(Layout, flags));
        let owner = instance
            .owners
            .lookup(&(place as u32).to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("looking for a group's owner", e))?;
        let egress = instance.hook == Hook::Egress;
        groups.push(Group {
            device: device.name.clone(),
            hook: HookPoint::of(instance.hook),
            place,
            owner: String::from_utf8_lossy(name.split(|byte| *byte == 0).next().unwrap_or_default())
                .into_owned(),
            pid: number(offset_of!(Layout, owner_pid)),
            alive: owner.is_some(),
            since: seconds_of(u64::from_ne_bytes(word(offset_of!(Layout, joined_ns)))),
            queues: (0..instance.queues)
                .filter(|queue| !egress && wanted(*queue))
                .map(|q| q as u32)
                .collect(),
            workers: number(offset_of!(Layout, workers)),
            steering: steering_name(number(offset_of!(Layout, steering))),
            adaptive: flags & group_flags::ADAPTIVE != 0,
            snap_len: number(offset_of!(Layout, snap_len)),
            ring_size: u64::from(number(offset_of!(Layout, segments))) * SEGMENT as u64,
            filter: filters::expression(instance, place)?,
            exclusive: flags & group_flags::EXCLUSIVE != 0,
            device_wide: flags & group_flags::WIDE != 0,
            counters: counters(instance, place),
        });
    }
    Ok(())
}

fn counters(instance: &Instance, place: usize) -> Counters {
    let mut sum = Counters::default();
    for slot in 0..instance.slots() {
        let tally = read_tally(instance, place, slot);
        sum.filtered += tally.filtered;
        sum.blocked += tally.blocked;
        sum.aggregates += tally.aggregates;
        sum.absorbed += tally.absorbed;
        sum.shed += tally.shed;
        sum.lost += tally.lost;
        sum.delivered += tally.delivered;
    }
    // The lane may be between two columns of a packet: the sum is right for the packets before it.
    sum.seen = sum.filtered + sum.absorbed + sum.shed + sum.lost + sum.delivered;
    sum.in_flight = sum.delivered;
    sum
}

fn steering_name(code: u32) -> &'static str {
    match code {
        steering::FLOW => "flow",
        steering::QUEUE => "queue",
        steering::ROUND_ROBIN => "round-robin",
        steering::COPY => "copy",
        steering::VLAN => "vlan",
        steering::SOURCE => "source",
        steering::DESTINATION => "destination",
        steering::PROGRAM => "program",
        _ => "unknown",
    }
}

/// Seconds since 1970 of a reading of `CLOCK_MONOTONIC` in nanoseconds.
fn seconds_of(monotonic_ns: u64) -> u64 {
    let ago = crate::clock::monotonic_ns().saturating_sub(monotonic_ns) / 1_000_000_000;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    now.saturating_sub(ago)
}
