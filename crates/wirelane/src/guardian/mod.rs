//! The guardian: a process that undoes what a capture changes on a device, however the capture ends.
//!
//! ```text
//!   the capturing process                     wl-guardian, forked while all rights are there
//!     charge(duty, descriptors)  -------->      notes it; only now is the change made
//!     seal()                     -------->      takes no more duties
//!     (gives up all rights)
//!     fulfil(duty)               -------->      undoes it
//!                                <--------      and says what came of it
//!     drop                       -------->      undoes what is left, and ends
//!     killed                     ----X          undoes everything, and ends
//! ```
//! A capture has one guardian, or none where it changes nothing that outlives a process: it is forked for the first
//! duty, or, where one is sure to come, before memory is shared with the kernel, which a forked process would hold.
//! `forked/` says what it keeps of the capturing process.
//!
//! Whoever takes the capturing process over can talk to the guardian. So duties are given to it before the first
//! packet is looked at, and after the seal all that can be said is "undo this now", of the process's own changes. Who
//! says anything else is taken for dead.
//!
//! A guardian that is killed leaves what killed captures have left before there were guardians: clsact filters that
//! do nothing, a journal of settings, and the file of a socket that nobody listens at, all of which the next capture
//! puts right.

mod duty;
mod process;
mod wire;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use duty::{Duty, Said};

use crate::control;
use crate::device::Selected;
use crate::forked::Rights;
use crate::settings::Settings;
use crate::{Error, Result};

/// How long the guardian is waited for: the clsact lock's patience, and a driver that sets its queues up anew.
const LIMIT: Duration = Duration::from_secs(8);

/// A capture's guardian, the capturing process's side.
#[derive(Debug)]
pub(crate) struct Guardian {
    /// The devices whose settings will be changed.
    devices: Vec<String>,
    /// Whether there will be a control socket.
    socket: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    control: Control,
    duties: u32,
    /// The capturing process has given its rights up.
    confined: bool,
}

#[derive(Debug)]
enum Control {
    /// There was no duty yet.
    NotStarted,
    Runs(OwnedFd),
    /// It has been killed, or does not answer.
    Lost,
}

/// What a guardian has been charged with.
#[derive(Debug)]
pub(crate) struct Charge {
    guardian: Arc<Guardian>,
    number: u32,
}

/// What came of undoing something.
#[derive(Debug)]
pub(crate) enum Fulfilled {
    /// The guardian has done it, as far as it goes.
    Done(Vec<Said>),
    /// There is no guardian any more: the process itself has to do it. It still has its rights.
    Yours,
    /// There is no guardian any more, and the process has no right to do it.
    Nobodys,
}

impl Guardian {
    /// For a capture with these settings. Starts nothing yet.
    pub(crate) fn for_capture(settings: &Settings, selected: &[Selected]) -> Arc<Guardian> {
        let polled = settings.polling.is_some();
        let names = selected.iter().filter(|_| polled).map(|one| one.device.name.clone());
        Guardian::of(names.collect(), settings.is_managed() || settings.service)
    }

    /// For what does not change settings of devices.
    pub(crate) fn for_filters() -> Arc<Guardian> {
        Guardian::of(Vec::new(), false)
    }

    fn of(devices: Vec<String>, socket: bool) -> Arc<Guardian> {
        let state = State { control: Control::NotStarted, duties: 0, confined: false };
        Arc::new(Guardian { devices, socket, state: Mutex::new(state) })
    }

    /// Starts the process where it is sure to be needed: before memory is shared with the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] where it cannot be started.
    pub(crate) fn prepare(&self) -> Result<()> {
        if self.devices.is_empty() && !self.socket { Ok(()) } else { self.running(&mut self.lock()) }
    }

    /// Has the guardian undo this, if it comes to that. The change itself is made after this.
    ///
    /// # Errors
    /// [`Error::Kernel`] where there is no guardian to be had.
    pub(crate) fn charge(self: &Arc<Self>, duty: &Duty, with: &[BorrowedFd<'_>]) -> Result<Charge> {
        let mut state = self.lock();
        self.running(&mut state)?;
        match state.ask(|control| wire::charge(control, duty, with)) {
            Some(_) => {
                let number = state.duties;
                state.duties += 1;
                Ok(Charge { guardian: Arc::clone(self), number })
            }
            None => Err(failed(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// From now on there are no more duties. `confined`: and the process is about to give up its rights.
    pub(crate) fn seal(&self, confined: bool) {
        let mut state = self.lock();
        state.confined = confined;
        state.ask(wire::seal);
    }

    fn running(&self, state: &mut State) -> Result<()> {
        if let Control::NotStarted = state.control {
            // That there is none is said by whoever wants to make a socket in it.
            let sockets = self.socket.then(control::folder).and_then(Result::ok);
            let rights = Rights::for_guardian(&self.devices, sockets.as_deref())?;
            let control = process::start(rights).map_err(failed)?;
            wire::limit(&control, LIMIT).map_err(failed)?;
            state.control = Control::Runs(control);
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Says something and waits for the answer. `None`: there is none to come.
    fn ask(&mut self, say: impl FnOnce(&OwnedFd) -> std::io::Result<()>) -> Option<Vec<Said>> {
        let Control::Runs(control) = &self.control else { return None };
        match say(control).and_then(|()| wire::answer(control)) {
            Ok(answer) => Some(answer),
            Err(_) => {
                // An answer that comes late would be taken for that to the next question. Closing the socket tells the
                // guardian, if there is one, to do all it has to do.
                self.control = Control::Lost;
                None
            }
        }
    }
}

impl Charge {
    /// Has it done now, and waits for that, within bounds.
    pub(crate) fn fulfil(&self) -> Fulfilled {
        let mut state = self.guardian.lock();
        match state.ask(|control| wire::fulfil(control, self.number)) {
            Some(said) => Fulfilled::Done(said),
            None if state.confined => Fulfilled::Nobodys,
            None => Fulfilled::Yours,
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Control::Runs(control) = &state.control {
            // It answers nothing: its end is the end of what can be read.
            wire::part(control);
        }
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::kernel("charging the process that undoes things at the end (wl-guardian)", source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::polling::Hold;

    /// A duty that has been done already: there is no journal.
    fn duty() -> Duty {
        let owner = serde_json::json!({"pid": 1, "start": 1, "polling": "threaded"});
        let identity = serde_json::json!({"device": "lo", "ifindex": 1, "namespace": 1, "boot": "b"});
        let hold = serde_json::json!({"identity": identity, "path": "/no/journal", "owner": owner});
        Duty::Polling(serde_json::from_value::<Hold>(hold).unwrap())
    }

    fn root(test: &str) -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            println!("left out: {test} (needs root)");
        }
        root
    }

    #[test]
    fn duties_are_fulfilled_in_any_order_and_once() {
        if !root("duties_are_fulfilled_in_any_order_and_once") {
            return;
        }
        let guardian = Guardian::for_filters();
        let charges = [guardian.charge(&duty(), &[]).unwrap(), guardian.charge(&duty(), &[]).unwrap()];
        guardian.seal(true);
        for charge in [&charges[1], &charges[0], &charges[0]] {
            let fulfilled = charge.fulfil();
            assert!(matches!(&fulfilled, Fulfilled::Done(said) if said.is_empty()), "{fulfilled:?}");
        }
    }

    /// What a process that was taken over could try.
    #[test]
    fn after_the_seal_nothing_new_is_taken() {
        if !root("after_the_seal_nothing_new_is_taken") {
            return;
        }
        let guardian = Guardian::for_filters();
        let charge = guardian.charge(&duty(), &[]).unwrap();
        guardian.seal(true);
        let refused = guardian.charge(&duty(), &[]).unwrap_err().to_string();
        assert!(refused.contains("wl-guardian"), "{refused}");
        // It has taken the process for dead, done everything, and gone.
        assert!(matches!(charge.fulfil(), Fulfilled::Nobodys));
    }

    #[test]
    fn a_duty_that_is_not_there_is_the_end() {
        if !root("a_duty_that_is_not_there_is_the_end") {
            return;
        }
        let guardian = Guardian::for_filters();
        let charge = guardian.charge(&duty(), &[]).unwrap();
        let another = Charge { guardian: Arc::clone(&guardian), number: 7 };
        assert!(matches!(another.fulfil(), Fulfilled::Yours));
        assert!(matches!(charge.fulfil(), Fulfilled::Yours));
    }

    /// The descriptors are part of the duty.
    #[test]
    fn a_duty_with_descriptors_that_are_not_its_own_is_refused() {
        use std::os::fd::AsFd as _;
        if !root("a_duty_with_descriptors_that_are_not_its_own_is_refused") {
            return;
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Guardian::for_filters().charge(&duty(), &[file.as_fd()]).is_err());
    }
}
