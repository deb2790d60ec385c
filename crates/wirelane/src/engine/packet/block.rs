//! The blocks of a packet socket's ring, and the packets in them.
//!
//! A block belongs to the kernel or to us; `block_status` says to whom, and is the only word through which the two
//! speak: the kernel writes it behind everything else in the block, and reads it before it writes anything. A block
//! holds packets one behind the other, each with a header (`struct tpacket3_hdr`) that says where the next one is.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{RESERVE, Socket};

// struct tpacket_block_desc: version, offset of private data, then struct tpacket_hdr_v1.
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;

const _: () = assert!(RESERVE as usize >= VLAN_TAG, "a VLAN tag is put back into the room before the packet");

/// Bytes of a VLAN tag, and of the addresses that stand before it.
pub(super) const VLAN_TAG: usize = 4;
const ADDRESSES: usize = 12;

/// A packet in a block, as the kernel's header describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    /// Its first byte, the link-layer header's.
    pub(super) data: NonNull<u8>,
    /// Bytes of it in the block.
    pub(super) captured: usize,
    /// Bytes that it had.
    pub(super) length: u32,
    /// UTC.
    pub(super) ns: u64,
    /// The tag that was taken out of it: type and TCI, in host order.
    pub(super) vlan: Option<(u16, u16)>,
    /// A segmentation-offload packet.
    pub(super) gso: bool,
}

/// The reader of a socket's ring; there is one.
#[derive(Debug)]
pub(super) struct Blocks {
    socket: Arc<Socket>,
    /// The block that is read, or that comes next.
    at: usize,
    /// Packets of it that were not taken yet, and where the next one is; `None` while the block is the kernel's.
    open: Option<(u32, usize)>,
}

impl Blocks {
    /// A reader at the start of a fresh ring.
    pub(super) fn new(socket: Arc<Socket>) -> Blocks {
        Blocks { socket, at: 0, open: None }
    }

    /// The socket whose ring this is.
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

    /// Whether a packet can be taken now.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.open.is_none() && self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0 {
            // The block is ours: Acquire pairs with the kernel's barrier before its status.
            self.open = self.word(PACKETS).zip(self.word(FIRST)).map(|(n, first)| (n, first as usize));
        }
        self.open.is_some_and(|(packets, _)| packets > 0)
    }

    /// The next packet of the open block; `None` at its end.
    ///
    /// # Errors
    /// The place of something that the kernel cannot have written.
    pub(super) fn take(&mut self) -> Result<Option<Packet>, usize> {
        let Some((packets @ 1.., at)) = self.open else { return Ok(None) };
        let packet = self.read(at).ok_or(at)?;
        let next = self.word(at).ok_or(at)? as usize;
        self.open = Some((packets - 1, at + next));
        Ok(Some(packet))
    }

    /// Reads a `struct tpacket3_hdr`: next offset, seconds, nanoseconds, captured and true length, status, then
    /// two 16-bit offsets of headers, and in a union the hash, the tag's TCI and its type.
    fn read(&self, at: usize) -> Option<Packet> {
        let status = self.word(at + 20)?;
        let captured = self.word(at + 12)? as usize;
        let start = at.checked_add(usize::from(self.half(at + 24)?))?;
        // Everything that is pointed to lies in the block, with the room before it.
        if start < RESERVE as usize || start.checked_add(captured)? > self.socket.shape().block {
            return None;
        }
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
            ns: u64::from(self.word(at + 4)?) * 1_000_000_000 + u64::from(self.word(at + 8)?),
            vlan,
            gso: status & GSO_TCP != 0,
        })
    }

    /// Hands the block back to the kernel once all its packets were taken, and read by whoever they went to.
    pub(super) fn hand_back(&mut self) {
        if self.open.is_some_and(|(packets, _)| packets == 0) {
            self.open = None;
            // Release: our reads come before the kernel's next writes.
            self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.at = (self.at + 1) % self.socket.shape().blocks;
        }
    }
}

/// `TP_STATUS_GSO_TCP`, linux/if_packet.h since Linux 6.3.
const GSO_TCP: u32 = 1 << 8;

/// The captured bytes of a packet.
///
/// # Safety
/// The packet's block is ours, and stays so while the slice lives.
pub(super) unsafe fn bytes<'a>(packet: &Packet) -> &'a [u8] {
    // SAFETY: within the block (Blocks::read), which the kernel does not write to while it is ours (the caller's
    // part).
    unsafe { std::slice::from_raw_parts(packet.data.as_ptr(), packet.captured) }
}

/// Puts the tag that the stack took out of an Ethernet packet back: the addresses move into the room before it.
///
/// # Safety
/// The packet's block is ours, and nobody has a reference to the packet.
pub(super) unsafe fn put_tag_back(packet: &mut Packet) {
    let Some((kind, tci)) = packet.vlan.take() else { return };
    // SAFETY: RESERVE bytes of room lie before the packet, within the block (Blocks::read), and VLAN_TAG of them
    // are used. The move is of bytes that were captured; the tag goes behind the addresses only where these are
    // whole, so it ends where they ended.
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
