//! Interfaces of records: device and RX queue, for writers.

use crate::hook::HookPoint;
use std::sync::Arc;
use wirelane_netdev::MacAddress;

use crate::engine::file::InterfaceLines;
use wirelane_bpf::layout::LinkType;
use wirelane_bpf::linktype;

/// The name of a virtual device: `eth1@2`, and `eth1@tx` for the transmitted packets of a device.
pub(crate) fn virtual_name(device: &str, queue: u32, egress: bool) -> String {
    if egress { format!("{device}@tx") } else { format!("{device}@{queue}") }
}

/// One device (or file interface) of a capture, indexed by [`crate::Record::device`].
#[derive(Clone, Debug, serde::Serialize)]
pub struct CaptureDevice {
    /// Name of the device.
    pub name: String,
    /// The captured RX queues; queue 0 stands for all transmitted packets.
    pub queues: Vec<u32>,
    /// The hook at which packets are taken; `None` for a file.
    pub hook: Option<HookPoint>,
    /// Link type of the packets.
    #[serde(skip)]
    pub link_type: LinkType,
    /// Hardware address of the device, where it has one.
    #[serde(skip)]
    pub mac: Option<MacAddress>,
    /// Speed of the device's link in Mbit/s, where known.
    pub speed_mbps: Option<u32>,
    /// Whether the driver writes packets directly into our memory; only known for engine `xsk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero_copy: Option<bool>,
}

/// The interfaces of a capture; a copy can move with a worker into its thread.
#[derive(Clone, Debug)]
pub struct Interfaces(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Live { devices: Arc<[CaptureDevice]>, snap_len: u32 },
    File(InterfaceLines),
}

/// One interface: a virtual device, or an interface description of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth1@2`; empty where a file has no name.
    pub name: String,
    /// Free text; may be empty.
    pub description: String,
    /// LINKTYPE number of its packets.
    pub link_number: u32,
    /// Snap length in bytes; 0: no limit.
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

    /// The interface of records of this device ([`crate::Record::device`]) and queue; `None` where there is no such
    /// device.
    pub fn get(&self, device: usize, queue: u16) -> Option<Interface> {
        match &self.0 {
            Kind::Live { devices, snap_len } => devices.get(device).map(|device| Interface {
                name: virtual_name(&device.name, queue.into(), device.hook.is_some_and(HookPoint::is_egress)),
                description: String::new(),
                // Packets of unknown hardware are recorded as uninterpreted bytes (LINKTYPE_USER0).
                link_number: linktype::number(device.link_type).unwrap_or(147),
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
