//! AF_XDP in copy mode, with one socket on RX queue 0 or on each queue (Documentation/networking/af_xdp.rst in the
//! kernel tree), like xdpsock's `rxdrop`. Every frame is returned to the fill ring immediately.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags};
use wirelane_afxdp::rings::{CONTINUES, Descriptor, Ring};
use wirelane_afxdp::{FRAME, Mode, Purpose, Umem, XskSocket, ZeroCopy};
use wirelane_send::Interface;

use super::super::skel::redirect::RedirectSkelBuilder;
use super::{Args, Counts, End, ready, wait_readable};

/// Parameters of xdpsock and libxdp: 4096 frames of a page each, all of them in the fill ring.
const FRAMES: u32 = 4096;
const RX_ENTRIES: u32 = 2048;

/// Descriptors that are received before their frames are returned.
const BATCH: u32 = 64;

/// Entries of the program's map.
const MOST_QUEUES: usize = 64;

/// Opens a socket on each RX queue from 0 on, as many as there are cores; each is served by a thread on its core, or a
/// single one by the calling thread.
pub(super) fn run(interface: &Interface, args: &Args, busy: bool, end: &mut End) -> Result<Counts> {
    let queues = args.cores.len().max(1);
    ensure!(queues <= MOST_QUEUES, "{queues} queues are more than {MOST_QUEUES}");
    let mut storage = MaybeUninit::uninit();
    let skel =
        RedirectSkelBuilder::default().open(&mut storage)?.load().context("loading the XDP program")?;
    let mut sockets = Vec::new();
    for queue in 0..queues as u32 {
        let socket = open(interface, queue, args.jumbo)?;
        let value = socket.raw().cast_unsigned().to_ne_bytes();
        skel.maps.bench_sockets.update(&queue.to_ne_bytes(), &value, MapFlags::ANY)?;
        sockets.push(socket);
    }
    // Dropped at the end, after the sockets were served.
    let program = &skel.progs.bench_redirect;
    let _link = program.attach_xdp(interface.index as i32).context("attaching the XDP program")?;
    if args.cores.len() > 1 {
        return super::each_on_its_core(sockets, &args.cores, |socket, end| serve(&socket, busy, end));
    }
    ready()?;
    serve(&sockets.remove(0), busy, end)
}

fn serve(socket: &XskSocket, busy: bool, end: &mut End) -> Result<Counts> {
    let rx = socket.rx.as_ref().context("the socket has an RX ring")?;
    let (mut packets, mut bytes, mut took) = (0, 0, true);
    loop {
        if take(rx, &socket.fill, &mut packets, &mut bytes) > 0 {
            took = true;
            continue;
        }
        if end.reached(took) {
            break;
        }
        took = false;
        if !busy {
            wait_readable(socket.as_fd(), Duration::from_millis(10))?;
        } else if socket.fill.needs_wakeup() {
            wait_readable(socket.as_fd(), Duration::ZERO)?;
        } else {
            std::hint::spin_loop();
        }
    }
    // Packets without a free frame are in rx_dropped.
    let statistics = socket.statistics()?;
    std::hint::black_box(bytes);
    Ok(Counts {
        received: packets,
        lost: statistics.rx_dropped + statistics.rx_ring_full,
        ..Counts::default()
    })
}

/// Receives at most a batch and returns the frames; returns the number of descriptors.
fn take(rx: &Ring<Descriptor>, fill: &Ring<u64>, packets: &mut u64, bytes: &mut u64) -> u32 {
    let first = rx.consumer();
    let count = rx.producer().wrapping_sub(first).min(BATCH);
    if count == 0 {
        return 0;
    }
    let head = fill.producer();
    for step in 0..count {
        let descriptor = rx.read(first.wrapping_add(step));
        *packets += u64::from(descriptor.options & CONTINUES == 0);
        *bytes += u64::from(descriptor.length);
        fill.write(head.wrapping_add(step), descriptor.address & !(FRAME as u64 - 1));
    }
    rx.release(first.wrapping_add(count));
    fill.submit(head.wrapping_add(count));
    count
}

fn open(interface: &Interface, queue: u32, jumbo: bool) -> Result<XskSocket> {
    let (device, ifindex) = (interface.name.as_str(), interface.index);
    let purpose = Purpose { device, ifindex, queue, rx: RX_ENTRIES, tx: 0, frames: FRAMES, shares: None };
    let mode = Mode::to_try(ZeroCopy::Never).into_iter().find(|mode| mode.multi_buffer == jumbo);
    let mode = mode.context("frames larger than a page need Linux 6.6")?;
    let socket = XskSocket::open(purpose, &Arc::new(Umem::new(FRAMES as usize)?), mode)?;
    ensure!(!socket.is_zero_copy()?, "asked for copy mode, got zero copy");
    for frame in 0..FRAMES {
        socket.fill.write(frame, u64::from(frame) * FRAME as u64);
    }
    socket.fill.submit(FRAMES);
    Ok(socket)
}
