//! `wirelane monitor`: several analyses and outputs of one capture, from one file.

mod control;
mod help;
#[cfg(test)]
mod keys;
pub mod print;
mod words;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use clap::{Args as _, Command, FromArgMatches};
use wirelane::control::{Purpose, SharedSocket};
use wirelane_monitor::analysis::{self, Analysis, RowReporter, Told};
use wirelane_monitor::control::Reload;
use wirelane_monitor::helper::{Helper, Permitted};
use wirelane_monitor::reload::{self, Loaded, Reloader};
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::{FlowLimits, OnHangup};
use wirelane_monitor::service::Notifier;
use wirelane_monitor::ship::{SHIP, Shipper};
use wirelane_monitor::site::{Entry, Names, Site};
use wirelane_monitor::wait;

use crate::metrics::MetricsArgs;
use crate::outputs::StoreArgs;
use crate::source::{BalanceArg, SourceArgs, SteeringArg};
use crate::{flows, http, probe, record, ship, voip};
use control::ControlArgs;
pub use help::{CHECK_HELP, HELP};
use words::{reason, words};

/// Analyse and record what one capture delivers, as a file says
///
/// The file has a section for each analysis and output. All of them get the same packets in the same order, each of which is
/// captured and copied once, and their results are those of the single commands.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The configuration, in TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print one JSON object a line: {"ready": true, ...}, one per interval, and the last one with "final": true
    #[arg(long)]
    json: bool,
}

/// Check a configuration of 'wirelane monitor'
///
/// All mistakes are printed, with line, column and what is expected. Nothing is captured, opened or written.
#[derive(clap::Args, Debug)]
#[command(after_long_help = CHECK_HELP)]
pub struct CheckArgs {
    /// The configuration, in TOML
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Names of the sections.
const SECTIONS: [&str; 10] =
    ["capture", "record", "flows", "http", "voip", "probe", "store", SHIP, "metrics", "control"];
/// Names of the sections that are analyses.
const ANALYSES: [&str; 5] = ["record", "flows", "http", "voip", "probe"];
/// Options that are not keys: what the monitor prints is the same for all its analyses.
const OTHERS: [&str; 13] = [
    "json",
    "csv",
    "local-time",
    "quiet",
    "print",
    "top",
    "names",
    "save-selected",
    "help",
    "balance",
    "check",
    "print-config",
    "print-ready",
];

/// Why HTTP that is analysed in the kernel has no other section beside it.
const HTTP_ALONE: &str = "'kernel' leaves bodies in the kernel, which the other sections would miss: use 'user' beside them, \
                          or 'kernel' with [http] alone";

/// Keys of [store], and the options that they are.
fn store_names() -> Names {
    let names = [("folder", "store"), ("max-age", "store-max-age"), ("max-size", "store-max-size")];
    names.into_iter().chain([("rotate", "store-rotate"), ("probe", "store-probe")]).collect()
}

/// Keys of [metrics], and the options that they are.
fn metrics_names() -> Names {
    let names = [("address", "metrics"), ("cert", "metrics-cert"), ("key", "metrics-key")];
    names
        .into_iter()
        .chain([("token-file", "metrics-token-file"), ("token-env", "metrics-token-env")])
        .collect()
}

/// An analysis of the file.
enum Part {
    Record(Box<record::Args>),
    Flows(Box<flows::Args>),
    Http(Box<http::Args>),
    Voip(Box<voip::Args>),
    Probe(Box<probe::shared::Args>),
}

impl Part {
    fn name(&self) -> &'static str {
        match self {
            Part::Record(_) => "record",
            Part::Flows(_) => "flows",
            Part::Http(_) => "http",
            Part::Voip(_) => "voip",
            Part::Probe(_) => "probe",
        }
    }

    fn source(&self) -> &SourceArgs {
        match self {
            Part::Record(args) => &args.source,
            Part::Flows(args) => &args.source,
            Part::Http(args) => &args.source,
            Part::Voip(args) => &args.source,
            Part::Probe(args) => &args.source,
        }
    }

    fn source_mut(&mut self) -> &mut SourceArgs {
        match self {
            Part::Record(args) => &mut args.source,
            Part::Flows(args) => &mut args.source,
            Part::Http(args) => &mut args.source,
            Part::Voip(args) => &mut args.source,
            Part::Probe(args) => &mut args.source,
        }
    }

    /// The store of an analysis that does not store the ledger.
    fn store(&self) -> Option<&StoreArgs> {
        match self {
            Part::Record(_) | Part::Probe(_) => None,
            Part::Flows(args) => Some(&args.store),
            Part::Http(args) => Some(&args.store),
            Part::Voip(args) => Some(&args.store),
        }
    }

    /// Why this part can be the only one, and the key that says so.
    fn excludes_others(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Part::Http(args) => args.is_offloaded().then_some(("analysis", HTTP_ALONE)),
            _ => None,
        }
    }

    /// Whether this part needs all packets, although others analyse them in the kernel.
    fn needs_packets(&self) -> bool {
        match self {
            Part::Flows(args) => !args.is_offloaded(),
            Part::Voip(args) => !args.is_offloaded(),
            _ => true,
        }
    }

    /// Checks the values that are otherwise checked when outputs are opened.
    fn check(&self) -> Result<()> {
        match self {
            Part::Record(args) => args.check(),
            Part::Flows(args) => args.check(),
            Part::Http(args) => args.check(),
            Part::Voip(args) => args.check(),
            Part::Probe(args) => args.check(),
        }
    }

    /// Opens the outputs.
    fn prepare(&mut self) -> Result<Box<dyn Analysis>> {
        Ok(match self {
            Part::Record(args) => Box::new(args.prepare()?),
            Part::Flows(args) => Box::new(args.prepare()?),
            Part::Http(args) => Box::new(args.prepare()?),
            Part::Voip(args) => Box::new(args.prepare()?),
            Part::Probe(args) => Box::new(args.prepare()?),
        })
    }
}

/// The contents of a configuration: its analyses, and the options of their capture.
struct Plan {
    site: Site,
    /// Everything in the file, to be compared when it is read again.
    entries: Vec<Entry>,
    parts: Vec<Part>,
    capture: CaptureArgs,
    /// The socket of [control].
    socket: Option<SharedSocket>,
    /// Words of the command that ships the store.
    ship: Option<Vec<String>>,
}

/// Options of the capture that every part has, and of the metrics.
#[derive(clap::Args, Debug)]
struct CaptureArgs {
    #[command(flatten)]
    source: SourceArgs,
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow)]
    steering: SteeringArg,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// The options of an analysis.
fn options(name: &'static str) -> Command {
    let command = Command::new(name);
    match name {
        "record" => record::Args::augment_args(command),
        "flows" => flows::Args::augment_args(command),
        "http" => http::Args::augment_args(command),
        "voip" => voip::Args::augment_args(command),
        _ => probe::shared::Args::augment_args(command),
    }
}

/// Reads a file; all its mistakes are in the error.
fn plan(path: &Path) -> Result<Plan> {
    let mut site = Site::read(path, &SECTIONS)?;
    let entries = site.entries();
    let captured: Vec<String> = entries
        .iter()
        .filter(|entry| entry.section == "capture")
        .filter_map(|entry| entry.key.clone())
        .collect();
    let capture = CaptureArgs::augment_args(Command::new("capture"));
    let longs: Vec<String> =
        capture.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    let of_capture = |name: &str| !OTHERS.contains(&name) && !name.starts_with("metrics");
    let filter = site.take_text("capture", "filter");
    let common = words(&mut site, "capture", &capture, &of_capture, &Names::new());
    let metrics = words(&mut site, "metrics", &capture, &|_| true, &metrics_names());
    let control = ControlArgs::augment_args(Command::new("control"));
    let socket = words(&mut site, "control", &control, &|_| true, &Names::new());
    let socket = match parse::<ControlArgs>(&control, &socket, &[]) {
        Ok(args) => args.socket().unwrap_or_else(|error| {
            let (key, reason) = refusal(&error);
            site.mistake("control", &key, format!("{key}: {reason}"));
            None
        }),
        Err(error) => {
            site.refused("control", &reason(&error));
            None
        }
    };
    // [store] belongs to all parts that have a store, whose options are the same.
    let store_options = flows::Args::augment_args(Command::new("store"));
    let store = words(&mut site, "store", &store_options, &|_| true, &store_names());
    let ship = shipping(&mut site, &store, &common);
    let own = |name: &str| {
        !longs.iter().any(|long| long == name)
            && !OTHERS.contains(&name)
            && !name.starts_with("store")
            && !name.starts_with("metrics")
    };
    let filter: Vec<String> = filter.into_iter().flat_map(|filter| ["--".to_owned(), filter]).collect();
    let whole = match parse::<CaptureArgs>(&capture, &[common.clone(), metrics].concat(), &filter) {
        Ok(args) => Some(args),
        Err(error) => {
            site.refused("capture", &reason(&error));
            None
        }
    };
    if whole.as_ref().is_some_and(|whole| whole.source.interface.is_empty() && whole.source.read.is_empty()) {
        let reason =
            "expected a device, interface = \"eth1\" ('wirelane devices' lists them), or read = \"FILE\"";
        site.mistake("capture", "", reason);
    }
    let stdin =
        |whole: &CaptureArgs| whole.source.filter_file.as_ref().is_some_and(|file| file.as_os_str() == "-");
    if whole.as_ref().is_some_and(stdin) {
        site.mistake(
            "capture",
            "filter-file",
            "filter-file: expected a file: a monitor reads no standard input",
        );
    }
    let mut parts = Vec::new();
    for name in ANALYSES {
        if !site.has(name) {
            continue;
        }
        let options = options(name);
        let mut words = words(&mut site, name, &options, &own, &Names::new());
        // Only results at the outputs and the ledger are printed.
        if name != "probe" {
            words.push("--quiet".to_owned());
        }
        if name != "record" {
            words.extend(store.iter().cloned());
        }
        words.extend(common.iter().cloned());
        let part = match name {
            "record" => parse(&options, &words, &filter).map(Box::new).map(Part::Record),
            "flows" => parse(&options, &words, &filter).map(Box::new).map(Part::Flows),
            "http" => parse(&options, &words, &filter).map(Box::new).map(Part::Http),
            "voip" => parse(&options, &words, &filter).map(Box::new).map(Part::Voip),
            _ => parse(&options, &words, &filter).map(Box::new).map(Part::Probe),
        };
        match part {
            Ok(mut part) => {
                if let Part::Probe(args) = &mut part {
                    args.is_beside_others = site.has_several(&ANALYSES);
                }
                parts.push(part);
            }
            Err(error) => site.refused(name, &reason(&error)),
        }
    }
    if parts.is_empty() {
        site.checked()?;
        site.mistake("capture", "", "expected at least one of [record], [flows], [http], [voip] and [probe]");
    }
    for part in &parts {
        let (name, several) = (part.name(), parts.len() > 1);
        if let Some((key, reason)) = part.excludes_others().filter(|_| several) {
            site.mistake(name, key, format!("{key}: {reason}"));
        }
        if let Err(error) = part.check() {
            let (key, reason) = refusal(&error);
            site.mistake(name, &key, format!("{key}: {reason}"));
        } else if let Part::Probe(args) = part {
            for (key, keys) in args.replaced()? {
                if !keys.iter().any(|key| captured.contains(&(*key).to_owned())) {
                    let reason = format!(
                        "config: [capture] has {key}, and the monitor's file says what is captured: add {key} to its [capture]"
                    );
                    site.mistake(name, "config", reason);
                }
            }
        }
    }
    site.checked()?;
    let capture =
        whole.ok_or_else(|| anyhow!("a section [capture] was refused without a reason; this is a bug"))?;
    Ok(Plan { site, entries, parts, capture, socket, ship })
}

/// Words of `wirelane ship` for [ship], with the folder of [store] and the user of [capture].
fn shipping(site: &mut Site, store: &[String], capture: &[String]) -> Option<Vec<String>> {
    if !site.has(SHIP) {
        return None;
    }
    let options = ship::Args::augment_args(Command::new(SHIP));
    let mut words = words(site, SHIP, &options, &|name| ship::KEYS.contains(&name), &Names::new());
    let Some(folder) = store.iter().find_map(|word| word.strip_prefix("--store=")) else {
        site.mistake(SHIP, "", "expected a section [store] with its folder, which is shipped");
        return None;
    };
    let is_right = |word: &&String| word.starts_with("--user=") || *word == "--keep-rights";
    words.extend(capture.iter().filter(is_right).cloned());
    let rest = ["--json", "--interval=1s", "--until-input-ends", "--", folder].map(str::to_owned);
    match parse::<ship::Args>(&options, &words, &rest) {
        Err(error) => site.refused(SHIP, &reason(&error)),
        Ok(args) => {
            if let Err(error) = args.check() {
                let (key, reason) = refusal(&error);
                site.mistake(SHIP, &key, format!("{key}: {reason}"));
            }
        }
    }
    Some(words.into_iter().chain(rest).collect())
}

/// The key and the reason of a usage error.
fn refusal(error: &anyhow::Error) -> (String, String) {
    match error.downcast_ref() {
        Some(wirelane::Error::BadOption { option, reason }) => {
            let key = match option.trim_start_matches('-') {
                "r" => "read",
                key => key,
            };
            (key.to_owned(), reason.clone())
        }
        _ => (String::new(), format!("{error:#}")),
    }
}

/// Parses the words of a section. `filter`: behind all options.
fn parse<T: FromArgMatches>(
    options: &Command,
    words: &[String],
    filter: &[String],
) -> std::result::Result<T, clap::Error> {
    let line = std::iter::once(options.get_name()).chain(words.iter().chain(filter).map(String::as_str));
    T::from_arg_matches(&options.clone().try_get_matches_from(line)?)
}

/// Runs `wirelane check`.
pub fn check(args: &CheckArgs) -> Result<()> {
    plan(&args.file).map(|_| ())
}

/// The section [flows], if there is one.
fn flows_of(parts: &[Part]) -> Option<&flows::Args> {
    parts.iter().find_map(|part| if let Part::Flows(args) = part { Some(&**args) } else { None })
}

/// Settings that a reload can change.
fn loaded(plan: &Plan) -> Result<Loaded> {
    let source = &plan.capture.source;
    let flows = flows_of(&plan.parts).map(|args| FlowLimits {
        timeouts: args.timeouts(),
        entries: args.is_offloaded().then(|| args.entries()),
    });
    let (filter, rules) = (source.expression()?, source.ruled.of_file()?.unwrap_or_default());
    Loaded::new(plan.entries.clone(), filter, &rules, source.interval, flows)
}

/// Reads and checks the file, in the helper process. Returns it as JSON, or an explanation.
///
/// # Errors
/// Its mistakes, a line each.
pub fn read(path: &Path) -> std::result::Result<String, String> {
    reload::answer(plan(path).and_then(|plan| loaded(&plan)))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let plan = plan(&args.file)?;
    let loaded = loaded(&plan)?;
    let Plan { site, mut parts, capture, socket, ship, .. } = plan;
    let manager = Notifier::from_environment(capture.source.interval)?;
    // Before anything is opened.
    wait::for_devices(&capture.source.interface, manager.as_ref())
        .map_err(|error| site.placed("capture", &Names::new(), error))?;
    let timeouts = flows_of(&parts).map(|args| Arc::clone(&args.live)).unwrap_or_default();
    let mut analyses = Vec::new();
    let secrets = capture.metrics.secrets();
    for part in &mut parts {
        let name = part.name();
        part.source_mut().rights.secrets.clone_from(&secrets);
        analyses.push(part.prepare().map_err(|error| site.placed(name, &store_names(), error))?);
    }
    let (shared, needs_packets) = (parts.len() > 1, parts.iter().any(Part::needs_packets));
    let (first, others) = parts.split_first_mut().expect("a plan has a part");
    let source = first.source_mut();
    for other in others {
        source.include(other.source_mut());
    }
    source.kernel_flows.iter_mut().for_each(|flows| flows.deliver = shared);
    source.deliver_measured = needs_packets;
    let metrics =
        capture.metrics.open(source).map_err(|error| site.placed("metrics", &metrics_names(), error))?;
    let live = source.read.is_empty();
    if live {
        (source.service, source.rights.serves) = (Some(Purpose::Monitor), true);
        source.shared_socket = socket;
    }
    // Before privileges are dropped: after that, no files can be opened and no programs started.
    let permitted = Permitted { monitor: Some(std::path::absolute(&args.file)?), ..Permitted::default() };
    let helper = live.then(|| Helper::start(&permitted, source.rights.identity()?, &secrets)).transpose()?;
    // One ledger for all analyses; a probe stores it itself.
    let stores = (!parts.iter().any(|part| matches!(part, Part::Probe(_)))).then_some(&parts);
    let store = stores.and_then(|parts| parts.iter().find_map(Part::store));
    let ledger = store.map(|store| store.ledger(parts[0].source())).transpose()?.flatten();
    // The parts have created the folder of the store.
    let shipper = ship.map(|words| Shipper::start(&words, &secrets)).transpose()?;
    let source = parts[0].source();
    let output = match &parts[0] {
        Part::Record(record) => Some(record.output()),
        _ => None,
    };
    let expression = source.expression()?;
    let capture = source
        .open(&expression, capture.workers, capture.steering, BalanceArg::Static, output)
        .map_err(|error| site.placed("capture", &Names::new(), error))?;
    let report = Report::new(args.json, capture.engine(), Stream::Stdout).by_analysis();
    let mut reporter = RowReporter::new(report, args.json, None);
    let mut limits = source.limits();
    limits.on_hangup = if live { OnHangup::Tell } else { OnHangup::Reopen };
    let reload = |helper| Reloader::new(helper, &args.file, loaded, timeouts);
    let reload = helper.map(reload).transpose()?;
    let reload = reload.map(|reload| Box::new(reload) as Box<dyn Reload>);
    let told = Told { metrics, manager, reload, shipper, ledger };
    analysis::run(capture, &limits, &mut analyses, told, &mut reporter)
}
