//! tc without links: a filter on a clsact qdisc (before Linux 6.6, or `--hook clsact`).
//!
//! ```text
//!  clsact qdisc -> filter: the step (bpf/clsact.bpf.c) -> wl_entry -> the capture program
//!                  stays until somebody removes it                    empty once all descriptors are closed
//! ```
//!
//! The kernel keeps a filter when the process that created it is killed. Ours does nothing then: `wl_entry` has been
//! emptied by the kernel, so packets are neither copied nor consumed. The remaining filter, the empty step, is removed
//! by the broker of the killed one, or, where that was killed too, by the next Wirelane that opens the device
//! ([`heal`]).
//!
//! A process finds a running instance by the filters on the device: ours has a handle and a program of ours, its map
//! leads to the capture program, and that to all maps. The processes of an instance are counted in `wl_owners`
//! (`presence.rs`); the last one removes the filter, and the qdisc if it was created for the filter and has no other
//! users. The handle records whether it was. Lookup and change are done under a lock (`lock.rs`). Foreign filters and
//! qdiscs are never touched.

mod lock;
mod messages;
mod presence;
mod removal;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, libbpf_sys as sys};
use wirelane_bpf::instance::PROGRAM_CLSACT;
use wirelane_bpf::skel::clsact::ClsactSkelBuilder;
use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Kind, LogLine, Outcome, Registration, Task};

use super::attach;
use crate::engine::uninterrupted::uninterrupted;
use crate::error::{Error, Result};
use crate::hook::Hook;
use lock::Lock;
use messages::{FilterLocation, Request, read_filter, read_qdisc};
use presence::Presence;
use removal::Removal;
use wirelane_netdev::Device;
use wirelane_netdev::netlink::Client;

pub(crate) use presence::OWNERS;

/// Handles of our filters: on an existing qdisc, and on a qdisc that we created.
const HANDLE: u32 = 0x574c_0010;
const HANDLE_MADE: u32 = HANDLE | 1;
/// Priority of our filter where there is no other: before most later ones.
const PRIORITY: u16 = 7;

/// Task of a broker that removes a filter: under the namespace's lock, whose file is opened before the fork.
pub(crate) const KIND: Kind = Kind {
    name: "clsact filter",
    capabilities: &[Capability::NetAdmin],
    prepare: || lock::open().map(Some),
    read: |task, descriptors| {
        let recipe = serde_json::from_slice(task).ok()?;
        Some(Box::new(Removal::of(recipe, descriptors.try_into().ok()?)))
    },
};

impl Task for Removal {
    fn undo(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        // A kernel error is final: the next Wirelane on the device tries again.
        let done = prepared.map(|file| lock::with(file, || self.run_if_unused()).unwrap_or(true));
        (done.unwrap_or(true), Vec::new())
    }
}

/// A process's reference to a filter: the filter is removed with the last reference.
pub(crate) struct Filter {
    presence: Option<Presence>,
    registration: Registration,
    removal: Removal,
    device: String,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        self.presence = None;
        let removed = match self.registration.undo() {
            Outcome::Done(said) => return said.iter().for_each(LogLine::log),
            // The broker has been killed: this process does its work, where it still has the rights.
            Outcome::Unserved => Lock::take().and_then(|_lock| {
                self.removal.run_if_unused().map_err(|e| Error::kernel("removing the tc filter", e))
            }),
            Outcome::Impossible => Err(Error::kernel(
                "removing the tc filter",
                io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the broker that has the right to it is gone",
                ),
            )),
        };
        if let Err(e) = removed {
            tracing::warn!(
                "{}: {e}; it does nothing any more, and the next wirelane on the device removes it",
                self.device
            );
        }
    }
}

impl Filter {
    fn entry(&self) -> Result<BorrowedFd<'_>> {
        let presence = self.presence.as_ref().map(Presence::entry);
        presence
            .ok_or_else(|| Error::kernel("looking for the tc filter", std::io::ErrorKind::NotFound.into()))
    }

    /// The id of the capture program that the filter runs.
    pub(super) fn program(&self) -> Result<u32> {
        presence::entry_of(self.entry()?).map_err(|e| Error::kernel("looking for the capture program", e))
    }

    /// Replaces the capture program of the filter. A process that looks up filters meanwhile must not find one whose
    /// program has just ended, and take it for a dead process's: hence the lock.
    pub(super) fn replace(&self, program: BorrowedFd<'_>) -> Result<()> {
        let _lock = Lock::take()?;
        presence::set_entry(self.entry()?, program)
            .map_err(|e| Error::kernel(format!("replacing the capture program on {}", self.device), e))
    }
}

/// A filter of ours on a device.
struct Ours {
    place: FilterLocation,
    handle: u32,
    priority: u16,
    /// Id of the step program.
    program: u32,
}

impl Removal {
    /// Registers the removal with the broker.
    fn register(&self, broker: &Arc<Broker>) -> Result<Registration> {
        Ok(broker.register(&KIND, self.recipe(), &self.descriptors())?)
    }
}

/// The entry map and capture program of a filter of ours.
struct Running {
    entry: OwnedFd,
    owners: MapHandle,
    /// Id of the capture program.
    program: u32,
}

impl Ours {
    fn removal(&self, owners: &MapHandle) -> Result<Removal> {
        let failed = |e| Error::kernel("preparing the removal of the tc filter", e);
        let owners = owners.as_fd().try_clone_to_owned().map_err(failed)?;
        let where_it_is = (self.handle, self.priority);
        Removal::new(self.place, where_it_is, self.program, self.handle == HANDLE_MADE, owners)
            .map_err(failed)
    }

    /// The running instance of the filter; `None` where its processes have all ended.
    fn running(&self) -> Result<Option<Running>> {
        let Some(step) = attach::by_id(self.program, sys::bpf_prog_get_fd_by_id, "program")? else {
            return Ok(None);
        };
        let Some(entry) = map_of(&step, "wl_entry")? else { return Ok(None) };
        let found = entry.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(|e| Error::bpf("looking for the capture program", e))?;
        let Some(program) = found.and_then(|id| Some(u32::from_ne_bytes(id.try_into().ok()?))) else {
            return Ok(None);
        };
        let Some(capture) = attach::by_id(program, sys::bpf_prog_get_fd_by_id, "program")? else {
            return Ok(None);
        };
        let Some(owners) = map_of(&capture, "wl_owners")? else { return Ok(None) };
        // Checked after `entry` has been opened: a process that is present now holds it too, so that the kernel has not
        // begun to empty it.
        if !presence::anybody(owners.as_fd().as_raw_fd()) {
            return Ok(None);
        }
        let entry = entry.as_fd().try_clone_to_owned();
        Ok(Some(Running { entry: entry.map_err(|e| Error::kernel("holding a map", e))?, owners, program }))
    }
}

/// The map of a program with this name; `None` where the program has no such map (any more).
fn map_of(program: &OwnedFd, name: &str) -> Result<Option<MapHandle>> {
    let (_, ids) = attach::program_info(program)?;
    for id in ids {
        match MapHandle::from_map_id(id) {
            Ok(map) if map.name() == name => return Ok(Some(map)),
            Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                return Err(Error::bpf("opening a running Wirelane's maps", e));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Queries and changes of one device.
struct Tc<'a> {
    client: Client,
    device: &'a Device,
}

impl<'a> Tc<'a> {
    fn open(device: &'a Device) -> Result<Tc<'a>> {
        let client = Client::open(libc::NETLINK_ROUTE).map_err(|e| Error::kernel("opening netlink", e))?;
        Ok(Tc { client, device })
    }

    fn ask(&mut self, request: &Request, doing: &str, reply: impl FnMut(&[u8])) -> Result<()> {
        self.client
            .request(request.kind, request.flags, &request.body, reply)
            .map_err(|e| Error::kernel(format!("{doing} of {}", self.device.name), e))
    }

    /// The filters of one direction: (priority, chain, whether one of ours can share it).
    fn filters(&mut self, place: FilterLocation) -> Result<Vec<(u16, u32, bool)>> {
        let mut filters = Vec::new();
        self.ask(&Request::filters(place), "listing the tc filters", |body| {
            if let Some(filter) = read_filter(body) {
                filters.push((filter.priority, filter.chain, filter.is_bpf_for_all()));
            }
        })?;
        Ok(filters)
    }

    /// Our filters, in this direction.
    fn ours(&mut self, egress: bool) -> Result<Vec<Ours>> {
        // An ingress qdisc lists its filters for either direction.
        if egress && self.qdisc()?.is_none_or(|kind| kind != "clsact") {
            return Ok(Vec::new());
        }
        let place = FilterLocation { ifindex: self.device.ifindex, egress };
        let mut candidates = Vec::new();
        let listed = self.ask(&Request::filters(place), "listing the tc filters", |body| {
            if let Some(filter) = read_filter(body)
                && filter.is_bpf_for_all()
                && filter.chain == 0
                && (filter.handle == HANDLE || filter.handle == HANDLE_MADE)
                && let Some(program) = filter.program
            {
                candidates.push(Ours { place, handle: filter.handle, priority: filter.priority, program });
            }
        });
        match listed {
            // A kernel without tc filters.
            Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            other => other?,
        }
        let mut ours = Vec::new();
        for filter in candidates {
            if attach::program_name(filter.program)?.as_deref() == Some(PROGRAM_CLSACT) {
                ours.push(filter);
            }
        }
        Ok(ours)
    }

    /// Removes our filters without a process, and returns those that run. The caller holds the lock.
    fn heal(&mut self, egress: bool) -> Result<Vec<(Ours, Running)>> {
        let mut living = Vec::new();
        for filter in self.ours(egress)? {
            if let Some(running) = filter.running()? {
                living.push((filter, running));
                continue;
            }
            let (place, handle, priority) = (filter.place, filter.handle, filter.priority);
            self.ask(&Request::delete_filter(place, handle, priority), "removing a left tc filter", |_| {})?;
            if handle == HANDLE_MADE {
                self.remove_qdisc_if_empty()?;
            }
            tracing::info!("{}: removed a tc filter of a wirelane that was killed", self.device.name);
        }
        Ok(living)
    }

    fn remove_qdisc_if_empty(&mut self) -> Result<()> {
        let ifindex = self.device.ifindex;
        for egress in [false, true] {
            if !self.filters(FilterLocation { ifindex, egress })?.is_empty() {
                return Ok(());
            }
        }
        self.ask(&Request::delete_qdisc(ifindex), "removing the clsact qdisc", |_| {})
    }

    /// The kind of the qdisc that holds filters of received packets, and of transmitted ones if it is clsact.
    fn qdisc(&mut self) -> Result<Option<String>> {
        let ifindex = self.device.ifindex;
        let mut kind = None;
        self.ask(&Request::qdiscs(ifindex), "listing the qdiscs", |body| {
            if let Some(found) = read_qdisc(body, ifindex) {
                kind = Some(String::from_utf8_lossy(found).into_owned());
            }
        })?;
        Ok(kind)
    }

    /// Ensures that there is a clsact qdisc; true where it was created for us.
    fn prepare_qdisc(&mut self, hook: Hook) -> Result<bool> {
        let ifindex = self.device.ifindex;
        match self.qdisc()?.as_deref() {
            Some("clsact") => {
                let both = self.ours(false)?.into_iter().chain(self.ours(true)?);
                Ok(both.into_iter().any(|filter| filter.handle == HANDLE_MADE))
            }
            // An ingress qdisc has one list of filters, for received packets.
            Some(_) if hook == Hook::Ingress => Ok(false),
            Some(other) => Err(Error::Unsupported {
                what: format!("capturing what {} transmits", self.device.name),
                needs: format!("a clsact qdisc, in whose place somebody's {other} qdisc stands"),
                instead: "capture received packets, or have its owner use clsact".into(),
            }),
            None => match self.ask(&Request::add_qdisc(ifindex), "adding the clsact qdisc", |_| {}) {
                Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
                    Err(self.lacks("sch_ingress"))
                }
                other => other.map(|()| true),
            },
        }
    }

    fn lacks(&self, module: &str) -> Error {
        Error::Unsupported {
            what: format!("capturing on {} by tc", self.device.name),
            needs: format!("Linux 6.6 (TCX), or the kernel module {module}, which this kernel does not have"),
            instead: "native or generic XDP captures received packets".into(),
        }
    }

    /// A priority before all other filters, so that every packet is seen: the priority, and whether it is before all.
    fn choose_priority(&mut self, place: FilterLocation) -> Result<(u16, bool)> {
        let others: Vec<_> = self.filters(place)?.into_iter().filter(|(_, chain, _)| *chain == 0).collect();
        Ok(priority_beside(&others))
    }
}

/// The priority of a filter beside these (each with its priority and whether one of ours can have the same), and
/// whether it is before all.
fn priority_beside(others: &[(u16, u32, bool)]) -> (u16, bool) {
    match others.iter().map(|(priority, ..)| *priority).min() {
        None => (PRIORITY, true),
        Some(first) if first > 1 => (PRIORITY.min(first - 1), true),
        Some(_) => {
            // Among filters of one priority, the newest runs first (cls_bpf.c), where all are programs.
            let free = |priority: &u16| others.iter().all(|(taken, _, shares)| taken != priority || *shares);
            let priority = (1..u16::MAX).find(free).unwrap_or(u16::MAX);
            (priority, priority == 1)
        }
    }
}

/// Removes filters that killed processes have left on the device.
pub(crate) fn heal(device: &Device) -> Result<()> {
    let mut tc = Tc::open(device)?;
    // Without filters of ours, the common case, no lock is needed.
    for egress in [false, true] {
        if !tc.ours(egress)?.is_empty() {
            let _lock = Lock::take()?;
            tc.heal(egress)?;
        }
    }
    Ok(())
}

/// Joins the instance that runs on this hook of the device: returns its hold, and the id of its capture program.
pub(crate) fn join(device: &Device, hook: Hook, broker: &Arc<Broker>) -> Result<Option<(Filter, u32)>> {
    let mut tc = Tc::open(device)?;
    let _lock = Lock::take()?;
    let Some((filter, running)) = tc.heal(hook == Hook::Egress)?.into_iter().next() else { return Ok(None) };
    let removal = filter.removal(&running.owners)?;
    let registration = removal.register(broker)?;
    let presence = Some(Presence::begin(&running.owners, running.entry.as_fd(), &device.name)?);
    Ok(Some((Filter { presence, registration, removal, device: device.name.clone() }, running.program)))
}

/// Attaches a capture program to the device; `None` if another process was faster.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    owners: &MapHandle,
    device: &Device,
    hook: Hook,
    broker: &Arc<Broker>,
) -> Result<Option<Filter>> {
    let doing = |what: &str| format!("{what} for {}", device.name);
    let mut object = std::mem::MaybeUninit::uninit();
    let skel = ClsactSkelBuilder::default()
        .open(&mut object)
        .and_then(|open| uninterrupted(|| open.load()))
        .map_err(|e| Error::bpf(doing("loading the tc filter"), e))?;
    skel.maps
        .wl_entry
        .update(&0u32.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| Error::bpf(doing("handing the capture program to the tc filter"), e))?;

    let mut tc = Tc::open(device)?;
    let _lock = Lock::take()?;
    if !tc.heal(hook == Hook::Egress)?.is_empty() {
        return Ok(None);
    }
    let presence = Some(Presence::begin(owners, skel.maps.wl_entry.as_fd(), &device.name)?);
    let made = tc.prepare_qdisc(hook)?;
    let attached = put(&mut tc, hook, made, skel.progs.wirelane_clsact.as_fd(), owners, broker);
    match attached {
        Ok((removal, registration)) => {
            Ok(Some(Filter { presence, registration, removal, device: device.name.clone() }))
        }
        Err(e) => {
            if made {
                tc.remove_qdisc_if_empty()?;
            }
            Err(e)
        }
    }
}

/// Registers the removal, and then adds the filter.
fn put(
    tc: &mut Tc<'_>,
    hook: Hook,
    made: bool,
    step: BorrowedFd<'_>,
    owners: &MapHandle,
    broker: &Arc<Broker>,
) -> Result<(Removal, Registration)> {
    let device = tc.device;
    let place = FilterLocation::new(device.ifindex, hook);
    let (priority, in_front) = tc.choose_priority(place)?;
    if !in_front {
        tracing::warn!(
            "{}: another program's tc filter of priority 1 is asked before Wirelane's: packets that it decides about \
             are not seen",
            device.name
        );
    }
    let handle = if made { HANDLE_MADE } else { HANDLE };
    let filter = Ours { place, handle, priority, program: attach::program_id(step)? };
    let removal = filter.removal(owners)?;
    let registration = removal.register(broker)?;
    let request = Request::add_filter(place, handle, priority, step.as_raw_fd() as u32, PROGRAM_CLSACT);
    match tc.ask(&request, "adding the tc filter", |_| {}) {
        Ok(()) => Ok((removal, registration)),
        Err(Error::Kernel { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            Err(tc.lacks("cls_bpf"))
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_comes_in_front_of_all_others_where_it_can() {
        for (others, chosen) in [
            (&[] as &[_], (PRIORITY, true)),
            (&[(49152, 0, true)], (PRIORITY, true)),
            (&[(9, 0, false), (5, 0, true)], (4, true)),
            (&[(2, 0, false)], (1, true)),
            // Programs can share a priority.
            (&[(1, 0, true), (3, 0, false)], (1, true)),
            // Others cannot.
            (&[(1, 0, false)], (2, false)),
            (&[(1, 0, false), (2, 0, true)], (2, false)),
            (&[(1, 0, false), (2, 0, false), (2, 0, true)], (3, false)),
        ] {
            assert_eq!(priority_beside(others), chosen, "{others:?}");
        }
    }
}
