//! Options shared by all capturing commands: the source of packets, and the end of the capture.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use wirelane::control::{Purpose, SharedSocket};
use wirelane::filter::FileFilter;
use wirelane::sandbox::Work;
use wirelane::{
    Balance, Builder, Capture, Clock, Direction, Engine, HookChoice, KernelFlows, KernelHttp, RulesCapacity,
    Selector, Steering, ZeroCopy,
};

use crate::metrics::MetricsArgs;
use crate::outputs::StoreArgs;
use crate::rights::{Output, RightsArgs};
use crate::ruled::RuleArgs;
use crate::values::{busy_poll, cores, ring_size, seconds, watermarks, wrong};
use wirelane_monitor::advice::Expected;
use wirelane_monitor::analysis::{self, Analysis, RowReporter, Told};
use wirelane_monitor::files;
use wirelane_monitor::report::{Report, Stream};
use wirelane_monitor::run_loop::{Limits, OnHangup, Reporter};

pub use crate::choices::{
    BalanceArg, ClockArg, CongestionControl, CoresArg, DirectionArg, EngineArg, HookArg, PollingArg,
    PriorityArg, SteeringArg, ZeroCopyArg,
};

/// Headings of the help, the same in every command.
pub const SOURCE: &str = "Source";
/// See [`SOURCE`].
pub const CAPTURE: &str = "Capture";
/// See [`SOURCE`].
pub const STOP: &str = "End (default: Ctrl-C, or the end of the file)";
/// See [`SOURCE`].
pub const OUTPUT: &str = "Output";

/// Options of the source of packets, and of the end of the capture.
#[derive(clap::Args, Debug)]
pub struct SourceArgs {
    /// Device to capture on: eth1 for its received and transmitted packets, eth1@2 or eth1@0-3 for RX queues; several
    /// with commas, by repeating the option, or by a pattern in quotes ('veth*'); 'any': all that are up
    #[arg(short, long = "interface", value_name = "DEV", help_heading = SOURCE)]
    pub interface: Vec<String>,

    /// Read packets from pcap or pcapng files instead, in time order: a file, a pattern in quotes, or a folder; several by
    /// repeating the option; '-' is standard input. Needs no privileges
    #[arg(short, long, value_name = "FILE", conflicts_with = "interface", help_heading = SOURCE)]
    pub read: Vec<PathBuf>,

    /// Engine: how packets reach this program
    #[arg(long, value_enum, default_value_t = EngineArg::Auto, help_heading = CAPTURE)]
    pub engine: EngineArg,

    /// Hook at which the engines 'ring' and 'xsk' receive packets
    #[arg(long, value_enum, default_value_t = HookArg::Auto, help_heading = CAPTURE)]
    pub hook: HookArg,

    /// Which packets to capture
    #[arg(long, short_alias = 'Q', value_enum, default_value_t = DirectionArg::Auto, help_heading = CAPTURE)]
    pub direction: DirectionArg,

    /// Keep at most this many bytes of each packet; 0 keeps all of them
    #[arg(short, long, value_name = "BYTES", default_value_t = 0, help_heading = CAPTURE)]
    pub snap_length: usize,

    /// MiB of each ring (one per RX queue and worker), a power of two up to 1024. Default: 4, less with over 64 rings
    #[arg(long, value_name = "MIB", value_parser = ring_size, help_heading = CAPTURE)]
    pub ring_size: Option<usize>,

    /// Cores for the workers, as in 1,3: one worker each, in turn; or 'auto': beside the cores that serve the RX
    /// queues, near the card ('wirelane tune' shows the choice). Default: any core
    #[arg(long, value_name = "LIST", value_parser = cores, help_heading = CAPTURE)]
    pub cores: Option<CoresArg>,

    /// Priority of this program on busy CPUs
    #[arg(long, value_enum, default_value_t = PriorityArg::Auto, help_heading = CAPTURE)]
    pub priority: PriorityArg,

    /// How RX queues are polled during the capture; restored at the end. Default: unchanged
    #[arg(long, value_enum, help_heading = CAPTURE)]
    pub polling: Option<PollingArg>,

    /// Keep captured packets from the host's network stack. Default: they go on to it
    #[arg(long, alias = "take", help_heading = CAPTURE)]
    pub exclusive: bool,

    /// Deliver each packet immediately instead of in batches: less delay, lower rate
    #[arg(long, help_heading = CAPTURE)]
    pub immediate: bool,

    /// Clock of the time stamps
    #[arg(long, value_enum, default_value_t = ClockArg::Packet, help_heading = CAPTURE)]
    pub clock: ClockArg,

    /// Refuse whole flows before they are copied when a worker falls behind, new ones first: 'on' begins at a half-full
    /// ring; LOW,HIGH are the percentages of a ring at which new flows are refused and at which all flows are, as in
    /// 50,90. A flow that was refused stays refused until it or the congestion is over (15 s)
    #[arg(long, value_name = "off|on|LOW,HIGH", value_parser = watermarks, default_value = "off", help_heading = CAPTURE)]
    pub congestion_control: CongestionControl,

    /// Do not put the device into promiscuous mode
    #[arg(short = 'p', long, help_heading = CAPTURE)]
    pub no_promiscuous: bool,

    /// Let the driver write packets into the capture's memory (engine 'xsk'): never, if supported, or fail otherwise
    #[arg(long, value_enum, default_value_t = ZeroCopyArg::Never, help_heading = CAPTURE)]
    pub zero_copy: ZeroCopyArg,

    /// Poll the card from the worker for this time, without interrupts (engine 'xsk'), as in 20us; a number without a
    /// unit is in microseconds
    #[arg(long, value_name = "TIME", value_parser = busy_poll, help_heading = CAPTURE)]
    pub busy_poll: Option<u32>,

    /// Choose the worker with your own BPF program in the kernel: an object file, compiled from a source that includes
    /// wirelane/steer.h. It can also refuse packets, which are 'filtered' then
    #[arg(long, value_name = "FILE.bpf.o", conflicts_with = "steering", help_heading = CAPTURE)]
    pub steering_program: Option<PathBuf>,

    #[command(flatten)]
    pub ruled: RuleArgs,

    /// Whether the command reads headers only, and no more of a packet has to be copied.
    #[arg(skip)]
    pub headers_only: bool,
    /// Records of plug-ins are shown.
    #[arg(skip)]
    pub plugin_records: bool,

    /// Flows that are made in the kernel, if the command requests that.
    #[arg(skip)]
    pub kernel_flows: Option<KernelFlows>,

    /// HTTP that is analysed in the kernel, likewise.
    #[arg(skip)]
    pub kernel_http: Option<KernelHttp>,
    /// Maximum RTP streams that are measured in the kernel, if the command requests that.
    #[arg(skip)]
    pub kernel_streams: Option<usize>,
    /// Whether packets of these streams are delivered, too.
    #[arg(skip)]
    pub deliver_measured: bool,
    /// Whether records of several workers are merged.
    #[arg(skip)]
    pub across_workers: bool,

    /// Use the headers inside tunnels instead of the outer ones, for steering and rules
    #[arg(long, help_heading = CAPTURE)]
    pub inner: bool,

    /// Stop after this time, as in 10 (seconds), 500ms, 10m or 1h
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = STOP)]
    pub duration: Option<Duration>,

    /// Stop after this many packets
    #[arg(short = 'c', long, value_name = "N", help_heading = STOP)]
    pub packets: Option<u64>,

    /// Time between progress reports
    #[arg(long, value_name = "TIME", value_parser = seconds, default_value = "1", help_heading = OUTPUT)]
    pub interval: Duration,

    /// Print one JSON object a line: {"ready": true, ...}, one per interval, and the last one with "final": true
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    #[command(flatten)]
    pub rights: RightsArgs,

    /// Requests of other processes that the command answers during the capture.
    #[arg(skip)]
    pub service: Option<Purpose>,

    /// A further socket for these requests.
    #[arg(skip)]
    pub shared_socket: Option<SharedSocket>,

    /// Whether the command does not need time order over RX queues, CPUs and devices.
    #[arg(skip)]
    pub any_order: bool,

    /// Whether the command reads its configuration again at SIGHUP, with its own handler.
    #[arg(skip)]
    pub reloads: bool,

    /// Read the filter expression from a file; '-' is standard input
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with = "filter", help_heading = SOURCE)]
    pub filter_file: Option<PathBuf>,

    /// Accepted for the sake of tcpdump's users: names are never looked up
    #[arg(short = 'n', hide = true, action = clap::ArgAction::Count)]
    _no_names: u8,

    /// Likewise: each batch of packets is printed at once
    #[arg(short = 'l', hide = true, action = clap::ArgAction::Count)]
    _unbuffered: u8,

    /// A tcpdump filter expression (man pcap-filter), as in: tcp port 80 and not net 10.0.0.0/8
    #[arg(allow_negative_numbers = true, value_name = "EXPRESSION", help_heading = SOURCE)]
    pub filter: Vec<String>,
}

/// Maximum bytes of a file with an expression.
const LONGEST_EXPRESSION: u64 = 8192;

impl SourceArgs {
    /// Whether transmitted packets may be captured besides received ones.
    pub fn has_both_directions(&self) -> bool {
        let queues = |list: &String| list.contains('@');
        match self.direction {
            DirectionArg::Both => true,
            DirectionArg::Auto => !self.exclusive && !self.interface.iter().all(queues),
            DirectionArg::Rx | DirectionArg::Tx => false,
        }
    }

    /// Whether both directions of most conversations should be seen.
    pub fn expects_conversations(&self) -> bool {
        let queues = |list: &String| list.contains('@');
        self.direction == DirectionArg::Auto
            && !self.interface.iter().any(queues)
            && self.filter.is_empty()
            && self.filter_file.is_none()
            && self.ruled.rules.is_none()
    }

    /// Adds what another analysis of the same capture needs.
    pub fn include(&mut self, other: &mut SourceArgs) {
        self.kernel_flows = self.kernel_flows.or(other.kernel_flows);
        self.kernel_streams = self.kernel_streams.or(other.kernel_streams);
        self.rights.include(&mut other.rights);
        self.headers_only &= other.headers_only;
        self.any_order &= other.any_order;
        self.across_workers |= other.across_workers;
    }

    /// When the run reports and ends.
    pub fn limits(&self) -> Limits {
        let expected = || Expected { exclusive: self.exclusive, conversations: self.expects_conversations() };
        Limits {
            interval: self.interval,
            duration: self.duration,
            packets: self.packets,
            on_hangup: self.on_hangup(),
            live: self.read.is_empty().then(expected),
            devices_may_end: self.interface.iter().all(|list| {
                Selector::parse_list_with(list, |_| false)
                    .is_ok_and(|all| all.iter().all(Selector::is_pattern))
            }),
        }
    }

    /// The effect of SIGHUP.
    fn on_hangup(&self) -> OnHangup {
        match (self.reloads, self.rights.logs.is_empty()) {
            (true, _) => OnHangup::Reload,
            (false, true) => OnHangup::End,
            (false, false) => OnHangup::Reopen,
        }
    }

    /// The filter expression, from the command line or a file; empty: all packets.
    pub fn expression(&self) -> Result<String> {
        let Some(path) = &self.filter_file else { return Ok(self.filter.join(" ")) };
        let text = files::text(path, LONGEST_EXPRESSION)?;
        if text.len() as u64 > LONGEST_EXPRESSION {
            let reason = format!(
                "{} has more than {LONGEST_EXPRESSION} bytes: expected a filter expression",
                path.display()
            );
            return Err(wrong("-F", reason));
        }
        Ok(text)
    }

    /// The error for an invalid filter expression, which begins with a file if the shell has expanded a pattern.
    fn unquoted(&self, error: wirelane::filter::Error) -> anyhow::Error {
        match self.filter.first() {
            Some(word) if Path::new(word).is_file() => {
                let reason = format!(
                    "'{word}' is a file, not a filter expression: write a pattern in quotes, as in -r '*.pcap', or -r \
                     before each file"
                );
                wrong("-r", reason)
            }
            _ => error.into(),
        }
    }

    /// Checks that packets can be analysed in the kernel, as this option asks for.
    ///
    /// # Errors
    /// A usage error.
    pub fn fits_kernel(&self, option: &'static str) -> Result<()> {
        if !self.read.is_empty() {
            return Err(wrong(option, "a file is not analysed in the kernel: use 'user' with -r"));
        }
        if self.packets.is_some() {
            let reason = format!("with {option} kernel packets are not counted one by one: use --duration");
            return Err(wrong("--packets", reason));
        }
        Ok(())
    }

    /// Runs an analysis that prints rows, with its live view, until the end of its capture.
    ///
    /// # Errors
    /// The first failure.
    pub fn run_rows(
        &mut self,
        (metrics, store): (&MetricsArgs, &StoreArgs),
        (workers, steering): (usize, SteeringArg),
        stream: Stream,
        (analysis, view): (Box<dyn Analysis>, Option<Box<dyn Reporter>>),
    ) -> Result<()> {
        let metrics = metrics.open(self)?;
        let ledger = store.ledger(self)?;
        let expression = self.expression()?;
        let capture = self.open(&expression, workers, steering, BalanceArg::Static, None)?;
        let report = Report::new(self.json, capture.engine(), stream);
        let mut reporter = RowReporter::new(report, self.json, view);
        let told = Told { metrics, ledger, ..Told::default() };
        analysis::run(capture, &self.limits(), &mut [analysis], told, &mut reporter)
    }

    /// Starts the capture of the packets that match this expression, with this many workers, and drops the privileges
    /// that only the start needs. After that, the process can write to `output`, and open nothing else.
    pub fn open(
        &self,
        expression: &str,
        workers: usize,
        steering: SteeringArg,
        balance: BalanceArg,
        output: Option<Output<'_>>,
    ) -> Result<Capture> {
        match (self.engine, self.read.is_empty()) {
            (EngineArg::File, true) => return Err(wrong("--engine", "'file' reads a file: name it with -r")),
            (EngineArg::Ring | EngineArg::Xsk | EngineArg::Packet, false) => {
                return Err(wrong(
                    "--engine",
                    "only 'file' reads a file, the others capture from devices; leave the option out",
                ));
            }
            _ => {}
        }
        if !self.read.is_empty() {
            if workers != 1 {
                return Err(wrong("--workers", "a file is read by one worker; leave the option out"));
            }
            if self.steering_program.is_some() {
                let reason = "this is for devices, not for files: leave the option out";
                return Err(wrong("--steering-program", reason));
            }
            if self.polling.is_some() {
                return Err(wrong("--polling", "a file has no RX queues; leave the option out"));
            }
            // Opened with the privileges of the caller, and parsed without them.
            let inputs = files::open(&files::expand(&self.read)?)?;
            let inputs = inputs.into_iter().map(|input| input.any_order(self.any_order)).collect();
            // Names are also resolved with them.
            let filter = FileFilter::compile(expression).map_err(|error| self.unquoted(error))?;
            let rules = self.ruled.for_file()?;
            if let Some(confinement) = self.rights.confinement(Work::Read, output)? {
                confinement.apply()?;
            }
            return Ok(match rules {
                Some(rules) => Capture::read_files_by_rules(inputs, filter, &rules, self.inner)?,
                None => Capture::read_files(inputs, filter)?,
            });
        }
        if self.interface.is_empty() {
            return Err(wrong(
                "-i",
                "name a device ('wirelane devices' lists them), or a file to read with -r",
            ));
        }
        let (mut selectors, mut patterns) = (Vec::new(), Vec::new());
        for list in &self.interface {
            selectors.extend(Selector::parse_list(list)?);
            patterns.extend(Selector::patterns(list)?);
        }
        let ring_size = match self.ring_size {
            None => 0,
            Some(mib @ 1..=1024) if mib.is_power_of_two() => mib << 20,
            Some(mib) => {
                return Err(wrong("--ring-size", format!("{mib} is not a power of two between 1 and 1024")));
            }
        };
        let mut builder = Builder::new(selectors)
            .patterns(patterns)
            .engine(match self.engine {
                EngineArg::Auto | EngineArg::File => Engine::Auto,
                EngineArg::Ring => Engine::Ring,
                EngineArg::Xsk => Engine::Xsk,
                EngineArg::Packet => Engine::Packet,
            })
            .zero_copy(match self.zero_copy {
                ZeroCopyArg::Never => ZeroCopy::Never,
                ZeroCopyArg::Auto => ZeroCopy::Auto,
                ZeroCopyArg::Require => ZeroCopy::Require,
            })
            .snap_len(self.snap_length)
            .headers_only(self.headers_only)
            .plugin_records(self.plugin_records)
            .ring_size(ring_size)
            .workers(workers)
            .steering(match steering {
                SteeringArg::Flow => Steering::Flow,
                SteeringArg::Queue => Steering::Queue,
                SteeringArg::RoundRobin => Steering::RoundRobin,
                SteeringArg::Copy => Steering::Copy,
                SteeringArg::Vlan => Steering::Vlan,
                SteeringArg::Source => Steering::Source,
                SteeringArg::Destination => Steering::Destination,
            })
            .balance(match balance {
                BalanceArg::Static => Balance::Static,
                BalanceArg::Adaptive => Balance::Adaptive,
            })
            .congestion_control(self.congestion_control.0)
            .filter(expression)
            .exclusive(self.exclusive)
            .immediate(self.immediate)
            .in_order(!self.any_order)
            .across_workers(self.across_workers)
            .inner_headers(self.inner)
            .promiscuous(!self.no_promiscuous)
            // A monitor's configuration may be read again.
            .filter_later(self.service == Some(Purpose::Monitor))
            .hook(match self.hook {
                HookArg::Auto => HookChoice::Auto,
                HookArg::Native => HookChoice::Native,
                HookArg::Generic => HookChoice::Generic,
                HookArg::Tc => HookChoice::Tc,
                HookArg::Clsact => HookChoice::Clsact,
            })
            .clock(match self.clock {
                ClockArg::Packet => Clock::Packet,
                ClockArg::Batch => Clock::Batch,
                ClockArg::Card => Clock::Card,
            })
            .direction(match self.direction {
                DirectionArg::Auto => Direction::Auto,
                DirectionArg::Rx => Direction::Rx,
                DirectionArg::Tx => Direction::Tx,
                DirectionArg::Both => Direction::Both,
            });
        builder = match &self.cores {
            None => builder,
            Some(CoresArg::Auto) => builder.cores_auto(),
            Some(CoresArg::These(cores)) => builder.cores(cores.iter().copied()),
        };
        if let Some(flows) = self.kernel_flows {
            builder = builder.kernel_flows(flows);
        }
        if let Some(http) = self.kernel_http {
            builder = builder.kernel_http(http);
        }
        if let Some(program) = &self.steering_program {
            builder = builder.steering_program(program);
        }
        if let Some(microseconds) = self.busy_poll {
            builder = builder.busy_poll(microseconds);
        }
        if let Some(polling) = self.polling {
            builder = builder.polling(polling.polling());
        }
        builder = self.ruled.apply(builder)?;
        if let Some(streams) = self.kernel_streams {
            // A call has an address for media and one for RTCP on both sides, and two streams.
            let room = self.ruled.rules_capacity.unwrap_or_default();
            let exact = if room.exact == 0 { (2 * streams).max(1 << 16) } else { room.exact };
            builder = builder.kernel_streams(streams).deliver_measured(self.deliver_measured);
            builder = builder.rules_capacity(RulesCapacity { exact, ..room });
        }
        builder = builder.control(self.ruled.are_changeable()).service(self.service);
        builder = builder.shared_socket(self.shared_socket.clone());
        let yields = match self.priority {
            PriorityArg::Auto => !self.exclusive && output.is_none(),
            PriorityArg::Low => true,
            PriorityArg::Normal => false,
        };
        let capture = match self.rights.confinement(Work::Capture, output)? {
            Some(confinement) => builder.open_confined(&confinement)?,
            None => builder.open()?,
        };
        // After the start, which is short. The threads that follow inherit it.
        if yields && let Err(error) = wirelane::device::sys::yield_to_others() {
            tracing::warn!("the priority of this program cannot be lowered: {error}");
        }
        Ok(capture)
    }
}
