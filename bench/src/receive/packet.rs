//! An AF_PACKET receiver with TPACKET_V3 as they are usually written: one socket, 8 blocks of 1 MiB, poll(2),
//! every packet of a block visited (Documentation/networking/packet_mmap.rst).

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use super::socket::{self, Mapping};
use super::{Counts, POLL, Stop, ready};

/// Bytes of a block. The same memory in all as a ring of ours.
const BLOCK: u32 = 1 << 20;
const BLOCKS: u32 = 8;
/// After how many milliseconds the kernel hands over a block that is not full.
const RETIRE_MS: u32 = 60;

const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

/// Receives on the device with that index until asked to stop.
pub(super) fn run(index: i32, stop: &Stop) -> Result<Counts> {
    // Protocol 0: nothing arrives before the socket is bound to the device.
    let socket = socket::open(libc::AF_PACKET, 0).context("opening a packet socket")?;
    let version = libc::tpacket_versions::TPACKET_V3 as i32;
    socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)
        .context("asking for TPACKET_V3")?;
    let request = libc::tpacket_req3 {
        tp_block_size: BLOCK,
        tp_block_nr: BLOCKS,
        tp_frame_size: 2048,
        tp_frame_nr: BLOCK / 2048 * BLOCKS,
        tp_retire_blk_tov: RETIRE_MS,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
        .context("asking for a ring of 8 MiB")?;
    let ring = Mapping::new(Some(&socket), (BLOCK * BLOCKS) as usize, 0).context("mapping the ring")?;
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ETH_P_ALL.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    socket::bind(&socket, &address).context("binding the packet socket")?;
    ready()?;

    let (mut packets, mut bytes) = (0u64, 0u64);
    let mut block = 0;
    while !stop.asked() {
        let start = (block * BLOCK) as usize;
        let header = start + std::mem::offset_of!(libc::tpacket_block_desc, hdr);
        let field = |offset| header + offset;
        let status = field(std::mem::offset_of!(libc::tpacket_hdr_v1, block_status));
        // SAFETY: `at` checks bounds and alignment, the ring outlives the reference, and kernel and user space
        // access the status as a whole.
        let status = unsafe { &*ring.at::<AtomicU32>(status, 1) };
        // Acquire: the packets are read after the status that says they are there.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            socket::wait(&socket, POLL)?;
            continue;
        }
        let read = |offset: usize| {
            // SAFETY: `at` checks bounds and alignment; the block is ours until the status is given back.
            unsafe { ring.at::<u32>(offset, 1).read() }
        };
        let count = read(field(std::mem::offset_of!(libc::tpacket_hdr_v1, num_pkts)));
        let mut at =
            start + read(field(std::mem::offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt))) as usize;
        for _ in 0..count {
            bytes += u64::from(read(at + std::mem::offset_of!(libc::tpacket3_hdr, tp_len)));
            at += read(at + std::mem::offset_of!(libc::tpacket3_hdr, tp_next_offset)) as usize;
        }
        packets += u64::from(count);
        // Release: the packets have been read before the kernel may write there again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        block = (block + 1) % BLOCKS;
    }
    std::hint::black_box(bytes);

    let none = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    let statistics = socket::option(&socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, none)
        .context("reading the socket's statistics")?;
    Ok(Counts { received: packets, dropped: u64::from(statistics.tp_drops) })
}
