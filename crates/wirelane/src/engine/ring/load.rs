//! Loading a new instance: the object sized and configured for the device, verified by the kernel, attached.

use std::mem::offset_of;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapHandle, ObjectBuilder};
use wirelane_bpf::instance::{
    INTERFACE_VERSION, Instance as Layout, MAX_QUEUES, MAX_WORKERS, PROGRAM_EGRESS, PROGRAM_EGRESS_MANY,
    PROGRAM_INGRESS, PROGRAM_INGRESS_MANY, PROGRAM_XDP, PROGRAM_XDP_METADATA, features,
};
use wirelane_bpf::skel::capture_xdp::types::wl_config;
use wirelane_filter::instructions::Context;

use super::attach::{self, Found};
use super::instance::{Hold, Instance};
use super::lanes::{refuse_realtime, shares_queues, tells_queues};
use super::log::trace_libbpf;
use super::many::{Many, SLOTS};
use super::maps::Maps;
use super::program::{self, Needs, Parts};
use super::{clsact, room};
use crate::engine::seed::{machine_seed, random_number};
use crate::error::{Error, Result};
use crate::hook::Hook;
use crate::kernel;
use wirelane_netdev::{Device, XdpMode};
use wirelane_privsep::broker::Broker;

/// The way in which a new program is attached.
#[derive(Clone, Copy)]
pub(super) enum Attachment<'a> {
    Link,
    /// As a clsact filter, which this broker removes.
    Filter(&'a Arc<Broker>),
    /// Later, to any number of devices.
    Many,
}

/// Loads the program of this hook and attaches it; `None` if another process was faster.
pub(super) fn load(
    device: &Device,
    hook: Hook,
    needs: &Needs,
    attachment: Attachment<'_>,
) -> Result<Option<Instance>> {
    // Device-bound programs can read the card's descriptors (Documentation/networking/xdp-rx-metadata.rst).
    let metadata = hook == Hook::Xdp(XdpMode::Native)
        && device.xdp_features.as_ref().is_some_and(|f| f.rx_vlan_tag || f.rx_timestamp);
    if let Some(parts) = Parts::of(needs).filter(|_| !needs.is_plain()) {
        match load_as(device, hook, needs, attachment, metadata, parts)? {
            Loaded::Instance(instance) => return Ok(instance.map(|instance| *instance)),
            Loaded::Refused(error) if needs.suspect().is_some() => return Err(error),
            // The plain one may be loaded; joining says which of its parts is refused, or interprets the filter.
            Loaded::Refused(error) => tracing::debug!("{}: with all its parts: {error}", device.name),
            Loaded::Unsafe { .. } => {}
        }
    }
    match load_as(device, hook, needs, attachment, metadata, Parts::default())? {
        Loaded::Instance(instance) => Ok(instance.map(|instance| *instance)),
        Loaded::Refused(error) => Err(error),
        Loaded::Unsafe { given, now } => {
            tracing::warn!(
                "{}: this kernel made the capture program longer than it had room for ({given} instructions, {now} now): \
                 its card is not asked for VLAN tags and times",
                device.name
            );
            match load_as(device, hook, needs, attachment, false, Parts::default())? {
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
    attachment: Attachment<'_>,
    metadata: bool,
    parts: Parts,
) -> Result<Loaded> {
    // Transmitted packets have no RX queues: all count for queue 0.
    let one_queue = hook == Hook::Egress || hook == Hook::Ingress && !tells_queues(attach::driver(device));
    let is_many = matches!(attachment, Attachment::Many);
    let queues = match is_many {
        true => SLOTS,
        false if one_queue => 1,
        false => (device.max_rx_queues as usize).clamp(1, MAX_QUEUES),
    };
    let features = if is_many { needs.features | features::SLOTS } else { needs.features };
    let per_cpu = hook != Hook::Xdp(XdpMode::Native) || shares_queues(attach::driver(device));
    if let Some(refusal) = refuse_realtime(crate::kernel::is_realtime(), per_cpu, device, hook) {
        return Err(refusal);
    }
    // Two queues must not have one lane.
    if !per_cpu && device.rx_queues.len() > MAX_QUEUES {
        return Err(Error::Unsupported {
            what: format!("capturing on {} by {hook}", device.name),
            needs: format!("at most {MAX_QUEUES} RX queues, and there are {}", device.rx_queues.len()),
            instead: "--hook tc works".into(),
        });
    }
    let cpus = libbpf_rs::num_possible_cpus().map_err(|e| Error::bpf("counting CPUs", e))?;
    let lanes = if per_cpu { cpus } else { queues };
    let slots = if per_cpu { lanes * queues } else { queues };
    let groups = needs.group_slots();
    let seed = machine_seed();
    trace_libbpf();
    let batches = kernel::tells_batches();
    let doing = |what: &str| format!("{what} for {}", device.name);
    let context = if matches!(hook, Hook::Xdp(_)) { Context::Xdp } else { Context::Skb };
    let new = needs.suspect().filter(|_| parts.has_programs());
    let bytes = match parts.object((context, features), new) {
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
        (offset_of!(wl_config, features), features),
        (offset_of!(wl_config, batch_mark), random_number()),
    ];
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "wl_tallies" => groups * slots,
            "wl_rings" => groups * lanes * MAX_WORKERS,
            "wl_balances" | "wl_egress" | "wl_plugins" => groups * lanes,
            "wl_groups" => groups,
            "wl_filters" => groups * wirelane_bpf::filter::PER_GROUP,
            "wl_lanes" | "wl_marks" => lanes,
            program::SLOT_MAP if !is_many => {
                map.set_autocreate(false).map_err(|e| Error::bpf(doing("leaving out a map"), e))?;
                continue;
            }
            "wl_owners" => program::OWNERS as usize,
            _ if name.ends_with(program::READ_ONLY) => {
                let config = map.initial_value_mut().unwrap_or_default();
                for (at, word) in words {
                    program::set(config, at, |_| word)?;
                }
                parts.describe(config)?;
                continue;
            }
            name => {
                if let Some(of) = program::of_program(name) {
                    parts.take_layout(&mut map, of).map_err(|e| Error::bpf(doing("describing a map"), e))?;
                }
                continue;
            }
        };
        map.set_max_entries(entries as u32).map_err(|e| Error::bpf(doing("sizing the maps"), e))?;
    }
    let name = match hook {
        Hook::Xdp(_) if metadata => PROGRAM_XDP_METADATA,
        Hook::Xdp(_) => PROGRAM_XDP,
        Hook::Ingress if is_many => PROGRAM_INGRESS_MANY,
        Hook::Egress if is_many => PROGRAM_EGRESS_MANY,
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
    let take = |name: &str| {
        let map = object.maps().find(|map| map.name() == name).ok_or_else(|| gone("finding the maps"))?;
        MapHandle::try_from(&map).map_err(|e| Error::bpf(doing("keeping a map"), e))
    };
    let maps = Maps::of(take)?;
    // Bound to the program, maps that it does not use are found by processes that find the program.
    for map in object.maps().filter(|map| program::is_shared(&map.name().to_string_lossy(), is_many)) {
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
        groups: groups as u32,
        pad1: 0,
        pad: [0; 6],
    };
    maps.describe(&state)?;
    let first = parts.keep(&maps.programs, attach::program_id(program)?)?;
    let shared = |maps: Maps, hold| {
        let instance = Instance { first: Mutex::new(Some(first)), ..maps.share(device, hook, hold)? };
        Ok(Loaded::Instance(Some(Box::new(instance))))
    };
    match attachment {
        Attachment::Link => {}
        Attachment::Filter(broker) => {
            let Some(filter) = clsact::attach(program, &maps.owners, device, hook, broker)? else {
                return Ok(Loaded::Instance(None));
            };
            return shared(maps, Hold::Filter(filter));
        }
        Attachment::Many => return shared(maps, Hold::Many(Many::new(program, take(program::SLOT_MAP)?)?)),
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
