//! One trial: a recording replayed at a rate, who logs it, and where every transaction of it is.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;
use wirelane_tests::{Child, Signal};

use super::Who;
use super::recording::{Recording, STEP_NS};
use crate::bed::{Bed, Priority, Setup};
use crate::process::{self, CoreTime};
use crate::receive::sys::time_of_children;
use crate::trial::{Signs, Tools};

/// Buffer of each in MiB: httpry has libpcap's usual one.
const BUFFER: u32 = 2;
/// How long a program may take to be ready, and to end.
const LIMIT: Duration = Duration::from_secs(20);
/// httpry wants blocks of libpcap's ring only when they are full: packets that are no HTTP, more of them than a block holds
/// (256 KiB), bring it the last of what was sent before.
const FILLERS: &str =
    "--proto tcp --size 1514 --packets 600 --rate 30k --method socket --dst-mac 02:00:00:00:00:02";

/// What is tried.
pub struct Trial {
    /// Who works where.
    pub setup: Setup,
    /// Who logs.
    pub who: Who,
    /// Packets per second; none: as fast as can be.
    pub rate: Option<f64>,
    /// How long about.
    pub seconds: f64,
}

/// What happened.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Who works where.
    pub setup: Setup,
    /// Who logs.
    pub who: Who,
    /// Packets per second that were asked for; none: as fast as can be.
    pub asked_pps: Option<f64>,
    /// Packets that were sent.
    pub offered: u64,
    /// Of these, dropped by the device's queue before anybody saw them.
    pub device_dropped: u64,
    /// Transactions that were sent, as the server has logged them.
    pub requests: u64,
    /// Of these, with request and response in the log.
    pub logged: u64,
    /// Packets that were lost, by its own count.
    pub lost: u64,
    /// Packets that came up from the kernel, where it tells.
    pub came_up: Option<u64>,
    /// Seconds for which was sent.
    pub duration_s: f64,
    /// CPU time of who logs.
    pub receiver_cpu_s: f64,
    /// CPU time of NAPI's thread (setup B).
    pub napi_cpu_s: f64,
    /// CPU time of the generator, and in setup A of NAPI.
    pub generator_cpu_s: f64,
    /// Why it says nothing; none: it counts.
    pub invalid: Option<&'static str>,
}

impl Point {
    /// The part of the transactions that is not in the log.
    pub fn loss(&self) -> f64 {
        (1.0 - self.logged as f64 / self.requests.max(1) as f64).max(0.0)
    }

    /// Requests per second that are in the log.
    pub fn logged_rps(&self) -> f64 {
        self.logged as f64 / self.duration_s
    }

    /// Microseconds of CPU time per request that is in the log: who logs, and NAPI's thread.
    pub fn us_per_request(&self) -> [f64; 2] {
        [self.receiver_cpu_s, self.napi_cpu_s].map(|seconds| seconds * 1e6 / self.logged.max(1) as f64)
    }
}

/// A file of the bench's, in memory.
fn place(name: &str) -> PathBuf {
    PathBuf::from("/dev/shm").join(format!("wirelane-bench-{}-http-{name}", std::process::id()))
}

/// What one of them has logged.
struct Logged {
    transactions: u64,
    lost: u64,
    seen: Option<u64>,
    came_up: Option<u64>,
}

impl Trial {
    /// Runs it.
    ///
    /// # Errors
    /// Where a program cannot be started or fails, or something of ours is not exact.
    pub fn run(&self, bed: &mut Bed, tools: &Tools, recording: &Recording) -> Result<Point> {
        // As fast as can be is no rate: then it is some copies at once.
        let wanted = self.rate.unwrap_or(2e5) * self.seconds / recording.packets() as f64;
        let copies = (wanted.ceil() as u64).max(1);
        let file = place("replay.pcap");
        recording.write(&file, copies)?;
        let point = self.replay(bed, tools, recording, copies);
        fs::remove_file(&file).with_context(|| file.display().to_string())?;
        point
    }

    fn replay(&self, bed: &mut Bed, tools: &Tools, recording: &Recording, copies: u64) -> Result<Point> {
        let priority = if self.rate.is_some() { Priority::First } else { Priority::Fair };
        let child = self.start(bed, tools)?;
        bed.place_napi(priority)?;
        let cores = bed.cores();
        let times = || -> Result<[CoreTime; 2]> {
            Ok([CoreTime::now(cores.generator)?, CoreTime::now(cores.receiver)?])
        };
        let (cpu, napi) = (process::run_time(child.pid())?, bed.napi_time()?);
        let (before, children, start) = (times()?, time_of_children()?, Instant::now());
        let speed = self.rate.map_or("max".to_owned(), |rate| format!("{:.9}x", rate * STEP_NS as f64 / 1e9));
        let words = format!("--replay {} --speed {speed}", place("replay.pcap").display());
        let sent = generate(bed, tools, &words, priority)?;
        let (after, generator, elapsed) = (times()?, time_of_children()? - children, start.elapsed());
        let busy = (process::run_time(child.pid())? - cpu) + bed.napi_time()?.saturating_sub(napi);
        let napi_cpu = bed.napi_time()?.saturating_sub(napi);
        if self.who == Who::Httpry {
            generate(bed, tools, FILLERS, Priority::Fair)?;
        }
        let quiet = Duration::from_millis(300);
        process::wait_until_idle(child.pid(), quiet, quiet + Duration::from_secs(5))?;
        let receiver_cpu = process::run_time(child.pid())? - cpu;
        let logged = self.finish(child)?;

        let count = |name: &str| sent[name].as_u64().with_context(|| format!("no {name}: {sent}"));
        let (offered, device_dropped) = (count("offered")?, count("dropped")?);
        ensure!(count("others")? == 0, "somebody else sends in the bench's namespace: {sent}");
        ensure!(offered == copies * recording.packets(), "the replay left out packets: {sent}");
        let duration_s = sent["duration_s"].as_f64().with_context(|| format!("no duration_s: {sent}"))?;
        let ours = [generator, busy];
        let share = |core: usize| {
            let (used, steal) = after[core].shares(&before[core]);
            (used - ours[core].as_secs_f64() / elapsed.as_secs_f64(), steal)
        };
        let signs = Signs {
            reached: self.rate.map(|asked| offered as f64 / duration_s / asked),
            others_share: share(0).0.max(share(1).0),
            steal_share: share(0).1.max(share(1).1),
            generator_share: generator.as_secs_f64() / duration_s,
        };
        let point = Point {
            setup: self.setup,
            who: self.who,
            asked_pps: self.rate,
            offered,
            device_dropped,
            requests: copies * recording.requests,
            logged: logged.transactions,
            lost: logged.lost,
            came_up: logged.came_up,
            duration_s,
            receiver_cpu_s: receiver_cpu.as_secs_f64(),
            napi_cpu_s: napi_cpu.as_secs_f64(),
            generator_cpu_s: generator.as_secs_f64(),
            invalid: signs.disturbance(),
        };
        // GRO makes one packet of several before tc sees them.
        let (most, merged) = (offered - device_dropped, self.who.hook() == Some("tc"));
        let arrived = logged.seen.is_none_or(|seen| seen == most || merged && seen < most);
        let whole = point.lost > 0 || device_dropped > 0 || point.logged == point.requests;
        if self.who.is_ours() && !(arrived && whole && point.logged <= point.requests) {
            bail!("transactions of ours are missing: {point:?}; seen: {:?}", logged.seen);
        }
        Ok(point)
    }

    /// Starts who logs; when this returns, it listens.
    fn start(&self, bed: &mut Bed, tools: &Tools) -> Result<Child> {
        let log = place("log");
        let (device, log) = (bed.device(), log.display());
        let line = match self.who.hook() {
            Some(hook) => format!(
                "{} http -i {device} --json --quiet --hook {hook} {} --ring-size {BUFFER} --interval 60 --overwrite --log \
                 combined:{log} --analysis {}",
                tools.wirelane,
                if hook == "native" { "--take" } else { "" },
                if self.who.is_below() { "kernel" } else { "user" }
            ),
            None => format!("httpry -i {device} -o {log} tcp"),
        };
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut child = Child::spawn(&mut bed.receiver(&words))?;
        bed.favour(child.pid())?;
        if self.who.is_ours() {
            child.wait_ready(LIMIT)?;
        } else {
            process::wait_for_packet_socket(child.pid(), LIMIT)
                .with_context(|| format!("it did not start: {line}"))?;
        }
        process::wait_until_idle(child.pid(), Duration::from_millis(300), Duration::from_secs(5))?;
        Ok(child)
    }

    /// Ends who logs; what is in its log.
    fn finish(&self, child: Child) -> Result<Logged> {
        let logged = if self.who.is_ours() {
            let finished = child.terminate(LIMIT)?;
            ensure!(finished.status.success(), "wirelane http: {}", finished.stderr);
            of_ours(&finished.last_json()?)
        } else {
            // At SIGTERM it ends without writing what it still has.
            child.signal(Signal::Interrupt)?;
            let finished = child.finish(LIMIT)?;
            let log = fs::read_to_string(place("log"))?;
            let dropped = finished.stderr.lines().find_map(|line| {
                line.split(", ").find_map(|part| part.strip_suffix(" packets dropped"))?.parse().ok()
            });
            let lost =
                dropped.with_context(|| format!("httpry said something unexpected: {}", finished.stderr))?;
            Ok(Logged { transactions: of_httpry(&log), lost, seen: None, came_up: None })
        };
        // Written by whoever it was.
        let _ = fs::remove_file(place("log"));
        logged
    }
}

/// Sends from the other end; what the generator reports.
fn generate(bed: &Bed, tools: &Tools, words: &str, priority: Priority) -> Result<Value> {
    let line = format!("{} send -i {} --json {words}", tools.wirelane, bed.sending_device());
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let child = Child::spawn(&mut bed.generator(&words, priority))?;
    bed.favour(child.pid())?;
    let finished = child.finish(Duration::from_secs(60))?;
    ensure!(finished.status.success(), "the generator failed: {}", finished.stderr.trim());
    finished.last_json()
}

/// Of our last object: the ledger must balance, and the log have a line for each transaction.
fn of_ours(last: &Value) -> Result<Logged> {
    let field = |name: &str| last[name].as_u64().with_context(|| format!("no {name} in {last}"));
    let (seen, lost, delivered) = (field("seen")?, field("lost")?, field("delivered")?);
    let elsewhere = field("filtered")? + field("absorbed")? + field("shed")?;
    ensure!(seen == elsewhere + lost + delivered, "the ledger does not balance: {last}");
    let lines = last["logs"][0]["lines"].as_u64();
    ensure!(lines == Some(field("transactions")?), "the log is not what was found: {last}");
    let whole = field("transactions")? - field("without_request")? - field("without_response")?;
    Ok(Logged { transactions: whole, lost, seen: Some(seen), came_up: Some(delivered + lost) })
}

/// Lines of requests and of responses, of which it pairs none.
pub fn of_httpry(log: &str) -> u64 {
    let of = |sign: &str| log.lines().filter(|line| line.split('\t').nth(3) == Some(sign)).count() as u64;
    of(">").min(of("<"))
}
