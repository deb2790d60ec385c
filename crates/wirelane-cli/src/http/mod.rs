//! `wirelane http`: HTTP transactions, as tables and in server log formats.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use wirelane::KernelHttp;
use wirelane_analysis::http::{HttpSettings, LEAST_MEMORY, Transaction};
use wirelane_export::flows::{ExportSettings, Exporters, Format, Target};
use wirelane_export::http::{LOG_FORMATS, Log, LogFormat, Logs};
use wirelane_export::pipeline::http::Outputs;
use wirelane_export::{OnWire, OutputOptions};

use crate::metrics::MetricsArgs;
use crate::outputs::{self, LimitArgs, StoreArgs, TimesArgs};
use crate::source::{self, SourceArgs, SteeringArg};
use crate::values::wrong;
use wirelane_monitor::http::analysis::HttpAnalysis;
use wirelane_monitor::http::show::Show;
use wirelane_monitor::report::Stream;
use wirelane_monitor::shares::{self, Shares};
use wirelane_monitor::store::Store;

/// Heading of the help.
const HTTP: &str = "Transactions";
/// Heading of the help.
const LOGS: &str = "Export";

/// Log HTTP requests with their responses: Apache's formats, Squid's, W3C, JSON
///
/// HTTP/1 requests and responses are recognised on any port, paired, and logged when the response is complete: one line
/// per transaction, as the server would log it. Lost, broken and unanswered messages are logged and marked.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Worker threads, which read the rings, each with its own connections, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet. Other values than 'flow' must keep both directions together
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Where HTTP heads are recognised
    #[arg(long, value_enum, default_value_t = AnalysisArg::User, help_heading = HTTP)]
    analysis: AnalysisArg,

    /// Directions of connections that are followed at a time, with '--analysis kernel', 1024 to 4194304 [default: 65536]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1024..=4_194_304), help_heading = HTTP)]
    kernel_directions: Option<u32>,

    /// Time after its last packet at which a connection ends
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "300", help_heading = HTTP)]
    idle_timeout: Duration,

    /// Memory for connections, in MiB. When it is full, those that have been silent longest end
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = crate::values::memory, help_heading = HTTP)]
    memory: u32,

    /// Also log these header fields, in JSON: names with commas, as in authorization,cookie. They are not logged
    /// otherwise
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = HTTP)]
    fields: Vec<String>,

    /// Write a log, FORMAT:PATH: common, combined, vhost, each with -us behind it (and microseconds in each line),
    /// nginx, squid, w3c, json. Several by repeating the option
    #[arg(long, value_name = "FORMAT:PATH", help_heading = LOGS)]
    log: Vec<String>,

    /// Export transactions as IPFIX: ipfix://HOST:PORT (with ?transport=tcp), or file:PATH with .ipfix at its end. Several by
    /// repeating the option
    #[arg(long, value_name = "WHERE", help_heading = LOGS)]
    export: Vec<String>,

    /// Number of the observation domain in exports [default: the process id]
    #[arg(long, value_name = "N", help_heading = LOGS)]
    observation_domain: Option<u32>,

    /// Truncate existing files. Default: append
    #[arg(long, help_heading = LOGS)]
    overwrite: bool,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    limit: LimitArgs,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Print transactions in a log's format; the ledger goes to standard error
    #[arg(long, value_name = "FORMAT", value_parser = format, conflicts_with_all = ["json", "local_time"], help_heading = source::OUTPUT)]
    print: Option<LogFormat>,

    #[command(flatten)]
    times: TimesArgs,

    /// Print the file with which 'wirelane monitor' does the same, and exit
    #[arg(long, help_heading = source::OUTPUT)]
    pub print_config: bool,

    /// Print no transactions, only the ledger and the counts
    #[arg(short, long, conflicts_with = "print", help_heading = source::OUTPUT)]
    quiet: bool,

    /// Show transactions on a screen, and sums by host, URL, client and status; ? lists its keys, q ends it
    #[arg(long, conflicts_with_all = ["json", "print", "quiet", "read"], help_heading = source::OUTPUT)]
    top: bool,
}

/// Values of --analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AnalysisArg {
    /// In the workers, to which all packets are delivered
    User,
    /// In the kernel: bodies and other traffic are not delivered. Engine 'ring' only
    Kernel,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Transactions:
  Responses are matched to requests in order, also with pipelining. Responses
  with status 1xx are counted, the final one is logged. CONNECT and upgrades end
  the HTTP part of a connection. Lengths of bodies are counted by TCP sequence
  numbers, so they include bytes that were not captured; chunks count without
  their framing. HTTP/2, HTTP/0.9 and encrypted traffic are not logged;
  connections that begin with TLS or the HTTP/2 preface are counted (not with
  --analysis kernel, where they stay in the kernel).

Columns of the table:
  time (of the request), client, method, URL, status, bytes (of the
  response's body), ms (from the first byte of the request to the last of the
  response), marks

Marks, with --json in marks:
  no_request, no_response; request_lost, response_lost: bytes were not
  captured; resynchronised: the first message after a loss;
  request_unfinished, response_unfinished: the connection ended before, by
  reset, timeout (--idle-timeout), evicted (--memory) or forced (end of the
  capture); malformed, head_cut (over 64 KiB), folded, bare_lf, nul, bad_length,
  bad_coding, bad_chunk, length_and_coding (smuggling); tunnel; conflict: a
  retransmission had other bytes

With --json: an object per transaction, with its number in 'transaction'; times
are in seconds with nine decimals, as text. request_length and response_length
are Content-Length, ..._body the bytes of the body, ..._bytes those with heads
and framing, ..._missing the bytes that were not captured. ttfb_s: from the last
byte of the request to the first of the response.

goaccess reads all formats: COMMON, COMBINED (nginx too), VCOMBINED and W3C by
these names (--log-format), and
  combined-us  '%h %^[%d:%t %^] \"%r\" %s %b \"%R\" \"%u\" %D'
               (with --date-format=%d/%b/%Y --time-format=%T)
  squid        '%x.%^ %~%L %h %C/%s %b %m %U %e %^ %M'
  json         '{\"time\":\"%x.%^\",\"client\":\"%h\",\"method\":\"%m\",\"uri\":\"%U\",
               \"status\":\"%s\",\"response_body\":\"%b\"}'
               (these two with --date-format=%s --time-format=%s)

The screen of --top:
  the latest transactions (key t), or requests, errors (no response, or a status
  from 400 on), bytes and mean duration by host, URL, client and result (h, u,
  c, r). '/' shows only rows with a text, 'p' pauses, '?' lists all keys.

Examples:
  wirelane http -r capture.pcapng
  wirelane http -i eth1 --direction both --top
  wirelane http -r capture.pcapng --print combined > access.log
  wirelane http -i eth1 --quiet --log combined:access.log --log json:http.json
  wirelane http -i eth1 --store web.db --store-max-age 30d --quiet
  wirelane http -i eth1 --direction both tcp port 8080
  wirelane http -i eth1 --quiet --export ipfix://192.0.2.1:4739
  wirelane http -i eth1,eth2            # a tap, with a device per direction

Exit status: 0 done (also after Ctrl-C), 1 failed or a log could not be
written, 2 wrong usage.";

fn format(name: &str) -> std::result::Result<LogFormat, String> {
    let names: Vec<&str> = LOG_FORMATS.iter().map(|(name, _)| *name).collect();
    LogFormat::named(name).ok_or_else(|| format!("there are {}", names.join(", ")))
}

impl Args {
    /// Memory and write limits of the connections and of each output.
    fn shares(&self) -> Shares {
        let (prints, stores) = (!self.quiet && !self.top, self.store.folder.is_some());
        let outputs = shares::Outputs { files: self.log.len() + self.export.len(), prints, stores };
        Shares::of((self.memory as usize) << 20, self.source.read.is_empty(), self.limit.output_rate, outputs)
    }

    /// Enables recognition of heads in the kernel, if requested.
    fn look_offloaded(&mut self) -> Result<()> {
        if self.analysis == AnalysisArg::User {
            return match self.kernel_directions {
                Some(_) => Err(wrong("--kernel-directions", "this is for --analysis kernel; leave it out")),
                None => Ok(()),
            };
        }
        self.source.fits_kernel("--analysis")?;
        let directions = self.kernel_directions.map_or(KernelHttp::DIRECTIONS, |number| number as usize);
        self.source.kernel_http = Some(KernelHttp { directions });
        Ok(())
    }
}

impl Args {
    /// Whether packets are analysed in the kernel.
    pub fn is_offloaded(&self) -> bool {
        self.analysis == AnalysisArg::Kernel
    }

    /// Checks the values that name outputs.
    pub fn check(&self) -> Result<()> {
        self.logs()?;
        self.targets().map(|_| ())
    }

    /// The values of --log.
    fn logs(&self) -> Result<Vec<Log>> {
        outputs::parsed("--log", &self.log, Log::parse)
    }

    /// The values of --export.
    fn targets(&self) -> Result<Vec<Target>> {
        let targets = outputs::parsed("--export", &self.export, Target::parse)?;
        if let Some(other) = targets.iter().find(|target| target.format != Format::Ipfix) {
            let reason = "transactions are exported as IPFIX only; --log writes them in the formats of logs";
            return Err(wrong("--export", format!("{}: {reason}", other.name)));
        }
        Ok(targets)
    }

    /// Opens the outputs, before privileges are dropped: no other files or sockets can be opened later.
    pub fn prepare(&mut self) -> Result<HttpAnalysis> {
        self.look_offloaded()?;
        if self.top {
            outputs::needs_terminal()?;
            self.source.rights.terminal = true;
        }
        let both = self.source.has_both_directions();
        if matches!(
            self.steering,
            SteeringArg::RoundRobin | SteeringArg::Copy | SteeringArg::Source | SteeringArg::Destination
        ) || (self.workers > 1 && self.steering == SteeringArg::Queue && both)
        {
            let reason = "the two directions of a connection would go to different workers; 'flow' keeps them together";
            return Err(wrong("--steering", reason));
        }
        let shares = self.shares();
        ensure!(
            ((self.memory as usize) << 20) / self.workers.max(1) >= LEAST_MEMORY,
            "--memory: {} MiB for {} workers is less than {LEAST_MEMORY} bytes for each; give more",
            self.memory,
            self.workers
        );
        let extra = names(&self.fields)?;
        let logs = self.logs()?;
        let owner = self.source.rights.identity()?.map(|identity| identity.ids());
        let options = OutputOptions { overwrite: self.overwrite };
        let logs = Logs::open(&logs, options, owner, extra.clone(), shares.limit, shares.output)?;
        let exporters = exporters(self, options, owner)?;
        let live = self.source.read.is_empty();
        let store = Store::open(&self.store.options(), live, owner, shares, Transaction::wire_bytes)?;
        self.source.rights.stores(self.store.folder.as_ref());
        self.source.rights.logs.extend(logs.rotating().chain(exporters.rotating()).map(Path::to_owned));
        let show = match (self.quiet || self.top, self.print, self.source.json) {
            (true, ..) => Show::Nothing,
            (_, Some(format), _) => Show::Log(format),
            (_, _, true) => Show::Log(LogFormat::Json),
            _ => Show::Table,
        };
        let settings = HttpSettings {
            idle_ns: self.idle_timeout.as_nanos() as u64,
            memory: shares.analysis / self.workers.max(1),
            inner: self.source.inner,
            extra,
        };
        let outputs = Outputs { logs, exporters, metrics: None };
        let way = (live, self.source.kernel_http.is_some());
        Ok(HttpAnalysis::new(settings, way, outputs, store, (show, shares.limit)))
    }
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<()> {
    let mut analysis = args.prepare()?;
    let view = args.top.then(|| analysis.on_screen());
    let stream = if args.print.is_some() { Stream::Stderr } else { Stream::Stdout };
    let outputs = (&args.metrics, &args.store);
    args.source.run_rows(outputs, (args.workers, args.steering), stream, (Box::new(analysis), view))
}

/// Opens the export targets.
fn exporters(args: &mut Args, options: OutputOptions, owner: Option<(u32, u32)>) -> Result<Exporters> {
    let targets = args.targets()?;
    args.source.rights.tcp_ports.extend(targets.iter().flat_map(Target::tcp_ports));
    let live = args.source.read.is_empty();
    let settings = ExportSettings {
        transactions: true,
        backlog: args.shares().output,
        limit: args.shares().limit,
        inner: args.source.inner,
        live,
        patient: !live,
        domain: args.observation_domain.unwrap_or_else(std::process::id),
        ..ExportSettings::default()
    };
    Ok(Exporters::open(&targets, settings, options, owner)?)
}

/// Names of header fields, in the form used for matching.
fn names(names: &[String]) -> Result<Vec<Box<str>>> {
    const MOST: usize = 64;
    ensure!(names.len() <= MOST, wrong("--fields", format!("there may be {MOST} names at most")));
    let name = |name: &String| {
        let good = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        ensure!(good, wrong("--fields", format!("'{}' is not a field name", name.escape_default())));
        Ok(name.to_ascii_lowercase().into_boxed_str())
    };
    names.iter().map(name).collect()
}
