//! A capture program on a device: the running one, or a newly loaded one.
//!
//! Nothing is pinned: every user of an instance holds the same link and maps, and the kernel detaches the program from
//! the device with the last user. A running instance is found by the programs on the device. Where tc has no links,
//! `clsact/` does the same.

use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapHandle, ObjectBuilder};
use wirelane_bpf::instance::{
    Balance, INTERFACE_VERSION, Instance as Layout, MAX_GROUPS, MAX_QUEUES, MAX_WORKERS, PROGRAM_EGRESS,
    PROGRAM_INGRESS, PROGRAM_XDP, PROGRAM_XDP_METADATA, Ring, Tally,
};
use wirelane_bpf::skel::capture::types::wl_config;
use wirelane_filter::instructions::Context;

use super::attach::{self, Found};
use super::lanes::{refuse_realtime, shares_queues, tells_queues};
use super::log::trace_libbpf;
use super::maps::Maps;
use super::memory::Mapping;
use super::program::{self, First, Needs, Parts};
use super::rules::RuleMaps;
use super::{clsact, room};
use crate::engine::seed::{machine_seed, random_number};
use crate::error::{Error, Result};
use crate::hook::{Hook, Tc};
use crate::kernel;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;

/// The maps of an instance that user space handles, and their shared parts.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) hook: Hook,
    pub(crate) lanes: usize,
    pub(crate) queues: usize,
    pub(crate) per_cpu: bool,
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
    /// The program that this process has loaded with the instance, for the first group that joins it.
    pub(super) first: Mutex<Option<First>>,
}

/// The attachment that keeps a program on a device.
#[derive(Debug)]
pub(super) enum Hold {
    Link(OwnedFd),
    Filter(clsact::Filter),
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
        // Another process may start or end an instance between the lookup and the change: look again then.
        for _ in 0..16 {
            if let Some(instance) = find_or_load(device, hook, tc, needs, broker)? {
                return Ok(instance);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Error::BadOption {
            option: "-i",
            reason: format!("programs come and go on {}; try again once that has settled", device.name),
        })
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
            Hold::Filter(_) => Ok(None),
        }
    }

    /// The program that runs on the device now: it changes when a group adds a program.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn program(&self) -> Result<OwnedFd> {
        let id = match &self.hold {
            Hold::Link(link) => attach::program_of(link)?,
            Hold::Filter(filter) => filter.program()?,
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
            load(device, hook, needs, matches!(found, Found::NoLinks).then_some(broker))
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

/// Loads the program of this hook and attaches it, by link or as a clsact filter; `None` if another process was
/// faster.
fn load(
    device: &Device,
    hook: Hook,
    needs: &Needs,
    as_filter: Option<&Arc<Broker>>,
) -> Result<Option<Instance>> {
    // Device-bound programs can read the card's descriptors (Documentation/networking/xdp-rx-metadata.rst).
    let metadata = hook == Hook::Xdp(XdpMode::Native)
        && device.xdp_features.as_ref().is_some_and(|f| f.rx_vlan_tag || f.rx_timestamp);
    if let Some(parts) = Parts::of(needs).filter(|_| !needs.is_plain()) {
        match load_as(device, hook, needs, as_filter, metadata, parts)? {
            Loaded::Instance(instance) => return Ok(instance.map(|instance| *instance)),
            Loaded::Refused(error) if needs.suspect().is_some() => return Err(error),
            // The plain one may be loaded; joining says which of its parts is refused, or interprets the filter.
            Loaded::Refused(error) => tracing::debug!("{}: with all its parts: {error}", device.name),
            Loaded::Unsafe { .. } => {}
        }
    }
    match load_as(device, hook, needs, as_filter, metadata, Parts::default())? {
        Loaded::Instance(instance) => Ok(instance.map(|instance| *instance)),
        Loaded::Refused(error) => Err(error),
        Loaded::Unsafe { given, now } => {
            tracing::warn!(
                "{}: this kernel made the capture program longer than it had room for ({given} instructions, {now} now): \
                 its card is not asked for VLAN tags and times",
                device.name
            );
            match load_as(device, hook, needs, as_filter, false, Parts::default())? {
                Loaded::Instance(instance) => Ok(instance.map(|instance| *instance)),
                Loaded::Refused(error) => Err(error),
                Loaded::Unsafe { .. } => unreachable!("only a program that is bound to its device is unsafe"),
            }
        }
    }
}

/// Result of loading.
enum Loaded {
    /// `None` if another process was faster.
    Instance(Option<Box<Instance>>),
    /// The kernel may have moved the program, which is bound to the device (room.rs); it has been unloaded.
    Unsafe { given: usize, now: usize },
    /// It cannot be linked, or the kernel refuses it.
    Refused(Error),
}

/// [`load`], with a program that reads `metadata` of the card or without, and with these parts.
fn load_as(
    device: &Device,
    hook: Hook,
    needs: &Needs,
    as_filter: Option<&Arc<Broker>>,
    metadata: bool,
    parts: Parts,
) -> Result<Loaded> {
    // Transmitted packets have no RX queues: all count for queue 0.
    let one_queue = hook == Hook::Egress || hook == Hook::Ingress && !tells_queues(attach::driver(device));
    let queues = if one_queue { 1 } else { (device.max_rx_queues as usize).clamp(1, MAX_QUEUES) };
    let per_cpu = hook != Hook::Xdp(XdpMode::Native) || shares_queues(attach::driver(device));
    if let Some(refusal) = refuse_realtime(crate::kernel::is_realtime(), per_cpu, device, hook) {
        return Err(refusal);
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| Error::bpf("counting CPUs", e))?;
    let lanes = if per_cpu { cpus } else { queues };
    let slots = if per_cpu { lanes * queues } else { queues };
    let seed = machine_seed();
    trace_libbpf();
    let batches = kernel::tells_batches();
    let doing = |what: &str| format!("{what} for {}", device.name);
    let context = if matches!(hook, Hook::Xdp(_)) { Context::Xdp } else { Context::Skb };
    let new = needs.suspect().filter(|_| parts.has_programs());
    let bytes = match parts.object(context, new) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Loaded::Refused(error)),
    };
    let builder = || ObjectBuilder::default().name(program::OBJECT)?.open_memory(&bytes);
    let mut open = builder().map_err(|e| Error::bpf(doing("opening the capture program"), e))?;
    let words = [
        (offset_of!(wl_config, lanes), lanes as u32),
        (offset_of!(wl_config, queues), queues as u32),
        (offset_of!(wl_config, per_cpu), per_cpu.into()),
        (offset_of!(wl_config, seed), seed),
        (offset_of!(wl_config, link), device.link_type as u32),
        (offset_of!(wl_config, batches), batches.into()),
        (offset_of!(wl_config, features), needs.features),
        (offset_of!(wl_config, batch_mark), random_number()),
    ];
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "wl_tallies" => MAX_GROUPS * slots,
            "wl_rings" => MAX_GROUPS * lanes * MAX_WORKERS,
            "wl_balances" | "wl_egress" | "wl_plugins" => MAX_GROUPS * lanes,
            "wl_lanes" | "wl_marks" => lanes,
            "wl_owners" => program::OWNERS as usize,
            _ if name.ends_with(program::READ_ONLY) => {
                let config = map.initial_value_mut().unwrap_or_default();
                for (at, word) in words {
                    program::set(config, at, |_| word)?;
                }
                parts.describe(config)?;
                continue;
            }
            _ => continue,
        };
        map.set_max_entries(entries as u32).map_err(|e| Error::bpf(doing("sizing the maps"), e))?;
    }
    let name = match hook {
        Hook::Xdp(_) if metadata => PROGRAM_XDP_METADATA,
        Hook::Xdp(_) => PROGRAM_XDP,
        Hook::Ingress => PROGRAM_INGRESS,
        Hook::Egress => PROGRAM_EGRESS,
    };
    for mut program in open.progs_mut().filter(|program| program.name() == name) {
        program.set_autoload(true);
        if metadata {
            program.set_ifindex(device.ifindex);
            program.set_flags(sys::BPF_F_XDP_DEV_BOUND_ONLY | sys::BPF_F_XDP_HAS_FRAGS);
        }
    }
    let loaded = match new {
        Some(_) => program::load_object(open, name),
        None => program::load_plain(open).map_err(|error| (error, String::new())),
    };
    let object = match loaded {
        Ok(object) => object,
        Err((e, said)) => {
            let loading = || doing("loading the capture program into the kernel");
            let other = || Error::bpf(kernel::without_types().unwrap_or_else(loading), e);
            let refused = new.and_then(|new| program::refused(Some(new), &said));
            return Ok(Loaded::Refused(refused.unwrap_or_else(other)));
        }
    };
    let gone = |what: &str| Error::kernel(doing(what), std::io::ErrorKind::NotFound.into());
    let loaded = object.progs().find(|program| program.name() == name);
    let loaded = loaded.ok_or_else(|| gone("finding the capture program"))?;
    let program = loaded.as_fd();
    if metadata {
        let given = loaded.insn_cnt();
        let now = attach::instructions(program)?;
        if room::may_have_moved(program, given)? {
            return Ok(Loaded::Unsafe { given, now });
        }
        tracing::debug!("{}: {given} instructions given, {now} loaded", device.name);
    }
    let maps = Maps::of(|name| {
        let map = object.maps().find(|map| map.name() == name).ok_or_else(|| gone("finding the maps"))?;
        MapHandle::try_from(&map).map_err(|e| Error::bpf(doing("keeping a map"), e))
    })?;
    // Some programs do not use these maps: bound to the program, they are found by processes that find the program.
    for map in [&maps.owners, &maps.programs, &maps.egress_devices] {
        attach::bind(program, map.as_fd()).map_err(|e| Error::kernel(doing("binding a map"), e))?;
    }
    let state = Layout {
        active: 0,
        stray: 0,
        version: INTERFACE_VERSION,
        lanes: lanes as u32,
        queues: queues as u32,
        ifindex: device.ifindex,
        per_cpu: per_cpu.into(),
        seed,
        batch_clock: 0,
        card_clock: 0,
        wide: 0,
        ordered: 0,
        pad: [0; 7],
    };
    maps.describe(&state)?;
    let first = parts.keep(&maps.programs, attach::program_id(program)?)?;
    let shared = |maps: Maps, hold| {
        let instance = Instance { first: Mutex::new(Some(first)), ..maps.share(device, hook, hold)? };
        Ok(Loaded::Instance(Some(Box::new(instance))))
    };
    if let Some(broker) = as_filter {
        let Some(filter) = clsact::attach(program, &maps.owners, device, hook, broker)? else {
            return Ok(Loaded::Instance(None));
        };
        return shared(maps, Hold::Filter(filter));
    }
    let Some(link) = attach::attach(program, device, hook)? else { return Ok(Loaded::Instance(None)) };
    if matches!(hook, Hook::Ingress | Hook::Egress)
        && let Found::Ours { program: first, .. } = attach::look(device, hook)?
        && attach::link_of(first)?.is_some()
        && first != attach::program_id(program)?
    {
        // tc takes any number of programs: if two processes attach at once, the later one joins the other.
        return Ok(Loaded::Instance(None));
    }
    shared(maps, Hold::Link(link))
}
