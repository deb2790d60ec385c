//! Polling threads for as long as a capture runs.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wirelane_privsep::cleanup::{
    ActionKind, CleanupAction, CleanupProcess, LogLine, Outcome as CleanupOutcome, Registration,
};

use super::apply::{self, Outcome, Undoing};
use super::journal::{By, Identity, Journal, Owner};
use super::plan::{Plan, Polling};
use super::setting::Setting;
use super::system::{LiveSystem, System, Vanished};
use crate::{Error, Result};
use wirelane_netdev::Device;

/// Keeps a device's polling as a capture wants it. When the last one of a device is dropped, whichever process it
/// is of, everything is put back, by the cleanup process of that process; so it is when the process is killed. Where that
/// was killed too, the next to come does it.
#[derive(Debug)]
pub struct PollingHold {
    hold: Hold,
    registration: Registration,
}

/// A capture's hold on a device, as the journal knows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hold {
    identity: Identity,
    path: PathBuf,
    owner: Owner,
}

/// Giving a [`Hold`] back, as an action of a cleanup process.
pub const CLEANUP: ActionKind = ActionKind {
    name: "polling",
    prepare: ActionKind::nothing,
    read: |action, descriptors| {
        let hold = serde_json::from_slice(action).ok()?;
        descriptors.is_empty().then(|| Box::new(Giving { hold, released: false }) as Box<dyn CleanupAction>)
    },
};

struct Giving {
    hold: Hold,
    /// Its owner is out of the journal; once only, since a process can be in it twice.
    released: bool,
}

impl CleanupAction for Giving {
    fn attempt(&mut self, _prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        match self.hold.give_back(&mut self.released) {
            Ok(given) => (given.complete, given.said),
            Err(e) => (false, vec![self.hold.not_given_back(&e)]),
        }
    }
}

/// What came of giving a hold back.
pub struct GivenBack {
    /// Nothing was refused.
    pub complete: bool,
    /// What is worth telling.
    pub said: Vec<LogLine>,
}

impl PollingHold {
    /// Makes the changes that the plan has for this device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device cannot be polled that way, or another capture holds it polled in
    /// another way; what the journal or the kernel said.
    pub fn take(
        device: &Device,
        plan: &Plan,
        polling: Polling,
        cleanup: &Arc<CleanupProcess>,
    ) -> Result<PollingHold> {
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
        let registration = cleanup.register(&CLEANUP, &hold, &[])?;
        journal.hold(&hold.owner)?;
        let hold = PollingHold { hold, registration };
        let made = hold.make(&system, &mut journal, plan, polling);
        // Before the hold, for which the journal is opened again if it is dropped for an error.
        journal.finish()?;
        made.map(|()| hold)
    }

    fn make(&self, system: &dyn System, journal: &mut Journal, plan: &Plan, polling: Polling) -> Result<()> {
        let device = &self.hold.identity.device;
        for one in plan.devices.iter().filter(|one| one.device == *device) {
            for step in apply::carry_out(system, journal, By::Capture, &one.changes)? {
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
}

impl Drop for PollingHold {
    fn drop(&mut self) {
        let said = match self.registration.run() {
            CleanupOutcome::Done(said) => said,
            // Somebody has killed the cleanup process: this process does its work, where it still may.
            CleanupOutcome::Unserved => match self.hold.give_back(&mut false) {
                Ok(given) => given.said,
                Err(e) => vec![self.hold.not_given_back(&e)],
            },
            CleanupOutcome::Impossible => {
                vec![
                    self.hold
                        .not_given_back(&"wl-cleanup, which has the right to it, is gone or does not answer"),
                ]
            }
        };
        said.iter().for_each(LogLine::log);
    }
}

impl Hold {
    /// Takes the owner out of the journal, unless that is `released` already, and puts back what nobody else holds.
    /// Logs nothing: it runs in the cleanup process. The device may have another name by now, or be gone.
    ///
    /// # Errors
    /// What the journal or the kernel said.
    pub fn give_back(&self, released: &mut bool) -> Result<GivenBack> {
        let Some(mut journal) = Journal::find(&self.path, &self.identity)? else {
            return Ok(GivenBack { complete: true, said: Vec::new() });
        };
        if !*released {
            journal.release(&self.owner)?;
            *released = true;
        }
        let device = Device::with_index(self.identity.ifindex)?;
        let name = device.as_ref().map_or(&self.identity.device, |device| &device.name).clone();
        let steps = match device {
            Some(device) => apply::undo(&LiveSystem::open(device)?, &mut journal, By::Capture),
            None => apply::undo(&Vanished, &mut journal, By::Capture),
        }?;
        journal.finish()?;
        let complete = steps.iter().all(|step| !matches!(step.outcome, Undoing::Refused { .. }));
        Ok(GivenBack { complete, said: steps.iter().filter_map(|step| said(&name, step)).collect() })
    }

    /// For people: it was not given back.
    pub fn not_given_back(&self, why: &dyn std::fmt::Display) -> LogLine {
        let device = &self.identity.device;
        LogLine::Warning(format!(
            "{device}: giving back how it is polled: {why}; the next wirelane on the device tries again, and so does \
             'wirelane tune restore -i {device}'"
        ))
    }
}

/// Puts back what captures have left on a device whose processes run no more. Cheap where there is nothing.
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

fn log(device: &str, steps: &[apply::Step<Undoing>]) {
    steps.iter().filter_map(|step| said(device, step)).for_each(|said| said.log());
}

/// What is worth telling of a step.
fn said(device: &str, step: &apply::Step<Undoing>) -> Option<LogLine> {
    let (what, wanted) = (&step.what, &step.wanted);
    match &step.outcome {
        Undoing::Foreign { now } => Some(LogLine::Warning(format!(
            "{device}: {what} was changed to {now} by another program: it is left alone"
        ))),
        Undoing::Refused { reason } => {
            Some(LogLine::Warning(format!("{device}: {what} cannot be put back to {wanted}: {reason}")))
        }
        Undoing::Restored => Some(LogLine::Info(format!("{device}: {what} is {wanted} again"))),
        Undoing::AsItWas | Undoing::Gone | Undoing::Held { .. } => None,
    }
}
