//! The blocks of a packet socket's ring, and the packets in them.
//!
//! A block belongs to the kernel or to us; `block_status` states the owner, and is the only word of synchronization:
//! the kernel writes it after everything else in the block, and reads it before it writes anything. A block holds
//! consecutive packets, each with a header (`struct tpacket3_hdr`) that has the offset of the next one.
//!
//! | word | written by | ordering here | its partner |
//! | --- | --- | --- | --- |
//! | `block_status` | the kernel, then us | Acquire load, Release store | barriers in `prb_close_block()` and `prb_dispatch_next_block()` |
//! | `num_pkts` | the kernel, at every packet; us, before a block goes back | Relaxed load behind that of the status, Relaxed store before that of the status | `prb_fill_curr_block()`, see `order.rs` |
//!
//! CPUs that fill a block at the same time reserve room under a lock and read the clock later, without it. So the
//! timestamps of a block are not in order. Where order is requested, the reader looks ahead by as many packets as CPUs
//! can be writing at a time, and takes the earliest. That one is the earliest of all: a packet further on has an
//! earlier timestamp only if all packets in between were still being written then. A block is closed under the lock
//! after all its packets were written (`blk_fill_in_prog_lock`): all timestamps of the next block are later.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{RESERVE, Socket};

// struct tpacket_block_desc: version, offset of private data, then struct tpacket_hdr_v1.
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;

const _: () = assert!(RESERVE as usize >= VLAN_TAG, "a VLAN tag is put back into the room before the packet");

/// Bytes of a VLAN tag, and of the addresses before it.
pub(super) const VLAN_TAG: usize = 4;
const ADDRESSES: usize = 12;
/// `struct virtio_net_hdr` (PACKET_VNET_HDR), directly before a packet: flags, GSO type, length of headers, then the
/// payload of each segment, and the position of the checksum. In the byte order of the host (`vio_le()`).
const VIRTIO: usize = 10;
const VIRTIO_SEGMENT: usize = 4;
/// Bits of `tp_status`, linux/if_packet.h: the packet is whole; it was stamped before the socket saw it; it is an
/// aggregate of TCP (since Linux 6.3).
const WHOLE: u32 = libc::TP_STATUS_USER;
const STAMPED_BEFORE: u32 = libc::TP_STATUS_TS_SOFTWARE;
const GSO_TCP: u32 = 1 << 8;

/// A packet in a block, as the kernel's header describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// The packet's first byte, which begins the link-layer header.
    pub(super) data: NonNull<u8>,
    /// Captured bytes of the packet in the block.
    pub(super) captured: usize,
    /// Length of the packet on the wire, in bytes.
    pub(super) length: u32,
    /// Timestamp in UTC nanoseconds.
    pub(super) ns: u64,
    /// The tag that the stack took out of the packet: type and TCI, in host order.
    pub(super) vlan: Option<(u16, u16)>,
    /// For an aggregate (GRO, GSO): the payload of each of its packets on the wire. 0: not an aggregate, or unknown.
    pub(super) segment_size: u16,
    /// Whether the packet is known to be an aggregate.
    pub(super) gso: bool,
}

/// The next packets of an open block in the order of their timestamps.
#[derive(Debug)]
struct Window {
    /// Timestamps, and offsets of the headers.
    packets: VecDeque<(u64, usize)>,
    /// Number of packets in the window while the block has enough.
    size: usize,
    /// Whether some packets were stamped before the socket saw them.
    stamped_before: bool,
}

impl Window {
    fn add(&mut self, ns: u64, header: usize) {
        self.packets.push_back((ns, header));
        let mut at = self.packets.len() - 1;
        while at > 0 && self.packets[at - 1].0 > ns {
            self.packets.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// The reader of a socket's ring; there is one.
#[derive(Debug)]
pub(super) struct Blocks {
    socket: Arc<Socket>,
    /// The block that is being read, or that comes next.
    at: usize,
    /// Number of unread packets of the block, and offset of the next one; `None` while the block is the kernel's.
    open: Option<(u32, usize)>,
    /// If packets are taken in the order of their timestamps: packets that were read and not taken.
    window: Option<Window>,
}

impl Blocks {
    /// A reader at the start of a new ring.
    pub(super) fn new(socket: Arc<Socket>) -> Blocks {
        Blocks { socket, at: 0, open: None, window: None }
    }

    /// Takes the packets of each block in the order of their timestamps. To be called before a block is opened.
    /// `writers`: maximum number of packets that are written at a time.
    pub(super) fn sort_blocks(&mut self, writers: usize) {
        // One more than needed, so that it never grows: the packet path does not allocate.
        let packets = VecDeque::with_capacity(writers + 2);
        self.window = Some(Window { packets, size: writers + 1, stamped_before: false });
    }

    /// The socket of this ring.
    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    fn block(&self) -> NonNull<u8> {
        let offset = self.at * self.socket.shape().block;
        // SAFETY: `at` is below the number of blocks (`hand_back`), so the block is within the mapping.
        unsafe { self.socket.ring().add(offset) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: within the block's header, aligned to 4 (blocks start at pages), mapped as long as the socket
        // lives; the kernel accesses it as a whole word.
        unsafe { AtomicU32::from_ptr(self.block().add(STATUS).cast().as_ptr()) }
    }

    /// A 32-bit field of the block, which is ours.
    fn word(&self, offset: usize) -> Option<u32> {
        let end = offset.checked_add(4)?;
        // SAFETY: within the block (checked), which the kernel does not write to while it is ours.
        (end <= self.socket.shape().block)
            .then(|| unsafe { self.block().add(offset).cast::<u32>().as_ptr().read_unaligned() })
    }

    fn half(&self, offset: usize) -> Option<u16> {
        let end = offset.checked_add(2)?;
        // SAFETY: as in word().
        (end <= self.socket.shape().block)
            .then(|| unsafe { self.block().add(offset).cast::<u16>().as_ptr().read_unaligned() })
    }

    /// Whether the block is ours.
    fn is_ours(&self) -> bool {
        // Acquire: pairs with the kernel's barrier before its status.
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Whether a packet can be taken now. Opens the next block, if none is open and it is ours; a block without packets
    /// is returned to the kernel.
    ///
    /// # Errors
    /// The offset of data that the kernel cannot have written.
    pub(super) fn is_ready(&mut self) -> Result<bool, usize> {
        if self.open.is_none() && self.is_ours() {
            self.open = self.word(PACKETS).zip(self.word(FIRST)).map(|(n, first)| (n, first as usize));
            self.look_ahead()?;
            self.hand_back();
        }
        Ok(self.has_packets())
    }

    /// Whether a block is open with packets that were not taken.
    pub(super) fn has_packets(&self) -> bool {
        self.open.is_some_and(|(unread, _)| unread > 0)
            || self.window.as_ref().is_some_and(|window| !window.packets.is_empty())
    }

    /// Whether a block is open, with or without packets.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Reads packets into the window of a sorting reader, up to the window's size or the block's end.
    fn look_ahead(&mut self) -> Result<(), usize> {
        loop {
            let Some(window) = &self.window else { return Ok(()) };
            let Some((unread @ 1.., at)) = self.open else { return Ok(()) };
            if window.packets.len() >= window.size {
                return Ok(());
            }
            let (status, ns) = self.word(at + 20).zip(self.stamp(at)).ok_or(at)?;
            self.step(unread, at)?;
            if status & WHOLE == 0 {
                self.socket.count_undescribed();
            } else if let Some(window) = &mut self.window {
                window.stamped_before |= status & STAMPED_BEFORE != 0;
                window.add(ns, at);
            }
        }
    }

    /// Advances to the packet after the one whose header is at `at`.
    fn step(&mut self, unread: u32, at: usize) -> Result<(), usize> {
        let next = self.word(at).ok_or(at)? as usize;
        self.open = Some((unread - 1, at + next));
        Ok(())
    }

    /// The timestamp of the next packet of a sorting reader; `None`: no block is open, or it has no packets left.
    pub(super) fn head(&self) -> Option<u64> {
        self.window.as_ref()?.packets.front().map(|(ns, _)| *ns)
    }

    /// Whether a sorting reader has seen packets, since the last call, that were stamped before the socket saw them.
    pub(super) fn were_stamped_before(&mut self) -> bool {
        self.window.as_mut().is_some_and(|window| std::mem::take(&mut window.stamped_before))
    }

    /// Whether the kernel holds no packet of this socket that it has not handed over: later packets have a timestamp
    /// after this call. See `order.rs`.
    pub(super) fn is_quiet(&self) -> bool {
        // Relaxed: the load comes after the Acquire load of the status. The kernel's store is a plain one under its
        // lock.
        !self.is_ours() && self.packets().load(Ordering::Relaxed) == 0
    }

    /// The number of packets in the block.
    fn packets(&self) -> &AtomicU32 {
        // SAFETY: as in status(): within the block's header, aligned to 4, mapped as long as the socket lives; the kernel
        // accesses it as a whole word.
        unsafe { AtomicU32::from_ptr(self.block().add(PACKETS).cast().as_ptr()) }
    }

    /// The next packet of the open block; `None` at its end. A sorting reader takes no packet later than `bound`.
    ///
    /// # Errors
    /// The offset of data that the kernel cannot have written.
    pub(super) fn take(&mut self, bound: &impl Fn(u64) -> bool) -> Result<Option<Packet>, usize> {
        loop {
            if let Some(window) = &mut self.window {
                let Some(&(ns, at)) = window.packets.front() else { return Ok(None) };
                if !bound(ns) {
                    return Ok(None);
                }
                window.packets.pop_front();
                self.look_ahead()?;
                return self.read(at).ok_or(at).map(Some);
            }
            let Some((unread @ 1.., at)) = self.open else { return Ok(None) };
            self.step(unread, at)?;
            if self.word(at + 20).ok_or(at)? & WHOLE != 0 {
                return self.read(at).ok_or(at).map(Some);
            }
            self.socket.count_undescribed();
        }
    }

    fn stamp(&self, at: usize) -> Option<u64> {
        Some(u64::from(self.word(at + 4)?) * 1_000_000_000 + u64::from(self.word(at + 8)?))
    }

    /// Reads a `struct tpacket3_hdr`: next offset, seconds, nanoseconds, captured and true length, status, then two
    /// 16-bit offsets of headers, and in a union the hash, the tag's TCI and its type.
    fn read(&self, at: usize) -> Option<Packet> {
        let status = self.word(at + 20)?;
        let captured = self.word(at + 12)? as usize;
        let start = at.checked_add(usize::from(self.half(at + 24)?))?;
        // All offsets must be within the block, including the reserved room before the packet.
        let before = if self.socket.tells_segments() { RESERVE as usize + VIRTIO } else { RESERVE as usize };
        if start < before || start.checked_add(captured)? > self.socket.shape().block {
            return None;
        }
        let segment_size = match start.checked_sub(VIRTIO) {
            Some(virtio) if self.socket.tells_segments() => self.half(virtio + VIRTIO_SEGMENT)?,
            _ => 0,
        };
        let vlan = if status & libc::TP_STATUS_VLAN_VALID != 0 {
            let kind = if status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
                self.half(at + 36)?
            } else {
                libc::ETH_P_8021Q as u16
            };
            Some((kind, self.word(at + 32)? as u16))
        } else {
            None
        };
        Some(Packet {
            // SAFETY: within the block (checked above).
            data: unsafe { self.block().add(start) },
            captured,
            length: self.word(at + 16)?,
            ns: self.stamp(at)?,
            vlan,
            segment_size,
            gso: segment_size != 0 || status & GSO_TCP != 0,
        })
    }

    /// Returns the block to the kernel once all its packets were taken, and their users have finished reading.
    pub(super) fn hand_back(&mut self) {
        if self.open.is_some() && !self.has_packets() {
            self.open = None;
            // Until the kernel writes to the block, which it may do much later, its packet count is 0: see is_quiet().
            // Relaxed: before the Release store.
            self.packets().store(0, Ordering::Relaxed);
            // Release: our reads come before the kernel's next writes.
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.at = (self.at + 1) % self.socket.shape().blocks;
        }
    }
}

/// The captured bytes of a packet.
///
/// # Safety
/// The packet's block is ours, and stays so while the slice lives.
pub(super) unsafe fn bytes<'a>(packet: &Packet) -> &'a [u8] {
    // SAFETY: within the block (Blocks::read), which the kernel does not write to while it is ours (the caller's
    // contract).
    unsafe { std::slice::from_raw_parts(packet.data.as_ptr(), packet.captured) }
}

/// Reinserts the tag that the stack took out of an Ethernet packet: the addresses move into the room before it.
///
/// # Safety
/// The packet's block is ours, and there is no reference to the packet.
pub(super) unsafe fn put_tag_back(packet: &mut Packet) {
    let Some((kind, tci)) = packet.vlan.take() else { return };
    // SAFETY: RESERVE bytes of room lie before the packet, within the block (Blocks::read), and VLAN_TAG of them are
    // used. The move is of bytes that were captured; the tag is written after the addresses only where these are whole,
    // so it ends where they ended.
    unsafe {
        let start = packet.data.sub(VLAN_TAG);
        let addresses = packet.captured.min(ADDRESSES);
        std::ptr::copy(packet.data.as_ptr(), start.as_ptr(), addresses);
        if addresses == ADDRESSES {
            let mut tag = [0; VLAN_TAG];
            tag[..2].copy_from_slice(&kind.to_be_bytes());
            tag[2..].copy_from_slice(&tci.to_be_bytes());
            std::ptr::copy_nonoverlapping(tag.as_ptr(), start.as_ptr().add(ADDRESSES), VLAN_TAG);
            packet.captured += VLAN_TAG;
        }
        packet.data = start;
    }
    packet.length += VLAN_TAG as u32;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timestamps of a block that `writers` CPUs write: each reserves room in turn, and reads the clock some time
    /// later.
    fn stamps(writers: usize, packets: usize) -> Vec<u64> {
        let mut state = 11u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut stamps, mut writing) = (vec![0; packets], Vec::new());
        let (mut reserved, mut time) = (0, 0);
        while reserved < packets || !writing.is_empty() {
            time += 1;
            if reserved < packets && writing.len() < writers && random(2) == 0 {
                writing.push(reserved);
                reserved += 1;
            } else if !writing.is_empty() {
                // The first writer is interrupted for long.
                let late = if random(50) == 0 { 0 } else { random(writing.len()) };
                stamps[writing.swap_remove(late)] = time;
            }
        }
        stamps
    }

    #[test]
    fn a_window_of_all_writers_sorts_a_block() {
        for writers in [1, 2, 3, 8] {
            let stamps = stamps(writers, 5000);
            let mut window = Window {
                packets: VecDeque::with_capacity(writers + 2),
                size: writers + 1,
                stamped_before: false,
            };
            let room = window.packets.capacity();
            let mut yielded = Vec::new();
            for (at, ns) in stamps.iter().enumerate() {
                if window.packets.len() == window.size {
                    yielded.extend(window.packets.pop_front());
                }
                window.add(*ns, at);
            }
            yielded.extend(window.packets.drain(..));
            assert!(yielded.is_sorted(), "{writers} writers");
            assert_eq!((yielded.len(), window.packets.capacity()), (stamps.len(), room));
            assert_eq!(stamps.is_sorted(), writers == 1, "otherwise this has shown little");
        }
    }
}
