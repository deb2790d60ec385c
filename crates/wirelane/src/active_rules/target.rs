//! Place of evaluation of rules: one [`Target`] per device and direction of a capture.

use std::fmt;

use wirelane_bpf::rules::{Counts, ExactKey, ExactValue};

use super::capacity::RulesCapacity;
use super::pending::PendingRuleset;
use wirelane_rules::PluginLine;

use crate::error::Result;
use wirelane_rules::plugins::Placed;

/// The rules of one device, wherever they are evaluated. Whoever changes them holds the lock of the capture's rules, so
/// that there is one such at a time; packets are evaluated meanwhile.
pub(crate) trait Target: Send + Sync + fmt::Debug {
    /// Name of the device, for conditions on it.
    fn device(&self) -> &str;
    /// The devices that rules may send packets to, in the order of their numbers.
    fn egress_devices(&self) -> &[String] {
        &[]
    }
    /// The plug-ins that rules may ask, where they are on this device.
    fn plugins(&self) -> &[Placed] {
        &[]
    }
    /// What these have done, in the same order.
    fn plugin_lines(&self) -> Vec<PluginLine> {
        Vec::new()
    }
    /// What is set aside for rules.
    fn room(&self) -> RulesCapacity;
    /// Compiles a set and writes it beside the one in use.
    ///
    /// # Errors
    /// Where there is no room for it, or the kernel refuses.
    fn prepare(&self, draft: &PendingRuleset) -> Result<()>;
    /// Packets are evaluated by the prepared set, from the next one on.
    fn switch(&self);
    /// Waits until no packet is evaluated by the set before.
    ///
    /// # Errors
    /// What the kernel said. The next [`Target::prepare`] waits first then.
    fn settle(&self) -> Result<()>;
    /// What was counted in a slot.
    fn counts(&self, slot: usize) -> Counts;
    /// Sets the counts of a slot to 0, which no packet is counted in.
    fn clear(&self, slot: usize);
    /// Adds an exact-match rule.
    ///
    /// # Errors
    /// What the kernel said.
    fn put(&self, key: &ExactKey, rule: &ExactValue) -> Result<InsertOutcome>;
    /// Removes an exact-match rule; gives what it was at that moment.
    ///
    /// # Errors
    /// What the kernel said.
    fn take(&self, key: &ExactKey) -> Result<Option<ExactValue>>;
    /// An exact-match rule as it is now.
    ///
    /// # Errors
    /// What the kernel said.
    fn get(&self, key: &ExactKey) -> Result<Option<ExactValue>>;
    /// Some exact-match rules, from the beginning or where another page has ended.
    ///
    /// # Errors
    /// What the kernel said.
    fn page(&self, from: Option<u32>) -> Result<Page>;
    /// The time by which rules age here.
    fn now_ns(&self) -> u64;
}

/// What came of adding an exact-match rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// It is in force.
    Done,
    /// There is one with the same fields, which was left alone.
    Exists,
    /// There is no room for more.
    Full,
}

/// Some of the exact-match rules.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rules: Vec<(ExactKey, ExactValue)>,
    /// Where the next page begins; `None`: this was the last one.
    pub(crate) next: Option<u32>,
}
