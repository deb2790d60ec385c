//! The state of congestion control of a group (`bpf/shed.h`): created when it joins, used by lanes only.

use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::shed::ShedSet;

use super::instance::Instance;
use crate::error::{Error, Result};

/// Sets of the table of flows, which has eight flows in each: half a million flows in 4 MiB.
pub(super) const SETS: u32 = 1 << 16;

/// Creates the map of a group that is joining with so many rings, and puts it into the instance's map for the lanes.
/// It holds itself there until the group's slot is cleared.
///
/// # Errors
/// The error that the kernel returned.
pub(super) fn create(instance: &Instance, group: usize, rings: usize) -> Result<()> {
    let elements = rings as u32 + SETS;
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let what = || {
        let mib = (elements as usize * size_of::<ShedSet>()).div_ceil(1 << 20);
        format!("allocating {mib} MiB for congestion control (a control group's memory limit counts)")
    };
    let map =
        MapHandle::create(MapType::Array, Some("wl_shed"), 4, size_of::<ShedSet>() as u32, elements, &opts)
            .map_err(|e| Error::bpf(what(), e))?;
    instance
        .sheds
        .update(&(group as u32).to_ne_bytes(), &map.as_fd().as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| Error::bpf("handing the state of congestion control to the capture program", e))
}
