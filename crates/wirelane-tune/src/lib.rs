//! Tuning: a machine's queues, interrupts, threads and workers placed so that a capture loses least.
//!
//! ```text
//! Topology, Card  ->  plan()  ->  Plan: what to change, where to run, each with its reason
//!                                   |
//!                        apply(): journal, then change, one by one
//!                                   |
//!                        restore(): back, the last first, and only what is still as we left it
//! ```
//! [`plan`] is a function of what is known, so recorded machines are its tests. The journal is always ahead of
//! the settings: whoever finds it can put back what a process has left that was killed.
//! A capture that asks for polling threads  keeps its changes in the same journal, with
//! its process as their owner; they go when the last owner has gone. So does one that moves entries of the RSS table
//! (`table`), by a process that keeps the right to.

mod apply;
#[cfg(test)]
mod crash;
mod error;
mod journal;
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
pub use place::crowded;
pub use plan::{DevicePlan, Plan, Polling, QueuePlace, Wishes, WorkerPlace, plan};
pub use setting::Setting;

use journal::{Identity, Journal};
use system::LiveSystem;
use wirelane_netdev::Device;
use wirelane_netdev::topology::{Card, Topology};

/// What has become of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The journal, which [`restore`] reads.
    pub journal: PathBuf,
    /// Each change, in order.
    pub steps: Vec<Step<Outcome>>,
}

/// What has been put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Each change that the journal held, the last first.
    pub steps: Vec<Step<Undoing>>,
    /// Changes that are still in the journal.
    pub left: usize,
}

/// What the journal of a device holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The journal; `None` where nothing is changed.
    pub journal: Option<PathBuf>,
    /// What is changed, and the value now where it can be read.
    pub entries: Vec<(Entry, Option<String>)>,
    /// Processes that hold captures' changes, and whether each still runs.
    pub owners: Vec<(Owner, bool)>,
}

/// Makes the changes of one device's plan. Changes that cannot be made do not keep the others from being made; what
/// became of each is in the answer. What captures have changed on the device stays with them. `journal`: the file to use instead of the usual one in `/run/wirelane`.
///
/// # Errors
/// [`Error::Io`] where the journal cannot be written: then nothing is changed from there on. [`Error::Kernel`]
/// where the device cannot be asked.
pub fn apply(device: &Device, changes: &[Change], journal: Option<&Path>) -> Result<Applied> {
    let identity = Identity::of(device)?;
    let path = journal.map_or_else(|| identity.path(), Path::to_owned);
    let system = LiveSystem::open(device.clone())?;
    let mut journal = Journal::create(&path, &identity)?;
    let steps = apply::carry_out(&system, &mut journal, By::Apply, changes)?;
    journal.finish()?;
    Ok(Applied { journal: path, steps })
}

/// Puts back what [`apply`] has changed on a device, and what captures have left that run no more.
///
/// # Errors
/// As [`apply`].
pub fn restore(device: &Device, journal: Option<&Path>) -> Result<Restored> {
    let identity = Identity::of(device)?;
    let path = journal.map_or_else(|| identity.path(), Path::to_owned);
    let Some(mut journal) = Journal::find(&path, &identity)? else {
        return Ok(Restored { steps: Vec::new(), left: 0 });
    };
    let system = LiveSystem::open(device.clone())?;
    let steps = apply::undo(&system, &mut journal, By::Apply)?;
    let left = journal.entries.len();
    journal.finish()?;
    Ok(Restored { steps, left })
}

/// What the journal of a device holds.
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

/// Where a capture runs on these devices, whose queues stay as they are.
///
/// # Errors
/// [`Error::Io`] where the kernel does not show its CPUs.
pub fn plan_for_capture(cards: &[Card], wishes: &Wishes) -> Result<Plan> {
    // Long enough to tell a CPU that is busy from one that is not.
    let topology = Topology::live(std::time::Duration::from_millis(100))?;
    if !topology.cpus.iter().any(|cpu| cpu.allowed) {
        return Err(Error::BadOption { option: "--cores", reason: "this process may run on no CPU".into() });
    }
    Ok(plan(&topology, cards, wishes))
}
