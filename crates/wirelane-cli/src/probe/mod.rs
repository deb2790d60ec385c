//! `wirelane probe`: measurements, alarms and schedules, defined by a configuration.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use wirelane::control::Purpose;
use wirelane::{Capture, Error, KernelFlows, Ledger, PluginCounts, RuleStats};
use wirelane_export::metrics::{LedgerMetrics, ProbeMetrics};
use wirelane_probe::config::{LONGEST, describe};
use wirelane_probe::{Closed, Config, Plan, READY, Reader, Switches, Worker, ready};

use crate::metrics::{MetricsArgs, Numbers};
use crate::outputs::{StoreArgs, TimesArgs};
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};
use wirelane_monitor::out::{self, ReaderGone};
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::{self, Reporter};
use wirelane_monitor::shares::Shares;
use wirelane_monitor::store::Store;

mod help;
mod kernel;
mod plugins;
pub mod set;
mod settle;
pub mod shared;

pub use help::HELP;
use settle::settle;
pub use settle::settled;
use wirelane_monitor::live_view::LiveView;
use wirelane_monitor::probe::change::Changer;
use wirelane_monitor::probe::controller::Controller;
use wirelane_monitor::probe::exporter::Opened;
use wirelane_monitor::probe::helper::{self, ProbeHelper};
use wirelane_monitor::probe::keep::Keep;
use wirelane_monitor::probe::recorder::Folders;
use wirelane_monitor::probe::show::Show;
use wirelane_monitor::probe::worker::Prober;
use wirelane_screen::probe::TopModel;

/// Measure traffic and raise alarms, as a configuration says
///
/// A configuration in TOML says which packets are counted and how, in intervals, and which actions run when a value
/// crosses a threshold. On SIGHUP it is read again: the new one takes over between two packets, with none lost or
/// counted twice; one with mistakes is refused, and the old one stays active. 'wirelane probe set' changes single
/// values in the same way, and 'wirelane probe show' prints the state.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    running: Option<set::Running>,

    /// The configuration, a file; '-' is standard input
    #[arg(value_name = "CONFIG", required_unless_present = "ready")]
    config: Option<PathBuf>,

    /// Use a ready-made configuration instead: arp-spoofing, bandwidth, dns-amplification, microbursts, one-way,
    /// port-scan, retransmissions, syn-flood
    #[arg(long, value_name = "NAME", value_parser = ready_name)]
    ready: Option<String>,

    /// Describe the configuration, or list every mistake in it, and exit
    #[arg(long)]
    check: bool,

    /// Print the file with which 'wirelane monitor' does the same, and exit
    #[arg(long, conflicts_with = "check", help_heading = source::OUTPUT)]
    pub print_config: bool,

    /// Print the ready-made configuration and exit: a start for your own
    #[arg(long, requires = "ready", conflicts_with_all = ["check", "print_config"])]
    print_ready: bool,

    #[command(flatten)]
    source: SourceArgs,

    /// Worker threads, which read the rings, each with its own tables, 1 to 64. Default: as the configuration says,
    /// else 1
    #[arg(long, value_name = "N", help_heading = source::CAPTURE)]
    workers: Option<usize>,

    /// Choice of the worker of a packet, so that those of a connection stay in order. Default: as the configuration
    /// says, else 'flow'
    #[arg(long, value_enum, help_heading = source::CAPTURE)]
    steering: Option<SteeringArg>,

    /// Flows that each lane (RX queue or CPU) has room for, where measurements are made in the kernel, up to 1048576. Default:
    /// 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=KernelFlows::MOST_ENTRIES as i64), help_heading = source::CAPTURE)]
    cache_entries: Option<u32>,

    #[command(flatten)]
    times: TimesArgs,

    /// Print alarms, totals and the ledger, and no results of intervals
    #[arg(short, long, help_heading = source::OUTPUT)]
    quiet: bool,

    /// Show what happens now on the terminal's screen, once an interval of --interval; 'q' ends it
    #[arg(long, conflicts_with_all = ["json", "quiet", "read", "check", "print_config"], help_heading = source::OUTPUT)]
    top: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Maximum results in the channel from the workers to the output. If the output is slow, the workers wait, and their
/// rings fill: packets lost then are in the ledger.
const UNDER_WAY: usize = 16;

fn ready_name(name: &str) -> std::result::Result<String, String> {
    let names: Vec<&str> = READY.iter().map(|(name, _)| *name).collect();
    if ready(name).is_some() { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

/// Source of a configuration.
struct Origin {
    /// Path for messages.
    path: PathBuf,
    /// Whether it can be read again.
    again: bool,
    text: String,
}

impl Origin {
    /// Reads a file, or the ready-made configuration of this name.
    fn load(config: Option<&Path>, ready_made: Option<&str>) -> Result<Origin> {
        if let Some(name) = ready_made {
            let text = ready(name).context("there is no such configuration")?.to_owned();
            return Ok(Origin { path: format!("ready {name}").into(), again: false, text });
        }
        let path = config.context("no configuration")?.to_owned();
        let from_stdin = path.as_os_str() == "-";
        let mut text = String::new();
        let read = if from_stdin {
            std::io::stdin().lock().take(LONGEST as u64 + 1).read_to_string(&mut text)
        } else {
            File::open(&path).and_then(|file| file.take(LONGEST as u64 + 1).read_to_string(&mut text))
        };
        read.map_err(|source| Error::Io { path: path.clone(), source })?;
        let path = if from_stdin { "standard input".into() } else { path };
        Ok(Origin { path, again: !from_stdin, text })
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    if let Some(running) = &args.running {
        return set::run(running);
    }
    if args.ready.is_some()
        && let Some(word) = args.config.take()
    {
        // No configuration is given: this word is the first of the filter.
        let word =
            word.into_os_string().into_string().map_err(|word| anyhow!("{} is no text", word.display()))?;
        args.source.filter.insert(0, word);
    }
    let origin = Origin::load(args.config.as_deref(), args.ready.as_deref())?;
    if args.print_ready {
        return out::print(&origin.text);
    }
    let config = Config::parse(&origin.text, &origin.path)?;
    if args.check {
        return out::print(describe(&config));
    }
    probe(args, &origin, config)
}

/// A secret random seed for live captures, whose packets may be hostile; for a file a constant, so that results are the
/// same at every run.
fn seed(live: bool) -> Result<u64> {
    if !live {
        return Ok(0);
    }
    let mut bytes = [0; 8];
    let mut random = File::open("/dev/urandom").context("opening /dev/urandom")?;
    random.read_exact(&mut bytes).context("reading /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Runs the probe with its configuration.
fn probe(mut args: Args, origin: &Origin, config: Config) -> Result<()> {
    let (workers, steering) = settle(&mut args, &config)?;
    let live = args.source.read.is_empty();
    if args.top {
        let wrong = |reason: &str| Error::BadOption { option: "--top", reason: reason.into() };
        if !live {
            return Err(wrong("a file is read as fast as possible, so there is nothing live to show").into());
        }
        if !wirelane_screen::terminal::is_terminal() {
            return Err(
                wrong("standard output is not a terminal: leave the option out, or use --json").into()
            );
        }
        args.source.rights.terminal = true;
    }
    let expression = args.source.expression()?;
    let seed = seed(live)?;
    // Before privileges are dropped: after that, no files can be opened and no programs started. A later configuration
    // may need both.
    let again = origin.again.then(|| absolute(&origin.path)).transpose()?;
    let helper = if again.is_some() || config.runs_programs() {
        Some(helper::start(args.source.rights.identity()?, again, &args.metrics.secrets())?)
    } else {
        None
    };
    args.source.kernel_flows = kernel::flows(&mut args.source, args.cache_entries, &config, steering)?;
    plugins::prepare(&mut args.source, &config)?;
    let owner = args.source.rights.identity()?.map(|identity| identity.ids());
    let mut store = Store::open(&args.store.options(), live, owner, Shares::UNLIMITED, |_| 0)?;
    args.source.rights.stores(args.store.folder.as_ref());
    let folders = Folders::open(&config, owner, &mut args.source.rights.trees)?;
    let targets = Opened::open(&config, owner, args.source.rights.exports())?;
    args.source.reloads = true;
    let endpoint = args.metrics.open(&mut args.source)?;
    if live {
        (args.source.service, args.source.rights.serves) = (Some(Purpose::Probe), true);
    }
    let model = args.top.then(|| Arc::new(TopModel::new(&config)));
    let switches = Arc::new(Switches::new(Plan::new(config, seed)?));
    let capture = args.source.open(&expression, workers, steering, BalanceArg::Static, None)?;
    let counted = capture.plugins().as_ref().map(PluginCounts::read).unwrap_or_default();
    switches.now().1.config().check_counters(&counted).map_err(anyhow::Error::msg)?;
    let helper = helper.map(ProbeHelper::listen).transpose()?;
    if let Some(store) = &mut store {
        store.start(())?;
    }
    let numbers = endpoint.map(|endpoint| Numbers::serve(endpoint, ProbeMetrics::new)).transpose()?;
    let keep = Keep::new(store, numbers.as_ref().map(|numbers| numbers.own.clone()), live);
    let show = match (args.quiet, args.source.json) {
        (quiet, true) => Show::Json { quiet },
        (quiet, false) => Show::Table { quiet },
    };
    let recorder = folders.map(|folders| folders.start(workers, capture.interfaces())).transpose()?;
    let exporter = targets.map(Opened::start).transpose()?;
    let mut controller = Controller::new(Reader::new(workers), show, keep, helper, (recorder, exporter));
    controller.screen(model.clone());
    let whole = args.source.kernel_flows.and_then(|_| switches.now().1.config().whole());
    let changer =
        Changer::new(Arc::clone(&switches), (origin.path.clone(), &origin.text), seed, whole, counted);
    watch(
        &args,
        capture,
        controller,
        switches,
        changer,
        (numbers.as_ref().map(|numbers| numbers.ledger.clone()), model),
    )
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("finding {}", path.display()))
}

/// Runs the capture, from its start to the last line of output.
fn watch(
    args: &Args,
    mut capture: Capture,
    controller: Controller,
    switches: Arc<Switches>,
    changer: Changer,
    (numbers, model): (Option<LedgerMetrics>, Option<Arc<TopModel>>),
) -> Result<()> {
    let live = args.source.read.is_empty();
    let (plugins, orders) = (capture.plugins(), controller.orders());
    let intervals = args.source.kernel_flows.and_then(|flows| flows.intervals);
    let controller = Arc::new(Mutex::new(controller));
    let mut reporter = ProbeReporter {
        report: Report::new(args.source.json, capture.engine(), Stream::Stdout),
        json: args.source.json && !args.quiet,
        numbers,
        controller: Arc::clone(&controller),
        view: model.map(LiveView::new),
    };
    let changer = Arc::new(changer);
    changer.watch(&controller)?;
    // Serves requests until the last packet is counted.
    let serving = capture.service().map(|service| changer.serve(service, &controller)).transpose()?;
    let (sender, inbox) = mpsc::sync_channel::<Closed>(UNDER_WAY);
    let (outcome, joined) = std::thread::scope(|scope| {
        let held = Arc::clone(&controller);
        let thread = std::thread::Builder::new().name("wl-results".into());
        let thread = thread.spawn_scoped(scope, move || {
            for closed in inbox {
                if !wirelane_monitor::probe::controller::locked(&held).take(closed) {
                    break;
                }
            }
        })?;
        let begun = |worker: &wirelane::Worker| {
            let outlet: Box<dyn FnMut(Closed) -> bool + Send> = if live {
                // Results are shown in parallel to the workers.
                let sender = sender.clone();
                Box::new(move |closed| sender.send(closed).is_ok())
            } else {
                // Changes caused by a result must be active before the next packet is counted, and a file has the next
                // packet at once.
                let controller = Arc::clone(&controller);
                Box::new(move |closed| wirelane_monitor::probe::controller::locked(&controller).take(closed))
            };
            let mut counting = Worker::new(worker.index(), Arc::clone(&switches), args.source.inner, outlet);
            counting.plugins(plugins.clone());
            orders.iter().for_each(|orders| counting.catch(Arc::clone(orders)));
            Prober::new(counting, worker, live, intervals)
        };
        let outcome = run_loop::run(capture, &args.source.limits(), begun, &mut reporter);
        // The handlers are gone; this is the last end of the channel.
        drop(sender);
        anyhow::Ok((outcome, thread.join()))
    })?;
    joined.map_err(|_| anyhow!("the thread that shows results panicked; this is a bug"))?;
    drop(serving);
    // Later output is printed on the restored terminal.
    drop(reporter.view.take());
    wirelane_monitor::probe::controller::locked(&controller).screen(None);
    let counters = outcome.as_ref().ok().map(|outcome| &outcome.ledger.total);
    let rules = outcome.as_ref().ok().and_then(|outcome| outcome.rules.as_ref());
    let counted = rules.map_or(&[][..], |rules| &rules.plugins);
    let (report, failed) = wirelane_monitor::probe::controller::locked(&controller).finish(counters, counted);
    let mut outcome = match (outcome, failed) {
        // A closed reader ends the workers, whose errors are less specific.
        (Ok(_), Some(error)) if error.is::<ReaderGone>() => return Err(error),
        (Ok(mut outcome), Some(error)) => {
            outcome.failure = Some(error);
            outcome
        }
        (Ok(outcome), None) => outcome,
        (Err(error), _) => return Err(error),
    };
    let total = &outcome.ledger.total;
    if outcome.failure.is_none()
        && (report.totals.packets != total.analysed + total.offloaded
            || report.totals.bytes != total.bytes + total.offloaded_bytes)
    {
        let failure = anyhow!(
            "the sum of the measured packets differs from the ledger; this is a bug: please report it"
        );
        outcome.failure = Some(failure);
    }
    outcome.failure = outcome.failure.or_else(|| report.failure());
    // The rules for delivered packets are not the user's, and the delivered packets are counted in the ledger.
    let own = |rules: &RuleStats| !args.source.ruled.are_changeable() && rules.plugins.is_empty();
    reporter.report.ruled(outcome.rules.filter(|rules| !own(rules)));
    reporter.report.probe(report);
    let last = reporter.report.last(&outcome.ledger, outcome.elapsed);
    match outcome.failure {
        Some(failure) => bail!(failure),
        None => last,
    }
}

/// Intervals of the ledger are shown only in JSON: between results they would disturb.
struct ProbeReporter {
    report: Report,
    json: bool,
    numbers: Option<LedgerMetrics>,
    controller: Arc<Mutex<Controller>>,
    view: Option<LiveView<TopModel>>,
}

impl Reporter for ProbeReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        match &mut self.view {
            Some(view) => view.ready(capture),
            None => self.report.ready(capture),
        }
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if let Some(numbers) = &self.numbers {
            numbers.set(ledger);
        }
        wirelane_monitor::probe::controller::locked(&self.controller).ledger(&ledger.total);
        match &mut self.view {
            Some(view) => view.interval(ledger, elapsed),
            None if self.json => self.report.interval(ledger, elapsed),
            None => Ok(()),
        }
    }
}
