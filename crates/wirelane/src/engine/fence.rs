//! A fence: on the far side of it, no packet that the kernel was handling before is being handled any more.

use crate::error::{Error, Result};
use std::os::fd::OwnedFd;
use wirelane_netdev as device;

/// A packet socket that receives nothing. Closing one makes the kernel wait for all packets that are on their way
/// through filters and XDP programs (`packet_release()` in net/packet/af_packet.c calls `synchronize_net()`, an
/// RCU grace period), which no other system call promises on every kernel.
#[derive(Debug)]
pub(crate) struct Fence(OwnedFd);

impl Fence {
    /// Makes one ready; needs CAP_NET_RAW now, and nothing later.
    ///
    /// # Errors
    /// [`Error::Kernel`] where no socket can be made.
    pub(crate) fn new() -> Result<Fence> {
        device::idle_packet_socket().map(Fence).map_err(|e| Error::kernel("opening a packet socket", e))
    }

    /// Waits until whatever packets were being handled when it was called have been handled.
    pub(crate) fn pass(self) {
        drop(self.0);
    }
}
