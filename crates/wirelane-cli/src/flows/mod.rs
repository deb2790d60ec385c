//! `wirelane flows`: flows to collectors, files and the terminal.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use wirelane::{Device, KernelFlows, Selector};
use wirelane_analysis::flows::{CacheSettings, FlowRecord, LEAST_MEMORY, Timeouts};
use wirelane_export::OutputOptions;
use wirelane_export::flows::{ExportSettings, Exporters, Target};
use wirelane_export::pipeline::flows::{FlowSettings, LiveTimeouts};

use crate::metrics::MetricsArgs;
use crate::outputs::{self, LimitArgs, StoreArgs, TimesArgs};
use crate::source::{self, SourceArgs, SteeringArg};
use crate::values::wrong;
use wirelane_monitor::flows::analysis::{FlowAnalysis, Outputs};
use wirelane_monitor::flows::show::Show;
use wirelane_monitor::report::Stream;
use wirelane_monitor::shares::{self, Shares};
use wirelane_monitor::store::Store;
use wirelane_screen::flows::{Names, Shared};

/// Heading of the help.
const FLOWS: &str = "Flows";
/// Heading of the help.
const EXPORT: &str = "Export";

/// Turn packets into flows: NetFlow, IPFIX, JSON, CSV
///
/// A flow is the sum of one direction of a conversation: packets, bytes, times, TCP flags and more. It is printed and
/// exported when it ends: after a silence, after TCP's FIN or RST, at its maximum age, or at the end of the capture.
/// The sums over all flows equal those of the ledger.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Worker threads, which read the rings, each with its own flows, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = source::CAPTURE)]
    workers: usize,

    /// Choice of the worker of a packet. Other values than 'flow' must keep flows together
    #[arg(long, value_enum, default_value_t = SteeringArg::Flow, help_heading = source::CAPTURE)]
    steering: SteeringArg,

    /// Where flows are built
    #[arg(long, value_enum, default_value_t = CacheArg::User, help_heading = FLOWS)]
    cache: CacheArg,

    /// Capacity of each lane (RX queue or CPU) in flows, with '--cache kernel', up to 1048576. Each worker has an equal
    /// part of it, rounded up to a power of two and to at least 128. Default: 4096
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=KernelFlows::MOST_ENTRIES as i64), help_heading = FLOWS)]
    cache_entries: Option<u32>,

    /// Maximum age of a flow; it continues as a new flow
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "60", help_heading = FLOWS)]
    active_timeout: Duration,

    /// Time after its last packet at which a flow ends
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "15", help_heading = FLOWS)]
    inactive_timeout: Duration,

    /// Make both directions one flow (RFC 5103), from the initiator. Many collectors show the forward direction only
    #[arg(long, help_heading = FLOWS)]
    biflow: bool,

    /// Sample one packet in N, and announce that to collectors
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16383), help_heading = FLOWS)]
    sampling: u32,

    /// Memory for flows and for what waits for outputs, in MiB, without the caches of --cache kernel. When it is full, the
    /// lightest of the flows that have been silent longest end
    #[arg(long, value_name = "MIB", default_value = "256", value_parser = crate::values::memory, help_heading = FLOWS)]
    memory: u32,

    /// Export flows: ipfix://HOST:PORT (with ?transport=tcp), netflow9://HOST:PORT, netflow5://HOST:PORT, or
    /// file:PATH with .ipfix, .json or .csv at its end. Several by repeating the option
    #[arg(long, value_name = "WHERE", help_heading = EXPORT)]
    export: Vec<String>,

    /// Messages per second to each collector over UDP, which has no flow control; 0: unlimited
    #[arg(long, value_name = "N", default_value_t = 2000, help_heading = EXPORT)]
    export_rate: u32,

    /// Time to wait for collectors at the end
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "5", help_heading = EXPORT)]
    export_wait: Duration,

    /// Time after which templates are sent again by UDP; also after 20 messages, and 1, 5 and 20 seconds after the start
    #[arg(long, value_name = "TIME", value_parser = crate::values::seconds, default_value = "60", help_heading = EXPORT)]
    template_refresh: Duration,

    /// Identifies this probe among others on the host: the observation domain of IPFIX, the source id of NetFlow 9.
    /// Default: the process id
    #[arg(long, value_name = "ID", help_heading = EXPORT)]
    observation_domain: Option<u32>,

    /// Truncate existing files. Default: append
    #[arg(long, help_heading = EXPORT)]
    overwrite: bool,

    #[command(flatten)]
    pub store: StoreArgs,

    #[command(flatten)]
    limit: LimitArgs,

    #[command(flatten)]
    metrics: MetricsArgs,

    /// Print flows as CSV; the ledger goes to standard error
    #[arg(long, conflicts_with_all = ["json", "local_time"], help_heading = source::OUTPUT)]
    csv: bool,

    #[command(flatten)]
    times: TimesArgs,

    /// Print the file with which 'wirelane monitor' does the same, and exit
    #[arg(long, help_heading = source::OUTPUT)]
    pub print_config: bool,

    /// Print no flows, only the ledger and export counts
    #[arg(short, long, conflicts_with = "csv", help_heading = source::OUTPUT)]
    quiet: bool,

    /// Show a live view on the terminal, once per interval; 'q' ends it
    #[arg(long, conflicts_with_all = ["csv", "json", "quiet", "read"], help_heading = source::OUTPUT)]
    top: bool,

    /// With --top, show hosts and ports by their names in /etc/hosts and /etc/services. No query is sent
    #[arg(long, requires = "top", help_heading = source::OUTPUT)]
    names: bool,

    /// Timeouts that a monitor changes while it runs.
    #[arg(skip)]
    pub live: Arc<LiveTimeouts>,
}

/// Values of --cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CacheArg {
    /// In the workers, to which packets are delivered
    User,
    /// In the kernel, in each lane; parts of flows are delivered. Engine 'ring' only
    Kernel,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Key of a flow:
  device, direction, VLAN, protocol, addresses and ports; for ICMP, type and
  code instead of ports. With --inner, the addresses inside tunnels, and the
  kind and id of the tunnel. Fragments after the first have no ports and form a
  flow with ports 0. Packets that are not IP form a flow per EtherType.

Columns of the table:
  end, seconds, prot, source, destination, flags (of TCP), packets, bytes (from
  the IP header on), reason: idle, active (timeout), end (of TCP), forced (end
  of the capture), resources (its entry was needed)

Exports:
  NetFlow 5 has IPv4 only, NetFlow 9 has IP only: other flows are counted as
  not_exportable. IPFIX has all of them. UDP: messages of at most 1400 bytes
  (?message=BYTES), with sequence numbers, by which the collector counts losses.
  TCP: while the collector is away, up to 16 MiB of messages wait, and the
  connection is made again. A collector never stops the capture; the last object
  (--json) has the counts for each, in exports.
  Files are appended to; --overwrite empties them. A file that is renamed
  (logrotate) is opened again within a second, or at SIGHUP. While a disk is
  full, up to 8 MiB wait, and writing is tried again each second.

Stores:
  Parquet files in DIR/flows/date=YYYY-MM-DD/hour=HH, by the end of the flows in
  UTC. A file gets its name when it is complete and synced. While the disk is
  full, flows wait, up to an eighth of --memory; further flows are counted as
  unwritten, and the exit status is 1. See 'wirelane query --help'.

With --json: an object per flow, with its number in 'flow'; times are in seconds
since 1970 with nine decimals, as text. tcp_retransmitted and tcp_reordered are
segments that begin before the end of the segment before them, more than 3 ms
after it or less; a burst that is sent again counts once.

'application' comes from the first bytes of a payload if those are unambiguous
('application_by': payload), else from a registered port (port).

The screen of --top:
  Packets and bits per second of each device and queue, with their history; the
  ledger; counts of each output; then bits per second over the last 2, 10 and
  40 s, packets and bytes by flow, host, conversation or application (keys f, h,
  c, a), sorted by a column (s). '/' shows only rows with a text, 'p' pauses,
  '?' lists all keys, 'q' or Ctrl-C ends it.

Examples:
  wirelane flows -r capture.pcapng
  wirelane flows -i eth1 --top
  wirelane flows -r capture.pcapng --csv > flows.csv
  wirelane flows -i eth1 --export ipfix://192.0.2.1:4739 --quiet
  wirelane flows -i eth1 --export netflow9://192.0.2.1:2055 \\
      --export file:flows.json --inactive-timeout 30
  wirelane flows -i eth1 --store flows.db --store-max-size 10GB --quiet
  wirelane flows -i eth1 --export 'ipfix://[2001:db8::1]:4739?transport=tcp' \\
      --workers 4 --biflow

Exit status: 0 done (also after Ctrl-C), 1 failed or a file could not be
written, 2 wrong usage. A collector that is away does not change it.";

impl Args {
    /// Memory and write limits of the flows and of each output.
    fn shares(&self) -> Shares {
        let prints = !self.quiet && !self.top;
        let outputs =
            shares::Outputs { files: self.export.len(), prints, stores: self.store.folder.is_some() };
        Shares::of((self.memory as usize) << 20, self.source.read.is_empty(), self.limit.output_rate, outputs)
    }

    /// Settings of the workers' flow caches with this memory in bytes; also sets the kernel's flow cache.
    fn cache_settings(&mut self, memory: usize) -> Result<CacheSettings> {
        let cache = CacheSettings {
            timeouts: self.timeouts(),
            memory: memory / self.workers.max(1),
            biflow: self.biflow,
        };
        ensure!(
            cache.memory >= LEAST_MEMORY,
            "--memory: {} MiB for {} workers is less than {LEAST_MEMORY} bytes for each; give more",
            self.memory,
            self.workers
        );
        if self.cache == CacheArg::User {
            return Ok(cache);
        }
        // Parts of flows carry the times of their packets, and are merged by them.
        self.source.any_order = true;
        self.source.kernel_flows = Some(KernelFlows {
            entries: self.entries(),
            timeouts: cache.timeouts,
            sampling: self.sampling,
            intervals: None,
            whole: 0,
            deliver: false,
        });
        Ok(cache)
    }
}

impl Args {
    /// Timeouts of flows.
    pub fn timeouts(&self) -> Timeouts {
        let idle_ns = self.inactive_timeout.as_nanos() as u64;
        Timeouts {
            active_ns: self.active_timeout.as_nanos() as u64,
            idle_ns,
            ended_ns: CacheSettings::default().timeouts.ended_ns.min(idle_ns),
        }
    }

    /// Capacity of each lane in flows, in the kernel.
    pub fn entries(&self) -> usize {
        self.cache_entries.map_or(KernelFlows::ENTRIES, |entries| entries as usize)
    }

    /// Whether packets are analysed in the kernel.
    pub fn is_offloaded(&self) -> bool {
        self.cache == CacheArg::Kernel
    }

    /// Checks the values that name outputs, and those that do not fit together.
    pub fn check(&self) -> Result<()> {
        if matches!(self.steering, SteeringArg::RoundRobin | SteeringArg::Copy) {
            let reason = "this would spread a flow's packets over workers, or count them several times; 'flow' keeps them together";
            return Err(wrong("--steering", reason));
        }
        if self.cache == CacheArg::User && self.cache_entries.is_some() {
            return Err(wrong("--cache-entries", "this is for --cache kernel; leave it out"));
        }
        if self.cache == CacheArg::Kernel {
            self.source.fits_kernel("--cache")?;
        }
        self.targets().map(|_| ())
    }

    /// The values of --export.
    fn targets(&self) -> Result<Vec<Target>> {
        outputs::parsed("--export", &self.export, Target::parse)
    }

    /// Opens the outputs, before privileges are dropped: no other files or sockets can be opened later.
    pub fn prepare(&mut self) -> Result<FlowAnalysis> {
        self.check()?;
        if self.top {
            outputs::needs_terminal()?;
            self.source.rights.terminal = true;
        }
        let shares = self.shares();
        let cache = self.cache_settings(shares.analysis)?;
        let live = self.source.read.is_empty();
        let targets = self.targets()?;
        self.source.headers_only = true;
        self.source.rights.tcp_ports.extend(targets.iter().flat_map(Target::tcp_ports));
        let settings = ExportSettings {
            sampling: self.sampling,
            biflow: self.biflow,
            inner: self.source.inner,
            refresh: self.template_refresh,
            rate: self.export_rate,
            wait: self.export_wait,
            backlog: shares.output,
            limit: shares.limit,
            live,
            patient: !live,
            domain: self.observation_domain.unwrap_or_else(std::process::id),
            ..ExportSettings::default()
        };
        let owner = self.source.rights.identity()?.map(|identity| identity.ids());
        let options = OutputOptions { overwrite: self.overwrite };
        let exporters = Exporters::open(&targets, settings, options, owner)?;
        let store = Store::open(&self.store.options(), live, owner, shares, FlowRecord::wire_bytes)?;
        self.source.rights.stores(self.store.folder.as_ref());
        self.source.rights.logs.extend(exporters.rotating().map(Path::to_owned));
        let show = match (self.quiet || self.top, self.csv, self.source.json) {
            (true, ..) => Show::Nothing,
            (_, true, _) => Show::Csv,
            (_, _, true) => Show::Json,
            _ => Show::Table,
        };
        let screen = self.top.then(|| Arc::new(Shared::new(self.source.interval)));
        let how = FlowSettings {
            cache,
            inner: self.source.inner,
            sampling: self.sampling,
            live,
            kernel: self.is_offloaded(),
            timeouts: Arc::clone(&self.live),
        };
        // Files are read before privileges are dropped.
        let read = || Names::read("/etc/hosts".as_ref(), "/etc/services".as_ref());
        let names = self.names.then(read).transpose().map_err(|e| wrong("--names", e.to_string()))?;
        let names = names.map(Arc::new);
        let outputs = Outputs { exporters, store, show, limit: shares.limit, screen, names };
        Ok(FlowAnalysis::new(how, outputs, device_indices(&self.source)?))
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

/// Interface indices of the devices, by name.
fn device_indices(source: &SourceArgs) -> Result<Vec<(String, u32)>> {
    let mut indices = Vec::new();
    for list in &source.interface {
        for selector in Selector::parse_list(list)? {
            // A missing device is reported when the capture opens it.
            if let Ok(device) = Device::open(&selector.device) {
                indices.push((device.name.clone(), device.ifindex));
            }
        }
    }
    Ok(indices)
}
