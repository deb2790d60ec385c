//! Tuning: places a machine's queues, interrupts, threads and workers so that a capture loses as few packets as
//! possible.
//!
//! ```text
//! Topology, Card  ->  plan()  ->  Plan: what to change, where to run, each with its reason
//!                                   |
//!                        apply(): journal, then change, one by one
//!                                   |
//!                        restore(): back, the last first, and only what is still as we left it
//! ```
//! [`plan`] is a pure function of its inputs, so recorded machines serve as tests. The journal is always written before
//! the settings: the next process that finds it can undo the changes of a killed one. A capture that asks for polling
//! threads keeps its changes in the same journal, with its process as their owner; they are undone when the last owner
//! has ended. The same applies to a capture that moves entries of the RSS table (`table`), by its broker, which keeps the
//! right to do so.

mod apply;
#[cfg(test)]
mod crash;
mod error;
mod hold;
mod journal;
mod machine;
pub mod offloads;
mod place;
mod plan;
#[cfg(test)]
mod plan_tests;
pub mod polling;
pub mod rights;
mod setting;
mod system;
pub mod table;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use apply::{Change, Outcome, Step, Undoing};
pub use error::{Error, Result};
pub use journal::{By, Entry, Owner};
pub use machine::{apply_to_devices, plan_devices};
pub use place::crowded;
pub use plan::{DevicePlan, Plan, Polling, QueuePlace, Wishes, WorkerPlace, plan};
pub use setting::Setting;

use journal::{Identity, Journal};
use system::LiveSystem;
use wirelane_netdev::Device;
use wirelane_netdev::topology::{Card, Topology};

/// Result of applying a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The journal, which [`restore`] reads.
    pub journal: PathBuf,
    /// Each change, in order.
    pub steps: Vec<Step<Outcome>>,
}

/// Result of restoring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Each change in the journal, the last one first.
    pub steps: Vec<Step<Undoing>>,
    /// Changes that are still in the journal.
    pub left: usize,
}

/// Contents of a device's journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The journal; `None` if no setting is changed.
    pub journal: Option<PathBuf>,
    /// Each changed setting, with its current value if it can be read.
    pub entries: Vec<(Entry, Option<String>)>,
    /// Processes that hold the changes of captures, and whether each still runs.
    pub owners: Vec<(Owner, bool)>,
}

/// Makes the changes of one device's plan. A refused change does not prevent the others; the result of each is
/// returned. Changes that running captures have made on the device become permanent, too. `journal`: the file to use
/// instead of the default one in `/run/wirelane`.
///
/// # Errors
/// [`Error::Io`] if the journal cannot be written: then no further setting is changed. [`Error::Kernel`] if the device
/// cannot be queried.
pub fn apply(device: &Device, changes: &[Change], journal: Option<&Path>) -> Result<Applied> {
    let identity = Identity::of(device)?;
    let path = journal.map_or_else(|| identity.path(), Path::to_owned);
    let system = LiveSystem::open(device.clone())?;
    let mut journal = Journal::create(&path, &identity)?;
    let steps = apply::carry_out(&system, &mut journal, By::Apply, changes)?;
    journal.finish()?;
    Ok(Applied { journal: path, steps })
}

/// Undoes the changes that [`apply`] made on a device, and those of captures that have ended.
///
/// # Errors
/// As [`apply`].
pub fn restore(device: &Device, journal: Option<&Path>) -> Result<Restored> {
    let identity = Identity::of(device)?;
    let path = journal.map_or_else(|| identity.path(), Path::to_owned);
    let Some(mut journal) = Journal::find(&path, &identity)? else {
        return Ok(Restored { steps: requested_offloads(device), left: 0 });
    };
    let system = LiveSystem::open(device.clone())?;
    let mut steps = apply::undo(&system, &mut journal, By::Apply)?;
    let left = journal.entries.len();
    journal.finish()?;
    steps.extend(requested_offloads(device));
    Ok(Restored { steps, left })
}

/// Requests offloads again that the native program of a killed capture has left off, and whose broker was killed, too.
fn requested_offloads(device: &Device) -> Vec<Step<Undoing>> {
    let requested = offloads::request_again(device.ifindex, &offloads::at_odds(&device.name));
    let step = |(_, name, is_on)| Step {
        what: Setting::Offload { name },
        wanted: "on".to_owned(),
        outcome: match is_on {
            true => Undoing::Restored,
            false => Undoing::Refused { reason: "the driver leaves it off".to_owned() },
        },
    };
    // A kernel that refuses a request has been asked for nothing new: the offloads stay as they are.
    requested.ok().flatten().unwrap_or_default().into_iter().map(step).collect()
}

/// Reads the journal of a device.
///
/// # Errors
/// As [`apply`].
pub fn status(device: &Device, journal: Option<&Path>) -> Result<Status> {
    use system::System as _;
    let identity = Identity::of(device)?;
    let path = journal.map_or_else(|| identity.path(), Path::to_owned);
    let Some(journal) = Journal::find(&path, &identity)? else {
        return Ok(Status { journal: None, entries: Vec::new(), owners: Vec::new() });
    };
    let system = LiveSystem::open(device.clone())?;
    let now = |entry: &Entry| system.get(&entry.what).ok();
    Ok(Status {
        journal: Some(path),
        entries: journal.entries.iter().map(|entry| (entry.clone(), now(entry))).collect(),
        owners: journal.owners.iter().map(|owner| (owner.clone(), owner.lives())).collect(),
    })
}

/// Placement of a capture on these devices, without changes to their queues.
///
/// # Errors
/// [`Error::Io`] if the kernel does not show its CPUs.
pub fn plan_for_capture(cards: &[Card], wishes: &Wishes) -> Result<Plan> {
    // Long enough to distinguish a busy CPU from an idle one.
    let topology = Topology::live(std::time::Duration::from_millis(100))?;
    if !topology.cpus.iter().any(|cpu| cpu.allowed) {
        return Err(Error::BadOption { option: "--cores", reason: "this process may run on no CPU".into() });
    }
    Ok(plan(&topology, cards, wishes))
}
