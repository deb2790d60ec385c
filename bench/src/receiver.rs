//! The receivers that are compared: how each is started, and where its own counters stand.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use wirelane_tests::{Child, Finished, Lab};

/// How long anything may take to start or to end.
const LIMIT: Duration = Duration::from_secs(20);

/// Memory of each receiver's ring, the same for all, and small: a short trial must not fit into it.
const RING_MIB: &str = "8";
const RING_KIB: &str = "8192";
const RING_NETSNIFF: &str = "8MiB";

/// A receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Receiver {
    /// XDP_DROP, counting only: the limit.
    Drop,
    /// `wirelane count --hook native --take`.
    Native,
    /// `wirelane count --hook generic --take`.
    Generic,
    /// `wirelane count --hook tc`.
    Tc,
    /// AF_XDP in copy mode, sleeping in poll(2).
    Xsk,
    /// AF_XDP in copy mode, never sleeping.
    XskBusy,
    /// AF_PACKET with TPACKET_V3.
    Packet,
    /// `tcpdump -w /dev/null`.
    Tcpdump,
    /// `dumpcap -w /dev/null`.
    Dumpcap,
    /// `netsniff-ng --out /dev/null`.
    NetsniffNg,
}

/// What a receiver counted in one trial.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Packets that reached the program.
    pub received: u64,
    /// Packets that it or its kernel side says it lost; `None` where it does not say.
    pub dropped: Option<u64>,
    /// CPU time of its process, of all threads.
    pub cpu: Duration,
}

impl Receiver {
    /// All of them, in the order of the table.
    pub const ALL: [Receiver; 10] = [
        Receiver::Drop,
        Receiver::Native,
        Receiver::Generic,
        Receiver::Tc,
        Receiver::Xsk,
        Receiver::XskBusy,
        Receiver::Packet,
        Receiver::Tcpdump,
        Receiver::Dumpcap,
        Receiver::NetsniffNg,
    ];

    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Receiver::Drop => "XDP_DROP, counting",
            Receiver::Native => "wirelane, native XDP",
            Receiver::Generic => "wirelane, generic XDP",
            Receiver::Tc => "wirelane, tc",
            Receiver::Xsk => "AF_XDP copy, poll",
            Receiver::XskBusy => "AF_XDP copy, busy",
            Receiver::Packet => "TPACKET_V3",
            Receiver::Tcpdump => "tcpdump",
            Receiver::Dumpcap => "dumpcap",
            Receiver::NetsniffNg => "netsniff-ng",
        }
    }

    /// Whether it is ours, so that its ledger must be exact.
    pub fn is_ours(self) -> bool {
        matches!(self, Receiver::Native | Receiver::Generic | Receiver::Tc)
    }

    /// The name of the Debian package without which it cannot run, where that is missing.
    pub fn missing_package(self) -> Option<&'static str> {
        let (program, package) = match self {
            Receiver::Tcpdump => ("tcpdump", "tcpdump"),
            Receiver::Dumpcap => ("dumpcap", "wireshark-common"),
            Receiver::NetsniffNg => ("netsniff-ng", "netsniff-ng"),
            _ => return None,
        };
        ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
            .iter()
            .all(|folder| !PathBuf::from(folder).join(program).exists())
            .then_some(package)
    }

    fn words(self, device: &str, jumbo: bool) -> Result<Vec<String>> {
        let text = |path: PathBuf| path.into_os_string().into_string().ok().context("a path is not UTF-8");
        let own = |kind: &str| -> Result<Vec<String>> {
            let mut words = vec![text(std::env::current_exe()?)?];
            words.extend(["receive", kind, "-i", device].map(str::to_owned));
            if jumbo {
                words.push("--jumbo".to_owned());
            }
            Ok(words)
        };
        let ours = |options: &[&str]| -> Result<Vec<String>> {
            let mut words = vec![text(wirelane_binary()?)?];
            words.extend(
                ["count", "-i", device, "--json", "--cores", "1", "--ring-size", RING_MIB].map(str::to_owned),
            );
            words.extend(options.iter().map(|word| (*word).to_owned()));
            Ok(words)
        };
        let peer = |words: &[&str]| Ok(words.iter().map(|word| (*word).to_owned()).collect());
        match self {
            Receiver::Drop => own("drop"),
            Receiver::Xsk => own("xsk"),
            Receiver::XskBusy => own("xsk-busy"),
            Receiver::Packet => own("packet"),
            Receiver::Native => ours(&["--hook", "native", "--take"]),
            Receiver::Generic => ours(&["--hook", "generic", "--take"]),
            Receiver::Tc => ours(&["--hook", "tc"]),
            // -Z root: no other user to change to in a namespace.
            Receiver::Tcpdump => {
                peer(&["tcpdump", "-n", "-Z", "root", "-i", device, "-B", RING_KIB, "-w", "/dev/null"])
            }
            Receiver::Dumpcap => {
                peer(&["dumpcap", "-q", "-i", device, "-B", RING_MIB, "-P", "-w", "/dev/null"])
            }
            Receiver::NetsniffNg => peer(&[
                "netsniff-ng",
                "--in",
                device,
                "--out",
                "/dev/null",
                "--silent",
                "--ring-size",
                RING_NETSNIFF,
                "--notouch-irq",
                "--bind-cpu",
                "1",
            ]),
        }
    }

    /// Starts it on the lab's receiving device, pinned to core 1, and waits until it receives.
    ///
    /// # Errors
    /// Where it does not start; with what it said.
    pub fn start(self, lab: &Lab, jumbo: bool) -> Result<Running> {
        let end = lab.receiver();
        let mut command = lab.command(&end.namespace, "taskset");
        command.env("RUST_BACKTRACE", "0").args(["-c", "1"]).args(self.words(&end.device, jumbo)?);
        let mut child = Child::spawn(&mut command)?;
        match self {
            Receiver::Tcpdump | Receiver::Dumpcap | Receiver::NetsniffNg => {
                let deadline = Instant::now() + LIMIT;
                while packet_sockets(lab, &end.namespace)? == 0 {
                    if !child.is_running()? {
                        let finished = child.finish(LIMIT)?;
                        bail!("{} ended: {}", self.name(), finished.stderr.trim());
                    }
                    if Instant::now() > deadline {
                        bail!("{} does not open a packet socket", self.name());
                    }
                    sleep(Duration::from_millis(10));
                }
                // From the socket to its ring, its filter, and the first read.
                sleep(Duration::from_millis(300));
            }
            _ => child.wait_ready(LIMIT).with_context(|| self.name().to_owned())?,
        }
        let cpu_before = cpu_time(child.pid())?;
        Ok(Running { receiver: self, child, cpu_before })
    }
}

/// A receiver at work.
pub struct Running {
    receiver: Receiver,
    child: Child,
    cpu_before: Duration,
}

impl Running {
    /// Lets it read what is under way, ends it, and reads its counters.
    ///
    /// # Errors
    /// Where it failed, or its counters cannot be read; for ours, where the ledger does not balance.
    pub fn finish(self) -> Result<Reading> {
        self.settle()?;
        let cpu = cpu_time(self.child.pid())?.saturating_sub(self.cpu_before);
        // netsniff-ng ends by SIGINT only.
        let finished = if self.receiver == Receiver::NetsniffNg {
            self.child.signal(wirelane_tests::Signal::Interrupt)?;
            self.child.finish(LIMIT)?
        } else {
            self.child.terminate(LIMIT)?
        };
        let (received, dropped) =
            read_counters(self.receiver, &finished).with_context(|| self.receiver.name().to_owned())?;
        Ok(Reading { received, dropped, cpu })
    }
}

impl Running {
    /// Waits until it has read what lies in its ring: until it uses next to no CPU time.
    fn settle(&self) -> Result<()> {
        // libpcap's ring hands a block that is not full over after a second in tcpdump, earlier elsewhere.
        let least = if self.receiver == Receiver::Tcpdump { 1100 } else { 200 };
        sleep(Duration::from_millis(least));
        if self.receiver == Receiver::XskBusy {
            return Ok(());
        }
        let step = Duration::from_millis(50);
        let deadline = Instant::now() + Duration::from_secs(3);
        let mut before = cpu_time(self.child.pid())?;
        loop {
            sleep(step);
            let now = cpu_time(self.child.pid())?;
            if now - before < step / 10 || Instant::now() > deadline {
                return Ok(());
            }
            before = now;
        }
    }
}

fn read_counters(receiver: Receiver, finished: &Finished) -> Result<(u64, Option<u64>)> {
    let field =
        |object: &Value, name: &str| object[name].as_u64().with_context(|| format!("no {name} in {object}"));
    let text = format!("{}\n{}", finished.lines.join("\n"), finished.stderr);
    match receiver {
        Receiver::Native | Receiver::Generic | Receiver::Tc => {
            let last = finished.last_json()?;
            let value = |name| field(&last, name);
            let elsewhere = value("filtered")? + value("absorbed")? + value("shed")? + value("lost")?;
            if value("seen")? != elsewhere + value("delivered")? || value("delivered")? != value("analysed")?
            {
                bail!("the ledger does not balance: {last}");
            }
            Ok((value("analysed")?, Some(value("lost")?)))
        }
        Receiver::Drop | Receiver::Xsk | Receiver::XskBusy | Receiver::Packet => {
            let last = finished.last_json()?;
            Ok((field(&last, "received")?, Some(field(&last, "dropped")?)))
        }
        Receiver::Tcpdump => {
            let received = number_before(&text, "packets captured")?;
            Ok((received, Some(number_before(&text, "packets dropped by kernel")?)))
        }
        // Packets received/dropped on interface 'rx0': 900/100 (pcap:100/dumpcap:0/flushed:0/ps_ifdrop:0) (90.0%)
        Receiver::Dumpcap => {
            let at = text.rfind("': ").with_context(|| format!("no counts in: {text}"))?;
            let (received, rest) = text[at + 3..].split_once('/').context("no counts")?;
            let dropped: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Ok((received.parse().context("its count")?, Some(dropped.parse().context("its drops")?)))
        }
        //  900  packets incoming (0 unread on exit) / 800  packets passed filter / 100  packets failed filter
        Receiver::NetsniffNg => {
            let passed = number_before(&text, "packets passed filter")?;
            Ok((passed, Some(number_before(&text, "packets failed filter")?)))
        }
    }
}

/// The number before some words.
fn number_before(text: &str, words: &str) -> Result<u64> {
    let words_at = text.find(words).with_context(|| format!("no '{words}' in: {text}"))?;
    let number = text[..words_at].split_whitespace().next_back().unwrap_or_default();
    number.parse().with_context(|| format!("'{number}' before '{words}' is not a number"))
}

/// The `wirelane` that was built beside this program.
///
/// # Errors
/// Where it was not.
pub fn wirelane_binary() -> Result<PathBuf> {
    let binary = std::env::current_exe().context("finding this program")?.with_file_name("wirelane");
    if !binary.exists() {
        bail!("{} is missing: run 'make bench', which builds it", binary.display());
    }
    Ok(binary)
}

fn packet_sockets(lab: &Lab, namespace: &str) -> Result<usize> {
    let table = lab.enter(namespace, || fs::read_to_string("/proc/thread-self/net/packet"))??;
    Ok(table.lines().skip(1).count())
}

/// CPU time of all threads of a process, to the nanosecond (Documentation/scheduler/sched-stats.rst).
fn cpu_time(pid: u32) -> Result<Duration> {
    let folder = format!("/proc/{pid}/task");
    let mut total = 0;
    for task in fs::read_dir(&folder).with_context(|| format!("{folder}: the receiver has ended"))? {
        let path = task?.path().join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        total += text.split_whitespace().next().unwrap_or_default().parse::<u64>().context("schedstat")?;
    }
    Ok(Duration::from_nanos(total))
}

/// The version of a system's program, for the machine's description; `None` for ours.
pub fn version(receiver: Receiver) -> Option<String> {
    let program = match receiver {
        Receiver::Tcpdump => "tcpdump",
        Receiver::Dumpcap => "dumpcap",
        Receiver::NetsniffNg => "netsniff-ng",
        _ => return None,
    };
    let output = Command::new(program).arg("--version").output().ok()?;
    let text =
        String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout });
    text.lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_in_what_peers_print() {
        let tcpdump = "tcpdump: listening on rx0\n900 packets captured\n1000 packets received by filter\n\
                       100 packets dropped by kernel\n";
        assert_eq!(number_before(tcpdump, "packets captured").unwrap(), 900);
        assert_eq!(number_before(tcpdump, "packets dropped by kernel").unwrap(), 100);
        assert!(number_before(tcpdump, "packets lost").is_err());
        assert!(number_before("some packets captured", "packets captured").is_err());
    }
}
