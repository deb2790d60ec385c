//! One trial: one receiver, one stretch of traffic, and where every packet of it went.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use wirelane_tests::Child;

use crate::bed::{Bed, Priority, Setup};
use crate::probes;
use crate::process::{self, CoreTime};
use crate::receive::Counts;
use crate::receive::sys::time_of_children;
use crate::receiver::{Circumstances, Ready, Receiver};
use crate::running::Running;

/// How frames are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// XDP live frames, inside the kernel: no socket buffers
    Kernel,
    /// Clones of one socket buffer, inside the kernel
    Clone,
    /// A packet socket: a socket buffer made and filled for every packet, tried again while the device has no room
    Socket,
}

impl Method {
    /// Its name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Method::Kernel => "kernel",
            Method::Clone => "clone",
            Method::Socket => "socket",
        }
    }
}

impl Method {
    /// As people read it.
    pub fn label(self) -> &'static str {
        match self {
            Method::Kernel => "live frames",
            Method::Clone => "cloned sk_buffs",
            Method::Socket => "sk_buffs of a socket",
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
    /// The part of it in user space, as far as clock ticks tell.
    pub receiver_user_s: f64,
    /// CPU time of NAPI's thread, in seconds (setup B).
    pub napi_cpu_s: f64,
    /// CPU time of the generator's process, in seconds. What NAPI does on its core in setup A is within it.
    pub generator_cpu_s: f64,
    /// The larger of the two cores' shares that neither generator, receiver nor NAPI used.
    pub others_share: f64,
    /// The larger of the two cores' shares that the hypervisor took.
    pub steal_share: f64,
    /// Why this trial says nothing about the receiver; none: it counts.
    pub invalid: Option<&'static str>,
    /// Load average of the machine.
    pub load_average: f64,
}

/// What disturbs a trial: more than this share of a core used by other programs, which is above the error of the
/// kernel's clock ticks in a trial of 0.3 s, or taken by the hypervisor.
const MOST_OTHERS: f64 = 0.08;
const MOST_STEAL: f64 = 0.02;

/// A generator that works as fast as it can uses its core for less than this share of the time only if it was kept
/// from it.
const LEAST_GENERATOR: f64 = 0.9;

/// Longer trials at a rate have nobody who goes first, in seconds.
const MOST_FIRST: f64 = 0.95;

/// Longer than any trial.
pub const NO_INTERVALS: f64 = 60.0;

/// Why a paced trial is invalid in which the generator was too slow.
pub const NOT_REACHED: &str = "rate not reached";

/// Below this share of the rate that was asked for, the rate was another one.
const LEAST_OFFERED: f64 = 0.995;

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

    /// The receiver's CPU time per packet received in user space, and in the kernel, in nanoseconds.
    pub fn user_and_system_ns(&self) -> [f64; 2] {
        let per_packet = 1e9 / self.received.max(1) as f64;
        let user = self.receiver_user_s.min(self.receiver_cpu_s);
        [user * per_packet, (self.receiver_cpu_s - user) * per_packet]
    }

    /// Whether each offered packet is in exactly one place.
    pub fn is_exact(&self) -> bool {
        self.unaccounted == 0 && self.seen.is_none_or(|seen| seen == self.offered - self.device_dropped)
    }

    /// Whether something else than the receiver decided this trial of `seconds`.
    fn disturbance(&self, seconds: f64) -> Option<&'static str> {
        Signs {
            reached: self.asked_pps.map(|asked| self.offered as f64 / (asked * seconds)),
            steal_share: self.steal_share,
            others_share: self.others_share,
            generator_share: self.generator_cpu_s / self.duration_s,
        }
        .disturbance()
    }
}

/// What tells whether something else than the receiver decided a trial.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    /// The part of the rate that was asked for that the generator made; none: it was to go as fast as it can.
    pub reached: Option<f64>,
    /// The hypervisor's share of a core.
    pub steal_share: f64,
    /// Other programs' share.
    pub others_share: f64,
    /// The generator's.
    pub generator_share: f64,
}

impl Signs {
    /// Why the trial does not count; none: it does.
    pub fn disturbance(self) -> Option<&'static str> {
        if self.reached.is_some_and(|part| part < LEAST_OFFERED) {
            return Some(NOT_REACHED);
        }
        if self.steal_share > MOST_STEAL {
            return Some("steal");
        }
        if self.others_share > MOST_OTHERS {
            return Some("other programs");
        }
        (self.reached.is_none() && self.generator_share < LEAST_GENERATOR).then_some("generator starved")
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
    // Who goes first for longer is held back (sched_rt_runtime_us in sched(7)).
    let paced = asked_pps.is_some() && seconds < MOST_FIRST;
    let priority = if paced { Priority::First } else { Priority::Fair };
    let running = start(bed, tools, receiver, load, priority, NO_INTERVALS)?;
    let pids = probes::processes(receiver, running.child()?.pid());
    let cores = bed.cores();
    let core_times =
        || -> Result<[CoreTime; 2]> { Ok([CoreTime::now(cores.generator)?, CoreTime::now(cores.receiver)?]) };
    let (cpu, napi) = (process::run_times(&pids)?, bed.napi_time()?);
    let [user, system] = process::user_and_system(&pids)?;
    let (before, children, start) = (core_times()?, time_of_children()?, Instant::now());
    let sent = generate(bed, tools, load, priority, asked_pps, seconds)?;
    let (after, generator_cpu, elapsed) = (core_times()?, time_of_children()? - children, start.elapsed());
    let (busy_cpu, busy_napi) = (process::run_times(&pids)?, bed.napi_time()?);
    wait_until_taken(&running, receiver)?;
    let end_cpu = if receiver.sleeps() { process::run_times(&pids)? } else { busy_cpu };
    let [user, system] =
        process::user_and_system(&pids).map(|[now, kernel]| [now - user, kernel - system])?;
    let user_share = if user + system > 0.0 { user / (user + system) } else { 0.0 };
    let napi_end = bed.napi_time()?;
    let counts = finish(running, receiver)?;

    let ours = [generator_cpu, (busy_cpu - cpu) + busy_napi.saturating_sub(napi)];
    let shares = [0, 1].map(|core| {
        let (busy, steal) = after[core].shares(&before[core]);
        (busy - ours[core].as_secs_f64() / elapsed.as_secs_f64(), steal)
    });
    let count =
        |name: &str| sent[name].as_u64().with_context(|| format!("no {name} from the generator: {sent}"));
    let (offered, device_dropped) = (count("offered")?, count("dropped")?);
    ensure!(count("others")? == 0, "somebody else sends in the bench's namespace: {sent}");
    let mut trial = Trial {
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
        receiver_user_s: (end_cpu - cpu).as_secs_f64() * user_share,
        napi_cpu_s: (napi_end.saturating_sub(napi)).as_secs_f64(),
        generator_cpu_s: generator_cpu.as_secs_f64(),
        others_share: shares.iter().map(|share| share.0).fold(0.0, f64::max),
        steal_share: shares.iter().map(|share| share.1).fold(0.0, f64::max),
        invalid: None,
        load_average: process::load_average(),
    };
    if receiver.is_ours() && !trial.is_exact() {
        bail!("our ledger is not exact: {trial:?}; generator: {sent}");
    }
    trial.invalid = trial.disturbance(seconds);
    Ok(trial)
}

/// Starts a receiver; when this returns, it receives, and NAPI is on its core. Ours tells every `interval` seconds
/// what it has counted.
///
/// # Errors
/// Where it does not start.
pub fn start(
    bed: &mut Bed,
    tools: &Tools,
    receiver: Receiver,
    load: Load,
    priority: Priority,
    interval: f64,
) -> Result<Running> {
    // Before its files are there.
    let mut running = Running::new(receiver);
    let line = receiver.command(&Circumstances {
        device: bed.device(),
        core: bed.cores().receiver,
        buffer: tools.buffer,
        jumbo: load.size > crate::options::LARGEST_LIVE_FRAME,
        wirelane: &tools.wirelane,
        bench: &tools.bench,
        interval,
    })?;
    let child = running.start(&mut bed.receiver(&line))?;
    bed.favour(child.pid())?;
    match receiver.ready() {
        Ready::Says => child.wait_ready(Duration::from_secs(10))?,
        Ready::HasSocket => {
            process::wait_for_packet_socket(child.pid(), Duration::from_secs(10))
                .with_context(|| format!("{} did not start: {}", receiver.label(), line.join(" ")))?;
            // The socket is there before its ring is; a program that sleeps waits for packets.
            let pids = probes::processes(receiver, child.pid());
            process::wait_until_all_idle(&pids, Duration::from_millis(300), Duration::from_secs(5))?;
        }
    }
    bed.place_napi(priority)?;
    Ok(running)
}

/// Ends a receiver once it has taken everything; what it counted. The generator must have ended.
///
/// # Errors
/// Where it does not end, or failed.
pub fn finish(mut running: Running, receiver: Receiver) -> Result<Counts> {
    if receiver.is_probe() {
        return probes::end(receiver, running);
    }
    let finished = running.take()?.terminate(Duration::from_secs(10))?;
    receiver.counts(&finished)
}

/// Waits until a receiver has taken what was sent. Time that it spends waiting for more is not time for these packets.
///
/// # Errors
/// Where it has ended.
pub fn wait_until_taken(running: &Running, receiver: Receiver) -> Result<()> {
    let quiet = receiver.quiet();
    let pids = probes::processes(receiver, running.child()?.pid());
    process::wait_until_all_idle(&pids, quiet, quiet + Duration::from_secs(3))
}

/// Runs the generator for a while; what it reports.
///
/// # Errors
/// Where it failed.
pub fn generate(
    bed: &Bed,
    tools: &Tools,
    load: Load,
    priority: Priority,
    pps: Option<f64>,
    seconds: f64,
) -> Result<Value> {
    let (device, size, core) = (bed.sending_device(), load.size, bed.cores().generator);
    // Live frames take a whole core, and what the kernel has to do there beside them would starve behind who goes first.
    let priority = if load.method == Method::Kernel { Priority::Fair } else { priority };
    let mut line = match load.method {
        Method::Clone => format!("{} generate {device} --size {size} --duration {seconds}", tools.bench),
        Method::Kernel | Method::Socket => format!(
            "{} send -i {device} --json --interval 60 --cores {core} --method {} --size {size} --duration {seconds}",
            tools.wirelane,
            load.method.name()
        ),
    };
    if let Some(pps) = pps {
        line += &format!(" --rate {pps:.0}");
    }
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let child = Child::spawn(&mut bed.generator(&words, priority))?;
    bed.favour(child.pid())?;
    let finished = child.finish(Duration::from_secs_f64(seconds + 20.0))?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.stderr.trim());
    finished.last_json()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A trial of half a second in which `received` of 2000 packets were received, the others lost.
    pub(crate) fn trial(receiver: Receiver, received: u64) -> Trial {
        Trial {
            setup: Setup::A,
            load: Load { method: Method::Kernel, size: 60 },
            receiver,
            asked_pps: None,
            offered: 2000,
            device_dropped: 0,
            seen: None,
            received,
            lost: 2000 - received,
            unaccounted: 0,
            duration_s: 0.5,
            receiver_cpu_s: 0.0,
            receiver_user_s: 0.0,
            napi_cpu_s: 0.0,
            generator_cpu_s: 0.5,
            others_share: 0.0,
            steal_share: 0.0,
            invalid: None,
            load_average: 0.0,
        }
    }

    #[test]
    fn a_trial_that_was_disturbed_does_not_count() {
        let good = trial(Receiver::Drop, 2000);
        assert_eq!(good.disturbance(0.5), None);
        let others = Trial { others_share: 0.2, ..good.clone() };
        assert_eq!(others.disturbance(0.5), Some("other programs"));
        let starved = Trial { generator_cpu_s: 0.3, ..good.clone() };
        assert_eq!(starved.disturbance(0.5), Some("generator starved"));
        let stolen = Trial { steal_share: 0.05, ..good.clone() };
        assert_eq!(stolen.disturbance(0.5), Some("steal"));
        // 2000 packets in half a second, at 4000 a second and at more.
        let paced = Trial { asked_pps: Some(4000.0), generator_cpu_s: 0.0, ..good.clone() };
        assert_eq!(paced.disturbance(0.5), None);
        let slow = Trial { asked_pps: Some(4100.0), ..paced };
        assert_eq!(slow.disturbance(0.5), Some(NOT_REACHED));
    }

    #[test]
    fn every_packet_has_a_place() {
        let trial = Trial { device_dropped: 100, received: 1900, lost: 0, ..trial(Receiver::Drop, 1900) };
        assert!(trial.is_exact());
        assert!((trial.loss() - 0.05).abs() < 1e-9 && (trial.received_pps() - 3800.0).abs() < 1e-9);
        assert!(!Trial { seen: Some(1899), ..trial.clone() }.is_exact());
        assert!(!Trial { unaccounted: 1, ..trial }.is_exact());
    }
}
