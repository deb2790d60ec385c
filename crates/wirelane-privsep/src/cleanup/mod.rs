//! The cleanup process: a process that undoes what its owner has changed, however the owner ends.
//!
//! ```text
//!   the owner                              the cleanup process, forked while all rights are there
//!     register(action, descriptors) ---->    notes it; only now is the change made
//!     seal()                        ---->    takes no more actions
//!     (gives up all rights)
//!     run(action)                   ---->    undoes it
//!                                   <----    and says what came of it
//!     drop                          ---->    undoes what is left, and ends
//!     killed                        --X      undoes everything, and ends
//! ```
//! There is none where nothing is changed that outlives a process: it is forked for the first action, or, where one is
//! sure to come, before memory is shared with the kernel, which a forked process would hold. `forked/` says what it
//! keeps of its owner.
//!
//! An attacker who takes the owner over can talk to the cleanup process. So actions are registered before the first
//! packet is looked at, and after the seal the only request is "undo this now", of the owner's own changes. Any other
//! message is a protocol violation; the owner is then treated as dead.
//!
//! A cleanup process that is killed leaves what its owner has changed. Whoever defines an action sees to it that the
//! next start can put that right.

mod action;
mod process;
mod wire;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

pub use action::{ActionKind, CleanupAction, LogLine};

use crate::forked::Rights;
use crate::{Error, Result};

/// How long the cleanup process is waited for: a lock's patience, and a driver that sets its queues up anew.
const LIMIT: Duration = Duration::from_secs(8);

/// A process's cleanup process, the owner's side.
pub struct CleanupProcess {
    kinds: &'static [ActionKind],
    /// There is sure to be an action.
    expected: bool,
    rights: Box<dyn Fn() -> Result<Rights> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    control: Control,
    actions: u32,
    /// The owner has given its rights up.
    confined: bool,
}

#[derive(Debug)]
enum Control {
    /// There was no action yet.
    NotStarted,
    Runs(OwnedFd),
    /// It has been killed, or does not answer.
    Lost,
}

/// An action that is registered.
#[derive(Debug)]
pub struct Registration {
    process: Arc<CleanupProcess>,
    number: u32,
}

/// The outcome of [`Registration::run`].
#[derive(Debug)]
pub enum Outcome {
    /// The cleanup process has done it, as far as it goes.
    Done(Vec<LogLine>),
    /// There is no cleanup process any more: the caller has to do it. It still has its rights.
    Unserved,
    /// There is no cleanup process any more, and the caller has no right to do it.
    Impossible,
}

impl CleanupProcess {
    /// For actions of these kinds, with these rights. Starts nothing yet. `expected`: there is sure to be an action.
    pub fn new(
        kinds: &'static [ActionKind],
        expected: bool,
        rights: impl Fn() -> Result<Rights> + Send + Sync + 'static,
    ) -> Arc<CleanupProcess> {
        let state = State { control: Control::NotStarted, actions: 0, confined: false };
        Arc::new(CleanupProcess { kinds, expected, rights: Box::new(rights), state: Mutex::new(state) })
    }

    /// Starts the process where an action is expected. To be called before memory is shared with the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] where it cannot be started.
    pub fn prepare(&self) -> Result<()> {
        if self.expected { self.running(&mut self.lock()) } else { Ok(()) }
    }

    /// Has the cleanup process undo this, if it comes to that. The change itself is made after this. At most 4 descriptors.
    ///
    /// # Errors
    /// [`Error::Kernel`] where there is no cleanup process to be had, or where the kind is not one of its own.
    pub fn register(
        self: &Arc<Self>,
        kind: &ActionKind,
        action: &impl Serialize,
        with: &[BorrowedFd<'_>],
    ) -> Result<Registration> {
        let known = self.kinds.iter().position(|known| known.name == kind.name);
        let Some(kind) = known.and_then(|at| u8::try_from(at).ok()) else {
            return Err(failed(std::io::ErrorKind::Unsupported.into()));
        };
        let mut state = self.lock();
        self.running(&mut state)?;
        match state.ask(|control| wire::register(control, kind, action, with)) {
            Some(_) => {
                let number = state.actions;
                state.actions += 1;
                Ok(Registration { process: Arc::clone(self), number })
            }
            None => Err(failed(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// From now on there are no more actions. `confined`: and the owner is about to give up its rights.
    pub fn seal(&self, confined: bool) {
        let mut state = self.lock();
        state.confined = confined;
        state.ask(wire::seal);
    }

    fn running(&self, state: &mut State) -> Result<()> {
        if let Control::NotStarted = state.control {
            let control = process::start(self.kinds, (self.rights)()?).map_err(failed)?;
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
    fn ask(&mut self, say: impl FnOnce(&OwnedFd) -> std::io::Result<()>) -> Option<Vec<LogLine>> {
        let Control::Runs(control) = &self.control else { return None };
        match say(control).and_then(|()| wire::answer(control)) {
            Ok(answer) => Some(answer),
            Err(_) => {
                // An answer that comes late would be taken for that to the next question. Closing the socket tells the
                // cleanup process, if there is one, to do all it has to do.
                self.control = Control::Lost;
                None
            }
        }
    }
}

impl Registration {
    /// Has it done now, and waits for that, within bounds.
    pub fn run(&self) -> Outcome {
        let mut state = self.process.lock();
        match state.ask(|control| wire::run(control, self.number)) {
            Some(said) => Outcome::Done(said),
            None if state.confined => Outcome::Impossible,
            None => Outcome::Unserved,
        }
    }
}

impl Drop for CleanupProcess {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Control::Runs(control) = &state.control {
            // It answers nothing: its end is the end of what can be read.
            wire::part(control);
        }
    }
}

impl std::fmt::Debug for CleanupProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name).collect();
        f.debug_struct("CleanupProcess").field("kinds", &kinds).field("state", &self.state).finish()
    }
}

fn failed(source: std::io::Error) -> Error {
    Error::kernel("registering an action with the cleanup process (wl-cleanup)", source)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An action that says its number, and takes no descriptors.
    struct Say(u32);

    impl CleanupAction for Say {
        fn attempt(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
            (true, vec![LogLine::Info(format!("{} {}", self.0, prepared.is_some()))])
        }
    }

    const SAY: ActionKind = ActionKind {
        name: "say",
        prepare: || Ok(Some(std::fs::File::open("/dev/null")?.into())),
        read: |action, descriptors| {
            let number = serde_json::from_slice(action).ok()?;
            descriptors.is_empty().then(|| Box::new(Say(number)) as Box<dyn CleanupAction>)
        },
    };
    const OTHER: ActionKind = ActionKind { name: "other", prepare: ActionKind::nothing, read: |_, _| None };

    fn process() -> Arc<CleanupProcess> {
        CleanupProcess::new(&[SAY], false, || Rights::new(&[], &[]))
    }

    fn root(test: &str) -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            println!("left out: {test} (needs root)");
        }
        root
    }

    #[test]
    fn actions_run_in_any_order_and_once() {
        if !root("actions_run_in_any_order_and_once") {
            return;
        }
        let process = process();
        let actions = [process.register(&SAY, &0, &[]).unwrap(), process.register(&SAY, &1, &[]).unwrap()];
        process.seal(true);
        for (action, said) in
            [(&actions[1], Some("1 true")), (&actions[0], Some("0 true")), (&actions[0], None)]
        {
            let Outcome::Done(lines) = action.run() else { panic!("it is gone") };
            let expected: Vec<_> = said.iter().map(|text| LogLine::Info((*text).to_owned())).collect();
            assert_eq!(lines, expected);
        }
    }

    /// What a process that was taken over could try.
    #[test]
    fn after_the_seal_no_action_is_accepted() {
        if !root("after_the_seal_no_action_is_accepted") {
            return;
        }
        let process = process();
        let action = process.register(&SAY, &0, &[]).unwrap();
        process.seal(true);
        let refused = process.register(&SAY, &0, &[]).unwrap_err().to_string();
        assert!(refused.contains("wl-cleanup"), "{refused}");
        // It has taken the owner for dead, done everything, and gone.
        assert!(matches!(action.run(), Outcome::Impossible));
    }

    #[test]
    fn an_action_that_is_not_registered_ends_the_process() {
        if !root("an_action_that_is_not_registered_ends_the_process") {
            return;
        }
        let process = process();
        let action = process.register(&SAY, &0, &[]).unwrap();
        let another = Registration { process: Arc::clone(&process), number: 7 };
        assert!(matches!(another.run(), Outcome::Unserved));
        assert!(matches!(action.run(), Outcome::Unserved));
    }

    /// Kind, content and descriptors belong together.
    #[test]
    fn an_action_that_cannot_be_read_is_refused() {
        use std::os::fd::AsFd as _;
        if !root("an_action_that_cannot_be_read_is_refused") {
            return;
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(process().register(&SAY, &0, &[file.as_fd()]).is_err());
        assert!(process().register(&SAY, &"no number", &[]).is_err());
        assert!(process().register(&OTHER, &0, &[]).is_err());
    }
}
