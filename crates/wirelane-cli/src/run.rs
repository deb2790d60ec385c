//! `wirelane run`: runs a libpcap program with our libpcap before the system's.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Run a libpcap program (tcpdump, tshark, suricata, ...) on Wirelane
///
/// The program and its children load Wirelane's libpcap in front of the system's (LD_PRELOAD). Wirelane captures on
/// devices, virtual devices (eth1@2, eth1@0-3) and groups that several processes share by flow (eth1:ids/4); files and
/// the device 'any' are handled by the system's libpcap.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Keep all packets received on the captured devices from the host's network stack, wanted or not: for devices that
    /// only capture (a login over one would hang). Transmitted packets are not captured then
    #[arg(long, alias = "take")]
    exclusive: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Devices:
  eth1         all of eth1, received and sent, as tcpdump shows it
  eth1@2       RX queue 2 of eth1; eth1@0-3 are four queues: received packets
  eth1:ids/4   a share of eth1: 4 processes (up to 64) that name the same group
               get a quarter of all flows each, with both directions of a
               conversation. Each process takes the first free share

Environment:
  WIRELANE_PCAP=named         only eth1@2, eth1:ids/4 and the like are captured
                              by Wirelane, other devices by the system's libpcap
  WIRELANE_EXCLUSIVE=1        like --exclusive
  WIRELANE_SYSTEM_LIBPCAP     the file of the system's libpcap, if not found

Programs with file capabilities or the set-user-id bit do not load libraries
from LD_PRELOAD: run them as root: sudo wirelane run -- COMMAND.

Examples:
  sudo wirelane run -- tcpdump -n -i eth1@2
  sudo wirelane run -- tshark -i eth1 -f 'tcp port 443'
  for i in 1 2; do sudo wirelane run -- tcpdump -i eth1:t/2 -w $i.pcap & done";

/// File name of the preload library if installed, and as cargo builds it.
const INSTALLED: &str = "libwirelane-pcap.so";
const BUILT: &str = "libwirelane_libpcap_preload.so";

/// Executes the command in this process.
pub fn run(args: &Args) -> Result<()> {
    let library = library()?;
    let mut preload = library.into_os_string();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let Some((program, arguments)) = args.command.split_first() else { bail!("no command") };
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload);
    if std::env::var_os("WIRELANE_PCAP").is_none() {
        command.env("WIRELANE_PCAP", "all");
    }
    if args.exclusive {
        command.env("WIRELANE_EXCLUSIVE", "1");
    }
    Err(command.exec()).with_context(|| format!("starting {}", program.to_string_lossy()))
}

/// Path of the library: installed like this program, or built beside it.
fn library() -> Result<PathBuf> {
    let program = std::env::current_exe().context("looking for the place of this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join("../lib/wirelane").join(INSTALLED), folder.join(BUILT)];
    match places.iter().find_map(|place| place.canonicalize().ok()) {
        Some(place) => Ok(place),
        None => bail!(
            "Wirelane's libpcap is neither at {} nor at {}: 'make build' builds it, and 'make install' puts it in its place",
            places[0].display(),
            places[1].display()
        ),
    }
}
