//! Analyses as parts of a capture: each worker's records go to one of them, or to several in turn.
//!
//! ```text
//! Analysis::start    after the capture has been opened: outputs begin, the exporting thread runs
//! Analysis::handler  for each worker, before it runs
//! Analysis::finish   after the last record: outputs end, and the results go to the report
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use wirelane::control::Service;
use wirelane::{Capture, Ledger, Record, Worker};
use wirelane_export::metrics::{Endpoint, Registry};

use crate::control::{Control, Reload};
use crate::kept_ledger::KeptLedger;
use crate::metrics::Served;
use crate::out::ReaderGone;
use crate::report::Report;
use crate::run_loop::{self, Handler, Limits, Mailbox, Outcome, Reporter};
use crate::service::Notifier;
use crate::ship::{Shipper, Shipping};
use crate::status::{AnalysisStatus, Status, WorkerLoad};

/// A handler of any analysis.
pub type AnyHandler = Box<dyn Handler<Error = anyhow::Error>>;

/// The records that an analysis gets where several share a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Packets.
    Packets,
    /// Parts of flows from the kernel's caches; their packets are delivered for the others.
    FlowParts,
}

/// An analysis with its outputs, for one capture.
pub trait Analysis {
    /// Registers the metrics of this analysis. Called before the start, if metrics are served.
    fn metrics(&mut self, _registry: &mut Registry) {}

    /// Starts the outputs. Called once, before any handler is made.
    ///
    /// # Errors
    /// An output that cannot be started.
    fn start(&mut self, capture: &mut Capture) -> Result<()>;

    /// The handler of a worker's records.
    ///
    /// # Errors
    /// A handler that cannot be made.
    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler>;

    /// The records that it gets beside other analyses; alone it gets all of them.
    fn takes(&self) -> Takes {
        Takes::Packets
    }

    /// Results so far, and the state of the outputs.
    fn status(&self) -> AnalysisStatus {
        AnalysisStatus::default()
    }

    /// Called at the end of an interval, before it is reported.
    fn interval(&mut self, _ledger: &Ledger, _report: &mut Report) {}

    /// Ends the outputs after the last handler has been dropped, and adds the results to the report. `outcome`: `None`
    /// where the run has failed without a ledger. A failure is added to the outcome, unless that has one.
    ///
    /// # Errors
    /// [`ReaderGone`]: nothing is to be reported.
    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()>;
}

/// A reporter that has the report of a run.
pub trait EndReporter: Reporter {
    /// Called after the last interval: what is printed later is printed in rows.
    fn end(&mut self) {}
    /// The report, for the results at the end.
    fn report(&mut self) -> &mut Report;
}

/// Reports of a command that prints rows: intervals are shown in JSON only, since they would disturb between rows, or on
/// a live view.
pub struct RowReporter {
    report: Report,
    json: bool,
    view: Option<Box<dyn Reporter>>,
}

impl RowReporter {
    /// Reports by this report. `view`: the live view, if there is one, which ends on drop.
    pub fn new(report: Report, json: bool, view: Option<Box<dyn Reporter>>) -> RowReporter {
        RowReporter { report, json, view }
    }
}

impl Reporter for RowReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        match &mut self.view {
            Some(view) => view.ready(capture),
            None => self.report.ready(capture),
        }
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        match &mut self.view {
            Some(view) => view.interval(ledger, elapsed),
            None if self.json => self.report.interval(ledger, elapsed),
            None => Ok(()),
        }
    }
}

impl EndReporter for RowReporter {
    fn end(&mut self) {
        self.view = None;
    }

    fn report(&mut self) -> &mut Report {
        &mut self.report
    }
}

/// Receivers of the state of a run, besides its report.
#[derive(Default)]
pub struct Told {
    /// Where metrics are served.
    pub metrics: Option<Endpoint>,
    /// The service manager.
    pub manager: Option<Notifier>,
    /// Reader of the changed configuration, which also answers requests of other processes, if the capture has a socket for them.
    pub reload: Option<Box<dyn Reload>>,
    /// The process that ships the store.
    pub shipper: Option<Shipper>,
    /// The store of the capture's ledger, where no analysis stores it.
    pub ledger: Option<KeptLedger>,
}

/// Runs a capture for these analyses, and reports its end.
///
/// # Errors
/// The first failure; the ledger has been reported if there is one.
pub fn run(
    mut capture: Capture,
    limits: &Limits,
    analyses: &mut [Box<dyn Analysis>],
    mut told: Told,
    reporter: &mut dyn EndReporter,
) -> Result<()> {
    let begin = |endpoint| {
        Served::begin(endpoint, |registry| {
            analyses.iter_mut().for_each(|analysis| analysis.metrics(registry));
            told.shipper.iter_mut().for_each(|shipper| shipper.metrics(registry));
        })
    };
    let served = told.metrics.map(begin).transpose()?;
    for analysis in analyses.iter_mut() {
        analysis.start(&mut capture)?;
    }
    let mut kept = told.ledger;
    kept.as_mut().map(KeptLedger::start).transpose()?;
    let shipping = told.shipper.map(Shipper::listen).transpose()?;
    let shared = RefCell::new(&mut *analyses);
    let handler = |worker: &Worker| {
        let mut analyses = shared.borrow_mut();
        let mut handlers = analyses
            .iter_mut()
            .map(|analysis| Ok((analysis.takes(), analysis.handler(worker)?)))
            .collect::<Result<Vec<_>>>()?;
        // A single analysis is asked directly.
        Ok(match handlers.len() {
            1 => handlers.remove(0).1,
            _ => Box::new(Several(handlers)),
        })
    };
    let service = capture.service();
    let mut watched = Watched {
        analyses: &shared,
        shipping: shipping.as_ref(),
        served,
        manager: told.manager,
        reload: told.reload.map(|reload| (service, reload)),
        control: None,
        engine: capture.engine(),
        load: Vec::new(),
        kept: kept.as_mut(),
        reporter: &mut *reporter,
    };
    let outcome = run_loop::run(capture, limits, handler, &mut watched);
    if let Some(manager) = &watched.manager {
        manager.stopping();
    }
    drop(watched);
    reporter.end();
    let (mut outcome, error) = match outcome {
        Ok(outcome) => (Some(outcome), None),
        Err(error) => (None, Some(error)),
    };
    let mut gone = None;
    for analysis in analyses.iter_mut() {
        if let Err(error) = analysis.finish(outcome.as_mut(), reporter.report()) {
            gone.get_or_insert(error);
        }
    }
    // Before the shipper ends, which ships it.
    let stored = kept.map(|kept| kept.finish(outcome.as_ref().map(|outcome| &outcome.ledger)));
    if let (Some(outcome), Some(stored)) = (outcome.as_mut(), stored) {
        outcome.fail(stored.failure());
    }
    if let Some((targets, ended)) = shipping.map(Shipping::finish) {
        reporter.report().shipped(targets);
        if let (Err(error), Some(outcome)) = (ended, outcome.as_mut()) {
            outcome.failure.get_or_insert(error);
        }
    }
    // A reader that has gone ends the workers, whose errors say less.
    if let Some(error) = gone {
        return Err(error);
    }
    let Some(outcome) = outcome else { return error.map_or(Ok(()), Err) };
    let report = reporter.report();
    report.ruled(outcome.rules);
    let last = report.last(&outcome.ledger, outcome.elapsed);
    outcome.failure.map_or(last, Err)
}

/// Passes intervals on to the analyses, the metrics, and the service manager, too.
struct Watched<'a, 'b> {
    analyses: &'a RefCell<&'b mut [Box<dyn Analysis>]>,
    shipping: Option<&'a Shipping>,
    served: Option<Served>,
    manager: Option<Notifier>,
    /// Set until the start.
    reload: Option<(Option<Service>, Box<dyn Reload>)>,
    /// Set from the start on, if there is something to reload.
    control: Option<Control>,
    engine: &'static str,
    load: Vec<WorkerLoad>,
    kept: Option<&'a mut KeptLedger>,
    reporter: &'a mut dyn EndReporter,
}

impl Watched<'_, '_> {
    /// Status of the analyses, and of the process that ships the store.
    fn statuses(&self) -> Vec<AnalysisStatus> {
        let analyses = self.analyses.borrow();
        analyses.iter().map(|analysis| analysis.status()).chain(self.shipping.map(Shipping::status)).collect()
    }
}

impl Reporter for Watched<'_, '_> {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.reporter.ready(capture)?;
        if let Some(manager) = &self.manager {
            manager.ready();
        }
        Ok(())
    }

    fn begin(&mut self, mailbox: &Mailbox) -> Result<()> {
        if let Some((service, reload)) = self.reload.take() {
            self.control = Some(Control::start(service, reload, mailbox.clone())?);
        }
        Ok(())
    }

    fn ending(&self) -> Arc<AtomicBool> {
        self.kept.as_ref().map(|kept| kept.ending()).unwrap_or_default()
    }

    fn load(&mut self, workers: &[WorkerLoad]) {
        self.served.iter().for_each(|served| served.load(workers));
        self.load = workers.to_vec();
    }

    fn hangup(&mut self) {
        if let Some(control) = &self.control {
            control.hangup();
        }
    }

    fn status(&mut self, ledger: &Ledger, elapsed: Duration) -> Option<Status> {
        let (reloads, reloads_refused) = self.control.as_ref()?.reloads();
        Some(Status {
            uptime_s: elapsed.as_secs_f64(),
            engine: self.engine.to_owned(),
            ledger: serde_json::to_value(ledger).ok()?,
            workers: self.load.clone(),
            analyses: self.statuses(),
            reloads,
            reloads_refused,
        })
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if let Some(kept) = &mut self.kept {
            kept.add(ledger);
        }
        if let Some(manager) = &mut self.manager {
            let progress = self.load.iter().all(|worker| worker.progress);
            manager.interval(ledger, elapsed, progress);
        }
        if let Some(served) = &self.served {
            served.ledger(ledger);
            self.statuses().iter().for_each(|status| served.outputs(status));
        }
        let report = self.reporter.report();
        self.analyses.borrow_mut().iter_mut().for_each(|analysis| analysis.interval(ledger, report));
        self.reporter.interval(ledger, elapsed)
    }
}

/// Several analyses of the same records.
struct Several(Vec<(Takes, AnyHandler)>);

impl Handler for Several {
    type Error = anyhow::Error;

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let kind = if record.flow().is_some() { Takes::FlowParts } else { Takes::Packets };
        let mut handlers = self.0.iter_mut().filter(|(takes, _)| *takes == kind);
        handlers.try_for_each(|(_, handler)| handler.record(record))
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        self.0.iter_mut().try_for_each(|(_, handler)| handler.pause(idle))
    }

    fn finish(&mut self) -> Result<()> {
        // One that fails does not keep the others from their last records.
        let results: Vec<_> = self.0.iter_mut().map(|(_, handler)| handler.finish()).collect();
        results.into_iter().collect()
    }
}

/// A handler whose errors are of any kind.
pub(crate) struct Any<H>(pub(crate) H);

impl<H: Handler> Handler for Any<H>
where
    H::Error: Into<anyhow::Error>,
{
    type Error = anyhow::Error;

    #[inline]
    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        self.0.record(record).map_err(Into::into)
    }

    fn pause(&mut self, idle: bool) -> Result<()> {
        self.0.pause(idle).map_err(Into::into)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.finish().map_err(Into::into)
    }
}

/// Starts the thread that exports the results of an analysis.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn exporting<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    std::thread::Builder::new().name("wl-export".into()).spawn(run).context("starting the exporting thread")
}

/// The result of the exporting thread, which ends when its last sender is dropped.
///
/// # Errors
/// The thread panicked, or was not started.
pub(crate) fn exported<T>(thread: Option<JoinHandle<T>>) -> Result<T> {
    let thread = thread.ok_or_else(|| anyhow!("an analysis ended that was not started; this is a bug"))?;
    thread.join().map_err(|_| anyhow!("the exporting thread panicked; this is a bug"))
}

/// Adds the result of printing to the outcome. An error that is added replaces those of the workers, which say less.
///
/// # Errors
/// [`ReaderGone`]: nothing is to be reported.
pub(crate) fn printed(outcome: &mut Outcome, result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is::<ReaderGone>() => return Err(error),
        Err(error) => outcome.failure = Some(error),
        Ok(()) => {}
    }
    Ok(())
}
