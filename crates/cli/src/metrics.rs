//! The option of numbers for Prometheus.

use std::net::SocketAddr;

use anyhow::Result;
use wirelane::Error;
use wirelane_export::metrics::{Endpoint, LedgerMetrics, Registry, Serving};

use crate::source::{self, SourceArgs};

/// Where numbers are asked for.
#[derive(clap::Args, Debug)]
pub struct MetricsArgs {
    /// Answer Prometheus at this address, of this host alone, as 127.0.0.1:9464: at http://ADDRESS/metrics, as long as the
    /// capture goes on
    #[arg(long = "metrics", value_name = "ADDRESS", conflicts_with = "read", help_heading = source::OUTPUT)]
    address: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Takes the place, before rights are given up; `None` where nobody is to ask.
    pub fn open(&self, source: &mut SourceArgs) -> Result<Option<Endpoint>> {
        let Some(address) = self.address else { return Ok(None) };
        if source.read.is_some() {
            let reason = "a file is read as fast as it can be: nobody could ask while it is";
            return Err(Error::BadOption { option: "--metrics", reason: reason.into() }.into());
        }
        source.rights.serves = true;
        let endpoint = Endpoint::bind(address).map_err(|error| match error {
            wirelane_export::Error::Target { target, reason } => {
                Error::BadOption { option: "--metrics", reason: format!("{target}: {reason}") }.into()
            }
            other => anyhow::Error::from(other),
        })?;
        Ok(Some(endpoint))
    }
}

/// Numbers that are kept for whoever asks: of the ledger, and of the command.
pub struct Numbers<M> {
    /// Of the ledger.
    pub ledger: LedgerMetrics,
    /// Of the command.
    pub own: M,
    /// Answers until it goes.
    _serving: Serving,
}

impl<M> Numbers<M> {
    /// Begins to answer, after rights are given up.
    pub fn serve(endpoint: Endpoint, own: impl FnOnce(&mut Registry) -> M) -> Result<Numbers<M>> {
        let mut registry = Registry::default();
        let (ledger, own) = (LedgerMetrics::new(&mut registry), own(&mut registry));
        tracing::info!("numbers are at http://{}/metrics", endpoint.address());
        Ok(Numbers { ledger, own, _serving: endpoint.serve(registry)? })
    }
}
