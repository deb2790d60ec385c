//! Egress devices: the devices that the rules of a capture may send packets to ([`crate::Builder::egress_devices`]).
//! They are looked up when the capture starts, in its network namespace and with its rights, since clients of its
//! control socket can change rules later.

use serde::Serialize;
use wirelane_bpf::rules::MAX_EGRESS_DEVICES;

use crate::error::{Error, Result};
use wirelane_netdev::{Device, Link, Selected};

/// An egress device that has been looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EgressDevice {
    /// Name of the device, as requested and as used in rules.
    pub(crate) name: String,
    pub(crate) ifindex: u32,
}

/// The line of one egress device: packets sent there, beside the ledger's columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EgressLine {
    /// Name of the device, as used in rules.
    pub device: String,
    /// Packets and copies that the kernel accepted for the device.
    pub sent: u64,
    /// Packets and copies that the kernel refused: the device was gone or down, or there was no room for more.
    pub unsent: u64,
}

/// Looks up egress devices of a capture on these devices.
///
/// # Errors
/// [`wirelane_netdev::Error::UnknownDevice`], or [`Error::BadOption`] for a device that cannot be an egress device.
pub(crate) fn look_up(names: &[String], captured: &[Selected]) -> Result<Vec<EgressDevice>> {
    let bad = |reason: String| Err(Error::BadOption { option: "--mirror-to", reason });
    if names.len() > MAX_EGRESS_DEVICES {
        return bad(format!("too many devices: {} (at most {MAX_EGRESS_DEVICES})", names.len()));
    }
    let mut egress_devices: Vec<EgressDevice> = Vec::new();
    for name in names {
        let Some(link) = Link::find(name)? else {
            // The error lists the existing devices.
            Device::open(name)?;
            continue;
        };
        if link.flags & libc::IFF_LOOPBACK as u32 != 0 {
            return bad(format!("{name} is a loopback device, whose packets come back to this host"));
        }
        if captured.iter().any(|one| one.device.ifindex == link.ifindex) {
            return bad(format!("{name} is captured itself: its packets would loop"));
        }
        if let Some(same) = egress_devices.iter().find(|device| device.ifindex == link.ifindex) {
            return bad(format!("{} and {name} are one device: name it once", same.name));
        }
        egress_devices.push(EgressDevice { name: name.clone(), ifindex: link.ifindex });
    }
    Ok(egress_devices)
}
