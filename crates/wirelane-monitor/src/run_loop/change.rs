//! Changes of a running capture.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use wirelane::Capture;
use wirelane::rules::RuleSet;
use wirelane_analysis::flows::Timeouts;
use wirelane_export::pipeline::flows::LiveTimeouts;

/// A change of a running capture.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The filter expression, and the one before it.
    pub filter: Option<(String, String)>,
    /// The rules.
    pub rules: Option<RuleSet>,
    /// Time between two reports.
    pub interval: Option<Duration>,
    /// Flows.
    pub flows: Option<FlowChange>,
}

/// A change of flows.
#[derive(Clone, Debug)]
pub struct FlowChange {
    /// Limits in force.
    pub before: FlowLimits,
    /// Requested limits.
    pub after: FlowLimits,
    /// The workers' timeouts.
    pub workers: Arc<LiveTimeouts>,
}

/// Limits of flows.
#[derive(Clone, Copy, Debug)]
pub struct FlowLimits {
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Capacity of each lane of the kernel's caches; `None`: flows are not made there.
    pub entries: Option<usize>,
}

impl Change {
    /// Changes flows, filter and rules, completely or not at all.
    ///
    /// # Errors
    /// The reason why nothing has changed.
    pub(super) fn apply(&self, capture: &Capture) -> Result<(), String> {
        let flows = self.flows.as_ref().map_or(Ok(()), |flows| flows.apply(capture, &flows.after));
        let changed = flows.map_err(|error| format!("flows: {error}"));
        let Err(mut reason) = changed.and_then(|()| self.apply_decisions(capture)) else { return Ok(()) };
        // Also where the flows of one device have changed, and those of another have not.
        if let Some(flows) = &self.flows
            && let Err(error) = flows.apply(capture, &flows.before)
        {
            let _ = write!(reason, "; flows could not be changed back: {error}");
        }
        Err(reason)
    }

    /// Changes the filter and the rules, both or none of them.
    fn apply_decisions(&self, capture: &Capture) -> Result<(), String> {
        if let Some((filter, _)) = &self.filter {
            capture.set_filter(filter).map_err(|error| format!("filter: {error}"))?;
        }
        let Some(rules) = &self.rules else { return Ok(()) };
        let Err(error) = capture.set_rules(rules) else { return Ok(()) };
        let mut reason = format!("rules: {error}");
        // The rules before may have been changed by others, the filter was not: so the filter is changed back.
        if let Some((_, before)) = &self.filter
            && let Err(error) = capture.set_filter(before)
        {
            let _ = write!(reason, "; the filter before it could not be set again: {error}");
        }
        Err(reason)
    }
}

impl FlowChange {
    fn apply(&self, capture: &Capture, wanted: &FlowLimits) -> wirelane::Result<()> {
        if let Some(entries) = wanted.entries {
            capture.change_flows(entries, wanted.timeouts)?;
        }
        self.workers.set(wanted.timeouts);
        Ok(())
    }
}
