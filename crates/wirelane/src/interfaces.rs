//! What stands behind a record's device and RX queue, for whoever writes records on.

use std::sync::Arc;

use crate::device::XdpMode;
use crate::engine::file::InterfaceLines;
use crate::{LinkType, linktype};

/// One device (or file interface) of a capture: what [`crate::Record::device`] counts.
#[derive(Clone, Debug, serde::Serialize)]
pub struct CaptureDevice {
    /// Its name.
    pub name: String,
    /// The RX queues that are captured.
    pub queues: Vec<u32>,
    /// How the capture program hangs on it; `None` for a file.
    pub xdp: Option<XdpMode>,
    /// Speed of its link in Mbit/s, where known.
    pub speed_mbps: Option<u32>,
}

/// The interfaces of a capture; a copy of it can go with a worker into its thread.
#[derive(Clone, Debug)]
pub struct Interfaces(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Live { devices: Arc<[CaptureDevice]>, snap_len: u32 },
    File(InterfaceLines),
}

/// One interface: a virtual device, or what a file says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `eth1@2`; empty where a file does not say.
    pub name: String,
    /// Free text; empty where there is none.
    pub description: String,
    /// LINKTYPE number of its packets.
    pub link_number: u32,
    /// Snap length in bytes; 0 where there is none.
    pub snap_len: u32,
    /// Speed in bits per second, where known.
    pub speed_bps: Option<u64>,
}

impl Interfaces {
    pub(crate) fn live(devices: Vec<CaptureDevice>, snap_len: usize) -> Interfaces {
        Interfaces(Kind::Live { devices: devices.into(), snap_len: snap_len as u32 })
    }

    pub(crate) fn file(lines: InterfaceLines) -> Interfaces {
        Interfaces(Kind::File(lines))
    }

    /// The interface that records of this device ([`crate::Record::device`]) and queue came from; `None` where
    /// there is no such device.
    pub fn get(&self, device: usize, queue: u16) -> Option<Interface> {
        match &self.0 {
            Kind::Live { devices, snap_len } => devices.get(device).map(|device| Interface {
                name: format!("{}@{queue}", device.name),
                description: String::new(),
                link_number: linktype::number(LinkType::Ethernet).unwrap_or(1),
                snap_len: *snap_len,
                speed_bps: device.speed_mbps.map(|mbps| u64::from(mbps) * 1_000_000),
            }),
            Kind::File(lines) => lines.now().get(device).map(|line| Interface {
                name: line.interface.name.clone(),
                description: line.interface.description.clone(),
                link_number: line.interface.link_number,
                snap_len: line.interface.snap_len,
                speed_bps: None,
            }),
        }
    }

    /// The virtual devices of a live capture, in order, as `(device, queue)`; for a file, its interfaces so far.
    pub fn known(&self) -> Vec<(usize, u16)> {
        match &self.0 {
            Kind::Live { devices, .. } => devices
                .iter()
                .enumerate()
                .flat_map(|(at, device)| device.queues.iter().map(move |&queue| (at, queue as u16)))
                .collect(),
            Kind::File(lines) => {
                lines.now().iter().enumerate().map(|(at, line)| (at, line.interface.queue)).collect()
            }
        }
    }
}
