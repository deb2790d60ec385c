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
//! A process that changes nothing persistent has no cleanup process: it is forked for the first action or, if an action
//! is expected, before memory is shared with the kernel, which a forked process would hold. `forked/` documents which
//! resources it keeps of its owner.
//!
//! An attacker who takes over the owner can talk to the cleanup process. So actions are registered before the first
//! packet is processed, and after the seal the only request is "undo this now", for the owner's own changes. Any other
//! message is a protocol violation; the owner is then treated as dead.
//!
//! If the cleanup process itself is killed, the changes of its owner persist. The author of an action must make sure
//! that the next start can undo them.

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

/// Timeout of an answer: covers the wait for a lock and a driver that reinitializes its queues.
const LIMIT: Duration = Duration::from_secs(8);

/// The owner's handle of its cleanup process.
pub struct CleanupProcess {
    kinds: &'static [ActionKind],
    /// An action is expected.
    expected: bool,
    rights: Box<dyn Fn() -> Result<Rights> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    control: Control,
    actions: u32,
    /// The owner gives up its rights.
    confined: bool,
}

#[derive(Debug)]
enum Control {
    /// No action has been registered yet.
    NotStarted,
    Runs(OwnedFd),
    /// The process was killed, or does not answer.
    Lost,
}

/// A registered action.
#[derive(Debug)]
pub struct Registration {
    process: Arc<CleanupProcess>,
    number: u32,
}

/// The outcome of [`Registration::run`].
#[derive(Debug)]
pub enum Outcome {
    /// The cleanup process has run the action, as far as possible.
    Done(Vec<LogLine>),
    /// The cleanup process no longer exists: the caller has to undo the change itself, and still has the rights for it.
    Unserved,
    /// The cleanup process no longer exists, and the caller has no right to undo the change.
    Impossible,
}

impl CleanupProcess {
    /// Creates a handle for actions of these kinds, with these rights. Starts nothing yet. `expected`: an action is
    /// expected.
    pub fn new(
        kinds: &'static [ActionKind],
        expected: bool,
        rights: impl Fn() -> Result<Rights> + Send + Sync + 'static,
    ) -> Arc<CleanupProcess> {
        let state = State { control: Control::NotStarted, actions: 0, confined: false };
        Arc::new(CleanupProcess { kinds, expected, rights: Box::new(rights), state: Mutex::new(state) })
    }

    /// Starts the process if an action is expected. To be called before memory is shared with the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] where it cannot be started.
    pub fn prepare(&self) -> Result<()> {
        if self.expected { self.running(&mut self.lock()) } else { Ok(()) }
    }

    /// Registers an action that the cleanup process runs if the owner does not. The caller makes the change after this
    /// call. At most 4 descriptors.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no cleanup process and none can be started, or if it does not know the kind.
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

    /// Rejects all further actions. `confined`: the owner is about to give up its rights.
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
    /// Sends a request and waits for the answer. `None`: there will not be an answer.
    fn ask(&mut self, say: impl FnOnce(&OwnedFd) -> std::io::Result<()>) -> Option<Vec<LogLine>> {
        let Control::Runs(control) = &self.control else { return None };
        match say(control).and_then(|()| wire::answer(control)) {
            Ok(answer) => Some(answer),
            Err(_) => {
                // A late answer would be taken for the answer to the next request. Closing the socket makes the cleanup
                // process, if it still runs, undo everything that is left.
                self.control = Control::Lost;
                None
            }
        }
    }
}

impl Registration {
    /// Runs the action now and waits for its end, for a limited time.
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
            // This message has no answer: the end of the process closes the stream.
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

    /// An action that logs its number and takes no descriptors.
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

    /// Requests that an attacker in the owner could try.
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
        // The cleanup process has treated the owner as dead, run all actions and ended.
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

    /// Kind, content and descriptors must match.
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
