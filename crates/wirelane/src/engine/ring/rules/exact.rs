//! The table of exact-match rules: a hash map in the kernel, which packets and we change at the same time.

use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{ErrorKind, MapCore as _, MapFlags, MapHandle, MapType};
use wirelane_bpf::rules::{ExactKey, ExactValue};

use crate::active_rules::{InsertOutcome, Page};
use crate::error::{Error, Result};

/// Entries of a page. A bucket is never divided, so this is also the maximum length of a bucket at first.
const PAGE: usize = 4096;

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
    let mut most = PAGE;
    loop {
        let mut keys: Vec<ExactKey> = vec![ExactKey::default(); most];
        let mut values: Vec<ExactValue> = vec![ExactValue::default(); most];
        let (mut count, mut begin, mut end) = (most as u32, from.unwrap_or(0), 0u32);
        let first = if from.is_some() { (&raw mut begin).cast() } else { std::ptr::null_mut() };
        // SAFETY: a live descriptor; `begin` and `end` are as long as a position in a hash map (4 bytes), and the vectors
        // have room for `count` keys and values of the map's sizes.
        let status = unsafe {
            sys::bpf_map_lookup_batch(
                map.as_fd().as_raw_fd(),
                first,
                (&raw mut end).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut count,
                std::ptr::null(),
            )
        };
        match -status {
            0 | libc::ENOENT => {
                keys.truncate(count as usize);
                let rules = keys.into_iter().zip(values).collect();
                return Ok(Page { rules, next: (status == 0).then_some(end) });
            }
            // A bucket with more entries.
            libc::ENOSPC if most < 1 << 24 => most *= 4,
            errno => {
                let source = std::io::Error::from_raw_os_error(errno);
                return Err(Error::kernel("reading exact-match rules", source));
            }
        }
    }
}
