//! Topology of trials: two network namespaces with a veth pair between them, and a third one with a receiver if
//! required.
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
//! A namespace is held by a sleeping process and has no name, so it disappears with its processes.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::holder::{Folder, Holder, output};
use crate::process;
use crate::roles::receiver::Counting;
use crate::roles::{DutOrder, Host, napi};
use crate::suite::Napi;

/// Device of the generator; further ones have a number as suffix.
const SENDING: &str = "tx";

/// Device of the receiver, and the sensor's device that passes packets on to it.
const RECEIVING: &str = "rx";
const PASSING: &str = "out";

/// Parameters of a topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of device pairs.
    pub devices: u32,
    /// RX queues.
    pub queues: u32,
    /// Maximum bytes of a frame after its Ethernet header.
    pub mtu: u32,
    /// NAPI context.
    pub napi: Napi,
    /// Nice value of all processes in it.
    pub nice: i32,
    /// Whether packets could be merged (TCP, captures): then GRO is off.
    pub merges: bool,
    /// Whether there is a receiver, to which received packets are passed on.
    pub receiver: bool,
}

/// A topology. It disappears when dropped, and when this process ends.
#[derive(Debug)]
pub struct Topology {
    injector: Holder,
    sensor: Holder,
    receiver: Option<Holder>,
    /// Devices of the sensor, separated by commas.
    device: String,
    /// Pairs of devices: for sending, and for capturing.
    pairs: Vec<(String, String)>,
    plan: Plan,
    /// Kernel threads of NAPI.
    napi: Vec<u32>,
}

impl Topology {
    /// Builds a topology, and returns when its link is up. Needs root.
    pub fn new(plan: &Plan) -> Result<Topology> {
        let mut injector = Holder::new("the injector's namespace", true)?;
        let mut sensor = Holder::new("the sensor's namespace", true)?;
        (injector.nice, sensor.nice) = (plan.nice, plan.nice);
        // Kernel threads are named after the device, which must differ from those of other test-beds.
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

    /// Creates a pair of devices.
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
        // Without an XDP program, a veth has NAPI, and accepts frames of --method kernel, only while GRO is on. The
        // other end learns this only if it is turned on while the device is up (veth_set_features() in
        // drivers/net/veth.c).
        if !plan.merges {
            self.tool(&self.sensor, &format!("ethtool -K {device} gro on"))?;
        }
        if plan.napi != Napi::Inline {
            // The kernel has no NAPI instance for a thread before the device is up.
            let write = format!("echo 1 >/sys/class/net/{device}/threaded");
            run(&self.sensor, &["sh", "-c", &write]).context("NAPI in threads needs Linux 5.12")?;
        }
        Ok(())
    }

    /// Passes packets that arrive on the sensor's devices, and are left to the host, on to the receiver.
    fn pass_on(&self, receiver: &Holder) -> Result<()> {
        let far = receiver.pid();
        let here = |words: &str| self.tool(&self.sensor, words);
        here(&format!("ip link add {PASSING} type veth peer name {RECEIVING} netns {far}"))?;
        for (holder, name) in [(receiver, RECEIVING), (&self.sensor, PASSING)] {
            self.prepare(holder, name)?;
        }
        for (_, device) in &self.pairs {
            here(&format!("tc qdisc add dev {device} clsact"))?;
            // After the programs of a sensor. Of the classifiers that match all packets, u32 is in most kernels.
            here(&format!(
                "tc filter add dev {device} ingress pref 65535 protocol all u32 match u32 0 0 action mirred egress redirect \
                 dev {PASSING}"
            ))
            .context("passing packets on takes a kernel with tc's u32 and mirred")?;
        }
        Ok(())
    }

    /// Configures an existing device and sets it up.
    fn prepare(&self, holder: &Holder, name: &str) -> Result<()> {
        self.tool(holder, &format!("ip link set dev {name} mtu {}", self.plan.mtu))?;
        self.tool(holder, &format!("ethtool -K {name} tso off gso off gro off tx off"))?;
        self.tool(holder, &format!("ip link set dev {name} up"))?;
        Ok(())
    }

    /// Its parameters.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Holder of the sensor's namespace.
    pub fn sensor(&self) -> &Holder {
        &self.sensor
    }

    fn tool(&self, holder: &Holder, words: &str) -> Result<String> {
        run(holder, &words.split_whitespace().collect::<Vec<_>>())
    }

    /// Waits for the carrier and a little longer: a device drops packets before it has its queueing discipline, shortly
    /// after the carrier.
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

    /// Places NAPI threads on these cores in turn, since attaching a program creates new ones. With inline NAPI, a
    /// sensor may have enabled threads, and has placed them itself.
    fn settle(&mut self, order: &DutOrder) -> Result<()> {
        // The first name is a prefix of the others.
        self.napi = napi_threads(&self.pairs[0].1)?;
        if self.plan.napi == Napi::Inline {
            return Ok(());
        }
        ensure!(!self.napi.is_empty(), "NAPI has no kernel thread, though threads were asked for");
        let first = napi::comes_first(self.plan.napi, order.paced);
        for (thread, core) in self.napi.iter().zip(order.cores.iter().cycle()) {
            napi::place(*thread, *core, first, self.plan.nice)?;
        }
        Ok(())
    }

    fn napi_time(&self) -> Result<Duration> {
        process::run_times(&self.napi)
    }

    fn takes_interrupts(&self) -> bool {
        false
    }

    fn check(&mut self) -> Result<()> {
        self.injector.check()?;
        self.sensor.check()?;
        self.receiver.as_mut().map_or(Ok(()), Holder::check)
    }

    fn sending(&self) -> Vec<&str> {
        self.pairs.iter().map(|(sends, _)| sends.as_str()).collect()
    }

    fn sender(&self) -> &Holder {
        &self.injector
    }

    fn receives(&self) -> Result<Option<Counting>> {
        let begin = |holder: &Holder| Counting::begin(&holder.root().join("sys"), RECEIVING);
        self.receiver.as_ref().map(begin).transpose()
    }
}

/// NAPI threads of devices with this name prefix, in the order of RX queues, in which the kernel starts them.
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
