//! The capturing process's side of changing rules: a thread that serves whoever is connected, and sweeps exact-match rules
//! that have expired.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

use super::connections::{Connections, Thread};
use super::place::Listener;
use super::protocol::{Answer, Ask, LONGEST, Position, Status};
use crate::Result;

/// How long after a page of exact-match rules the next one is swept.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);
/// How long after the last page it begins anew.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

/// The rules of a running capture, as the control socket needs them. An error is a refusal, in words for who has asked.
pub trait Rules: Send + Sync + 'static {
    /// Puts these rules in the place of all that are in force.
    fn replace(&self, rules: &RuleSet) -> Answered<Changed>;
    /// Adds rules to those in force.
    fn extend(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Answered<Changed>;
    /// Removes rules by their ids, and exact ones by their fields.
    fn remove(&self, ids: &[u32], exact: &[ExactFields]) -> Answered<Changed>;
    /// Removes all exact-match rules, and with `all` the others too.
    fn flush(&self, all: bool) -> Answered<Changed>;
    /// What the rules have counted.
    fn stats(&self) -> Answered<RuleStats>;
    /// Some of the exact-match rules from a position on, and the position of the next ones.
    fn exact(&self, from: Cursor) -> Answered<(Vec<ExactLine>, Option<Cursor>)>;
    /// Removes some exact-match rules that have expired. True: there may be more.
    fn sweep(&self) -> Answered<bool>;
}

/// A position among the exact-match rules of a capture: the device, and where in its table.
pub type Cursor = (usize, Option<u32>);

/// The answer of [`Rules`], or why not.
pub type Answered<T> = std::result::Result<T, String>;

/// What a capture says of itself, but for what the thread knows.
#[derive(Clone, Debug)]
pub struct About {
    /// `ring`, `xsk` or `packet`.
    pub engine: &'static str,
    /// The name of the process as the kernel has it, which cannot be read once rights are given up.
    pub command: String,
    /// The devices that it captures on.
    pub devices: Vec<String>,
    /// The devices that its rules may send packets to.
    pub egress_devices: Vec<String>,
    /// The plug-ins that its rules may ask.
    pub plugins: Vec<String>,
    /// The cookie of its network namespace (SO_NETNS_COOKIE).
    pub namespace: u64,
}

impl About {
    /// As it is told.
    pub(super) fn status(self) -> Status {
        Status {
            pid: std::process::id(),
            command: self.command,
            engine: self.engine.to_owned(),
            devices: self.devices,
            egress_devices: self.egress_devices,
            plugins: self.plugins,
            namespace: self.namespace,
        }
    }
}

/// The thread `wl-rules`; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    _thread: Thread,
}

impl Server {
    /// Starts it; without a `listener` it sweeps only.
    ///
    /// # Errors
    /// [`crate::Error::Kernel`].
    pub fn start(listener: Option<Listener>, rules: Arc<dyn Rules>, about: About) -> Result<Server> {
        let (status, connections) = (about.status(), Connections::new(listener, LONGEST));
        let thread = Thread::start("wl-rules", move |stop| serve(connections, &*rules, &status, stop))?;
        Ok(Server { _thread: thread })
    }
}

fn serve(mut connections: Connections, rules: &dyn Rules, status: &Status, stop: &OwnedFd) {
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
            let more = rules.sweep().unwrap_or_else(|e| {
                tracing::warn!("removing exact-match rules that have expired: {e}");
                false
            });
            next_sweep = Instant::now() + if more { BETWEEN_PAGES } else { BETWEEN_SWEEPS };
        }
        connections.serve(|ask| answer(ask, rules, status));
    }
}

/// Does what was asked.
fn answer(ask: Ask, rules: &dyn Rules, status: &Status) -> Answer {
    let done = match ask {
        Ask::Status => Ok(Answer::Status(status.clone())),
        Ask::Load(set) => rules.replace(&set).map(Answer::Changed),
        Ask::Add { rules: more, exact } => rules.extend(more, exact).map(Answer::Changed),
        Ask::Remove { ids, exact } => rules.remove(&ids, &exact).map(Answer::Changed),
        Ask::Flush { all } => rules.flush(all).map(Answer::Changed),
        Ask::Stats => rules.stats().map(|stats| Answer::Stats(Box::new(stats))),
        Ask::ExactValue { from } => rules.exact((from.device, from.at)).map(|(rules, next)| {
            Answer::ExactValue { rules, next: next.map(|(device, at)| Position { device, at }) }
        }),
        Ask::Program(_) => return Answer::Refused("this socket is for the capture's rules".into()),
    };
    done.unwrap_or_else(Answer::Refused)
}
