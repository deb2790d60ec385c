//! The options of the bench, and what they choose.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::bed::Setup;
use crate::receiver::{Receiver, USUAL};
use crate::trial::{Load, Method};

/// The largest frame, in bytes, that the generator can make inside the kernel.
pub const LARGEST_LIVE_FRAME: u32 = 3300;

/// RX queues, workers and applications of a quick run's studies; rules.
const QUICK_MOST: usize = 2;
const QUICK_MOST_RULES: u32 = 1000;

/// MTU of the devices for frames up to 1514 bytes.
pub const USUAL_MTU: u32 = 1500;

/// Compare receivers on the same generator: throughput, loss-free rate, CPU time
///
/// Traffic stays in network namespaces that are made and removed. Needs root, two cores, and a built 'wirelane'.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Receivers, with commas; all usual ones where it is left out
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = USUAL)]
    pub receivers: Vec<Receiver>,

    /// Setups: A has NAPI on the generator's core, B on the receiver's
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Setup::A, Setup::B], ignore_case = true)]
    pub setups: Vec<Setup>,

    /// Bytes of a frame without FCS
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = [60, 300, 1500, 9000])]
    pub sizes: Vec<u32>,

    /// How frames are made; where it is left out, as clones of a socket buffer, and for 60 bytes also as live frames
    #[arg(long, value_enum, value_delimiter = ',')]
    pub methods: Vec<Method>,

    /// Rounds of the throughput measurement; each has every receiver once, every other one only the first size
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,

    /// Length of a trial in seconds
    #[arg(long, value_name = "S", default_value_t = 0.5)]
    pub seconds: f64,

    /// Receivers' buffers in MiB, a power of two; AF_XDP always has 4096 frames of 4 KiB
    #[arg(long, value_name = "MIB", default_value_t = 4)]
    pub buffer: u32,

    /// What to measure; everything where it is left out
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    pub parts: Vec<Part>,

    /// Studies: RX queues, workers and applications are 1, 2, 4 and 8, up to this
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub most: usize,

    /// Studies of rules: there are 1, 1000, 40,000 and 1,000,000 precise ones and 1, 1000 and 4096 wildcard ones, up to
    /// this
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub most_rules: u32,

    /// Study of congestion: loops that a worker spins for each packet, as if it were analysed; with the first it is
    /// offered all rates, with others as much and twice as much as it can analyse, and full speed
    #[arg(long, value_name = "LOOPS", value_delimiter = ',', default_values_t = [25_000, 1000])]
    pub load: Vec<u32>,

    /// Store: flows that are written and asked about; 100 million where it is left out, and 2 million with --quick. They
    /// take some 65 bytes each, for the time of the run
    #[arg(long, value_name = "N")]
    pub flows: Option<u64>,

    /// Store: the folder in which they are written to one of their own; that for temporary files where it is left out
    #[arg(long = "store-folder", value_name = "FOLDER")]
    pub store: Option<PathBuf>,

    /// Payloads searched for patterns: a folder with pcap and pcapng files; left out where there is none
    #[arg(long, value_name = "FOLDER")]
    pub captures: Option<PathBuf>,

    /// Studies: cores that workers take in turn; all but the generator's where it is left out
    #[arg(long = "worker-cores", value_name = "LIST", value_delimiter = ',')]
    pub workers: Vec<usize>,

    /// Cores of generator and receiver
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [0, 1])]
    pub cores: Vec<usize>,

    /// Nice value of generator, receiver and NAPI's thread, so that other programs on the machine disturb less
    #[arg(long, value_name = "N", default_value_t = -20, allow_hyphen_values = true)]
    pub nice: i32,

    /// A shorter look: 60-byte frames, two rounds, short trials, loss-free rates of few receivers, studies with up to two
    /// RX queues, workers and applications, and with up to 1000 rules
    #[arg(long)]
    pub quick: bool,

    /// Studies: count trials that something else disturbed, instead of trying them again. Accounts are as exact, rates and
    /// ratios say little
    #[arg(long)]
    pub disturbed: bool,

    /// Also put a table and the charts into docs/measured/receivers.md
    #[arg(long)]
    pub readme: bool,

    /// Folder for the results; bench/results/DATE-KERNEL-PROCESSOR where it is left out, with a number for a further run
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Packets received while the generator runs as fast as it can
    Throughput,
    /// The highest rate without loss, and with a loss of 0.5 %, for frames of the first size; and what happens at
    /// twice that rate
    LossFree,
    /// What the parts of a kernel program cost
    Cost,
    /// Payloads searched for patterns
    Patterns,
    /// tcpdump and softflowd on our libpcap and on the system's: the highest rates without loss
    Libpcap,
    /// Flows made in the kernel: what a packet costs, and how many parts come up; rates of both caches beside softflowd,
    /// nfpcapd and pmacctd
    Flows,
    /// RTP of calls, measured in the kernel and in user space: what a packet costs, by the number of streams
    Voip,
    /// HTTP logs side by side: heads picked out in the kernel, in the worker, and httpry: loss-free rates, CPU time of a
    /// request, packets that come up
    Http,
    /// The store of flows: how many a second are written, bytes of each, and seconds of ready questions
    Store,
    /// Study: 1 to 8 RX queues, each to a worker of its own; and Fusco and Deri's Table 2
    Queues,
    /// Study: one RX queue to 1 to 8 workers
    Workers,
    /// Study: overload of the analysis, with and without congestion control
    Congestion,
    /// Study: skewed flows and an elephant over workers, static and with adaptive balance
    Skew,
    /// Study: 1 to 8 applications on one device
    Sharing,
    /// Studies: precise and wildcard rules, one flow of 256 forwarded, a filter in the kernel and in user space
    Rules,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 15] = [
        Part::Throughput,
        Part::LossFree,
        Part::Cost,
        Part::Patterns,
        Part::Libpcap,
        Part::Flows,
        Part::Voip,
        Part::Http,
        Part::Store,
        Part::Queues,
        Part::Workers,
        Part::Congestion,
        Part::Skew,
        Part::Sharing,
        Part::Rules,
    ];
}

impl Options {
    /// Checks them, and puts in what `--quick` means.
    ///
    /// # Errors
    /// Where they make no sense.
    pub fn check(mut self) -> Result<Options> {
        if self.quick {
            self.rounds = self.rounds.min(2);
            self.seconds = self.seconds.min(0.3);
            self.sizes.truncate(1);
            self.most = self.most.min(QUICK_MOST);
            self.most_rules = self.most_rules.min(QUICK_MOST_RULES);
        }
        ensure!(
            self.cores.len() == 2 && self.cores[0] != self.cores[1],
            "--cores: give two different ones, of generator and receiver, as in 0,1"
        );
        ensure!(!self.setups.is_empty() && !self.sizes.is_empty(), "--setups, --sizes: give one or more");
        ensure!(self.rounds > 0, "--rounds: give 1 or more");
        ensure!((0.1..=60.0).contains(&self.seconds), "--seconds: give 0.1 to 60");
        ensure!(
            self.buffer.is_power_of_two() && self.buffer <= 1024,
            "--buffer: give a power of two up to 1024 (MiB)"
        );
        ensure!(
            self.sizes.iter().all(|size| (60..=9014).contains(size)),
            "--sizes: frames have 60 to 9014 bytes here"
        );
        ensure!((-20..20).contains(&self.nice), "--nice: give -20 to 19");
        ensure!(self.flows.is_none_or(|flows| flows >= 100), "--flows: give 100 or more");
        ensure!((1..=64).contains(&self.most), "--most: give 1 to 64");
        ensure!(self.most_rules > 0, "--most-rules: give 1 or more");
        let is_load = |load: &u32| (1..=10_000_000).contains(load);
        ensure!(
            !self.load.is_empty() && self.load.iter().all(is_load),
            "--load: give one or more of 1 to 10000000"
        );
        ensure!(
            !self.worker_cores().contains(&self.cores[0]),
            "--worker-cores: core {} is the generator's: see --cores",
            self.cores[0]
        );
        ensure!(
            !self.loads().is_empty(),
            "--methods kernel: makes frames of up to {LARGEST_LIVE_FRAME} bytes"
        );
        Ok(self)
    }

    /// The cores of the studies' workers, the receiver's first.
    pub fn worker_cores(&self) -> Vec<usize> {
        if !self.workers.is_empty() {
            return self.workers.clone();
        }
        let others = wirelane::device::allowed_cpus().into_iter().filter(|core| !self.cores.contains(core));
        std::iter::once(self.cores[1]).chain(others).collect()
    }

    /// The traffic of the throughput measurement.
    pub fn loads(&self) -> Vec<Load> {
        let wanted = |load: &Load| match load.method {
            Method::Kernel if load.size > LARGEST_LIVE_FRAME => false,
            _ if !self.methods.is_empty() => self.methods.contains(&load.method),
            Method::Kernel => load.size == 60,
            Method::Clone => true,
            Method::Socket => false,
        };
        let each = |size: &u32| {
            [Method::Kernel, Method::Clone, Method::Socket].map(|method| Load { method, size: *size })
        };
        self.sizes.iter().flat_map(each).filter(wanted).collect()
    }

    /// The traffic of the searches: socket buffers where there are any, since real devices bring them too.
    pub fn searched_load(&self) -> Option<Load> {
        let loads = self.loads();
        let of = |method| loads.iter().find(|load: &&Load| load.method == method).copied();
        of(Method::Clone).or(of(Method::Kernel)).or(of(Method::Socket))
    }

    /// The receivers whose loss-free rate is searched for.
    pub fn searched(&self, receivers: &[Receiver]) -> Vec<Receiver> {
        let few = [Receiver::RingNative, Receiver::Packet];
        receivers.iter().copied().filter(|one| !self.quick || few.contains(one)).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        Cli::parse_from(line.split_whitespace()).options
    }

    #[test]
    fn frames_are_made_by_the_method_that_can() {
        let text = |line| {
            let loads = options(line).loads();
            loads
                .iter()
                .map(|load| format!("{}{}", load.method.name(), load.size))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(text("bench"), "kernel60 clone60 clone300 clone1500 clone9000");
        assert_eq!(text("bench --methods kernel"), "kernel60 kernel300 kernel1500");
        assert_eq!(text("bench --sizes 300 --methods socket,kernel"), "kernel300 socket300");
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "bench --cores 1,1",
            "bench --cores 1",
            "bench --rounds 0",
            "bench --buffer 3",
            "bench --sizes 59",
            "bench --seconds 0.01",
            "bench --sizes 9000 --methods kernel",
            "bench --most 0",
            "bench --flows 99",
            "bench --most-rules 0",
            "bench --load 0",
            "bench --load 1000,0",
            "bench --worker-cores 1,0",
        ] {
            assert!(options(line).check().is_err(), "{line}");
        }
        assert!(options("bench --nice -5 --setups a").check().is_ok());
    }

    #[test]
    fn parts_are_all_unless_chosen_and_an_unknown_one_is_told_the_others() {
        assert_eq!(options("bench").parts, Part::ALL);
        assert_eq!(options("bench --parts skew,queues").parts, [Part::Skew, Part::Queues]);
        let error = Cli::try_parse_from(["bench", "--parts", "queues,nonsense"]).err().unwrap().to_string();
        let known =
            "throughput, loss-free, cost, patterns, libpcap, flows, voip, http, store, queues, workers, congestion, skew, sharing, rules"
                .split(", ");
        assert!(error.contains("nonsense") && known.into_iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn workers_have_the_receivers_core_first_and_never_the_generators() {
        assert_eq!(options("bench --cores 1,0").worker_cores()[0], 0);
        assert!(!options("bench --cores 1,0").worker_cores().contains(&1));
        assert_eq!(options("bench --worker-cores 3,5").worker_cores(), [3, 5]);
    }
}
