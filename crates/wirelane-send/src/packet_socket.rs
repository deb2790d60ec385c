//! Sending through an AF_PACKET socket: a batch of frames per system call, bypassing the queueing discipline
//! (packet(7), `PACKET_QDISC_BYPASS`). Needs CAP_NET_RAW and works on every Ethernet device.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Share;
use super::interface::{Interface, require};
use super::streams::Streams;
use crate::{Error, Result};

/// Frames per system call.
pub(super) const BATCH: usize = 64;

/// Sleep before a retry if a device has no space. With the timer's slack it is some 70 us, in which no card and no veth
/// sends all frames of its queue.
const REFUSED: Duration = Duration::from_micros(20);

const CAP_NET_RAW: (u32, &str) = (13, "CAP_NET_RAW");

/// Send buffer for frames that the device has not freed yet; with a smaller one, a slow device would block the sender
/// rather than drop, and the generator would not hold its rate.
const SEND_BUFFER: libc::c_int = 16 << 20;

/// A socket that sends frames on one device.
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
    device: String,
}

impl PacketSocket {
    /// Opens a socket for sending from this device, bypassing the queueing discipline or, with `spread`, through it.
    ///
    /// With the bypass, the kernel sends all frames on the TX queue of the sending CPU; without it, flows are spread
    /// over the TX queues by their hash (net/packet/af_packet.c, `packet_pick_tx_queue`; net/core/dev.c,
    /// `netdev_pick_tx`). On a veth the peer's RX queue is the TX queue's number.
    pub(super) fn open(interface: &Interface, spread: bool) -> Result<PacketSocket> {
        require(&[CAP_NET_RAW], "sending raw frames")?;
        // Protocol 0: the socket receives nothing.
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(Error::last_os("opening a packet socket"));
        }
        // SAFETY: `fd` was just created and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = PacketSocket { fd, device: interface.name.clone() };

        // SAFETY: `sockaddr_ll` is plain integers; all zero is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_ifindex = interface.index as libc::c_int;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is a sockaddr_ll and `length` its size.
        let bound = unsafe { libc::bind(socket.fd.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(Error::last_os(format!("binding a packet socket to {}", interface.name)));
        }
        if !spread {
            socket.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1_i32)?;
        }
        // Above net.core.wmem_max with the privilege, up to it without.
        if socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER).is_err() {
            socket.set(libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
        }
        // A device that frees nothing must not keep the sender from checking for a stop request.
        socket.set(libc::SOL_SOCKET, libc::SO_SNDTIMEO, libc::timeval { tv_sec: 0, tv_usec: 100_000 })?;
        Ok(socket)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: T) -> Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        // SAFETY: `value` is valid for reads of `length` bytes, and each caller passes the option's own type.
        let done = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const value).cast(), length)
        };
        if done == 0 {
            Ok(())
        } else {
            Err(Error::last_os(format!("preparing the packet socket of {}", self.device)))
        }
    }

    /// Hands all these frames to the device. A frame that the device has no space for is retried until it is accepted
    /// or `stop` is set; without `retries` it counts as accepted, and the device counts it as dropped. Returns the
    /// number of accepted frames and of retries.
    pub(super) fn send_all(
        &self,
        frames: &mut Frames,
        count: usize,
        retries: bool,
        stop: &AtomicBool,
    ) -> Result<(usize, u64)> {
        let (mut taken, mut refused) = (0, 0);
        while taken < count {
            let left = frames.messages(taken, count);
            // SAFETY: `left` holds `left.len()` messages; each has one iovec that points at a live part of
            // the frame buffer, both owned by `frames`, which is exclusively borrowed.
            let sent = unsafe {
                libc::sendmmsg(self.fd.as_raw_fd(), left.as_mut_ptr(), left.len() as libc::c_uint, 0)
            };
            if sent >= 0 {
                taken += sent as usize;
                if taken < count {
                    // The system call ended early because of a rejected frame; it is the first one of the next call.
                    refused += u64::from(retries);
                    taken += usize::from(!retries);
                }
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOBUFS) if !retries => taken += 1,
                Some(libc::ENOBUFS | libc::EAGAIN) => {
                    refused += u64::from(retries);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // A sleep instead of a yield: if there are too few cores, a thread that yields in a loop delays the
                    // threads that would free space (seen on Linux 6.18, whose scheduler then lets NAPI's threads wait
                    // for seconds).
                    std::thread::sleep(REFUSED);
                }
                Some(libc::EINTR) => {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                Some(libc::ENETDOWN) => {
                    let action = format!("sending on {}: the device was set down", self.device);
                    return Err(Error::kernel(action, error));
                }
                Some(libc::ENXIO | libc::ENODEV) => {
                    return Err(wirelane_netdev::Error::DeviceGone { device: self.device.clone() }.into());
                }
                Some(libc::EMSGSIZE) => {
                    let action = format!("sending on {}: the frame is larger than its MTU", self.device);
                    return Err(Error::kernel(action, error));
                }
                _ => return Err(Error::kernel(format!("sending on {}", self.device), error)),
            }
        }
        Ok((taken, refused))
    }
}

/// Buffers for a batch of frames and the headers that describe it to the kernel.
pub(super) struct Frames {
    bytes: Box<[u8]>,
    room: usize,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `vectors` and `headers` point only into boxes of the same value, whose memory does not move
// with it; nothing in it belongs to a thread.
unsafe impl Send for Frames {}

impl Frames {
    /// Buffers for [`BATCH`] frames of at most `room` bytes.
    pub(super) fn new(room: usize) -> Frames {
        let mut bytes = vec![0; BATCH * room].into_boxed_slice();
        let base = bytes.as_mut_ptr();
        let mut vectors: Box<[libc::iovec]> = (0..BATCH)
            .map(|slot| libc::iovec { iov_base: base.wrapping_add(slot * room).cast(), iov_len: 0 })
            .collect();
        let first = vectors.as_mut_ptr();
        let headers = (0..BATCH)
            .map(|slot| {
                // SAFETY: `mmsghdr` is integers and pointers; all zero is a valid value.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_iov = first.wrapping_add(slot);
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        Frames { bytes, room, vectors, headers }
    }

    /// The bytes of a slot.
    pub(super) fn slot(&mut self, slot: usize) -> &mut [u8] {
        &mut self.bytes[slot * self.room..(slot + 1) * self.room]
    }

    /// Sets the length of the frame in a slot, limited to the size of the slot.
    pub(super) fn set_length(&mut self, slot: usize, length: usize) {
        self.vectors[slot].iov_len = length.min(self.room);
    }

    /// The length of the frame in a slot.
    pub(super) fn length(&self, slot: usize) -> usize {
        self.vectors[slot].iov_len
    }

    fn messages(&mut self, from: usize, to: usize) -> &mut [libc::mmsghdr] {
        &mut self.headers[from..to]
    }
}

/// Generated packets through a packet socket.
pub(super) struct SocketSender<'a> {
    socket: PacketSocket,
    frames: Frames,
    streams: &'a Streams,
    next: u64,
    stride: u64,
    retries: bool,
}

impl<'a> SocketSender<'a> {
    /// A sender of this share of the numbers.
    pub(super) fn open(
        interface: &Interface,
        streams: &'a Streams,
        share: Share,
        retries: bool,
    ) -> Result<SocketSender<'a>> {
        let socket = PacketSocket::open(interface, several_tx_queues(interface)?)?;
        let mut frames = Frames::new(streams.largest());
        for slot in 0..BATCH {
            streams.prepare(frames.slot(slot));
        }
        Ok(SocketSender { socket, frames, streams, next: share.first, stride: share.stride, retries })
    }

    /// Hands over the next packets, [`BATCH`] at most; fewer only if `stop` was set meanwhile. Returns the number of
    /// accepted packets and of retries.
    pub(super) fn send(&mut self, at_most: u64, stop: &AtomicBool) -> Result<(u64, u64)> {
        let count = at_most.min(BATCH as u64) as usize;
        for slot in 0..count {
            let number = self.next + slot as u64 * self.stride;
            let length = self.streams.write(number, self.frames.slot(slot));
            self.frames.set_length(slot, length);
        }
        let (taken, refused) = self.socket.send_all(&mut self.frames, count, self.retries, stop)?;
        self.next += taken as u64 * self.stride;
        Ok((taken as u64, refused))
    }
}

fn several_tx_queues(interface: &Interface) -> Result<bool> {
    Ok(wirelane_netdev::Device::open(&interface.name)?.max_tx_queues > 1)
}
