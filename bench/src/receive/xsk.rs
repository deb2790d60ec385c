//! An AF_XDP receiver as they are usually written: one socket in copy mode, need-wakeup, frames counted, read at
//! their first byte, and returned in batches.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::ring::Ring;
use super::socket::{self, Mapping};
use super::{Counts, POLL, Stop, ready};
use crate::skel::redirect::RedirectSkelBuilder;

/// Entries of the receive ring, and frames: as many as the fill ring holds.
const FRAMES: u32 = 4096;
/// Packets that are returned together.
const BATCH: u32 = 64;

/// Receives on queue 0 of the device with that index until asked to stop. `jumbo`: packets may lie in several
/// frames; `busy`: never sleep.
pub(super) fn run(index: i32, jumbo: bool, busy: bool, stop: &Stop) -> Result<Counts> {
    // A frame must hold a packet of 1500 bytes and the headroom; jumbo packets take several pages.
    let frame: u32 = if jumbo { 4096 } else { 2048 };
    let memory = Mapping::new(None, (FRAMES * frame) as usize, 0).context("memory for frames")?;
    let xsk = socket::open(libc::AF_XDP, 0).context("opening an AF_XDP socket")?;
    let umem = libc::xdp_umem_reg {
        addr: memory.at::<u8>(0, 1) as u64,
        len: u64::from(FRAMES * frame),
        chunk_size: frame,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    socket::set_option(&xsk, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem).context("registering frames")?;
    for name in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
        socket::set_option(&xsk, libc::SOL_XDP, name, &FRAMES).context("setting ring sizes")?;
    }
    let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
    let offsets = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
    let offsets = socket::option(&xsk, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)
        .context("asking for the rings' offsets")?;
    let mut filled: Ring<u64> =
        Ring::new(&xsk, libc::XDP_UMEM_PGOFF_FILL_RING.cast_signed(), offsets.fr, FRAMES)
            .context("mapping the fill ring")?;
    let mut received: Ring<libc::xdp_desc> =
        Ring::new(&xsk, libc::XDP_PGOFF_RX_RING, offsets.rx, FRAMES).context("mapping the receive ring")?;
    for number in 0..FRAMES {
        filled.put(number, u64::from(number * frame));
    }
    filled.produce(FRAMES);

    let several = if jumbo { libc::XDP_USE_SG } else { 0 };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | several,
        sxdp_ifindex: index.cast_unsigned(),
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    bind(&xsk, &address).context("binding the AF_XDP socket in copy mode")?;

    let mut storage = MaybeUninit::uninit();
    let skeleton = RedirectSkelBuilder::default()
        .open(&mut storage)
        .and_then(OpenSkel::load)
        .context("loading the redirecting program")?;
    skeleton
        .maps
        .sockets
        .update(&0u32.to_ne_bytes(), &xsk.as_raw_fd().to_ne_bytes(), MapFlags::ANY)
        .context("entering the socket")?;
    let link =
        skeleton.progs.bench_redirect.attach_xdp(index).context("attaching the redirecting program")?;
    ready()?;

    let (mut packets, mut touched) = (0u64, 0u8);
    loop {
        let count = received.filled().min(BATCH);
        if count == 0 {
            if stop.asked() {
                break;
            }
            if !busy || filled.needs_wakeup() {
                socket::wait(&xsk, if busy { Duration::ZERO } else { POLL })?;
            } else {
                std::hint::spin_loop();
            }
            continue;
        }
        for at in 0..count {
            let entry = received.peek(at);
            // SAFETY: `at` checks that the address lies within the memory of frames, and the kernel leaves a
            // frame alone from its receipt until it is put into the fill ring.
            touched ^= unsafe { memory.at::<u8>(entry.addr as usize, 1).read_volatile() };
            packets += u64::from(entry.options & libc::XDP_PKT_CONTD == 0);
            filled.put(at, entry.addr & !u64::from(frame - 1));
        }
        received.release(count);
        filled.produce(count);
    }
    drop(link);
    std::hint::black_box(touched);

    let none = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    // rx_fill_ring_empty_descs counts why rx_dropped happened, not other packets.
    let statistics = socket::option(&xsk, libc::SOL_XDP, libc::XDP_STATISTICS, none)
        .context("reading the socket's statistics")?;
    Ok(Counts { received: packets, dropped: statistics.rx_dropped + statistics.rx_ring_full })
}

/// bind(2), again for a while where the queue is taken: the kernel frees an earlier socket's memory, and with it
/// the queue, a moment after its process has ended.
fn bind(xsk: &OwnedFd, address: &libc::sockaddr_xdp) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        match socket::bind(xsk, address) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}
