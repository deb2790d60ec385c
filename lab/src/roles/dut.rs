//! Sensor's side of a trial: its processes, from their start to their counters.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{DutOrder, Failure, Host, Load, Taken, Watch};
use crate::child::Child;
use crate::duts::{Adapter, Counts, Fill, Processes, Ready};
use crate::holder::Folder;
use crate::process;

/// Maximum time for a sensor to become ready, and to end: ours processes the packets in its rings first.
const LIMIT: Duration = Duration::from_secs(60);
/// Idle time after which a sensor with a packet socket is ready: the socket exists before its ring.
const READY_IDLE: Duration = Duration::from_millis(300);
/// Maximum time for a sensor to process the sent packets, in addition to its quiet time.
const MOST_LATE: Duration = Duration::from_secs(10);

/// A running sensor.
#[derive(Debug)]
pub struct Running {
    // Dropped before its folder is removed.
    children: Vec<Child>,
    adapter: Adapter,
    order: DutOrder,
    device: String,
    wirelane: PathBuf,
    folder: Folder,
    pids: Vec<u32>,
    begun: Option<Begun>,
}

/// State at the start of the measurement.
#[derive(Debug)]
struct Begun {
    watch: Watch,
    cpu: Duration,
    ticks: [f64; 2],
    napi: Duration,
    /// After the sending: CPU time up to then, of the sensor and of NAPI threads, and load of the cores.
    sent: Option<(Duration, Duration, Load)>,
}

/// Starts a sensor, and returns when it captures. `wirelane` is the program of our sensors; the number must be unique
/// among the trials of this process.
pub fn start(
    host: &mut dyn Host,
    wirelane: &Path,
    adapter: &Adapter,
    order: &DutOrder,
    number: u64,
) -> Result<Running, Failure> {
    let folder = host.folder(&format!("trial-{number}"))?;
    let device = host.device().to_owned();
    let mut running = Running {
        children: Vec::new(),
        adapter: adapter.clone(),
        order: order.clone(),
        device,
        wirelane: wirelane.to_owned(),
        folder,
        pids: Vec::new(),
        begun: None,
    };
    running.spawn(host).map_err(Failure::Trial)?;
    for at in 0..running.children.len() {
        running.wait(at).map_err(Failure::Trial)?;
    }
    host.settle(order).map_err(Failure::Trial)?;
    running.pids = running
        .children
        .iter()
        .flat_map(|child| [vec![child.pid()], process::children(child.pid())].concat())
        .collect();
    Ok(running)
}

impl Running {
    fn fill(&self, index: usize) -> Fill<'_> {
        Fill {
            device: &self.device,
            order: &self.order,
            index,
            folder: &self.folder.inside,
            outside: &self.folder.outside,
            wirelane: &self.wirelane,
        }
    }

    /// Starts its processes, each on its own core if there are several.
    fn spawn(&mut self, host: &dyn Host) -> Result<()> {
        let name = self.adapter.name.clone();
        let prepare = self.adapter.preparing(&self.fill(0))?;
        if !prepare.is_empty() {
            let mut command = host.command(&self.order.cores, &prepare);
            let prepared = Child::spawn(&format!("{} of {name}", prepare[0]), &mut command)?.finish(LIMIT)?;
            ensure!(prepared.status.success(), "preparing {name} failed: {}", prepared.said.trim());
        }
        let count = match self.adapter.processes {
            None => 1,
            Some(Processes::Queues) => self.order.queues as usize,
            Some(Processes::Workers) => self.order.workers,
        };
        for index in 0..count {
            let words = self.adapter.words(&self.fill(index))?;
            let cores = &self.order.cores;
            let one = [cores[index % cores.len()]];
            let cores = if count > 1 { &one[..] } else { &cores[..] };
            self.children.push(Child::spawn(&name, &mut host.command(cores, &words))?);
        }
        Ok(())
    }

    /// Captured and lost packets so far; `None`: it does not report while it runs.
    pub fn told(&mut self) -> Option<(u64, u64)> {
        let [only] = &mut self.children[..] else { return None };
        self.adapter.told(only.said())
    }

    /// Waits until one of its processes captures.
    fn wait(&mut self, at: usize) -> Result<()> {
        let child = &mut self.children[at];
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

    /// Waits until it has processed all packets from before the measurement.
    pub fn rest(&mut self) -> Result<(), Failure> {
        let quiet = self.adapter.quiet;
        let idle = process::wait_until_all_idle(&self.pids, quiet, quiet + MOST_LATE);
        idle.with_context(|| self.ended_by_itself()).map_err(Failure::Trial)
    }

    /// Starts the measurement.
    pub fn begin(&mut self, host: &dyn Host) -> Result<(), Failure> {
        let cpu = process::run_times(&self.pids);
        let cpu = cpu.with_context(|| self.ended_by_itself()).map_err(Failure::Trial)?;
        let ticks = process::user_and_system(&self.pids).map_err(Failure::Trial)?;
        let napi = host.napi_time()?;
        let watch = Watch::begin(&self.order.cores)?;
        self.begun = Some(Begun { watch, cpu, ticks, napi, sent: None });
        Ok(())
    }

    /// Notes the end of the sending: work from now on counts as late.
    pub fn sent(&mut self, host: &dyn Host) -> Result<(), Failure> {
        let Some(begun) = &mut self.begun else { return Err(not_begun().into()) };
        // `end` reports a process that has ended.
        let by_then = process::run_times(&self.pids).unwrap_or(begun.cpu).saturating_sub(begun.cpu);
        let napi_by_then = host.napi_time()?.saturating_sub(begun.napi);
        let load = begun.watch.load(|| Ok(by_then + napi_by_then), host.takes_interrupts())?;
        begun.sent = Some((by_then, napi_by_then, load));
        Ok(())
    }

    /// Waits until the sensor has processed all packets, ends it, and reads its counters.
    pub fn end(mut self, host: &dyn Host) -> Result<Taken, Failure> {
        let Some(Begun {
            cpu: cpu_before,
            ticks: ticks_before,
            napi: napi_before,
            sent: Some((by_then, napi_by_then, load)),
            ..
        }) = self.begun.take()
        else {
            return Err(not_begun().into());
        };
        let quiet = self.adapter.quiet;
        let idle = process::wait_until_all_idle(&self.pids, quiet, quiet + MOST_LATE);
        let cpu = process::run_times(&self.pids).unwrap_or(cpu_before).saturating_sub(cpu_before);
        let ticks = process::user_and_system(&self.pids).unwrap_or(ticks_before);
        let [user, system] = [ticks[0] - ticks_before[0], ticks[1] - ticks_before[1]];
        let user_share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
        let napi = host.napi_time()?.saturating_sub(napi_before);
        idle.with_context(|| self.ended_by_itself()).map_err(Failure::Trial)?;
        let cores = self.order.cores.len() as f64;
        let counts = self.stop(host).map_err(Failure::Trial)?;
        Ok(Taken {
            counts,
            // An analysis in the kernel is NAPI's work.
            late_s: (cpu + napi).saturating_sub(by_then + napi_by_then).as_secs_f64() / cores,
            cpu_s: cpu.as_secs_f64(),
            user_s: cpu.as_secs_f64() * user_share,
            napi_cpu_s: napi.as_secs_f64(),
            load,
        })
    }

    fn ended_by_itself(&mut self) -> String {
        let said: Vec<&str> = self.children.iter_mut().map(|child| child.said().trim()).collect();
        format!("{} ended by itself; it said: {}", self.adapter.name, said.join("\n"))
    }

    /// Ends it; returns the counters of all of its processes.
    fn stop(mut self, host: &dyn Host) -> Result<Counts> {
        let mut asked = String::new();
        let question = self.adapter.asking(&self.fill(0))?;
        if !question.is_empty() {
            let name = format!("{} of {}", question[0], self.adapter.name);
            asked = Child::spawn(&name, &mut host.command(&self.order.cores, &question))?.finish(LIMIT)?.said;
        }
        let adapter = &self.adapter;
        let signal: Signal = format!("SIG{}", adapter.stop).parse().context("no such signal")?;
        let mut sum: Option<Counts> = None;
        for child in std::mem::take(&mut self.children) {
            process::signal(signal, child.pid())
                .with_context(|| format!("{} had ended by itself", adapter.name))?;
            let finished = child.finish(LIMIT)?;
            // Some are terminated by the signal, which is correct.
            let by_signal =
                std::os::unix::process::ExitStatusExt::signal(&finished.status) == Some(signal as i32);
            if !finished.status.success() && !by_signal {
                bail!("{} failed ({}): {}", adapter.name, finished.status, finished.said.trim());
            }
            let counts = adapter.counts(&format!("{asked}\n{}", finished.said))?;
            match &mut sum {
                Some(sum) => sum.add(&counts),
                None => sum = Some(counts),
            }
        }
        sum.context("a sensor has one process or more")
    }
}

fn not_begun() -> anyhow::Error {
    anyhow::anyhow!("a sensor is ended whose measurement has not begun")
}
