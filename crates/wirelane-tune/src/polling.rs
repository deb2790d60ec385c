//! Polling threads while a capture runs.

use std::sync::Arc;

use wirelane_privsep::Capability;
use wirelane_privsep::broker::{Broker, Kind, Task};

use super::apply::{self, Outcome};
use super::hold::{Held, Hold, Release, log};
use super::journal::{By, Identity, Journal, Owner};
use super::plan::{Plan, Polling};
use super::setting::Setting;
use super::system::{LiveSystem, System};
use crate::{Error, Result};
use wirelane_netdev::Device;

/// Keeps a device's polling mode as a capture requested it. When the last hold on a device is dropped, in whichever
/// process, the broker of that process undoes all changes; it does so too if the process is killed. If the broker was
/// killed as well, the next process that uses the device undoes them.
#[derive(Debug)]
pub struct PollingHold(Held);

/// Releasing a hold on polling, as a task of a broker.
pub const KIND: Kind = Kind {
    name: "polling",
    capabilities: &[Capability::NetAdmin, Capability::SysNice],
    prepare: Kind::nothing,
    read: |task, descriptors| {
        let hold = serde_json::from_slice(task).ok()?;
        descriptors.is_empty().then(|| Box::new(Release::of(hold)) as Box<dyn Task>)
    },
};

impl PollingHold {
    /// Makes the changes that the plan has for this device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not support the polling mode, or another capture holds it in another
    /// mode; otherwise the error of the journal or the kernel.
    pub fn take(device: &Device, plan: &Plan, polling: Polling, broker: &Arc<Broker>) -> Result<PollingHold> {
        let identity = Identity::of(device)?;
        let path = identity.path();
        let owner = Owner::this(&polling.to_string());
        let system = LiveSystem::open(device.clone())?;
        let mut journal = Journal::create(&path, &identity)?;
        log(&device.name, &apply::undo(&system, &mut journal, By::Capture)?);
        let polls = |other: &&Owner| other.holds(&Setting::Threaded);
        if let Some(other) = journal.owners.iter().filter(polls).find(|other| other.polling != owner.polling)
        {
            return Err(Error::Unsupported {
                what: format!("--polling {polling} on {}", device.name),
                needs: format!("a device that no other capture polls: process {} holds it", other.pid),
                instead: format!("--polling {} shares it with that capture", other.polling),
            });
        }
        let hold = Hold { identity, path, owner };
        let registration = broker.register(&KIND, &hold, &[])?;
        journal.hold(&hold.owner)?;
        let hold = PollingHold(Held { hold, registration });
        let made = hold.make(&system, &mut journal, plan, polling);
        // Before the hold: if the hold is dropped because of an error, it opens the journal again.
        journal.finish()?;
        made.map(|()| hold)
    }

    fn make(&self, system: &dyn System, journal: &mut Journal, plan: &Plan, polling: Polling) -> Result<()> {
        let device = &self.0.hold.identity.device;
        for one in plan.devices.iter().filter(|one| one.device == *device) {
            for step in apply::carry_out(system, journal, By::Capture, &one.changes)? {
                match step.outcome {
                    // If the refused setting is the requested polling mode itself, the capture cannot start as
                    // requested.
                    Outcome::Refused { reason } if is_the_switch(&step.what) => {
                        return Err(Error::Unsupported {
                            what: format!("--polling {polling} on {device}"),
                            needs: format!("{} to be {}: {reason}", step.what, step.wanted),
                            instead: "leave the option out".into(),
                        });
                    }
                    Outcome::Refused { reason } => {
                        tracing::warn!("{device}: {} stays as it is: {reason}", step.what);
                    }
                    Outcome::Changed { old, now } => {
                        tracing::info!("{device}: {} was {old}, is {now}", step.what);
                    }
                    Outcome::AsItWas => {}
                }
            }
        }
        Ok(())
    }
}

/// Undoes the changes of captures that have ended on a device. Cheap if no such changes exist.
pub fn heal(device: &Device) -> Result<()> {
    let identity = Identity::of(device)?;
    let path = identity.path();
    if !path.exists() {
        return Ok(());
    }
    let Some(mut journal) = Journal::find(&path, &identity)? else { return Ok(()) };
    let system = LiveSystem::open(device.clone())?;
    log(&device.name, &apply::undo(&system, &mut journal, By::Capture)?);
    journal.finish()
}

fn is_the_switch(what: &Setting) -> bool {
    matches!(what, Setting::Threaded | Setting::QueueThread { .. })
}
