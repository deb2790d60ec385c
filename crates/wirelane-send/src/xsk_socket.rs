//! Sending generated packets through an AF_XDP socket, and the common interface of sending sockets.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Share;
use super::interface::{Interface, require};
use super::packet_socket::{BATCH, SocketSender};
use super::streams::Streams;
use crate::{Error, Result};
use wirelane_afxdp::{FRAME, Sender, ZeroCopy, is_no};

/// The longest frame that fits into one buffer.
pub(super) const LARGEST_FRAME: usize = FRAME;

/// Generated packets through an AF_XDP socket.
pub(super) struct XskSender<'a> {
    sender: Sender,
    streams: &'a Streams,
    next: u64,
    stride: u64,
}

impl<'a> XskSender<'a> {
    /// A sender of this share of the numbers. Each thread has its own TX queue, selected by its number.
    pub(super) fn open(interface: &Interface, streams: &'a Streams, share: Share) -> Result<XskSender<'a>> {
        require(&[(13, "CAP_NET_RAW")], "sending through an AF_XDP socket")?;
        if streams.largest() > LARGEST_FRAME {
            let reason = format!(
                "frames through an AF_XDP socket have {LARGEST_FRAME} bytes or fewer, not {}; use --method socket",
                streams.largest()
            );
            return Err(Error::BadOption { option: "--method", reason });
        }
        // Zero copy if the driver supports it: the memory is used for these frames only.
        let queue = share.first as u32;
        let sender = Sender::open(&interface.name, interface.index, queue, ZeroCopy::Auto);
        let mut sender = sender.map_err(|e| {
            if queue == 0 || !is_no(&e) {
                return Error::from(e);
            }
            // The kernel only reports an invalid address.
            let reason = format!(
                "each thread needs a TX queue of its own with --method xsk, and {} seems to use none with number \
                 {queue} ({e}); ask for fewer threads",
                interface.name
            );
            Error::BadOption { option: "--threads", reason }
        })?;
        sender.prepare(|frame| streams.prepare(&mut frame[..streams.largest()]));
        Ok(XskSender { sender, streams, next: share.first, stride: share.stride })
    }

    fn send(&mut self, at_most: u64, stop: &AtomicBool) -> Result<(u64, u64)> {
        let (next, stride, streams) = (self.next, self.stride, self.streams);
        let count = at_most.min(BATCH as u64);
        let taken = self.sender.send(count, |number, frame| streams.write(next + number * stride, frame))?;
        self.next += taken * stride;
        if taken == 0 && !stop.load(Ordering::Relaxed) {
            // All frames are in use by the card.
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok((taken, 0))
    }
}

/// A sending thread's socket.
pub(super) enum AnySender<'a> {
    /// A socket of type AF_PACKET.
    Packet(SocketSender<'a>),
    /// A socket of type AF_XDP.
    Xsk(XskSender<'a>),
}

impl AnySender<'_> {
    /// Hands over the next packets; fewer only if there is no space, or `stop` was set meanwhile. Returns the number of
    /// accepted packets and of retries.
    pub(super) fn send(&mut self, at_most: u64, stop: &AtomicBool) -> Result<(u64, u64)> {
        match self {
            AnySender::Packet(sender) => sender.send(at_most, stop),
            AnySender::Xsk(sender) => sender.send(at_most, stop),
        }
    }

    /// Waits until the handed-over packets have been sent.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self {
            AnySender::Packet(_) => Ok(()),
            AnySender::Xsk(sender) => match sender.sender.drain()? {
                0 => Ok(()),
                left => Err(Error::kernel(
                    format!("sending through an AF_XDP socket: the device was not done with {left} frames"),
                    std::io::ErrorKind::TimedOut.into(),
                )),
            },
        }
    }

    /// Whether the driver reads our memory directly.
    pub(super) fn is_zero_copy(&self) -> bool {
        matches!(self, AnySender::Xsk(sender) if sender.sender.is_zero_copy())
    }

    /// Packets that the kernel has completed; 0 for a packet socket, which does not report it.
    pub(super) fn completed(&self) -> u64 {
        match self {
            AnySender::Packet(_) => 0,
            AnySender::Xsk(sender) => sender.sender.completed(),
        }
    }

    /// Name of the method in the report.
    pub(super) fn name(&self) -> &'static str {
        match self {
            AnySender::Packet(_) => "socket",
            AnySender::Xsk(sender) if sender.sender.is_zero_copy() => "xsk, zero copy",
            AnySender::Xsk(_) => "xsk",
        }
    }
}
