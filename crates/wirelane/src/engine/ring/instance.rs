//! A capture program on a device: the running one, or a newly loaded one.
//!
//! Nothing is pinned: every user of an instance holds the same link and maps, and the kernel detaches the program from
//! the device with the last user. A running instance is found by the programs on the device. Where tc has no links,
//! `clsact/` does the same.

use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapHandle};
use wirelane_bpf::instance::{Balance, INTERFACE_VERSION, Instance as Layout, MAX_WORKERS, Ring, Tally};

use super::attach::{self, Found};
use super::clsact;
use super::load::{Attachment, load};
use super::many::Many;
use super::maps::Maps;
use super::memory::Mapping;
use super::program::{First, Needs};
use super::rules::RuleMaps;
use crate::error::{Error, Result};
use crate::hook::{Hook, Tc};
use crate::offloads::Offloads;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;

/// The maps of an instance that user space handles, and their shared parts.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) hook: Hook,
    pub(crate) lanes: usize,
    pub(crate) queues: usize,
    pub(crate) per_cpu: bool,
    /// Slots for groups.
    pub(crate) group_slots: usize,
    /// `struct wl_instance`.
    pub(crate) state: Mapping,
    /// `struct wl_group`, one per group.
    pub(crate) groups: Mapping,
    /// `struct wl_tally`, one per group and slot: see [`Instance::tally`].
    pub(crate) tallies: Mapping,
    /// `struct wl_ring`, one per group, lane and worker: see [`Instance::ring`].
    pub(crate) rings: Mapping,
    /// `struct wl_balance`, one per group and lane: see [`Instance::balance`].
    pub(crate) balances: Mapping,
    /// `struct wl_egress_devices`, one per group and lane.
    pub(crate) egress_devices: Mapping,
    /// `struct wl_plugins`, one per group and lane.
    pub(crate) plugins: Mapping,
    /// The same memory as `rings`, read-only: for workers.
    pub(crate) writers_ends: Arc<Mapping>,
    /// `struct wl_mark`, one per lane; read-only.
    pub(crate) marks: Arc<Mapping>,
    pub(crate) data: MapHandle,
    pub(crate) bells: MapHandle,
    pub(crate) owners: MapHandle,
    /// Object files of steering programs, followed by those of plug-ins.
    pub(crate) programs: MapHandle,
    /// `struct wl_filter`, two per group.
    pub(crate) filters: MapHandle,
    /// The flow caches of groups (`struct wl_flow_element`).
    pub(crate) flows: MapHandle,
    /// Connection directions that groups have followed (`struct wl_http_way`).
    pub(crate) http: MapHandle,
    /// State of congestion control of groups (`bpf/shed.h`).
    pub(crate) sheds: MapHandle,
    /// RTP streams that groups measure, and their measured state.
    pub(crate) streams: MapHandle,
    pub(crate) measured: MapHandle,
    pub(crate) rules: RuleMaps,
    /// Keeps the program on the device.
    pub(super) hold: Hold,
    /// After the program, which may have turned them off.
    pub(super) _offloads: Option<Offloads>,
    /// The program that this process has loaded with the instance, for the first group that joins it.
    pub(super) first: Mutex<Option<First>>,
}

/// The attachment that keeps a program on a device.
#[derive(Debug)]
pub(super) enum Hold {
    Link(OwnedFd),
    Filter(clsact::Filter),
    /// Any number of devices.
    Many(Many),
}

impl Instance {
    /// The instance on this hook of `device`: the running one, or a new one with a program that has what the capture needs.
    ///
    /// # Errors
    /// [`Error::ForeignProgram`], [`Error::OtherVersion`], [`Error::Unsupported`], or the error that the kernel
    /// returned.
    pub(crate) fn open(
        device: &Device,
        hook: Hook,
        tc: Tc,
        needs: &Needs,
        broker: &Arc<Broker>,
    ) -> Result<Instance> {
        if let Err(e) = clsact::heal(device) {
            tracing::warn!("{}: looking for tc filters that a killed wirelane left: {e}", device.name);
        }
        let mut offloads = Offloads::before(device, hook, broker)?;
        // Another process may start or end an instance between the lookup and the change: look again then.
        for _ in 0..16 {
            if let Some(instance) = find_or_load(device, hook, tc, needs, broker)? {
                return Ok(Instance { _offloads: offloads.take(), ..instance });
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Error::BadOption {
            option: "-i",
            reason: format!("programs come and go on {}; try again once that has settled", device.name),
        })
    }

    /// A new instance at tc that no device has yet: [`Instance::many`]. `device` stands for them.
    ///
    /// # Errors
    /// [`Error::Unsupported`], or the error that the kernel returned.
    pub(crate) fn for_many(device: &Device, hook: Hook, needs: &Needs) -> Result<Instance> {
        let loaded = load(device, hook, needs, Attachment::Many)?;
        loaded.ok_or_else(|| Error::kernel("loading a capture program", std::io::ErrorKind::NotFound.into()))
    }

    /// The instance for received packets by XDP: in the mode of a running instance, else native where the driver
    /// supports it, else generic, with a warning.
    ///
    /// # Errors
    /// As [`Instance::open`].
    pub(crate) fn open_xdp(device: &Device, needs: &Needs, broker: &Arc<Broker>) -> Result<Instance> {
        if let Found::Ours { hook, .. } = attach::look(device, Hook::Xdp(XdpMode::Native))? {
            return Instance::open(device, hook, Tc::Best, needs, broker);
        }
        match Instance::open(device, Hook::Xdp(XdpMode::Native), Tc::Best, needs, broker) {
            Err(Error::Unsupported { what, needs: missing, .. }) => {
                tracing::warn!("{what} needs {missing}: capturing under generic XDP, which is slower");
                Instance::open(device, Hook::Xdp(XdpMode::Generic), Tc::Best, needs, broker)
            }
            result => result,
        }
    }

    /// The lanes that can deliver packets of these queues.
    pub(crate) fn lanes_of(&self, queues: &[u32]) -> Vec<usize> {
        if self.per_cpu {
            (0..self.lanes).collect()
        } else {
            queues.iter().map(|&queue| queue as usize).filter(|&queue| queue < self.lanes).collect()
        }
    }

    /// Number of ledger lines of each group.
    pub(crate) fn slots(&self) -> usize {
        if self.per_cpu { self.lanes * self.queues } else { self.queues }
    }

    /// Byte offset in [`Instance::tallies`] of a group's first line.
    pub(crate) fn tally(&self, group: usize, slot: usize) -> usize {
        (group * self.slots() + slot) * size_of::<Tally>()
    }

    /// Byte offset in [`Instance::rings`] of a ring's writer's end.
    pub(crate) fn ring(&self, group: usize, lane: usize, worker: usize) -> usize {
        ((group * self.lanes + lane) * MAX_WORKERS + worker) * size_of::<Ring>()
    }

    /// Byte offset in [`Instance::balances`] of a lane's counts of a group's buckets.
    pub(crate) fn balance(&self, group: usize, lane: usize) -> usize {
        (group * self.lanes + lane) * size_of::<Balance>()
    }

    /// The device that the program is attached to, by its index in the network namespace where the device is now; 0: no
    /// device any more. `None` where there is no link to query.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the kernel does not answer.
    pub(crate) fn attached_to(&self) -> Result<Option<u32>> {
        match &self.hold {
            Hold::Link(link) => attach::device_of(link).map(Some),
            Hold::Filter(_) | Hold::Many(_) => Ok(None),
        }
    }

    /// The devices of an instance for any number of devices.
    pub(crate) fn many(&self) -> Option<&Many> {
        if let Hold::Many(many) = &self.hold { Some(many) } else { None }
    }

    /// The program that runs on the device now: it changes when a group adds a program.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn program(&self) -> Result<OwnedFd> {
        let id = match &self.hold {
            Hold::Link(link) => attach::program_of(link)?,
            Hold::Filter(filter) => filter.program()?,
            Hold::Many(many) => return many.program(),
        };
        let program = attach::by_id(id, sys::bpf_prog_get_fd_by_id, "program")?;
        program
            .ok_or_else(|| Error::kernel("opening the capture program", std::io::ErrorKind::NotFound.into()))
    }

    /// Replaces the running program, which is `old`. No packet passes uncaptured in between.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn replace(&self, old: &OwnedFd, new: BorrowedFd<'_>, device: &Device) -> Result<()> {
        match &self.hold {
            Hold::Link(link) => attach::replace(link, old, new, device),
            Hold::Filter(filter) => filter.replace(new),
            Hold::Many(many) => many.replace(old, new, device),
        }
    }

    /// Packets that came in on an RX queue or CPU which did not exist at load time.
    pub(crate) fn stray(&self) -> u64 {
        self.state.word(offset_of!(Layout, stray)).load(Ordering::Relaxed)
    }
}

/// The instance that runs on this hook of the device now, for inspection; `None` without one.
pub(crate) fn running(device: &Device, hook: Hook, broker: &Arc<Broker>) -> Result<Option<Instance>> {
    let tc_hook = matches!(hook, Hook::Ingress | Hook::Egress);
    match attach::look(device, hook)? {
        Found::Ours { program, hook } => {
            let Some(link) = attach::link_of(program)? else { return Ok(None) };
            join(device, program, hook, Hold::Link(link))
        }
        Found::Nothing | Found::NoLinks if tc_hook => match clsact::join(device, hook, broker)? {
            Some((filter, program)) => join(device, program, hook, Hold::Filter(filter)),
            None => Ok(None),
        },
        Found::Nothing | Found::NoLinks => Ok(None),
    }
}

/// Finds or loads an instance; `None` where the lookup result has changed meanwhile.
fn find_or_load(
    device: &Device,
    hook: Hook,
    tc: Tc,
    needs: &Needs,
    broker: &Arc<Broker>,
) -> Result<Option<Instance>> {
    let tc_hook = matches!(hook, Hook::Ingress | Hook::Egress);
    let found = if tc_hook && tc == Tc::Clsact { Found::NoLinks } else { attach::look(device, hook)? };
    match found {
        Found::Ours { program, hook: running } if running == hook => {
            let Some(link) = attach::link_of(program)? else { return Ok(None) };
            join(device, program, hook, Hold::Link(link))
        }
        Found::Ours { hook: running, .. } => Err(Error::BadOption {
            option: "--hook",
            reason: format!("{} is already captured by {running}; ask for the same", device.name),
        }),
        Found::Nothing | Found::NoLinks => {
            // On a kernel with both, there may be an instance that requested clsact.
            if tc_hook && let Some((filter, program)) = clsact::join(device, hook, broker)? {
                return join(device, program, hook, Hold::Filter(filter));
            }
            attach::refuse_headerless(device, hook)?;
            let without_links = matches!(found, Found::NoLinks);
            load(
                device,
                hook,
                needs,
                if without_links { Attachment::Filter(broker) } else { Attachment::Link },
            )
        }
    }
}

/// Joins the running instance; `None` if it ended meanwhile.
fn join(device: &Device, program: u32, hook: Hook, hold: Hold) -> Result<Option<Instance>> {
    let Some(program) = attach::by_id(program, sys::bpf_prog_get_fd_by_id, "program")? else {
        return Ok(None);
    };
    let (_, ids) = attach::program_info(&program)?;
    let mut maps = Vec::new();
    for id in ids {
        match MapHandle::from_map_id(id) {
            Ok(map) => maps.push(map),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::bpf("opening a running Wirelane's maps", e)),
        }
    }
    let maps = Maps::of(|name| {
        let at = maps.iter().position(|map| map.name() == name).ok_or_else(|| Error::OtherVersion {
            device: device.name.clone(),
            theirs: 0,
            ours: INTERFACE_VERSION,
        })?;
        Ok(maps.swap_remove(at))
    })?;
    maps.share(device, hook, hold).map(Some)
}
