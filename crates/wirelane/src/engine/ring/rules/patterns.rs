//! The automata of patterns in the kernel: maps that are created for them, in their exact size.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libbpf_rs::libbpf_sys as sys;
use wirelane_bpf::search::Search;

use super::super::map_factory::{MapFactory, Wanted};
use crate::error::{Error, Result};

/// Automata, written: programs do not use them before they are put into maps of maps.
#[derive(Debug)]
pub(crate) struct KernelSearch {
    pub(crate) pages: OwnedFd,
    pub(crate) outputs: OwnedFd,
    /// The source of the automata, kept so that it need not be built again with each change of another rule.
    _search: Arc<Search>,
}

/// The automata of a capture that may still exist. All of its devices share them.
#[derive(Debug, Default)]
pub(super) struct KernelSearches(Mutex<Vec<(Weak<Search>, Weak<KernelSearch>)>>);

impl KernelSearches {
    /// The automata in the kernel, created and written if they do not exist yet; `None`: no patterns.
    ///
    /// # Errors
    /// The error that the kernel returned.
    pub(super) fn of(
        &self,
        map_factory: &MapFactory,
        search: &Arc<Search>,
    ) -> Result<Option<Arc<KernelSearch>>> {
        if search.states == 0 {
            return Ok(None);
        }
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, kernel)| kernel.strong_count() > 0);
        let of = Arc::downgrade(search);
        let same = made.iter().find(|(other, _)| other.ptr_eq(&of)).and_then(|(_, kernel)| kernel.upgrade());
        if let Some(kernel) = same {
            return Ok(Some(kernel));
        }
        let kernel = Arc::new(make(map_factory, search)?);
        made.push((of, Arc::downgrade(&kernel)));
        Ok(Some(kernel))
    }
}

fn make(map_factory: &MapFactory, search: &Arc<Search>) -> Result<KernelSearch> {
    let mib = search.bytes().div_ceil(1 << 20);
    let failed = |what: &str, e: io::Error| Error::kernel(format!("{what} ({mib} MiB)"), e);
    let count = |pages: usize| u32::try_from(pages).unwrap_or(u32::MAX);
    let make = |wanted| {
        let made = map_factory.make(wanted);
        made.map_err(|e| {
            failed(&format!("making tables for patterns: {}", super::super::map_factory::why(&e)), e)
        })
    };
    let kernel = KernelSearch {
        pages: make(Wanted::Pages(count(search.pages.len())))?,
        outputs: make(Wanted::Outputs(count(search.output_pages.len())))?,
        _search: Arc::clone(search),
    };
    let pages = search.pages.iter().map(|page| page.bytes());
    let outputs = search.output_pages.iter().map(|page| page.bytes());
    let written = write(kernel.pages.as_fd(), pages).and_then(|()| write(kernel.outputs.as_fd(), outputs));
    written.map_err(|e| failed("writing tables for patterns", e))?;
    Ok(kernel)
}

/// Writes the elements of a map, all of which are as long as its values.
fn write<'a>(map: BorrowedFd<'_>, elements: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    for (key, element) in (0u32..).zip(elements) {
        // SAFETY: a live descriptor of a map whose keys are 4 bytes long and whose values are as long as the element: both
        // were made from the same type. They are only read.
        let status = unsafe {
            sys::bpf_map_update_elem(
                map.as_raw_fd(),
                (&raw const key).cast(),
                element.as_ptr().cast(),
                sys::BPF_ANY.into(),
            )
        };
        if status < 0 {
            return Err(io::Error::from_raw_os_error(-status));
        }
    }
    Ok(())
}
