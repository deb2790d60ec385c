//! The command line of `wirelane-testbed`.

mod agent;
mod manage;
mod out;
#[cfg(feature = "store")]
mod parquet;
mod progress;
mod quick;
mod sensor;
mod waiting;

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Parser;
use wirelane::escape::printable_lines;

#[cfg(feature = "bench")]
use crate::bench;
use crate::collection::Collection;

/// Measure any sensor under suites of traffic: ours, tcpdump, dumpcap, your own
///
/// On one machine: a generator and a sensor in network namespaces that are made for it, with a veth pair between them. Nothing
/// of the machine's devices is touched, and nothing is left behind, however it ends. Needs root. Or between two machines, by
/// an agent on each.
#[derive(Parser, Debug)]
#[command(name = "wirelane-testbed", version, arg_required_else_help = true, after_long_help = HELP)]
enum Command {
    /// Run a suite, which a TOML file describes
    Run(RunArgs),
    /// Compare sensors at some rates, without a suite's file
    Quick(QuickArgs),
    /// Compare two folders of results, case by case
    Compare(CompareArgs),
    /// Run the suites of published measurements, and draw their points beside ours
    #[command(alias = "papers")]
    Reproductions(CollectionArgs),
    /// Run the suites of our own benchmarks
    Bench(CollectionArgs),
    /// Measure single parts of Wirelane by themselves
    #[cfg(feature = "bench")]
    Measure(bench::Args),
    /// Draw the results of a suite again
    Report(ReportArgs),
    /// List the sensors that suites can name, and which programs are missing
    Sensors(SensorsArgs),
    /// Wait for managers on other machines, and send or capture for them
    Agent(AgentArgs),
    /// Accept the connections of an agent
    #[command(hide = true)]
    AgentFront(FrontArgs),
    /// Capture by libpcap or into rings, and spin for each packet: sensors such as 'libpcap-loops'
    Sensor(SensorArgs),
    /// Receive with a small program of its own kind; ends at SIGTERM
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Receive(bench::receive::Args),
    /// Generate packets that 'wirelane send' does not make
    #[cfg(feature = "bench")]
    #[command(hide = true, subcommand)]
    Generate(Generate),
    /// Write rule files with many rules
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Rules(bench::rules::Args),
}

/// Generators that only the test-bed has.
#[cfg(feature = "bench")]
#[derive(clap::Subcommand, Debug)]
enum Generate {
    /// Clones of one socket buffer
    Clones(bench::clones::Args),
    /// Flows that end, or differ in size
    Flows(bench::flows::Args),
}

/// Options of `testbed quick`.
#[derive(clap::Args, Debug)]
pub struct QuickArgs {
    /// Sensors to compare; 'wirelane testbed sensors' lists them
    #[arg(value_name = "SENSOR", required = true)]
    sensors: Vec<String>,

    /// Packets per second, as in 500000, 500k or 1.2M; several with commas
    #[arg(long = "rate", value_name = "PPS", value_delimiter = ',', default_value = "100k")]
    rates: Vec<Rate>,

    /// Bytes of a frame without FCS; several alternate, with commas
    #[arg(long = "size", value_name = "BYTES", value_delimiter = ',', default_value = "60")]
    sizes: Vec<u16>,

    /// Duration of a run, as in 1s or 500ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    duration: String,

    /// Runs of each sensor at each rate
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: u32,

    /// Core of the sensor. Default: 1, if there is one
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,

    /// Folder for the results, which is made. Default: they are only printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Adapters of your own: a TOML file, or a folder of such files; repeatable
    #[arg(long = "sensors", value_name = "PATH")]
    adapters: Vec<PathBuf>,

    /// Print one JSON object: each case with runs, mean, standard deviation, lowest and highest value
    #[arg(long)]
    json: bool,
}

/// Packets per second.
#[derive(Clone, Copy, Debug)]
struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let (digits, factor) = match text.char_indices().next_back() {
            Some((at, 'k' | 'K')) => (&text[..at], 1e3),
            Some((at, 'm' | 'M')) => (&text[..at], 1e6),
            _ => (text, 1.0),
        };
        let rate = digits.parse::<f64>().ok().map(|rate| rate * factor);
        rate.filter(|rate| rate.is_finite() && *rate > 0.0)
            .map(Rate)
            .ok_or_else(|| format!("invalid rate '{text}': expected packets per second, e.g. 500k"))
    }
}

/// Options of `testbed compare`.
#[derive(clap::Args, Debug)]
pub struct CompareArgs {
    /// Folder of results of 'run', or of 'quick --out'
    #[arg(value_name = "BEFORE")]
    before: PathBuf,

    /// Folder of other results of the same suite
    #[arg(value_name = "AFTER")]
    after: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Files of the agent: certificate, key, authority.
#[derive(clap::Args, Debug)]
pub struct FrontArgs {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

/// Options of `testbed run`.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// The suite
    #[arg(value_name = "SUITE.toml", required_unless_present = "resume", conflicts_with = "resume")]
    suite: Option<PathBuf>,

    /// Folder for the results, which is made. Default: testbed-NAME here
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,

    /// Go on with the suite of this folder, where it was interrupted
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,

    /// Adapters of your own: a TOML file, or a folder of such files; repeatable
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,

    /// Say what would be run, and run nothing
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    identity: Identity,
}

/// Identity of this machine for remote agents.
#[derive(clap::Args, Debug)]
pub struct Identity {
    /// Certificate of this machine, PEM: for a suite with agents
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"], help_heading = AGENTS)]
    cert: Option<PathBuf>,

    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = AGENTS)]
    key: Option<PathBuf>,

    /// Certificate of the authority that has signed it and those of the agents, PEM
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = AGENTS)]
    ca: Option<PathBuf>,
}

const AGENTS: &str = "Agents on other machines";

/// Options of `testbed agent`.
#[derive(clap::Args, Debug)]
#[command(after_long_help = AGENT_HELP)]
pub struct AgentArgs {
    /// Where to wait for managers
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// Certificate of this agent, PEM, which names the address that suites have of it
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,

    /// Its key, PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,

    /// Certificate of the authority that has signed those of managers, PEM
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,

    /// The only device that managers may name. Default: any
    #[arg(long, value_name = "DEV")]
    device: Option<String>,

    /// The only cores that managers may have, as in 1,3. Default: all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cores: Vec<usize>,

    /// Let managers set the number of RX queues of the device of --device, and have kernel threads take packets from them
    /// (NAPI); its interrupts and these threads then are on the sensor's cores. All is set back when manager or agent
    /// are gone
    #[arg(long, requires = "device")]
    arrange: bool,

    /// Accept trials while other programs use the cores, such as an emulated machine, if the generator keeps its rate
    #[arg(long)]
    busy_cores: bool,

    /// Adapters of sensors that managers may name, beside those that are shipped: a TOML file, or a folder; repeatable
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,
}

/// Text after the options of the agent in the long help.
pub const AGENT_HELP: &str = "\
An agent works for one manager at a time: it sends by 'wirelane send', or starts
the sensor that the manager names, out of an adapter that it has itself. When
the manager is gone, so is what it has started for it; and when it ends itself,
however it does. Its device and its queues, NAPI and interrupts stay as they
are, except with --arrange. It needs root, and says 'listening on' when it is
ready.

Give it an address of a network that carries none of the traffic. Managers need
a certificate of the authority of --ca, and take only one for this address from
the agent. docs/guides/test-bed.md shows how to make them.

Example:
  sudo wirelane testbed agent --listen 192.0.2.2:4433 --cert sensor.pem \\
    --key sensor.key --ca ca.pem --device eth2";

/// Options of `reproductions` and `bench`.
#[derive(clap::Args, Debug)]
pub struct CollectionArgs {
    /// Fewer steps, one repetition, shorter trials: minutes instead of hours
    #[arg(long)]
    quick: bool,

    /// Repetitions of each trial, instead of those of the suites
    #[arg(long, value_name = "N", conflicts_with = "resume", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,

    /// Only this suite; repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Folder for the results, which is made. Default: testbed-published-measurements or testbed-benchmarks here
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,

    /// Go on with this folder, where it was interrupted
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    resume: Option<PathBuf>,

    /// Name the suites
    #[arg(long)]
    list: bool,
}

/// Options of `testbed report`.
#[derive(clap::Args, Debug)]
pub struct ReportArgs {
    /// The folder of the results
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Adapters of your own, as for 'run'
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,
}

/// Options of `testbed sensors`.
#[derive(clap::Args, Debug)]
pub struct SensorsArgs {
    /// Adapters of your own, as for 'run'
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,
}

/// Options of `testbed sensor`.
#[derive(clap::Args, Debug)]
pub struct SensorArgs {
    /// Device to capture on
    #[arg(short, long, value_name = "DEV")]
    interface: String,

    /// Loops to spin for each packet
    #[arg(long, value_name = "LOOPS", default_value_t = 0)]
    loops: u32,

    /// Size of libpcap's buffer, or of a ring, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    buffer: u32,

    /// Where packets come from
    #[arg(long, value_enum, default_value_t = Source::Libpcap)]
    source: Source,

    /// Threads that take turns at one handle of libpcap
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,

    /// Packets that wait for threads of the analysis, one for each core. Default: packets are analysed by the threads that
    /// capture them
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u32).range(1..))]
    queue: Option<u32>,
}

/// Source of packets for `testbed sensor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    /// The system's libpcap
    Libpcap,
    /// Rings of the library; the host does not get the packets
    Ring,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
A suite says which sensors are measured, under which traffic:

  name = \"first\"
  sensors = [\"wirelane-count\", \"tcpdump\"]
  rates = [100000, 200000]     # packets a second; or
  # sweep = { from = 50000, to = 1500000, steps = 21 }
  # search = [0.005, 0]        # the highest rate with so much loss
  # full-speed = true
  duration = \"1s\"
  repetitions = 3
  cores = [[1]]                # of the sensor; sets are measured in turn
  workers = [1, 2]             # so are these, and queues, loops, engines
  [traffic]
  sizes = [60, 1514]           # or: replay = \"capture.pcap\"
  # calls = [100, 1000]        # RTP of calls instead, answered before

Each trial adds a line to trials.csv as it ends: offered, sent, captured,
analysed, lost, CPU time, and why it does not count where it does not. At the
end the folder has tables, CSV, Parquet, charts as SVG and PNG, and
report.html. An interrupted run goes on with --resume.

A sensor that is not installed is skipped, and named. Others than those of
'wirelane testbed sensors' take an adapter of a few lines, which
docs/reference/suites.md describes.

Between two machines, with 'wirelane testbed agent' on each:

  [injector]
  agent = \"192.0.2.1:4433\"
  device = \"eth1\"
  [sensor]
  agent = \"192.0.2.2:4433\"
  device = \"eth2\"

With 'receiver = true' the sensor's side passes on what it is left to a third
namespace, where it is counted: what a sensor costs its host's own traffic, or
keeps from it (passed_on; charts with 'quantity = \"passed-on\"'). The sensor
'nobody' is what to compare with. Between machines give [receiver] an agent too;
how its machine gets packets on is then yours to set up.

Examples:
  wirelane testbed sensors
  sudo wirelane testbed quick tcpdump wirelane-count --rate 500k
  sudo wirelane testbed run first.toml
  sudo wirelane testbed run --resume testbed-first
  wirelane testbed compare testbed-first testbed-second
  sudo wirelane testbed reproductions --quick
  wirelane testbed run first.toml --cert me.pem --key me.key --ca ca.pem

Exit status: 0 done, 1 failed or trials went wrong, 2 wrong usage.";

/// Runs the program.
pub fn main() -> ExitCode {
    let level = tracing_subscriber::EnvFilter::try_from_env("WIRELANE_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .with_env_filter(level)
        .init();
    let result = match Command::parse() {
        Command::Run(args) => manage::run(&args),
        Command::Quick(args) => quick::quick(&args),
        Command::Compare(args) => quick::compare(&args),
        Command::Reproductions(args) => manage::collection(Collection::Reproductions, &args),
        Command::Bench(args) => manage::collection(Collection::Benchmarks, &args),
        #[cfg(feature = "bench")]
        Command::Measure(args) => manage::measure_parts(&args),
        Command::Report(args) => manage::report(&args),
        Command::Sensors(args) => manage::sensors(&args),
        Command::Agent(args) => agent::run(&args),
        Command::AgentFront(args) => agent::front(&args),
        Command::Sensor(args) => sensor::run(&args),
        #[cfg(feature = "bench")]
        Command::Receive(args) => bench::receive::run(&args),
        #[cfg(feature = "bench")]
        Command::Generate(Generate::Clones(args)) => bench::clones::run(&args),
        #[cfg(feature = "bench")]
        Command::Generate(Generate::Flows(args)) => bench::flows::run(&args),
        #[cfg(feature = "bench")]
        Command::Rules(args) => bench::rules::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(&format!("wirelane-testbed: {}", printable_lines(&format!("{error:#}"))));
            ExitCode::FAILURE
        }
    }
}

/// Path of `wirelane`, which sends and is the program of our sensors: WIRELANE_BIN, else the program beside this one,
/// else the first in PATH.
fn wirelane_program() -> Result<PathBuf> {
    if let Some(named) = env::var_os("WIRELANE_BIN") {
        return Ok(named.into());
    }
    let beside = env::current_exe().context("finding this program")?.with_file_name("wirelane");
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join("wirelane"));
    std::iter::once(beside)
        .chain(in_path)
        .find(|program| program.is_file())
        .context("the program wirelane is neither beside this one nor in PATH, nor does WIRELANE_BIN name it")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Command::command().debug_assert();
    }

    #[test]
    fn help_fits_80_columns() {
        let long: Vec<&str> = [HELP, AGENT_HELP]
            .iter()
            .flat_map(|help| help.lines())
            .filter(|line| line.chars().count() > 80)
            .collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}
