//! Polling threads while a capture runs.

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

/// Keeps a device's polling mode as a capture requested it. When the last hold on a device is dropped, in whichever
/// process, the cleanup process of that process undoes all changes; it does so too if the process is killed. If the
/// cleanup process was killed as well, the next process that uses the device undoes them.
#[derive(Debug)]
pub struct PollingHold {
    hold: Hold,
    registration: Registration,
}

/// A capture's hold on a device, as recorded in the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hold {
    identity: Identity,
    path: PathBuf,
    owner: Owner,
}

/// Releasing a [`Hold`], as an action of a cleanup process.
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
    /// The owner has been removed from the journal; done only once, since a process can be in it twice.
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

/// Result of releasing a hold.
pub struct GivenBack {
    /// No step was refused.
    pub complete: bool,
    /// Messages for the log.
    pub said: Vec<LogLine>,
}

impl PollingHold {
    /// Makes the changes that the plan has for this device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not support the polling mode, or another capture holds it in another
    /// mode; otherwise the error of the journal or the kernel.
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
        // Before the hold: if the hold is dropped because of an error, it opens the journal again.
        journal.finish()?;
        made.map(|()| hold)
    }

    fn make(&self, system: &dyn System, journal: &mut Journal, plan: &Plan, polling: Polling) -> Result<()> {
        let device = &self.hold.identity.device;
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

impl Drop for PollingHold {
    fn drop(&mut self) {
        let said = match self.registration.run() {
            CleanupOutcome::Done(said) => said,
            // The cleanup process was killed: this process undoes the changes itself, if it still has the rights.
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
    /// Removes the owner from the journal, unless `released` is already set, and undoes changes without another holder.
    /// Logs nothing: it runs in the cleanup process. The device may have been renamed or removed by now.
    ///
    /// # Errors
    /// The error of the journal or the kernel.
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

    /// Warning that the hold could not be released.
    pub fn not_given_back(&self, why: &dyn std::fmt::Display) -> LogLine {
        let device = &self.identity.device;
        LogLine::Warning(format!(
            "{device}: giving back how it is polled: {why}; the next wirelane on the device tries again, and so does \
             'wirelane tune restore -i {device}'"
        ))
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

fn log(device: &str, steps: &[apply::Step<Undoing>]) {
    steps.iter().filter_map(|step| said(device, step)).for_each(|said| said.log());
}

/// The log message for a step, if it needs one.
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
