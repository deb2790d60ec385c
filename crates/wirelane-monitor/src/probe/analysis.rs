//! Measurements of a probe: `wirelane probe`, or one of several analyses of a monitor's capture.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, anyhow};
use wirelane::control::Serving;
use wirelane::{Capture, Intervals, Ledger, PluginCounts, Worker};
use wirelane_export::metrics::{Endpoint, ProbeMetrics, Registry};
use wirelane_probe::{Closed, Config, Entry, Orders, Plan, Reader, Switches};
use wirelane_screen::probe::TopModel;

use super::change::Changer;
use super::controller::{Controller, locked};
use super::exporter::Opened;
use super::helper::ProbeHelper;
use super::keep::Keep;
use super::recorder::Folders;
use super::show::Show;
use super::worker::Prober;
use crate::analysis::{Analysis, AnyHandler};
use crate::helper::Helper;
use crate::metrics::Numbers;
use crate::report::Report;
use crate::run_loop::Outcome;
use crate::status::AnalysisStatus;
use crate::store::Store;

/// Maximum results in the channel from the workers to the output. If the output is slow, the workers wait, and their
/// rings fill: packets lost then are in the ledger.
const UNDER_WAY: usize = 16;

/// Parts of a probe's analysis, opened before privileges are dropped.
pub struct Settings {
    /// The configuration.
    pub config: Config,
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
    /// Parts that only `wirelane probe` has; `None`: a monitor runs the probe.
    pub alone: Option<Alone>,
}

/// Parts of a probe that runs as a command.
pub struct Alone {
    /// Path and text of the configuration, which SIGHUP and requests of other processes change.
    pub origin: (PathBuf, String),
    /// Where metrics of the ledger and of the probe are served.
    pub endpoint: Option<Endpoint>,
    /// The live view.
    pub model: Option<Arc<TopModel>>,
}

/// See [`Analysis`].
pub struct ProbeAnalysis {
    /// Set until the start.
    settings: Option<Prepared>,
    metrics: Option<ProbeMetrics>,
    /// Metrics of a command of its own, served until drop.
    numbers: Option<Numbers<ProbeMetrics>>,
    /// Set from the start to the end.
    running: Option<Running>,
}

/// A probe before its start.
struct Prepared {
    settings: Settings,
    seed: u64,
    switches: Arc<Switches>,
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
    /// Answers requests of other processes until the last packet is counted.
    serving: Option<Serving>,
}

impl ProbeAnalysis {
    /// A probe with these settings.
    ///
    /// # Errors
    /// Rules of the configuration that cannot be compiled, or no random numbers.
    pub fn new(settings: Settings) -> Result<ProbeAnalysis> {
        let seed = seed(settings.live)?;
        let switches = Arc::new(Switches::new(Plan::new(settings.config.clone(), seed)?));
        let settings = Some(Prepared { settings, seed, switches });
        Ok(ProbeAnalysis { settings, metrics: None, numbers: None, running: None })
    }
}

/// A secret random seed of sketches for live captures, whose packets may be hostile; for a file a constant, so that results
/// are the same at every run.
fn seed(live: bool) -> Result<u64> {
    if !live {
        return Ok(0);
    }
    let mut bytes = [0; 8];
    let mut random = File::open("/dev/urandom").context("opening /dev/urandom")?;
    random.read_exact(&mut bytes).context("reading /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

impl Analysis for ProbeAnalysis {
    fn metrics(&mut self, registry: &mut Registry) {
        self.metrics = Some(ProbeMetrics::new(registry));
    }

    fn start(&mut self, capture: &mut Capture) -> Result<()> {
        let Some(Prepared { settings, seed, switches }) = self.settings.take() else {
            return Err(anyhow!("a probe was started twice; this is a bug"));
        };
        let Settings { config, inner, live, intervals, rules_are_own, workers, .. } = settings;
        let Settings { show, mut store, helper, folders, targets, alone, .. } = settings;
        let plugins = capture.plugins();
        let counted = plugins.as_ref().map(PluginCounts::read).unwrap_or_default();
        config.check_counters(&counted).map_err(anyhow::Error::msg)?;
        let helper = helper.map(ProbeHelper::listen).transpose()?;
        if let Some(store) = &mut store {
            store.start(())?;
        }
        let (origin, endpoint, model) = match alone {
            Some(Alone { origin, endpoint, model }) => (Some(origin), endpoint, model),
            None => (None, None, None),
        };
        self.numbers = endpoint.map(|endpoint| Numbers::serve(endpoint, ProbeMetrics::new)).transpose()?;
        let own = self.numbers.as_ref().map(|numbers| numbers.own.clone());
        let keep = Keep::new(store, own.or(self.metrics.clone()), live);
        let recorder = folders.map(|folders| folders.start(workers, capture.interfaces())).transpose()?;
        let exporter = targets.map(Opened::start).transpose()?;
        let mut controller = Controller::new(Reader::new(workers), show, keep, helper, (recorder, exporter));
        controller.screen(model);
        let orders = controller.orders();
        let controller = Arc::new(Mutex::new(controller));
        let mut serving = None;
        if let Some((path, text)) = origin {
            let whole = intervals.and_then(|_| config.whole());
            let changer = Arc::new(Changer::new(Arc::clone(&switches), (path, &text), seed, whole, counted));
            changer.watch(&controller)?;
            serving = capture.service().map(|service| changer.serve(service, &controller)).transpose()?;
        }
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
            serving,
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
        self.numbers.iter().for_each(|numbers| numbers.ledger.set(ledger));
        if let Some(running) = &self.running {
            locked(&running.controller).ledger(&ledger.total);
        }
    }

    fn finish(&mut self, outcome: Option<&mut Outcome>, report: &mut Report) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let Running { controller, rules_are_own, sender, thread, serving, .. } = running;
        // The handlers are dropped; this is the last sender of the channel.
        drop(sender);
        thread.join().map_err(|_| anyhow!("the thread that shows results panicked; this is a bug"))?;
        drop(serving);
        // The terminal is restored: later output is printed on it.
        locked(&controller).screen(None);
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
