//! Features, filters, steering programs and plug-ins: adding a group's requirements to the running capture program
//! (`wl_config.features`, `bpf/filter_code.h`, `program.h`, `plugin.h`).
//!
//! ```text
//!  object.rs     the user's file: whether it can be linked
//!  link.rs       linked with ours, and loaded over the instance's maps
//!  first.rs      what the first group of an instance needs, loaded with the instance
//!  parameters.rs constants of users' programs that rule files set
//!  layout.rs     their keys and values by the names of fields
//!  rule_calls.rs the function of a plug-in for changes of rules
//!  state.rs      maps of users' programs, one of each for each group
//! ```
//!
//! A program is loaded with the features that its first group needs; the verifier removes the code of all others. A
//! group that needs more loads the program with its features in addition, and replaces the running one. Features are
//! only added: a running group never loses one.
//!
//! Filters are instructions of the program, which each load has for all groups. A group's description names its filter
//! by a number that only this filter has, so that a group never evaluates by another one.
//!
//! An instance has slots for four different steering programs and four different plug-ins; groups with the same one
//! share its slot. A process that joins with a program that is not there yet links it with all programs in use, so the
//! objects are kept in the instance (`wl_programs`), loads the result, and replaces the program on the device. Every
//! packet is seen by the old or by the new one. This is done under a lock: an entry of `wl_owners` after all others,
//! which the kernel removes when its holder ends.
//!
//! A group never runs another group's program. A slot is in use as long as a group that names it has an owner. An
//! unused slot is emptied in `wl_programs` before its code is replaced, and filled afterwards: a process that dies in
//! between leaves it empty, and an empty slot is linked anew. The new group becomes active after its data map has been
//! put into the instance, and that makes the kernel wait for all runs of the former program.

mod first;
mod layout;
mod link;
mod object;
mod parameters;
mod rule_calls;
mod state;

use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::instance::{Group, PROGRAM_PART, features, steering};

pub(crate) use first::{First, Needs, Parts};
pub(crate) use layout::Layout;
pub(crate) use link::{OBJECT, READ_ONLY, SLOT_MAP, is_shared, load_object, load_plain, refused, set};
pub(crate) use object::{Kind, UserProgram};
pub(crate) use rule_calls::RuleCalls;
pub(crate) use state::{GroupState, State, StateMap, of_program, take_layout};

use super::clsact;
use super::filters::{self, Code};
use super::instance::Instance;
use crate::error::{Error, Result};
use wirelane_netdev::Device;
use wirelane_rules::RuleSet;

/// Entries that `wl_owners` must have: groups, processes that use a clsact filter, the lock.
pub(super) const OWNERS: u32 = LOCK + 1;
const LOCK: u32 = clsact::OWNERS;
/// Maximum time to wait for the lock. Linking and loading takes less than a second, but a program that the verifier
/// follows to its limit, to refuse it, takes many.
const PATIENCE: Duration = Duration::from_secs(60);

/// A plug-in of a group.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    /// Name of the plug-in in rules.
    pub(crate) name: String,
    pub(crate) program: UserProgram,
}

impl Plugin {
    /// Reads plug-ins from their files, by name, with the parameters of these rules.
    ///
    /// # Errors
    /// As [`UserProgram::read`].
    pub(crate) fn read(named: &[(String, PathBuf)], rules: &RuleSet) -> Result<Vec<Plugin>> {
        let mut all: Vec<Plugin> = Vec::new();
        for (name, path) in named {
            let parameters: Vec<_> = rules.parameters_of(Some(name)).collect();
            let program = UserProgram::read(Kind::Plugin, path, &parameters)?;
            // Two with the same object are one program, with one state.
            let same = all.iter().find(|one| one.program.bytes() == program.bytes());
            let program = same.map_or(program, |one| one.program.clone());
            all.push(Plugin { name: name.clone(), program });
        }
        Ok(all)
    }
}

/// The lock for changing the user programs of an instance, held until drop or the end of the process.
#[derive(Debug)]
struct Lock(#[expect(dead_code, reason = "held open, not used")] (UnixDatagram, UnixDatagram));

impl Lock {
    fn take(instance: &Instance, device: &str) -> Result<Lock> {
        let pair = UnixDatagram::pair().map_err(|e| Error::kernel("making a lock", e))?;
        let token = (pair.0.as_raw_fd() as u64).to_ne_bytes();
        let start = Instant::now();
        loop {
            match instance.owners.update(&LOCK.to_ne_bytes(), &token, MapFlags::NO_EXIST) {
                Ok(()) => return Ok(Lock(pair)),
                Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                    return Err(Error::bpf("locking the programs of users", e));
                }
                Err(_) if start.elapsed() >= PATIENCE => {
                    let reason = format!(
                        "another Wirelane has been replacing the capture program of {device} for {} s; is one stopped \
                         (SIGSTOP)?",
                        PATIENCE.as_secs()
                    );
                    return Err(Error::BadOption { option: "-i", reason });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// A program in a slot of an instance.
#[derive(Clone, Debug)]
struct Placed {
    kind: Kind,
    place: u32,
    object: Vec<u8>,
    /// Maps that are laid out like those of the program; `None`: it is in the running program, whose maps go on.
    fresh: Option<State>,
}

impl Placed {
    /// A program that is not in the running one.
    fn new(program: &UserProgram, place: u32) -> Placed {
        let fresh = Some(Arc::clone(program.state()));
        Placed { kind: program.kind(), place, object: program.bytes().to_vec(), fresh }
    }
}

/// The slots of a group's programs, which do not change until the group has been described, or as long as its owner
/// lives.
#[derive(Debug, Default)]
pub(super) struct Installed {
    /// Slot of the group's steering program; 0 where the group has none.
    pub(super) place: u32,
    /// Slots of the group's plug-ins, in their order.
    pub(super) plugins: Vec<u32>,
    /// Number of the group's filter among the instructions of the program; 0: it is interpreted, or there is none.
    pub(super) filter: u32,
    /// Whether the program has [`features::FILTERS`], the interpreter, for this group.
    pub(super) interprets: bool,
    _lock: Option<Lock>,
}

impl Installed {
    /// `places`: slots of the programs, in the order of [`Needs::programs`].
    fn new(needs: &Needs, mut places: Vec<u32>, filter: u32, interprets: bool, lock: Lock) -> Installed {
        let plugins = places.split_off(usize::from(needs.steering.is_some()));
        let place = places.first().copied().unwrap_or(0);
        Installed { place, plugins, filter, interprets, _lock: Some(lock) }
    }
}

/// Ensures that the program on the device has what the group at `own` needs. The filter becomes instructions; if it is too long
/// for these, the program gets the interpreter.
///
/// # Errors
/// [`Error::BadOption`] where all slots are in use, or where a program cannot be linked or the verifier refuses it;
/// otherwise the error that the kernel returned.
pub(super) fn install(
    instance: &Instance,
    device: &Device,
    own: Option<usize>,
    needs: &Needs,
) -> Result<Installed> {
    let other_slot = own.is_some_and(|own| own > 0);
    let mut features = needs.features | if other_slot { features::GROUPS } else { 0 };
    let interprets = features & features::FILTERS != 0;
    if needs.is_plain() && features & !link::features(&instance.program()?)? == 0 {
        return Ok(Installed { interprets, ..Installed::default() });
    }
    let lock = Lock::take(instance, &device.name)?;
    // Another process may have replaced it before we got the lock.
    let running = instance.program()?;
    if let Some(first) = instance.first.lock().unwrap_or_else(PoisonError::into_inner).take()
        && features & !link::features(&running)? == 0
        && let Some((places, number)) = first.serves(needs, running.as_fd())?
    {
        return Ok(Installed::new(needs, places, number, interprets, lock));
    }
    let mut used = in_use(instance, own)?;
    let (mut places, mut new, mut loaded) = (Vec::new(), Vec::new(), None);
    let (mut codes, mut number) = (codes_in_use(instance)?, 0);
    if let Some(filter) = &needs.filter {
        codes.push((filters::unused_number(&codes), filter.steps().to_vec()));
        match link::load(device, &running, &used, features, &codes, None) {
            Ok(program) => (loaded, number) = (Some(program), codes.last().map_or(0, |(number, _)| *number)),
            Err(error) => {
                tracing::debug!("{}: the filter is interpreted: {error}", device.name);
                codes.pop();
                features |= features::FILTERS;
            }
        }
    }
    for program in needs.programs() {
        let kind = program.kind();
        let same = used.iter().find(|one| one.kind == kind && one.object == program.bytes());
        if let Some(same) = same {
            places.push(same.place);
            continue;
        }
        let taken = |place: &u32| used.iter().any(|one| one.kind == kind && one.place == *place);
        let Some(place) = (0..kind.places()).find(|place| !taken(place)) else {
            return Err(full(device, program));
        };
        let one = Placed::new(program, place);
        used.push(one.clone());
        new.push(one);
        places.push(place);
        // One after the other, to find out which of them is refused.
        loaded = Some(link::load(device, &running, &used, features, &codes, Some(program))?);
    }
    if loaded.is_none() && features & !link::features(&running)? != 0 {
        loaded = Some(link::load(device, &running, &used, features, &codes, None)?);
    }
    if let Some(loaded) = loaded {
        for one in &new {
            forget(&instance.programs, one.kind.key(one.place))?;
        }
        loaded.with(|new| instance.replace(&running, new, device))?;
        for one in &new {
            store(&instance.programs, one.kind.key(one.place), &one.object)?;
            tracing::debug!("{}: a {} at place {}", device.name, one.kind.word(), one.place);
        }
    }
    Ok(Installed::new(needs, places, number, features & features::FILTERS != 0, lock))
}

/// The filters that groups have as instructions of the program.
fn codes_in_use(instance: &Instance) -> Result<Vec<Code>> {
    let mut codes = Vec::new();
    for group in 0..instance.group_slots {
        if is_owned(instance, group)? {
            codes.extend(filters::code(instance, group)?);
        }
    }
    Ok(codes)
}

fn is_owned(instance: &Instance, group: usize) -> Result<bool> {
    let owner = instance.owners.lookup(&(group as u32).to_ne_bytes(), MapFlags::ANY);
    Ok(owner.map_err(|e| Error::bpf("looking for a group's owner", e))?.is_some())
}

/// The error for a program that finds all slots in use.
fn full(device: &Device, program: &UserProgram) -> Error {
    let kind = program.kind();
    let does = match kind {
        Kind::Steering => format!("already steered by {} other programs", kind.places()),
        Kind::Plugin => format!("already looked at by {} other plug-ins", kind.places()),
    };
    program.refusal(&format!(
        "{} is {does}, the maximum; stop one of these captures ('wirelane groups' shows them)",
        device.name
    ))
}

/// Marks the group as using no programs any more.
pub(super) fn release(instance: &Instance, group: usize) {
    let offset = group * size_of::<Group>() + offset_of!(Group, steering);
    let word = instance.groups.word(offset & !7);
    // Relaxed: the owner of the slot is the only writer here.
    let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    bytes[offset & 7..][..4].copy_from_slice(&steering::FLOW.to_ne_bytes());
    word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    const { assert!(offset_of!(Group, plugins) % 8 == 0 && offset_of!(Group, plugin_budget) % 8 == 4) };
    let plugins = group * size_of::<Group>() + offset_of!(Group, plugins);
    instance.groups.word(plugins).store(0, Ordering::Relaxed);
}

/// The programs of all groups with an owner, except group `own`.
fn in_use(instance: &Instance, own: Option<usize>) -> Result<Vec<Placed>> {
    let mut places = Vec::new();
    for group in (0..instance.group_slots).filter(|group| Some(*group) != own) {
        if !is_owned(instance, group)? {
            continue;
        }
        // Relaxed: written under the lock, which is a system call on either side.
        let number = |offset: usize| {
            let offset = group * size_of::<Group>() + offset;
            let word = instance.groups.word(offset & !7).load(Ordering::Relaxed).to_ne_bytes();
            let at = offset & 7;
            u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
        };
        if number(offset_of!(Group, steering)) == steering::PROGRAM {
            places.push((Kind::Steering, number(offset_of!(Group, program))));
        }
        let plugins = number(offset_of!(Group, plugins));
        let bits = (0..Kind::Plugin.places()).filter(|place| plugins & 1 << place != 0);
        places.extend(bits.map(|place| (Kind::Plugin, place)));
    }
    let mut used: Vec<Placed> = Vec::new();
    for (kind, place) in places {
        if place >= kind.places() || used.iter().any(|one| one.kind == kind && one.place == place) {
            continue;
        }
        if let Some(object) = stored(&instance.programs, kind.key(place))? {
            used.push(Placed { kind, place, object, fresh: None });
        }
    }
    Ok(used)
}

/// The object in this slot.
fn stored(programs: &MapHandle, place: u32) -> Result<Option<Vec<u8>>> {
    let failed = |e| Error::bpf("reading the object of a steering program or plug-in", e);
    let Some(id) = programs.lookup(&place.to_ne_bytes(), MapFlags::ANY).map_err(failed)? else {
        return Ok(None);
    };
    let id = id.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    let map = match MapHandle::from_map_id(id) {
        Ok(map) => map,
        Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let mut bytes = Vec::new();
    for part in 0..map.max_entries() {
        bytes.extend(map.lookup(&part.to_ne_bytes(), MapFlags::ANY).map_err(failed)?.unwrap_or_default());
    }
    let Some((len, object)) = bytes.split_first_chunk::<8>() else { return Ok(None) };
    let len = u64::from_ne_bytes(*len) as usize;
    Ok(object.get(..len).map(<[u8]>::to_vec))
}

/// Stores the object in this slot, preceded by its length.
fn store(programs: &MapHandle, place: u32, object: &[u8]) -> Result<()> {
    let failed = |e| Error::bpf("keeping the object of a steering program or plug-in", e);
    let mut bytes = (object.len() as u64).to_ne_bytes().to_vec();
    bytes.extend_from_slice(object);
    bytes.resize(bytes.len().next_multiple_of(PROGRAM_PART), 0);
    let parts = bytes.len() / PROGRAM_PART;
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: sys::BPF_F_INNER_MAP,
        ..Default::default()
    };
    let size = PROGRAM_PART as u32;
    let map = MapHandle::create(MapType::Array, Some("wl_program"), 4, size, parts as u32, &opts)
        .map_err(failed)?;
    for (part, bytes) in bytes.chunks(PROGRAM_PART).enumerate() {
        map.update(&(part as u32).to_ne_bytes(), bytes, MapFlags::ANY).map_err(failed)?;
    }
    let fd = map.as_fd().as_raw_fd().to_ne_bytes();
    programs.update(&place.to_ne_bytes(), &fd, MapFlags::ANY).map_err(failed)
}

/// Empties a slot.
fn forget(programs: &MapHandle, place: u32) -> Result<()> {
    match programs.delete(&place.to_ne_bytes()) {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(Error::bpf("forgetting a steering program or plug-in", e))
        }
        _ => Ok(()),
    }
}
