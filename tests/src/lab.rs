//! Network namespaces with veth pairs between them, which carry only packets that a test sends.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{Child, sys};

const PREFIX: &str = "wltest";
const LOCK: &str = "/run/wirelane-tests.lock";

/// Options of a lab.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// RX and TX queues of every device.
    pub queues: u32,
    /// MTU of every device, in bytes.
    pub mtu: u32,
    /// Number of veth pairs between the sender's and the receiver's namespace.
    pub links: u32,
    /// True if the devices may segment, merge and leave out checksums. Off by default: a packet is then as it would be
    /// on a wire.
    pub offloads: bool,
    /// True if no other lab may exist at the same time: for tests that look at the whole machine.
    pub alone: bool,
}

impl Default for LabOptions {
    fn default() -> LabOptions {
        LabOptions { queues: 1, mtu: 1500, links: 1, offloads: false, alone: false }
    }
}

/// One end of a veth pair.
#[derive(Clone, Debug)]
pub struct End {
    /// The network namespace, as `ip netns` names it.
    pub namespace: String,
    /// The device in it.
    pub device: String,
    /// Its IPv4 address; the network is a /24.
    pub address: Ipv4Addr,
    /// Its Ethernet address.
    pub mac: [u8; 6],
}

/// A veth pair.
#[derive(Clone, Debug)]
pub struct Link {
    /// The end that tests send from.
    pub sender: End,
    /// The end that tests capture on.
    pub receiver: End,
}

/// Two network namespaces, `sender` and `receiver`, with veth pairs between them: `tx0` to `rx0`, `tx1` to `rx1`. All
/// of them are removed on drop.
#[derive(Debug)]
pub struct Lab {
    /// The veth pairs, at least one.
    pub links: Vec<Link>,
    namespaces: Vec<String>,
    options: LabOptions,
    // Declared last: another lab that has to be alone starts when everything else is removed.
    _lock: File,
}

/// Whether the running test is in tests/alone. The thread of a test has its name, unless the test is the only one.
fn is_listed() -> bool {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("main");
    name == "main" || include_str!("../alone").lines().any(|line| line == name)
}

impl Lab {
    /// Builds a lab with `queues` queues and otherwise the defaults.
    ///
    /// # Errors
    /// Errors of [`Lab::with`].
    pub fn new(queues: u32) -> Result<Lab> {
        Lab::with(&LabOptions { queues, ..LabOptions::default() })
    }

    /// Builds a lab; when this returns, its links are up. Needs root.
    ///
    /// # Errors
    /// If the kernel or `ip` refuses; the parts built until then are removed.
    pub fn with(options: &LabOptions) -> Result<Lab> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        ensure!((1..=200).contains(&options.links), "a lab has 1 to 200 links");
        ensure!(!options.alone || is_listed(), "this test's lab is to be alone: add the test to tests/alone");
        ensure!(
            std::env::var_os("WIRELANE_NO_LAB").is_none(),
            "this test makes a lab: remove its module from tests/without-lab"
        );
        let lock = File::create(LOCK).with_context(|| format!("opening {LOCK} (a lab needs root)"))?;
        sys::lock(&lock, options.alone).with_context(|| format!("locking {LOCK}"))?;
        remove_stale();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = |label: &str| format!("{PREFIX}-{}-{number}-{label}", std::process::id());
        let mut lab =
            Lab { links: Vec::new(), namespaces: Vec::new(), options: options.clone(), _lock: lock };
        for label in ["sender", "receiver"] {
            lab.add_namespace(name(label))?;
        }
        for index in 0..options.links {
            let link = lab.make_link(index as u8)?;
            lab.links.push(link);
        }
        lab.wait_until_up()?;
        Ok(lab)
    }

    /// The sending end of the first link.
    pub fn sender(&self) -> &End {
        &self.links[0].sender
    }

    /// The receiving end of the first link.
    pub fn receiver(&self) -> &End {
        &self.links[0].receiver
    }

    /// A command that runs in a namespace, with sysfs showing that namespace. It replaces `ip` itself, so its
    /// pid is the program's.
    pub fn command(&self, namespace: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(program);
        command
    }

    /// Runs a command line (words, no shell) in a namespace and waits for its end.
    ///
    /// # Errors
    /// If it cannot be started or fails; the error has its standard error.
    pub fn exec(&self, namespace: &str, words: &[&str]) -> Result<String> {
        let (program, arguments) = words.split_first().context("no command")?;
        run(self.command(namespace, program).args(arguments))
    }

    /// Starts a command line (words, no shell) in a namespace.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&self, namespace: &str, words: &[&str]) -> Result<Child> {
        let (program, arguments) = words.split_first().context("no command")?;
        Child::spawn(self.command(namespace, program).args(arguments))
    }

    /// Runs `work` in a new thread in a namespace, as after `nsenter --net`: sysfs still shows the namespace of the
    /// test.
    ///
    /// # Errors
    /// If the namespace cannot be entered. A panic in `work` is passed on.
    pub fn enter<T: Send>(&self, namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
        enter(namespace, work)
    }

    fn add_namespace(&mut self, name: String) -> Result<()> {
        run(Command::new("ip").args(["netns", "add", &name]))?;
        self.namespaces.push(name.clone());
        // Before any device exists: no router solicitations, no duplicate address detection, no MLD.
        enter(&name, || {
            for scope in ["all", "default"] {
                let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
                // Missing if the kernel has no IPv6, which is as good.
                if Path::new(&path).exists() {
                    fs::write(&path, "1").with_context(|| path.clone())?;
                }
            }
            anyhow::Ok(())
        })??;
        ip(&name, "link set lo up")?;
        Ok(())
    }

    /// Makes the devices of the first link again after one of them, and thereby both, has been deleted.
    ///
    /// # Errors
    /// If the kernel or `ip` refuses.
    pub fn remake(&self) -> Result<()> {
        self.make_link(0)?;
        self.wait_until_up()
    }

    fn make_link(&self, index: u8) -> Result<Link> {
        let options = &self.options;
        let end = |namespace: usize, device: &str, host: u8| End {
            namespace: self.namespaces[namespace].clone(),
            device: format!("{device}{index}"),
            address: Ipv4Addr::new(10, 77, index, host),
            mac: [0x02, 0x77, 0, 0, index, host],
        };
        let (sender, receiver) = (end(0, "tx", 1), end(1, "rx", 2));
        let queues = format!("numrxqueues {0} numtxqueues {0}", options.queues);
        ip(
            &receiver.namespace,
            &format!(
                "link add {} {queues} type veth peer name {} netns {} {queues}",
                receiver.device, sender.device, sender.namespace
            ),
        )?;
        for (near, far) in [(&sender, &receiver), (&receiver, &sender)] {
            let (device, namespace) = (&near.device, &near.namespace);
            ip(namespace, &format!("link set {device} address {} mtu {}", mac(near.mac), options.mtu))?;
            if !options.offloads {
                let words = ["ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off", "tx", "off"];
                self.exec(namespace, &words)?;
            }
            ip(namespace, &format!("addr add {}/24 dev {device}", near.address))?;
            ip(namespace, &format!("link set {device} up"))?;
            // A fixed neighbour, so that ARP is not used.
            let neighbour = format!("{} lladdr {} dev {device} nud permanent", far.address, mac(far.mac));
            ip(namespace, &format!("neigh replace {neighbour}"))?;
        }
        Ok(Link { sender, receiver })
    }

    /// Waits until all devices are up: a device gets its queueing discipline a moment after its carrier, and drops
    /// earlier packets.
    fn wait_until_up(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        for namespace in &self.namespaces {
            loop {
                let links: Value = serde_json::from_str(&run(
                    Command::new("ip").args(["-n", namespace, "-json", "link", "show", "type", "veth"])
                )?)?;
                let up = |link: &Value| link["operstate"] == "UP" && link["qdisc"] != "noop";
                if links.as_array().is_some_and(|links| links.iter().all(up)) {
                    break;
                }
                ensure!(Instant::now() < end, "the links of {namespace} did not come up: {links}");
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The devices are removed first: a process that is still in a namespace keeps the namespace alive.
        for link in &self.links {
            let _ = ip(&link.receiver.namespace, &format!("link del {}", link.receiver.device));
        }
        for namespace in &self.namespaces {
            let _ = run(Command::new("ip").args(["netns", "del", namespace]));
        }
    }
}

/// Removes the namespaces of killed tests, whose processes no longer exist.
fn remove_stale() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut parts = name.split('-');
        let ours = parts.next() == Some(PREFIX);
        let pid = parts.next().and_then(|pid| pid.parse::<u32>().ok());
        if let (true, Some(pid)) = (ours, pid)
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            // Another test may do the same at the same time; one of the two succeeds.
            let _ = run(Command::new("ip").args(["netns", "del", &name]));
        }
    }
}

fn enter<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = PathBuf::from("/run/netns").join(namespace);
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| -> Result<T> {
            sys::enter_network_namespace(&file).with_context(|| format!("entering {namespace}"))?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// `ip -n NAMESPACE WORDS`.
fn ip(namespace: &str, words: &str) -> Result<String> {
    run(Command::new("ip").args(["-n", namespace]).args(words.split_whitespace()))
}

fn run(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}: {}", String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
