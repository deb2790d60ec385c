//! Plans for this machine, made from its current state, and their application.

use std::path::Path;
use std::time::Duration;

use super::{Applied, Change, Plan, Result, Setting, Wishes, apply, plan};
use wirelane_netdev::Device;
use wirelane_netdev::topology::{Card, Topology};

/// Time for which the load of the CPUs is measured.
const WATCH: Duration = Duration::from_millis(500);

/// The plan for the current state of these devices.
///
/// # Errors
/// A device that does not exist, or state that the kernel does not show.
pub fn plan_devices(devices: &[String], wishes: &Wishes) -> Result<Plan> {
    let topology = Topology::live(WATCH)?;
    let mut cards = Vec::new();
    for name in devices {
        cards.push(Card::live(&Device::open(name)?)?);
    }
    Ok(plan(&topology, &cards, wishes))
}

/// Applies the plan for these devices, and returns it with the result of each device. The number of queues is changed first,
/// separately: with another number the card has other interrupts, so the rest is planned after that. `journal`: as of
/// [`apply`].
///
/// # Errors
/// As [`plan_devices`] and [`apply`].
pub fn apply_to_devices(
    devices: &[String],
    wishes: &Wishes,
    journal: Option<&Path>,
) -> Result<(Plan, Vec<Applied>)> {
    let mut plan = plan_devices(devices, wishes)?;
    // The changes up to the number of queues, if that is to change.
    let until_queues = |changes: &[Change]| {
        let queues = changes.iter().position(|change| change.what == Setting::Channels);
        changes[..queues.map_or(0, |at| at + 1)].to_vec()
    };
    let mut before = Vec::new();
    if plan.devices.iter().any(|device| !until_queues(&device.changes).is_empty()) {
        before = apply_part(devices, &plan, journal, until_queues)?;
        plan = plan_devices(devices, wishes)?;
    }
    // The plan still contains the number of queues if the change was refused.
    let rest = |changes: &[Change]| {
        changes.iter().filter(|change| change.what != Setting::Channels).cloned().collect()
    };
    let mut applied = apply_part(devices, &plan, journal, rest)?;
    for (after, before) in applied.iter_mut().zip(before) {
        after.steps.splice(..0, before.steps);
    }
    Ok((plan, applied))
}

/// Makes some of the changes of a plan.
fn apply_part(
    devices: &[String],
    plan: &Plan,
    journal: Option<&Path>,
    which: impl Fn(&[Change]) -> Vec<Change>,
) -> Result<Vec<Applied>> {
    let parts = devices.iter().zip(&plan.devices);
    parts.map(|(name, own)| apply(&Device::open(name)?, &which(&own.changes), journal)).collect()
}
