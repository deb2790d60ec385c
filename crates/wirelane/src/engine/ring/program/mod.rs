//! Steering programs: how a group gets its own into the capture program that runs (`kernel/programs/program.h`).
//!
//! ```text
//!  object.rs     the user's file: whether it can be linked
//!  link.rs       linked with ours, and loaded over the instance's maps
//! ```
//!
//! An instance has places for [`MAX_PROGRAMS`] different programs; groups that bring the same one share its place. Who
//! joins with a program that is not there yet links all that are in use with it, so the objects are kept in the
//! instance (`wl_programs`), loads the result, and replaces the program on the device. Packets are seen by the one or
//! by the other. This is done under a lock: an entry of `wl_owners` behind all others, which the kernel takes out
//! when its holder ends.
//!
//! No group runs another's program. A place is in use as long as a group that names it has an owner. One that is not
//! is emptied in `wl_programs` before its code is replaced, and filled afterwards: whoever dies on the way leaves it
//! empty, and an empty place is linked anew. The new group becomes active after its data map has been put in place,
//! and that makes the kernel wait for all runs of the former program.

mod link;
mod object;

use std::mem::offset_of;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_datapath::instance::{Group, MAX_GROUPS, MAX_PROGRAMS, PROGRAM_PART, steering};

pub(crate) use object::SteeringProgram;

use super::clsact;
use super::instance::Instance;
use crate::device::Device;
use crate::{Error, Result};

/// Entries that `wl_owners` must have: groups, processes that use a clsact filter, the lock.
pub(super) const OWNERS: u32 = LOCK + 1;
const LOCK: u32 = clsact::OWNERS;
/// How long the lock is waited for. Linking and loading takes less than a second, but a program that the verifier
/// follows to its limit, to refuse it, takes many.
const PATIENCE: Duration = Duration::from_secs(60);

/// The right to change the steering programs of an instance, until drop or the end of the process.
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
                    return Err(Error::bpf("locking the steering programs", e));
                }
                Err(_) if start.elapsed() >= PATIENCE => {
                    let reason = format!(
                        "another Wirelane has been at the steering programs of {device} for {} s; is one stopped \
                         (SIGSTOP)?",
                        PATIENCE.as_secs()
                    );
                    return Err(Error::BadOption { option: "--steering-program", reason });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// A program's place, which stays what it is until the group has been described, or as long as its owner lives.
#[derive(Debug)]
pub(super) struct Installed {
    /// 0 where the group has no program.
    pub(super) place: u32,
    _lock: Option<Lock>,
}

/// Sees to it that the program runs on the device, for the group at `own`; nothing to do where there is none.
///
/// # Errors
/// [`Error::BadOption`] where all places are taken, or where it cannot be linked or the verifier refuses it; what the
/// kernel said.
pub(super) fn install(
    instance: &Instance,
    device: &Device,
    own: usize,
    program: Option<&SteeringProgram>,
) -> Result<Installed> {
    let Some(program) = program else { return Ok(Installed { place: 0, _lock: None }) };
    let lock = Lock::take(instance, &device.name)?;
    let mut used = Vec::new();
    for place in places_in_use(instance, own)? {
        if let Some(object) = stored(&instance.programs, place)? {
            if object == program.bytes() {
                return Ok(Installed { place, _lock: Some(lock) });
            }
            used.push((place, object));
        }
    }
    let free = (0..MAX_PROGRAMS as u32).find(|place| used.iter().all(|(taken, _)| taken != place));
    let Some(free) = free else {
        return Err(program.refusal(&format!(
            "{} is already steered by {MAX_PROGRAMS} other programs, the most it can; stop one of these captures \
             ('wirelane groups' shows them)",
            device.name
        )));
    };
    used.push((free, program.bytes().to_vec()));
    let running = instance.program()?;
    let loaded = link::load(device, &running, &used, program)?;
    forget(&instance.programs, free)?;
    loaded.with(|new| instance.replace(&running, new, device))?;
    store(&instance.programs, free, program.bytes())?;
    tracing::debug!("{}: a steering program at place {free} of {MAX_PROGRAMS}", device.name);
    Ok(Installed { place: free, _lock: Some(lock) })
}

/// The group does not use a program any more.
pub(super) fn release(instance: &Instance, group: usize) {
    let offset = group * size_of::<Group>() + offset_of!(Group, steering);
    let word = instance.groups.word(offset & !7);
    // Relaxed: who holds the place is the only one that writes here.
    let mut bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    bytes[offset & 7..][..4].copy_from_slice(&steering::FLOW.to_ne_bytes());
    word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
}

/// The places of the programs of all groups but one that have an owner.
fn places_in_use(instance: &Instance, own: usize) -> Result<Vec<u32>> {
    let mut places = Vec::new();
    for group in (0..MAX_GROUPS).filter(|group| *group != own) {
        let owner = instance.owners.lookup(&(group as u32).to_ne_bytes(), MapFlags::ANY);
        if owner.map_err(|e| Error::bpf("looking for a group's owner", e))?.is_none() {
            continue;
        }
        // Relaxed: written under the lock, which is a system call on either side.
        let number = |offset: usize| {
            let offset = group * size_of::<Group>() + offset;
            let word = instance.groups.word(offset & !7).load(Ordering::Relaxed).to_ne_bytes();
            let at = offset & 7;
            u32::from_ne_bytes([word[at], word[at + 1], word[at + 2], word[at + 3]])
        };
        let place = number(offset_of!(Group, program));
        if number(offset_of!(Group, steering)) == steering::PROGRAM
            && (place as usize) < MAX_PROGRAMS
            && !places.contains(&place)
        {
            places.push(place);
        }
    }
    Ok(places)
}

/// The object of this place.
fn stored(programs: &MapHandle, place: u32) -> Result<Option<Vec<u8>>> {
    let failed = |e| Error::bpf("reading the object of a steering program", e);
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

/// Keeps the object at this place, its length in front of it.
fn store(programs: &MapHandle, place: u32, object: &[u8]) -> Result<()> {
    let failed = |e| Error::bpf("keeping the object of a steering program", e);
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

/// Empties a place.
fn forget(programs: &MapHandle, place: u32) -> Result<()> {
    match programs.delete(&place.to_ne_bytes()) {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(Error::bpf("forgetting a steering program", e))
        }
        _ => Ok(()),
    }
}
