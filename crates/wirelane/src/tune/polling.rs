//! Polling threads for as long as a capture runs.

use std::path::PathBuf;

use super::apply::{self, Outcome, Undoing};
use super::journal::{By, Identity, Journal, Owner};
use super::plan::{Plan, Polling, Wishes};
use super::setting::Setting;
use super::system::LiveSystem;
use crate::device::{Device, Selected};
use crate::settings::Settings;
use crate::topology::Card;
use crate::{Error, Result, tune};

/// Keeps a device's polling as a capture wants it. When the last one of a device is dropped, whichever process it
/// is of, everything is put back; after a process that was killed the next to come does it.
#[derive(Debug)]
pub(crate) struct PollingHold {
    device: String,
    system: LiveSystem,
    identity: Identity,
    path: PathBuf,
    owner: Owner,
}

impl PollingHold {
    /// Makes the changes that the plan has for this device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device cannot be polled that way, or another capture holds it polled in
    /// another way; what the journal or the kernel said.
    pub(crate) fn take(device: &Device, plan: &Plan, polling: Polling) -> Result<PollingHold> {
        let identity = Identity::of(device)?;
        let path = identity.path();
        let owner = Owner::this(&polling.to_string());
        let system = LiveSystem::open(device.clone())?;
        let mut journal = Journal::create(&path, &identity)?;
        warn(&device.name, &apply::undo(&system, &mut journal, By::Capture)?);
        if let Some(other) = journal.owners.iter().find(|other| other.polling != owner.polling) {
            return Err(Error::Unsupported {
                what: format!("--polling {polling} on {}", device.name),
                needs: format!("a device that no other capture polls: process {} holds it", other.pid),
                instead: format!("--polling {} shares it with that capture", other.polling),
            });
        }
        journal.hold(&owner)?;
        let hold = PollingHold { device: device.name.clone(), system, identity, path, owner };
        let made = hold.make(&mut journal, plan, polling);
        // Before the hold, which opens the journal again if it is dropped for an error.
        journal.finish()?;
        made.map(|()| hold)
    }

    fn make(&self, journal: &mut Journal, plan: &Plan, polling: Polling) -> Result<()> {
        let device = &self.device;
        for one in plan.devices.iter().filter(|one| one.device == *device) {
            for step in apply::carry_out(&self.system, journal, By::Capture, &one.changes)? {
                match step.outcome {
                    // Where it is the very thing that was asked for, the capture is not what was asked for.
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

    fn give_back(&self) -> Result<()> {
        let Some(mut journal) = Journal::find(&self.path, &self.identity)? else { return Ok(()) };
        journal.release(&self.owner)?;
        warn(&self.device, &apply::undo(&self.system, &mut journal, By::Capture)?);
        journal.finish()
    }
}

impl Drop for PollingHold {
    fn drop(&mut self) {
        if let Err(e) = self.give_back() {
            tracing::warn!(
                "{}: giving back how it is polled: {e}; 'wirelane tune restore -i {}' tries again",
                self.device,
                self.device
            );
        }
    }
}

/// The core of each worker of a capture, and its hold on how its devices are polled. What a capture that was killed
/// has left on them is put back first.
///
/// # Errors
/// As [`PollingHold::take`].
pub(crate) fn for_capture(
    settings: &Settings,
    selected: &[Selected],
) -> Result<(Vec<Option<usize>>, Vec<PollingHold>)> {
    for one in selected {
        heal(&one.device)?;
    }
    if !settings.cores_auto && settings.polling.is_none() {
        return Ok(((0..settings.workers).map(|worker| settings.core_of(worker)).collect(), Vec::new()));
    }
    let mut cards = Vec::new();
    let mut devices = Vec::new();
    for one in selected {
        // Anew: NAPI instances come with the program (and with virtio_net more queues), and threads have gone with
        // what was put back.
        let device = Device::open(&one.device.name)?;
        let mut card = Card::live(&device)?;
        if !one.is_whole_device() {
            card.queues.retain(|queue| one.queues.contains(&queue.queue));
        }
        cards.push(card);
        devices.push(device);
    }
    let wishes = Wishes {
        workers: Some(settings.workers),
        cores: settings.cores.clone(),
        polling: settings.polling,
        as_it_is: true,
    };
    let plan = tune::plan_for_capture(&cards, &wishes)?;
    for note in &plan.notes {
        tracing::warn!("{note}");
    }
    for place in &plan.workers {
        tracing::info!("worker {} on CPU {}: {}", place.worker, place.core, place.reason);
    }
    let mut holds = Vec::new();
    if let Some(polling) = settings.polling {
        for (device, card) in devices.iter().zip(&cards) {
            if polling == Polling::Busy && !card.busy_threads {
                return Err(Error::Unsupported {
                    what: format!("--polling busy on {}", device.name),
                    needs: "kernel threads that poll all the time (Linux 6.19)".into(),
                    instead: "--polling threaded".into(),
                });
            }
            if polling == Polling::Threaded && card.threaded.is_none() {
                return Err(Error::Unsupported {
                    what: format!("--polling threaded on {}", device.name),
                    needs: "a /sys that shows this network namespace".into(),
                    instead: "run it with 'ip netns exec', which mounts a fitting one".into(),
                });
            }
            holds.push(PollingHold::take(device, &plan, polling)?);
        }
    }
    Ok((plan.workers.iter().map(|place| Some(place.core)).collect(), holds))
}

/// Puts back what captures have left on a device whose processes run no more. Cheap where there is nothing.
pub(crate) fn heal(device: &Device) -> Result<()> {
    let identity = Identity::of(device)?;
    let path = identity.path();
    if !path.exists() {
        return Ok(());
    }
    let Some(mut journal) = Journal::find(&path, &identity)? else { return Ok(()) };
    let system = LiveSystem::open(device.clone())?;
    warn(&device.name, &apply::undo(&system, &mut journal, By::Capture)?);
    journal.finish()
}

fn is_the_switch(what: &Setting) -> bool {
    matches!(what, Setting::Threaded | Setting::QueueThread { .. })
}

fn warn(device: &str, steps: &[apply::Step<Undoing>]) {
    for step in steps {
        match &step.outcome {
            Undoing::Foreign { now } => {
                tracing::warn!("{device}: {} is {now} by now, not by us: it is left alone", step.what);
            }
            Undoing::Refused { reason } => {
                tracing::warn!("{device}: {} cannot be put back to {}: {reason}", step.what, step.wanted);
            }
            Undoing::Restored => tracing::info!("{device}: {} is {} again", step.what, step.wanted),
            Undoing::AsItWas | Undoing::Gone | Undoing::Held { .. } => {}
        }
    }
}
