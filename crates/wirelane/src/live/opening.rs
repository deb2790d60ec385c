//! Opens the instances of a capture, several at once: loading a program, which the kernel verifies, takes most of the time
//! of a start.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};
use wirelane_bpf::kernel::at_least;
use wirelane_netdev::Selected;
use wirelane_privsep::broker::Broker;

use crate::engine::ring::group_config::{UserPrograms, needs};
use crate::engine::ring::instance::Instance;
use crate::engine::ring::lanes::beside_others;
use crate::engine::ring::program::Needs;
use crate::error::Result;
use crate::hook::{Hook, Tc};
use crate::settings::{HookChoice, Settings};

/// Limit of open descriptors below which programs are loaded one after the other.
const FEW_DESCRIPTORS: u64 = 512;

/// A device, the requested hook, and its instance with what the capture needs of it.
pub(super) type Opened<'a> = (&'a Selected, Option<Hook>, Result<(Instance, Needs)>);

/// The instances on all hooks of these devices, and at the end those for devices that come later, at the hooks of their
/// stand-in. All threads have ended on return: rights are given up later, by the only thread.
pub(super) fn open_all<'a>(
    settings: &Settings,
    programs: &UserPrograms,
    selected: &'a [Selected],
    later: Option<&'a (Selected, Vec<Hook>)>,
    broker: &Arc<Broker>,
) -> Result<Vec<Opened<'a>>> {
    let mut places = Vec::new();
    for selected in selected {
        // tc cannot replace XDP where RX queues must be told apart, nor can XDP replace tc for sending.
        let ours =
            settings.hook == HookChoice::Auto && settings.egress_devices.is_empty() && !selected.by_queue;
        for hook in settings.hooks(selected)? {
            let hook = if ours { beside_others(&selected.device, hook, broker)? } else { hook };
            places.push((selected, hook));
        }
    }
    if let Some((stand_in, hooks)) = later {
        places.extend(hooks.iter().map(|hook| (stand_in, Some(*hook))));
    }
    let open = &|selected: &Selected, hook: Option<Hook>| {
        let needs = needs(settings, programs, &selected.device)?;
        let is_later = later.is_some_and(|(stand_in, _)| std::ptr::eq(stand_in, selected));
        let instance = match hook {
            Some(hook) if is_later => Instance::for_many(&selected.device, hook, &needs),
            Some(hook) => Instance::open(&selected.device, hook, settings.tc(), &needs, broker),
            None => Instance::open_xdp(&selected.device, &needs, broker),
        };
        instance.map(|instance| (instance, needs))
    };
    // Without links, both directions of a device share its queueing discipline, which one of them makes.
    let by_link = settings.tc() != Tc::Clsact && at_least(6, 6);
    // A thread reserves 128 MiB of address space for its heap (mallopt(3), M_ARENA_MAX), which a limit may not allow.
    // Loading a program takes some sixty descriptors for a while.
    let few_descriptors = getrlimit(Resource::Nofile).current.is_some_and(|most| most < FEW_DESCRIPTORS);
    let is_limited = getrlimit(Resource::As).current.is_some() || few_descriptors;
    let at_once = match by_link && !is_limited {
        true => std::thread::available_parallelism().map_or(1, usize::from),
        false => 1,
    };
    let mut opened = Vec::with_capacity(places.len());
    for places in places.chunks(at_once) {
        std::thread::scope(|scope| {
            let others: Vec<_> = places[1..]
                .iter()
                .map(|&(selected, hook)| (selected, hook, scope.spawn(move || open(selected, hook))))
                .collect();
            let (selected, hook) = places[0];
            opened.push((selected, hook, open(selected, hook)));
            for (selected, hook, other) in others {
                let instance = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                opened.push((selected, hook, instance));
            }
        });
    }
    Ok(opened)
}
