//! The four rings of an AF_XDP socket (Documentation/networking/af_xdp.rst, net/xdp/xsk_queue.h): arrays of descriptors
//! with a producer and a consumer position, one of them written by the kernel and the other one by this process.
//!
//! | ring | we are | our store | its partner in the kernel |
//! | --- | --- | --- | --- |
//! | fill, TX | producer | Release store of the producer | acquire load in `xskq_cons_peek_desc` |
//! | completion, RX | consumer | Release store of the consumer | load in `xskq_prod_nb_free`, behind a branch |

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// `XDP_RING_NEED_WAKEUP`, linux/if_xdp.h.
const NEED_WAKEUP: u32 = 1;

/// Offsets of the parts of a ring in its mapping (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RingOffsets {
    producer: u64,
    consumer: u64,
    descriptors: u64,
    flags: u64,
}

/// Offsets of all four rings (`struct xdp_mmap_offsets`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Offsets {
    /// Received packets.
    pub rx: RingOffsets,
    /// Packets to send.
    pub tx: RingOffsets,
    /// Frames for the kernel to fill.
    pub fill: RingOffsets,
    /// Frames that have been sent.
    pub completion: RingOffsets,
}

/// A packet's buffer (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Descriptor {
    /// Offset in the UMEM.
    pub address: u64,
    /// Bytes of the packet in it.
    pub length: u32,
    /// [`CONTINUES`], or 0.
    pub options: u32,
}

/// `XDP_PKT_CONTD`: the packet continues in the next descriptor.
pub const CONTINUES: u32 = 1;

/// One ring, of descriptors `D`: `u64` (addresses) or [`Descriptor`].
#[derive(Debug)]
pub struct Ring<D> {
    start: NonNull<u8>,
    length: usize,
    offsets: RingOffsets,
    entries: u32,
    descriptors: PhantomData<D>,
}

// SAFETY: memory shared with the kernel, accessed through atomics; each descriptor is accessed only by the side that
// the positions give it to.
unsafe impl<D> Send for Ring<D> {}
// SAFETY: as above.
unsafe impl<D> Sync for Ring<D> {}

impl<D: Copy> Ring<D> {
    /// Maps a ring of `entries` entries (a power of two) at offset `place` of the socket's file.
    pub fn map(fd: &OwnedFd, place: i64, offsets: RingOffsets, entries: u32) -> io::Result<Ring<D>> {
        let length = offsets.descriptors as usize + entries as usize * size_of::<D>();
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                place as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Ring { start, length, offsets, entries, descriptors: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset as usize + 4 <= self.length);
        // SAFETY: in bounds and aligned (checked), mapped as long as `self` lives, a whole word to both sides.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset as usize).cast()) }
    }

    fn place(&self, position: u32) -> NonNull<D> {
        let index = (position & (self.entries - 1)) as usize;
        // SAFETY: masked to below the number of entries, all of which lie in the mapping (its length was made so).
        unsafe { self.start.add(self.offsets.descriptors as usize).cast::<D>().add(index) }
    }

    /// The producer's position. Acquire: descriptors before it are complete.
    pub fn producer(&self) -> u32 {
        self.word(self.offsets.producer).load(Ordering::Acquire)
    }

    /// The consumer's position. Acquire: the consumer no longer reads descriptors before it.
    pub fn consumer(&self) -> u32 {
        self.word(self.offsets.consumer).load(Ordering::Acquire)
    }

    /// The descriptor at a position between the consumer's and the producer's.
    pub fn read(&self, position: u32) -> D {
        // SAFETY: within the mapping, and any bits are a valid D (integers). Where the caller's position is wrong,
        // the value is meaningless, and callers check what they do with it.
        unsafe { self.place(position).as_ptr().read_volatile() }
    }

    /// Writes the descriptor at a position that belongs to the producer.
    pub fn write(&self, position: u32, descriptor: D) {
        // SAFETY: within the mapping; of the rings shared with the kernel, we write only those of which we are the
        // producer.
        unsafe { self.place(position).as_ptr().write_volatile(descriptor) }
    }

    /// Publishes all descriptors before this position: the producer has written them.
    pub fn submit(&self, position: u32) {
        self.word(self.offsets.producer).store(position, Ordering::Release);
    }

    /// Returns all descriptors before this position to the producer: the consumer has read them.
    pub fn release(&self, position: u32) {
        self.word(self.offsets.consumer).store(position, Ordering::Release);
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether the kernel asks to be woken to go on.
    pub fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

impl<D> Drop for Ring<D> {
    fn drop(&mut self) {
        // SAFETY: exactly what mmap gave; no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
