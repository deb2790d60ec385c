//! Server side of rule changes in the capturing process: a thread that serves all connections, and removes expired
//! exact-match rules.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirelane_rules::{Changed, ExactFields, ExactLine, ExactRule, Rule, RuleSet, RuleStats};

use super::connections::{Connections, Thread};
use super::place::Listener;
use super::protocol::{Answer, Ask, LONGEST, Position, Status};
use crate::Result;

/// Pause between two pages of a sweep of the exact-match rules.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);
/// Pause between the last page of a sweep and the next sweep.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);

/// The rules of a running capture, as used by the control socket. An error is a refusal, worded for the client.
pub trait Rules: Send + Sync + 'static {
    /// Replaces all active rules by these rules.
    fn replace(&self, rules: &RuleSet) -> Answered<Changed>;
    /// Adds rules to the active rules.
    fn extend(&self, rules: Vec<Rule>, exact: Vec<ExactRule>) -> Answered<Changed>;
    /// Removes rules by their ids, and exact-match rules by their fields.
    fn remove(&self, ids: &[u32], exact: &[ExactFields]) -> Answered<Changed>;
    /// Removes all exact-match rules, and with `all` also the wildcard rules.
    fn flush(&self, all: bool) -> Answered<Changed>;
    /// The counters of the rules.
    fn stats(&self) -> Answered<RuleStats>;
    /// A page of exact-match rules from a position on, and the position of the next page.
    fn exact(&self, from: Cursor) -> Answered<(Vec<ExactLine>, Option<Cursor>)>;
    /// A page of a map of a plug-in, or of the steering program, from a position on, and the position of the next page.
    fn state(&self, program: &str, map: &str, from: Option<u32>) -> Answered<(Vec<Value>, Option<u32>)>;
    /// Removes a page of expired exact-match rules. Returns true if there may be more.
    fn sweep(&self) -> Answered<bool>;
}

/// A position in the exact-match rules of a capture: the index of the device, and the position in its table.
pub type Cursor = (usize, Option<u32>);

/// The answer of [`Rules`], or the reason for a refusal.
pub type Answered<T> = std::result::Result<T, String>;

/// Self-description of a capture, without the process id.
#[derive(Clone, Debug)]
pub struct About {
    /// `ring`, `xsk` or `packet`.
    pub engine: &'static str,
    /// Name of the process according to the kernel, which cannot be read after rights are dropped.
    pub command: String,
    /// Devices that it captures on.
    pub devices: Vec<String>,
    /// Devices that its rules may send packets to.
    pub egress_devices: Vec<String>,
    /// Plug-ins that its rules may use.
    pub plugins: Vec<String>,
    /// Maps of these and of its steering program.
    pub maps: Vec<(String, String)>,
    /// Cookie of the network namespace (SO_NETNS_COOKIE).
    pub namespace: u64,
}

impl About {
    /// The description as it is sent to clients.
    pub(super) fn status(self) -> Status {
        Status {
            pid: std::process::id(),
            command: self.command,
            engine: self.engine.to_owned(),
            devices: self.devices,
            egress_devices: self.egress_devices,
            plugins: self.plugins,
            maps: self.maps,
            namespace: self.namespace,
        }
    }
}

/// The thread `wl-rules`; it ends when this value is dropped.
#[derive(Debug)]
pub struct Server {
    _thread: Thread,
}

impl Server {
    /// Starts the thread; without a `listener` it only removes expired rules.
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

/// Executes a request.
fn answer(ask: Ask, rules: &dyn Rules, status: &Status) -> Answer {
    let done = match ask {
        Ask::Status => Ok(Answer::Status(status.clone())),
        Ask::Load(set) => rules.replace(&set).map(Answer::Changed),
        Ask::Add { rules: more, exact } => rules.extend(more, exact).map(Answer::Changed),
        Ask::Remove { ids, exact } => rules.remove(&ids, &exact).map(Answer::Changed),
        Ask::Flush { all } => rules.flush(all).map(Answer::Changed),
        Ask::Stats => rules.stats().map(|stats| Answer::Stats(Box::new(stats))),
        Ask::Exact { from } => rules.exact((from.device, from.at)).map(|(rules, next)| Answer::Exact {
            rules,
            next: next.map(|(device, at)| Position { device, at }),
        }),
        Ask::State { program, map, from } => {
            rules.state(&program, &map, from).map(|(entries, next)| Answer::State { entries, next })
        }
        Ask::Program(_) => return Answer::Refused("this socket is for the capture's rules".into()),
    };
    done.unwrap_or_else(Answer::Refused)
}
