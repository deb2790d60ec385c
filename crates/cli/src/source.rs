//! The options that every capturing command shares: where packets come from, and when to stop.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use wirelane::{Builder, Capture, Direction, HookChoice, Selector, Steering};

/// Where packets come from, and when to stop.
#[derive(clap::Args, Debug)]
pub struct SourceArgs {
    /// Device or virtual device to capture on: eth1, eth1@2, eth1@0-3; repeat it or write a comma list
    #[arg(short, long = "interface", value_name = "DEV", required_unless_present = "read")]
    pub interface: Vec<String>,

    /// Read packets from a pcap or pcapng file instead ('-' is standard input); needs no privilege
    #[arg(short, long, value_name = "FILE", conflicts_with = "interface")]
    pub read: Option<PathBuf>,

    /// How packets reach this program
    #[arg(long, value_enum, default_value_t = EngineArg::Auto)]
    pub engine: EngineArg,

    /// Where the ring engine takes packets from the kernel
    #[arg(long, value_enum, default_value_t = HookArg::Auto)]
    pub hook: HookArg,

    /// Which packets to capture
    #[arg(long, value_enum, default_value_t = DirectionArg::Rx)]
    pub direction: DirectionArg,

    /// Keep at most this many bytes of each packet; 0: all of them
    #[arg(short, long, value_name = "BYTES", default_value_t = 0)]
    pub snap_length: usize,

    /// Size of each ring in MiB, a power of two; there is one ring per lane and worker
    #[arg(long, value_name = "MIB")]
    pub ring_size: Option<usize>,

    /// Cores to pin the workers to, in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,

    /// Keep captured packets from the host's network stack
    #[arg(long)]
    pub take: bool,

    /// Show every packet at once instead of in batches: least delay, lower rate
    #[arg(long)]
    pub immediate: bool,

    /// Leave the device out of promiscuous mode
    #[arg(short = 'p', long)]
    pub no_promiscuous: bool,

    /// Steer by the headers inside tunnels
    #[arg(long)]
    pub inner: bool,

    /// Stop after as many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,

    /// Stop after as many packets
    #[arg(short = 'c', long, value_name = "N")]
    pub packets: Option<u64>,

    /// Seconds between two lines of progress
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    pub interval: Duration,

    /// One JSON object a line: ready, one per interval, and the last one with "final": true
    #[arg(long)]
    pub json: bool,

    /// tcpdump filter expression
    #[arg(trailing_var_arg = true, value_name = "EXPRESSION")]
    pub filter: Vec<String>,
}

/// Values of --engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EngineArg {
    /// The best that works; says which
    Auto,
    /// Wirelane's own single-copy rings, filled by an XDP program
    Ring,
    /// AF_XDP
    Xsk,
    /// AF_PACKET
    Packet,
    /// A capture file
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

/// Values of --steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SteeringArg {
    /// By symmetric flow hash: both directions of a conversation meet at one worker
    Flow,
    /// By RX queue
    Queue,
}

/// A positive number of seconds, fractions allowed.
fn seconds(text: &str) -> std::result::Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e9 => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("a number of seconds between 0 and 1000000000 is wanted".into()),
        Err(_) => Err("not a number of seconds".into()),
    }
}

impl SourceArgs {
    /// Starts the capture with this many workers.
    pub fn open(&self, workers: usize, steering: SteeringArg) -> Result<Capture> {
        ensure!(
            self.filter.is_empty(),
            "filter expressions are not built yet: leave out '{}', or filter a recording with tcpdump -r",
            self.filter.join(" ")
        );
        match (self.engine, &self.read) {
            (EngineArg::Xsk | EngineArg::Packet, _) => {
                bail!("--engine: only 'ring' and 'file' are built yet; leave the option out")
            }
            (EngineArg::File, None) => bail!("--engine file: name the file with -r"),
            (EngineArg::Ring, Some(_)) => {
                bail!("--engine ring: captures from devices; a file is read by 'file'")
            }
            _ => {}
        }
        if let Some(path) = &self.read {
            ensure!(workers == 1, "--workers: a file is read by one worker");
            return Ok(Capture::open_file(path)?);
        }
        let mut selectors = Vec::new();
        for list in &self.interface {
            selectors.extend(Selector::parse_list(list)?);
        }
        let ring_size = match self.ring_size {
            None => 0,
            Some(mib @ 1..=1024) if mib.is_power_of_two() => mib << 20,
            Some(mib) => bail!("--ring-size: {mib} is not a power of two between 1 and 1024"),
        };
        let builder = Builder::new(selectors)
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
            .direction(match self.direction {
                DirectionArg::Rx => Direction::Rx,
                DirectionArg::Tx => Direction::Tx,
                DirectionArg::Both => Direction::Both,
            });
        Ok(builder.open()?)
    }
}
