//! Measurements of a probe as one of several analyses of a capture.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use wirelane::{Capture, Intervals, Ledger, PluginCounts, Worker};
use wirelane_export::metrics::{ProbeMetrics, Registry};
use wirelane_probe::{Closed, Config, Entry, Orders, Plan, Reader, Switches};

use super::controller::{Controller, locked};
use super::exporter::Opened;
use super::helper::ProbeHelper;
use super::keep::Keep;
use super::recorder::Folders;
use super::show::Show;
use super::worker::Prober;
use crate::analysis::{Analysis, AnyHandler};
use crate::helper::Helper;
use crate::report::Report;
use crate::run_loop::Outcome;
use crate::status::AnalysisStatus;
use crate::store::Store;

/// Maximum results in the channel from the workers to the output.
const UNDER_WAY: usize = 16;

/// Parts of a probe's analysis, opened before privileges are dropped.
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// Seed of sketches.
    pub seed: u64,
    /// Whether to use the headers inside tunnels.
    pub inner: bool,
    /// Whether the input is live.
    pub live: bool,
    /// Intervals of measurements in the kernel, if there are any.
    pub intervals: Option<Intervals>,
    /// Whether the rules of the capture are the probe's and not the user's.
    pub rules_are_own: bool,
    /// Number of workers.
    pub workers: usize,
    /// How alarms are printed.
    pub show: Show,
    /// The store, if there is one.
    pub store: Option<Store<Entry>>,
    /// The process that runs programs, if alarms run any.
    pub helper: Option<Helper>,
    /// Folders of recordings.
    pub folders: Option<Folders>,
    /// Targets of alarms.
    pub targets: Option<Opened>,
}

/// See [`Analysis`].
pub struct ProbeAnalysis {
    /// Set until the start.
    settings: Option<Settings>,
    metrics: Option<ProbeMetrics>,
    /// Set from the start to the end.
    running: Option<Running>,
}

/// A probe between its start and its end.
struct Running {
    switches: Arc<Switches>,
    controller: Arc<Mutex<Controller>>,
    orders: Option<Arc<Orders>>,
    plugins: Option<PluginCounts>,
    intervals: Option<Intervals>,
    rules_are_own: bool,
    inner: bool,
    live: bool,
    sender: SyncSender<Closed>,
    thread: JoinHandle<()>,
}

impl ProbeAnalysis {
    /// A probe with these settings.
    pub fn new(settings: Settings) -> ProbeAnalysis {
        ProbeAnalysis { settings: Some(settings), metrics: None, running: None }
    }
}

impl Analysis for ProbeAnalysis {
    fn metrics(&mut self, registry: &mut Registry) {
        self.metrics = Some(ProbeMetrics::new(registry));
    }

    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let Some(settings) = self.settings.take() else {
            return Err(anyhow!("a probe was started twice; this is a bug"));
        };
        let Settings { config, seed, inner, live, intervals, rules_are_own, workers, .. } = settings;
        let Settings { show, mut store, helper, folders, targets, .. } = settings;
        let plugins = capture.plugins();
        let counted = plugins.as_ref().map(PluginCounts::read).unwrap_or_default();
        config.check_counters(&counted).map_err(anyhow::Error::msg)?;
        let switches = Arc::new(Switches::new(Plan::new(config, seed)?));
        if let Some(store) = &mut store {
            store.start(())?;
        }
        let keep = Keep::new(store, self.metrics.clone(), live);
        let helper = helper.map(ProbeHelper::listen).transpose()?;
        let recorder = folders.map(|folders| folders.start(workers, capture.interfaces())).transpose()?;
        let exporter = targets.map(Opened::start).transpose()?;
        let controller = Controller::new(Reader::new(workers), show, keep, helper, (recorder, exporter));
        let orders = controller.orders();
        let controller = Arc::new(Mutex::new(controller));
        let (sender, inbox) = sync_channel::<Closed>(UNDER_WAY);
        let held = Arc::clone(&controller);
        let thread = std::thread::Builder::new().name("wl-results".into()).spawn(move || {
            for closed in inbox {
                if !locked(&held).take(closed) {
                    break;
                }
            }
        });
        let thread = thread.context("starting the thread that shows results")?;
        self.running = Some(Running {
            switches,
            controller,
            orders,
            plugins,
            intervals,
            rules_are_own,
            inner,
            live,
            sender,
            thread,
        });
        Ok(())
    }

    fn handler(&mut self, worker: &Worker) -> Result<AnyHandler> {
        let running =
            self.running.as_ref().ok_or_else(|| anyhow!("a probe was not started; this is a bug"))?;
        let outlet: Box<dyn FnMut(Closed) -> bool + Send> = if running.live {
            // Results are shown in parallel to the workers.
            let sender = running.sender.clone();
            Box::new(move |closed| sender.send(closed).is_ok())
        } else {
            // Changes caused by a result must be active before the next packet is counted, and a file has the next packet
            // at once.
            let controller = Arc::clone(&running.controller);
            Box::new(move |closed| locked(&controller).take(closed))
        };
        let switches = Arc::clone(&running.switches);
        let mut counting = wirelane_probe::Worker::new(worker.index(), switches, running.inner, outlet);
        counting.plugins(running.plugins.clone());
        running.orders.iter().for_each(|orders| counting.catch(Arc::clone(orders)));
        Ok(Box::new(Prober::new(counting, worker, running.live, running.intervals)?))
    }

    fn status(&self) -> AnalysisStatus {
        let store = self.running.as_ref().and_then(|running| locked(&running.controller).store());
        let outputs = store.into_iter().collect();
        AnalysisStatus { name: "probe".to_owned(), outputs, ..AnalysisStatus::default() }
    }

    fn interval(&mut self, ledger: &Ledger, _: &mut Report) {
        if let Some(running) = &self.running {
            locked(&running.controller).ledger(&ledger.total);
        }
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        let Some(Running { controller, rules_are_own, sender, thread, .. }) = self.running.take() else {
            return Ok(());
        };
        // The handlers are dropped; this is the last sender of the channel.
        drop(sender);
        thread.join().map_err(|_| anyhow!("the thread that shows results panicked; this is a bug"))?;
        let total = outcome.as_ref().map(|outcome| outcome.ledger.total);
        let rules = outcome.as_ref().and_then(|outcome| outcome.rules.as_ref());
        let counted = rules.map_or(&[][..], |rules| &rules.plugins);
        let (results, failed) = locked(&controller).finish(total.as_ref(), counted);
        let (Some(outcome), Some(total)) = (outcome, total) else { return Ok(()) };
        // The user has not given the rules for delivered packets, and the ledger counts these packets.
        outcome.rules.take_if(|rules| rules_are_own && rules.plugins.is_empty());
        crate::analysis::printed(outcome, failed.map_or(Ok(()), Err))?;
        let totals = &results.totals;
        if totals.packets != total.analysed + total.offloaded
            || totals.bytes != total.bytes + total.offloaded_bytes
        {
            outcome.fail(Some(anyhow!(
                "the sum of the measured packets differs from the ledger; this is a bug: please report it"
            )));
        }
        outcome.fail(results.failure());
        report.probe(results);
        Ok(())
    }
}
