//! `wirelane voip`: calls, their streams, and their quality.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use wirelane_analysis::voip::{Finished, Keep, Settings};
use wirelane_export::pipeline::voip::Outputs;
use wirelane_export::voip::{Exporters, SavedCalls, Settings as ExportSettings, Target};
use wirelane_export::{OnWire, OutputOptions};

use crate::metrics::MetricsArgs;
use crate::outputs::{self, LimitArgs, StoreArgs, TimesArgs};
use crate::source::{self, SourceArgs, SteeringArg};
use crate::values::wrong;
use wirelane_monitor::report::Stream;
use wirelane_monitor::shares::{self, Shares};
use wirelane_monitor::store::Store;
use wirelane_monitor::voip::analysis::{Look, VoipAnalysis};
use wirelane_monitor::voip::show::Show;
use wirelane_screen::voip::TopModel;

/// Heading of the help.
const CALLS: &str = "Calls";
/// Heading of the help.
const EXPORT: &str = "Export";

/// Follow VoIP calls: SIP, the RTP that it negotiates, quality
///
/// Calls are followed by their SIP messages, over UDP and TCP. The descriptions in these tell where media goes: RTP to and
/// from there is measured, packet by packet, and evaluated. A call is printed and exported, with its streams, some
/// seconds after its end. REGISTER, OPTIONS and other messages of no call are counted.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Worker threads, which read the rings and measure RTP, 1 to 64; calls are followed by one more thread
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet: any, as long as one worker gets it
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, hide = true, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Where RTP is measured
    #[arg(long, value_enum, default_value_t = AnalysisArg::User, help_heading = CALLS)]
    analysis: AnalysisArg,

    /// RTP streams that are measured in the kernel at a time, with --analysis kernel; 576 bytes each. Further ones are
    /// measured in user space. Default: 16384
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = CALLS)]
    streams: Option<u32>,

    /// Only calls whose From contains this text (name or address, ignoring case); several by repeating the option
    #[arg(long, value_name = "TEXT", help_heading = CALLS)]
    from: Vec<String>,

    /// Only calls whose To contains this text
    #[arg(long, value_name = "TEXT", help_heading = CALLS)]
    to: Vec<String>,

    /// Only the call with exactly this Call-ID
    #[arg(long, value_name = "ID", help_heading = CALLS)]
    call_id: Vec<String>,

    /// Also find RTP that no call has announced: three packets in a row of one stream
    #[arg(long, help_heading = CALLS)]
    heuristic: bool,

    /// Time to wait for late packets after the end of a call
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "5", help_heading = CALLS)]
    linger: Duration,

    /// Time without a message after which an unanswered call is over
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "180", help_heading = CALLS)]
    answer_timeout: Duration,

    /// Time without a message and RTP after which an answered call is over; 12 times as many if it never had RTP
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "300", help_heading = CALLS)]
    silence_timeout: Duration,

    /// Time per part for which the quality of a stream is calculated, in addition to the whole. A stream has at most
    /// 32 parts, which become longer
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "10", help_heading = CALLS)]
    quality_interval: Duration,

    /// Memory for calls, in MiB. When it is full, calls that are over or unanswered end early, then those silent
    /// longest
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = crate::values::memory, help_heading = CALLS)]
    memory: u32,

    /// Export calls: hep://HOST:PORT (HEP v3 by UDP: SIP messages, and a report for each stream), ipfix://HOST:PORT (by UDP:
    /// streams), or file:PATH with .json, .csv or .ipfix at its end. Several by repeating the option
    #[arg(long, value_name = "WHERE", help_heading = EXPORT)]
    export: Vec<String>,

    /// Also send messages outside of calls by HEP: REGISTER, OPTIONS and others
    #[arg(long, requires = "export", help_heading = EXPORT)]
    all_messages: bool,

    /// Messages per second to each receiver over UDP, which has no flow control; 0: unlimited
    #[arg(long, value_name = "N", default_value_t = 2000, help_heading = EXPORT)]
    export_rate: u32,

    /// Time to wait for receivers at the end
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "5", help_heading = EXPORT)]
    export_wait: Duration,

    /// Agent id for HEP receivers; for IPFIX collectors, the observation domain. Default: the process id
    #[arg(long, value_name = "ID", help_heading = EXPORT)]
    hep_agent: Option<u32>,

    /// Truncate existing files. Default: append
    #[arg(long, help_heading = EXPORT)]
    overwrite: bool,

    /// Save each call (selected by --from, --to and --call-id) as a pcapng file with its SIP messages in this folder,
    /// which is created if missing
    #[arg(long, value_name = "DIR", help_heading = EXPORT)]
    save_calls: Option<PathBuf>,

    /// Also save RTP and RTCP in the files of --save-calls
    #[arg(long, requires = "save_calls", help_heading = EXPORT)]
    with_audio: bool,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    limit: LimitArgs,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Show keys pressed during calls (DTMF, RFC 4733), which may be secrets; without it they are only counted
    #[arg(long, help_heading = source::OUTPUT)]
    dtmf_digits: bool,

    /// Print calls as CSV; the ledger goes to standard error
    #[arg(long, conflicts_with_all = ["json", "local_time"], help_heading = source::OUTPUT)]
    csv: bool,

    #[command(flatten)]
    times: TimesArgs,

    /// Print the file with which 'wirelane monitor' does the same, and exit
    #[arg(long, help_heading = source::OUTPUT)]
    pub print_config: bool,

    /// Print no calls, only the ledger and the counts
    #[arg(short, long, conflicts_with = "csv", help_heading = source::OUTPUT)]
    quiet: bool,

    /// Folder for the calls that the key 's' of --top saves, with their messages so far; created if missing
    #[arg(long, value_name = "DIR", requires = "top", help_heading = EXPORT)]
    save_selected: Option<PathBuf>,

    /// Show calls on a screen, with the ladder of one and how its streams sound; ? lists its keys, q ends it
    #[arg(long, conflicts_with_all = ["json", "csv", "quiet", "read"], help_heading = source::OUTPUT)]
    top: bool,
}

/// Values of --analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AnalysisArg {
    /// In the worker
    User,
    /// In the kernel, as far as RTP of calls goes: its packets stay there (engine 'ring')
    Kernel,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Columns of the table:
  start, seconds (to the end of the call), from, to, state, status (of the last
  final answer), delay ms (from the INVITE to the first answer other than 100),
  MOS (the lowest of its streams), reason (end; forced: end of the capture;
  resources: its entry was needed). Below a call are its RTP streams.

States:
  trying, ringing, answered, completed (by a BYE), canceled, failed, challenged
  (asked for credentials, without a further message), timed_out (silence)

Streams (--json):
  packets = expected - lost + duplicate + stray. A packet that arrives late, by
  up to 255 numbers, is out_of_order and not lost. jitter is that of RFC 3550 in
  nanoseconds; delta_*, jitter_min_ms, _mean_ms and _max_ms are Wireshark's.
  learned: an endpoint that no message named, as behind NAT. capture_lost:
  packets of any kind that this capture lost meanwhile; those of the stream are
  also in its lost. r_factor and mos: for codecs that mos_model covers;
  intervals has them for parts.

IPFIX: a record for each stream, with IANA's elements: ends, times, packets and
the jitter of RFC 3550. There are none for Call-IDs, loss and MOS.

The screen of --top:
  calls, active ones first; for the selected one (j and k, or arrows) its
  streams, with the MOS of each --quality-interval as a line, and its messages
  between caller and callee in the order of time, by the time since the INVITE.
  Enter opens the call: its messages and the text of one. '/' shows only calls
  with a text (From, To, Call-ID, state, status), 's' saves the messages of the
  selected call as pcapng in the folder of --save-selected, '?' lists all keys.

Files of --save-calls:
  TIME-CALLID.pcapng, with the time of the INVITE, once the call is over;
  packets as they were captured. A message from a TCP connection, and a
  datagram that came in fragments, is saved as a packet with new headers
  (interface 'rebuilt'), as the original packets may contain other calls.

HEP: chunk 0x0b is 1 for SIP, and 0x22 for the report of a stream, whose
payload is the stream's JSON; the Call-ID is the correlation id, and chunk 0x20
the MOS times 100.

Examples:
  wirelane voip -r calls.pcapng
  wirelane voip -r calls.pcapng --json --from alice
  wirelane voip -i eth1 udp or tcp port 5060
  wirelane voip -i eth1 --export hep://192.0.2.1:9060 --quiet
  wirelane voip -r trunk.pcapng --call-id 1-77@192.0.2.1 --save-calls . --quiet
  wirelane voip -i eth1 --direction both --top
  wirelane voip -i eth1 --from alice --save-calls /srv/calls --with-audio
  wirelane voip -i eth1 --store calls.db --store-max-age 90d --quiet
  wirelane voip -i eth1 --heuristic --export file:calls.json

Exit status: 0 done (also after Ctrl-C), 1 failed or a file could not be
written, 2 wrong usage. A receiver that is away does not change it.";

/// Maximum delay between records of two rings; also in a file recorded from several rings.
const REORDER_NS: u64 = 500_000_000;

/// Default capacity of RTP streams in the kernel.
const STREAMS: u32 = 16_384;

impl Args {
    /// Memory and write limits of calls and of each output.
    fn shares(&self) -> Shares {
        let prints = !self.quiet && !self.top;
        let outputs =
            shares::Outputs { files: self.export.len(), prints, stores: self.store.folder.is_some() };
        let memory = self.memory() - self.saving_memory();
        Shares::of(memory, self.source.read.is_empty(), self.limit.output_rate, outputs)
    }

    fn memory(&self) -> usize {
        (self.memory as usize) << 20
    }

    /// Bytes for saving calls: a third, as each call takes some of them beside its packets.
    fn saving_memory(&self) -> usize {
        if self.save_calls.is_some() { self.memory() / 3 } else { 0 }
    }
}

impl Args {
    /// Whether packets are analysed in the kernel.
    pub fn is_offloaded(&self) -> bool {
        self.analysis == AnalysisArg::Kernel
    }

    /// Checks the values that name outputs, and those that do not fit together.
    pub fn check(&self) -> Result<()> {
        kernel_streams(self)?;
        if self.steering == SteeringArg::Copy {
            return Err(wrong(
                "--steering",
                "each packet would count once for each worker; leave the option out",
            ));
        }
        if self.workers > 1 && self.is_offloaded() {
            let reason = "with --analysis kernel RTP stays in the kernel, and one worker follows the calls";
            return Err(wrong("--workers", reason));
        }
        self.targets().map(|_| ())
    }

    /// The values of --export.
    fn targets(&self) -> Result<Vec<Target>> {
        outputs::parsed("--export", &self.export, Target::parse)
    }

    /// Opens the outputs, before privileges are dropped: no other files or sockets can be opened later.
    pub fn prepare(&mut self) -> Result<VoipAnalysis> {
        self.source.kernel_streams = kernel_streams(self)?;
        self.check()?;
        self.source.across_workers = self.workers > 1;
        if self.top {
            outputs::needs_terminal()?;
            self.source.rights.terminal = true;
        }
        let live = self.source.read.is_empty();
        let targets = self.targets()?;
        let shares = self.shares();
        let settings = ExportSettings {
            agent: self.hep_agent.unwrap_or_else(std::process::id),
            rate: self.export_rate,
            backlog: shares.output,
            limit: shares.limit,
            patient: !live,
            wait: self.export_wait,
            digits: self.dtmf_digits,
        };
        let owner = self.source.rights.identity()?.map(|identity| identity.ids());
        let options = OutputOptions { overwrite: self.overwrite };
        let exporters = Exporters::open(&targets, settings, options, owner)?;
        let store = Store::open(&self.store.options(), live, owner, shares, Finished::wire_bytes)?;
        self.source.rights.stores(self.store.folder.as_ref());
        self.source.rights.logs.extend(exporters.rotating().map(Path::to_owned));
        let saving = |folder| SavedCalls::open(folder, owner, self.saving_memory());
        let saved = self.save_calls.as_deref().map(saving).transpose()?;
        self.source.rights.trees.extend(self.save_calls.clone());
        // The key 's' saves one call at a time.
        let selected = |folder| SavedCalls::open(folder, owner, 1 << 20);
        let selected = self.save_selected.as_deref().map(selected).transpose()?;
        self.source.rights.trees.extend(self.save_selected.clone());
        let show = match (self.quiet || self.top, self.csv, self.source.json) {
            (true, ..) => Show::Nothing,
            (_, true, _) => Show::Csv,
            (_, _, true) => Show::Json,
            _ => Show::Table,
        };
        let look = Look {
            show,
            digits: self.dtmf_digits,
            limit: shares.limit,
            model: self.top.then(|| Arc::new(TopModel::new(self.source.interval, selected))),
        };
        let signals = targets.iter().any(Target::takes_signals);
        let outputs = Outputs { exporters, saved, metrics: None };
        Ok(VoipAnalysis::new(settings_of(self, signals), self.workers, live, outputs, store, look))
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    let analysis = args.prepare()?;
    let view = analysis.view();
    let stream = if args.csv { Stream::Stderr } else { Stream::Stdout };
    let outputs = (&args.metrics, &args.store);
    args.source.run_rows(outputs, (args.workers, args.steering), stream, (Box::new(analysis), view))
}

/// Capacity of RTP streams in the kernel, if they are measured there.
fn kernel_streams(args: &Args) -> Result<Option<usize>> {
    if args.analysis == AnalysisArg::User {
        return match args.streams {
            Some(_) => Err(wrong("--streams", "this is for --analysis kernel; leave it out")),
            None => Ok(None),
        };
    }
    args.source.fits_kernel("--analysis")?;
    if args.with_audio {
        let reason = "with --analysis kernel audio stays in the kernel: leave one of them out";
        return Err(wrong("--with-audio", reason));
    }
    Ok(Some(args.streams.unwrap_or(STREAMS) as usize))
}

/// Settings of the monitor. `signals`: an output takes SIP messages.
fn settings_of(args: &Args, signals: bool) -> Settings {
    let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Settings {
        memory: args.shares().analysis,
        inner: args.source.inner,
        heuristic: args.heuristic,
        reorder_ns: REORDER_NS,
        linger_ns: ns(args.linger),
        waiting_ns: ns(args.answer_timeout),
        quiet_ns: ns(args.silence_timeout).saturating_mul(12),
        talking_ns: ns(args.silence_timeout),
        interval_ns: ns(args.quality_interval),
        from: args.from.clone(),
        to: args.to.clone(),
        call_ids: args.call_id.clone(),
        signals: signals || args.top,
        all_signals: signals && args.all_messages,
        keep: match (&args.save_calls, args.with_audio) {
            (None, _) => Keep::Nothing,
            (Some(_), false) => Keep::Signals,
            (Some(_), true) => Keep::All,
        },
        ..Settings::default()
    }
}
