//! The egress devices of a group in its instance (`bpf/send.h`): devices, written before the group is active, and the
//! counts of each lane.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use wirelane_bpf::instance::EgressDevices;
use wirelane_bpf::rules::MAX_EGRESS_DEVICES;

use super::instance::Instance;
use crate::egress_devices::EgressDevice;

/// Byte offset in [`Instance::egress_devices`] of a lane's counts of a group's egress devices.
fn of(instance: &Instance, group: usize, lane: usize) -> usize {
    (group * instance.lanes + lane) * size_of::<EgressDevices>()
}

/// Writes a new group's egress devices for the lanes, and resets their counters. The group is not active.
pub(super) fn write(instance: &Instance, group: usize, egress_devices: &[EgressDevice]) {
    let mut bytes = [0u8; MAX_EGRESS_DEVICES * size_of::<u32>()];
    for (place, device) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(egress_devices) {
        *place = device.ifindex.to_ne_bytes();
    }
    for lane in 0..instance.lanes {
        let start = of(instance, group, lane);
        instance.egress_devices.clear(start, size_of::<EgressDevices>());
        for (at, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            let offset = start + offset_of!(EgressDevices, ifindex) + at * 8;
            instance.egress_devices.word(offset).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }
}

/// Number of packets and copies that were sent to an egress device, and number of failures.
pub(super) fn read(instance: &Instance, group: usize, index: usize) -> (u64, u64) {
    assert!(index < MAX_EGRESS_DEVICES, "egress device {index}");
    let sum = |counters: usize| {
        let word = |lane| of(instance, group, lane) + counters + index * size_of::<u64>();
        // Relaxed: the numbers are independent, and final once no lane writes any more.
        (0..instance.lanes).map(|lane| instance.egress_devices.word(word(lane)).load(Ordering::Relaxed)).sum()
    };
    (sum(offset_of!(EgressDevices, sent)), sum(offset_of!(EgressDevices, unsent)))
}
