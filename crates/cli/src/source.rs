//! The options that every capturing command shares: where packets come from, and when to stop.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use wirelane::{Builder, Capture, Clock, Direction, Engine, Error, HookChoice, Selector, Steering, ZeroCopy};

/// Headings of the help, the same in every command.
pub const SOURCE: &str = "Where packets come from";
/// See [`SOURCE`].
pub const CAPTURE: &str = "How to capture";
/// See [`SOURCE`].
pub const STOP: &str = "When to stop (otherwise at Ctrl-C, or at the end of the file)";
/// See [`SOURCE`].
pub const OUTPUT: &str = "What to print";

/// Where packets come from, and when to stop.
#[derive(clap::Args, Debug)]
pub struct SourceArgs {
    /// Device to capture on: eth1 is all of its RX queues, eth1@2 or eth1@0-3 only these; several with commas or
    /// by repeating the option
    #[arg(short, long = "interface", value_name = "DEV", help_heading = SOURCE)]
    pub interface: Vec<String>,

    /// Read packets from a pcap or pcapng file instead; '-' is standard input. Needs no privilege
    #[arg(short, long, value_name = "FILE", conflicts_with = "interface", help_heading = SOURCE)]
    pub read: Option<PathBuf>,

    /// How packets reach this program
    #[arg(long, value_enum, default_value_t = EngineArg::Auto, help_heading = CAPTURE)]
    pub engine: EngineArg,

    /// Where the engines 'ring' and 'xsk' take packets from the kernel
    #[arg(long, value_enum, default_value_t = HookArg::Auto, help_heading = CAPTURE)]
    pub hook: HookArg,

    /// Which packets to capture
    #[arg(long, value_enum, default_value_t = DirectionArg::Rx, help_heading = CAPTURE)]
    pub direction: DirectionArg,

    /// Keep at most this many bytes of each packet; 0 keeps all of them
    #[arg(short, long, value_name = "BYTES", default_value_t = 0, help_heading = CAPTURE)]
    pub snap_length: usize,

    /// Size of each ring in MiB, a power of two up to 1024. There is one ring per RX queue and worker. Default: 4, or
    /// less where there are more than 64 rings
    #[arg(long, value_name = "MIB", help_heading = CAPTURE)]
    pub ring_size: Option<usize>,

    /// Cores to run the workers on, as in 1,3: one worker each, in turn. Default: wherever there is time
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CAPTURE)]
    pub cores: Vec<usize>,

    /// Keep captured packets from the host's network stack. Without it they go on to it as always
    #[arg(long, help_heading = CAPTURE)]
    pub take: bool,

    /// Show every packet at once instead of in batches: least delay, lower rate
    #[arg(long, help_heading = CAPTURE)]
    pub immediate: bool,

    /// What packets are stamped with
    #[arg(long, value_enum, default_value_t = ClockArg::Packet, help_heading = CAPTURE)]
    pub clock: ClockArg,

    /// Do not put the device into promiscuous mode
    #[arg(short = 'p', long, help_heading = CAPTURE)]
    pub no_promiscuous: bool,

    /// Let the card's driver put packets into our memory itself (engine 'xsk'): never, where it can, or else fail
    #[arg(long, value_enum, default_value_t = ZeroCopyArg::Never, help_heading = CAPTURE)]
    pub zero_copy: ZeroCopyArg,

    /// Poll the card from the worker, for so many microseconds at a time, instead of by interrupt (engine 'xsk')
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = CAPTURE)]
    pub busy_poll: Option<u32>,

    /// Look at the headers inside tunnels, not at the outer ones, to choose the worker
    #[arg(long, help_heading = CAPTURE)]
    pub inner: bool,

    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, help_heading = STOP)]
    pub duration: Option<Duration>,

    /// Stop after this many packets
    #[arg(short = 'c', long, value_name = "N", help_heading = STOP)]
    pub packets: Option<u64>,

    /// Seconds from one report of progress to the next
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1", help_heading = OUTPUT)]
    pub interval: Duration,

    /// Print one JSON object a line: {"ready": true, ...}, one per interval, and the last one with "final": true
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// tcpdump filter expression. Not in the help, for it does not work yet: it is taken to say so
    #[arg(trailing_var_arg = true, value_name = "EXPRESSION", hide = true)]
    pub filter: Vec<String>,
}

/// Values of --engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineArg {
    /// 'file' with -r, else 'ring', or 'packet' (with a warning) where the kernel does not let us
    Auto,
    /// Wirelane's own rings, filled by a program in the kernel
    Ring,
    /// AF_XDP sockets, one per RX queue: for exclusive use of a device, needs --take
    Xsk,
    /// AF_PACKET sockets with rings: needs CAP_NET_RAW only
    Packet,
    /// The capture file that -r names
    File,
}

/// Values of --hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HookArg {
    /// Native XDP where the driver can, else generic XDP
    Auto,
    /// XDP in the driver: the fastest
    Native,
    /// XDP in the network stack: any driver
    Generic,
    /// tc: any driver, beside other programs' XDP, later in the stack (Linux 6.6)
    Tc,
}

/// Values of --direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DirectionArg {
    /// Received packets
    Rx,
    /// Transmitted packets, always by tc
    Tx,
    /// Received and transmitted packets
    Both,
}

/// Values of --clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ClockArg {
    /// The kernel's clock, read for every packet
    Packet,
    /// The kernel's clock, read once for up to 64 packets that it handles in one go: faster (Linux 6.11)
    Batch,
    /// The card's clock, where it is set to stamp all received packets (hwstamp_ctl -r 1)
    Card,
}

/// Values of --zero-copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ZeroCopyArg {
    /// The kernel copies
    Never,
    /// Where the driver can
    Auto,
    /// Fail where it cannot
    Require,
}

/// Values of --steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SteeringArg {
    /// By symmetric flow hash: both directions of a conversation meet at one worker
    Flow,
    /// By RX queue
    Queue,
}

/// A positive number of seconds, fractions allowed.
pub fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give seconds, as in 10 or 0.5".into()),
    }
}

/// A usage error.
fn wrong(option: &'static str, reason: impl Into<String>) -> anyhow::Error {
    Error::BadOption { option, reason: reason.into() }.into()
}

impl SourceArgs {
    /// Starts the capture with this many workers.
    pub fn open(&self, workers: usize, steering: SteeringArg) -> Result<Capture> {
        if !self.filter.is_empty() {
            let reason = format!(
                "'{}' is not understood: filter expressions are not built yet; leave it out, or filter a recording \
                 with tcpdump -r",
                self.filter.join(" ")
            );
            return Err(wrong("filter", reason));
        }
        match (self.engine, &self.read) {
            (EngineArg::File, None) => return Err(wrong("--engine", "'file' reads a file: name it with -r")),
            (EngineArg::Ring | EngineArg::Xsk | EngineArg::Packet, Some(_)) => {
                return Err(wrong(
                    "--engine",
                    "only 'file' reads a file, the others capture from devices; leave the option out",
                ));
            }
            _ => {}
        }
        if let Some(path) = &self.read {
            if workers != 1 {
                return Err(wrong("--workers", "a file is read by one worker; leave the option out"));
            }
            return Ok(Capture::open_file(path)?);
        }
        if self.interface.is_empty() {
            return Err(wrong(
                "-i",
                "name a device ('wirelane devices' lists them), or a file to read with -r",
            ));
        }
        let mut selectors = Vec::new();
        for list in &self.interface {
            selectors.extend(Selector::parse_list(list)?);
        }
        let ring_size = match self.ring_size {
            None => 0,
            Some(mib @ 1..=1024) if mib.is_power_of_two() => mib << 20,
            Some(mib) => {
                return Err(wrong("--ring-size", format!("{mib} is not a power of two between 1 and 1024")));
            }
        };
        let mut builder = Builder::new(selectors)
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
            .ring_size(ring_size)
            .workers(workers)
            .cores(self.cores.iter().copied())
            .steering(match steering {
                SteeringArg::Flow => Steering::Flow,
                SteeringArg::Queue => Steering::Queue,
            })
            .take(self.take)
            .immediate(self.immediate)
            .inner_headers(self.inner)
            .promiscuous(!self.no_promiscuous)
            .hook(match self.hook {
                HookArg::Auto => HookChoice::Auto,
                HookArg::Native => HookChoice::Native,
                HookArg::Generic => HookChoice::Generic,
                HookArg::Tc => HookChoice::Tc,
            })
            .clock(match self.clock {
                ClockArg::Packet => Clock::Packet,
                ClockArg::Batch => Clock::Batch,
                ClockArg::Card => Clock::Card,
            })
            .direction(match self.direction {
                DirectionArg::Rx => Direction::Rx,
                DirectionArg::Tx => Direction::Tx,
                DirectionArg::Both => Direction::Both,
            });
        if let Some(microseconds) = self.busy_poll {
            builder = builder.busy_poll(microseconds);
        }
        Ok(builder.open()?)
    }
}
