//! The memory that the sockets of a device share with the kernel: packets' buffers, called frames.

use std::io;
use std::ptr::NonNull;

use crate::{Error, Result};

/// Bytes of a frame: what the kernel takes without huge pages.
pub const FRAME: usize = 4096;

/// See the head of this file. Unmapped on drop, which the kernel's sockets survive.
#[derive(Debug)]
pub struct Umem {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory; which frame is whose is decided by the rings, and whoever gets bytes of one argues.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Memory for so many frames.
    ///
    /// # Errors
    /// [`Error::Kernel`] where there is not as much.
    pub fn new(frames: usize) -> Result<Umem> {
        let length = frames * FRAME;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        let failed = |e| Error::kernel(format!("getting {length} bytes of memory for packets"), e);
        if start == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        let start =
            NonNull::new(start.cast()).ok_or_else(|| failed(io::ErrorKind::AddrNotAvailable.into()))?;
        Ok(Umem { start, length })
    }

    /// Where it begins, and its bytes.
    pub fn extent(&self) -> (u64, u64) {
        (self.start.as_ptr().addr() as u64, self.length as u64)
    }

    /// The address of these bytes, which must lie in the memory; `None` where they do not.
    pub fn at(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let start = usize::try_from(offset).ok()?;
        // SAFETY: in bounds (checked).
        (start.checked_add(length)? <= self.length).then(|| unsafe { self.start.add(start) })
    }

    /// A frame that is ours to write: one that is in no ring.
    ///
    /// # Safety
    /// The frame is in none of the kernel's rings, and nobody has a reference to it.
    #[expect(
        clippy::mut_from_ref,
        reason = "frames change hands by the rings, which the caller argues about"
    )]
    pub unsafe fn frame(&self, frame: u64) -> Option<&mut [u8]> {
        let start = self.at(frame, FRAME)?;
        // SAFETY: in bounds (checked by at()), exclusive (the caller's part).
        Some(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), FRAME) })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap gave. The kernel holds the pages for as long as a socket uses them.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
