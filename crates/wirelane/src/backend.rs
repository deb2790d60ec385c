//! Backend of a [`crate::Capture`]: rings, sockets or a file.

use std::fmt;
use std::sync::Arc;

use wirelane_pcapng::FileProgress;

use crate::active_rules::ActiveRuleset;
use crate::error::{Error, Result};
use crate::interfaces::{CaptureDevice, Interfaces};
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::state::StateReader;
use crate::watch::Ending;
use crate::worker::Worker;
use wirelane_bpf::flow::Timeouts;
use wirelane_filter::Filter;

/// The error of a change of flow caches for a capture without them.
pub(crate) fn no_kernel_flows() -> Error {
    Error::Unsupported {
        what: "a change of flow caches".into(),
        needs: "flows that are made in the kernel".into(),
        instead: "start the capture with them".into(),
    }
}

/// A running capture by one engine. See the functions of [`crate::Capture`] with the same names.
pub(crate) trait Backend: Send + fmt::Debug {
    fn engine(&self) -> &'static str;

    /// The reason for this engine, if the best one did not work.
    fn engine_reason(&self) -> Option<&str> {
        None
    }

    fn devices(&self) -> Vec<CaptureDevice>;

    fn interfaces(&self) -> Interfaces;

    fn workers(&mut self) -> Vec<Worker>;

    fn ledger(&self) -> Result<Ledger>;

    fn set_filter(&self, expression: &str) -> Result<()>;

    fn set_compiled_filter(&self, filter: &Filter) -> Result<()>;

    fn change_flows(&self, _entries: usize, _timeouts: Timeouts) -> Result<()> {
        Err(no_kernel_flows())
    }

    /// The rules in force; `None` where the capture was started without rules.
    fn rules(&self) -> Option<&Arc<ActiveRuleset>>;

    fn meter(&self) -> Option<Meter> {
        None
    }

    fn state(&self) -> Option<&StateReader> {
        None
    }

    fn progress(&self) -> Option<FileProgress> {
        None
    }

    fn ended(&self) -> Vec<(String, Ending)> {
        Vec::new()
    }

    fn adopt(&mut self) -> Result<()> {
        Ok(())
    }

    fn stop(&self) -> Result<()>;
}
