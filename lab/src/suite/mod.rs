//! A suite: what is measured of which sensors under which traffic, as its TOML file says it.
//!
//! `raw.rs` is what serde reads of it, refusing what there is not; `check.rs` makes a [`Suite`] of it, or says with line and
//! column what is wrong. What a machine lacks for it (cores, programs, rights) [`Suite::possible`] says, before anything
//! is started.

mod agent_devices;
mod check;
mod packets;
mod raw;
mod requirements;

pub use agent_devices::{AgentDevice, AgentDevices, is_device};
pub(crate) use check::{ENGINES, MOST_LOOPS, MOST_PPS};
pub use requirements::{Resources, tools};

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wirelane_probe::Mistakes;

use crate::duts::Duts;

/// The most trials of a suite.
pub const MOST_TRIALS: usize = 100_000;
/// The most bytes of a suite.
pub const LONGEST: usize = 1 << 20;

/// How the generator makes packets: `--method` of `wirelane send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// From inside the kernel where that works and the rate is worth it, else through a packet socket.
    #[default]
    Auto,
    /// XDP live frames, from inside the kernel.
    Kernel,
    /// A packet socket.
    Socket,
    /// Clones of one socket buffer, from inside the kernel: they come to the device as a host's packets do, faster than a socket
    /// makes them, and are all the same. Needs a test-bed that was built with its benchmarks.
    Clone,
}

impl Method {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Method::Auto => "auto",
            Method::Kernel => "kernel",
            Method::Socket => "socket",
            Method::Clone => "clone",
        }
    }
}

/// What tells flows apart: `--pattern` of `wirelane send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// The destination address: one source, the traffic of the published measurements.
    #[default]
    Papers,
    /// The source address.
    Sources,
    /// The source port.
    Ports,
}

impl Pattern {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Papers => "papers",
            Pattern::Sources => "sources",
            Pattern::Ports => "ports",
        }
    }
}

/// How flows differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// They take turns and go on.
    #[default]
    Steady,
    /// Each has 16 packets, 256 of them at a time. Needs a test-bed that was built with its benchmarks, as the next one.
    Ending,
    /// 4096 by Zipf's law, and one that has 40 % of all packets.
    Skewed,
}

/// Transport protocol of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Proto {
    /// UDP.
    #[default]
    Udp,
    /// TCP segments that belong to no connection.
    Tcp,
}

impl Proto {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Proto::Udp => "udp",
            Proto::Tcp => "tcp",
        }
    }
}

/// Where the kernel takes packets from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Napi {
    /// On the injector's core, within the sending: each packet's cost in the kernel slows the generator, and nothing is lost
    /// before the sensor's hook.
    #[default]
    Inline,
    /// In a kernel thread for each RX queue, on the sensor's cores in turn, as an equal of the sensor.
    Threads,
    /// The same, before everything else on that core (SCHED_FIFO), as a card's soft interrupt while it keeps up.
    ThreadsFirst,
    /// As `threads` at full speed, and as `threads-first` at a rate: as a card's does, which is overloaded or is not.
    ThreadsPaced,
}

impl Napi {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Napi::Inline => "inline",
            Napi::Threads => "threads",
            Napi::ThreadsFirst => "threads-first",
            Napi::ThreadsPaced => "threads-paced",
        }
    }
}

/// What is counted, for charts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Packets a second that the sensor has taken in.
    Captured,
    /// Packets a second that it has analysed.
    Analysed,
    /// Part of the packets that it has not captured.
    Loss,
    /// CPU time of sensor and NAPI threads per packet captured, in nanoseconds.
    Cpu,
    /// Packets a second that the sensor's machine has passed on to the receiver.
    PassedOn,
    /// The highest rate with the loss that was allowed, in packets a second.
    Rate,
    /// Time of the generator per packet, in nanoseconds: where NAPI is inline, what the kernel does to it is within.
    Generator,
}

impl Quantity {
    /// As in the file.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Captured => "captured",
            Quantity::Analysed => "analysed",
            Quantity::Loss => "loss",
            Quantity::Cpu => "cpu",
            Quantity::PassedOn => "passed-on",
            Quantity::Rate => "rate",
            Quantity::Generator => "generator",
        }
    }

    /// As people read it, with the unit of its axis.
    pub fn title(self) -> (&'static str, &'static str) {
        match self {
            Quantity::Captured => ("Packets captured", "thousand a second"),
            Quantity::Analysed => ("Packets analysed", "thousand a second"),
            Quantity::Loss => ("Packets not captured", "%"),
            Quantity::Cpu => ("CPU time of the sensor and of NAPI's threads, per packet captured", "ns"),
            Quantity::PassedOn => ("Packets passed on to the receiver", "thousand a second"),
            Quantity::Rate => ("Highest rate with the loss that is allowed", "thousand a second"),
            Quantity::Generator => ("Time of the generator per packet", "ns"),
        }
    }
}

/// What a quantity is drawn over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Packets offered a second.
    Rate,
    /// Bytes of a frame.
    Size,
    /// Analysis load, in loops.
    Loops,
    /// The sensor's cores.
    Cores,
    /// Workers.
    Workers,
    /// RX queues.
    Queues,
    /// Calls that go on.
    Calls,
    /// Rules, or entries of a set.
    Entries,
}

impl Axis {
    /// As people read it.
    pub fn title(self) -> &'static str {
        match self {
            Axis::Rate => "offered, thousand packets a second",
            Axis::Size => "bytes of a frame, without FCS",
            Axis::Loops => "loops per packet",
            Axis::Cores => "cores of the sensor",
            Axis::Workers => "workers",
            Axis::Queues => "RX queues",
            Axis::Calls => "calls",
            Axis::Entries => "rules or entries",
        }
    }
}

/// Packets of the generator, of a capture, or of calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Bytes of frames without FCS, one trial each; none with a capture.
    pub sizes: Vec<u16>,
    /// Flows that take turns.
    pub flows: u32,
    /// What tells them apart.
    pub pattern: Pattern,
    /// Transport protocol.
    pub proto: Proto,
    /// How they are made.
    pub method: Method,
    /// How flows differ.
    pub shape: Shape,
    /// Whether there are as many flows as rules or entries, in place of `flows`.
    pub flows_as_entries: bool,
    /// Web traffic instead: answers of nginx to wrk, which are recorded once. Rates and counts are of requests then.
    pub web: bool,
    /// A capture to replay instead.
    pub replay: Option<String>,
    /// Times that it is replayed in a trial.
    pub passes: u64,
    /// Calls that are answered before a trial and speak in it, instead; numbers of them are measured in turn.
    pub calls: Vec<u32>,
}

impl Traffic {
    /// Whether a device with GRO could merge the packets.
    pub fn merges(&self) -> bool {
        self.replay.is_some() || self.proto == Proto::Tcp
    }
}

/// How fast packets come in a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// So many packets a second.
    Pps(f64),
    /// As fast as the generator can.
    Full,
    /// This part of what the first sensor can analyse with the cores that it has, by a trial at full speed.
    OfCapacity(f64),
    /// A capture at this speed: `recorded`, `10x` or `max`.
    Speed(String),
    /// The highest rates at which no more than these parts are lost, most lenient first.
    Search(Vec<f64>),
}

impl Rate {
    /// As in the results.
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

/// Points that others have published, drawn beside ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Whose they are.
    pub name: String,
    /// What they are of.
    pub quantity: Quantity,
    /// Where on the axis, and how much; rates in packets a second.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What is drawn.
    pub quantity: Quantity,
    /// Over what; none: a bar for each series.
    pub over: Option<Axis>,
    /// Of this analysis load only.
    pub loops: Option<u32>,
}

/// A suite.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// Its name, which is a folder's.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// What is measured, and after whom.
    pub about: String,
    /// Adapters, by their names.
    pub sensors: Vec<String>,
    /// The packets.
    pub traffic: Traffic,
    /// How fast they come.
    pub rates: Vec<Rate>,
    /// Analysis loads, in loops per packet.
    pub loops: Vec<u32>,
    /// Cores of the sensor, a set for each trial.
    pub cores: Vec<Vec<usize>>,
    /// Cores of the generator.
    pub injector: Vec<usize>,
    /// Workers.
    pub workers: Vec<usize>,
    /// RX queues of the device.
    pub queues: Vec<u32>,
    /// Rules, or entries of a set; empty: nobody is told.
    pub entries: Vec<u32>,
    /// Whether each core of a set is one more RX queue and worker, in place of `workers` and `queues`.
    pub per_core: bool,
    /// Engines, by the names of `--engine`.
    pub engines: Vec<String>,
    /// Devices of the sensor, each with a generator of its own.
    pub devices: u32,
    /// Where NAPI works, one or more.
    pub napi: Vec<Napi>,
    /// Nice value of generator, sensor and NAPI's threads, and of their sessions (sched(7), autogroups).
    pub nice: i32,
    /// Sensors that others are held against, under the same conditions in the same repetition.
    pub reference: Vec<String>,
    /// Times that a trial is tried at most which something else disturbs.
    pub tries: u32,
    /// Whether a search is followed by twice the rate that it found, and by four fifths of it.
    pub overload: bool,
    /// Whether there is a receiver, to which the sensor's machine passes packets on.
    pub receiver: bool,
    /// Agents on other machines; none: all is on this one.
    pub agent_devices: Option<AgentDevices>,
    /// MiB of a sensor's buffer, where it lets one choose.
    pub buffer: u32,
    /// Times that each trial is run.
    pub repetitions: u32,
    /// For how long packets are sent in a trial.
    pub duration: Duration,
    /// What is drawn.
    pub charts: Vec<Chart>,
    /// What others have published.
    pub published: Vec<Published>,
    /// What they say about it, in words.
    pub findings: Vec<String>,
}

impl Suite {
    /// Reads the text of a suite; `path` is for messages, `sensors` are those that it may name.
    ///
    /// # Errors
    /// Every mistake that was found, each with line and column; or the one that keeps the text from being read.
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

    /// Sets of cores that sensors are measured on with so many RX queues, each with the numbers of workers.
    pub fn sets(&self, queues: u32) -> impl Iterator<Item = (&Vec<usize>, Vec<usize>)> {
        let sets = self.cores.iter().filter(move |set| !self.per_core || set.len() == queues as usize);
        sets.map(|set| (set, if self.per_core { vec![set.len()] } else { self.workers.clone() }))
    }

    /// Bytes of its largest frame behind the Ethernet header, or what devices have anyway.
    pub fn mtu(&self) -> u32 {
        let largest = self.traffic.sizes.iter().copied().max().map_or(9000, u32::from);
        largest.saturating_sub(14).max(1500)
    }

    /// Whether it searches for rates.
    pub fn searches(&self) -> bool {
        self.rates.iter().any(|rate| matches!(rate, Rate::Search(_)))
    }
}
