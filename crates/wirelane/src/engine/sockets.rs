//! Common part of the socket engines `packet` and `xsk`.

use std::fmt;
use std::sync::Arc;

use crate::active_rules::NativeRules;
use crate::engine::Source;
use crate::engine::ring::source::Shared;
use crate::error::Result;
use crate::hook::HookPoint;
use crate::tally::DeviceTally;
use wirelane_filter::Filter;
use wirelane_netdev::Selected;

/// The open sockets of a capture.
pub(crate) struct Started {
    /// `packet` or `xsk`.
    pub(crate) engine: &'static str,
    pub(crate) parts: Vec<Opened>,
    /// The workers' sources, each with the state that it shares with the capture.
    pub(crate) sources: Vec<(Box<dyn Source>, Arc<Shared>)>,
    /// Whether records carry UTC.
    pub(crate) stamps_utc: bool,
}

/// One device of a socket capture, in one direction.
pub(crate) trait Part: Send + Sync + fmt::Debug {
    /// The hook at which packets are taken.
    fn hook(&self) -> HookPoint;
    /// The captured RX queues; queue 0 for transmitted packets.
    fn queues(&self) -> &[u32];
    /// Whether the driver writes directly to our memory.
    fn zero_copy(&self) -> Option<bool>;
    /// Accepts packets, from the next one on.
    fn accept(&self) -> Result<()>;
    /// Refuses packets, from the next one on. A packet that is just being accepted may still be delivered.
    fn refuse(&self) -> Result<()>;
    /// Evaluates by this filter; `None` accepts everything.
    fn set_filter(&self, filter: Option<Filter>) -> Result<()>;
    /// As `MonitoredDevice::attached_to`.
    fn attached_to(&self) -> Result<Option<u32>>;
    /// As `MonitoredDevice::known_queues`.
    fn known_queues(&self) -> usize;
    /// The sockets' counts. `closed`: packets were refused and a fence passed, so the counts are final.
    fn account(&self, closed: bool) -> Result<Account>;
}

/// Counts of a part's sockets since it began.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// A line per socket.
    pub(crate) lines: Vec<SocketLine>,
    /// Lost packets by cause.
    pub(crate) causes: Vec<(&'static str, u64)>,
}

/// Counts of one socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketLine {
    pub(crate) queue: u32,
    pub(crate) worker: usize,
    pub(crate) seen: u64,
    /// Packets that the kernel side refused. Packets that a worker refuses or absorbs are counted by the worker, and
    /// are `delivered` here.
    pub(crate) filtered: u64,
    pub(crate) lost: u64,
    pub(crate) delivered: u64,
}

/// A part with its counters and rules.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) selected: Selected,
    pub(crate) part: Arc<dyn Part>,
    /// Counters of each worker for the part.
    pub(crate) tallies: Vec<Arc<DeviceTally>>,
    /// The part's rules; `None`: no rules.
    pub(crate) rules: Option<Arc<NativeRules>>,
}
