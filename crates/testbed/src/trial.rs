//! One trial: one sensor, one stretch of traffic, and where every packet of it went.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::battery::{Battery, Rate};
use crate::bed::Bed;
use crate::child::Child;
use crate::process::{self, CoreTime};
use crate::schedule::Case;
use crate::sensors::{Adapter, Counts, Fill, Ready};

/// How long a sensor may take to be ready, and to end: ours takes what is in its rings first.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a sensor that has a packet socket is idle before it is ready: the socket is there before its ring is.
const READY_IDLE: Duration = Duration::from_millis(300);
/// How long a sensor may go on working on what was sent, beside its quiet time.
const MOST_LATE: Duration = Duration::from_secs(10);

/// Below this share of the rate that was asked for, the rate was another one.
const LEAST_OFFERED: f64 = 0.995;
/// What disturbs a trial: more than this share of a core used by other programs, which is above the error of the kernel's clock
/// ticks in a trial of 0.3 s, or taken by the hypervisor.
const MOST_OTHERS: f64 = 0.08;
const MOST_STEAL: f64 = 0.02;

/// Why a trial says nothing about the sensor at this rate.
pub const FELL_SHORT: &str = "generator fell short";

/// What happened in a trial. Counts are packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Handed to the kernel by the generator.
    pub offered: u64,
    /// Of these, sent by its device; the others found no room in the sensor's device.
    pub sent: u64,
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
    /// Sent, and in none of the other places.
    pub unaccounted: i64,
    /// Time for which the generator sent, in seconds.
    pub duration_s: f64,
    /// How long the sensor worked on after that, in seconds: CPU time, by its cores. What it takes out of full buffers then
    /// is no throughput.
    pub late_s: f64,
    /// CPU time of the sensor's process, in seconds.
    pub sensor_cpu_s: f64,
    /// CPU time of NAPI's threads, in seconds.
    pub napi_cpu_s: f64,
    /// CPU time of the generator's process, in seconds.
    pub generator_cpu_s: f64,
    /// Of each core the part of the time in which it worked, as in `0:0.99 1:0.45`.
    pub cores: String,
    /// The largest part of a core that others used.
    pub others: f64,
    /// The largest part of a core that the hypervisor took.
    pub steal: f64,
    /// Why this trial does not count; empty: it does.
    pub invalid: String,
    /// What went wrong; empty: nothing.
    pub fault: String,
}

impl Measured {
    /// A trial that could not be carried out.
    pub fn failed(fault: String) -> Measured {
        Measured { fault, ..Measured::default() }
    }

    /// Whether it says something about the sensor.
    pub fn counts(&self) -> bool {
        self.invalid.is_empty() && self.fault.is_empty()
    }

    /// Packets offered a second.
    pub fn offered_pps(&self) -> f64 {
        per_second(self.offered, self.duration_s)
    }

    /// Packets captured a second.
    pub fn captured_pps(&self) -> f64 {
        per_second(self.captured, self.duration_s + self.late_s)
    }

    /// Packets analysed a second.
    pub fn analysed_pps(&self) -> f64 {
        per_second(self.analysed, self.duration_s + self.late_s)
    }

    /// Part of the packets that were offered and not captured, of a sensor that gets each once. What it did not want it has
    /// not lost.
    pub fn loss(&self) -> f64 {
        1.0 - (self.captured + self.aside) as f64 / self.offered.max(1) as f64
    }

    /// CPU time of sensor and NAPI threads per packet captured, in nanoseconds.
    pub fn cpu_ns(&self) -> f64 {
        (self.sensor_cpu_s + self.napi_cpu_s) * 1e9 / self.captured.max(1) as f64
    }
}

fn per_second(packets: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { packets as f64 / seconds } else { 0.0 }
}

/// The programs of a trial, and its number.
#[derive(Clone, Copy, Debug)]
pub struct Tools<'a> {
    /// The `wirelane` program.
    pub wirelane: &'a Path,
    /// A number that no other trial of this process has.
    pub number: u64,
}

/// Runs a trial at this rate for about this time.
///
/// # Errors
/// Where the test-bed does not work. What a sensor does wrong is [`Measured::fault`].
pub fn run(
    bed: &mut Bed,
    tools: Tools<'_>,
    battery: &Battery,
    adapter: &Adapter,
    case: &Case,
    rate: &Rate,
    duration: Duration,
) -> Result<Measured> {
    bed.check()?;
    let (inside, outside) = bed.folder(&format!("trial-{}", tools.number))?;
    let device = bed.device().to_owned();
    let fill = Fill {
        device: &device,
        cores: &case.cores,
        queues: case.queues,
        workers: case.workers.unwrap_or(1),
        engine: case.engine.as_deref().unwrap_or("auto"),
        loops: case.loops.unwrap_or(0),
        duration: duration.as_secs_f64(),
        buffer: battery.buffer,
        folder: &inside,
        outside: &outside,
        wirelane: tools.wirelane,
    };
    let measured = match start(bed, adapter, &fill) {
        Ok(child) => measure(bed, tools, battery, adapter, case, rate, duration, child, &fill),
        Err(error) => return Ok(Measured::failed(format!("{error:#}"))),
    };
    // What a trial has written must not take memory from the next one.
    std::fs::remove_dir_all(&outside).with_context(|| outside.display().to_string())?;
    measured
}

/// Starts a sensor; when this returns, it captures, and NAPI is on its cores.
fn start(bed: &mut Bed, adapter: &Adapter, fill: &Fill<'_>) -> Result<Child> {
    let words = adapter.words(fill)?;
    let mut child = Child::spawn(&adapter.name, &mut bed.sensor(fill.cores, &words))?;
    match &adapter.ready {
        Ready::PacketSocket => {
            let waited = process::wait_for_packet_socket(child.pid(), Duration::from_secs(10));
            waited.with_context(|| {
                format!("{} did not start; it said: {}", adapter.name, child.said().trim())
            })?;
            process::wait_until_idle(child.pid(), READY_IDLE, Duration::from_secs(5))?;
        }
        Ready::Says(regex) => child.wait_for(LIMIT, |line| regex.is_match(line))?,
        Ready::Json(pointer) => child.wait_for(LIMIT, |line| {
            let value: Option<Value> = serde_json::from_str(line).ok();
            value.is_some_and(|value| value.pointer(pointer) == Some(&Value::Bool(true)))
        })?,
    }
    bed.place_napi(fill.cores)?;
    Ok(child)
}

#[expect(clippy::too_many_arguments, reason = "what a trial is made of, from one caller")]
fn measure(
    bed: &mut Bed,
    tools: Tools<'_>,
    battery: &Battery,
    adapter: &Adapter,
    case: &Case,
    rate: &Rate,
    duration: Duration,
    mut child: Child,
    fill: &Fill<'_>,
) -> Result<Measured> {
    let mut all: Vec<usize> = battery.injector.iter().chain(&case.cores).copied().collect();
    let shared = case.shares_cores(battery);
    if shared {
        all.sort_unstable();
        all.dedup();
    }
    let core_times = || all.iter().map(|core| CoreTime::now(*core)).collect::<Result<Vec<_>>>();
    let pids = [vec![child.pid()], process::children(child.pid())].concat();
    let (cpu, napi) = (process::run_times(&pids)?, bed.napi_time()?);
    let (before, children, begun) = (core_times()?, children_time()?, Instant::now());
    let sent = generate(bed, tools, battery, case, rate, duration)?;
    let (after, generator_cpu, elapsed) = (core_times()?, children_time()? - children, begun.elapsed());
    let by_then = process::run_times(&pids).unwrap_or(cpu).saturating_sub(cpu);
    let busy = by_then + bed.napi_time()?.saturating_sub(napi);
    let idle = process::wait_until_all_idle(&pids, adapter.quiet, adapter.quiet + MOST_LATE);
    let sensor_cpu = process::run_times(&pids).unwrap_or(cpu).saturating_sub(cpu);
    let napi_cpu = bed.napi_time()?.saturating_sub(napi);
    let counts = match idle
        .with_context(|| format!("{} ended by itself; it said: {}", adapter.name, child.said().trim()))
    {
        Ok(()) => end(bed, adapter, child, fill),
        Err(error) => Err(error),
    };
    let counts = match counts {
        Ok(counts) => counts,
        Err(error) => return Ok(Measured::failed(format!("{error:#}"))),
    };

    let shares: Vec<(f64, f64)> =
        after.iter().zip(&before).map(|(after, before)| after.shares(before)).collect();
    let of = |cores: std::ops::Range<usize>, ours: Duration| {
        let worked: f64 = shares[cores.clone()].iter().map(|share| share.0).sum();
        (worked - ours.as_secs_f64() / elapsed.as_secs_f64()) / cores.len() as f64
    };
    let injectors = battery.injector.len();
    let (sender, receiver) = match shared {
        true => (0.0, of(0..all.len(), generator_cpu + busy)),
        false => (of(0..injectors, generator_cpu), of(injectors..all.len(), busy)),
    };
    let count =
        |name: &str| sent[name].as_u64().with_context(|| format!("no {name} from the generator: {sent}"));
    ensure!(count("others")? == 0, "somebody else sends in the injector's namespace: {sent}");
    let worked = all.iter().zip(&shares).map(|(core, (worked, _))| format!("{core}:{worked:.2}"));
    let mut measured = Measured {
        offered: count("offered")?,
        sent: count("sent")?,
        seen: counts.seen,
        captured: counts.captured,
        analysed: counts.analysed,
        lost: counts.lost,
        aside: counts.aside,
        duration_s: sent["duration_s"]
            .as_f64()
            .with_context(|| format!("no duration_s from the generator: {sent}"))?,
        late_s: sensor_cpu.saturating_sub(by_then).as_secs_f64() / case.cores.len() as f64,
        sensor_cpu_s: sensor_cpu.as_secs_f64(),
        napi_cpu_s: napi_cpu.as_secs_f64(),
        generator_cpu_s: generator_cpu.as_secs_f64(),
        cores: worked.collect::<Vec<_>>().join(" "),
        others: sender.max(receiver).max(0.0),
        steal: shares.iter().map(|share| share.1).fold(0.0, f64::max),
        ..Measured::default()
    };
    account(&mut measured, adapter, case);
    measured.invalid = disturbance(&measured, rate, duration, sent["fell_short"] == true).to_owned();
    Ok(measured)
}

/// Holds what was sent against what the sensor says.
fn account(measured: &mut Measured, adapter: &Adapter, case: &Case) {
    let copies = if adapter.copies { case.workers.unwrap_or(1) as u64 } else { 1 };
    let told = measured.captured + measured.lost + measured.aside;
    measured.unaccounted = (measured.sent * copies).cast_signed() - told.cast_signed();
    if adapter.exact && measured.unaccounted != 0 {
        measured.fault = format!(
            "{} packets were sent, and {} tells of {told}: its account is not exact",
            measured.sent * copies,
            adapter.name
        );
    }
}

/// Why a trial does not count; empty: it does.
fn disturbance(measured: &Measured, rate: &Rate, duration: Duration, fell_short: bool) -> &'static str {
    let short = match rate {
        Rate::Pps(pps) => (measured.offered as f64) < LEAST_OFFERED * pps * duration.as_secs_f64(),
        Rate::Speed(_) => fell_short,
        Rate::Full | Rate::Search(_) => false,
    };
    if short {
        FELL_SHORT
    } else if measured.steal > MOST_STEAL {
        "hypervisor took time"
    } else if measured.others > MOST_OTHERS {
        "other programs ran"
    } else {
        ""
    }
}

/// Ends a sensor that has taken everything; what it counted.
fn end(bed: &Bed, adapter: &Adapter, child: Child, fill: &Fill<'_>) -> Result<Counts> {
    let mut asked = String::new();
    let question = adapter.asking(fill)?;
    if !question.is_empty() {
        let name = format!("{} of {}", question[0], adapter.name);
        asked = Child::spawn(&name, &mut bed.sensor(fill.cores, &question))?.finish(LIMIT)?.said;
    }
    let signal: Signal = format!("SIG{}", adapter.stop).parse().context("no such signal")?;
    let pid = i32::try_from(child.pid()).context("a process id")?;
    kill(Pid::from_raw(pid), signal).with_context(|| format!("{} had ended by itself", adapter.name))?;
    let finished = child.finish(LIMIT)?;
    // Some end by the signal itself, which is what they were told.
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&finished.status) == Some(signal as i32);
    if !finished.status.success() && !by_signal {
        bail!("{} failed ({}): {}", adapter.name, finished.status, finished.said.trim());
    }
    adapter.counts(&format!("{asked}\n{}", finished.said))
}

/// CPU time of all processes that this one has waited for.
fn children_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec().unsigned_abs())
            + Duration::from_micros(time.tv_usec().unsigned_abs())
    };
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

/// The generator's command line.
fn generator(
    bed: &Bed,
    tools: Tools<'_>,
    battery: &Battery,
    case: &Case,
    rate: &Rate,
    duration: Duration,
) -> Vec<String> {
    let traffic = &battery.traffic;
    let cores = battery.injector.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut words = vec![tools.wirelane.display().to_string()];
    let mut add = |text: &str| words.extend(text.split(' ').map(str::to_owned));
    add(&format!("send -i {} --json", bed.sending()));
    if let (Some(file), Rate::Speed(speed)) = (&traffic.replay, rate) {
        add(&format!("--speed {speed} --loop {} --replay", traffic.passes));
        words.push(file.clone());
        return words;
    }
    // Where packets could be merged there is no NAPI that takes frames of the method "kernel", and those all come in on
    // the RX queue of the core that sends them.
    let one_queue = battery.per_core && case.queues > 1;
    let method = if traffic.merges() || one_queue { "socket" } else { traffic.method.name() };
    add(&format!("--interval 3600 --cores {cores} --method {method} --flows {}", traffic.flows));
    add(&format!("--pattern {} --proto {}", traffic.pattern.name(), traffic.proto.name()));
    add(&format!("--duration {}", duration.as_secs_f64()));
    if let Some(size) = case.size {
        add(&format!("--size {size}"));
    }
    if let Rate::Pps(pps) = rate {
        add(&format!("--rate {pps:.0}"));
    }
    words
}

/// Has a program its core when it wants it, also before other sessions (sched(7), autogroups).
const FIRST: [&str; 4] = [
    "sh",
    "-c",
    "if [ -e /proc/self/autogroup ]; then echo -20 >/proc/self/autogroup; fi; exec nice -n -20 \"$@\"",
    "first",
];

/// Sends; what the generator reports.
fn generate(
    bed: &Bed,
    tools: Tools<'_>,
    battery: &Battery,
    case: &Case,
    rate: &Rate,
    duration: Duration,
) -> Result<Value> {
    let mut words = generator(bed, tools, battery, case, rate, duration);
    if case.shares_cores(battery) {
        words.splice(0..0, FIRST.map(str::to_owned));
    }
    let child = Child::spawn("the generator", &mut bed.injector(&battery.injector, &words))?;
    // A capture takes the time that it takes.
    let most = if battery.traffic.replay.is_some() { Duration::from_secs(86_400) } else { duration + LIMIT };
    let finished = child.finish(most)?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.said.trim());
    let last = finished
        .said
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str::<Value>(line).ok().filter(|value| value["final"] == true));
    last.with_context(|| format!("the generator said nothing: {}", finished.said.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::Sensors;

    fn measured() -> Measured {
        Measured {
            offered: 1000,
            sent: 990,
            captured: 900,
            analysed: 900,
            lost: 80,
            aside: 10,
            duration_s: 0.5,
            ..Measured::default()
        }
    }

    fn case(workers: usize) -> Case {
        let rate = Rate::Pps(2000.0);
        let sensor = "wirelane-count".to_owned();
        Case {
            sensor,
            size: Some(60),
            rate,
            loops: None,
            cores: vec![1],
            workers: Some(workers),
            queues: 1,
            engine: None,
        }
    }

    #[test]
    fn every_packet_has_a_place_or_the_trial_is_at_fault() {
        let sensors = Sensors::shipped();
        let (ours, theirs) = (sensors.get("wirelane-count").unwrap(), sensors.get("tcpdump").unwrap());
        let mut exact = measured();
        account(&mut exact, ours, &case(1));
        assert_eq!((exact.unaccounted, exact.fault.as_str(), exact.counts()), (0, "", true));
        let mut short = Measured { captured: 899, ..measured() };
        account(&mut short, ours, &case(1));
        assert!(
            short.unaccounted == 1 && short.fault.contains("990 packets were sent") && !short.counts(),
            "{short:?}"
        );
        let mut others = Measured { captured: 899, ..measured() };
        account(&mut others, theirs, &case(1));
        assert_eq!((others.unaccounted, others.fault.as_str()), (1, ""));
        let mut copies = Measured { captured: 2880, ..measured() };
        account(&mut copies, sensors.get("wirelane-count-copy").unwrap(), &case(3));
        assert_eq!((copies.unaccounted, copies.fault.as_str()), (0, ""));
    }

    #[test]
    fn what_disturbs_a_trial_is_named() {
        let seconds = Duration::from_millis(500);
        let pps = Rate::Pps(2000.0);
        assert_eq!(disturbance(&measured(), &pps, seconds, false), "");
        assert_eq!(disturbance(&measured(), &Rate::Pps(2020.0), seconds, false), FELL_SHORT);
        assert_eq!(disturbance(&measured(), &Rate::Speed("10x".into()), seconds, true), FELL_SHORT);
        assert_eq!(
            disturbance(&Measured { steal: 0.1, ..measured() }, &pps, seconds, false),
            "hypervisor took time"
        );
        assert_eq!(
            disturbance(&Measured { others: 0.2, ..measured() }, &Rate::Full, seconds, false),
            "other programs ran"
        );
    }

    #[test]
    fn rates_are_per_second_of_sending() {
        let one = measured();
        assert!((one.captured_pps() - 1800.0).abs() < 1e-9 && (one.offered_pps() - 2000.0).abs() < 1e-9);
        assert!((one.loss() - 0.09).abs() < 1e-9, "{}", one.loss());
        let cpu = Measured { sensor_cpu_s: 0.0009, napi_cpu_s: 0.0009, ..one };
        assert!((cpu.cpu_ns() - 2000.0).abs() < 1e-6);
        // 900 packets in half a second and another one.
        let late = Measured { late_s: 0.5, ..measured() };
        assert!((late.captured_pps() - 900.0).abs() < 1e-9 && (late.offered_pps() - 2000.0).abs() < 1e-9);
        assert!(Measured::failed("x".into()).captured_pps() == 0.0);
    }
}
