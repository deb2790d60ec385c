//! Memory shared with the kernel side: mappings of BPF maps, read and written as 64-bit words.
//!
//! This file and `crate::batch` contain the unsafe code of the ring engine; all other files use checked offsets.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Whether forked processes inherit mappings that are made from now on.
static KEPT_OVER_FORK: AtomicBool = AtomicBool::new(false);

/// Makes captures that are started from now on available in forked processes, too: for programs that become daemons
/// after they have started a capture. The new process calls [`crate::Capture::adopt`]; one of the two must not use the
/// capture any more, and must not drop it either ([`std::mem::forget`]). Without this call a forked process does not
/// have a capture's memory.
pub fn keep_over_fork() {
    KEPT_OVER_FORK.store(true, std::sync::atomic::Ordering::Relaxed);
}

/// A shared mapping of a BPF map, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping is memory that other processes and the kernel change anyway. All access goes through
// atomics (`word`) or through `bytes`, whose caller argues why nobody writes there.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of the map of `fd` from `offset` (a multiple of the page size). Read-only mappings fault on a
    /// write, so a worker can never modify the kernel's data.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, writable: bool) -> io::Result<Mapping> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if !KEPT_OVER_FORK.load(std::sync::atomic::Ordering::Relaxed) {
            // SAFETY: exactly what mmap gave. A process that is forked (the broker) does not keep
            // rings alive; a failure means that it does, for as long as it runs.
            unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { start, len, writable })
    }

    /// The 64-bit word at this byte offset. Panics outside of the mapping or off alignment: offsets are
    /// computed from layouts, never from data.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "offset {offset} of {}", self.len);
        // SAFETY: in bounds and aligned (checked), mapped for as long as `self` lives, and everybody on our
        // side accesses it through atomics. The kernel side's plain 64-bit stores to aligned words are single
        // copies on the architectures we build for, as the kernel's own READ_ONCE/WRITE_ONCE rest on.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// Sets `len` bytes from `offset` on to zero, word by word. The mapping must be writable.
    pub(crate) fn clear(&self, offset: usize, len: usize) {
        assert!(self.writable, "a read-only mapping is not cleared");
        for word in (offset..offset + len).step_by(8) {
            self.word(word).store(0, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Writes these values from `offset` on, word by word. The mapping must be writable.
    ///
    /// # Safety
    /// `T` is plain integers without padding, its size a multiple of 8.
    pub(crate) unsafe fn write<T>(&self, offset: usize, values: &[T]) {
        assert!(self.writable, "a read-only mapping is not written");
        let words = values.as_ptr().cast::<u64>();
        for at in 0..size_of_val(values) / 8 {
            // SAFETY: within the values, whose bytes are all initialised (the caller's part); read_unaligned asks for
            // nothing more.
            let value = unsafe { words.add(at).read_unaligned() };
            self.word(offset + at * 8).store(value, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The bytes at this offset.
    ///
    /// # Safety
    /// Nothing, the kernel side included, writes to them while the slice lives.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "{offset}+{len} of {}", self.len);
        // SAFETY: in bounds (checked), mapped for as long as `self` lives; not written to (the caller's part).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap gave; no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One word of a mapping, which it keeps alive.
#[derive(Clone, Debug)]
pub(crate) struct Word {
    word: NonNull<AtomicU64>,
    _mapping: Arc<Mapping>,
}

// SAFETY: a shared reference to an atomic in a mapping that is itself Send and Sync.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at this byte offset; panics as [`Mapping::word`] does.
    pub(crate) fn new(mapping: &Arc<Mapping>, offset: usize) -> Word {
        Word { word: NonNull::from(mapping.word(offset)), _mapping: Arc::clone(mapping) }
    }
}

impl Deref for Word {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        // SAFETY: checked by `Mapping::word`, and the mapping lives as long as `self`.
        unsafe { self.word.as_ref() }
    }
}
