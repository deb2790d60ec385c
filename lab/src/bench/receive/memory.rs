//! Memory that the kernel writes while this process reads it: areas from mmap(2), and the rings of AF_XDP in them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A mapped area; unmapped when dropped.
pub(super) struct Area {
    start: *mut u8,
    length: usize,
}

// SAFETY: an area is memory of the process, mapped until it is dropped, and belongs to no thread; the owner of the
// value has exclusive access.
unsafe impl Send for Area {}

impl Area {
    /// Private memory of this process, from whole pages, zero.
    pub(super) fn anonymous(length: usize) -> io::Result<Area> {
        Area::map(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)
    }

    /// Memory of a socket, shared with the kernel.
    pub(super) fn of(socket: BorrowedFd<'_>, length: usize, offset: i64) -> io::Result<Area> {
        Area::map(length, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn map(length: usize, flags: i32, fd: i32, offset: i64) -> io::Result<Area> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a null hint lets the kernel choose free addresses, so no memory in use is replaced; the
        // other arguments are integers, and the kernel checks them.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Area { start: start.cast(), length })
    }

    /// Start address.
    pub(super) fn address(&self) -> u64 {
        self.start.addr() as u64
    }

    /// Size in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Pointer to a `T` at this offset.
    ///
    /// # Panics
    /// It would not be completely within the area, or not aligned.
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length), "beyond the area");
        let at = self.start.wrapping_add(offset).cast::<T>();
        assert!(at.is_aligned(), "not aligned");
        at
    }

    /// An integer that both sides modify.
    pub(super) fn atomic(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `at` checked bounds and alignment. The area lives as long as the reference. The kernel
        // accesses the integer whole, and this side through atomics only.
        unsafe { &*self.at::<AtomicU32>(offset) }
    }

    /// Copies a value out that the kernel has finished writing. `T` is a plain structure of the kernel's, for
    /// which any bytes are valid.
    pub(super) fn read<T: Plain>(&self, offset: usize) -> T {
        // SAFETY: `at` checked bounds and alignment; any bytes are a valid T (see [`Plain`]). The read is
        // volatile because the bytes change behind the compiler's back between two reads.
        unsafe { self.at::<T>(offset).read_volatile() }
    }

    /// Writes a value that the kernel reads later, after an index was stored with release order.
    pub(super) fn write<T: Plain>(&self, offset: usize, value: T) {
        // SAFETY: `at` checked bounds and alignment, and the area is mapped for writing.
        unsafe { self.at::<T>(offset).write_volatile(value) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area was mapped by `map` with this length and is unmapped once; no reference into it
        // outlives `self`. It fails only for arguments that mmap would not have returned.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Integers and structures of integers: any bytes are a valid value.
///
/// # Safety
/// Every bit pattern must be a valid value of the type: no reference, bool, or enum.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers only (linux/if_xdp.h).
unsafe impl Plain for libc::xdp_desc {}
// SAFETY: integers only (linux/if_packet.h).
unsafe impl Plain for libc::tpacket3_hdr {}

/// One ring of an AF_XDP socket. This side is either its consumer (RX) or its producer (fill).
pub(super) struct Ring {
    area: Area,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    mask: u32,
}

impl Ring {
    /// Maps the ring of `count` entries (a power of two) of type `T` at this page offset of the socket.
    pub(super) fn map<T: Plain>(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        count: u32,
        page_offset: u64,
    ) -> io::Result<Ring> {
        let length = offsets.desc as usize + count as usize * size_of::<T>();
        Ok(Ring {
            area: Area::of(socket, length, page_offset as i64)?,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags as usize,
            entries: offsets.desc as usize,
            mask: count - 1,
        })
    }

    /// As consumer: the indices of the available entries. Acquire order: entries up to the end can be read.
    pub(super) fn available(&self) -> (u32, u32) {
        let taken = self.area.atomic(self.consumer).load(Ordering::Relaxed);
        (taken, self.area.atomic(self.producer).load(Ordering::Acquire))
    }

    /// As consumer: all entries before this index may be written again.
    pub(super) fn release(&self, until: u32) {
        self.area.atomic(self.consumer).store(until, Ordering::Release);
    }

    /// As producer: the next index to write. There is always room: no more frames exist than entries.
    pub(super) fn head(&self) -> u32 {
        self.area.atomic(self.producer).load(Ordering::Relaxed)
    }

    /// As producer: all entries before this index can be read.
    pub(super) fn publish(&self, until: u32) {
        self.area.atomic(self.producer).store(until, Ordering::Release);
    }

    /// Whether the kernel requests a system call.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.area.atomic(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Entry with this index.
    pub(super) fn get<T: Plain>(&self, index: u32) -> T {
        self.area.read(self.entries + (index & self.mask) as usize * size_of::<T>())
    }

    /// Writes the entry with this index.
    pub(super) fn set<T: Plain>(&self, index: u32, value: T) {
        self.area.write(self.entries + (index & self.mask) as usize * size_of::<T>(), value);
    }
}
