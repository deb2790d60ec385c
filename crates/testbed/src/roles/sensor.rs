//! The sensor's side of a trial: its process from its start to what it has counted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Ground, Load, SensorOrder, Taken, Watch, Wrong};
use crate::child::Child;
use crate::holder::Folder;
use crate::process;
use crate::sensors::{Adapter, Counts, Fill, Ready};

/// How long a sensor may take to be ready, and to end: ours takes what is in its rings first.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a sensor that has a packet socket is idle before it is ready: the socket is there before its ring is.
const READY_IDLE: Duration = Duration::from_millis(300);
/// How long a sensor may go on working on what was sent, beside its quiet time.
const MOST_LATE: Duration = Duration::from_secs(10);

/// A sensor that runs.
#[derive(Debug)]
pub struct Running {
    // Ended before its folder is removed.
    child: Child,
    adapter: Adapter,
    order: SensorOrder,
    device: String,
    wirelane: PathBuf,
    folder: Folder,
    pids: Vec<u32>,
    begun: Option<Begun>,
}

/// From when on it is measured.
#[derive(Debug)]
struct Begun {
    watch: Watch,
    cpu: Duration,
    napi: Duration,
    /// When everything is sent: CPU time by then, and what the cores did.
    sent: Option<(Duration, Load)>,
}

/// Starts a sensor; when this returns, it captures. `wirelane` is the program that our sensors are; no other trial of this
/// process has this number.
///
/// # Errors
/// As [`Wrong`].
pub fn start(
    ground: &mut dyn Ground,
    wirelane: &Path,
    adapter: &Adapter,
    order: &SensorOrder,
    number: u64,
) -> Result<Running, Wrong> {
    let folder = ground.folder(&format!("trial-{number}")).map_err(Wrong::Bed)?;
    let device = ground.device().to_owned();
    let words = adapter.words(&fill(order, &device, wirelane, &folder)).map_err(Wrong::Trial)?;
    let child = Child::spawn(&adapter.name, &mut ground.command(&order.cores, &words));
    let mut running = Running {
        child: child.map_err(Wrong::Trial)?,
        adapter: adapter.clone(),
        order: order.clone(),
        device,
        wirelane: wirelane.to_owned(),
        folder,
        pids: Vec::new(),
        begun: None,
    };
    running.wait().map_err(Wrong::Trial)?;
    ground.settle(&order.cores).map_err(Wrong::Trial)?;
    let pid = running.child.pid();
    running.pids = [vec![pid], process::children(pid)].concat();
    Ok(running)
}

fn fill<'a>(order: &'a SensorOrder, device: &'a str, wirelane: &'a Path, folder: &'a Folder) -> Fill<'a> {
    Fill {
        device,
        cores: &order.cores,
        queues: order.queues,
        workers: order.workers,
        engine: &order.engine,
        loops: order.loops,
        duration: order.duration_s,
        buffer: order.buffer,
        folder: &folder.inside,
        outside: &folder.outside,
        wirelane,
    }
}

impl Running {
    /// Waits until it captures.
    fn wait(&mut self) -> Result<()> {
        let child = &mut self.child;
        match &self.adapter.ready {
            Ready::PacketSocket => {
                let waited = process::wait_for_packet_socket(child.pid(), Duration::from_secs(10));
                waited.with_context(|| {
                    format!("{} did not start; it said: {}", self.adapter.name, child.said().trim())
                })?;
                process::wait_until_idle(child.pid(), READY_IDLE, Duration::from_secs(5))
            }
            Ready::Says(regex) => child.wait_for(LIMIT, |line| regex.is_match(line)),
            Ready::Json(pointer) => child.wait_for(LIMIT, |line| {
                let value: Option<Value> = serde_json::from_str(line).ok();
                value.is_some_and(|value| value.pointer(pointer) == Some(&Value::Bool(true)))
            }),
        }
    }

    /// Waits until it has taken what was sent before it is measured.
    ///
    /// # Errors
    /// Where it has ended, or goes on working.
    pub fn rest(&mut self) -> Result<(), Wrong> {
        let quiet = self.adapter.quiet;
        let idle = process::wait_until_all_idle(&self.pids, quiet, quiet + MOST_LATE);
        idle.with_context(|| self.ended_by_itself()).map_err(Wrong::Trial)
    }

    /// Measures from now on.
    ///
    /// # Errors
    /// As [`Wrong`]: it has ended, or the machine does not say what its cores do.
    pub fn begin(&mut self, ground: &dyn Ground) -> Result<(), Wrong> {
        let cpu = process::run_times(&self.pids);
        let cpu = cpu.with_context(|| self.ended_by_itself()).map_err(Wrong::Trial)?;
        let napi = ground.napi_time().map_err(Wrong::Bed)?;
        let watch = Watch::begin(&self.order.cores).map_err(Wrong::Bed)?;
        self.begun = Some(Begun { watch, cpu, napi, sent: None });
        Ok(())
    }

    /// Everything is sent: what it uses from now on is late.
    ///
    /// # Errors
    /// As [`Wrong`].
    pub fn sent(&mut self, ground: &dyn Ground) -> Result<(), Wrong> {
        let Some(begun) = &mut self.begun else { return Err(Wrong::Bed(not_begun())) };
        // One that has ended is told by `end`.
        let by_then = process::run_times(&self.pids).unwrap_or(begun.cpu).saturating_sub(begun.cpu);
        let ours = || Ok(by_then + ground.napi_time()?.saturating_sub(begun.napi));
        let load = begun.watch.load(ours, ground.takes_interrupts()).map_err(Wrong::Bed)?;
        begun.sent = Some((by_then, load));
        Ok(())
    }

    /// Lets it take what is there, ends it, and reads its counters.
    ///
    /// # Errors
    /// As [`Wrong`].
    pub fn end(mut self, ground: &dyn Ground) -> Result<Taken, Wrong> {
        let Some(Begun { cpu: cpu_before, napi: napi_before, sent: Some((by_then, load)), .. }) =
            self.begun.take()
        else {
            return Err(Wrong::Bed(not_begun()));
        };
        let quiet = self.adapter.quiet;
        let idle = process::wait_until_all_idle(&self.pids, quiet, quiet + MOST_LATE);
        let cpu = process::run_times(&self.pids).unwrap_or(cpu_before).saturating_sub(cpu_before);
        let napi = ground.napi_time().map_err(Wrong::Bed)?.saturating_sub(napi_before);
        idle.with_context(|| self.ended_by_itself()).map_err(Wrong::Trial)?;
        let cores = self.order.cores.len() as f64;
        let counts = self.stop(ground).map_err(Wrong::Trial)?;
        Ok(Taken {
            seen: counts.seen,
            captured: counts.captured,
            analysed: counts.analysed,
            lost: counts.lost,
            aside: counts.aside,
            late_s: cpu.saturating_sub(by_then).as_secs_f64() / cores,
            cpu_s: cpu.as_secs_f64(),
            napi_cpu_s: napi.as_secs_f64(),
            load,
        })
    }

    fn ended_by_itself(&mut self) -> String {
        format!("{} ended by itself; it said: {}", self.adapter.name, self.child.said().trim())
    }

    /// Ends it; what it counted.
    fn stop(self, ground: &dyn Ground) -> Result<Counts> {
        let Running { child, adapter, order, device, wirelane, folder, .. } = self;
        let mut asked = String::new();
        let question = adapter.asking(&fill(&order, &device, &wirelane, &folder))?;
        if !question.is_empty() {
            let name = format!("{} of {}", question[0], adapter.name);
            asked = Child::spawn(&name, &mut ground.command(&order.cores, &question))?.finish(LIMIT)?.said;
        }
        let signal: Signal = format!("SIG{}", adapter.stop).parse().context("no such signal")?;
        let pid = i32::try_from(child.pid()).context("a process id")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("{} had ended by itself", adapter.name))?;
        let finished = child.finish(LIMIT)?;
        // Some end by the signal itself, which is what they were told.
        let by_signal =
            std::os::unix::process::ExitStatusExt::signal(&finished.status) == Some(signal as i32);
        if !finished.status.success() && !by_signal {
            bail!("{} failed ({}): {}", adapter.name, finished.status, finished.said.trim());
        }
        adapter.counts(&format!("{asked}\n{}", finished.said))
    }
}

fn not_begun() -> anyhow::Error {
    anyhow::anyhow!("a sensor is ended whose measurement has not begun")
}
