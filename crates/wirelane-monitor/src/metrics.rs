//! Metrics of a run, served during it: the ledger, the load of workers, the state of outputs, and those of analyses.

use std::time::Duration;

use anyhow::Result;
use wirelane::{Capture, Ledger};
use wirelane_export::metrics::{Endpoint, LedgerMetrics, Registry, RunMetrics, Serving};

use crate::run_loop::Reporter;
use crate::status::{AnalysisStatus, WorkerLoad};

/// Metrics that are served until drop.
pub struct Served {
    ledger: LedgerMetrics,
    run: RunMetrics,
    _serving: Serving,
}

impl Served {
    /// Starts serving, after privileges have been dropped. `register` adds further metrics.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn begin(endpoint: Endpoint, register: impl FnOnce(&mut Registry)) -> Result<Served> {
        let mut registry = Registry::default();
        let (ledger, run) = (LedgerMetrics::new(&mut registry), RunMetrics::new(&mut registry));
        register(&mut registry);
        tracing::info!("metrics are at {}", endpoint.url());
        Ok(Served { ledger, run, _serving: endpoint.serve(registry)? })
    }

    /// Sets the metrics of the workers.
    pub fn load(&self, workers: &[WorkerLoad]) {
        workers.iter().for_each(|one| self.run.worker(one.worker, one.busy));
    }

    /// Sets the metrics of the ledger.
    pub fn ledger(&self, ledger: &Ledger) {
        self.ledger.set(ledger);
    }

    /// Sets the metrics of an analysis' outputs.
    pub fn outputs(&self, status: &AnalysisStatus) {
        status.outputs.iter().for_each(|output| self.run.output(&status.name, output));
    }
}

/// A reporter whose ledger and workers are served as metrics.
pub struct Metered<'a> {
    served: Option<Served>,
    reporter: &'a mut dyn Reporter,
}

impl<'a> Metered<'a> {
    /// Serves at this endpoint, if there is one, after privileges have been dropped.
    ///
    /// # Errors
    /// As [`Served::begin`].
    pub fn new(endpoint: Option<Endpoint>, reporter: &'a mut dyn Reporter) -> Result<Metered<'a>> {
        let served = endpoint.map(|endpoint| Served::begin(endpoint, |_| {})).transpose()?;
        Ok(Metered { served, reporter })
    }
}

impl Reporter for Metered<'_> {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.reporter.ready(capture)
    }

    fn load(&mut self, workers: &[WorkerLoad]) {
        self.served.iter().for_each(|served| served.load(workers));
        self.reporter.load(workers);
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.served.iter().for_each(|served| served.ledger(ledger));
        self.reporter.interval(ledger, elapsed)
    }
}

/// Metrics of the ledger and of a command, which are served until drop.
pub struct Numbers<M> {
    /// Metrics of the ledger.
    pub ledger: LedgerMetrics,
    /// Metrics of the command.
    pub own: M,
    _serving: Serving,
}

impl<M> Numbers<M> {
    /// Starts serving, after privileges are dropped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn serve(endpoint: Endpoint, own: impl FnOnce(&mut Registry) -> M) -> Result<Numbers<M>> {
        let mut registry = Registry::default();
        let (ledger, own) = (LedgerMetrics::new(&mut registry), own(&mut registry));
        tracing::info!("numbers are at {}", endpoint.url());
        Ok(Numbers { ledger, own, _serving: endpoint.serve(registry)? })
    }
}
