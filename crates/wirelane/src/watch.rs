//! What happens to a device during a capture, and what that means for the capture.
//!
//! The capture program stays on its device through all but the device's end: it may be set down, renamed, moved to
//! another network namespace, and change its MTU and its number of RX queues. So these are told to the user and
//! change nothing else. The end is what the program's link says, for a device that has left our network namespace
//! cannot be told from one that was deleted by looking for it.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::Result;
use crate::device::{State, Watcher};
use crate::keeper::Kept;

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
                "disappeared during the capture; what came until then is counted: start again once it is back"
            }
            Ending::Detached => {
                "lost the capture program during the capture: another process took it off; what came until then is \
                 counted"
            }
        })
    }
}

/// Where a device is, for the threads that ask.
#[derive(Debug, Default)]
pub(crate) struct Whereabouts(AtomicU8);

const HERE: u8 = 0;
/// In another network namespace, captured on.
const ELSEWHERE: u8 = 1;
const DISAPPEARED: u8 = 2;
const DETACHED: u8 = 3;

impl Whereabouts {
    // Relaxed, here and below: a value that stands for itself.
    fn set(&self, now: u8) {
        self.0.store(now, Ordering::Relaxed);
    }

    /// Why its part of the capture has ended, if it has.
    pub(crate) fn ending(&self) -> Option<Ending> {
        match self.0.load(Ordering::Relaxed) {
            DISAPPEARED => Some(Ending::Disappeared),
            DETACHED => Some(Ending::Detached),
            _ => None,
        }
    }

    /// Whether its index means this device in the network namespace of the capture.
    pub(crate) fn is_here(&self) -> bool {
        self.0.load(Ordering::Relaxed) == HERE
    }
}

/// What was seen of one device.
#[derive(Debug)]
pub(crate) struct Watch {
    last: State,
    /// Looks in a row that did not find it, though its program hangs on it.
    absent: u32,
}

impl Watch {
    /// Of a device as it was when the capture began.
    pub(crate) fn new(device: &Kept) -> Watch {
        Watch { last: device.first.clone(), absent: 0 }
    }

    /// Looks at the device, tells what has happened to it since the last look, and keeps its whereabouts.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`] where the kernel does not answer.
    pub(crate) fn look(&mut self, device: &Kept, watcher: &mut Watcher) -> Result<()> {
        // In this order: a device leaves its namespace's list before it loses its programs.
        let attached = device.instance.is_attached()?;
        let state = watcher.look(device.instance.ifindex)?;
        match (attached, state) {
            (Some(false), Some(_)) => self.end(device, DETACHED),
            (Some(false) | None, None) => self.end(device, DISAPPEARED),
            (Some(true), None) => {
                self.absent += 1;
                // Once may be the moment of its deletion.
                if self.absent == 2 {
                    device.whereabouts.set(ELSEWHERE);
                    tracing::warn!(
                        "{} was moved to another network namespace, where it is captured on; without promiscuous mode \
                         and without what its card has missed",
                        self.last.name
                    );
                }
            }
            (_, Some(state)) => {
                // Its index may be another device's by now.
                if !device.whereabouts.is_here() && state.name != self.last.name {
                    return Ok(());
                }
                if !device.whereabouts.is_here() {
                    tracing::warn!("{} is back in the network namespace of the capture", state.name);
                }
                self.absent = 0;
                device.whereabouts.set(HERE);
                for line in changes(device, &self.last, &state) {
                    tracing::warn!("{line}");
                }
                self.last = state;
            }
        }
        Ok(())
    }

    fn end(&self, device: &Kept, how: u8) {
        device.whereabouts.set(how);
        if let Some(ending) = device.whereabouts.ending() {
            tracing::warn!("{} {ending}", self.last.name);
        }
    }
}

/// What to tell of two looks at a device.
fn changes(device: &Kept, before: &State, now: &State) -> Vec<String> {
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
    if let (Some(then), Some(queues)) = (before.rx_queues, now.rx_queues)
        && then != queues
    {
        lines.push(format!(
            "{name} has {queues} RX queue{} now, it had {then}: {}",
            if queues == 1 { "" } else { "s" },
            consequence(device, queues)
        ));
    }
    lines
}

/// What another number of RX queues means to this capture.
fn consequence(device: &Kept, queues: u32) -> String {
    let Some(asked) = &device.queues else {
        let known = device.instance.queues as u32;
        return if queues <= known {
            "all of them are captured".into()
        } else {
            format!("packets of those from {known} on are counted as lost, for they cannot be told apart")
        };
    };
    let list = |queues: &mut dyn Iterator<Item = &u32>| {
        queues.map(|queue| format!("{}@{queue}", device.name)).collect::<Vec<_>>().join(",")
    };
    let gone = list(&mut asked.iter().filter(|queue| **queue >= queues));
    let mut text = format!("captured is what comes in on {}, as was asked for", list(&mut asked.iter()));
    if !gone.is_empty() {
        text.push_str(&format!("; nothing does on {gone} any more"));
    }
    text
}
