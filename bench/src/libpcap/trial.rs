//! One trial of a program of libpcap's, and the account of its packets.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use wirelane_tests::Child;

use super::{Whose, Work};
use crate::bed::{Bed, Priority, Setup};
use crate::process::{self, CoreTime};
use crate::receive::sys::time_of_children;
use crate::receiver::tcpdump;
use crate::trial::{Signs, Tools};

/// The flows of the traffic, and the first one's port; a filter accepts the one of `WANTED`.
const FLOWS: u64 = 256;
const FIRST_PORT: u64 = 1024;
const WANTED: u64 = 3;

/// How long a program may take to be ready, to take what is left, and to end.
const LIMIT: Duration = Duration::from_secs(10);

/// What is tried.
pub(super) struct Trial {
    pub(super) setup: Setup,
    pub(super) work: Work,
    pub(super) whose: Whose,
    pub(super) size: u32,
    pub(super) rate: Option<f64>,
    pub(super) seconds: f64,
}

/// What happened. Counts are packets.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Who works where.
    pub setup: Setup,
    /// What the program does.
    pub work: Work,
    /// Whose libpcap it uses.
    pub whose: Whose,
    /// Bytes of a frame.
    pub size: u32,
    /// Packets per second that were asked for; none: as fast as can be.
    pub asked_pps: Option<f64>,
    /// Made by the generator.
    pub offered: u64,
    /// Of these, dropped by the device's queue before anybody saw them.
    pub device_dropped: u64,
    /// Of those that were made, wanted by the filter.
    pub wanted: u64,
    /// That the program had.
    pub received: u64,
    /// Dropped, as it says itself.
    pub lost: u64,
    /// Seconds for which the generator sent.
    pub duration_s: f64,
    /// CPU time of the program.
    pub receiver_cpu_s: f64,
    /// CPU time of NAPI's thread (setup B).
    pub napi_cpu_s: f64,
    /// CPU time of the generator, and in setup A of NAPI.
    pub generator_cpu_s: f64,
    /// Why it says nothing; none: it counts.
    pub invalid: Option<&'static str>,
}

impl Point {
    /// The part of the packets that was not judged, or was wanted and not received.
    pub fn loss(&self) -> f64 {
        let dropped = self.device_dropped as f64 / self.offered.max(1) as f64;
        let missing = 1.0 - self.received as f64 / self.wanted.max(1) as f64;
        dropped.max(missing).max(0.0)
    }

    /// Packets per second that were judged, whether wanted or not, but for those that were lost.
    pub fn judged_pps(&self) -> f64 {
        self.judged() as f64 / self.duration_s
    }

    /// Nanoseconds of the program's CPU time per packet that was judged.
    pub fn receiver_ns(&self) -> f64 {
        self.receiver_cpu_s * 1e9 / self.judged().max(1) as f64
    }

    /// The same of NAPI's thread.
    pub fn napi_ns(&self) -> f64 {
        self.napi_cpu_s * 1e9 / self.judged().max(1) as f64
    }

    fn judged(&self) -> u64 {
        (self.offered - self.device_dropped).saturating_sub(self.lost)
    }
}

impl Trial {
    pub(super) fn run(&self, bed: &mut Bed, tools: &Tools) -> Result<Point> {
        let priority = if self.rate.is_some() { Priority::First } else { Priority::Fair };
        let child = self.start(bed, tools)?;
        bed.place_napi(priority)?;
        let cores = bed.cores();
        let times = || -> Result<[CoreTime; 2]> {
            Ok([CoreTime::now(cores.generator)?, CoreTime::now(cores.receiver)?])
        };
        let (cpu, napi) = (process::run_time(child.pid())?, bed.napi_time()?);
        let (before, children, start) = (times()?, time_of_children()?, Instant::now());
        let sent = self.generate(bed, tools)?;
        let (after, generator, elapsed) = (times()?, time_of_children()? - children, start.elapsed());
        let busy = (process::run_time(child.pid())? - cpu) + bed.napi_time()?.saturating_sub(napi);
        // tcpdump has the system's libpcap keep a block that is not full for a second.
        let quiet = Duration::from_millis(if self.whose == Whose::System { 1200 } else { 300 });
        process::wait_until_idle(child.pid(), quiet, quiet + Duration::from_secs(3))?;
        let receiver_cpu = process::run_time(child.pid())? - cpu;
        let napi_cpu = bed.napi_time()?.saturating_sub(napi);
        let (received, lost) = self.finish(child)?;

        let count = |name: &str| sent[name].as_u64().with_context(|| format!("no {name}: {sent}"));
        let (offered, device_dropped) = (count("offered")?, count("dropped")?);
        ensure!(count("others")? == 0, "somebody else sends in the bench's namespace: {sent}");
        let wanted = match self.work {
            Work::Filter => (offered + FLOWS - 1 - WANTED) / FLOWS,
            Work::Write | Work::Flows => offered,
        };
        let ours = [generator, busy];
        let share = |core: usize| {
            let (used, steal) = after[core].shares(&before[core]);
            (used - ours[core].as_secs_f64() / elapsed.as_secs_f64(), steal)
        };
        let duration_s = sent["duration_s"].as_f64().with_context(|| format!("no duration_s: {sent}"))?;
        let signs = Signs {
            reached: self.rate.map(|asked| offered as f64 / (asked * self.seconds)),
            others_share: share(0).0.max(share(1).0),
            steal_share: share(0).1.max(share(1).1),
            generator_share: generator.as_secs_f64() / duration_s,
        };
        let point = Point {
            setup: self.setup,
            work: self.work,
            whose: self.whose,
            size: self.size,
            asked_pps: self.rate,
            offered,
            device_dropped,
            wanted,
            received,
            lost,
            duration_s,
            receiver_cpu_s: receiver_cpu.as_secs_f64(),
            napi_cpu_s: napi_cpu.as_secs_f64(),
            generator_cpu_s: generator.as_secs_f64(),
            invalid: signs.disturbance(),
        };
        let exact = received + lost + device_dropped == offered;
        if self.whose.is_ours() && self.work != Work::Filter && !exact {
            bail!("packets of ours are missing: {point:?}");
        }
        Ok(point)
    }

    /// Starts the program; when this returns, it captures.
    fn start(&self, bed: &mut Bed, tools: &Tools) -> Result<Child> {
        let (device, buffer) = (bed.device(), tools.buffer);
        let program = match self.work {
            Work::Write => format!("tcpdump -n -i {device} -B {} -w /dev/null", buffer * 1024),
            Work::Filter => format!(
                "tcpdump -n -i {device} -B {} -w /dev/null udp src port {}",
                buffer * 1024,
                FIRST_PORT + WANTED
            ),
            Work::Flows => {
                format!("softflowd -d -i {device} -c {} -p {}", control().display(), pid_file().display())
            }
        };
        let line = match self.whose {
            Whose::System => program,
            Whose::Ours => format!("{} run -- {program}", tools.wirelane),
            Whose::Taken => format!("{} run --take -- {program}", tools.wirelane),
        };
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut child = Child::spawn(&mut bed.receiver(&words))?;
        bed.favour(child.pid())?;
        match self.whose {
            Whose::System => process::wait_for_packet_socket(child.pid(), LIMIT),
            Whose::Ours => wait_for_groups(bed, &mut child, 2, self.work == Work::Filter),
            Whose::Taken => wait_for_groups(bed, &mut child, 1, self.work == Work::Filter),
        }
        .with_context(|| format!("it did not start: {line}"))?;
        // A program that sleeps waits for packets.
        process::wait_until_idle(child.pid(), Duration::from_millis(300), Duration::from_secs(5))?;
        Ok(child)
    }

    /// The generator is alone on its core, or NAPI works in its time. It never goes first: live frames take a whole core,
    /// and what the kernel has to do there beside them would starve.
    fn generate(&self, bed: &Bed, tools: &Tools) -> Result<serde_json::Value> {
        let mut line = format!(
            "{} send -i {} --json --interval 60 --cores {} --method kernel --size {} --duration {} --pattern ports \
             --flows {FLOWS} --src-port {FIRST_PORT}",
            tools.wirelane,
            bed.sending_device(),
            bed.cores().generator,
            self.size,
            self.seconds
        );
        if let Some(rate) = self.rate {
            line += &format!(" --rate {rate:.0}");
        }
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let child = Child::spawn(&mut bed.generator(&words, Priority::Fair))?;
        bed.favour(child.pid())?;
        let finished = child.finish(Duration::from_secs_f64(self.seconds + 20.0))?;
        ensure!(finished.status.success(), "the generator failed: {}", finished.stderr.trim());
        finished.last_json()
    }

    /// Ends the program; what it has received, and lost.
    fn finish(&self, child: Child) -> Result<(u64, u64)> {
        if self.work == Work::Flows {
            let output = Command::new("softflowctl").arg("-c").arg(control()).arg("statistics").output();
            let text = String::from_utf8_lossy(&output.context("softflowctl")?.stdout).into_owned();
            child.terminate(LIMIT)?;
            let number = |words: &str| {
                let line = text.lines().find_map(|line| line.trim().strip_prefix(words));
                let first = line.and_then(|rest| rest.split_whitespace().next());
                first
                    .and_then(|number| number.parse::<u64>().ok())
                    .with_context(|| format!("softflowd said something unexpected: {text}"))
            };
            // The system's libpcap keeps the last packets from it until a block of its ring is full: they are not lost.
            let lost = number("Packets dropped by libpcap:")?;
            return Ok((number("Packets received by libpcap:")?.saturating_sub(lost), lost));
        }
        let finished = child.terminate(LIMIT)?;
        let counts = tcpdump(&finished.stderr)
            .with_context(|| format!("tcpdump said something unexpected: {}", finished.stderr))?;
        Ok((counts.received, counts.lost))
    }
}

/// Waits until the process captures by us, with a group for each direction.
fn wait_for_groups(bed: &Bed, child: &mut Child, directions: usize, filtered: bool) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let groups = bed.groups()?;
        // Each has its filter.
        let its = groups.iter().filter(|group| group.pid == child.pid());
        if its.filter(|group| group.filter.is_some() || !filtered).count() == directions {
            return Ok(());
        }
        ensure!(child.is_running()?, "it has ended");
        ensure!(Instant::now() < end, "it does not capture within {LIMIT:?}; groups: {groups:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where softflowd is asked what it has counted, and where it writes its number.
fn control() -> PathBuf {
    std::env::temp_dir().join(format!("wirelane-bench-{}-softflowd.ctl", std::process::id()))
}

fn pid_file() -> PathBuf {
    control().with_extension("pid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_what_was_not_judged_or_wanted_and_not_received() {
        let point = Point {
            setup: Setup::B,
            work: Work::Filter,
            whose: Whose::Ours,
            size: 60,
            asked_pps: None,
            offered: 25_600,
            device_dropped: 0,
            wanted: 100,
            received: 100,
            lost: 0,
            duration_s: 0.5,
            receiver_cpu_s: 0.001,
            napi_cpu_s: 0.0018,
            generator_cpu_s: 0.5,
            invalid: None,
        };
        assert!(point.loss().abs() < 1e-12 && (point.judged_pps() - 51_200.0).abs() < 1e-6);
        assert!((point.receiver_ns() - 39.0625).abs() < 1e-6);
        assert!((Point { received: 90, ..point.clone() }.loss() - 0.1).abs() < 1e-12);
        // What the device's queue has dropped may have been none of those that are wanted.
        assert!((Point { device_dropped: 256, ..point }.loss() - 0.01).abs() < 1e-12);
    }
}
