//! The table of exact-match rules: a hash map in the kernel, which packets and we change at the same time.

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::rules::{ExactKey, ExactValue};

use super::super::pages;
use crate::active_rules::{InsertOutcome, Page};
use crate::error::{Error, Result};

/// Creates a table for `room` rules. Memory is allocated as they are added.
pub(super) fn create(room: usize) -> Result<MapHandle> {
    let opts = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: sys::BPF_F_NO_PREALLOC,
        ..Default::default()
    };
    let (key, value) = (size_of::<ExactKey>() as u32, size_of::<ExactValue>() as u32);
    MapHandle::create(MapType::Hash, Some("wl_exact"), key, value, room.max(1) as u32, &opts).map_err(|e| {
        Error::bpf(
            format!(
                "making a table for {room} exact-match rules (reduce it with a smaller --rules-capacity)"
            ),
            e,
        )
    })
}

/// The bytes of a key or a value, in the kernel's layout.
fn bytes<T>(of: &T) -> &[u8] {
    // SAFETY: ExactKey and ExactValue, the only types that this is called with, are plain integers without padding (the
    // layout tests of wirelane-bpf say so), and live as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(of).cast::<u8>(), size_of::<T>()) }
}

/// The rule in these bytes.
fn rule(bytes: &[u8]) -> Option<ExactValue> {
    (bytes.len() == size_of::<ExactValue>()).then(|| {
        // SAFETY: as long as an ExactValue, which is plain integers: every pattern of bits is one.
        unsafe { bytes.as_ptr().cast::<ExactValue>().read_unaligned() }
    })
}

pub(super) fn put(map: &MapHandle, key: &ExactKey, rule: &ExactValue) -> Result<InsertOutcome> {
    match map.update(bytes(key), bytes(rule), MapFlags::NO_EXIST) {
        Ok(()) => Ok(InsertOutcome::Done),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(InsertOutcome::Exists),
        Err(e) if e.kind() == ErrorKind::TooBig => Ok(InsertOutcome::Full),
        Err(e) => Err(Error::bpf("adding an exact-match rule", e)),
    }
}

pub(super) fn take(map: &MapHandle, key: &ExactKey) -> Result<Option<ExactValue>> {
    match map.lookup_and_delete(bytes(key)) {
        Ok(found) => Ok(found.as_deref().and_then(rule)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::bpf("removing an exact-match rule", e)),
    }
}

pub(super) fn get(map: &MapHandle, key: &ExactKey) -> Result<Option<ExactValue>> {
    let found = map.lookup(bytes(key), MapFlags::ANY);
    found
        .map(|found| found.as_deref().and_then(rule))
        .map_err(|e| Error::bpf("reading an exact-match rule", e))
}

/// Some rules, from the beginning or from the position at which another page ended.
pub(super) fn page(map: &MapHandle, from: Option<u32>) -> Result<Page> {
    let (key, value) = ([ExactKey::default()], [ExactValue::default()]);
    let (keys, values, next) =
        pages::page(map, from, &key, &value).map_err(|e| Error::kernel("reading exact-match rules", e))?;
    Ok(Page { rules: keys.into_iter().zip(values).collect(), next })
}
