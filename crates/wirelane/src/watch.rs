//! Device events during a capture, and their effects.
//!
//! The capture program stays on its device through all but the device's end: it may be set down, renamed, moved to
//! another network namespace, and change its MTU and its number of RX queues. So these are told to the user and
//! change nothing else. The end is what the program's link says, for a device that has left our network namespace
//! cannot be told from one that was deleted by looking for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::engine::ring::attach::HEADERLESS;
use crate::engine::ring::instance::Instance;
use crate::engine::sockets::Part;
use crate::error::Result;
use wirelane_netdev::{State, Watcher};

/// Why nothing more will come from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// It was deleted, or its driver was unloaded.
    Disappeared,
    /// Somebody took the capture program off it.
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

/// What takes packets from a device.
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
    /// Its index when the capture began.
    pub(crate) ifindex: u32,
    /// What takes packets from it.
    pub(crate) hold: Attachment,
    /// Whether that is native XDP.
    pub(crate) native: bool,
    /// RX queues that packets can be told apart by.
    pub(crate) known_queues: usize,
    /// The RX queues that were asked for; `None`: all that it has or will have.
    pub(crate) queues: Option<Vec<u32>>,
    /// What it was like when the capture began.
    pub(crate) first: State,
    /// Name of its driver; empty where it is not known.
    pub(crate) driver: String,
    /// Whether generic XDP may take the Ethernet header from what is captured. Found out before rights are given up.
    pub(crate) may_lose_headers: bool,
    pub(crate) whereabouts: Whereabouts,
}

impl MonitoredDevice {
    /// The device that packets are taken from now, by its index in whichever network namespace it is in; 0: none any
    /// more. `None` where the kernel does not say.
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

/// Where a device is, for the threads that ask.
#[derive(Debug)]
pub(crate) struct Whereabouts {
    /// Its index in the network namespace of the capture; 0 while it is in another one.
    index: AtomicU32,
    ending: OnceLock<Ending>,
}

impl Whereabouts {
    /// Of a device that is here, with this index.
    pub(crate) fn new(index: u32) -> Whereabouts {
        Whereabouts { index: AtomicU32::new(index), ending: OnceLock::new() }
    }

    /// Why its part of the capture has ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Its index, as long as it is in the network namespace of the capture.
    pub(crate) fn index_here(&self) -> Option<u32> {
        // Relaxed, as for the store below: a number that stands for itself.
        Some(self.index.load(Ordering::Relaxed)).filter(|index| *index != 0)
    }
}

/// What was seen of one device.
#[derive(Debug)]
pub(crate) struct Watch {
    last: State,
    /// Its index when it was last seen here.
    index: u32,
    /// Looks in a row that did not find it, though its program hangs on it.
    absent: u32,
}

impl Watch {
    /// Of a device as it was when the capture began.
    pub(crate) fn new(device: &MonitoredDevice) -> Watch {
        Watch { last: device.first.clone(), index: device.ifindex, absent: 0 }
    }

    /// Looks at the device, tells what has happened to it since the last look, and keeps its whereabouts.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the kernel does not answer.
    pub(crate) fn look(&mut self, device: &MonitoredDevice, watcher: &mut Watcher) -> Result<()> {
        // In this order: a device leaves its namespace's list before it loses its programs.
        let attached = device.attached_to()?;
        // Its index may change when it is moved.
        let index = attached.filter(|index| *index != 0).unwrap_or(device.ifindex);
        let state = watcher.look(index)?;
        // Where it is not here, its index may be another device's.
        let was_here = device.whereabouts.index_here().is_some();
        let state = state.filter(|state| was_here && index == self.index || state.is_same(&self.last));
        match (attached, state) {
            (Some(0), Some(_)) => self.end(device, Ending::Detached),
            (Some(0) | None, None) => self.end(device, Ending::Disappeared),
            (Some(_), None) => {
                self.absent += 1;
                // Once may be the moment of its deletion.
                if self.absent == 2 {
                    device.whereabouts.index.store(0, Ordering::Relaxed);
                    tracing::warn!(
                        "{} was moved to another network namespace, where it is captured on; without promiscuous mode \
                         and without what its card has missed",
                        self.last.name
                    );
                }
            }
            (_, Some(state)) => {
                if !was_here {
                    tracing::warn!("{} is back in the network namespace of the capture", state.name);
                }
                device.whereabouts.index.store(index, Ordering::Relaxed);
                (self.absent, self.index) = (0, index);
                for line in changes(device, &self.last, &state) {
                    tracing::warn!("{line}");
                }
                self.last = state;
            }
        }
        Ok(())
    }

    fn end(&self, device: &MonitoredDevice, ending: Ending) {
        let ending = device.whereabouts.ending.get_or_init(|| ending);
        tracing::warn!("{} {ending}", self.last.name);
    }
}

/// What to tell of two looks at a device.
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

/// What another number of RX queues means to this capture.
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
