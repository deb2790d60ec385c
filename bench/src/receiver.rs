//! The receivers that are compared: how each is started, when it is ready, and what its own counters say.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use wirelane_tests::Finished;

use crate::probes;
use crate::receive::Counts;
use crate::trial::Method;

/// A receiver.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Receiver {
    /// XDP_DROP, counting only: the limit
    Drop,
    /// XDP_DROP that reads a word of each packet: fetches it from the sender's cache
    DropRead,
    /// wirelane count, native XDP, packets taken
    RingNative,
    /// wirelane count, native XDP, packets taken, one reading of the clock per batch
    RingBatch,
    /// wirelane count, native XDP, packets go on to the host's stack
    RingNativePass,
    /// wirelane count, generic XDP, packets taken
    RingGeneric,
    /// wirelane count, tc, packets go on to the host's stack
    RingTc,
    /// AF_XDP, copy mode, asleep in poll(2) while there is nothing
    XskPoll,
    /// AF_XDP, copy mode, never asleep
    XskBusy,
    /// AF_PACKET, TPACKET_V3
    Packet,
    /// tcpdump -w /dev/null
    Tcpdump,
    /// dumpcap -w /dev/null
    Dumpcap,
    /// netsniff-ng -o /dev/null
    NetsniffNg,
    /// wirelane record to a file in memory
    RecordFile,
    /// tcpdump -w to a file in memory
    TcpdumpFile,
    /// wirelane flows --cache kernel, native XDP, packets taken
    FlowsKernel,
    /// The same with room for 65,536 flows
    FlowsKernelWide,
    /// wirelane flows --cache user, native XDP, packets taken
    FlowsUser,
    /// softflowd
    Softflowd,
    /// nfpcapd, of nfdump
    Nfpcapd,
    /// pmacctd with its plug-in nfprobe, of pmacct
    Pmacctd,
}

use Receiver::*;

/// What is compared where nothing else is asked for: all but variants.
pub const USUAL: [Receiver; 14] = [
    Drop,
    DropRead,
    RingNative,
    RingBatch,
    RingGeneric,
    RingTc,
    XskPoll,
    XskBusy,
    Packet,
    Tcpdump,
    Dumpcap,
    NetsniffNg,
    RecordFile,
    TcpdumpFile,
];

/// Who makes flows, and the limit.
pub const PROBES: [Receiver; 7] =
    [Drop, FlowsKernel, FlowsKernelWide, FlowsUser, Softflowd, Nfpcapd, Pmacctd];

/// How to know that a receiver is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It says so, with `{"ready": true}`.
    Says,
    /// It has a packet socket.
    HasSocket,
}

/// What every receiver is told.
pub struct Circumstances<'a> {
    /// The device.
    pub device: &'a str,
    /// The core that it runs on.
    pub core: usize,
    /// Size of its buffer in MiB, where it lets one choose.
    pub buffer: u32,
    /// Whether frames may be larger than a page.
    pub jumbo: bool,
    /// The `wirelane` program.
    pub wirelane: &'a str,
    /// This program.
    pub bench: &'a str,
    /// How often ours tells what it has counted, in seconds.
    pub interval: f64,
}

impl Receiver {
    /// Its name in options and files.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The name that people read.
    pub fn label(self) -> &'static str {
        match self {
            Drop => "XDP_DROP, counting",
            DropRead => "XDP_DROP, reading",
            RingNative => "Wirelane, native XDP",
            RingBatch => "Wirelane, native XDP, --clock batch",
            RingNativePass => "Wirelane, native XDP, to stack",
            RingGeneric => "Wirelane, generic XDP",
            RingTc => "Wirelane, tc",
            XskPoll => "AF_XDP copy, poll",
            XskBusy => "AF_XDP copy, busy",
            Packet => "TPACKET_V3",
            Tcpdump => "tcpdump",
            Dumpcap => "dumpcap",
            NetsniffNg => "netsniff-ng",
            RecordFile => "Wirelane record, to tmpfs",
            TcpdumpFile => "tcpdump -w, to tmpfs",
            FlowsKernel => "Wirelane flows, in the kernel",
            FlowsKernelWide => "Wirelane flows, in the kernel, 65,536",
            FlowsUser => "Wirelane flows, in the worker",
            Softflowd => "softflowd",
            Nfpcapd => "nfpcapd",
            Pmacctd => "pmacctd, nfprobe",
        }
    }

    /// Whether it is ours.
    pub fn is_ours(self) -> bool {
        matches!(
            self,
            RingNative
                | RingBatch
                | RingNativePass
                | RingGeneric
                | RingTc
                | RecordFile
                | FlowsKernel
                | FlowsKernelWide
                | FlowsUser
        )
    }

    /// Whether it is a flow probe of others'.
    pub fn is_probe(self) -> bool {
        matches!(self, Softflowd | Nfpcapd | Pmacctd)
    }

    /// The system's program that it needs, and Debian's package of it.
    pub fn needs(self) -> Option<(&'static str, &'static str)> {
        match self {
            Tcpdump | TcpdumpFile => Some(("tcpdump", "tcpdump")),
            Dumpcap => Some(("dumpcap", "wireshark-common")),
            NetsniffNg => Some(("netsniff-ng", "netsniff-ng")),
            Softflowd => Some(("softflowd", "softflowd")),
            Nfpcapd => Some(("nfpcapd", "nfdump")),
            Pmacctd => Some(("pmacctd", "pmacct")),
            _ => None,
        }
    }

    /// Why it cannot be measured with packets of this generator; none: it can.
    pub fn blind_to(self, method: Method) -> Option<&'static str> {
        // skb_is_redirected() in netif_receive_generic_xdp(), net/core/dev.c; bpf_clone_redirect() sets the mark.
        (self == RingGeneric && method == Method::Clone)
            .then_some("generic XDP does not see what a BPF program has redirected, as it does clones")
    }

    /// Whether it keeps the packets: at full speed that would be gigabytes of large frames, so only its loss-free rate
    /// is measured.
    pub fn is_recorder(self) -> bool {
        matches!(self, RecordFile | TcpdumpFile)
    }

    /// The file that it writes, which is removed after each trial.
    pub fn file(self) -> Option<PathBuf> {
        let name = match self {
            RecordFile => "record.pcapng",
            TcpdumpFile => "tcpdump.pcap",
            _ => return None,
        };
        Some(Path::new("/dev/shm").join(format!("wirelane-bench-{}-{name}", std::process::id())))
    }

    /// Its command line.
    ///
    /// # Errors
    /// Where what it wants to find cannot be made.
    pub fn command(self, at: &Circumstances<'_>) -> Result<Vec<String>> {
        let (device, buffer, core) = (at.device, at.buffer, at.core);
        let file = self.file().unwrap_or_default();
        let ours = |command: &str, rest: &str| {
            format!(
                "{} {command} -i {device} --json --interval {} --cores {core} --ring-size {buffer} {rest}",
                at.wirelane, at.interval
            )
        };
        let jumbo = if at.jumbo { "--jumbo" } else { "" };
        let peer = |kind: &str| format!("{} receive {kind} {device} --buffer {buffer} {jumbo}", at.bench);
        let line = match self {
            Drop => peer("drop"),
            DropRead => peer("drop-read"),
            RingNative => ours("count", "--hook native --take"),
            RingBatch => ours("count", "--hook native --take --clock batch"),
            RingNativePass => ours("count", "--hook native"),
            RingGeneric => ours("count", "--hook generic --take"),
            RingTc => ours("count", "--hook tc"),
            FlowsKernel => ours("flows", "--hook native --take --quiet --cache kernel"),
            FlowsKernelWide => {
                ours("flows", "--hook native --take --quiet --cache kernel --cache-entries 65536")
            }
            FlowsUser => ours("flows", "--hook native --take --quiet --cache user"),
            RecordFile => ours("record", &format!("--hook native --take -w {}", file.display())),
            XskPoll => peer("xsk-poll"),
            XskBusy => peer("xsk-busy"),
            Packet => peer("packet"),
            Tcpdump => format!("tcpdump -n -i {device} -B {} -w /dev/null", buffer * 1024),
            // As root it would give its rights away, and then could not write the file.
            TcpdumpFile => {
                format!("tcpdump -n -i {device} -B {} -Z root -w {}", buffer * 1024, file.display())
            }
            Dumpcap => format!("dumpcap -q -i {device} -B {buffer} -w /dev/null"),
            // -A and -Q: leave the machine's settings alone.
            NetsniffNg => format!("netsniff-ng -s -A -Q -i {device} -S {buffer}MiB -o /dev/null"),
            Softflowd | Nfpcapd | Pmacctd => probes::prepare(self, at)?,
        };
        Ok(line.split_whitespace().map(str::to_owned).collect())
    }

    /// How to know that it is ready.
    pub fn ready(self) -> Ready {
        match self {
            Tcpdump | TcpdumpFile | Dumpcap | NetsniffNg | Softflowd | Nfpcapd | Pmacctd => Ready::HasSocket,
            _ => Ready::Says,
        }
    }

    /// How long nothing may happen before all that was sent is certain to have been taken: tcpdump lets the kernel
    /// keep a block that is not full for a second, dumpcap for a quarter of one.
    pub fn quiet(self) -> Duration {
        match self {
            Tcpdump | TcpdumpFile | Nfpcapd | Pmacctd => Duration::from_millis(1200),
            Dumpcap | Softflowd => Duration::from_millis(400),
            NetsniffNg => Duration::from_millis(250),
            XskBusy => Duration::from_millis(30),
            _ => Duration::from_millis(60),
        }
    }

    /// Whether it sleeps when nothing comes, so that its CPU time is that of its work.
    pub fn sleeps(self) -> bool {
        self != XskBusy
    }

    /// What it counted, from its output.
    ///
    /// # Errors
    /// Where it failed or said something unexpected; for ours also where its ledger does not balance.
    pub fn counts(self, finished: &Finished) -> Result<Counts> {
        ensure!(
            finished.status.success(),
            "{} failed ({}): {}",
            self.label(),
            finished.status,
            finished.stderr.trim()
        );
        let odd = || format!("{} said something unexpected: {}", self.label(), finished.stderr.trim());
        let output = format!("{}\n{}", finished.stderr, finished.lines.join("\n"));
        match self {
            Tcpdump | TcpdumpFile => tcpdump(&output).with_context(odd),
            Dumpcap => dumpcap(&output).with_context(odd),
            NetsniffNg => netsniff(&output).with_context(odd),
            _ if self.is_ours() => ledger(&finished.last_json()?),
            _ => Ok(serde_json::from_value(finished.last_json()?)?),
        }
    }
}

/// Our ledger, which must balance and be at rest.
fn ledger(last: &Value) -> Result<Counts> {
    let field = |name: &str| last[name].as_u64().with_context(|| format!("no {name} in {last}"));
    let (seen, lost, delivered, analysed) =
        (field("seen")?, field("lost")?, field("delivered")?, field("analysed")?);
    let elsewhere = field("filtered")? + field("absorbed")? + field("shed")?;
    ensure!(seen == elsewhere + lost + delivered, "the ledger does not balance: {last}");
    ensure!(delivered == analysed, "delivered but not analysed: {last}");
    // What became flows in the kernel.
    let kept = |name: &str| last["flow_cache"][name].as_u64().unwrap_or(0);
    Ok(Counts {
        seen: Some(seen),
        received: analysed + kept("packets"),
        lost,
        bytes: Some(field("bytes")? + kept("bytes")),
        ..Counts::default()
    })
}

/// The number in front of these words.
fn number_before(text: &str, words: &str) -> Option<u64> {
    let digits = text[..text.find(words)?].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// libpcap's `received by filter` includes what was dropped.
pub(crate) fn tcpdump(text: &str) -> Option<Counts> {
    Some(Counts {
        seen: Some(number_before(text, "packets received by filter")?),
        received: number_before(text, "packets captured")?,
        lost: number_before(text, "packets dropped by kernel")?,
        ..Counts::default()
    })
}

/// `Packets received/dropped on interface 'x': R/D (pcap:...`: here `received` leaves out what was dropped.
fn dumpcap(text: &str) -> Option<Counts> {
    let line = text.lines().rfind(|line| line.starts_with("Packets received/dropped on interface"))?;
    let (received, dropped) = line.rsplit_once("': ")?.1.split_whitespace().next()?.split_once('/')?;
    let (received, lost) = (received.parse::<u64>().ok()?, dropped.parse::<u64>().ok()?);
    Some(Counts { seen: Some(received + lost), received, lost, ..Counts::default() })
}

/// netsniff-ng's `incoming` is what it has read; what it calls `unread` includes what was dropped.
fn netsniff(text: &str) -> Option<Counts> {
    let read = number_before(text, "packets incoming")?;
    let unread = number_before(text, "unread on exit")?;
    let dropped = number_before(text, "packets failed filter")?;
    Some(Counts { seen: Some(read + unread), received: read, lost: unread.max(dropped), ..Counts::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(counts: &Counts) -> (Option<u64>, u64, u64) {
        (counts.seen, counts.received, counts.lost)
    }

    #[test]
    fn what_the_systems_tools_say_is_understood() {
        let text = "tcpdump: listening on rx0, link-type EN10MB (Ethernet), snapshot length 262144 bytes\n\
                    484956 packets captured\n493248 packets received by filter\n8292 packets dropped by kernel\n";
        assert_eq!(numbers(&tcpdump(text).unwrap()), (Some(493_248), 484_956, 8292));
        let text = "Capturing on 'rx0'\nFile: /dev/null\nPackets captured: 115572\nPackets received/dropped on interface \
                    'rx0': 115572/147916 (pcap:147916/dumpcap:0/flushed:0/ps_ifdrop:0) (43.9%)\n";
        assert_eq!(numbers(&dumpcap(text).unwrap()), (Some(263_488), 115_572, 147_916));
        let text = "Running! Hang up with ^C!\n\n      176081  packets incoming (417401 unread on exit)\n      176081  \
                    packets passed filter\n      417401  packets failed filter (out of space)\n     70.3309% packet \
                    droprate\n           2  sec, 496284 usec in total\n";
        assert_eq!(numbers(&netsniff(text).unwrap()), (Some(593_482), 176_081, 417_401));
        assert!(tcpdump("tcpdump: rx0: No such device").is_none());
        assert!(dumpcap("dumpcap: failed").is_none());
        assert!(netsniff("").is_none());
    }

    #[test]
    fn a_ledger_that_does_not_balance_is_refused() {
        let mut last = serde_json::json!({"seen": 10, "filtered": 0, "absorbed": 0, "shed": 0, "lost": 4,
            "delivered": 6, "analysed": 6, "bytes": 360});
        assert_eq!(numbers(&ledger(&last).unwrap()), (Some(10), 6, 4));
        last["lost"] = 3.into();
        assert!(ledger(&last).is_err());
        last["lost"] = 4.into();
        last["analysed"] = 5.into();
        assert!(ledger(&last).is_err());
    }
}
