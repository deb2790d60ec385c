//! Flows of a capture: workers, the exporting thread, and the results.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};
use wirelane::{Capture, Interfaces, Worker};
use wirelane_analysis::flows::FlowRecord;
use wirelane_export::OutputLimit;
use wirelane_export::flows::{Exporters, Naming};
use wirelane_export::pipeline::flows::{FlowSettings, FlowWorker, SharedTotals};
use wirelane_screen::flows::{Names, Shared, TopModel, Watcher};

use super::report::FlowsReport;
use super::show::{self, Exported, Show, Shown};
use crate::analysis::{self, Analysis, Any, AnyHandler, Takes};
use crate::live_view::LiveView;
use crate::report::Report;
use crate::run_loop::{Outcome, Reporter};
use crate::status::{AnalysisStatus, Board};
use crate::store::Store;

/// Maximum batches of flows in the channel from the workers to the exports.
const UNDER_WAY: usize = 4;

/// Outputs of flows, opened before privileges are dropped.
pub struct Outputs {
    /// Collectors and files.
    pub exporters: Exporters,
    /// The store, if there is one.
    pub store: Option<Store<FlowRecord>>,
    /// How flows are printed.
    pub show: Show,
    /// Limit of what is printed.
    pub limit: OutputLimit,
    /// The live view, if there is one.
    pub screen: Option<Arc<Shared>>,
    /// Names of hosts and ports, if the live view shows them.
    pub names: Option<Arc<Names>>,
}

/// See [`Analysis`].
pub struct FlowAnalysis {
    settings: FlowSettings,
    /// Interface indices of devices by name.
    indices: Vec<(String, u32)>,
    screen: Option<Arc<Shared>>,
    names: Option<Arc<Names>>,
    outputs: Option<Outputs>,
    interfaces: Option<Interfaces>,
    totals: Arc<SharedTotals>,
    sender: Option<SyncSender<Vec<FlowRecord>>>,
    thread: Option<JoinHandle<Exported>>,
    board: Board,
}

impl FlowAnalysis {
    /// Flows with these outputs. `indices`: interface indices of devices by name.
    pub fn new(settings: FlowSettings, outputs: Outputs, indices: Vec<(String, u32)>) -> FlowAnalysis {
        FlowAnalysis {
            settings,
            indices,
            screen: outputs.screen.clone(),
            names: outputs.names.clone(),
            outputs: Some(outputs),
            interfaces: None,
            totals: Arc::default(),
            sender: None,
            thread: None,
            board: Board::default(),
        }
    }

    /// The live view, if there is one.
    pub fn view(&self) -> Option<Box<dyn Reporter>> {
        let view = |shared: &Arc<Shared>| -> Box<dyn Reporter> {
            let model = TopModel::new(Arc::clone(shared), self.names.clone());
            Box::new(LiveView::new(Arc::new(model)))
        };
        self.screen.as_ref().map(view)
    }
}

impl Analysis for FlowAnalysis {
    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let Some(outputs) = self.outputs.take() else {
            return Err(anyhow!("flows were started twice; this is a bug"));
        };
        let Outputs { mut exporters, mut store, show, limit, screen, names: _ } = outputs;
        let of = |name: &str| self.indices.iter().find(|(known, _)| known == name).map(|(_, index)| *index);
        let numbers = capture.devices().iter().map_while(|device| of(&device.name)).collect();
        let naming = Naming::new(capture.interfaces(), numbers);
        exporters.start(naming.clone());
        if let Some(store) = &mut store {
            store.start(naming.clone())?;
        }
        self.interfaces = Some(capture.interfaces());
        let (sender, inbox) = sync_channel::<Vec<FlowRecord>>(UNDER_WAY);
        let shown = Shown::new(show, naming, limit);
        let board = self.board.clone();
        self.thread =
            Some(analysis::exporting(move || show::export(exporters, store, shown, &inbox, screen, board))?);
        self.sender = Some(sender);
        Ok(())
    }

    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler> {
        let (Some(sender), Some(interfaces)) = (&self.sender, &self.interfaces) else {
            return Err(anyhow!("flows were not started; this is a bug"));
        };
        let flows =
            FlowWorker::new(self.settings.clone(), interfaces.clone(), worker, sender.clone(), &self.totals);
        let watcher = self.screen.as_ref().map(Watcher::of);
        Ok(Box::new(Any(flows.watched(watcher))))
    }

    fn takes(&self) -> Takes {
        if self.settings.kernel { Takes::FlowParts } else { Takes::Packets }
    }

    fn status(&self) -> AnalysisStatus {
        self.board.status("flows")
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        // The handlers are dropped; this is the last sender of the channel.
        self.sender = None;
        let exported = analysis::exported(self.thread.take())?;
        let Some(outcome) = outcome else { return Ok(()) };
        analysis::printed(outcome, exported.result)?;
        let totals = self.totals.totals().with_kernels(&outcome.ledger);
        if !totals.are_those_of(&outcome.ledger) {
            outcome.fail(Some(anyhow!(
                "the sums of the flows differ from the ledger; this is a bug: please report it"
            )));
        }
        let counts = exported.counts;
        outcome.fail(counts.failure.as_ref().map(|error| anyhow!("{error}")));
        outcome.fail(counts.stored.as_ref().and_then(|stored| stored.failure()));
        report.flows(FlowsReport::new(&totals, outcome.ledger.flow_cache, counts));
        Ok(())
    }
}
