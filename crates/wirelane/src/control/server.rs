//! The capturing process's side of changing rules: a thread that serves whoever is connected, and sweeps precise rules
//! that have expired.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connections::{Connections, Thread};
use super::place::Listener;
use super::protocol::{Answer, Ask, LONGEST, Position, Status};
use crate::Result;
use crate::in_force::InForce;

/// How long after a page of precise rules the next one is swept.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);
/// How long after the last page it begins anew.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

/// What a capture says of itself, but for what the thread knows.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) engine: &'static str,
    /// The name of the process as the kernel has it, which cannot be read once rights are given up.
    pub(crate) command: String,
    pub(crate) devices: Vec<String>,
    pub(crate) exits: Vec<String>,
    pub(crate) plugins: Vec<String>,
    pub(crate) namespace: u64,
}

impl About {
    /// As it is told.
    pub(super) fn status(self) -> Status {
        Status {
            pid: std::process::id(),
            command: self.command,
            engine: self.engine.to_owned(),
            devices: self.devices,
            exits: self.exits,
            plugins: self.plugins,
            namespace: self.namespace,
        }
    }
}

/// The thread `wl-rules`; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    _thread: Thread,
}

impl Server {
    /// Starts it; without a `listener` it sweeps only.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub(crate) fn start(listener: Option<Listener>, in_force: Arc<InForce>, about: About) -> Result<Server> {
        let (status, connections) = (about.status(), Connections::new(listener, LONGEST));
        let thread = Thread::start("wl-rules", move |stop| serve(connections, &in_force, &status, stop))?;
        Ok(Server { _thread: thread })
    }
}

fn serve(mut connections: Connections, in_force: &InForce, status: &Status, stop: &OwnedFd) {
    let mut next_sweep = Instant::now() + BETWEEN_SWEEPS;
    loop {
        match connections.wait(stop, next_sweep.saturating_duration_since(Instant::now())) {
            Ok(false) => {}
            Ok(true) => return,
            Err(e) => {
                tracing::error!("waiting for changes of rules: {e}; none can be made any more");
                return;
            }
        }
        if Instant::now() >= next_sweep {
            let more = in_force.sweep().unwrap_or_else(|e| {
                tracing::warn!("removing precise rules that have expired: {e}");
                false
            });
            next_sweep = Instant::now() + if more { BETWEEN_PAGES } else { BETWEEN_SWEEPS };
        }
        connections.serve(|ask| answer(ask, in_force, status));
    }
}

/// Does what was asked.
fn answer(ask: Ask, in_force: &InForce, status: &Status) -> Answer {
    let done = match ask {
        Ask::Status => Ok(Answer::Status(status.clone())),
        Ask::Load(rules) => in_force.replace(&rules).map(Answer::Changed),
        Ask::Add { rules, precise } => in_force.extend(rules, precise).map(Answer::Changed),
        Ask::Remove { ids, precise } => in_force.remove(&ids, &precise).map(Answer::Changed),
        Ask::Flush { all } => in_force.flush(all).map(Answer::Changed),
        Ask::Stats => in_force.stats().map(|stats| Answer::Stats(Box::new(stats))),
        Ask::Precise { from } => in_force.precise((from.device, from.at)).map(|(rules, next)| {
            Answer::Precise { rules, next: next.map(|(device, at)| Position { device, at }) }
        }),
        Ask::Program(_) => return Answer::Refused("this socket is for the capture's rules".into()),
    };
    done.unwrap_or_else(|e| Answer::Refused(e.to_string()))
}
