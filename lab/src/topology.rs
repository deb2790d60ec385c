//! The topology of trials: two network namespaces with a veth pair between them, and with a receiver a third one behind.
//!
//! ```text
//! holder of the injector's namespace          holder of the sensor's namespace
//!   wirelane send                               the sensor
//!   tx  <--------------- veth, N queues --------------->  wPIDx
//!   tx1 <------- further ones, if there are any ------->  wPIDx1
//!                                                            |  what the sensor leaves to the host, by tc(8)
//! holder of the receiver's namespace                         v
//!   rx  <-------------------- veth -------------------->  out
//! ```
//! A namespace is held by a process that sleeps, and nothing else: it has no name, so when its processes are gone, it is.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::holder::{Folder, Holder, output};
use crate::process;
use crate::roles::receiver::Counting;
use crate::roles::{DutOrder, Host};
use crate::suite::Napi;

/// The generator's device; further ones have a number behind it.
const SENDING: &str = "tx";

/// The receiver's device, and where the sensor's namespace passes packets on to it.
const RECEIVING: &str = "rx";
const PASSING: &str = "out";

/// How a topology is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Pairs of devices.
    pub devices: u32,
    /// RX queues.
    pub queues: u32,
    /// Bytes of a frame behind its Ethernet header, at most.
    pub mtu: u32,
    /// Where NAPI works.
    pub napi: Napi,
    /// Nice value of all that runs there.
    pub nice: i32,
    /// Whether packets could be merged (TCP, captures): then GRO is off.
    pub merges: bool,
    /// Whether there is a receiver, which what comes in is passed on to.
    pub receiver: bool,
}

/// A topology. It is gone when dropped, and when this process is gone.
#[derive(Debug)]
pub struct Topology {
    injector: Holder,
    sensor: Holder,
    receiver: Option<Holder>,
    /// The sensor's devices, with commas.
    device: String,
    /// Pairs of devices: where is sent, and where is captured.
    pairs: Vec<(String, String)>,
    plan: Plan,
    /// NAPI's kernel threads.
    napi: Vec<u32>,
}

impl Topology {
    /// Builds one; when this returns, its link is up. Needs root.
    ///
    /// # Errors
    /// Where the kernel or a tool refuses.
    pub fn new(plan: &Plan) -> Result<Topology> {
        let mut injector = Holder::new("the injector's namespace", true)?;
        let mut sensor = Holder::new("the sensor's namespace", true)?;
        (injector.nice, sensor.nice) = (plan.nice, plan.nice);
        // Kernel threads are named after the device, and other beds have one too.
        let device = format!("w{}x", std::process::id());
        let name = |name: &str, at: u32| if at == 0 { name.to_owned() } else { format!("{name}{at}") };
        let pairs: Vec<_> = (0..plan.devices).map(|at| (name(SENDING, at), name(&device, at))).collect();
        let all: Vec<&str> = pairs.iter().map(|(_, captures)| captures.as_str()).collect();
        let device = all.join(",");
        let receiver = plan.receiver.then(|| Holder::new("the receiver's namespace", true)).transpose()?;
        let topology =
            Topology { injector, sensor, receiver, device, pairs, plan: plan.clone(), napi: Vec::new() };
        for (sends, captures) in &topology.pairs {
            topology.join(sends, captures)?;
        }
        if let Some(receiver) = &topology.receiver {
            topology.pass_on(receiver)?;
        }
        topology.wait_for_carrier()?;
        Ok(topology)
    }

    /// Makes a pair of devices.
    fn join(&self, sending: &str, device: &str) -> Result<()> {
        let plan = &self.plan;
        let queues = format!("numrxqueues {0} numtxqueues {0}", plan.queues);
        let far = self.injector.pid();
        self.tool(
            &self.sensor,
            &format!("ip link add {device} {queues} type veth peer name {sending} netns {far} {queues}"),
        )?;
        for (holder, name) in [(&self.injector, sending), (&self.sensor, device)] {
            self.prepare(holder, name)?;
        }
        // Without an XDP program a veth has NAPI, and takes frames of --method kernel, only while GRO is on. The other end
        // hears of it only where it is turned on while the device is up (veth_set_features() in drivers/net/veth.c).
        if !plan.merges {
            self.tool(&self.sensor, &format!("ethtool -K {device} gro on"))?;
        }
        if plan.napi != Napi::Inline {
            // The kernel knows no NAPI to thread before the device is up.
            let write = format!("echo 1 >/sys/class/net/{device}/threaded");
            run(&self.sensor, &["sh", "-c", &write]).context("NAPI in threads needs Linux 5.12")?;
        }
        Ok(())
    }

    /// Has what comes in on the sensor's devices, and is left to the host, go on to the receiver.
    fn pass_on(&self, receiver: &Holder) -> Result<()> {
        let far = receiver.pid();
        let here = |words: &str| self.tool(&self.sensor, words);
        here(&format!("ip link add {PASSING} type veth peer name {RECEIVING} netns {far}"))?;
        for (holder, name) in [(receiver, RECEIVING), (&self.sensor, PASSING)] {
            self.prepare(holder, name)?;
        }
        for (_, device) in &self.pairs {
            here(&format!("tc qdisc add dev {device} clsact"))?;
            // Behind whatever a sensor puts there. Of the classifiers that take everything u32 is in most kernels.
            here(&format!(
                "tc filter add dev {device} ingress pref 65535 protocol all u32 match u32 0 0 action mirred egress redirect \
                 dev {PASSING}"
            ))
            .context("passing packets on takes a kernel with tc's u32 and mirred")?;
        }
        Ok(())
    }

    /// Sets a device up that is there.
    fn prepare(&self, holder: &Holder, name: &str) -> Result<()> {
        self.tool(holder, &format!("ip link set dev {name} mtu {}", self.plan.mtu))?;
        self.tool(holder, &format!("ethtool -K {name} tso off gso off gro off tx off"))?;
        self.tool(holder, &format!("ip link set dev {name} up"))?;
        Ok(())
    }

    /// How it was built.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The devices to send from.
    pub fn sending(&self) -> Vec<&str> {
        self.pairs.iter().map(|(sends, _)| sends.as_str()).collect()
    }

    /// Where the generator runs.
    pub fn injector(&self) -> &Holder {
        &self.injector
    }

    /// Where the sensor runs.
    pub fn sensor(&self) -> &Holder {
        &self.sensor
    }

    /// The sensor's devices, with commas.
    pub fn devices(&self) -> &str {
        &self.device
    }

    /// Counts what arrives at the receiver from now on; none: there is none.
    ///
    /// # Errors
    /// Where the kernel does not say.
    pub fn receives(&self) -> Result<Option<Counting>> {
        let begin = |holder: &Holder| Counting::begin(&holder.root().join("sys"), RECEIVING);
        self.receiver.as_ref().map(begin).transpose()
    }

    /// Whether all holders are there.
    ///
    /// # Errors
    /// Which one has ended.
    pub fn check(&mut self) -> Result<()> {
        self.injector.check()?;
        self.sensor.check()?;
        self.receiver.as_mut().map_or(Ok(()), Holder::check)
    }

    fn tool(&self, holder: &Holder, words: &str) -> Result<String> {
        run(holder, &words.split_whitespace().collect::<Vec<_>>())
    }

    /// A device gets its queueing discipline a moment after its carrier, and drops what is sent before.
    fn wait_for_carrier(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        let both = |(sends, captures): &'_ (String, String)| {
            [(&self.injector, sends.clone()), (&self.sensor, captures.clone())]
        };
        let passing = self.receiver.as_ref();
        let passing = passing
            .into_iter()
            .flat_map(|receiver| [(&self.sensor, PASSING.to_owned()), (receiver, RECEIVING.to_owned())]);
        for (holder, name) in self.pairs.iter().flat_map(both).chain(passing) {
            loop {
                let told = self.tool(holder, &format!("ip -json link show dev {name}"))?;
                let link: Value = serde_json::from_str(&told).context("ip -json")?;
                if link[0]["operstate"] == "UP" && link[0]["qdisc"] != "noop" {
                    break;
                }
                ensure!(Instant::now() < end, "{name} did not come up: {told}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

fn run(holder: &Holder, words: &[&str]) -> Result<String> {
    output(holder.inside().args(words))
}

impl Host for Topology {
    fn device(&self) -> &str {
        &self.device
    }

    fn command(&self, cores: &[usize], words: &[String]) -> Command {
        self.sensor.on(cores, words)
    }

    fn folder(&self, name: &str) -> Result<Folder> {
        self.sensor.folder(name)
    }

    /// Puts NAPI's threads on these cores in turn, since attaching a program makes new ones. Where NAPI is inline a sensor may have
    /// given it threads, and has placed them.
    fn settle(&mut self, order: &DutOrder) -> Result<()> {
        // The first name is where those of the others begin.
        self.napi = napi_threads(&self.pairs[0].1)?;
        if self.plan.napi == Napi::Inline {
            return Ok(());
        }
        ensure!(!self.napi.is_empty(), "NAPI has no kernel thread, though threads were asked for");
        let first = match self.plan.napi {
            Napi::ThreadsFirst => true,
            Napi::ThreadsPaced => order.paced,
            Napi::Threads | Napi::Inline => false,
        };
        for (thread, core) in self.napi.iter().zip(order.cores.iter().cycle()) {
            let (thread, core, nice) = (thread.to_string(), core.to_string(), self.plan.nice.to_string());
            let policy = if first { ["-f", "1"] } else { ["-o", "0"] };
            for words in [
                &["taskset", "-pc", &core, &thread][..],
                &["chrt", policy[0], "-p", policy[1], &thread],
                &["renice", "-n", &nice, "-p", &thread],
            ] {
                output(Command::new(words[0]).args(&words[1..]))?;
            }
        }
        Ok(())
    }

    fn napi_time(&self) -> Result<Duration> {
        process::run_times(&self.napi)
    }

    fn takes_interrupts(&self) -> bool {
        false
    }
}

/// NAPI's kernel threads of devices whose names begin so, in the order of its RX queues, in which the kernel starts them.
fn napi_threads(device: &str) -> Result<Vec<u32>> {
    let start = format!("napi/{device}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.starts_with(&start)) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    Ok(found)
}
