//! The bed of a measurement: two namespaces with a veth pair of one RX queue between them, in one of two setups.
//!
//! ```text
//! A   core 0: generator, and NAPI in its context        core 1: receiver
//! B   core 0: generator                                 core 1: NAPI's kernel thread, and the receiver
//! ```
//!
//! In A each packet's whole cost in the kernel slows the generator, so nothing is lost on the way to the hook. In
//! B the generator runs on, and what the device's queue of 256 frames cannot hold is dropped before the hook.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use wirelane_tests::{Lab, LabOptions};

use crate::process;

/// Who works on which core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
pub enum Setup {
    /// Generator and NAPI on one core, receiver on the other
    A,
    /// Generator on one core, NAPI's kernel thread and receiver on the other
    B,
}

impl Setup {
    /// `A` or `B`.
    pub fn name(self) -> &'static str {
        match self {
            Setup::A => "A",
            Setup::B => "B",
        }
    }
}

/// The cores of a measurement, and how eager its processes are.
#[derive(Clone, Copy, Debug)]
pub struct Cores {
    /// Where the generator runs.
    pub generator: usize,
    /// Where the receiver runs.
    pub receiver: usize,
    /// Nice value of generator, receiver and NAPI thread alike.
    pub nice: i32,
}

/// Who goes first on a core: the generator on its own, NAPI's thread on the receiver's.
///
/// The receiver always runs under the normal policy with the nice value of [`Cores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// All share, with the same nice value: for trials at full speed. A card's NAPI works so too when it is overloaded,
    /// in ksoftirqd.
    Fair,
    /// Generator and NAPI go first (SCHED_FIFO, priority 1): for trials at a rate. A card's NAPI works so too while it
    /// keeps up, as a soft interrupt. As an equal thread it would wait until whoever has the core has used up its
    /// slice, which Linux does not cut short for a thread that wakes (RUN_TO_PARITY in kernel/sched/features.h): 2 to
    /// 4 ms, in which a veth's queue of 256 packets overflows from 100,000 packets a second on, whatever receives.
    First,
}

/// A bed, removed when dropped.
pub struct Bed {
    lab: Lab,
    cores: Cores,
    /// Where workers run, and NAPI's threads in setup B: the receiver's core, or several in the studies.
    workers: Vec<usize>,
    /// NAPI's kernel threads in setup B, one per RX queue.
    napi: Vec<u32>,
}

impl Bed {
    /// Builds a bed for frames of up to `mtu` + 14 bytes.
    ///
    /// # Errors
    /// Where the kernel refuses, or NAPI has no kernel thread in setup B.
    pub fn new(setup: Setup, mtu: u32, cores: Cores) -> Result<Bed> {
        Bed::with_queues(setup, mtu, cores, vec![cores.receiver], 1)
    }

    /// The same with so many RX queues, and workers on these cores in turn, one or more.
    ///
    /// # Errors
    /// As [`Bed::new`].
    pub fn with_queues(
        setup: Setup,
        mtu: u32,
        cores: Cores,
        workers: Vec<usize>,
        queues: u32,
    ) -> Result<Bed> {
        ensure!(!workers.is_empty(), "no core for workers");
        let mut lab = Lab::with(&LabOptions { mtu, queues, ..LabOptions::default() })?;
        let receiver = lab.receiver().clone();
        // Kernel threads are named after the device, and other labs have an rx0 too.
        let device = format!("wlb{}", std::process::id());
        let (namespace, old) = (&receiver.namespace, &receiver.device);
        lab.exec(namespace, &["ip", "link", "set", old, "down"])?;
        lab.exec(namespace, &["ip", "link", "set", old, "name", &device])?;
        lab.links[0].receiver.device.clone_from(&device);
        lab.exec(namespace, &["ip", "link", "set", &device, "up"])?;
        // Without an XDP program a veth has NAPI, and takes live frames, only while GRO is on. The other end hears of it
        // only where it is turned on while the device is up (veth_set_features() in drivers/net/veth.c).
        lab.exec(namespace, &["ethtool", "-K", &device, "gro", "on"])?;
        if setup == Setup::B {
            // The kernel knows no NAPI to thread before the device is up.
            let write = format!("echo 1 > /sys/class/net/{device}/threaded");
            let words = ["sh", "-c", &write];
            lab.exec(namespace, &words).context("setup B needs threaded NAPI (Linux 5.12)")?;
        }
        let mut bed = Bed { lab, cores, workers, napi: Vec::new() };
        bed.wait_for_carrier()?;
        if setup == Setup::B {
            bed.napi = bed.find_napi_threads()?;
        }
        Ok(bed)
    }

    /// Who captures there by us.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn groups(&self) -> Result<Vec<wirelane::groups::Group>> {
        Ok(self.lab.enter(&self.lab.receiver().namespace, wirelane::groups::list)??)
    }

    /// The device to receive on.
    pub fn device(&self) -> &str {
        &self.lab.receiver().device
    }

    /// A command in the receiver's namespace, on its core. Its pid is the program's.
    pub fn receiver(&self, words: &[String]) -> Command {
        self.receiver_on(&[self.cores.receiver], words)
    }

    /// The same on these cores.
    pub fn receiver_on(&self, cores: &[usize], words: &[String]) -> Command {
        self.pinned(&self.lab.receiver().namespace, cores, words)
    }

    /// The cores of the first so many workers, which they take in turn.
    pub fn worker_cores(&self, count: usize) -> Vec<usize> {
        self.workers.iter().copied().cycle().take(count).collect()
    }

    /// The device to send from.
    pub fn sending_device(&self) -> &str {
        &self.lab.sender().device
    }

    /// The cores.
    pub fn cores(&self) -> Cores {
        self.cores
    }

    /// A command in the generator's namespace, on its core. Its pid is the program's.
    pub fn generator(&self, words: &[String], priority: Priority) -> Command {
        let first: &[&str] = if priority == Priority::First { &["chrt", "-f", "1"] } else { &[] };
        let words: Vec<String> =
            first.iter().map(|word| (*word).to_owned()).chain(words.iter().cloned()).collect();
        self.pinned(&self.lab.sender().namespace, &[self.cores.generator], &words)
    }

    fn pinned(&self, namespace: &str, cores: &[usize], words: &[String]) -> Command {
        let mut command = self.lab.command(namespace, "nice");
        // A session of its own, because Linux weighs sessions against each other before processes: see `favour`.
        let cores = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let nice = self.cores.nice.to_string();
        command.args(["-n", &nice, "setsid", "taskset", "-c", &cores]).args(words);
        command
    }

    /// Gives the session of a process that was started here its nice value too: with autogroups (sched(7)), that of
    /// the process counts within its session only. Waits until the session has its autogroup.
    ///
    /// # Errors
    /// Where it gets none, or the value is refused.
    pub fn favour(&self, pid: u32) -> Result<()> {
        if !process::has_own_autogroup(pid, Duration::from_secs(5))? {
            return Ok(());
        }
        let path = format!("/proc/{pid}/autogroup");
        fs::write(&path, self.cores.nice.to_string()).with_context(|| path)
    }

    /// Makes sure that NAPI's threads are on their cores and have their priority, since they are new ones where attaching
    /// a program restarted NAPI. To be called when the receiver is ready.
    ///
    /// # Errors
    /// Where they cannot be found or moved.
    pub fn place_napi(&mut self, priority: Priority) -> Result<()> {
        if self.napi.is_empty() {
            return Ok(());
        }
        self.napi = self.find_napi_threads()?;
        for (pid, core) in self.napi.iter().zip(self.workers.iter().cycle()) {
            let (core, nice, thread) = (core.to_string(), self.cores.nice.to_string(), pid.to_string());
            let policy: &[&str] = match priority {
                Priority::Fair => &["chrt", "-o", "-p", "0", &thread],
                Priority::First => &["chrt", "-f", "-p", "1", &thread],
            };
            for words in [&["taskset", "-pc", &core, &thread], policy, &["renice", &nice, "-p", &thread]] {
                let output =
                    Command::new(words[0]).args(&words[1..]).output().context(words[0].to_owned())?;
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                ensure!(output.status.success(), "{}: {message}", words.join(" "));
            }
        }
        Ok(())
    }

    /// Knows the threads that NAPI has from the receiver, which has placed them too; they get the nice value of all. In
    /// setup A, where they are gone after the trial.
    ///
    /// # Errors
    /// Where there are none.
    pub fn adopt_napi(&mut self) -> Result<()> {
        self.napi = self.find_napi_threads()?;
        for pid in &self.napi {
            let words = ["-n", &self.cores.nice.to_string(), "-p", &pid.to_string()];
            let output = Command::new("renice").args(words).output().context("renice")?;
            ensure!(output.status.success(), "renice: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Forgets them again.
    pub fn forget_napi(&mut self) {
        self.napi.clear();
    }

    /// CPU time of NAPI's threads so far; zero in setup A, where NAPI has none of its own.
    ///
    /// # Errors
    /// Where one has ended.
    pub fn napi_time(&self) -> Result<Duration> {
        self.napi.iter().map(|pid| process::run_time(*pid)).sum()
    }

    /// In the order of the RX queues, in which the kernel starts them.
    fn find_napi_threads(&self) -> Result<Vec<u32>> {
        let start = format!("napi/{}", self.device());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let path: PathBuf = entry.path().join("comm");
            if fs::read_to_string(path).is_ok_and(|name| name.starts_with(&start)) {
                found.push(pid);
            }
        }
        ensure!(
            !found.is_empty(),
            "NAPI of {} has no kernel thread, though threaded NAPI was asked for",
            self.device()
        );
        found.sort_unstable();
        Ok(found)
    }

    fn wait_for_carrier(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(5);
        for side in [self.lab.sender(), self.lab.receiver()] {
            loop {
                let state = self.lab.exec(&side.namespace, &["ip", "link", "show", &side.device])?;
                if state.contains("state UP") && !state.contains("qdisc noop ") {
                    break;
                }
                ensure!(Instant::now() < end, "{} did not come up: {state}", side.device);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}
