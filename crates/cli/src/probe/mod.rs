//! `wirelane probe`: measurements, alarms and schedules, as a configuration says.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use wirelane::{Capture, Error, KernelFlows, Ledger, PluginCounts};
use wirelane_export::metrics::{LedgerMetrics, ProbeMetrics};
use wirelane_probe::config::{Engine, LONGEST, Steering, describe};
use wirelane_probe::{Closed, Config, Plan, READY, Reader, Switches, Worker, ready};

use crate::metrics::{MetricsArgs, Numbers};
use crate::out::{self, ReaderGone};
use crate::report::{Report, Stream};
use crate::session::{self, Reporter};
use crate::source::{self, BalanceArg, EngineArg, SourceArgs, SteeringArg};
use crate::store::{Store, StoreArgs, Stored};

mod desk;
mod exporter;
pub mod helper;
mod keep;
mod kernel;
mod plugins;
mod recorder;
mod report;
mod show;
mod worker;

use desk::{Desk, Reload};
use exporter::Opened;
use helper::Helper;
use keep::Keep;
use recorder::Folders;
pub use report::ProbeReport;
use show::Show;
use worker::Prober;

/// Measure what a configuration says, and raise alarms about it
///
/// A configuration in TOML says which packets are counted by what, in intervals, and what is done where a value is
/// beyond a threshold. On SIGHUP it is read again: a new one takes over between two packets, with none lost or counted
/// twice, and one with mistakes is refused while the old one stays in force.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The configuration, a file; '-' is standard input
    #[arg(value_name = "CONFIG", required_unless_present = "ready")]
    config: Option<PathBuf>,

    /// Use a configuration that is ready instead: arp-spoofing, bandwidth, dns-amplification, microbursts, one-way,
    /// port-scan, retransmissions, syn-flood
    #[arg(long, value_name = "NAME", value_parser = ready_name)]
    ready: Option<String>,

    /// Say what the configuration will do, or every mistake that is found in it, and do nothing
    #[arg(long)]
    check: bool,

    /// Print the configuration and do nothing: a ready one is where one's own begins
    #[arg(long, conflicts_with = "check")]
    print_config: bool,

    #[command(flatten)]
    source: SourceArgs,

    /// Workers: threads that take packets out of the rings, each with tables of its own, 1 to 64. Default: as the
    /// configuration says, else 1
    #[arg(long, value_name = "N", help_heading = source::CAPTURE)]
    workers: Option<usize>,

    /// Which worker gets a packet, so that those of a connection stay in order. Default: as the configuration says, else
    /// 'flow'
    #[arg(long, value_enum, help_heading = source::CAPTURE)]
    steering: Option<SteeringArg>,

    /// Flows that each lane (RX queue or CPU) has room for, where measurements are made in the kernel, up to 1048576. Default:
    /// 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=KernelFlows::MOST_ENTRIES as i64), help_heading = source::CAPTURE)]
    cache_entries: Option<u32>,

    /// Print alarms, totals and the ledger, and no results of intervals
    #[arg(short, long, help_heading = source::OUTPUT)]
    quiet: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    metrics: MetricsArgs,
}

/// What follows the options in the long help.
pub const HELP: &str = "\
A configuration:
  interval = \"1s\"                   # of results; packets' time, UTC
  [capture]                         # options of the command line come first
  devices = [\"eth1\"]                # or read = \"FILE\"; engine, workers,
                                    # steering, filter
  [[rule]]                          # which packets: conditions of rule files
  name = \"syn\"
  tcp-flags = \"S/SA\"

  [[measurement]]
  name = \"syns\"
  rule = \"syn\"                      # else all packets
  key = [\"dst\"]                     # else all together
  values = [\"pps\", \"distinct-src\"]
  keys = 10000                      # room; the rest is counted in 'other'
  analysis = \"user\"                 # or \"kernel\", \"auto\": see below

  [[plugin]]                        # your own BPF program (wirelane/plugin.h)
  name = \"dns\"
  file = \"dns.bpf.o\"
  [[measurement]]
  name = \"questions\"                # what it counts in each interval
  plugin = \"dns\"
  counters = [\"queries\", \"asked\"]   # else all of them; asked and matched too

  [[alarm]]
  name = \"flood\"
  measurement = \"syns\"
  value = \"pps\"                     # or counter = \"queries\"
  above = 1000                      # or below, rises, falls (percent)
  clear = 500
  actions = [\"tell\"]

  [[action]]
  name = \"tell\"
  run = [\"/usr/local/bin/tell\", \"{alarm}\", \"{state}\", \"{key}\", \"{value}\"]
  timeout = \"5s\"                    # or log = true, activate = [...],
                                    # or record, or export, as here:
  [[action]]
  name = \"keep\"                     # packets around the event, as pcapng
  record = { folder = \"/var/lib/alarms\", before = \"2s\", after = \"5s\" }
  digest = \"sha256\"                 # in record, too: rule, buffer, most,
                                    # cool-down, at-once, files
  [[action]]
  name = \"say\"
  export = \"syslog://192.0.2.9\"     # or unix:/dev/log; as JSON file:PATH,
                                    # udp://HOST:PORT, tcp://HOST:PORT

  [[schedule]]
  name = \"night\"
  at = \"22:00\"                      # UTC; or every = \"10m\"; days = [\"mon\"]
  deactivate = [\"flood\"]            # or activate = [...], flush = true

Keys: src, dst, src-net, dst-net (prefix, prefix6), src-port, dst-port, port
  (the lower), protocol, vlan, queue, device, pair, flow (both directions),
  application (what speaks in a conversation, from the packet on that says it)
Values: packets, bytes, pps, bps; flows, distinct-src, distinct-dst,
  distinct-src-port, distinct-dst-port (estimates; precision); top-src, top-dst,
  top-port, top-flow (with what may be too much in error); lengths, gaps (ns);
  peak-packets, peak-bytes (bin); one-way; macs; segments, retransmissions,
  retransmitted-percent; keys, entropy

analysis = \"kernel\": lanes add packets up by addresses, ports, protocol, VLAN,
  device and direction, and only these sums come up: the packets are 'absorbed'
  in the ledger, and many measurements cost what one costs. Results are the
  same, and come up to 2 s later. It takes engine 'ring', values and rules that
  are not about each packet (lengths, gaps, peaks, segments, TCP flags), and all
  measurements in one place; \"auto\" is \"kernel\" where that is so, and --check
  says why where it is not.

With --json: an object for each measurement and interval, with 'measurement';
for each alarm that is raised or cleared, with 'alarm'; at the end the totals,
with \"total\": true, and the ledger, with \"final\": true.

Examples:
  wirelane probe --ready syn-flood -r capture.pcapng
  wirelane probe --ready bandwidth --print-config > my.toml
  wirelane probe my.toml --check
  sudo wirelane probe my.toml -i eth1 --workers 2 --json
  sudo wirelane probe my.toml -i eth1 --store probe.db --metrics 127.0.0.1:9464
  sudo kill -HUP $(pgrep -x wirelane)          # read the configuration again

With --store results, alarms and the ledger are kept in tables 'measurements',
'alarms' and 'ledgers', for 'wirelane query' and 'wirelane report'; with
--metrics Prometheus may ask for them.

Programs are run without a shell, as the user that the command becomes (--user),
four at a time and 64 waiting at most. One that fails, or that does not end in
time and is ended, is told and counted, and holds nothing up. So are recordings
and exports that fail, or that there are too many of.
Exit status: 0 done (also after Ctrl-C), 1 failed or a mistake in the
configuration, 2 wrong usage.";

/// Tables on their way from the workers to who shows them. Where that is slow the workers wait, and their rings fill: what
/// is lost then is in the ledger.
const UNDER_WAY: usize = 16;

fn ready_name(name: &str) -> std::result::Result<String, String> {
    let names: Vec<&str> = READY.iter().map(|(name, _)| *name).collect();
    if ready(name).is_some() { Ok(name.to_owned()) } else { Err(format!("there are {}", names.join(", "))) }
}

/// Where a configuration comes from.
struct Origin {
    /// For messages.
    path: PathBuf,
    /// Whether it can be read again.
    again: bool,
    text: String,
}

impl Origin {
    fn load(args: &Args) -> Result<Origin> {
        if let Some(name) = &args.ready {
            let text = ready(name).context("there is no such configuration")?.to_owned();
            return Ok(Origin { path: format!("ready {name}").into(), again: false, text });
        }
        let path = args.config.clone().context("no configuration")?;
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
    if args.ready.is_some()
        && let Some(word) = args.config.take()
    {
        // There is no configuration to be named: it is the first word of the filter.
        let word =
            word.into_os_string().into_string().map_err(|word| anyhow!("{} is no text", word.display()))?;
        args.source.filter.insert(0, word);
    }
    let origin = Origin::load(&args)?;
    if args.print_config {
        return out::print(&origin.text);
    }
    let config = Config::parse(&origin.text, &origin.path)?;
    if args.check {
        return out::print(describe(&config));
    }
    probe(args, &origin, config)
}

/// What the configuration says of the capture, where the command line does not.
fn settle(args: &mut Args, config: &Config) -> Result<(usize, SteeringArg)> {
    let capture = &config.capture;
    let source = &mut args.source;
    ensure!(
        capture.devices.is_empty() || capture.read.is_none(),
        "[capture] has devices and read: give one of them"
    );
    if source.interface.is_empty() && source.read.is_none() {
        source.interface.clone_from(&capture.devices);
        source.read = capture.read.as_ref().map(PathBuf::from);
    }
    if let (EngineArg::Auto, Some(engine)) = (source.engine, capture.engine) {
        source.engine = match engine {
            Engine::Auto => EngineArg::Auto,
            // Another source on the command line has another engine.
            Engine::File if source.read.is_none() => EngineArg::Auto,
            Engine::File => EngineArg::File,
            _ if source.read.is_some() => EngineArg::Auto,
            Engine::Ring => EngineArg::Ring,
            Engine::Xsk => EngineArg::Xsk,
            Engine::Packet => EngineArg::Packet,
        };
    }
    if source.filter.is_empty()
        && source.filter_file.is_none()
        && let Some(filter) = &capture.filter
    {
        source.filter = vec![filter.clone()];
    }
    let steering = match (args.steering, capture.steering) {
        (Some(SteeringArg::Copy | SteeringArg::RoundRobin), _) => {
            let reason =
                "each packet is counted by one worker, and those of a connection by the same: give 'flow'";
            return Err(Error::BadOption { option: "--steering", reason: reason.into() }.into());
        }
        (Some(steering), _) => steering,
        (None, None | Some(Steering::Flow)) => SteeringArg::Flow,
        (None, Some(Steering::Queue)) => SteeringArg::Queue,
    };
    let from_file = source.read.is_some();
    let workers = args.workers.or(if from_file { None } else { capture.workers }).unwrap_or(1);
    Ok((workers, steering))
}

/// A seed that nobody can guess, where packets are anybody's; of a file results are the same at every run.
fn seed(live: bool) -> Result<u64> {
    if !live {
        return Ok(0);
    }
    let mut bytes = [0; 8];
    let mut random = File::open("/dev/urandom").context("opening /dev/urandom")?;
    random.read_exact(&mut bytes).context("reading /dev/urandom")?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Everything behind the configuration.
fn probe(mut args: Args, origin: &Origin, config: Config) -> Result<()> {
    let (workers, steering) = settle(&mut args, &config)?;
    let live = args.source.read.is_none();
    let expression = args.source.expression()?;
    let seed = seed(live)?;
    // Before rights are given up, which leave no way to open files or start programs. It may be asked for both later, by
    // a configuration that comes then.
    let again = origin.again.then(|| absolute(&origin.path)).transpose()?;
    let helper = if again.is_some() || config.runs_programs() {
        Some(Helper::start(args.source.rights.identity()?, again.as_deref())?)
    } else {
        None
    };
    args.source.kernel_flows = kernel::flows(&args, &config, steering)?;
    plugins::prepare(&mut args.source, &config)?;
    let owner = args.source.rights.identity()?.map(|identity| identity.ids());
    let mut store = Store::open(&args.store, live, owner)?;
    args.source.rights.trees.extend(args.store.folder.clone());
    let folders = Folders::open(&config, owner, &mut args.source.rights.trees)?;
    let targets = Opened::open(&config, owner, &mut args.source.rights.tcp_ports)?;
    let endpoint = args.metrics.open(&mut args.source)?;
    let switches = Arc::new(Switches::new(Plan::new(config, seed)?));
    let capture = args.source.open(&expression, workers, steering, BalanceArg::Static, None)?;
    let counted = capture.plugins().as_ref().map(PluginCounts::read).unwrap_or_default();
    switches.now().1.config().check_counters(&counted).map_err(anyhow::Error::msg)?;
    let helper = helper.map(Helper::listen).transpose()?;
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
    let desk = Desk::new(Reader::new(workers), show, keep, helper, (recorder, exporter));
    let in_kernel = args.source.kernel_flows.is_some();
    let reload = Reload {
        switches: Arc::clone(&switches),
        path: origin.path.clone(),
        seed,
        in_kernel,
        plugins: counted,
    };
    watch(&args, capture, desk, switches, reload, numbers.as_ref().map(|numbers| numbers.ledger.clone()))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("finding {}", path.display()))
}

/// The capture, from its start to the last line.
fn watch(
    args: &Args,
    capture: Capture,
    desk: Desk,
    switches: Arc<Switches>,
    reload: Reload,
    numbers: Option<LedgerMetrics>,
) -> Result<()> {
    let live = args.source.read.is_none();
    let intervals = args.source.kernel_flows.and_then(|flows| flows.intervals);
    let (plugins, orders) = (capture.plugins(), desk.orders());
    let desk = Arc::new(Mutex::new(desk));
    let mut reporter = ProbeReporter {
        report: Report::new(args.source.json, capture.engine(), Stream::Stdout),
        json: args.source.json && !args.quiet,
        numbers,
        desk: Arc::clone(&desk),
    };
    reload.watch(&desk)?;
    let (sender, inbox) = mpsc::sync_channel::<Closed>(UNDER_WAY);
    let (outcome, joined) = std::thread::scope(|scope| {
        let at_desk = Arc::clone(&desk);
        let thread = std::thread::Builder::new().name("wl-results".into());
        let thread = thread.spawn_scoped(scope, move || {
            for closed in inbox {
                if !desk::locked(&at_desk).take(closed) {
                    break;
                }
            }
        })?;
        let begun = |worker: &wirelane::Worker| {
            let outlet: Box<dyn FnMut(Closed) -> bool + Send> = if live {
                // Results are shown beside the workers.
                let sender = sender.clone();
                Box::new(move |closed| sender.send(closed).is_ok())
            } else {
                // What is switched by what is shown has to be switched before the next packet is counted, which a file
                // has at once.
                let desk = Arc::clone(&desk);
                Box::new(move |closed| desk::locked(&desk).take(closed))
            };
            let mut counting = Worker::new(worker.index(), Arc::clone(&switches), args.source.inner, outlet);
            counting.plugins(plugins.clone());
            orders.iter().for_each(|orders| counting.catch(Arc::clone(orders)));
            Prober::new(counting, worker, live, intervals)
        };
        let outcome = session::run(capture, &args.source, begun, &mut reporter);
        // The handlers are gone; this is the last end of the channel.
        drop(sender);
        anyhow::Ok((outcome, thread.join()))
    })?;
    joined.map_err(|_| anyhow!("the thread that shows results panicked; this is a bug"))?;
    let counters = outcome.as_ref().ok().map(|outcome| &outcome.ledger.total);
    let rules = outcome.as_ref().ok().and_then(|outcome| outcome.rules.as_ref());
    let counted = rules.map_or(&[][..], |rules| &rules.plugins);
    let (report, failed) = desk::locked(&desk).finish(counters, counted);
    let mut outcome = match (outcome, failed) {
        // A reader that has gone ends the workers, whose errors say less.
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
        && (report.totals.packets != total.analysed + total.kept
            || report.totals.bytes != total.bytes + total.kept_bytes)
    {
        let failure =
            anyhow!("the packets are not what the ledger has counted; this is a bug: please report it");
        outcome.failure = Some(failure);
    }
    let unstored = || report.store.as_ref().and_then(Stored::failure);
    outcome.failure = outcome.failure.or_else(unstored);
    reporter.report.ruled(outcome.rules);
    reporter.report.probe(report);
    let last = reporter.report.last(&outcome.ledger, outcome.elapsed);
    match outcome.failure {
        Some(failure) => bail!(failure),
        None => last,
    }
}

/// Intervals of the ledger are shown to programs only: between results they would be in the way.
struct ProbeReporter {
    report: Report,
    json: bool,
    numbers: Option<LedgerMetrics>,
    desk: Arc<Mutex<Desk>>,
}

impl Reporter for ProbeReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        if let Some(numbers) = &self.numbers {
            numbers.set(&ledger.total);
        }
        desk::locked(&self.desk).ledger(&ledger.total);
        if self.json { self.report.interval(ledger, elapsed) } else { Ok(()) }
    }
}
