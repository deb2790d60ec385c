//! A fence: after it, the kernel has finished with all packets that it was handling before.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use wirelane_netdev as device;

/// A packet socket that receives nothing. Closing it makes the kernel wait for all packets that are in filters and XDP
/// programs (`packet_release()` in net/packet/af_packet.c calls `synchronize_net()`, an RCU grace period), which no
/// other system call promises on every kernel.
#[derive(Debug)]
pub(crate) struct Fence(OwnedFd);

impl Fence {
    /// Creates a fence; needs CAP_NET_RAW now, and nothing later.
    ///
    /// # Errors
    /// [`Error::Kernel`] where the socket cannot be created.
    pub(crate) fn new() -> Result<Fence> {
        device::idle_packet_socket().map(Fence).map_err(|e| Error::kernel("opening a packet socket", e))
    }

    /// Waits until all packets that are being handled at the call have been handled.
    pub(crate) fn pass(self) {
        drop(self.0);
    }
}
