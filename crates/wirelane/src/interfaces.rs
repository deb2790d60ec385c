//! Interfaces of records: device and RX queue, for writers.

use crate::hook::HookPoint;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Devices that came up during the capture, by slot, and their numbers ([`crate::Record::device`]).
#[derive(Debug)]
pub(crate) struct Slots {
    /// Number of slot 0 at the first hook.
    first: usize,
    /// The hooks of each device.
    hooks: Vec<HookPoint>,
    /// Names and indices by slot; slot 0 has the pattern.
    names: Mutex<Vec<(String, u32)>>,
}

impl Slots {
    /// No devices yet. `first`: number of slot 0 at the first of these hooks.
    pub(crate) fn new(first: usize, hooks: Vec<HookPoint>, pattern: String) -> Slots {
        Slots { first, hooks, names: Mutex::new(vec![(pattern, 0)]) }
    }

    fn names(&self) -> MutexGuard<'_, Vec<(String, u32)>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the device of the next slot.
    pub(crate) fn add(&self, name: &str, ifindex: u32) {
        self.names().push((name.to_owned(), ifindex));
    }

    /// The name of a slot's device, and its number at one of the hooks; `None`: there is no such device yet.
    pub(crate) fn device(&self, hook: usize, slot: usize) -> Option<(String, usize)> {
        let number = self.first + slot * self.hooks.len() + hook;
        self.names().get(slot).map(|(name, _)| (name.clone(), number))
    }

    /// The devices in the order of their numbers, from slot 0.
    pub(crate) fn devices(&self) -> Vec<CaptureDevice> {
        let count = self.names().len() * self.hooks.len();
        (0..count).filter_map(|after| Some(self.get(after)?.0)).collect()
    }

    /// The device whose number is `after` more than that of slot 0 at the first hook, and its index in the kernel.
    fn get(&self, after: usize) -> Option<(CaptureDevice, Option<u32>)> {
        let (slot, hook) = (after / self.hooks.len(), after % self.hooks.len());
        let (name, ifindex) = self.names().get(slot)?.clone();
        let device = CaptureDevice {
            name,
            // Slot 0 is for devices without a slot of their own, which there may never be.
            queues: if slot == 0 { Vec::new() } else { vec![0] },
            hook: self.hooks.get(hook).copied(),
            link_type: LinkType::Ethernet,
            mac: None,
            speed_mbps: None,
            zero_copy: None,
        };
        Some((device, (slot != 0).then_some(ifindex)))
    }
}

/// The interfaces of a capture; a copy can move with a worker into its thread.
#[derive(Clone, Debug)]
pub struct Interfaces(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Live { devices: Arc<[CaptureDevice]>, snap_len: u32, slots: Option<Arc<Slots>> },
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
    /// The kernel's index of a device that came up during the capture.
    pub ifindex: Option<u32>,
}

impl Interface {
    /// The device of the interface: `eth1` for the name `eth1@2`.
    pub fn device(&self) -> &str {
        self.name.rsplit_once('@').map_or(&self.name, |(device, _)| device)
    }
}

impl Interfaces {
    /// `slots`: devices that come later.
    pub(crate) fn live(
        devices: Vec<CaptureDevice>,
        snap_len: usize,
        slots: Option<Arc<Slots>>,
    ) -> Interfaces {
        Interfaces(Kind::Live { devices: devices.into(), snap_len: snap_len as u32, slots })
    }

    pub(crate) fn file(lines: InterfaceLines) -> Interfaces {
        Interfaces(Kind::File(lines))
    }

    /// The interface of records of this device ([`crate::Record::device`]) and queue; `None` where there is no such
    /// device.
    pub fn get(&self, device: usize, queue: u16) -> Option<Interface> {
        match &self.0 {
            Kind::Live { devices, snap_len, slots } => {
                let of = |device: &CaptureDevice| Interface {
                    name: virtual_name(
                        &device.name,
                        queue.into(),
                        device.hook.is_some_and(HookPoint::is_egress),
                    ),
                    description: String::new(),
                    // Packets of unknown hardware are recorded as uninterpreted bytes (LINKTYPE_USER0).
                    link_number: linktype::number(device.link_type).unwrap_or(147),
                    snap_len: *snap_len,
                    speed_bps: device.speed_mbps.map(|mbps| u64::from(mbps) * 1_000_000),
                    ifindex: None,
                };
                let later = || {
                    let (device, ifindex) = slots.as_ref()?.get(device.checked_sub(devices.len())?)?;
                    Some(Interface { ifindex, ..of(&device) })
                };
                devices.get(device).map(of).or_else(later)
            }
            Kind::File(lines) => lines.now().get(device).map(|line| Interface {
                name: line.interface.name.clone(),
                description: line.interface.description.clone(),
                link_number: line.interface.link_number,
                snap_len: line.interface.snap_len,
                speed_bps: None,
                ifindex: None,
            }),
        }
    }

    /// The virtual devices of a live capture, in order, as `(device, queue)`; for a file, its interfaces so far.
    pub fn known(&self) -> Vec<(usize, u16)> {
        match &self.0 {
            Kind::Live { devices, slots, .. } => {
                let later = slots.as_ref().map(|slots| slots.devices()).unwrap_or_default();
                let all = devices.iter().chain(&later).enumerate();
                all.flat_map(|(at, device)| device.queues.iter().map(move |&queue| (at, queue as u16)))
                    .collect()
            }
            Kind::File(lines) => {
                lines.now().iter().enumerate().map(|(at, line)| (at, line.interface.queue)).collect()
            }
        }
    }
}
