//! The maps of an instance: described by the process that has loaded them, mapped into every process that uses them.

use std::mem::offset_of;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use libbpf_rs::{MapCore as _, MapHandle};
use wirelane_bpf::instance::{
    Balance, EgressDevices, Group, INTERFACE_VERSION, Instance as Layout, MAX_WORKERS, Mark, Plugins, Ring,
    Tally,
};

use super::instance::{Hold, Instance};
use super::memory::Mapping;
use super::rules::RuleMaps;
use crate::error::{Error, Result};
use crate::hook::Hook;
use wirelane_netdev::Device;

/// The maps by their file descriptors.
pub(super) struct Maps {
    pub(super) instance: MapHandle,
    pub(super) groups: MapHandle,
    pub(super) tallies: MapHandle,
    pub(super) rings: MapHandle,
    pub(super) balances: MapHandle,
    pub(super) egress_devices: MapHandle,
    pub(super) plugins: MapHandle,
    pub(super) data: MapHandle,
    pub(super) bells: MapHandle,
    pub(super) marks: MapHandle,
    pub(super) owners: MapHandle,
    pub(super) programs: MapHandle,
    pub(super) filters: MapHandle,
    pub(super) flows: MapHandle,
    pub(super) http: MapHandle,
    pub(super) sheds: MapHandle,
    pub(super) streams: MapHandle,
    pub(super) measured: MapHandle,
    pub(super) rules: RuleMaps,
}

impl Maps {
    /// The maps by their names.
    pub(super) fn of(mut take: impl FnMut(&str) -> Result<MapHandle>) -> Result<Maps> {
        Ok(Maps {
            instance: take("wl_instance")?,
            groups: take("wl_groups")?,
            tallies: take("wl_tallies")?,
            rings: take("wl_rings")?,
            balances: take("wl_balances")?,
            egress_devices: take("wl_egress")?,
            plugins: take("wl_plugins")?,
            data: take("wl_data")?,
            bells: take("wl_bells")?,
            marks: take("wl_marks")?,
            owners: take("wl_owners")?,
            programs: take("wl_programs")?,
            filters: take("wl_filters")?,
            flows: take("wl_flows")?,
            http: take("wl_http_ways")?,
            sheds: take("wl_sheds")?,
            streams: take("wl_streams")?,
            measured: take("wl_measured")?,
            rules: RuleMaps {
                heads: take("wl_rule_heads")?,
                nodes: take("wl_rule_nodes")?,
                classes: take("wl_rule_classes")?,
                counts: take("wl_rule_counts")?,
                exact_rules: take("wl_exact_rules")?,
                blooms: take("wl_blooms")?,
                exacts: take("wl_exacts")?,
                pages: take("wl_search_pages")?,
                outputs: take("wl_search_ends")?,
            },
        })
    }

    /// Writes the instance's description, before another process can find it.
    pub(super) fn describe(&self, state: &Layout) -> Result<()> {
        // SAFETY: plain integers without padding, read as the bytes they are.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(state).cast::<u8>(), size_of::<Layout>())
        };
        self.instance
            .update(&0u32.to_ne_bytes(), bytes, libbpf_rs::MapFlags::ANY)
            .map_err(|e| Error::bpf("describing the instance", e))
    }

    /// Maps the shared parts into this process.
    pub(super) fn share(self, device: &Device, hook: Hook, hold: Hold) -> Result<Instance> {
        let map = |map: &MapHandle, len: usize, writable: bool| {
            Mapping::new(map.as_fd(), 0, len, writable).map_err(|e| {
                Error::kernel(format!("mapping '{}' of {}", map.name().to_string_lossy(), device.name), e)
            })
        };
        let share = |shared: &MapHandle, len: usize| map(shared, len, true);
        let state = share(&self.instance, size_of::<Layout>())?;
        let number = |offset: usize| {
            // Two 32-bit fields share a word; they are set before the instance can be found.
            let word = state.word(offset & !7).load(Ordering::Relaxed).to_ne_bytes();
            let at = offset & 7;
            u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
        };
        let theirs = number(offset_of!(Layout, version));
        if theirs != INTERFACE_VERSION {
            return Err(Error::OtherVersion { device: device.name.clone(), theirs, ours: INTERFACE_VERSION });
        }
        let lanes = number(offset_of!(Layout, lanes)) as usize;
        let queues = number(offset_of!(Layout, queues)) as usize;
        let per_cpu = number(offset_of!(Layout, per_cpu)) != 0;
        let slots = if per_cpu { lanes * queues } else { queues };
        let group_slots = number(offset_of!(Layout, groups)) as usize;
        let rings = group_slots * lanes * MAX_WORKERS * size_of::<Ring>();
        Ok(Instance {
            hook,
            lanes,
            queues,
            per_cpu,
            group_slots,
            groups: share(&self.groups, group_slots * size_of::<Group>())?,
            tallies: share(&self.tallies, group_slots * slots * size_of::<Tally>())?,
            rings: share(&self.rings, rings)?,
            balances: share(&self.balances, group_slots * lanes * size_of::<Balance>())?,
            egress_devices: share(&self.egress_devices, group_slots * lanes * size_of::<EgressDevices>())?,
            plugins: share(&self.plugins, group_slots * lanes * size_of::<Plugins>())?,
            writers_ends: Arc::new(map(&self.rings, rings, false)?),
            marks: Arc::new(map(&self.marks, lanes * size_of::<Mark>(), false)?),
            state,
            data: self.data,
            bells: self.bells,
            owners: self.owners,
            programs: self.programs,
            filters: self.filters,
            flows: self.flows,
            http: self.http,
            sheds: self.sheds,
            streams: self.streams,
            measured: self.measured,
            rules: self.rules,
            hold,
            _offloads: None,
            first: Mutex::default(),
        })
    }
}
