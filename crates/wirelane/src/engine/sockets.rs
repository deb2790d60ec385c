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
    /// The workers' ends.
    pub(crate) sources: Vec<(Box<dyn Source>, Arc<Shared>)>,
    /// Records carry UTC.
    pub(crate) stamps_utc: bool,
}

/// One device of such a capture, in one direction.
pub(crate) trait Part: Send + Sync + fmt::Debug {
    /// Where its packets are taken.
    fn hook(&self) -> HookPoint;
    /// The RX queues that are captured; queue 0 for packets on their way out.
    fn queues(&self) -> &[u32];
    /// Whether the driver writes to our memory itself.
    fn zero_copy(&self) -> Option<bool>;
    /// From the next packet on, packets are accepted.
    fn accept(&self) -> Result<()>;
    /// From the next packet on, nothing is accepted. What is being accepted just now may still be.
    fn refuse(&self) -> Result<()>;
    /// Evaluates by this filter; `None` accepts everything.
    fn set_filter(&self, filter: Option<Filter>) -> Result<()>;
    /// As `MonitoredDevice::attached_to`.
    fn attached_to(&self) -> Result<Option<u32>>;
    /// Whether a number of RX queues that grows brings packets that are not asked for.
    fn known_queues(&self) -> usize;
    /// What the sockets say. `closed`: packets were refused and a fence passed, so it is final.
    fn account(&self, closed: bool) -> Result<Account>;
}

/// What the sockets of a part have counted since it began.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// A line per socket.
    pub(crate) lines: Vec<SocketLine>,
    /// Lost packets by cause.
    pub(crate) causes: Vec<(&'static str, u64)>,
}

/// What one socket has counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketLine {
    pub(crate) queue: u32,
    pub(crate) worker: usize,
    pub(crate) seen: u64,
    /// Refused by the kernel's side. What a worker refuses or absorbs it counts itself, and here it is delivered.
    pub(crate) filtered: u64,
    pub(crate) lost: u64,
    pub(crate) delivered: u64,
}

/// A part with what is kept for it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) selected: Selected,
    pub(crate) part: Arc<dyn Part>,
    /// What each worker has analysed of it.
    pub(crate) tallies: Vec<Arc<DeviceTally>>,
    /// Its rules, where there are any.
    pub(crate) rules: Option<Arc<NativeRules>>,
}
