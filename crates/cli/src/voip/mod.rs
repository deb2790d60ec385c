//! `wirelane voip`: calls, their streams, and how they sound.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use wirelane::{Capture, Error, Ledger};
use wirelane_analysis::voip::{Finished, Monitor, Settings};
use wirelane_export::OutputOptions;
use wirelane_export::voip::{Exporters, Settings as ExportSettings, Target};

use crate::report::{Report, Stream};
use crate::session::{self, Reporter};
use crate::source::{self, BalanceArg, SourceArgs, SteeringArg};

mod report;
mod show;
mod worker;

pub use report::VoipReport;
use show::{Show, Shown};
use worker::{CaptureLoss, Left, Listener};

/// Heading of the help.
const CALLS: &str = "What a call is";
/// Heading of the help.
const EXPORT: &str = "Where calls go";

/// Follow VoIP calls: SIP, the RTP that it negotiates, quality
///
/// Calls are followed by their SIP messages, over UDP and TCP. The descriptions in these tell where media goes: RTP to and
/// from there is measured, packet by packet, and judged. A call is printed and exported, with its streams, some
/// seconds after its end. REGISTER, OPTIONS and other messages of no call are counted.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    source: SourceArgs,

    /// Which worker gets a packet: there is one, which sees all.
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, hide = true, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Where packets become statistics
    #[arg(long, value_enum, default_value_t = AnalysisArg::User, help_heading = CALLS)]
    analysis: AnalysisArg,

    /// Only calls whose From has this in it, name or address, in upper or lower case; or one of several, by repeating
    /// the option
    #[arg(long, value_name = "TEXT", help_heading = CALLS)]
    from: Vec<String>,

    /// Only calls whose To has this in it
    #[arg(long, value_name = "TEXT", help_heading = CALLS)]
    to: Vec<String>,

    /// Only the call with exactly this Call-ID
    #[arg(long, value_name = "ID", help_heading = CALLS)]
    call_id: Vec<String>,

    /// Also find RTP that no call has announced, by what it looks like: three packets in a row of one stream
    #[arg(long, help_heading = CALLS)]
    heuristic: bool,

    /// A call that is over waits this many seconds for what comes late
    #[arg(long, value_name = "SECONDS", value_parser = crate::values::seconds, default_value = "5", help_heading = CALLS)]
    linger: Duration,

    /// A call that nobody has answered is over after this many seconds without a message
    #[arg(long, value_name = "SECONDS", value_parser = crate::values::seconds, default_value = "180", help_heading = CALLS)]
    answer_timeout: Duration,

    /// An answered call is over after this many seconds without a message and without RTP. Where it never had RTP, 12
    /// times as many
    #[arg(long, value_name = "SECONDS", value_parser = crate::values::seconds, default_value = "300", help_heading = CALLS)]
    silence_timeout: Duration,

    /// Judge streams for parts of this many seconds, beside the whole. Of a long one, parts become longer: at most 32
    #[arg(long, value_name = "SECONDS", value_parser = crate::values::seconds, default_value = "10", help_heading = CALLS)]
    quality_interval: Duration,

    /// Memory for calls, in MiB. Where it is full, calls that are over or unanswered are handed out early, then those
    /// silent longest
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = CALLS)]
    memory: u32,

    /// Export calls: hep://HOST:PORT (HEP v3 by UDP: SIP messages, and a report for each stream), or file:PATH with
    /// .json or .csv at its end. Several by repeating the option
    #[arg(long, value_name = "WHERE", help_heading = EXPORT)]
    export: Vec<String>,

    /// Send messages of no call by HEP too: REGISTER, OPTIONS and others
    #[arg(long, requires = "export", help_heading = EXPORT)]
    all_messages: bool,

    /// Messages a second to each receiver by UDP, which cannot slow down who sends; 0: as they come
    #[arg(long, value_name = "N", default_value_t = 2000, help_heading = EXPORT)]
    export_rate: u32,

    /// Seconds that receivers are waited for at the end
    #[arg(long, value_name = "SECONDS", value_parser = crate::values::seconds, default_value = "5", help_heading = EXPORT)]
    export_wait: Duration,

    /// The number by which HEP receivers tell this agent from others. Default: the number of the process
    #[arg(long, value_name = "ID", help_heading = EXPORT)]
    hep_agent: Option<u32>,

    /// Replace files that exist
    #[arg(long, help_heading = EXPORT)]
    overwrite: bool,

    /// Show the keys that were pressed during calls (DTMF by RFC 4733), which may be secrets; without it they are
    /// counted
    #[arg(long, help_heading = source::OUTPUT)]
    dtmf_digits: bool,

    /// Print calls as CSV; the ledger goes to standard error
    #[arg(long, conflicts_with = "json", help_heading = source::OUTPUT)]
    csv: bool,

    /// Print no calls, only the ledger and the counts
    #[arg(short, long, conflicts_with = "csv", help_heading = source::OUTPUT)]
    quiet: bool,
}

/// Values of --analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AnalysisArg {
    /// In the worker
    User,
    /// In the kernel: not built yet
    #[value(hide = true)]
    Kernel,
}

/// What follows the options in the long help.
pub const HELP: &str = "\
Columns of the table:
  start, seconds (to the end of the call), from, to, state, status (of the last
  final answer), delay ms (from the INVITE to the first answer but 100), MOS
  (the lowest of its streams), reason (end; forced: the capture has ended;
  resources: its place was needed). Below a call are its RTP streams.

States:
  trying, ringing, answered, completed (by a BYE), canceled, failed, challenged
  (asked for credentials, and nothing came after that), timed_out (silence)

Of each stream (--json):
  packets = expected - lost + duplicate + stray, always. A packet that comes
  late, by up to 255 numbers, is out_of_order and not lost. jitter is that of
  RFC 3550, with nanoseconds as its unit; delta_*, jitter_min_ms, _mean_ms and
  _max_ms are those of Wireshark. learned: an end that no message named, as
  behind NAT. capture_lost: packets of any kind that this capture lost
  meanwhile; they are in the stream's lost if they were the stream's.
  r_factor and mos: of codecs that mos_model knows; intervals has them for
  parts.

HEP: chunk 0x0b is 1 for SIP, and 0x22 for the report of a stream, whose
payload is the stream's JSON; the Call-ID is the correlation id, and chunk 0x20
the MOS times 100.

Examples:
  wirelane voip -r calls.pcapng
  wirelane voip -r calls.pcapng --json --from alice
  wirelane voip -i eth1 udp or tcp port 5060
  wirelane voip -i eth1 --export hep://192.0.2.1:9060 --quiet
  wirelane voip -i eth1 --heuristic --export file:calls.json

Exit status: 0 done (also after Ctrl-C), 1 failed or a file could not be
written, 2 wrong usage. A receiver that is away does not change it.";

/// Batches on their way from the worker to the exports.
const UNDER_WAY: usize = 16;

/// How much later records of one ring may come than those of another.
const REORDER_NS: u64 = 500_000_000;

/// Bytes that wait for a receiver at most.
const BACKLOG: usize = 16 << 20;

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if args.analysis == AnalysisArg::Kernel {
        return Err(wrong("--analysis", "'kernel' is not there yet; leave the option out"));
    }
    if args.steering != SteeringArg::Flow {
        let reason =
            "there is one worker, as signalling and media have different addresses; leave the option out";
        return Err(wrong("--steering", reason));
    }
    let live = args.source.read.is_none();
    let targets = args.export.iter().map(|text| Target::parse(text)).collect::<Result<Vec<_>, _>>();
    let targets = targets.map_err(|error| match error {
        wirelane_export::Error::Target { target, reason } => wrong("--export", format!("{target}: {reason}")),
        other => anyhow!("{other}"),
    })?;
    let settings = ExportSettings {
        agent: args.hep_agent.unwrap_or_else(std::process::id),
        rate: args.export_rate,
        backlog: BACKLOG,
        patient: !live,
        wait: args.export_wait,
        digits: args.dtmf_digits,
    };
    // Before rights are given up: what is opened here is all that is open later.
    let owner = args.source.rights.identity()?.map(|identity| identity.ids());
    let options = OutputOptions { overwrite: args.overwrite };
    let exporters = Exporters::open(&targets, settings, options, owner)?;
    let signals = targets.iter().any(Target::takes_signals);
    let expression = args.source.expression()?;
    // One worker: signalling and media of a call have different addresses.
    let capture = args.source.open(&expression, 1, SteeringArg::Flow, BalanceArg::Static, None)?;
    listen(args, capture, exporters, signals)
}

fn wrong(option: &'static str, reason: impl Into<String>) -> anyhow::Error {
    Error::BadOption { option, reason: reason.into() }.into()
}

fn settings(args: &Args, signals: bool) -> Settings {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Settings {
        memory: (args.memory as usize) << 20,
        inner: args.source.inner,
        heuristic: args.heuristic,
        // A file has its packets in order.
        reorder_ns: if args.source.read.is_none() { REORDER_NS } else { 0 },
        linger_ns: ns(args.linger),
        waiting_ns: ns(args.answer_timeout),
        quiet_ns: ns(args.silence_timeout).saturating_mul(12),
        talking_ns: ns(args.silence_timeout),
        interval_ns: ns(args.quality_interval),
        from: args.from.clone(),
        to: args.to.clone(),
        call_ids: args.call_id.clone(),
        signals,
        all_signals: signals && args.all_messages,
        ..Settings::default()
    }
}

/// Everything behind the set-up.
fn listen(args: &Args, capture: Capture, exporters: Exporters, signals: bool) -> Result<()> {
    let live = args.source.read.is_none();
    let style = match (args.quiet, args.csv, args.source.json) {
        (true, ..) => Show::Nothing,
        (_, true, _) => Show::Csv,
        (_, _, true) => Show::Json,
        _ => Show::Table,
    };
    let stream = if args.csv { Stream::Stderr } else { Stream::Stdout };
    let loss = Arc::new(CaptureLoss::default());
    let mut reporter = VoipReporter {
        report: Report::new(args.source.json, capture.engine(), stream),
        json: args.source.json,
        loss: Arc::clone(&loss),
    };
    let (sender, inbox) = sync_channel::<Vec<Finished>>(UNDER_WAY);
    let left = Left::default();
    let shown = Shown::new(style, args.dtmf_digits);
    let (outcome, counts, exported) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("wl-export".into());
        let thread = thread.spawn_scoped(scope, move || show::export(exporters, shown, &inbox))?;
        let begun = |worker: &wirelane::Worker| {
            let monitor = Monitor::new(settings(args, signals));
            let (loss, left) = (Arc::clone(&loss), Arc::clone(&left));
            Ok(Listener::new(monitor, worker.timebase(), sender.clone(), loss, left, live))
        };
        let outcome = session::run(capture, &args.source, begun, &mut reporter);
        // What still goes on, now that it is known what the capture has lost.
        let monitor = left.lock().unwrap_or_else(PoisonError::into_inner).take();
        let counts = monitor.map(|mut monitor| {
            if let Ok(outcome) = &outcome {
                monitor.lost_by_capture(worker::lost(&outcome.ledger.total));
            }
            monitor.flush();
            // Where nobody takes them any more, the exporting thread says why.
            let _ = sender.send(std::mem::take(monitor.finished()));
            monitor.counts()
        });
        // The handler is gone; this is the last end of the channel.
        drop(sender);
        let exported = thread.join().map_err(|_| anyhow!("the exporting thread panicked; this is a bug"))?;
        anyhow::Ok((outcome, counts, exported))
    })?;
    let counts = counts.unwrap_or_default();
    let mut outcome = match (outcome, exported.result) {
        // A reader that has gone ends the worker, whose error says less.
        (Ok(_), Err(error)) if error.is::<crate::out::ReaderGone>() => return Err(error),
        (Ok(mut outcome), Err(error)) => {
            outcome.failure = Some(error);
            outcome
        }
        (Ok(outcome), Ok(())) => outcome,
        (Err(error), _) => return Err(error),
    };
    if outcome.failure.is_none() && counts.packets() != outcome.ledger.total.analysed {
        let failure =
            anyhow!("the packets are not what the ledger has counted; this is a bug: please report it");
        outcome.failure = Some(failure);
    }
    let failure = outcome.failure.or_else(|| exported.failure.map(Into::into));
    let lost = worker::lost(&outcome.ledger.total);
    reporter.report.ruled(outcome.rules);
    reporter.report.voip(VoipReport::new(&counts, lost, exported.counts));
    let last = reporter.report.last(&outcome.ledger, outcome.elapsed);
    failure.map_or(last, Err)
}

/// Intervals are shown to programs only: between the rows of a table they would be in the way.
struct VoipReporter {
    report: Report,
    json: bool,
    loss: Arc<CaptureLoss>,
}

impl Reporter for VoipReporter {
    fn ready(&mut self, capture: &Capture) -> Result<()> {
        self.report.ready(capture)
    }

    fn interval(&mut self, ledger: &Ledger, elapsed: Duration) -> Result<()> {
        self.loss.set(&ledger.total);
        if self.json { self.report.interval(ledger, elapsed) } else { Ok(()) }
    }
}
