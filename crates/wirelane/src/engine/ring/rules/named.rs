//! Named sets in the kernel: bloom filters, and tables of entries for sets with confirmation.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use libbpf_rs::libbpf_sys as sys;
use wirelane_bpf::members::Member;
use wirelane_bpf::search::Search;
use wirelane_privsep::broker::Broker;

use super::super::map_factory::{self, MapFactory, Wanted};
use super::patterns::{KernelSearch, KernelSearches};
use crate::error::{Error, Result};
use wirelane_rules::NamedSet;

/// A named set, filled: programs do not use it before it is put into a map of maps.
#[derive(Debug)]
pub(crate) struct KernelSet {
    pub(crate) bloom: OwnedFd,
    /// Table of entries of a set with confirmation.
    pub(crate) exact: Option<OwnedFd>,
}

/// The named sets of a capture. They are shared by all of its devices, and persist when other rules change.
#[derive(Debug)]
pub(crate) struct KernelSets {
    map_factory: MapFactory,
    /// Sets that may still exist.
    made: Mutex<Vec<(NamedSet, Weak<KernelSet>)>>,
    searches: KernelSearches,
}

impl KernelSets {
    /// Sets for a capture that gives up its rights, and has its broker create maps of at most `most` bytes; or for one
    /// that keeps them (`None`).
    ///
    /// # Errors
    /// If the broker cannot be started.
    pub(crate) fn new(broker: Option<&Arc<Broker>>, most: u64) -> Result<Arc<KernelSets>> {
        let map_factory = MapFactory::new(broker, most)?;
        Ok(Arc::new(KernelSets { map_factory, made: Mutex::default(), searches: KernelSearches::default() }))
    }

    /// The set in the kernel, created and filled if it does not exist yet.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn of(&self, set: &NamedSet) -> Result<Arc<KernelSet>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, kernel)| kernel.strong_count() > 0);
        let same = made.iter().find(|(other, _)| other == set).and_then(|(_, kernel)| kernel.upgrade());
        if let Some(kernel) = same {
            return Ok(kernel);
        }
        let kernel = Arc::new(self.make(set)?);
        made.push((set.clone(), Arc::downgrade(&kernel)));
        Ok(kernel)
    }

    /// The automata of patterns in the kernel, created and written if they do not exist yet; `None`: no patterns.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(crate) fn search(&self, search: &Arc<Search>) -> Result<Option<Arc<KernelSearch>>> {
        self.searches.of(&self.map_factory, search)
    }

    fn make(&self, set: &NamedSet) -> Result<KernelSet> {
        let make = |wanted, what: &str, bytes: u64| {
            self.map_factory.make(wanted).map_err(|e| {
                let (mib, reason) = (bytes.div_ceil(1 << 20), map_factory::why(&e));
                Error::kernel(
                    format!("making {what} of up to {mib} MiB for the set '{}': {reason}", set.name),
                    e,
                )
            })
        };
        let size = set.bloom();
        let bloom = make(size.into(), "a bloom filter", size.bytes())?;
        let exact = set.confirm.then(|| {
            let entries = u32::try_from(set.entries.count()).unwrap_or(u32::MAX);
            make(Wanted::Exact(entries), "a table of entries", set.kernel_bytes() - size.bytes())
        });
        let kernel = KernelSet { bloom, exact: exact.transpose()? };
        let filled = set.entries.each(|member| {
            put(kernel.bloom.as_fd(), None, &member.bytes())?;
            kernel.exact.as_ref().map_or(Ok(()), |exact| enter(exact.as_fd(), member))
        });
        filled.map_err(|e| {
            let mib = set.kernel_bytes().div_ceil(1 << 20);
            Error::kernel(format!("filling the set '{}' (up to {mib} MiB)", set.name), e)
        })?;
        Ok(kernel)
    }
}

/// Puts an entry into a table. Its memory comes from a stock that the kernel refills in the background, which may be
/// empty for a moment (kernel/bpf/memalloc.c): so this retries for a tenth of a second.
fn enter(table: BorrowedFd<'_>, member: &Member) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match put(table, Some(member), &1u32.to_ne_bytes()) {
            Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && tries < 100 => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Puts an entry into a bloom filter, which has no key, or into a table.
fn put(map: BorrowedFd<'_>, key: Option<&Member>, value: &[u8]) -> io::Result<()> {
    let key = key.map(Member::bytes);
    let key = key.as_ref().map_or(std::ptr::null(), |key| key.as_ptr().cast());
    // SAFETY: a live descriptor of a map whose keys are as long as a Member or, without a key, of size 0, and whose
    // values are as long as `value`: of a bloom filter Member's bytes, of a table 4. Both are only read.
    let status =
        unsafe { sys::bpf_map_update_elem(map.as_raw_fd(), key, value.as_ptr().cast(), sys::BPF_ANY.into()) };
    if status < 0 { Err(io::Error::from_raw_os_error(-status)) } else { Ok(()) }
}

/// Whether the kernel finds an entry: in a bloom filter, or with a key in a table.
#[cfg(test)]
pub(crate) fn has(map: &OwnedFd, key: Option<&Member>, member: &Member) -> io::Result<bool> {
    let key = key.map(Member::bytes);
    let key = key.as_ref().map_or(std::ptr::null(), |key| key.as_ptr().cast());
    let mut value = member.bytes();
    // SAFETY: as in `put`; the value is at least as long as the map's, and may be written.
    let status = unsafe { sys::bpf_map_lookup_elem(map.as_raw_fd(), key, value.as_mut_ptr().cast()) };
    match -status {
        0 => Ok(true),
        libc::ENOENT => Ok(false),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}
