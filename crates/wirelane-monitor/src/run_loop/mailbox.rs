//! Requests of other threads to the main thread of a run, which owns the capture.

use std::sync::mpsc::{self, SyncSender};

use super::Event;
use super::change::Change;
use crate::status::Status;

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
