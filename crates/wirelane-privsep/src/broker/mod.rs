//! The broker: one process beside the owner that keeps the rights that the owner gives up, for a list of tasks.
//!
//! ```text
//!   the owner                              the broker, forked while all rights are there
//!     register(task, descriptors)   ---->    notes it; only now is the change made
//!     register_service(task)        ---->    the same, with a channel for requests
//!     seal()                        ---->    takes no more tasks, drops capabilities that none of them needs
//!     (gives up all rights)
//!     channel.send(request)         ---->    checks it against what was registered, and serves it
//!     undo(task)                    ---->    undoes its change
//!                                   <----    and says what came of it
//!     drop                          ---->    undoes what is left, and ends
//!     killed                        --X      undoes everything, and ends
//! ```
//! A process that changes nothing persistent and needs no rights later has no broker: it is forked for the first task
//! or, if a task is expected, before memory is shared with the kernel, which a forked process would hold. `forked/`
//! documents which resources it keeps of its owner.
//!
//! An attacker who takes over the owner can talk to the broker. So tasks are registered before the first packet is
//! processed, and after the seal the only requests are "undo this now", for the owner's own changes, and those that a
//! registered task serves. Any other message is a protocol violation; the owner is then treated as dead.
//!
//! The broker has one thread, so a task must not wait for anything slow.
//!
//! If the broker itself is killed, the changes of its owner persist. The author of a task must make sure that the next
//! start can undo them.

mod process;
mod task;
mod wire;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use task::{Kind, LogLine, Reply, Task};

use crate::forked::Rights;
use crate::{Error, Result};

/// Timeout of an answer: covers the wait for a lock and a driver that reinitializes its queues.
const LIMIT: Duration = Duration::from_secs(8);

/// The owner's handle of its broker.
pub struct Broker {
    kinds: &'static [Kind],
    /// A task is expected.
    expected: bool,
    rights: Box<dyn Fn() -> Result<Rights> + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    control: Control,
    tasks: u32,
    /// The owner gives up its rights.
    confined: bool,
}

#[derive(Debug)]
enum Control {
    /// No task has been registered yet.
    NotStarted,
    Runs(OwnedFd),
    /// The process was killed, or does not answer.
    Lost,
}

/// A registered task.
#[derive(Debug)]
pub struct Registration {
    broker: Arc<Broker>,
    number: u32,
}

/// The channel to a registered task that serves requests, one at a time.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// The outcome of [`Registration::undo`].
#[derive(Debug)]
pub enum Outcome {
    /// The broker has undone the change, as far as possible.
    Done(Vec<LogLine>),
    /// The broker no longer exists: the caller has to undo the change itself, and still has the rights for it.
    Unserved,
    /// The broker no longer exists, and the caller has no right to undo the change.
    Impossible,
}

impl Broker {
    /// Creates a handle for tasks of these kinds, with these rights. Starts nothing yet. `expected`: a task is
    /// expected.
    pub fn new(
        kinds: &'static [Kind],
        expected: bool,
        rights: impl Fn() -> Result<Rights> + Send + Sync + 'static,
    ) -> Arc<Broker> {
        let state = State { control: Control::NotStarted, tasks: 0, confined: false };
        Arc::new(Broker { kinds, expected, rights: Box::new(rights), state: Mutex::new(state) })
    }

    /// Starts the process if a task is expected. To be called before memory is shared with the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] where it cannot be started.
    pub fn prepare(&self) -> Result<()> {
        if self.expected { self.running(&mut self.lock()) } else { Ok(()) }
    }

    /// Registers a task whose change the broker undoes if the owner does not. The caller makes the change after this
    /// call. At most 4 descriptors.
    ///
    /// # Errors
    /// [`Error::Kernel`] if there is no broker and none can be started, or if it does not know the kind.
    pub fn register(
        self: &Arc<Self>,
        kind: &Kind,
        task: &impl Serialize,
        with: &[BorrowedFd<'_>],
    ) -> Result<Registration> {
        self.register_with(kind, task, with, None)
    }

    /// Registers a task that serves requests, each of which it answers within `limit`. The registration keeps the
    /// broker alive. At most 3 descriptors.
    ///
    /// # Errors
    /// As [`Broker::register`].
    pub fn register_service(
        self: &Arc<Self>,
        kind: &Kind,
        task: &impl Serialize,
        with: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Registration, Channel)> {
        let (ours, its) = wire::pair().map_err(failed)?;
        wire::limit(&ours, limit).map_err(failed)?;
        Ok((self.register_with(kind, task, with, Some(&its))?, Channel(ours)))
    }

    fn register_with(
        self: &Arc<Self>,
        kind: &Kind,
        task: &impl Serialize,
        with: &[BorrowedFd<'_>],
        channel: Option<&OwnedFd>,
    ) -> Result<Registration> {
        let known = self.kinds.iter().position(|known| known.name == kind.name);
        let Some(kind) = known.and_then(|at| u8::try_from(at).ok()) else {
            return Err(failed(io::ErrorKind::Unsupported.into()));
        };
        let mut state = self.lock();
        self.running(&mut state)?;
        match state.ask(|control| wire::register(control, kind, task, with, channel)) {
            Some(_) => {
                let number = state.tasks;
                state.tasks += 1;
                Ok(Registration { broker: Arc::clone(self), number })
            }
            None => Err(failed(io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// Rejects all further tasks. `confined`: the owner is about to give up its rights.
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
    /// Sends a message and waits for the answer. `None`: there will not be an answer.
    fn ask(&mut self, say: impl FnOnce(&OwnedFd) -> io::Result<()>) -> Option<Vec<LogLine>> {
        let Control::Runs(control) = &self.control else { return None };
        match say(control).and_then(|()| wire::answer(control)) {
            Ok(answer) => Some(answer),
            Err(_) => {
                // A late answer would be taken for the answer to the next message. Closing the socket makes the
                // broker, if it still runs, undo everything that is left.
                self.control = Control::Lost;
                None
            }
        }
    }
}

impl Registration {
    /// Undoes the change now and waits for its end, for a limited time.
    pub fn undo(&self) -> Outcome {
        let mut state = self.broker.lock();
        match state.ask(|control| wire::undo(control, self.number)) {
            Some(said) => Outcome::Done(said),
            None if state.confined => Outcome::Impossible,
            None => Outcome::Unserved,
        }
    }
}

impl Channel {
    /// Sends a request, as JSON, without waiting. Until its answer has been received no other may be sent.
    ///
    /// # Errors
    /// If the broker has ended.
    pub fn send(&self, request: &impl Serialize) -> io::Result<()> {
        wire::send(&self.0, &serde_json::to_vec(request)?, &[])
    }

    /// Waits for the answer, with the descriptor that came with it.
    ///
    /// # Errors
    /// If the broker has ended, or does not answer in time.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Option<OwnedFd>)> {
        read_answer(wire::receive(&self.0)?)
    }

    /// The answer, if it has arrived.
    ///
    /// # Errors
    /// If the broker has ended.
    pub fn received<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        match wire::receive_now(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => Ok(Some(read_answer(received?)?.0)),
        }
    }
}

fn read_answer<T: DeserializeOwned>(
    (bytes, descriptors): (Vec<u8>, Vec<OwnedFd>),
) -> io::Result<(T, Option<OwnedFd>)> {
    if bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((serde_json::from_slice(&bytes)?, descriptors.into_iter().next()))
}

impl Drop for Broker {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Control::Runs(control) = &state.control {
            // This message has no answer: the end of the process closes the stream.
            wire::part(control);
        }
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.name).collect();
        f.debug_struct("Broker").field("kinds", &kinds).field("state", &self.state).finish()
    }
}

fn failed(source: io::Error) -> Error {
    Error::kernel("registering a task with the broker (wl-broker)", source)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::Capability;

    /// A task that logs its number, and adds it to numbers below 100. Takes no descriptors.
    struct Add(u32);

    impl Task for Add {
        fn undo(&mut self, prepared: Option<BorrowedFd<'_>>) -> (bool, Vec<LogLine>) {
            (true, vec![LogLine::Info(format!("{} {}", self.0, prepared.is_some()))])
        }

        fn serve(&mut self, request: &[u8]) -> Option<Reply> {
            let number: u32 = serde_json::from_slice(request).ok().filter(|number| *number < 100)?;
            Reply::new(&(self.0 + number), File::open("/proc/self/status").ok().map(OwnedFd::from))
        }
    }

    const ADD: Kind = Kind {
        name: "add",
        capabilities: &[Capability::NetRaw],
        prepare: || Ok(Some(File::open("/dev/null")?.into())),
        read: |task, descriptors| {
            let number = serde_json::from_slice(task).ok()?;
            descriptors.is_empty().then(|| Box::new(Add(number)) as Box<dyn Task>)
        },
    };
    const OTHER: Kind = Kind { name: "other", capabilities: &[], prepare: Kind::nothing, read: |_, _| None };
    const SOON: Duration = Duration::from_secs(5);

    fn broker() -> Arc<Broker> {
        let proc = || vec![("/proc".into(), crate::forked::Access::Read)];
        let rights = move || Rights::new(&[Capability::NetRaw, Capability::NetAdmin], &proc());
        Broker::new(&[ADD], false, rights)
    }

    fn root(test: &str) -> bool {
        let root = nix::unistd::geteuid().is_root();
        if !root {
            println!("left out: {test} (needs root)");
        }
        root
    }

    #[test]
    fn changes_are_undone_in_any_order_and_once() {
        if !root("changes_are_undone_in_any_order_and_once") {
            return;
        }
        let broker = broker();
        let tasks = [broker.register(&ADD, &0, &[]).unwrap(), broker.register(&ADD, &1, &[]).unwrap()];
        broker.seal(true);
        for (task, said) in [(&tasks[1], Some("1 true")), (&tasks[0], Some("0 true")), (&tasks[0], None)] {
            let Outcome::Done(lines) = task.undo() else { panic!("it is gone") };
            let expected: Vec<_> = said.iter().map(|text| LogLine::Info((*text).to_owned())).collect();
            assert_eq!(lines, expected);
        }
    }

    /// Two tasks serve requests beside each other, before and after the seal.
    #[test]
    fn requests_are_served_by_the_task_of_their_channel() {
        if !root("requests_are_served_by_the_task_of_their_channel") {
            return;
        }
        let broker = broker();
        let (first, one) = broker.register_service(&ADD, &1, &[], SOON).unwrap();
        let (_second, ten) = broker.register_service(&ADD, &10, &[], SOON).unwrap();
        for _ in 0..2 {
            one.send(&5).unwrap();
            ten.send(&5).unwrap();
            assert_eq!(ten.receive::<u32>().unwrap().0, 15);
            assert_eq!(one.receive::<u32>().unwrap().0, 6);
            assert_eq!(one.received::<u32>().unwrap(), None);
            broker.seal(true);
        }
        // A channel ends with its task, and others go on.
        assert!(matches!(first.undo(), Outcome::Done(said) if said == [LogLine::Info("1 true".into())]));
        assert!(one.send(&5).and_then(|()| one.receive::<u32>()).is_err());
        ten.send(&6).unwrap();
        assert_eq!(ten.receive::<u32>().unwrap().0, 16);
    }

    /// The owner closes a channel, and the broker goes on.
    #[test]
    fn a_closed_channel_is_forgotten() {
        if !root("a_closed_channel_is_forgotten") {
            return;
        }
        let broker = broker();
        let (first, one) = broker.register_service(&ADD, &1, &[], SOON).unwrap();
        let (_second, ten) = broker.register_service(&ADD, &10, &[], SOON).unwrap();
        one.send(&5).unwrap();
        drop(one);
        ten.send(&5).unwrap();
        assert_eq!(ten.receive::<u32>().unwrap().0, 15);
        assert!(matches!(first.undo(), Outcome::Done(_)));
    }

    /// The capabilities of the broker, as it reports them itself.
    #[test]
    fn the_seal_drops_capabilities_that_no_task_needs() {
        use std::io::Read as _;
        if !root("the_seal_drops_capabilities_that_no_task_needs") {
            return;
        }
        let broker = broker();
        let (_task, channel) = broker.register_service(&ADD, &1, &[], SOON).unwrap();
        let capabilities = || {
            channel.send(&5).unwrap();
            let mut text = String::new();
            File::from(channel.receive::<u32>().unwrap().1.unwrap()).read_to_string(&mut text).unwrap();
            let line =
                |name| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
            [line("CapEff:"), line("CapPrm:")]
        };
        // CAP_NET_ADMIN and CAP_NET_RAW: bits 12 and 13 of linux/capability.h.
        assert_eq!(capabilities(), ["0000000000003000"; 2]);
        broker.seal(true);
        assert_eq!(capabilities(), ["0000000000002000"; 2]);
    }

    /// Requests that an attacker in the owner could try.
    #[test]
    fn after_the_seal_no_task_is_accepted() {
        if !root("after_the_seal_no_task_is_accepted") {
            return;
        }
        let broker = broker();
        let task = broker.register(&ADD, &0, &[]).unwrap();
        broker.seal(true);
        let refused = broker.register(&ADD, &0, &[]).unwrap_err().to_string();
        assert!(refused.contains("wl-broker"), "{refused}");
        // The broker has treated the owner as dead, undone all changes and ended.
        assert!(matches!(task.undo(), Outcome::Impossible));
    }

    #[test]
    fn a_message_that_violates_the_protocol_ends_the_process() {
        if !root("a_message_that_violates_the_protocol_ends_the_process") {
            return;
        }
        let first = broker();
        let task = first.register(&ADD, &0, &[]).unwrap();
        let another = Registration { broker: Arc::clone(&first), number: 7 };
        assert!(matches!(another.undo(), Outcome::Unserved));
        assert!(matches!(task.undo(), Outcome::Unserved));
        // A request that the task does not accept.
        let second = broker();
        let (task, channel) = second.register_service(&ADD, &1, &[], SOON).unwrap();
        channel.send(&100).unwrap();
        assert!(channel.receive::<u32>().is_err());
        assert!(matches!(task.undo(), Outcome::Unserved));
    }

    /// Kind, content and descriptors must match.
    #[test]
    fn a_task_that_cannot_be_read_is_refused() {
        if !root("a_task_that_cannot_be_read_is_refused") {
            return;
        }
        let file = File::open("/dev/null").unwrap();
        assert!(broker().register(&ADD, &0, &[file.as_fd()]).is_err());
        assert!(broker().register(&ADD, &"no number", &[]).is_err());
        assert!(broker().register(&OTHER, &0, &[]).is_err());
    }
}
