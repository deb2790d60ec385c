//! One trial of a study: one or several receivers' processes, one stretch of traffic, and where every packet went.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use wirelane_tests::{Child, Finished};

use super::rules::{self, Judged};
use super::{Point, Series, Study};
use crate::bed::{Bed, Priority, Setup};
use crate::process::{self, CoreTime};
use crate::receive::Counts;
use crate::receive::sys::time_of_children;
use crate::receiver::Receiver;
use crate::trial::{Signs, Tools};

/// What the generator makes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Traffic {
    /// Clones of one sk_buff, spread over so many RX queues.
    Clones(u32),
    /// Live frames of so many flows in turn.
    Flows(u32),
    /// Live frames of flows that have 16 packets each and end.
    EndingFlows,
    /// Live frames of 4096 flows that differ in size by Zipf's law with this exponent, and one flow besides that has this
    /// part of the packets.
    Skewed(f64, f64),
}

/// What is to be tried.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The study, setup, and what varies: see [`Point`].
    pub study: Study,
    /// See `study`.
    pub setup: Setup,
    /// See `study`.
    pub x: u32,
    /// Who receives.
    pub series: Series,
    /// The round, from 0.
    pub round: usize,
    /// RX queues, workers or applications.
    pub count: usize,
    /// The packets.
    pub traffic: Traffic,
    /// Bytes of a frame without FCS.
    pub size: u32,
    /// Packets per second; none: as fast as possible.
    pub pps: Option<f64>,
    /// How long, in seconds.
    pub seconds: f64,
    /// Receivers' buffers in MiB.
    pub buffer: u32,
    /// Loops that ours spins per packet.
    pub load: u32,
    /// The rule file that ours judges by.
    pub rules: Option<&'a Path>,
}

/// A process that runs for longer in front of all others than this, in seconds, is held back by the kernel
/// (sched_rt_runtime_us in sched(7)).
const LONGEST_FIRST: f64 = 0.95;

impl Ask<'_> {
    fn priority(&self) -> Priority {
        if self.pps.is_some() && self.seconds < LONGEST_FIRST { Priority::First } else { Priority::Fair }
    }

    /// The receivers' command lines, each with the cores that it may run on.
    fn receivers(&self, bed: &Bed, tools: &Tools) -> Vec<(Vec<usize>, Vec<String>)> {
        let (device, bench, buffer) = (bed.device(), &tools.bench, self.buffer);
        let cores = bed.worker_cores(self.count);
        let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let own = |kind: &str, device: &str, cores: &[usize], rest: &str| {
            let line =
                format!("{bench} receive {kind} {device} --buffer {buffer} --cores {} {rest}", list(cores));
            (cores.to_vec(), line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        // With an argument that may have blanks.
        let judging = |(cores, mut words): (Vec<usize>, Vec<String>), option: &str, value: String| {
            words.extend([option.to_owned(), value]);
            vec![(cores, words)]
        };
        let load = format!("--load {}", self.load);
        // One process per application, each on the next core.
        let each = |line: &dyn Fn(usize, usize) -> (Vec<usize>, Vec<String>)| {
            cores.iter().enumerate().map(|(number, core)| line(number, *core)).collect()
        };
        match self.series {
            Series::Drop => vec![own("drop", device, &cores[..1], "")],
            Series::Ring if self.study == Study::Queues => vec![own("ring", device, &cores, "--by-queue")],
            Series::Ring => vec![own("ring", device, &cores, "")],
            Series::OneReader => vec![own("ring", device, &cores, "--arrangement unplaced")],
            Series::Locked => vec![own("ring", device, &cores, "--arrangement lock")],
            Series::Unplaced => vec![own("ring", device, &cores, "--by-queue --arrangement unplaced")],
            Series::Tuned => vec![own("ring", device, &cores, "--by-queue --arrangement tuned")],
            Series::RingPerQueue => {
                each(&|queue, core| own("ring", &format!("{device}@{queue}"), &[core], ""))
            }
            Series::RingGroups => each(&|_, core| own("ring", device, &[core], "")),
            Series::Uncontrolled => vec![own("ring", device, &cores, &format!("{load} --whole-flows"))],
            Series::Controlled => {
                vec![own("ring", device, &cores, &format!("{load} --whole-flows --shed"))]
            }
            Series::Static => vec![own("ring", device, &cores, &format!("{load} --order"))],
            Series::Adaptive => vec![own("ring", device, &cores, &format!("{load} --order --adaptive"))],
            Series::Xsk => vec![own("xsk-poll", device, &cores, "")],
            Series::Fanout if self.study == Study::Queues => {
                vec![own("packet", device, &cores, "--fanout queue")]
            }
            Series::Fanout => vec![own("packet", device, &cores, "--fanout hash")],
            Series::Packet => each(&|_, core| own("packet", device, &[core], "")),
            Series::Tcpdump => each(&|_, core| {
                let mut line = format!("tcpdump -n -i {device} -B {} -w /dev/null", buffer * 1024);
                if self.study == Study::Filters {
                    line = format!("{line} {}", rules::expression(self.x));
                }
                (vec![core], line.split_whitespace().map(str::to_owned).collect())
            }),
            Series::RuleHit
            | Series::RuleSpread
            | Series::RulesApart
            | Series::RulesNear
            | Series::SetMiss
            | Series::SetHit
            | Series::SetSure
            | Series::ForwardTaken
            | Series::ForwardLeft => {
                let file = self.rules.map_or_else(String::new, |path| path.display().to_string());
                judging(own("ring", device, &cores, ""), "--rules", file)
            }
            // tcpdump leaves all packets to the stack, and so do these.
            Series::FilterKernel => {
                judging(own("ring", device, &cores, "--leave"), "--filter", rules::expression(self.x))
            }
            Series::FilterWorker => {
                judging(own("ring", device, &cores, "--leave"), "--sieve", rules::expression(self.x))
            }
        }
    }

    fn generator(&self, bed: &Bed, tools: &Tools) -> Vec<String> {
        let (device, core) = (bed.sending_device(), bed.cores().generator);
        let rest = format!("--size {} --duration {}", self.size, self.seconds);
        let mut line = match self.traffic {
            Traffic::Clones(queues) => {
                format!("{} generate {device} {rest} --queues {queues}", tools.bench)
            }
            Traffic::Flows(flows) => format!(
                "{} send -i {device} --json --interval 60 --cores {core} --method kernel --flows {flows} {rest}",
                tools.wirelane
            ),
            Traffic::EndingFlows => format!("{} flows {device} {rest}", tools.bench),
            Traffic::Skewed(exponent, elephant) => {
                format!("{} flows {device} {rest} --zipf {exponent} --elephant {elephant}", tools.bench)
            }
        };
        if let Some(pps) = self.pps {
            line += &format!(" --rate {pps:.0}");
        }
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// How long nothing may happen before all that was sent is certain to have been taken.
    fn quiet(&self) -> Duration {
        if self.series == Series::Tcpdump { Receiver::Tcpdump.quiet() } else { Receiver::RingNative.quiet() }
    }

    fn counts(&self, finished: &Finished) -> Result<Counts> {
        if self.series == Series::Tcpdump {
            return Receiver::Tcpdump.counts(finished);
        }
        ensure!(
            finished.status.success(),
            "{} failed ({}): {}",
            self.series.label(),
            finished.status,
            finished.stderr.trim()
        );
        Ok(serde_json::from_value(finished.last_json()?)?)
    }
}

/// How long a receiver may take to begin: the verifier has much to do on a busy machine, and a million rules take time.
const READY: Duration = Duration::from_secs(90);

fn start(bed: &mut Bed, tools: &Tools, ask: &Ask<'_>) -> Result<Vec<Child>> {
    if ask.setup == Setup::A {
        bed.forget_napi();
    }
    let mut children = Vec::new();
    for (cores, words) in ask.receivers(bed, tools) {
        let mut child = Child::spawn(&mut bed.receiver_on(&cores, &words))?;
        bed.favour(child.pid())?;
        if ask.series == Series::Tcpdump {
            process::wait_for_packet_socket(child.pid(), READY)
                .with_context(|| format!("it did not start: {}", words.join(" ")))?;
            // The socket is there before its ring is; a program that sleeps waits for packets.
            process::wait_until_idle(child.pid(), Duration::from_millis(300), Duration::from_secs(5))?;
        } else {
            child.wait_ready(READY)?;
        }
        children.push(child);
    }
    if ask.series == Series::Tuned {
        bed.adopt_napi()?;
    } else {
        bed.place_napi(ask.priority())?;
    }
    Ok(children)
}

fn generate(bed: &Bed, tools: &Tools, ask: &Ask<'_>) -> Result<Value> {
    let child = Child::spawn(&mut bed.generator(&ask.generator(bed, tools), ask.priority()))?;
    bed.favour(child.pid())?;
    let finished = child.finish(Duration::from_secs_f64(ask.seconds + 30.0))?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.stderr.trim());
    finished.last_json()
}

/// Runs one trial.
///
/// # Errors
/// Where a program cannot be started or fails, or an account of ours is not exact.
pub fn run(bed: &mut Bed, tools: &Tools, ask: &Ask<'_>) -> Result<Point> {
    let children = start(bed, tools, ask)?;
    let generator = bed.cores().generator;
    let mut workers = bed.worker_cores(ask.count);
    workers.sort_unstable();
    workers.dedup();
    let times = |cores: &[usize]| cores.iter().map(|core| CoreTime::now(*core)).collect::<Result<Vec<_>>>();
    let cpu = || -> Result<Duration> { children.iter().map(|child| process::run_time(child.pid())).sum() };

    let (cpu_before, napi_before) = (cpu()?, bed.napi_time()?);
    let (generator_before, workers_before) = (times(&[generator])?, times(&workers)?);
    let (children_before, begin) = (time_of_children()?, Instant::now());
    let sent = generate(bed, tools, ask)?;
    let (generator_after, workers_after) = (times(&[generator])?, times(&workers)?);
    let generator_cpu = time_of_children()? - children_before;
    let elapsed = begin.elapsed().as_secs_f64();
    let (busy_cpu, busy_napi) = (cpu()?, bed.napi_time()?);
    for child in &children {
        process::wait_until_idle(child.pid(), ask.quiet(), ask.quiet() + Duration::from_secs(3))?;
    }
    let (cpu_end, napi_end) = (cpu()?, bed.napi_time()?);
    let finished: Vec<Finished> =
        children.into_iter().map(|child| child.terminate(Duration::from_secs(20))).collect::<Result<_>>()?;
    let mut counts: Vec<Counts> = finished.iter().map(|one| ask.counts(one)).collect::<Result<_>>()?;

    let shares = |after: &[CoreTime], before: &[CoreTime]| -> Vec<(f64, f64)> {
        after.iter().zip(before).map(|(after, before)| after.shares(before)).collect()
    };
    let on_generator = shares(&generator_after, &generator_before);
    let on_workers = shares(&workers_after, &workers_before);
    let ours = (busy_cpu - cpu_before + busy_napi.saturating_sub(napi_before)).as_secs_f64() / elapsed;
    let busy: f64 = on_workers.iter().map(|share| share.0).sum();
    let others = [
        on_generator[0].0 - generator_cpu.as_secs_f64() / elapsed,
        (busy - ours) / workers.len() as f64,
        0.0,
    ];
    let steal = on_generator.iter().chain(&on_workers).map(|share| share.1);

    let number =
        |name: &str| sent[name].as_u64().with_context(|| format!("no {name} from the generator: {sent}"));
    let (offered, device_dropped) = (number("offered")?, number("dropped")?);
    ensure!(number("others")? == 0, "somebody else sends in the bench's namespace: {sent}");
    let duration_s = sent["duration_s"].as_f64().context("no duration_s from the generator")?;
    ensure!(duration_s > 0.0, "the generator did not send: {sent}");
    let shed = |one: &Counts| one.analysis.as_ref().map_or(0, |analysis| analysis.shed);
    let taken = |one: &Counts| one.received + one.lost + shed(one) + one.filtered + one.absorbed;
    let came = offered - device_dropped;
    if let (Study::Filters, Series::Tcpdump, [only]) = (ask.study, ask.series, &mut counts[..]) {
        // The socket does not count what its filter rejects; `astray` knows how many that must be.
        only.filtered = came.saturating_sub(only.received + only.lost);
    }
    let sum = |field: &dyn Fn(&Counts) -> u64| counts.iter().map(field).sum::<u64>();
    let (received, lost) = (sum(&|one| one.received), sum(&|one| one.lost));
    let (filtered, absorbed) = (sum(&|one| one.filtered), sum(&|one| one.absorbed));
    let judged = Judged { offered, device_dropped, received, lost, filtered, absorbed };
    let unaccounted: u64 = if ask.series.copies() {
        counts.iter().map(|one| came.abs_diff(taken(one))).sum()
    } else {
        came.abs_diff(sum(&taken))
    };
    let astray = rules::astray(ask.study, ask.series, ask.x, &judged);
    let others_share = others.into_iter().fold(0.0, f64::max);
    let steal_share = steal.fold(0.0, f64::max);
    let signs = Signs {
        reached: ask.pps.map(|pps| offered as f64 / duration_s / pps),
        steal_share,
        others_share,
        generator_share: generator_cpu.as_secs_f64() / duration_s,
    };
    let span_s = counts.iter().filter_map(|one| Some(one.analysis.as_ref()?.span_s)).reduce(f64::max);
    let point = Point {
        study: ask.study,
        setup: ask.setup,
        x: ask.x,
        load: ask.load,
        series: ask.series,
        round: ask.round,
        asked_pps: ask.pps,
        offered,
        device_dropped,
        copies: if ask.series.copies() { counts.len() as u64 } else { 1 },
        received,
        lost,
        shed: sum(&shed),
        filtered,
        absorbed,
        unaccounted: unaccounted + astray,
        duration_s,
        span_s,
        receiver_cpu_s: (cpu_end - cpu_before).as_secs_f64(),
        napi_cpu_s: napi_end.saturating_sub(napi_before).as_secs_f64(),
        generator_cpu_s: generator_cpu.as_secs_f64(),
        analysis: if let [only] = &counts[..] { only.analysis.clone() } else { None },
        others_share,
        steal_share,
        invalid: signs.disturbance(),
        load_average: process::load_average(),
    };
    ensure!(
        point.is_exact() || !ask.series.is_ours(),
        "our account is not exact: {point:?}; receivers: {counts:?}; generator: {sent}"
    );
    Ok(point)
}
