//! Rule evaluation of one device and direction of a capture, behind the trait [`Target`].

use std::fmt;

use wirelane_bpf::rules::{Counts, ExactKey, ExactValue};

use super::capacity::RulesCapacity;
use super::pending::PendingRuleset;
use wirelane_rules::PluginLine;

use crate::error::Result;
use wirelane_rules::plugins::Placed;

/// The rules of one device, wherever they are evaluated. Callers that change them hold the lock of the capture's rules,
/// so there is one at a time; packets are evaluated meanwhile.
pub(crate) trait Target: Send + Sync + fmt::Debug {
    /// Name of the device, for conditions on it.
    fn device(&self) -> &str;
    /// The devices that rules may send packets to, in the order of their numbers.
    fn egress_devices(&self) -> &[String] {
        &[]
    }
    /// The plug-ins that rules may call, where they are on this device.
    fn plugins(&self) -> &[Placed] {
        &[]
    }
    /// Counts of the plug-ins, in the same order.
    fn plugin_lines(&self) -> Vec<PluginLine> {
        Vec::new()
    }
    /// Capacity for rules.
    fn room(&self) -> RulesCapacity;
    /// Compiles a set and writes it beside the one in use.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`] where capacity is missing, or the error that the kernel returned.
    fn prepare(&self, draft: &PendingRuleset) -> Result<()>;
    /// Evaluates packets by the prepared set, from the next one on.
    fn switch(&self);
    /// Waits until no packet is evaluated by the previous set.
    ///
    /// # Errors
    /// The error that the kernel returned. The next [`Target::prepare`] then waits first.
    fn settle(&self) -> Result<()>;
    /// Counts of a slot.
    fn counts(&self, slot: usize) -> Counts;
    /// Resets the counts of a slot that no packet is counted in.
    fn clear(&self, slot: usize);
    /// Adds an exact-match rule.
    ///
    /// # Errors
    /// The error that the kernel returned.
    fn put(&self, key: &ExactKey, rule: &ExactValue) -> Result<InsertOutcome>;
    /// Removes an exact-match rule; returns its final value.
    ///
    /// # Errors
    /// The error that the kernel returned.
    fn take(&self, key: &ExactKey) -> Result<Option<ExactValue>>;
    /// A copy of the current value of an exact-match rule.
    ///
    /// # Errors
    /// The error that the kernel returned.
    fn get(&self, key: &ExactKey) -> Result<Option<ExactValue>>;
    /// Some exact-match rules, from the beginning or from the end of another page.
    ///
    /// # Errors
    /// The error that the kernel returned.
    fn page(&self, from: Option<u32>) -> Result<Page>;
    /// The current time, on the clock by which rules expire here.
    fn now_ns(&self) -> u64;
}

/// Result of inserting an exact-match rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertOutcome {
    /// The rule is in force.
    Done,
    /// There is a rule with the same fields, which was not changed.
    Exists,
    /// The table is full.
    Full,
}

/// A page of exact-match rules.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) rules: Vec<(ExactKey, ExactValue)>,
    /// Start of the next page; `None`: this was the last one.
    pub(crate) next: Option<u32>,
}
