//! `wirelane probe`: measurements, alarms and schedules, defined by a configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use wirelane::control::Purpose;
use wirelane::{Error, KernelFlows};
use wirelane_monitor::analysis::{self, RowReporter, Told};
use wirelane_monitor::helper::Helper;
use wirelane_monitor::live_view::LiveView;
use wirelane_monitor::probe::analysis::{Alone, ProbeAnalysis, Settings};
use wirelane_monitor::probe::exporter::Opened;
use wirelane_monitor::probe::helper;
use wirelane_monitor::probe::recorder::Folders;
use wirelane_monitor::probe::show::Show;
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::Reporter;
use wirelane_monitor::shares::Shares;
use wirelane_monitor::store::Store;
use wirelane_monitor::{files, out};
use wirelane_probe::config::{LONGEST, describe};
use wirelane_probe::{Config, READY, ready};
use wirelane_screen::probe::TopModel;

use crate::metrics::MetricsArgs;
use crate::outputs::{self, StoreArgs, TimesArgs};
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};

mod help;
mod kernel;
mod plugins;
pub mod set;
mod settle;
pub mod shared;

pub use help::HELP;
use settle::settle;
pub use settle::settled;

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
        let text = files::text(&path, LONGEST as u64)?;
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
    probe(args, origin, config)
}

/// Opens the outputs of a probe, before privileges are dropped.
fn opened(
    source: &mut SourceArgs,
    store: &StoreArgs,
    config: Config,
    (helper, show): (Option<Helper>, Show),
    (workers, alone): (usize, Option<Alone>),
) -> Result<ProbeAnalysis> {
    let live = source.read.is_empty();
    let owner = source.rights.identity()?.map(|identity| identity.ids());
    let opened = Store::open(&store.options(), live, owner, Shares::UNLIMITED, |_| 0)?;
    source.rights.stores(store.folder.as_ref());
    let folders = Folders::open(&config, owner, &mut source.rights.trees)?;
    let targets = Opened::open(&config, owner, source.rights.exports())?;
    ProbeAnalysis::new(Settings {
        config,
        inner: source.inner,
        live,
        intervals: source.kernel_flows.and_then(|flows| flows.intervals),
        rules_are_own: !source.ruled.are_changeable(),
        workers,
        show,
        store: opened,
        helper,
        folders,
        targets,
        alone,
    })
}

/// Runs the probe with its configuration.
fn probe(mut args: Args, origin: Origin, config: Config) -> Result<()> {
    let (workers, steering) = settle(&mut args, &config)?;
    let live = args.source.read.is_empty();
    if args.top {
        if !live {
            let reason = "a file is read as fast as possible, so there is nothing live to show".to_owned();
            return Err(Error::BadOption { option: "--top", reason }.into());
        }
        outputs::needs_terminal()?;
        args.source.rights.terminal = true;
    }
    let expression = args.source.expression()?;
    // Before privileges are dropped: after that, no files can be opened and no programs started. A later configuration
    // may need both.
    let again = origin.again.then(|| absolute(&origin.path)).transpose()?;
    let helper = if again.is_some() || config.runs_programs() {
        Some(helper::start(args.source.rights.identity()?, again, &args.metrics.secrets())?)
    } else {
        None
    };
    let source = &mut args.source;
    source.kernel_flows = kernel::flows(source, args.cache_entries, &config, steering)?;
    plugins::prepare(source, &config)?;
    source.reloads = true;
    let endpoint = args.metrics.open(source)?;
    if live {
        (source.service, source.rights.serves) = (Some(Purpose::Probe), true);
    }
    let (quiet, json) = (args.quiet, source.json);
    let show = if json { Show::Json { quiet } } else { Show::Table { quiet } };
    let model = args.top.then(|| Arc::new(TopModel::new(&config)));
    let view = model.clone().map(|model| Box::new(LiveView::new(model)) as Box<dyn Reporter>);
    let alone = Alone { origin: (origin.path, origin.text), endpoint, model };
    let probe = opened(source, &args.store, config, (helper, show), (workers, Some(alone)))?;
    let capture = source.open(&expression, workers, steering, BalanceArg::Static, None)?;
    let report = Report::new(json, capture.engine(), Stream::Stdout);
    let mut reporter = RowReporter::new(report, json && !quiet, view);
    analysis::run(capture, &source.limits(), &mut [Box::new(probe)], Told::default(), &mut reporter)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("finding {}", path.display()))
}
