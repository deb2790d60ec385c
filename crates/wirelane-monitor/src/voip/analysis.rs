//! Calls of a capture: the worker, the exporting thread, and the results.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use wirelane::{Capture, Error, Ledger, Meter, Worker};
use wirelane_analysis::voip::{Exchange, Finished, Monitor, Settings, WorkerEnd};
use wirelane_export::OutputLimit;
use wirelane_export::metrics::{Registry, VoipMetrics};
use wirelane_export::pipeline::voip::{
    Calls, CaptureLoss, Left, Outputs, VoipWorker, Watcher, hand_on, lost as lost_by_capture, serve,
};
use wirelane_screen::voip::TopModel;

use super::report::VoipReport;
use super::show::{self, Beside, Exported, Show, Shown};
use crate::analysis::{self, Analysis, Any, AnyHandler};
use crate::live_view::LiveView;
use crate::report::Report;
use crate::run_loop::{Outcome, Reporter};
use crate::status::{AnalysisStatus, Board, BoardWriter};
use crate::store::Store;

/// Maximum batches in the channel from the worker to the exports.
const UNDER_WAY: usize = 2;

/// How calls are shown.
pub struct Look {
    /// How calls are printed.
    pub show: Show,
    /// Whether pressed keys are printed.
    pub digits: bool,
    /// Limit of what is printed.
    pub limit: OutputLimit,
    /// State of the live view, if there is one.
    pub model: Option<Arc<TopModel>>,
}

/// See [`Analysis`].
pub struct VoipAnalysis {
    settings: Settings,
    live: bool,
    workers: usize,
    /// Of several workers.
    exchange: Option<Arc<Exchange>>,
    calls: Option<JoinHandle<wirelane_export::Result<()>>>,
    look: Option<Look>,
    model: Option<Arc<TopModel>>,
    outputs: Option<(Outputs, Option<Store<Finished>>)>,
    metrics: Option<VoipMetrics>,
    /// RTP that is measured in the kernel, if that was requested.
    meter: Option<Meter>,
    loss: Arc<CaptureLoss>,
    left: Left,
    sender: Option<SyncSender<Vec<Finished>>>,
    thread: Option<JoinHandle<Exported>>,
    board: Board,
}

impl VoipAnalysis {
    /// Calls of this many workers to these outputs, which were opened before privileges are dropped.
    pub fn new(
        settings: Settings,
        workers: usize,
        live: bool,
        outputs: Outputs,
        store: Option<Store<Finished>>,
        look: Look,
    ) -> VoipAnalysis {
        VoipAnalysis {
            settings,
            live,
            workers,
            exchange: None,
            calls: None,
            model: look.model.clone(),
            look: Some(look),
            outputs: Some((outputs, store)),
            metrics: None,
            meter: None,
            loss: Arc::default(),
            left: Left::default(),
            sender: None,
            thread: None,
            board: Board::default(),
        }
    }

    /// Bytes for packets that wait for the thread of the calls, or for it to pass their time.
    fn waiting(&self) -> usize {
        self.settings.memory / 4
    }

    /// A new monitor, with its outputs.
    fn calls(&mut self) -> Result<Calls> {
        let Some(sender) = &self.sender else {
            return Err(anyhow!("calls were not started; this is a bug"));
        };
        let mut settings = self.settings.clone();
        if self.exchange.is_some() {
            settings.memory -= self.waiting();
        }
        let mut monitor = Monitor::new(settings);
        if let Some(meter) = self.meter.take() {
            monitor.measure_offloaded(meter);
        }
        if let Some(exchange) = &self.exchange {
            monitor.exchange(exchange);
        }
        let (loss, left) = (Arc::clone(&self.loss), Arc::clone(&self.left));
        let calls = Calls::new(monitor, sender.clone(), loss, left, self.live);
        let look = |model: Arc<TopModel>| -> Watcher { Box::new(move |monitor| model.look(monitor)) };
        Ok(calls.watched(self.metrics.clone(), self.model.clone().map(look)))
    }

    /// The live view, if there is one.
    pub fn view(&self) -> Option<Box<dyn Reporter>> {
        let view =
            |model: &Arc<TopModel>| -> Box<dyn Reporter> { Box::new(LiveView::new(Arc::clone(model))) };
        self.model.as_ref().map(view)
    }
}

impl Analysis for VoipAnalysis {
    fn metrics(&mut self, registry: &mut Registry) {
        self.metrics = Some(VoipMetrics::new(registry));
    }

    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let (Some((mut outputs, mut store)), Some(look)) = (self.outputs.take(), self.look.take()) else {
            return Err(anyhow!("calls were started twice; this is a bug"));
        };
        if let Some(store) = &mut store {
            store.start(())?;
        }
        outputs.metrics = self.metrics.clone();
        self.meter = capture.meter();
        let (sender, inbox) = sync_channel::<Vec<Finished>>(UNDER_WAY);
        let Look { show, digits, limit, model } = look;
        let board = BoardWriter::new(self.board.clone());
        let beside = Beside { store, model, shown: Shown::new(show, digits, limit), board };
        self.thread = Some(analysis::exporting(move || show::export(outputs, beside, &inbox))?);
        self.sender = Some(sender);
        Ok(())
    }

    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler> {
        let time = worker.timebase();
        if self.workers == 1 {
            return Ok(Box::new(Any(VoipWorker::Whole { calls: Box::new(self.calls()?), time })));
        }
        let Some(caught_up) = worker.caught_up() else {
            return Err(Error::Unsupported {
                what: "following calls with several workers".into(),
                needs: "records in the order of time, of engine 'ring' or 'packet'".into(),
                instead: "leave out --workers".into(),
            }
            .into());
        };
        let exchange = match &self.exchange {
            Some(exchange) => Arc::clone(exchange),
            None => {
                let exchange = Exchange::new(self.workers, self.waiting());
                self.exchange = Some(Arc::clone(&exchange));
                let calls = serve(self.calls()?, Arc::clone(&exchange));
                self.calls = Some(calls.context("starting the thread of the calls")?);
                exchange
            }
        };
        let end = WorkerEnd::new(&exchange, worker.index(), &self.settings);
        Ok(Box::new(Any(VoipWorker::Part { end, time, caught_up })))
    }

    fn interval(&mut self, ledger: &Ledger, _: &mut Report) {
        self.loss.set(&ledger.total);
    }

    fn status(&self) -> AnalysisStatus {
        self.board.status("voip")
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        // The workers have ended, if they ever began, and with them the thread of the calls ends.
        if let Some(exchange) = &self.exchange {
            exchange.close();
        }
        let served = match self.calls.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => None,
            // If the exporting thread has ended, it reports the reason.
            Some(Ok(Err(_))) => None,
            Some(Err(_)) => Some(anyhow!("the thread of the calls panicked; this is a bug")),
        };
        // Active calls are handed out now, because the number of lost packets is final.
        let monitor = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        let counts = match (monitor, &self.sender) {
            (Some(mut monitor), Some(sender)) => {
                if let Some(outcome) = &outcome {
                    monitor.lost_by_capture(lost_by_capture(&outcome.ledger.total));
                }
                // If the exporting thread has ended, it reports the reason.
                while monitor.flush() && hand_on(&mut monitor, sender).is_ok() {}
                let _ = hand_on(&mut monitor, sender);
                monitor.counts()
            }
            _ => Default::default(),
        };
        // The handler is dropped; this is the last sender of the channel.
        self.sender = None;
        let mut exported = analysis::exported(self.thread.take())?;
        let Some(outcome) = outcome else { return Ok(()) };
        analysis::printed(outcome, std::mem::replace(&mut exported.result, Ok(())))?;
        let total = &outcome.ledger.total;
        let lost = lost_by_capture(total);
        let in_kernel = total.offloaded + total.measured;
        if counts.packets() + counts.rtp_beside != total.analysed + in_kernel
            || counts.rtp_absorbed != in_kernel
        {
            outcome.fail(Some(anyhow!(
                "the sum of the measured packets differs from the ledger; this is a bug: please report it"
            )));
        }
        outcome.fail(served);
        outcome.fail(exported.failure.take().map(Into::into));
        outcome.fail(exported.stored.as_ref().and_then(|stored| stored.failure()));
        report.voip(VoipReport::new(&counts, lost, exported));
        Ok(())
    }
}
