//! AF_PACKET with TPACKET_V3 (Documentation/networking/packet_mmap.rst in the kernel tree): blocks of packets in
//! shared memory, and poll(2). Reads every packet's header, as any program that counts bytes must.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use wirelane_send::Interface;

use super::sys::{self, Area};
use super::{Args, Counts, End, ready, wait_readable};

const BLOCK_BYTES: usize = 256 << 10;
const FRAME_BYTES: u32 = 2048;

/// Timeout in milliseconds after which a partially filled block is handed over.
const RETIRE_MS: u32 = 10;

/// Offsets in a block (struct tpacket_block_desc): status, number of packets, offset of the first.
const STATUS: usize = 8;
const PACKETS: usize = 12;
const FIRST: usize = 16;

/// A socket and its ring.
struct Socket {
    fd: OwnedFd,
    area: Area,
    blocks: usize,
}

/// Distribution of a device's packets to sockets (packet(7), PACKET_FANOUT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fanout {
    /// By flow
    Hash,
    /// By RX queue
    Queue,
}

impl Fanout {
    fn mode(self) -> u32 {
        match self {
            Fanout::Hash => libc::PACKET_FANOUT_HASH,
            Fanout::Queue => libc::PACKET_FANOUT_QM,
        }
    }
}

/// Opens one socket that the calling thread serves; with a fanout one for each core, each served by a thread on it.
pub(super) fn run(interface: &Interface, args: &Args, end: &mut End) -> Result<Counts> {
    let open = || open(interface.index, args.buffer);
    let Some(fanout) = args.fanout else {
        let socket = open()?;
        ready()?;
        return serve(&socket, end);
    };
    let sockets: Vec<Socket> = args.cores.iter().map(|_| open()).collect::<Result<_>>()?;
    // The low half of the process id, which no other process uses.
    let value = (std::process::id() & 0xffff) | fanout.mode() << 16;
    for socket in &sockets {
        sys::set_option(socket.fd.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
            .context("PACKET_FANOUT")?;
    }
    super::each_on_its_core(sockets, &args.cores, |socket, end| serve(&socket, end))
}

fn open(index: u32, buffer_mib: u32) -> Result<Socket> {
    let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .context("opening an AF_PACKET socket")?;
    let blocks = (buffer_mib as usize) << 20 >> BLOCK_BYTES.trailing_zeros();
    let length = blocks * BLOCK_BYTES;
    let request = libc::tpacket_req3 {
        tp_block_size: BLOCK_BYTES as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: FRAME_BYTES,
        tp_frame_nr: length as u32 / FRAME_BYTES,
        tp_retire_blk_tov: RETIRE_MS,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    let version = libc::tpacket_versions::TPACKET_V3 as i32;
    let level = libc::SOL_PACKET;
    sys::set_option(fd.as_fd(), level, libc::PACKET_VERSION, &version).context("PACKET_VERSION")?;
    sys::set_option(fd.as_fd(), level, libc::PACKET_RX_RING, &request).context("PACKET_RX_RING")?;
    let area = Area::of(fd.as_fd(), length).context("mapping the ring")?;
    let membership = libc::packet_mreq {
        mr_ifindex: index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    sys::set_option(fd.as_fd(), level, libc::PACKET_ADD_MEMBERSHIP, &membership)
        .context("PACKET_ADD_MEMBERSHIP")?;
    sys::bind_to_device(fd.as_fd(), index).context("binding the AF_PACKET socket")?;
    Ok(Socket { fd, area, blocks })
}

fn serve(socket: &Socket, end: &mut End) -> Result<Counts> {
    let Socket { fd, area, blocks } = socket;
    let (mut packets, mut bytes, mut block, mut took) = (0, 0, 0, true);
    loop {
        let start = block * BLOCK_BYTES;
        let status = area.atomic(start + STATUS);
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0 {
            let count = area.atomic(start + PACKETS).load(Ordering::Relaxed);
            let mut at = start + area.atomic(start + FIRST).load(Ordering::Relaxed) as usize;
            for _ in 0..count {
                let header = area.header(at);
                packets += 1;
                bytes += u64::from(header.tp_len);
                at += header.tp_next_offset as usize;
            }
            // The kernel may write the block again from here on.
            fence(Ordering::Release);
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            block = (block + 1) % *blocks;
            took = true;
            continue;
        }
        if end.reached(took) {
            break;
        }
        took = false;
        wait_readable(fd.as_fd(), Duration::from_millis(10))?;
    }
    std::hint::black_box(bytes);
    // SAFETY: tpacket_stats_v3 is integers only.
    let statistics: libc::tpacket_stats_v3 =
        unsafe { sys::get_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS) }
            .context("PACKET_STATISTICS")?;
    Ok(Counts {
        seen: Some(u64::from(statistics.tp_packets)),
        received: packets,
        lost: u64::from(statistics.tp_drops),
        ..Counts::default()
    })
}
