//! A buffer whose last byte is directly before an unreadable page: a parser that reads past the end of a packet
//! crashes.

use std::ptr;

const PAGE: usize = 4096;

/// A buffer for packets of up to `capacity` bytes.
pub struct Guarded {
    start: *mut u8,
    capacity: usize,
}

impl Guarded {
    pub fn new(capacity: usize) -> Guarded {
        let capacity = capacity.next_multiple_of(PAGE);
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                capacity + PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "no memory for a test buffer");
        let start: *mut u8 = start.cast();
        // SAFETY: the page lies within the mapping made above, and nothing refers to it.
        let result = unsafe { libc::mprotect(start.add(capacity).cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(result, 0, "a page can be protected");
        Guarded { start, capacity }
    }

    /// A copy of `data` whose end is at the unreadable page.
    pub fn place(&mut self, data: &[u8]) -> &[u8] {
        assert!(data.len() <= self.capacity);
        // SAFETY: the last data.len() bytes before the guard page are within the mapping and writable, no
        // other reference to them exists as self is borrowed exclusively, and data is not in the mapping.
        unsafe {
            let place = self.start.add(self.capacity - data.len());
            ptr::copy_nonoverlapping(data.as_ptr(), place, data.len());
            std::slice::from_raw_parts(place, data.len())
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that new() made, and references into it ended with the borrow of self.
        unsafe { libc::munmap(self.start.cast(), self.capacity + PAGE) };
    }
}
