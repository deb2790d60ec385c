//! A suite: sensors, traffic and measurements, as defined by its TOML file.
//!
//! `raw.rs` holds the tables as serde reads them, and rejects unknown keys. `check.rs` turns them into a [`Suite`], or
//! reports mistakes with line and column. [`Suite::possible`] reports cores, programs and rights that the machine
//! lacks, before anything is started.

mod agent_devices;
mod check;
pub mod conclusion;
mod packets;
mod raw;
mod requirements;

pub use agent_devices::{AgentDevice, AgentDevices, is_device};
pub(crate) use check::{ENGINES, MOST_LOOPS, MOST_PPS};
pub use requirements::{Resources, tools};

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use wirelane_probe::Mistakes;

pub use conclusion::Conclusion;

use crate::duts::Duts;

/// Maximum number of trials of a suite.
pub const MOST_TRIALS: usize = 100_000;
/// Maximum bytes of a suite.
pub const LONGEST: usize = 1 << 20;

/// Values with names in files and options.
pub trait Named {
    /// The name: that of the variant in kebab-case.
    fn name(&self) -> String;
}

impl<T: ValueEnum> Named for T {
    fn name(&self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Method of the generator: `--method` of `wirelane send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// In the kernel if possible and useful at the rate, otherwise through a packet socket.
    #[default]
    Auto,
    /// XDP live frames, in the kernel.
    Kernel,
    /// A packet socket.
    Socket,
    /// Clones of one socket buffer, in the kernel: they arrive at the device like the packets of a host, are made
    /// faster than by a socket, and are identical. Needs a test-bed that was built with its benchmarks.
    Clone,
}

/// Field that identifies flows: `--pattern` of `wirelane send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The destination address: one source, as in the traffic of the published measurements.
    #[default]
    Papers,
    /// The source address.
    Sources,
    /// The source port.
    Ports,
}

/// Distribution of packets over flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Round robin, without an end.
    #[default]
    Steady,
    /// 16 packets in each flow, 256 flows at a time. Needs a test-bed that was built with its benchmarks, as the next
    /// one.
    Ending,
    /// 4096 flows by Zipf's law, and one flow with 40 % of all packets.
    Skewed,
}

/// Transport protocol of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Proto {
    /// UDP.
    #[default]
    Udp,
    /// TCP segments without a connection.
    Tcp,
}

/// Context in which the kernel polls the device (NAPI).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Napi {
    /// On the injector's core, within the sending: each packet's cost in the kernel slows the generator, and no packets
    /// are lost before the sensor's hook.
    #[default]
    Inline,
    /// In a kernel thread for each RX queue, on the sensor's cores in turn, with the same priority as the sensor.
    Threads,
    /// The same with a higher priority than everything else on that core (SCHED_FIFO), like a card's soft interrupt
    /// while it keeps up.
    ThreadsFirst,
    /// Like `threads` at full speed, and like `threads-first` at a rate: as with a card, which is overloaded or is not.
    ThreadsPaced,
}

/// Measured quantity, for charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Packets per second that the sensor has captured.
    Captured,
    /// Packets per second that it has analysed.
    Analysed,
    /// Fraction of the packets that it has not captured.
    Loss,
    /// CPU time of sensor and NAPI threads per captured packet, in nanoseconds.
    Cpu,
    /// Packets per second that the sensor's machine has passed on to the receiver.
    PassedOn,
    /// Highest rate within the allowed loss, in packets per second.
    Rate,
    /// Time of the generator per packet, in nanoseconds: includes the kernel's work on the packet if NAPI is inline.
    Generator,
    /// Fraction of the time of sending in which the sensor's cores were idle.
    Idle,
}

impl Quantity {
    /// Title for people, and the unit of the axis.
    pub fn title(self) -> (&'static str, &'static str) {
        match self {
            Quantity::Captured => ("Packets captured", "thousand packets/s"),
            Quantity::Analysed => ("Packets analysed", "thousand packets/s"),
            Quantity::Loss => ("Packets not captured", "% of packets"),
            Quantity::Cpu => {
                ("CPU time of the sensor and of NAPI's threads, per packet captured", "ns per packet")
            }
            Quantity::PassedOn => ("Packets passed on to the receiver", "thousand packets/s"),
            Quantity::Rate => ("Highest rate with the loss that is allowed", "thousand packets/s"),
            Quantity::Generator => ("Time of the generator per packet", "ns per packet"),
            Quantity::Idle => ("Idle time of the sensor's cores", "% of the time of sending"),
        }
    }
}

/// Independent variable of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Packets offered per second.
    Rate,
    /// Frame size in bytes.
    Size,
    /// Analysis load, in loops.
    Loops,
    /// Number of cores of the sensor.
    Cores,
    /// Workers.
    Workers,
    /// RX queues.
    Queues,
    /// Concurrent calls.
    Calls,
    /// Rules, or entries of a set.
    Entries,
    /// Devices of the sensor.
    Devices,
}

impl Axis {
    /// Title for people.
    pub fn title(self) -> &'static str {
        match self {
            Axis::Rate => "offered, thousand packets/s",
            Axis::Size => "bytes of a frame, without FCS",
            Axis::Loops => "loops per packet",
            Axis::Cores => "cores of the sensor",
            Axis::Workers => "workers",
            Axis::Queues => "RX queues",
            Axis::Calls => "calls",
            Axis::Entries => "rules or entries",
            Axis::Devices => "devices",
        }
    }
}

/// Traffic: packets of the generator, of a capture, or of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Bytes of frames without FCS, one trial each; empty with a capture.
    pub sizes: Vec<u16>,
    /// Number of flows, which are sent round robin.
    pub flows: u32,
    /// Field that identifies flows.
    pub pattern: Pattern,
    /// Transport protocol.
    pub proto: Proto,
    /// Method of the generator.
    pub method: Method,
    /// Distribution of packets over flows.
    pub shape: Shape,
    /// Whether the number of flows equals that of rules or entries, instead of `flows`.
    pub flows_as_entries: bool,
    /// Whether it is web traffic instead: responses of nginx to wrk, which are recorded once. Rates and counts are then
    /// of requests.
    pub web: bool,
    /// Capture to replay instead.
    pub replay: Option<String>,
    /// Number of replays in a trial.
    pub passes: u64,
    /// Numbers of calls instead, measured in turn: the calls are answered before a trial and send media in it.
    pub calls: Vec<u32>,
}

impl Traffic {
    /// Whether a device with GRO could merge the packets.
    pub fn merges(&self) -> bool {
        self.replay.is_some() || self.proto == Proto::Tcp
    }
}

/// Rate of the packets in a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rate {
    /// This many packets per second.
    Pps(f64),
    /// As fast as the generator can send.
    #[default]
    Full,
    /// This fraction of the capacity of the first sensor with its cores, measured by a trial at full speed.
    OfCapacity(f64),
    /// A capture at this speed: `recorded`, `10x` or `max`.
    Speed(String),
    /// Highest rates at which at most these fractions are lost, most lenient first.
    Search(Vec<f64>),
}

impl Rate {
    /// Name in the results.
    pub fn name(&self) -> String {
        match self {
            Rate::Pps(pps) => format!("{pps:.0}"),
            Rate::Full => "full".to_owned(),
            Rate::OfCapacity(part) => format!("{:.0}%", part * 100.0),
            Rate::Speed(speed) => speed.clone(),
            Rate::Search(_) => "search".to_owned(),
        }
    }
}

/// Published points, drawn beside the measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Name of the source.
    pub name: String,
    /// Quantity of the points.
    pub quantity: Quantity,
    /// Position on the axis, and value; rates in packets per second.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Quantity that is drawn.
    pub quantity: Quantity,
    /// Independent variable; `None`: a bar for each series.
    pub over: Option<Axis>,
    /// Only results with this analysis load.
    pub loops: Option<u32>,
}

/// A suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// Name, which is also that of a folder.
    pub name: String,
    /// Title for people.
    pub title: String,
    /// Description of the measurement and its source.
    pub about: String,
    /// Names of adapters.
    pub sensors: Vec<String>,
    /// Traffic.
    pub traffic: Traffic,
    /// Rates.
    pub rates: Vec<Rate>,
    /// Analysis loads, in loops per packet.
    pub loops: Vec<u32>,
    /// Core sets of the sensor, one for each trial.
    pub cores: Vec<Vec<usize>>,
    /// Cores of the generator.
    pub injector: Vec<usize>,
    /// Workers.
    pub workers: Vec<usize>,
    /// RX queues of the device.
    pub queues: Vec<u32>,
    /// Numbers of rules, or of entries of a set; empty: not varied.
    pub entries: Vec<u32>,
    /// Whether the number of RX queues and workers equals that of cores in a set, instead of `workers` and `queues`.
    pub per_core: bool,
    /// Engines, by the names of `--engine`.
    pub engines: Vec<String>,
    /// Numbers of devices of the sensor, each with its own generator.
    pub devices: Vec<u32>,
    /// NAPI contexts, at least one.
    pub napi: Vec<Napi>,
    /// Nice value of generator, sensor and NAPI threads, and of their sessions (sched(7), autogroups).
    pub nice: i32,
    /// Reference sensors, measured under the same conditions in the same repetition.
    pub reference: Vec<String>,
    /// Maximum number of attempts of a disturbed trial.
    pub tries: u32,
    /// Whether a search is followed by twice the rate that it found, and by four fifths of it.
    pub overload: bool,
    /// Whether there is a receiver, to which the sensor's machine passes packets on.
    pub receiver: bool,
    /// Agents on other machines; `None`: all roles are on this machine.
    pub agent_devices: Option<AgentDevices>,
    /// Buffer of a sensor in MiB, if it is configurable.
    pub buffer: u32,
    /// Number of runs of each trial.
    pub repetitions: u32,
    /// Duration of sending in a trial.
    pub duration: Duration,
    /// Charts.
    pub charts: Vec<Chart>,
    /// Published results.
    pub published: Vec<Published>,
    /// Findings of the publication, in words.
    pub findings: Vec<String>,
    /// Conclusions of the publication, which the results decide.
    pub conclusions: Vec<Conclusion>,
}

impl Suite {
    /// Parses the text of a suite; `path` is for messages, `sensors` are those that it may name.
    ///
    /// # Errors
    /// All mistakes, each with line and column; or the one that makes the text unreadable.
    pub fn parse(text: &str, path: &Path, sensors: &Duts) -> Result<Suite, Mistakes> {
        check::parse(text, path, sensors)
    }

    /// Numbers of RX queues, a topology for each.
    pub fn topologies(&self) -> Vec<u32> {
        if !self.per_core {
            return self.queues.clone();
        }
        let mut counts: Vec<u32> = self.cores.iter().map(|set| set.len() as u32).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    /// Core sets of the sensors with this number of RX queues, each with its numbers of workers.
    pub fn sets(&self, queues: u32) -> impl Iterator<Item = (&Vec<usize>, Vec<usize>)> {
        let sets = self.cores.iter().filter(move |set| !self.per_core || set.len() == queues as usize);
        sets.map(|set| (set, if self.per_core { vec![set.len()] } else { self.workers.clone() }))
    }

    /// MTU for its largest frame, at least the default of devices.
    pub fn mtu(&self) -> u32 {
        let largest = self.traffic.sizes.iter().copied().max().map_or(9000, u32::from);
        largest.saturating_sub(14).max(1500)
    }

    /// Whether it searches for rates.
    pub fn searches(&self) -> bool {
        self.rates.iter().any(|rate| matches!(rate, Rate::Search(_)))
    }
}
