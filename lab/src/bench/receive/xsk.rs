//! AF_XDP in copy mode, with one socket on RX queue 0 or on each queue (Documentation/networking/af_xdp.rst in the
//! kernel tree), like xdpsock's `rxdrop`. Every frame is returned to the fill ring immediately.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};

use super::super::skel::redirect::RedirectSkelBuilder;
use super::memory::{Area, Ring};
use super::{Counts, End, sys};

/// Parameters of xdpsock and libxdp: 4096 frames of a page each, all of them in the fill ring.
const FRAMES: u32 = 4096;
const FRAME_BYTES: u32 = 4096;
const RX_ENTRIES: u32 = 2048;
const COMPLETION_ENTRIES: u32 = 2048;

/// Descriptors that are received before their frames are returned.
const BATCH: u32 = 64;

/// XDP_USE_SG and XDP_PKT_CONTD of linux/if_xdp.h (Linux 6.6).
const USE_SG: u16 = 1 << 4;
const PACKET_CONTINUES: u32 = 1;

struct Socket {
    fill: Ring,
    rx: Ring,
    fd: std::os::fd::OwnedFd,
    _frames: Area,
}

/// Entries of the program's map.
const MOST_QUEUES: usize = 64;

/// Opens a socket on each RX queue from 0 on, as many as there are cores; each is served by a thread on its core, or a
/// single one by the calling thread.
pub(super) fn run(
    index: u32,
    jumbo: bool,
    busy: bool,
    cores: &[usize],
    end: &mut End,
    ready: impl Fn() -> Result<()>,
) -> Result<Counts> {
    let queues = cores.len().max(1);
    ensure!(queues <= MOST_QUEUES, "{queues} queues are more than {MOST_QUEUES}");
    let mut storage = MaybeUninit::uninit();
    let skel =
        RedirectSkelBuilder::default().open(&mut storage)?.load().context("loading the XDP program")?;
    let mut sockets = Vec::new();
    for queue in 0..queues as u32 {
        let socket = open(index, queue, jumbo)?;
        let value = socket.fd.as_raw_fd().cast_unsigned().to_ne_bytes();
        skel.maps.bench_sockets.update(&queue.to_ne_bytes(), &value, MapFlags::ANY)?;
        sockets.push(socket);
    }
    // Dropped at the end, after the sockets were served.
    let _link = skel.progs.bench_redirect.attach_xdp(index as i32).context("attaching the XDP program")?;
    if cores.len() > 1 {
        return super::each_on_its_core(sockets, cores, ready, |socket, end| serve(&socket, busy, end));
    }
    ready()?;
    serve(&sockets.remove(0), busy, end)
}

fn serve(socket: &Socket, busy: bool, end: &mut End) -> Result<Counts> {
    let (mut packets, mut bytes, mut took) = (0, 0, true);
    loop {
        let count = take(socket, &mut packets, &mut bytes);
        if count > 0 {
            took = true;
            continue;
        }
        if end.reached(took) {
            break;
        }
        took = false;
        if !busy {
            sys::wait_readable(socket.fd.as_fd(), Duration::from_millis(10)).context("poll")?;
        } else if socket.fill.needs_wakeup() {
            sys::wait_readable(socket.fd.as_fd(), Duration::ZERO).context("poll")?;
        } else {
            std::hint::spin_loop();
        }
    }
    let statistics = statistics(socket.fd.as_fd()).context("reading XDP_STATISTICS")?;
    // rx_fill_ring_empty_descs counts events, and its packets are also in rx_dropped.
    let lost = statistics.rx_dropped + statistics.rx_ring_full + statistics.rx_invalid_descs;
    std::hint::black_box(bytes);
    Ok(Counts { received: packets, lost, ..Counts::default() })
}

/// Receives at most a batch and returns the frames; returns the number of descriptors.
fn take(socket: &Socket, packets: &mut u64, bytes: &mut u64) -> u32 {
    let (first, end) = socket.rx.available();
    let count = end.wrapping_sub(first).min(BATCH);
    if count == 0 {
        return 0;
    }
    let head = socket.fill.head();
    for step in 0..count {
        let descriptor: libc::xdp_desc = socket.rx.get(first.wrapping_add(step));
        *packets += u64::from(descriptor.options & PACKET_CONTINUES == 0);
        *bytes += u64::from(descriptor.len);
        socket.fill.set(head.wrapping_add(step), descriptor.addr & !u64::from(FRAME_BYTES - 1));
    }
    socket.rx.release(first.wrapping_add(count));
    socket.fill.publish(head.wrapping_add(count));
    count
}

fn open(index: u32, queue: u32, jumbo: bool) -> Result<Socket> {
    let fd = sys::socket(libc::AF_XDP).context("opening an AF_XDP socket")?;
    let frames = Area::anonymous((FRAMES * FRAME_BYTES) as usize).context("memory for frames")?;
    let registration = libc::xdp_umem_reg {
        addr: frames.address(),
        len: frames.length() as u64,
        chunk_size: FRAME_BYTES,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let set = |name, value: &u32| sys::set_option(fd.as_fd(), libc::SOL_XDP, name, value);
    sys::set_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &registration).context("XDP_UMEM_REG")?;
    set(libc::XDP_UMEM_FILL_RING, &FRAMES).context("XDP_UMEM_FILL_RING")?;
    set(libc::XDP_UMEM_COMPLETION_RING, &COMPLETION_ENTRIES).context("XDP_UMEM_COMPLETION_RING")?;
    set(libc::XDP_RX_RING, &RX_ENTRIES).context("XDP_RX_RING")?;
    // SAFETY: xdp_mmap_offsets is integers only.
    let offsets: libc::xdp_mmap_offsets =
        unsafe { sys::get_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS) }
            .context("XDP_MMAP_OFFSETS")?;
    let fill = Ring::map::<u64>(fd.as_fd(), &offsets.fr, FRAMES, libc::XDP_UMEM_PGOFF_FILL_RING)
        .context("mapping the fill ring")?;
    let rx = Ring::map::<libc::xdp_desc>(fd.as_fd(), &offsets.rx, RX_ENTRIES, libc::XDP_PGOFF_RX_RING as u64)
        .context("mapping the RX ring")?;
    for frame in 0..FRAMES {
        fill.set(frame, u64::from(frame * FRAME_BYTES));
    }
    fill.publish(FRAMES);

    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP | if jumbo { USE_SG } else { 0 },
        sxdp_ifindex: index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // The kernel detaches a closed socket from its queue with a delay.
    let patience = Instant::now() + Duration::from_secs(3);
    loop {
        // SAFETY: the socket is of family AF_XDP, and this is its address.
        match unsafe { sys::bind(fd.as_fd(), &address) } {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < patience => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => break done.context("binding the AF_XDP socket")?,
        }
    }
    // SAFETY: xdp_options is an integer.
    let options: libc::xdp_options =
        unsafe { sys::get_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS) }.context("XDP_OPTIONS")?;
    ensure!(options.flags & libc::XDP_OPTIONS_ZEROCOPY == 0, "asked for copy mode, got zero copy");
    Ok(Socket { fill, rx, fd, _frames: frames })
}

fn statistics(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    // SAFETY: xdp_statistics is integers only.
    unsafe { sys::get_option(socket, libc::SOL_XDP, libc::XDP_STATISTICS) }
}
