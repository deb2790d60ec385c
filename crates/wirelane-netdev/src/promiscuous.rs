//! Promiscuous mode while a capture runs.

use std::os::fd::OwnedFd;

use super::sys;
use crate::{Error, Result};

/// Keeps a device in promiscuous mode until it is dropped.
///
/// It is a membership of a packet socket (packet(7)), not a flag of the device: the kernel counts memberships and drops
/// this one when the process ends, however it ends, without affecting other memberships.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// Joins for the device with this index in the current network namespace. Needs CAP_NET_RAW.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses, as it does without the capability.
    pub fn enter(ifindex: u32) -> Result<Promiscuous> {
        let refused = |source| Error::kernel("setting promiscuous mode (needs CAP_NET_RAW)", source);
        // Protocol 0: the socket receives no packets and costs none any time.
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).map_err(refused)?;
        sys::join_promiscuous(&socket, ifindex as i32).map_err(refused)?;
        Ok(Promiscuous { _socket: socket })
    }
}
