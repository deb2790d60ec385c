//! A capture's hold on changed settings of a device, which its broker releases when the capture ends.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use wirelane_privsep::broker::{LogLine, Outcome, Registration, Task};

use super::apply::{self, Step, Undoing};
use super::journal::{By, Identity, Journal, Owner};
use super::system::{LiveSystem, Vanished};
use crate::Result;
use wirelane_netdev::Device;

/// A hold, as recorded in the journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) identity: Identity,
    pub(super) path: PathBuf,
    pub(super) owner: Owner,
}

/// A hold that is registered with the broker, which releases it when this value is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) hold: Hold,
    pub(super) registration: Registration,
}

/// Releasing a [`Hold`], in the broker.
pub(super) struct Release {
    hold: Hold,
    /// The owner has been removed from the journal; done only once, since a process can be in it twice.
    released: bool,
}

impl Release {
    pub(super) fn of(hold: Hold) -> Release {
        Release { hold, released: false }
    }
}

impl Task for Release {
    fn undo(&mut self, _prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
        match self.hold.give_back(&mut self.released) {
            Ok(given) => given,
            Err(e) => (false, vec![self.hold.not_given_back(&e)]),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let said = match self.registration.undo() {
            Outcome::Done(said) => said,
            // The broker was killed: this process undoes the changes itself, if it still has the rights.
            Outcome::Unserved => Release::of(self.hold.clone()).undo(None).1,
            Outcome::Impossible => {
                vec![
                    self.hold
                        .not_given_back(&"wl-broker, which has the right to it, is gone or does not answer"),
                ]
            }
        };
        said.iter().for_each(LogLine::log);
    }
}

impl Hold {
    /// Removes the owner from the journal, unless `released` is already set, and undoes changes without another holder.
    /// The device may have been renamed or removed by now. Returns whether no step was refused, and messages for the
    /// log.
    fn give_back(&self, released: &mut bool) -> Result<(bool, Vec<LogLine>)> {
        let Some(mut journal) = Journal::find(&self.path, &self.identity)? else {
            return Ok((true, Vec::new()));
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
        Ok((complete, steps.iter().filter_map(|step| said(&name, step)).collect()))
    }

    /// Warning that the hold could not be released.
    fn not_given_back(&self, why: &dyn std::fmt::Display) -> LogLine {
        let device = &self.identity.device;
        LogLine::Warning(format!(
            "{device}: restoring its settings: {why}; the next wirelane on the device tries again, and so does \
             'wirelane tune restore -i {device}'"
        ))
    }
}

/// Logs the steps that need a message.
pub(super) fn log(device: &str, steps: &[Step<Undoing>]) {
    steps.iter().filter_map(|step| said(device, step)).for_each(|said| said.log());
}

/// The log message for a step, if it needs one.
fn said(device: &str, step: &Step<Undoing>) -> Option<LogLine> {
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
