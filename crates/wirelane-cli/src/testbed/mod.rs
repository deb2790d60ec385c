//! `wirelane testbed`: batteries of traffic against any sensor, on this machine or between two.

#[cfg(feature = "testbed")]
mod agent;
#[cfg(feature = "testbed")]
mod manage;
#[cfg(all(feature = "testbed", feature = "store"))]
mod parquet;
#[cfg(feature = "testbed")]
mod progress;
#[cfg(feature = "testbed")]
mod sensor;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;

/// Measure any sensor under batteries of traffic: ours, tcpdump, dumpcap, your own
///
/// On one machine: a generator and a sensor in network namespaces that are made for it, with a veth pair between them. Nothing
/// of the machine's devices is touched, and nothing is left behind, however it ends. Needs root. Or between two machines, by
/// an agent on each.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Run a battery, which a TOML file describes
    Run(RunArgs),
    /// Run the batteries of published measurements, and draw their points beside ours
    Papers(PapersArgs),
    /// Draw the results of a battery again
    Report(ReportArgs),
    /// List the sensors that batteries can name, and which programs are missing
    Sensors(SensorsArgs),
    /// Wait for managers on other machines, and send or capture for them
    Agent(AgentArgs),
    /// Capture by libpcap, and spin for each packet: the sensor 'libpcap-loops'
    Sensor(SensorArgs),
}

/// Options of `testbed run`.
#[derive(clap::Args, Debug)]
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct RunArgs {
    /// The battery
    #[arg(value_name = "BATTERY.toml", required_unless_present = "resume", conflicts_with = "resume")]
    battery: Option<PathBuf>,

    /// Folder for the results, which is made. Default: testbed-NAME here
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,

    /// Go on with the battery of this folder, where it was interrupted
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

/// Who this machine is, for agents on others.
#[derive(clap::Args, Debug)]
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct Identity {
    /// Certificate of this machine, PEM: for a battery with agents
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
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct AgentArgs {
    /// Where to wait for managers
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,

    /// Certificate of this agent, PEM, which names the address that batteries have of it
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

    /// Adapters of sensors that managers may name, beside those that are shipped: a TOML file, or a folder; repeatable
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,
}

/// What follows the options of the agent in the long help.
pub const AGENT_HELP: &str = "\
An agent works for one manager at a time: it sends by 'wirelane send', or starts
the sensor that the manager names, out of an adapter that it has itself. When
the manager is gone, so is what it has started for it; and when it ends itself,
however it does. Its device and its queues, NAPI and interrupts stay as they
are. It needs root, and says 'listening on' when it is ready.

Give it an address of a network that carries none of the traffic. Managers need
a certificate of the authority of --ca, and take only one for this address from
the agent. docs/guides/test-bed.md shows how to make them.

Example:
  sudo wirelane testbed agent --listen 192.0.2.2:4433 --cert sensor.pem \\
    --key sensor.key --ca ca.pem --device eth2";

/// Options of `testbed papers`.
#[derive(clap::Args, Debug)]
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct PapersArgs {
    /// Fewer steps, one repetition, shorter trials: minutes instead of hours
    #[arg(long)]
    quick: bool,

    /// Only this battery; repeatable
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Folder for the results, which is made
    #[arg(long, value_name = "DIR", default_value = "testbed-papers", conflicts_with = "resume")]
    out: PathBuf,

    /// Go on with this folder, where it was interrupted
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    resume: Option<PathBuf>,

    /// Name the batteries
    #[arg(long)]
    list: bool,
}

/// Options of `testbed report`.
#[derive(clap::Args, Debug)]
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
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
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct SensorsArgs {
    /// Adapters of your own, as for 'run'
    #[arg(long, value_name = "PATH")]
    sensors: Vec<PathBuf>,
}

/// Options of `testbed sensor`.
#[derive(clap::Args, Debug)]
#[cfg_attr(not(feature = "testbed"), expect(dead_code, reason = "read by what was not built"))]
pub struct SensorArgs {
    /// Device to capture on
    #[arg(short, long, value_name = "DEV")]
    interface: String,

    /// Loops to spin for each packet
    #[arg(long, value_name = "LOOPS", default_value_t = 0)]
    loops: u32,

    /// Size of libpcap's buffer in MiB
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    buffer: u32,
}

/// What follows the options in the long help.
pub const HELP: &str = "\
A battery says which sensors are measured, under which traffic:

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
docs/reference/batteries.md describes.

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
  sudo wirelane testbed run first.toml
  sudo wirelane testbed run --resume testbed-first
  sudo wirelane testbed papers --quick
  wirelane testbed run first.toml --cert me.pem --key me.key --ca ca.pem

Exit status: 0 done, 1 failed or trials went wrong, 2 wrong usage.";

/// Runs the command.
#[cfg(feature = "testbed")]
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Run(args) => manage::run(args),
        Command::Papers(args) => manage::papers(args),
        Command::Report(args) => manage::report(args),
        Command::Sensors(args) => manage::sensors(args),
        Command::Agent(args) => agent::run(args),
        Command::Sensor(args) => sensor::run(args),
    }
}

/// Runs the command.
#[cfg(not(feature = "testbed"))]
pub fn run(args: &Args) -> Result<()> {
    let Args { command: _ } = args;
    anyhow::bail!(
        "this program was built without the test-bed; 'make build' builds one with it (cargo: feature 'testbed' of \
         the crate wirelane-cli)"
    )
}
