//! Requests of other threads to the main thread of a run, which owns the capture.

use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use wirelane::rules::RuleSet;
use wirelane_analysis::flows::Timeouts;
use wirelane_export::pipeline::flows::LiveTimeouts;

use super::Event;
use crate::status::Status;

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
    /// What is in force now.
    pub before: FlowLimits,
    /// What is wanted.
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

/// Requests of other threads to the main thread of a run.
#[derive(Clone, Debug)]
pub struct Mailbox(pub(super) mpsc::Sender<Event>);

impl Mailbox {
    /// The status of the run.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn status(&self) -> Result<Status, String> {
        self.ask(Event::Status)
    }

    /// Changes the capture, completely or not at all.
    ///
    /// # Errors
    /// The reason why nothing has changed.
    pub fn change(&self, change: Change) -> Result<(), String> {
        self.ask(|reply| Event::Change(Box::new(change), reply))
    }

    fn ask<T>(&self, event: impl FnOnce(SyncSender<Result<T, String>>) -> Event) -> Result<T, String> {
        let ended = || "the capture has ended".to_owned();
        let (reply, answer) = mpsc::sync_channel(1);
        self.0.send(event(reply)).map_err(|_| ended())?;
        // The events that are left at the end are dropped, and with them their replies.
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }
}
