//! Configuration of a probe, from its TOML file.
//!
//! `raw.rs` holds the tables as serde reads them (through `placed.rs`) and rejects unknown keys. `check.rs` and
//! `actions.rs` turn them into a [`Config`], or report each mistake with line and column. `set.rs` inserts settings
//! into the text while a probe runs. `describe.rs` describes a configuration in words. Rules are read by the reader of
//! rule files.

mod actions;
mod check;
mod describe;
mod kernel;
mod plugins;
mod raw;
mod recordings;
mod schedules;
mod set;
mod targets;

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use wirelane::rules::{Mistake, RuleSet};

pub use describe::describe;
pub(crate) use describe::{kind, threshold, when};
pub use kernel::Location;
pub use recordings::Recording;
pub use schedules::{Schedule, Switch, When};
pub use set::{Changed, Changes};
pub use targets::Target;

/// Maximum number of measurements: each has one bit in the mask of active measurements.
pub const MOST_MEASUREMENTS: usize = 64;
/// Maximum number of rules, each of which has tables of its own.
pub const MOST_RULES: usize = 32;
/// Maximum number of keys of a measurement.
pub const MOST_KEYS: usize = 1_000_000;
/// Maximum number of bytes that the tables of one worker take.
pub const MOST_MEMORY: usize = 1 << 30;
/// Maximum length of a configuration in bytes.
pub const LONGEST: usize = 1 << 20;

/// All mistakes in a configuration, each with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            mistake.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// A packet field that can be part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Field {
    /// Source address; of ARP the sender's.
    Src,
    /// Destination address; of ARP the target's.
    Dst,
    /// Network of the source: the address up to the prefix.
    SrcNet,
    /// Network of the destination.
    DstNet,
    /// Source port.
    SrcPort,
    /// Destination port.
    DstPort,
    /// The lower of the two ports, which mostly is the service's.
    Port,
    /// IP protocol.
    Protocol,
    /// Outermost VLAN.
    Vlan,
    /// RX queue.
    Queue,
    /// Device, by its number in the capture.
    Device,
    /// The two addresses, whichever way the packet goes.
    Pair,
    /// Addresses, ports and protocol, whichever way the packet goes: a conversation.
    Flow,
    /// Application protocol of a TCP or UDP conversation, detected from the first bytes of a payload that were certain.
    Application,
}

/// A value of a measurement, or of each of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Value {
    /// Packets, exactly.
    Packets,
    /// Bytes on the wire, exactly.
    Bytes,
    /// Packets a second.
    Pps,
    /// Bits a second.
    Bps,
    /// Conversations, estimated.
    Flows,
    /// Different source addresses, estimated.
    DistinctSrc,
    /// Different destination addresses, estimated.
    DistinctDst,
    /// Different source ports, estimated.
    DistinctSrcPort,
    /// Different destination ports, estimated.
    DistinctDstPort,
    /// The source addresses with most packets, with bounds.
    TopSrc,
    /// The destination addresses with most packets, with bounds.
    TopDst,
    /// The lower ports with most packets, with bounds.
    TopPort,
    /// The conversations with most packets, with bounds.
    TopFlow,
    /// Lengths on the wire, in classes of powers of two.
    Lengths,
    /// Nanoseconds from one packet to the next of the same interval and worker, in classes of powers of two.
    Gaps,
    /// Most packets in one bin.
    PeakPackets,
    /// Most bytes in one bin.
    PeakBytes,
    /// Packets of a pair or flow that went one way only; 0 where some came back.
    OneWay,
    /// Ethernet addresses in ARP packets of a source address, including those from when it was last seen; 4 means 4 or
    /// more.
    Macs,
    /// TCP segments with payload.
    Segments,
    /// Of these, those with nothing that is new: sent again, or overtaken on their way.
    Retransmissions,
    /// Of the segments, the retransmissions, in percent.
    RetransmittedPercent,
    /// The number of the measurement's keys.
    Keys,
    /// Shannon's entropy of packets over keys, in bits, of the measurement.
    Entropy,
    /// Counters of a plug-in. A measurement has them through its `plugin`, not through its values.
    #[serde(skip_deserializing)]
    Counters,
}

/// The place of the analysis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Analysis {
    /// In the kernel where all measurements can be made there, else in the workers.
    Auto,
    /// In the workers.
    #[default]
    User,
    /// In the kernel, which adds packets up to parts of flows.
    Kernel,
}

/// Source of packets; options on the command line take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Capture {
    /// Devices and virtual devices.
    pub devices: Vec<String>,
    /// A capture file instead.
    pub read: Option<String>,
    /// The engine's name.
    pub engine: Option<Engine>,
    /// Workers.
    pub workers: Option<usize>,
    /// Steering: selects the worker of a packet.
    pub steering: Option<Steering>,
    /// The group's filter, a tcpdump expression.
    pub filter: Option<String>,
}

/// Engines, by the names of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The best that works.
    Auto,
    /// Our rings.
    Ring,
    /// AF_XDP.
    Xsk,
    /// Packet sockets.
    Packet,
    /// A capture file.
    File,
}

/// Ways to steer, by the names of `--steering`, that keep the packets of a flow in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// By flow hash.
    Flow,
    /// By RX queue.
    Queue,
}

/// A user's own BPF program, which examines packets in the kernel and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Name by which measurements refer to the plug-in.
    pub name: String,
    /// Its object file.
    pub file: String,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// Name of the measurement.
    pub name: String,
    /// Index of the plug-in whose counters it shows. Such a measurement sees no packets, and the other fields have no
    /// effect.
    pub plugin: Option<usize>,
    /// Names of the counters that are shown; empty: all.
    pub counters: Vec<String>,
    /// Index of the rule whose packets are measured; `None`: all packets.
    pub rule: Option<usize>,
    /// Fields of the key; empty: one sum without keys.
    pub key: Vec<Field>,
    /// Bits of an IPv4 network.
    pub prefix: u8,
    /// Bits of an IPv6 network.
    pub prefix6: u8,
    /// Values of each key; at least one.
    pub values: Vec<Value>,
    /// Capacity in keys, of each worker and interval. Packets with further keys are counted in `other`.
    pub keys: usize,
    /// Rows that are shown.
    pub show: usize,
    /// Bits of the sketches that count distinct values.
    pub precision: u32,
    /// Nanoseconds of a bin.
    pub bin_ns: u64,
    /// Requested place of analysis.
    pub analysis: Analysis,
    /// Whether it is active from the start.
    pub active: bool,
}

/// Conditions that raise and clear an alarm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Above the first number; cleared at the second or below.
    Above(f64, f64),
    /// Below the first number; cleared at the second or above.
    Below(f64, f64),
    /// This many percent above the mean of the previous intervals, and at least the second number; cleared otherwise.
    Rises(f64, f64),
    /// This many percent below the mean, if the mean was at least the second number.
    Falls(f64, f64),
}

/// One alarm.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// Its name.
    pub name: String,
    /// Index of the measurement.
    pub measurement: usize,
    /// Value that the alarm observes.
    pub value: Value,
    /// Name of the plug-in counter that it observes, if any.
    pub counter: Option<String>,
    /// Threshold.
    pub threshold: Threshold,
    /// Number of consecutive intervals after which it is raised.
    pub raise_after: u32,
    /// Number of consecutive intervals after which it is cleared.
    pub clear_after: u32,
    /// Number of intervals that the mean covers.
    pub over: usize,
    /// Indices of its actions.
    pub actions: Vec<usize>,
    /// Whether it is active from the start.
    pub active: bool,
}

/// Kind of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// A line on standard error.
    Log,
    /// Run a program with these arguments, for at most this many nanoseconds.
    Run {
        /// The program and its arguments, with `{alarm}` and the like in them.
        words: Vec<String>,
        /// Time limit in nanoseconds.
        timeout_ns: u64,
    },
    /// Switch measurements and alarms.
    Switch(Switch),
    /// Write packets around the event to a file.
    Record(Recording),
    /// Send the event to a target, or append it to a file.
    Export(Target),
}

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Its name.
    pub name: String,
    /// Kind of the action.
    pub kind: ActionKind,
    /// Whether it runs when an alarm is raised.
    pub on_raise: bool,
    /// Whether it runs when an alarm is cleared.
    pub on_clear: bool,
}

/// Configuration of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The source of packets.
    pub capture: Capture,
    /// Nanoseconds of an interval.
    pub interval_ns: u64,
    /// Rules, in the order of the file; the id of a rule is its position, from 1.
    pub rules: RuleSet,
    /// Plug-ins.
    pub plugins: Vec<Plugin>,
    /// Measurements, at least one.
    pub measurements: Vec<Measurement>,
    /// Alarms.
    pub alarms: Vec<Alarm>,
    /// Actions.
    pub actions: Vec<Action>,
    /// Schedules.
    pub schedules: Vec<Schedule>,
}

impl Config {
    /// Reads the text of a configuration; `path` is for messages.
    ///
    /// # Errors
    /// Every mistake that was found, each with line and column.
    pub fn parse(text: &str, path: &Path) -> Result<Config, Mistakes> {
        check::parse(text, path)
    }

    /// Whether any action runs programs.
    pub fn runs_programs(&self) -> bool {
        self.actions.iter().any(|action| matches!(action.kind, ActionKind::Run { .. }))
    }
}

impl Alarm {
    /// Name of the observed value or counter.
    pub fn value_name(&self) -> &str {
        self.counter.as_deref().unwrap_or(self.value.name())
    }
}

impl Field {
    /// Name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Field::Src => "src",
            Field::Dst => "dst",
            Field::SrcNet => "src-net",
            Field::DstNet => "dst-net",
            Field::SrcPort => "src-port",
            Field::DstPort => "dst-port",
            Field::Port => "port",
            Field::Protocol => "protocol",
            Field::Vlan => "vlan",
            Field::Queue => "queue",
            Field::Device => "device",
            Field::Pair => "pair",
            Field::Flow => "flow",
            Field::Application => "application",
        }
    }
}

impl Value {
    /// Name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Value::Packets => "packets",
            Value::Bytes => "bytes",
            Value::Pps => "pps",
            Value::Bps => "bps",
            Value::Flows => "flows",
            Value::DistinctSrc => "distinct-src",
            Value::DistinctDst => "distinct-dst",
            Value::DistinctSrcPort => "distinct-src-port",
            Value::DistinctDstPort => "distinct-dst-port",
            Value::TopSrc => "top-src",
            Value::TopDst => "top-dst",
            Value::TopPort => "top-port",
            Value::TopFlow => "top-flow",
            Value::Lengths => "lengths",
            Value::Gaps => "gaps",
            Value::PeakPackets => "peak-packets",
            Value::PeakBytes => "peak-bytes",
            Value::OneWay => "one-way",
            Value::Macs => "macs",
            Value::Segments => "segments",
            Value::Retransmissions => "retransmissions",
            Value::RetransmittedPercent => "retransmitted-percent",
            Value::Keys => "keys",
            Value::Entropy => "entropy",
            Value::Counters => "counters",
        }
    }

    /// Field whose distinct values are counted, if the value is such a count.
    pub fn distinct(self) -> Option<Field> {
        Some(match self {
            Value::Flows => Field::Flow,
            Value::DistinctSrc => Field::Src,
            Value::DistinctDst => Field::Dst,
            Value::DistinctSrcPort => Field::SrcPort,
            Value::DistinctDstPort => Field::DstPort,
            _ => return None,
        })
    }

    /// Field whose most frequent values are listed, if the value is such a list.
    pub fn top(self) -> Option<Field> {
        Some(match self {
            Value::TopSrc => Field::Src,
            Value::TopDst => Field::Dst,
            Value::TopPort => Field::Port,
            Value::TopFlow => Field::Flow,
            _ => return None,
        })
    }

    /// Whether the value is one number, which an alarm can observe.
    pub fn is_number(self) -> bool {
        self.top().is_none() && !matches!(self, Value::Lengths | Value::Gaps | Value::Counters)
    }

    /// Whether the value belongs to the measurement as a whole and not to each key.
    pub fn is_of_all(self) -> bool {
        matches!(self, Value::Keys | Value::Entropy)
    }
}
