//! One trial: a receiver, the generator for a while, and where every packet went.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use wirelane_tests::numbers::last_of;
use wirelane_tests::{Child, Lab, LabOptions};

use crate::receiver::{Receiver, wirelane_binary};

/// Which core does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Setup {
    /// Generator and NAPI on core 0, the receiver on core 1: a packet's whole cost slows the generator.
    A,
    /// The generator alone on core 0; NAPI's kernel thread and the receiver share core 1: overload.
    B,
}

/// How the generator makes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Method {
    /// Live frames, inside the kernel.
    Kernel,
    /// sk_buffs through a packet socket.
    Socket,
}

impl Setup {
    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Setup::A => "A",
            Setup::B => "B",
        }
    }
}

impl Method {
    /// As `wirelane send --method` has it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Kernel => "kernel",
            Method::Socket => "socket",
        }
    }
}

/// The largest frame that a live frame can be: a page without headroom and tail (net/bpf/test_run.c).
pub const LARGEST_LIVE_FRAME: u32 = 3300;

/// What a row of the results is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which core does what.
    pub setup: Setup,
    /// How packets are made.
    pub method: Method,
    /// Bytes of a frame without FCS.
    pub size: u32,
}

/// Where the packets of one trial went.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Packets that the generator made.
    pub offered: u64,
    /// Packets that the device took; the others found its queue full.
    pub sent: u64,
    /// Packets that reached the receiving program.
    pub received: u64,
    /// Packets that the receiver's counters call lost, where it has such counters.
    pub dropped: Option<u64>,
    /// Seconds that the generator sent for.
    pub seconds: f64,
    /// CPU time of the receiver's process.
    pub cpu: Duration,
    /// Whether the generator could not hold the rate that was asked for.
    pub fell_short: bool,
}

impl Outcome {
    /// Packets per second that the program received.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.seconds
    }

    /// Share of the offered packets that was not received.
    pub fn loss(&self) -> f64 {
        1.0 - self.received as f64 / (self.offered.max(1)) as f64
    }

    /// Packets of those sent that neither were received nor are in the receiver's drop counters.
    pub fn unaccounted(&self) -> Option<i64> {
        self.dropped.map(|dropped| self.sent as i64 - (self.received + dropped) as i64)
    }

    /// CPU time of the receiver per packet received, in nanoseconds.
    pub fn cpu_ns(&self) -> f64 {
        self.cpu.as_nanos() as f64 / self.received.max(1) as f64
    }
}

/// A veth pair with one RX queue, set up for one of the setups.
pub struct Bed {
    lab: Lab,
    jumbo: bool,
}

impl Bed {
    /// Builds it. Needs root.
    ///
    /// # Errors
    /// Where the kernel refuses, or the NAPI thread is not found.
    pub fn new(setup: Setup, jumbo: bool) -> Result<Bed> {
        let mtu = if jumbo { 9000 } else { 1500 };
        let lab = Lab::with(&LabOptions { mtu, ..LabOptions::default() })?;
        let (namespace, device) = (&lab.receiver().namespace, &lab.receiver().device);
        // On a veth there is a NAPI instance only while there is an XDP program or GRO. It does not merge the
        // generator's UDP.
        lab.exec(namespace, &["ethtool", "-K", device, "gro", "on"])?;
        if setup == Setup::B {
            let before = napi_threads(device)?;
            let path = format!("/sys/class/net/{device}/threaded");
            lab.exec(namespace, &["sh", "-c", &format!("echo 1 > {path}")])?;
            let new: Vec<u32> = napi_threads(device)?.difference(&before).copied().collect();
            ensure!(new.len() == 1, "expected one new NAPI thread for {device}, found {new:?}");
            let status = Command::new("taskset").args(["-pc", "1", &new[0].to_string()]).output()?;
            ensure!(status.status.success(), "pinning the NAPI thread failed");
        }
        Ok(Bed { lab, jumbo })
    }

    /// Runs one trial for `duration`, at `rate` packets a second or at full speed.
    ///
    /// # Errors
    /// Where the receiver or the generator fails, or our ledger is not exact.
    pub fn trial(
        &self,
        receiver: Receiver,
        case: Case,
        rate: Option<f64>,
        duration: Duration,
    ) -> Result<Outcome> {
        let running = receiver.start(&self.lab, self.jumbo)?;
        let sender = self.lab.sender();
        let (size, seconds) = (case.size.to_string(), format!("{:.3}", duration.as_secs_f64()));
        let mut words = vec![
            "send",
            "-i",
            &sender.device,
            "--size",
            &size,
            "--duration",
            &seconds,
            "--method",
            case.method.name(),
            "--cores",
            "0",
            "--json",
        ];
        let rate = rate.map(|rate| format!("{rate:.0}"));
        if let Some(rate) = &rate {
            words.extend(["--rate", rate]);
        }
        let mut command = self.lab.command(&sender.namespace, wirelane_binary()?);
        let child = Child::spawn(command.env("RUST_BACKTRACE", "0").args(&words))?;
        let report = last_of(&child.finish(duration + Duration::from_secs(20))?).context("the generator")?;
        let reading = running.finish()?;
        let count = |name: &str| report[name].as_u64().with_context(|| format!("no {name} in {report}"));
        let outcome = Outcome {
            offered: count("offered")?,
            sent: count("sent")?,
            received: reading.received,
            dropped: reading.dropped,
            seconds: report["duration_s"].as_f64().context("no duration_s")?,
            cpu: reading.cpu,
            fell_short: report["fell_short"] == true,
        };
        ensure!(outcome.seconds > 0.0, "the generator did not send");
        // The generator's device is ours alone, so what it counts is what must be in the ledger.
        if receiver.is_ours() && outcome.unaccounted() != Some(0) {
            bail!("{}: the ledger is not exact: {outcome:?}; {report}", receiver.name());
        }
        Ok(outcome)
    }
}

/// Threads that poll devices of this name, of all namespaces.
fn napi_threads(device: &str) -> Result<BTreeSet<u32>> {
    let prefix = format!("napi/{device}-");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Processes end while they are being listed.
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with(&prefix)) {
            found.insert(pid);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_has_a_place() {
        let outcome = Outcome {
            offered: 1000,
            sent: 990,
            received: 900,
            dropped: Some(80),
            seconds: 0.5,
            cpu: Duration::from_micros(90),
            fell_short: false,
        };
        assert_eq!(outcome.unaccounted(), Some(10));
        assert!((outcome.loss() - 0.1).abs() < 1e-9);
        assert!((outcome.received_pps() - 1800.0).abs() < 1e-9);
        assert!((outcome.cpu_ns() - 100.0).abs() < 1e-9);
        assert_eq!(Outcome { dropped: None, ..outcome }.unaccounted(), None);
    }
}
