//! The UMEM: memory that the sockets of a device share with the kernel, divided into packet buffers (frames).

use std::io;
use std::ptr::NonNull;

use crate::{Error, Result};

/// Size of a frame in bytes: the largest that the kernel accepts without huge pages.
pub const FRAME: usize = 4096;

/// A UMEM. It is unmapped on drop; sockets in the kernel keep its pages.
#[derive(Debug)]
pub struct Umem {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: plain memory; the rings decide who owns a frame, and each caller that gets bytes of a frame argues
// exclusivity.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Allocates memory for `frames` frames.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is not enough memory.
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

    /// Start address and length in bytes.
    pub fn extent(&self) -> (u64, u64) {
        (self.start.as_ptr().addr() as u64, self.length as u64)
    }

    /// Address of `length` bytes at `offset`; `None` if they are not within the memory.
    pub fn at(&self, offset: u64, length: usize) -> Option<NonNull<u8>> {
        let start = usize::try_from(offset).ok()?;
        // SAFETY: in bounds (checked).
        (start.checked_add(length)? <= self.length).then(|| unsafe { self.start.add(start) })
    }

    /// The bytes of a frame that we may write: a frame that is in no ring.
    ///
    /// # Safety
    /// The frame is in none of the kernel's rings, and nobody holds a reference to it.
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
