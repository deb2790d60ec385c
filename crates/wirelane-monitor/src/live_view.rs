//! A live view as the output of a command.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use wirelane::{Capture, Ledger};
use wirelane_screen::terminal::{Shown, Top, TopModel, View};

use crate::run_loop::Reporter;

/// Takes the terminal over when the capture has started, and restores it on drop.
pub struct LiveView<M> {
    model: Arc<M>,
    top: Option<Top<M>>,
}

impl<M> LiveView<M> {
    /// The view of a model, which other threads update.
    pub fn new(model: Arc<M>) -> LiveView<M> {
        LiveView { model, top: None }
    }
}

impl<M: TopModel> Reporter for LiveView<M>
where
    Shown<M>: View,
{
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.top = Some(Top::begin(capture, &self.model)?);
        Ok(())
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        Ok(self.top.as_mut().map_or(Ok(()), |top| top.interval(ledger, elapsed))?)
    }
}
