//! One trial: one receiver, one stretch of traffic, and where every packet of it went.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use wirelane_tests::Child;

use crate::bed::{Bed, Setup};
use crate::process::{self, MachineTime};
use crate::receiver::{Circumstances, Ready, Receiver};

/// How frames are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// XDP live frames, inside the kernel: about 54 ns a packet
    Kernel,
    /// A packet socket: an sk_buff for every packet, several hundred ns
    Socket,
}

impl Method {
    /// As `wirelane send` names it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Kernel => "kernel",
            Method::Socket => "socket",
        }
    }
}

/// The traffic of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Load {
    /// How frames are made.
    pub method: Method,
    /// Bytes of a frame without FCS.
    pub size: u32,
}

/// What is the same in all trials.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The `wirelane` program.
    pub wirelane: String,
    /// This program.
    pub bench: String,
    /// Size of receivers' buffers in MiB.
    pub buffer: u32,
}

/// What happened in a trial. Counts are packets.
#[derive(Clone, Debug, Serialize)]
pub struct Trial {
    /// Who did what where.
    pub setup: Setup,
    /// The traffic.
    pub load: Load,
    /// The receiver.
    pub receiver: Receiver,
    /// The rate that was asked for, in packets per second; none: as fast as possible.
    pub asked_pps: Option<f64>,
    /// Handed to the kernel by the generator.
    pub offered: u64,
    /// Of these, dropped by the device's queue before the receiver's hook.
    pub device_dropped: u64,
    /// Counted by the receiver's hook, where it tells.
    pub seen: Option<u64>,
    /// Taken by the receiver.
    pub received: u64,
    /// Dropped by the receiver's own count.
    pub lost: u64,
    /// Offered, and in none of the other places.
    pub unaccounted: i64,
    /// Time for which the generator sent, in seconds.
    pub duration_s: f64,
    /// CPU time of the receiver's process, in seconds.
    pub receiver_cpu_s: f64,
    /// CPU time of NAPI's thread, in seconds (setup B).
    pub napi_cpu_s: f64,
    /// Whether the generator stayed below the rate that was asked for: then the trial says nothing.
    pub fell_short: bool,
    /// Part of the machine's time that its hypervisor took, in percent.
    pub steal_percent: f64,
    /// Load average of the machine.
    pub load_average: f64,
}

impl Trial {
    /// Packets received per second.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.duration_s
    }

    /// Part of the offered packets that was not received.
    pub fn loss(&self) -> f64 {
        1.0 - self.received as f64 / self.offered.max(1) as f64
    }

    /// The receiver's CPU time per packet received, in nanoseconds.
    pub fn receiver_ns(&self) -> f64 {
        self.receiver_cpu_s * 1e9 / self.received.max(1) as f64
    }

    /// Whether each offered packet is in exactly one place.
    pub fn is_exact(&self) -> bool {
        self.unaccounted == 0 && self.seen.is_none_or(|seen| seen == self.offered - self.device_dropped)
    }
}

/// Runs one trial.
///
/// # Errors
/// Where a program cannot be started or fails, or our ledger is not exact.
pub fn run(
    bed: &mut Bed,
    tools: &Tools,
    setup: Setup,
    receiver: Receiver,
    load: Load,
    asked_pps: Option<f64>,
    seconds: f64,
) -> Result<Trial> {
    let line = receiver.command(&Circumstances {
        device: bed.device(),
        core: bed.receiver_core(),
        buffer: tools.buffer,
        jumbo: load.size > crate::options::LARGEST_LIVE_FRAME,
        wirelane: &tools.wirelane,
        bench: &tools.bench,
    });
    let mut child = Child::spawn(&mut bed.receiver(&line))?;
    bed.favour(child.pid())?;
    match receiver.ready() {
        Ready::Says => child.wait_ready(Duration::from_secs(10))?,
        Ready::HasSocket => {
            process::wait_for_packet_socket(child.pid(), Duration::from_secs(10))
                .with_context(|| format!("{} did not start: {}", receiver.label(), line.join(" ")))?;
            // The socket is there before its ring is; a program that sleeps waits for packets.
            process::wait_until_idle(child.pid(), Duration::from_millis(300), Duration::from_secs(5))?;
        }
    }
    bed.pin_napi()?;

    let machine = MachineTime::now()?;
    let (cpu, napi) = (process::run_time(child.pid())?, bed.napi_time()?);
    let sent = generate(bed, &tools.wirelane, load, asked_pps, seconds)?;
    // Time that a receiver spends waiting for more is not time for these packets.
    let busy_cpu = process::run_time(child.pid())?;
    process::wait_until_idle(child.pid(), receiver.quiet(), receiver.quiet() + Duration::from_secs(1))?;
    let end_cpu = if receiver.sleeps() { process::run_time(child.pid())? } else { busy_cpu };
    let napi_end = bed.napi_time()?;
    let steal_percent = machine.steal_percent();
    let finished = child.terminate(Duration::from_secs(10))?;
    if let Some(file) = receiver.file() {
        // Where it is missing, the receiver's own output says why.
        let _ = fs::remove_file(file);
    }
    let counts = receiver.counts(&finished)?;

    let count =
        |name: &str| sent[name].as_u64().with_context(|| format!("no {name} from the generator: {sent}"));
    let (offered, device_dropped) = (count("offered")?, count("dropped")?);
    ensure!(count("others")? == 0, "somebody else sends in the bench's namespace: {sent}");
    let trial = Trial {
        setup,
        load,
        receiver,
        asked_pps,
        offered,
        device_dropped,
        seen: counts.seen,
        received: counts.received,
        lost: counts.lost,
        unaccounted: offered.cast_signed() - (device_dropped + counts.received + counts.lost).cast_signed(),
        duration_s: sent["duration_s"].as_f64().context("no duration_s from the generator")?,
        receiver_cpu_s: (end_cpu - cpu).as_secs_f64(),
        napi_cpu_s: (napi_end.saturating_sub(napi)).as_secs_f64(),
        fell_short: sent["fell_short"] == true || count("given_up")? > 0,
        steal_percent,
        load_average: process::load_average(),
    };
    if receiver.is_ours() && !trial.is_exact() {
        bail!("our ledger is not exact: {trial:?}; generator: {sent}");
    }
    Ok(trial)
}

fn generate(bed: &Bed, wirelane: &str, load: Load, pps: Option<f64>, seconds: f64) -> Result<Value> {
    let mut arguments =
        format!("--interval 60 --method {} --size {} --duration {seconds}", load.method.name(), load.size);
    if let Some(pps) = pps {
        arguments += &format!(" --rate {pps:.0}");
    }
    let words: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let child = Child::spawn(&mut bed.generator(wirelane, &words))?;
    bed.favour(child.pid())?;
    let finished = child.finish(Duration::from_secs_f64(seconds + 20.0))?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.stderr.trim());
    finished.last_json()
}
