//! What injector, sensor and receiver each do in a trial, on whichever machine they are: orders in, numbers out.
//!
//! Times are taken by the clocks of the machine where something happens, and nothing but lengths of time leaves it: clocks of two
//! machines are never compared, and one that is set in a trial changes nothing.

pub mod dut;
pub mod injector;
pub mod receiver;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::calls::Media;
use crate::holder::Folder;
use crate::process::CoreTime;
use crate::suite::{Method, Pattern, Proto, Shape};

/// Where a sensor captures and its programs run.
pub trait Host {
    /// The device to capture on.
    fn device(&self) -> &str;

    /// A command of the sensor, on these cores. Its pid is the program's.
    fn command(&self, cores: &[usize], words: &[String]) -> Command;

    /// A new folder for a trial's files, in memory.
    ///
    /// # Errors
    /// Where it cannot be made.
    fn folder(&self, name: &str) -> Result<Folder>;

    /// To be called when the sensor is ready.
    ///
    /// # Errors
    /// Where NAPI's threads are not there, or cannot be moved.
    fn settle(&mut self, order: &DutOrder) -> Result<()>;

    /// CPU time of NAPI's threads so far; nothing where it has none of its own.
    ///
    /// # Errors
    /// Where one has ended.
    fn napi_time(&self) -> Result<Duration>;

    /// Whether packets come in by interrupts of the sensor's cores, whose time is then nobody else's.
    fn takes_interrupts(&self) -> bool;
}

/// What is wrong: with a trial, which is then at fault, or with the test-bed, which ends the run.
#[derive(Debug)]
pub enum Failure {
    /// The sensor did something wrong, or an agent went away.
    Trial(anyhow::Error),
    /// The test-bed does not work.
    Testbed(anyhow::Error),
}

/// What the sensor's side is to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DutOrder {
    /// The adapter, by its name.
    pub sensor: String,
    /// Its cores.
    pub cores: Vec<usize>,
    /// RX queues.
    pub queues: u32,
    /// Workers.
    pub workers: usize,
    /// Engine.
    pub engine: String,
    /// Loops per packet.
    pub loops: u32,
    /// Rules, or entries of a set.
    pub entries: u32,
    /// Seconds of traffic.
    pub duration_s: f64,
    /// MiB.
    pub buffer: u32,
    /// Whether packets come at a rate: what that means for NAPI's threads a topology knows.
    #[serde(skip)]
    pub paced: bool,
    /// Whether it is to report while it runs.
    #[serde(skip)]
    pub reports: bool,
}

/// What the injector is to send.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SendOrder {
    /// Whether the sensor has cores of the generator's, which then has them first: only ever so on one machine.
    #[serde(skip)]
    pub shares_cores: bool,
    /// Its cores.
    pub cores: Vec<usize>,
    /// Bytes of a frame; none with a capture.
    pub size: Option<u16>,
    /// Flows that take turns.
    pub flows: u32,
    /// What tells them apart.
    pub pattern: Pattern,
    /// Transport protocol.
    pub proto: Proto,
    /// How packets are made.
    pub method: Method,
    /// Packets a second; none: as fast as it can.
    pub pps: Option<f64>,
    /// For so many seconds.
    pub duration_s: f64,
    /// Whether it comes before all else on its cores, which the kernel allows for 0.95 s (sched_rt_runtime_us in sched(7)).
    #[serde(skip)]
    pub first: bool,
    /// How flows differ, and TX queues that clones take in turn: not for agents.
    #[serde(skip)]
    pub shape: Shape,
    /// See `shape`.
    #[serde(skip)]
    pub queues: u32,
    /// A capture instead. No manager elsewhere can ask for it: it would have any file sent.
    #[serde(skip)]
    pub replay: Option<Replay>,
}

/// A capture to replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// What is in it.
    pub recording: Recording,
    /// `recorded`, `10x` or `max`.
    pub speed: String,
    /// How many times.
    pub passes: u64,
}

/// What is replayed.
#[derive(Clone, Debug, PartialEq)]
pub enum Recording {
    /// A file.
    File(String),
    /// The messages with which so many calls begin.
    Signalling(u32),
    /// What calls say.
    Media(Media),
    /// Web traffic of so many clients, one after the other.
    Web(u64),
}

/// What the injector has sent. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// Handed to the kernel.
    pub offered: u64,
    /// Of these, sent by the device.
    pub sent: u64,
    /// Sent by the device, and not by the generator.
    pub foreign: u64,
    /// For how long, in seconds.
    pub duration_s: f64,
    /// Whether a capture took longer than it should.
    pub fell_short: bool,
    /// CPU time of the generator, in seconds.
    pub cpu_s: f64,
    /// Its cores meanwhile.
    pub load: Load,
}

/// What the sensor's side has measured. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Seen by the sensor, where it tells.
    pub seen: Option<u64>,
    /// Taken in by it.
    pub captured: u64,
    /// Of these, analysed.
    pub analysed: u64,
    /// Lost by its own count.
    pub lost: u64,
    /// Not wanted, by its own count.
    pub aside: u64,
    /// CPU time that it used after the sending, in seconds: by its cores.
    pub late_s: f64,
    /// CPU time of the sensor, in seconds.
    pub cpu_s: f64,
    /// The part of it in user space, as far as the kernel's clock ticks tell.
    pub user_s: f64,
    /// Those of its packets that it wants, where that is to be checked.
    pub wanted: Option<u64>,
    /// Other numbers that it has told, by their names.
    pub figures: BTreeMap<String, f64>,
    /// CPU time of NAPI's threads, in seconds.
    pub napi_cpu_s: f64,
    /// Its cores meanwhile.
    pub load: Load,
}

/// Cores, in a stretch of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Cores, and the part of the time in which each worked.
    pub cores: Vec<(usize, f64)>,
    /// The part of a core that others used, on average.
    pub others: f64,
    /// The largest part of a core that the hypervisor took.
    pub steal: f64,
}

/// Cores from now on.
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

    /// What they did until now, of which `ours` is our own; `interrupts`: theirs is so, too.
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
