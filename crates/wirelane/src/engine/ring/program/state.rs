//! Maps of users' programs (`include/wirelane/state.h`): read from the object file, created for a capture, and handed to
//! its lanes.
//!
//! In the linked program a map is an array of maps with one entry per group, so that groups that share a program do not
//! share its state. The array belongs to the program on the device. A capture creates the maps themselves, before it
//! joins, and puts them into the arrays of all its devices. Map `NAME` is `u0_NAME` in the user's object, and has the
//! number of the program's slot in place of the 0 in the linked one ([`Kind::key`]).

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{AsRawLibbpf as _, MapCore as _, MapFlags, MapHandle, MapType, ObjectBuilder, OpenMap};
use object::{Object as _, ObjectSection as _};
use wirelane_bpf::instance::{MAX_GROUPS, STATE_BYTES, STATE_MAPS, STATE_NAME};

use super::super::instance::Instance;
use super::super::{attach, log, pages};
use super::first::Needs;
use super::layout::{self, Layout};
use super::{Installed, is_owned};
use crate::error::{Error, Result};
use crate::escape::printable;
use crate::state::StateEntry;

/// Prefix of a map's name in a user's object.
const PREFIX: &str = "u0_";
/// Bytes that the kernel needs for an entry of a hash map beside key and value, about.
const ENTRY: u64 = 64;
/// Kinds of maps that programs may have.
const KINDS: [MapType; 6] = [
    MapType::Hash,
    MapType::Array,
    MapType::PercpuHash,
    MapType::PercpuArray,
    MapType::LruHash,
    MapType::LruPercpuHash,
];

/// Maps of a user's program, by the program's capture.
pub(crate) type State = Arc<[StateMap]>;

/// A map of a user's program.
#[derive(Debug)]
pub(crate) struct StateMap {
    pub(crate) name: String,
    pub(crate) map: MapHandle,
    /// Of keys, and of values.
    layout: (Layout, Layout),
}

impl StateMap {
    /// Reads some entries, from the beginning or from the position at which another page ended; and the position of the next
    /// page.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn page(&self, from: Option<u32>) -> Result<(Vec<StateEntry>, Option<u32>)> {
        let map = &self.map;
        let (cpus, each) = if map.map_type().is_percpu() {
            let cpus = libbpf_rs::num_possible_cpus().map_err(|e| Error::bpf("counting CPUs", e))?;
            // The kernel rounds the values of each CPU up.
            (cpus, (map.value_size() as usize).next_multiple_of(8))
        } else {
            (1, map.value_size() as usize)
        };
        let (key, value) = (vec![0u8; map.key_size() as usize], vec![0u8; each * cpus]);
        let (keys, values, next) = pages::page(map, from, &key, &value)
            .map_err(|e| Error::kernel("reading a map of a plug-in or steering program", e))?;
        let entry = |(key, values): (&[u8], &[u8])| {
            let values = values.chunks_exact(each).map(|one| one[..map.value_size() as usize].to_vec());
            StateEntry::new(key.to_vec(), values.collect(), &self.layout)
        };
        let entries = keys.chunks_exact(key.len()).zip(values.chunks_exact(value.len())).map(entry);
        Ok((entries.collect(), next))
    }
}

/// The definition of a map in an object file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Definition {
    pub(super) name: String,
    kind: MapType,
    key: u32,
    value: u32,
    entries: u32,
}

/// Reads the definitions of an object's maps; an error is the fault.
pub(super) fn definitions(bytes: &[u8]) -> std::result::Result<Vec<Definition>, String> {
    let file = object::File::parse(bytes).map_err(|e| e.to_string())?;
    if file.section_by_name(".maps").is_none_or(|section| section.size() == 0) {
        return Ok(Vec::new());
    }
    let (open, heard) = log::listening(|| ObjectBuilder::default().open_memory(bytes));
    let open =
        open.map_err(|e| format!("has maps that cannot be read ({e}): {}", printable(&heard.join("; "))))?;
    // SAFETY: a live map of the open object.
    let own = |map: &OpenMap<'_>| !unsafe { sys::bpf_map__is_internal(map.as_libbpf_object().as_ptr()) };
    let all: Vec<Definition> =
        open.maps().filter(own).map(|map| definition(&map)).collect::<std::result::Result<_, _>>()?;
    if all.len() > STATE_MAPS {
        return Err(format!("has {} maps, more than {STATE_MAPS}", all.len()));
    }
    let cpus = libbpf_rs::num_possible_cpus()
        .map_err(|e| format!("has maps, and the CPUs cannot be counted: {e}"))?;
    let bytes: u64 = all.iter().map(|one| one.bytes(cpus as u64)).fold(0, u64::saturating_add);
    if bytes > STATE_BYTES {
        let sizes: Vec<String> = all
            .iter()
            .map(|one| format!("{} {} KiB", one.name, one.bytes(cpus as u64).div_ceil(1 << 10)))
            .collect();
        return Err(format!(
            "has maps of more than {} MiB ({}; maps of each CPU count {cpus} times)",
            STATE_BYTES >> 20,
            sizes.join(", ")
        ));
    }
    Ok(all)
}

/// Checks the definition of a map.
fn definition(outer: &OpenMap<'_>) -> std::result::Result<Definition, String> {
    let full = printable(&outer.name().to_string_lossy()).to_string();
    let made = "STATE_HASH() and the other macros of <wirelane/state.h> define maps";
    let Some(name) = full.strip_prefix(PREFIX) else {
        return Err(format!("has a map '{full}' of another kind: {made}"));
    };
    let wrong = |reason: &str| Err(format!("its map '{name}' {reason}: {made}"));
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || name.len() > STATE_NAME || !name.bytes().all(letters) {
        return wrong(&format!("has a name that is not of 1 to {STATE_NAME} letters"));
    }
    // SAFETY: a live map of an open object; the inner map lives as long as it.
    let (inner, pinned) = unsafe {
        let map = outer.as_libbpf_object().as_ptr();
        (sys::bpf_map__inner_map(map), !sys::bpf_map__pin_path(map).is_null())
    };
    if pinned {
        return wrong("is pinned; it has to end with the capture");
    }
    if outer.map_type() != MapType::ArrayOfMaps
        || outer.max_entries() as usize != MAX_GROUPS
        || outer.map_flags() != 0
    {
        return wrong("is not one of each capture");
    }
    if inner.is_null() {
        return wrong("has no entries");
    }
    // SAFETY: not null, and alive as above.
    let (kind, key, value, entries, flags) = unsafe {
        (
            sys::bpf_map__type(inner),
            sys::bpf_map__key_size(inner),
            sys::bpf_map__value_size(inner),
            sys::bpf_map__max_entries(inner),
            sys::bpf_map__map_flags(inner),
        )
    };
    let kind = MapType::from(kind);
    if !KINDS.contains(&kind) || flags != 0 {
        return wrong(&format!("is of a kind that is not allowed ({kind:?})"));
    }
    if key == 0 || value == 0 || entries == 0 {
        return wrong("has no entries, or entries without a key or a value");
    }
    Ok(Definition { name: name.to_owned(), kind, key, value, entries })
}

impl Definition {
    /// Bytes that the kernel needs for the map on a machine with this many CPUs, about.
    fn bytes(&self, cpus: u64) -> u64 {
        let aligned = |size: u32| u64::from(size).next_multiple_of(8);
        let values = aligned(self.value) * if self.kind.is_percpu() { cpus } else { 1 };
        let entry = if self.kind.is_hash_map() { ENTRY + aligned(self.key) + values } else { values };
        entry.saturating_mul(self.entries.into())
    }

    /// Creates the map; `object` is the file that defines it.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn create(&self, object: &[u8]) -> Result<StateMap> {
        let bytes = (Layout::Bytes(self.key as usize), Layout::Bytes(self.value as usize));
        let layout = layout::of_map(object, &self.name)?.unwrap_or(bytes);
        let opts =
            sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
        let map = MapHandle::create(self.kind, Some(&self.name), self.key, self.value, self.entries, &opts)
            .map_err(|e| {
                Error::bpf(
                    format!(
                        "allocating the map '{}' of a plug-in or steering program, {} entries (a control group's memory limit counts)",
                        self.name, self.entries
                    ),
                    e,
                )
            })?;
        Ok(StateMap { name: self.name.clone(), map, layout })
    }
}

/// Name of a map in a user's object.
pub(super) fn in_object(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// The name of a map in the linked program, in the slot with this key: a hexadecimal digit, since the kernel keeps 15
/// bytes of a map's name.
fn in_program(key: u32, name: &str) -> String {
    format!("u{key:x}_{name}")
}

/// The key of the slot, and the name, of a map of the linked program; `None`: the map is not a user's.
pub(crate) fn of_program(name: &str) -> Option<(u32, &str)> {
    let (key, name) = name.strip_prefix('u')?.split_once('_')?;
    Some((u32::from_str_radix(key, 16).ok()?, name))
}

/// The arrays of users' maps in a running program.
fn arrays(program: &OwnedFd) -> Result<Vec<MapHandle>> {
    let (_, ids) = attach::program_info(program)?;
    let maps = super::link::maps_of(ids)?;
    let of_user = |map: &MapHandle| map.name().to_str().is_some_and(|name| of_program(name).is_some());
    Ok(maps.into_iter().filter(of_user).collect())
}

/// The arrays that have a map of this group.
#[derive(Debug, Default)]
pub(crate) struct GroupState(Vec<MapHandle>);

impl GroupState {
    /// Puts the maps of a group's programs, which were installed in these slots, into the arrays of the running program;
    /// and removes those of groups whose owners have ended.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(in super::super) fn hand_over(
        instance: &Instance,
        group: usize,
        needs: &Needs,
        installed: &Installed,
    ) -> Result<GroupState> {
        let mut state = GroupState::default();
        let arrays = arrays(&instance.program()?)?;
        for other in (0..instance.group_slots).filter(|other| *other != group) {
            if !arrays.is_empty() && !is_owned(instance, other)? {
                remove(&arrays, other)?;
            }
        }
        remove(&arrays, group)?;
        let places = needs.steering.iter().map(|_| installed.place).chain(installed.plugins.iter().copied());
        for (program, place) in needs.programs().zip(places) {
            for StateMap { name, map, .. } in program.state().iter() {
                let name = in_program(program.kind().key(place), name);
                // A map that no instruction uses is not in the program.
                let Some(array) = arrays.iter().find(|array| array.name() == name.as_str()) else { continue };
                array
                    .update(
                        &(group as u32).to_ne_bytes(),
                        &map.as_fd().as_raw_fd().to_ne_bytes(),
                        MapFlags::ANY,
                    )
                    .map_err(|e| {
                        Error::bpf("handing a map of a plug-in or steering program to its lanes", e)
                    })?;
                let array = MapHandle::try_from(array).map_err(|e| Error::bpf("keeping a map", e))?;
                state.0.push(array);
            }
        }
        Ok(state)
    }

    /// Removes the group's maps from the arrays.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn leave(&self, group: usize) -> Result<()> {
        remove(&self.0, group)
    }
}

/// Removes the maps of a group from arrays.
fn remove(arrays: &[MapHandle], group: usize) -> Result<()> {
    let key = (group as u32).to_ne_bytes();
    let failed = |e| Error::bpf("removing a map of a plug-in or steering program", e);
    for array in arrays {
        // Deleting waits for running programs, even if there is nothing to delete.
        if array.lookup(&key, MapFlags::ANY).map_err(failed)?.is_some() {
            array.delete(&key).map_err(failed)?;
        }
    }
    Ok(())
}

/// Has `open`, a map of a user's program that is about to be created with the linked program, take the layout of the
/// capture's map: libbpf would allocate one of the full size for that.
///
/// # Errors
/// The error that libbpf returned.
pub(crate) fn take_layout(
    open: &mut libbpf_rs::OpenMapMut<'_>,
    name: &str,
    state: &State,
) -> libbpf_rs::Result<()> {
    state.iter().find(|one| one.name == name).map_or(Ok(()), |one| open.set_inner_map_fd(one.map.as_fd()))
}
