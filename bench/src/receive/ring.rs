//! A ring of AF_XDP: indices that kernel and user space share (Documentation/networking/af_xdp.rst).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::Mapping;

/// One ring of entries `T`, of which this side is the producer or the consumer.
pub(super) struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    entries: u32,
    /// The index that this side owns.
    own: u32,
    entry: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring at `page_offset` of the socket; it has `entries`, a power of two.
    pub(super) fn new(
        socket: &OwnedFd,
        page_offset: i64,
        offsets: libc::xdp_ring_offset,
        entries: u32,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + entries as usize * size_of::<T>();
        let mapping = Mapping::new(Some(socket), length, page_offset)?;
        Ok(Ring { mapping, offsets, entries, own: 0, entry: std::marker::PhantomData })
    }

    fn shared(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: `at` checks bounds and alignment, the mapping lives as long as `self`, and both sides of the
        // ring access the index atomically only.
        unsafe { &*self.mapping.at::<AtomicU32>(offset as usize, 1) }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = (index & (self.entries - 1)) as usize;
        self.mapping.at(self.offsets.desc as usize + at * size_of::<T>(), 1)
    }

    /// Number of entries that the kernel has produced and this side has not consumed.
    pub(super) fn filled(&self) -> u32 {
        // Acquire: the entries are read after the index that says they are there.
        self.shared(self.offsets.producer).load(Ordering::Acquire).wrapping_sub(self.own)
    }

    /// The entry `ahead` of the first filled one; `ahead` is less than [`Ring::filled`].
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: `entry` checks the bounds, and the kernel leaves filled entries alone until they are released.
        unsafe { self.entry(self.own.wrapping_add(ahead)).read() }
    }

    /// Gives `count` entries back to the kernel.
    pub(super) fn release(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count);
        // Release: the entries have been read before the kernel may write them again.
        self.shared(self.offsets.consumer).store(self.own, Ordering::Release);
    }

    /// Writes the entry `ahead` of the last produced one.
    pub(super) fn put(&mut self, ahead: u32, value: T) {
        // SAFETY: `entry` checks the bounds. The caller has no more entries in the ring than it holds, so the
        // kernel has consumed this one.
        unsafe { self.entry(self.own.wrapping_add(ahead)).write(value) }
    }

    /// Shows the kernel `count` entries that were put.
    pub(super) fn produce(&mut self, count: u32) {
        self.own = self.own.wrapping_add(count);
        // Release: the entries are written before the index that shows them.
        self.shared(self.offsets.producer).store(self.own, Ordering::Release);
    }

    /// Whether the kernel asks to be woken for this ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}
