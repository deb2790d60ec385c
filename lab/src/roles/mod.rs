//! Roles of a trial: orders and results of injector, sensor and receiver, on whichever machine they are.
//!
//! Times are measured by the clock of the machine where an event happens, and only durations are sent to others: clocks
//! of two machines are never compared, and a clock that is set during a trial has no effect.

pub mod dut;
pub mod injector;
pub mod napi;
pub mod receiver;
pub mod station;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::calls::Media;
use crate::duts::Counts;
pub use crate::duts::DutOrder;
use crate::holder::{Folder, Holder};
use crate::process::CoreTime;
use crate::suite::{Method, Pattern, Proto, Shape};
use receiver::Counting;

/// Host of a sensor and its programs.
pub trait Host {
    /// Device to capture on.
    fn device(&self) -> &str;

    /// A command of the sensor, on these cores. Its process id is that of the program.
    fn command(&self, cores: &[usize], words: &[String]) -> Command;

    /// Creates a folder for a trial's files, in memory.
    fn folder(&self, name: &str) -> Result<Folder>;

    /// Places the NAPI threads. Call when the sensor is ready.
    fn settle(&mut self, order: &DutOrder) -> Result<()>;

    /// CPU time of NAPI threads so far; 0 without NAPI threads.
    fn napi_time(&self) -> Result<Duration>;

    /// Whether packets arrive by interrupts of the sensor's cores, so that interrupt time is not a disturbance.
    fn takes_interrupts(&self) -> bool;

    /// Checks that all holders are running.
    fn check(&mut self) -> Result<()>;

    /// Devices to send from.
    fn sending(&self) -> Vec<&str>;

    /// Holder of the generator's namespaces.
    fn sender(&self) -> &Holder;

    /// Starts to count packets at the receiver; `None`: there is no receiver.
    fn receives(&self) -> Result<Option<Counting>>;
}

/// Failure of a trial, which is then marked, or of the test-bed, which ends the run.
#[derive(Debug)]
pub enum Failure {
    /// Failure of the sensor, or lost connection to an agent.
    Trial(anyhow::Error),
    /// Failure of the test-bed.
    Testbed(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Testbed(error)
    }
}

/// Order to send packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendOrder {
    /// Whether sensor and generator share cores, with precedence for the generator; only on one machine.
    #[serde(skip)]
    pub shares_cores: bool,
    /// Cores of the generator.
    pub cores: Vec<usize>,
    /// Bytes of a frame; `None` with a capture.
    pub size: Option<u16>,
    /// Number of flows, which are sent round robin.
    pub flows: u32,
    /// Field that identifies flows.
    pub pattern: Pattern,
    /// Transport protocol.
    pub proto: Proto,
    /// Method of the generator.
    pub method: Method,
    /// Packets per second; `None`: full speed.
    pub pps: Option<f64>,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Whether it has precedence on its cores, which the kernel allows for 0.95 s (sched_rt_runtime_us in sched(7)).
    #[serde(skip)]
    pub first: bool,
    /// Distribution of packets over flows, and number of TX queues that clones use in turn: not for agents.
    #[serde(skip)]
    pub shape: Shape,
    /// See `shape`.
    #[serde(skip)]
    pub queues: u32,
    /// Capture to replay instead. Remote managers cannot request it, as it would allow them to send any file.
    #[serde(skip)]
    pub replay: Option<Replay>,
}

/// A capture to replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Content.
    pub recording: Recording,
    /// Speed: `recorded`, `10x` or `max`.
    pub speed: String,
    /// Number of replays.
    pub passes: u64,
}

/// Content of a replay.
#[derive(Clone, Debug, PartialEq)]
pub enum Recording {
    /// A file.
    File(String),
    /// Messages that establish this many calls.
    Signalling(u32),
    /// Media of calls.
    Media(Media),
    /// Web traffic of this many clients, one after the other.
    Web(u64),
}

/// Results of the injector. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Passed to the kernel.
    pub offered: u64,
    /// Sent by the device.
    pub sent: u64,
    /// Sent by the device for other programs.
    pub foreign: u64,
    /// Duration in seconds.
    pub duration_s: f64,
    /// Whether a capture took longer than requested.
    pub fell_short: bool,
    /// CPU time of the generator, in seconds.
    pub cpu_s: f64,
    /// Load of its cores.
    pub load: Load,
}

/// Results of the sensor's side. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Counters of the sensor.
    #[serde(flatten)]
    pub counts: Counts,
    /// CPU time of sensor and NAPI threads after the sending, in seconds, divided by the number of cores.
    pub late_s: f64,
    /// CPU time of the sensor, in seconds.
    pub cpu_s: f64,
    /// Share of it in user space, at the resolution of the kernel's clock ticks.
    pub user_s: f64,
    /// CPU time of NAPI threads, in seconds.
    pub napi_cpu_s: f64,
    /// Load of its cores.
    pub load: Load,
}

/// Load of cores over a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Cores, with the fraction of the time in which each worked.
    pub cores: Vec<(usize, f64)>,
    /// Fraction of a core that other programs used, on average.
    pub others: f64,
    /// Largest fraction of a core that the hypervisor took.
    pub steal: f64,
}

/// Measurement of cores from a start time.
#[derive(Debug)]
struct Watch {
    cores: Vec<usize>,
    before: Vec<CoreTime>,
    begun: Instant,
}

impl Watch {
    fn begin(cores: &[usize]) -> Result<Watch> {
        let before = now(cores)?;
        Ok(Watch { cores: cores.to_vec(), before, begun: Instant::now() })
    }

    /// Load until now; `ours` is the CPU time of the trial's own processes; `interrupts`: interrupt time belongs to
    /// them, too.
    fn load(&self, ours: impl FnOnce() -> Result<Duration>, interrupts: bool) -> Result<Load> {
        let (after, elapsed) = (now(&self.cores)?, self.begun.elapsed());
        let ours = ours()?.as_secs_f64() / elapsed.as_secs_f64();
        let mut load = Load::default();
        let mut others = -ours;
        for ((core, after), before) in self.cores.iter().zip(&after).zip(&self.before) {
            let (worked, steal) = after.shares(before);
            load.cores.push((*core, worked));
            load.steal = load.steal.max(steal);
            others += worked - if interrupts { after.interrupted(before) } else { 0.0 };
        }
        load.others = (others / self.cores.len() as f64).max(0.0);
        Ok(load)
    }
}

fn now(cores: &[usize]) -> Result<Vec<CoreTime>> {
    cores.iter().map(|core| CoreTime::now(*core)).collect()
}
