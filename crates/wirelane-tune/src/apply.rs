//! Applying changes and undoing them; the journal is always written first.

use std::io::{self, ErrorKind};

use serde::Serialize;

use super::journal::{By, Entry, Journal};
use super::setting::Setting;
use super::system::System;
use crate::Result;

/// A setting and its new value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The setting.
    pub what: Setting,
    /// The current value; `None` if it cannot be read.
    pub now: Option<String>,
    /// The new value.
    pub new: String,
    /// The reason for the change.
    pub reason: String,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The change was made. `now` may differ from the requested value: drivers round.
    Changed {
        /// The value before the change.
        old: String,
        /// The value after the change.
        now: String,
    },
    /// The setting had that value already.
    AsItWas,
    /// The change could not be made.
    Refused {
        /// The reason, with a remedy.
        reason: String,
    },
}

/// Result of undoing a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Undoing {
    /// The old value is restored.
    Restored,
    /// The old value was in place already, or the change had never been carried out.
    AsItWas,
    /// The target of the setting no longer exists: a thread that has ended, an interrupt that was freed.
    Gone,
    /// Another process has changed the setting since; it is left alone.
    Foreign {
        /// The current value.
        now: String,
    },
    /// The change stays, also in the journal, because a capture holds it.
    Held {
        /// The capture's process id.
        pid: u32,
    },
    /// The change stays, also in the journal, because the old value could not be set.
    Refused {
        /// The reason, with a remedy.
        reason: String,
    },
}

/// A change and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step<O> {
    /// The setting.
    pub what: Setting,
    /// The requested value: the new one, or the old one when restoring.
    pub wanted: String,
    /// Its result.
    #[serde(flatten)]
    pub outcome: O,
}

/// Carries out changes one by one; a refused change does not prevent the others.
pub fn carry_out(
    system: &dyn System,
    journal: &mut Journal,
    by: By,
    changes: &[Change],
) -> Result<Vec<Step<Outcome>>> {
    if by == By::Apply {
        // Changes of a running capture were in place when this plan was made, and would be undone with the capture.
        let theirs = journal.entries.iter().filter(|entry| entry.by == By::Capture);
        for change in theirs.map(|entry| entry.change).collect::<Vec<_>>() {
            journal.adopt(change)?;
        }
    }
    let mut steps = Vec::new();
    for change in changes {
        let outcome = carry_out_one(system, journal, by, &change.what, &change.new)?;
        steps.push(Step { what: change.what.clone(), wanted: change.new.clone(), outcome });
    }
    Ok(steps)
}

fn carry_out_one(
    system: &dyn System,
    journal: &mut Journal,
    by: By,
    what: &Setting,
    new: &str,
) -> Result<Outcome> {
    let refused = |error: &io::Error| Ok(Outcome::Refused { reason: explain(what, error) });
    let old = match system.get(what) {
        Ok(old) => old,
        Err(error) => return refused(&error),
    };
    if old == new {
        return Ok(Outcome::AsItWas);
    }
    let change = journal.intend(by, what, &old, new)?;
    let set = system.set(what, new);
    let now = system.get(what);
    match (set, now) {
        // Some drivers accept a value without an error and without effect.
        (Ok(()), Ok(now)) if now == old => {
            journal.undone(change)?;
            Ok(Outcome::Refused { reason: format!("the driver left it at {now} without saying why") })
        }
        (Ok(()), Ok(now)) => {
            journal.done(change, &now)?;
            Ok(Outcome::Changed { old, now })
        }
        (Ok(()), Err(_)) => {
            journal.done(change, new)?;
            Ok(Outcome::Changed { old, now: new.to_owned() })
        }
        (Err(error), Ok(now)) if now != old => {
            // The driver returned an error, but the value changed.
            journal.done(change, &now)?;
            refused(&error)
        }
        (Err(error), _) => {
            journal.undone(change)?;
            refused(&error)
        }
    }
}

/// Undoes the changes of `by`, the last one first. With `By::Apply` it also undoes the changes of captures that have
/// ended.
pub fn undo(system: &dyn System, journal: &mut Journal, by: By) -> Result<Vec<Step<Undoing>>> {
    journal.reap()?;
    let owners = journal.owners.clone();
    let holder_of = |what: &Setting| owners.iter().find(|owner| owner.holds(what)).map(|owner| owner.pid);
    let mut steps = Vec::new();
    for entry in journal.entries.clone().iter().rev() {
        let holder = holder_of(&entry.what);
        let outcome = match (entry.by, holder) {
            (By::Capture, Some(pid)) if by == By::Apply => Undoing::Held { pid },
            (By::Capture, Some(_)) => continue,
            (By::Apply, _) if by == By::Capture => continue,
            _ => {
                // A setting that a running capture changed again is restored after the capture's own change.
                let above = |other: &&Entry| other.change > entry.change && other.what == entry.what;
                match (holder, journal.entries.iter().find(above)) {
                    (Some(pid), Some(_)) => Undoing::Held { pid },
                    _ => undo_one(system, journal, entry)?,
                }
            }
        };
        settle(journal, entry, &outcome)?;
        steps.push(Step { what: entry.what.clone(), wanted: entry.old.clone(), outcome });
    }
    // Some changes depend on later ones being undone first: an RSS table with more queues needs the queues (virtio_net
    // of Linux 6.1 creates no new table when their number changes).
    if steps.iter().any(|step| step.outcome == Undoing::Restored) {
        for entry in journal.entries.clone().iter().rev() {
            let refused = |step: &&mut Step<Undoing>| {
                step.what == entry.what && matches!(step.outcome, Undoing::Refused { .. })
            };
            if let Some(step) = steps.iter_mut().find(refused) {
                step.outcome = undo_one(system, journal, entry)?;
                settle(journal, entry, &step.outcome)?;
            }
        }
    }
    Ok(steps)
}

/// Removes an entry from the journal if nothing is left to do for it.
fn settle(journal: &mut Journal, entry: &Entry, outcome: &Undoing) -> Result<()> {
    match outcome {
        Undoing::Held { .. } | Undoing::Refused { .. } => Ok(()),
        _ => journal.undone(entry.change),
    }
}

fn undo_one(system: &dyn System, journal: &mut Journal, entry: &Entry) -> Result<Undoing> {
    let refused = |error: &io::Error| Ok(Undoing::Refused { reason: explain(&entry.what, error) });
    let now = match system.get(&entry.what) {
        Ok(now) => now,
        Err(error) if is_gone(&error) => return Ok(Undoing::Gone),
        Err(error) => return refused(&error),
    };
    if now == entry.old {
        return Ok(Undoing::AsItWas);
    }
    if now != entry.new {
        // For a setting that is changed repeatedly, the change before may be the one that is in effect.
        let before = |other: &&Entry| other.change < entry.change && other.what == entry.what;
        if journal.entries.iter().filter(before).any(|other| other.new == now) {
            return Ok(Undoing::AsItWas);
        }
        return Ok(Undoing::Foreign { now });
    }
    let mut set = system.set(&entry.what, &entry.old);
    if entry.what == Setting::Threaded && set.as_ref().is_err_and(is_unsupported) {
        set = with_napi(system, journal, entry.by, || system.set(&entry.what, &entry.old))?;
    }
    match set {
        Ok(()) => match system.get(&entry.what) {
            Ok(now) if now != entry.old => {
                Ok(Undoing::Refused { reason: format!("the driver left it at {now} without saying why") })
            }
            _ => Ok(Undoing::Restored),
        },
        Err(error) if is_gone(&error) => Ok(Undoing::Gone),
        Err(error) => refused(&error),
    }
}

/// Runs an operation that needs a NAPI instance. A veth device has none unless a program is attached or GRO is on, and
/// the kernel then refuses to switch off threads that do not exist, so GRO is on for that moment.
fn with_napi(
    system: &dyn System,
    journal: &mut Journal,
    by: By,
    work: impl FnOnce() -> io::Result<()>,
) -> Result<io::Result<()>> {
    let gro = Setting::Offload { name: "rx-gro".into() };
    if !system.get(&gro).is_ok_and(|state| state == "off") {
        return Ok(Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }
    let change = journal.intend(by, &gro, "off", "on")?;
    let done = system.set(&gro, "on").and_then(|()| work());
    // If this fails, the entry stays, and restoring reports it.
    if system.set(&gro, "off").is_ok() {
        journal.undone(change)?;
    }
    Ok(done)
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

/// Whether the error means that the device, queue, thread or interrupt no longer exists.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ESRCH))
}

/// The error as a message, with a remedy if one is known.
fn explain(what: &Setting, error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("not permitted: it needs {}", what.needs()),
        Some(libc::EROFS) => {
            "its file system is mounted read-only (in a container?): do it on the host, or mount it read-write"
                .to_owned()
        }
        Some(libc::EIO) if matches!(what, Setting::IrqAffinity { .. }) => {
            "the kernel manages this interrupt and does not allow moving it".to_owned()
        }
        Some(libc::EOPNOTSUPP) if *what == Setting::Threaded => {
            "the device has no NAPI instance now: set it up, and on veth devices capture on it or switch GRO on"
                .to_owned()
        }
        Some(libc::EOPNOTSUPP) => "the driver cannot".to_owned(),
        Some(libc::EINVAL) => format!("the driver does not take this value ({error})"),
        Some(libc::EBUSY) => "the device is busy: another program uses it in a way that forbids this".to_owned(),
        _ => error.to_string(),
    }
}
