//! The reader's half of the ring protocol. The writer's half, with a diagram, is `bpf/ring.h`.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `public_head` | the lane, every few KiB | Acquire load in [`Reader::published`] | `wl_publish` in `wl_ring_publish` |
//! | `head` | the lane, every record | Acquire load in [`Reader::peek`] | `wl_publish` in `wl_ring_commit` |
//! | `tail` | this reader | Release store in [`Reader::release`] | the load in `wl_ring_unread`, the branch in `wl_ring_reserve` |
//! | `wake_at` | this reader | SeqCst store in [`Reader::arm`] | the volatile load in `wl_ring_publish` |
//!
//! The last pair can miss each other (the lane has no fence there): then the time-out of the sleep bounds the delay.
//! Nothing else depends on it.
//!
//! The protocol is generic over the words so that the tests run it under loom, which tries every interleaving
//! and every legal reordering of a model of the lane against it.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use wirelane_bpf::instance::AWAKE;

/// A 64-bit word that two sides share.
pub(crate) trait SharedWord {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
}

impl<W: Deref<Target = AtomicU64>> SharedWord for W {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.deref().load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.deref().store(value, order);
    }
}

/// The words of one ring, and the reader's position.
#[derive(Debug)]
pub(crate) struct Reader<W> {
    head: W,
    public_head: W,
    tail: W,
    wake_at: W,
    position: u64,
}

impl<W: SharedWord> Reader<W> {
    /// A reader at position 0 of a new ring.
    pub(crate) fn new(head: W, public_head: W, tail: W, wake_at: W) -> Reader<W> {
        Reader { head, public_head, tail, wake_at, position: 0 }
    }

    /// Position of the next unread record.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Unread bytes up to the published head. Touches only the line that the lane writes every few KiB.
    #[inline]
    pub(crate) fn published(&self) -> u64 {
        // May be before the position, because `peek` runs ahead of it.
        self.public_head.load(Ordering::Acquire).saturating_sub(self.position)
    }

    /// Unread bytes up to the last record. Moves the cache line that the lane writes at every record away from the
    /// lane: for a worker that has been idle.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        self.head.load(Ordering::Acquire).saturating_sub(self.position)
    }

    /// Releases the next `bytes` bytes, which have been read: the lane may overwrite them.
    #[inline]
    pub(crate) fn release(&mut self, bytes: u64) {
        if bytes != 0 {
            self.position += bytes;
            self.tail.store(self.position, Ordering::Release);
        }
    }

    /// Requests the bell once `bytes` unread bytes have gathered.
    pub(crate) fn arm(&self, bytes: u64) {
        self.wake_at.store(self.position + bytes, Ordering::SeqCst);
    }

    /// Cancels the request for the bell.
    pub(crate) fn disarm(&self) {
        self.wake_at.store(AWAKE, Ordering::Relaxed);
    }
}
