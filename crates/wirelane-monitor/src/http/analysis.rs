//! HTTP transactions of a capture: workers, the exporting thread, and the results.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use wirelane::{Capture, Worker};
use wirelane_analysis::http::{HttpSettings, Transaction};
use wirelane_export::OutputLimit;
use wirelane_export::flows::Naming;
use wirelane_export::metrics::{HttpMetrics, Registry};
use wirelane_export::pipeline::http::{HttpWorker, Outputs, SharedTotals};
use wirelane_screen::http::TopModel;

use super::report::HttpReport;
use super::show::{self, Logged, Show, Shown};
use crate::analysis::{self, Analysis, Any, AnyHandler};
use crate::live_view::LiveView;
use crate::report::Report;
use crate::run_loop::{Outcome, Reporter};
use crate::status::{AnalysisStatus, Board};
use crate::store::Store;

/// Maximum batches of transactions in the channel from the workers to the logs.
const UNDER_WAY: usize = 2;

/// See [`Analysis`].
pub struct HttpAnalysis {
    settings: HttpSettings,
    live: bool,
    /// Whether heads are recognised in the kernel.
    offloaded: bool,
    show: Show,
    limit: OutputLimit,
    outputs: Option<(Outputs, Option<Store<Transaction>>)>,
    totals: Arc<SharedTotals>,
    sender: Option<SyncSender<Vec<Transaction>>>,
    thread: Option<JoinHandle<Logged>>,
    board: Board,
    model: Option<Arc<TopModel>>,
}

impl HttpAnalysis {
    /// Transactions to these outputs, which were opened before privileges are dropped. `offloaded`: heads are recognised
    /// in the kernel.
    pub fn new(
        settings: HttpSettings,
        (live, offloaded): (bool, bool),
        outputs: Outputs,
        store: Option<Store<Transaction>>,
        (show, limit): (Show, OutputLimit),
    ) -> HttpAnalysis {
        HttpAnalysis {
            settings,
            live,
            offloaded,
            show,
            limit,
            outputs: Some((outputs, store)),
            totals: Arc::default(),
            sender: None,
            thread: None,
            board: Board::default(),
            model: None,
        }
    }

    /// Shows transactions on a live view: the reporter that draws it.
    pub fn on_screen(&mut self) -> Box<dyn Reporter> {
        let model = Arc::clone(self.model.get_or_insert_default());
        Box::new(LiveView::new(model))
    }
}

impl Analysis for HttpAnalysis {
    fn metrics(&mut self, registry: &mut Registry) {
        if let Some((outputs, _)) = &mut self.outputs {
            outputs.metrics = Some(HttpMetrics::new(registry));
        }
    }

    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let Some((mut outputs, mut store)) = self.outputs.take() else {
            return Err(anyhow!("HTTP was started twice; this is a bug"));
        };
        outputs.exporters.start(Naming::new(capture.interfaces(), Vec::new()));
        if let Some(store) = &mut store {
            store.start(())?;
        }
        let (sender, inbox) = sync_channel::<Vec<Transaction>>(UNDER_WAY);
        let shown = Shown::new(self.show, self.settings.extra.clone(), self.limit);
        let told = (self.board.clone(), self.model.clone());
        self.thread = Some(analysis::exporting(move || show::log(outputs, store, shown, &inbox, told))?);
        self.sender = Some(sender);
        Ok(())
    }

    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler> {
        let Some(sender) = &self.sender else {
            return Err(anyhow!("HTTP was not started; this is a bug"));
        };
        let worker = HttpWorker::new(self.settings.clone(), self.live, worker, sender.clone(), &self.totals);
        Ok(Box::new(Any(worker)))
    }

    fn status(&self) -> AnalysisStatus {
        self.board.status("http")
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        // The handlers are dropped; this is the last sender of the channel.
        self.sender = None;
        let mut logged = analysis::exported(self.thread.take())?;
        let Some(outcome) = outcome else { return Ok(()) };
        analysis::printed(outcome, std::mem::replace(&mut logged.result, Ok(())))?;
        let (totals, total) = (self.totals.totals(), &outcome.ledger.total);
        let right = totals.balance()
            && totals.packets == total.analysed
            && totals.wire_bytes == total.bytes
            && totals.transactions == logged.number;
        if !right {
            outcome.fail(Some(anyhow!(
                "the sums of the transactions differ from the ledger; this is a bug: please report it"
            )));
        }
        outcome.fail(logged.failure.as_ref().map(|error| anyhow!("{error}")));
        outcome.fail(logged.stored.as_ref().and_then(|stored| stored.failure()));
        let below = self.offloaded.then_some(&outcome.ledger.total);
        report.http(HttpReport::new(&totals, below, logged));
        Ok(())
    }
}
