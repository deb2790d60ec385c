//! Device events during a capture, and their effects.
//!
//! The capture program stays on its device until the device ends: the device may be set down, renamed or moved to
//! another network namespace, and its MTU and its number of RX queues may change. Such events are reported to the user
//! and have no other effect. The end is detected by the program's link, because looking for the device cannot tell one
//! that has left our network namespace from one that was deleted.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::engine::ring::attach::HEADERLESS;
use crate::engine::ring::instance::Instance;
use crate::engine::sockets::Part;
use crate::error::Result;
use wirelane_netdev::{State, Watcher};

/// The reason that a device will deliver nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The device was deleted, or its driver was unloaded.
    Disappeared,
    /// Another process detached the capture program.
    Detached,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Ending::Disappeared => {
                "disappeared during the capture; packets until then are counted: start again when it is back"
            }
            Ending::Detached => {
                "lost the capture program during the capture: another process removed it; packets until then are counted"
            }
        })
    }
}

/// The way in which packets are taken from a device.
#[derive(Debug)]
pub(crate) enum Attachment {
    /// An instance of the ring engine, which several groups may share.
    Instance(Arc<Instance>),
    /// Sockets of our own.
    Sockets(Arc<dyn Part>),
}

/// A device that the maintenance thread looks after.
#[derive(Debug)]
pub(crate) struct MonitoredDevice {
    pub(crate) name: String,
    /// The device's index when the capture began.
    pub(crate) ifindex: u32,
    /// The way in which packets are taken from the device.
    pub(crate) hold: Attachment,
    /// Whether the attachment is native XDP.
    pub(crate) native: bool,
    /// Number of RX queues whose packets can be told apart.
    pub(crate) known_queues: usize,
    /// The requested RX queues; `None`: all present and future queues.
    pub(crate) queues: Option<Vec<u32>>,
    /// State of the device when the capture began.
    pub(crate) first: State,
    /// Name of the device's driver; empty where unknown.
    pub(crate) driver: String,
    /// Whether generic XDP may strip the Ethernet header from captured packets. Determined before rights are given up.
    pub(crate) may_lose_headers: bool,
    pub(crate) whereabouts: Whereabouts,
}

impl MonitoredDevice {
    /// The index of the device that packets are taken from now, in whichever network namespace it is in; 0: no device
    /// any more. `None` where the kernel does not report it.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the kernel does not answer.
    pub(crate) fn attached_to(&self) -> Result<Option<u32>> {
        match &self.hold {
            Attachment::Instance(instance) => instance.attached_to(),
            Attachment::Sockets(part) => part.attached_to(),
        }
    }
}

/// Location of a device, shared with the threads that ask for it.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// The device's index in the network namespace of the capture; 0 while it is in another one.
    index: AtomicU32,
    ending: OnceLock<Ending>,
}

impl Whereabouts {
    /// Location of a device that is in this network namespace, with this index.
    pub(crate) fn new(index: u32) -> Whereabouts {
        Whereabouts { index: AtomicU32::new(index), ending: OnceLock::new() }
    }

    /// The reason that the device's part of the capture has ended; `None` while it runs.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// The device's index, as long as it is in the network namespace of the capture.
    pub(crate) fn index_here(&self) -> Option<u32> {
        // Relaxed, as for the store below: a number that stands for itself.
        Some(self.index.load(Ordering::Relaxed)).filter(|index| *index != 0)
    }
}

/// Last observed state of one device.
#[derive(Debug)]
pub(crate) struct Watch {
    last: State,
    /// The device's index when it was last seen in this network namespace.
    index: u32,
    /// Consecutive looks that did not find the device although its program is attached.
    absent: u32,
    /// Whether changes are logged: the other direction of the same device would log them again.
    speaks: bool,
}

impl Watch {
    /// Initial states of devices, from when the capture began.
    pub(crate) fn all(devices: &[MonitoredDevice]) -> Vec<Watch> {
        let watch = |(at, device): (usize, &MonitoredDevice)| Watch {
            last: device.first.clone(),
            index: device.ifindex,
            absent: 0,
            speaks: devices[..at].iter().all(|other| other.ifindex != device.ifindex),
        };
        devices.iter().enumerate().map(watch).collect()
    }

    fn warn(&self, line: &str) {
        if self.speaks {
            tracing::warn!("{}: {line}", clock_time());
        }
    }

    /// Looks at the device, logs changes since the last look except its end, and updates its location.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the kernel does not answer.
    pub(crate) fn look(&mut self, device: &MonitoredDevice, watcher: &mut Watcher) -> Result<()> {
        // In this order: a device leaves its namespace's list before it loses its programs.
        let attached = device.attached_to()?;
        // Its index may change when it is moved.
        let index = attached.filter(|index| *index != 0).unwrap_or(device.ifindex);
        let state = watcher.look(index)?;
        // If the device is not here, its index may belong to another device.
        let was_here = device.whereabouts.index_here().is_some();
        let state = state.filter(|state| was_here && index == self.index || state.is_same(&self.last));
        match (attached, state) {
            (Some(0), Some(_)) => _ = device.whereabouts.ending.set(Ending::Detached),
            (Some(0) | None, None) => _ = device.whereabouts.ending.set(Ending::Disappeared),
            (Some(_), None) => {
                self.absent += 1;
                // A single miss may be the moment of its deletion.
                if self.absent == 2 {
                    device.whereabouts.index.store(0, Ordering::Relaxed);
                    self.warn(&format!(
                        "{} was moved to another network namespace, where it is captured on; without promiscuous mode and \
                         without what its card has missed",
                        self.last.name
                    ));
                }
            }
            (_, Some(state)) => {
                if !was_here {
                    self.warn(&format!("{} is back in the network namespace of the capture", state.name));
                }
                device.whereabouts.index.store(index, Ordering::Relaxed);
                (self.absent, self.index) = (0, index);
                for line in changes(device, &self.last, &state) {
                    self.warn(&line);
                }
                self.last = state;
            }
        }
        Ok(())
    }
}

/// The time of a message, as in `2026-03-01T12:00:00Z`.
pub(crate) fn clock_time() -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now())
}

/// Messages about the differences between two looks at a device.
fn changes(device: &MonitoredDevice, before: &State, now: &State) -> Vec<String> {
    let name = &now.name;
    let mut lines = Vec::new();
    if now.name != before.name {
        lines.push(format!(
            "{} is called {name} now; it is captured on, and its lines keep the name {}",
            before.name, device.name
        ));
    }
    match (before.up, now.up) {
        (true, false) => lines.push(format!("{name} was set down: waiting for it to come up again")),
        (false, true) => lines.push(format!("{name} is up again")),
        _ => {}
    }
    if now.mtu != before.mtu {
        lines.push(format!("{name} has an MTU of {} now, it had {}", now.mtu, before.mtu));
    }
    if now.generic_xdp && !before.generic_xdp && device.may_lose_headers {
        lines.push(format!("a generic XDP program was put on {name}: {HEADERLESS}"));
    }
    if let (Some(then), Some(queues)) = (before.rx_queues, now.rx_queues)
        && then != queues
    {
        lines.push(format!(
            "{name} has {queues} RX queue{} now, it had {then}: {}",
            if queues == 1 { "" } else { "s" },
            consequence(device, then, queues)
        ));
    }
    lines
}

/// Effect of a changed number of RX queues on this capture.
fn consequence(device: &MonitoredDevice, before: u32, queues: u32) -> String {
    let Some(asked) = &device.queues else {
        let known = device.known_queues as u32;
        return if device.native && queues > before && device.driver == "veth" {
            // drivers/net/veth.c, veth_enable_range_safe(): it sets up the queues and leaves out the program, which
            // veth_open() does not.
            format!(
                "veth runs XDP programs on queues that were added only once it was set down and up again; until then \
                 packets on those from {before} on are not seen"
            )
        } else if queues <= known {
            "all of them are captured".into()
        } else {
            format!(
                "packets of those from {known} on are counted as lost, because they cannot be distinguished"
            )
        };
    };
    let list = |queues: &mut dyn Iterator<Item = &u32>| {
        queues.map(|queue| format!("{}@{queue}", device.name)).collect::<Vec<_>>().join(",")
    };
    let gone = list(&mut asked.iter().filter(|queue| **queue >= queues));
    let mut text = format!("packets of {} are captured, as requested", list(&mut asked.iter()));
    if !gone.is_empty() {
        text.push_str(&format!("; nothing does on {gone} any more"));
    }
    text
}
