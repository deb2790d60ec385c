//! `wirelane extcap`: virtual devices for Wireshark, by its extcap protocol (extcap(4)).

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use wirelane::Device;
use wirelane_monitor::extcap::{CONFIG, check, device, interfaces, link_type};
use wirelane_monitor::out;

/// Offer virtual devices to Wireshark, which starts this command
///
/// 'make install' puts a script into Wireshark's extcap folder that starts this command, so that Wireshark and tshark
/// list RX queues (eth1@2) beside other interfaces. Options are those of Wireshark's extcap protocol.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// List the virtual devices
    #[arg(long)]
    extcap_interfaces: bool,

    /// Wireshark's version
    #[arg(long, value_name = "VERSION")]
    extcap_version: Option<String>,

    /// The virtual device that is meant
    #[arg(long, value_name = "DEV")]
    extcap_interface: Option<String>,

    /// Say what its packets begin with
    #[arg(long)]
    extcap_dlts: bool,

    /// Say what can be set
    #[arg(long)]
    extcap_config: bool,

    /// Which packets; without --capture it is only looked whether the expression is right
    #[arg(long, value_name = "EXPRESSION")]
    extcap_capture_filter: Option<String>,

    /// Capture to the pipe
    #[arg(long, requires = "fifo", requires = "extcap_interface")]
    capture: bool,

    /// The pipe
    #[arg(long, value_name = "FILE")]
    fifo: Option<PathBuf>,

    /// Which packets to capture
    #[arg(long, value_name = "rx|tx|both", default_value = "rx")]
    direction: String,

    /// Keep at most this many bytes of each packet; 0 keeps all of them
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    snap_length: usize,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Examples:
  wirelane extcap --extcap-interfaces
  sudo tshark -D
  sudo tshark -i eth1@0 -f 'tcp port 443'";

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    if args.extcap_interfaces {
        return out::print(interfaces(&Device::list()?));
    }
    let Some(name) = &args.extcap_interface else {
        bail!("Wireshark starts this command; 'wirelane extcap --extcap-interfaces' lists what it offers");
    };
    if args.extcap_dlts {
        return out::print(link_type(&device(name)?));
    }
    if args.extcap_config {
        return out::print(CONFIG);
    }
    match (&args.fifo, args.capture) {
        (Some(fifo), true) => capture(args, name, fifo),
        _ => match &args.extcap_capture_filter {
            // No output means that the expression is valid.
            Some(expression) => match check(expression, &device(name)?) {
                Ok(()) => Ok(()),
                Err(error) => out::print(format!("{error}\n")),
            },
            None => bail!("nothing to do: see 'wirelane extcap --help'"),
        },
    }
}

/// Executes 'wirelane record' in this process, which writes pcapng to the pipe.
fn capture(args: &Args, name: &str, fifo: &PathBuf) -> Result<()> {
    let program = std::env::current_exe().context("looking for the place of this program")?;
    // Blocks until Wireshark opens the other end.
    let pipe = OpenOptions::new().write(true).open(fifo).with_context(|| fifo.display().to_string())?;
    let mut command = Command::new(program);
    command.args(["record", "--quiet", "--immediate", "-i", name, "-w", "-", "--direction", &args.direction]);
    command.args(["--snap-length", &args.snap_length.to_string()]);
    if let Some(expression) = args.extcap_capture_filter.as_ref().filter(|text| !text.trim().is_empty()) {
        command.arg("--").arg(expression);
    }
    // Wireshark shows everything on standard error as a failure, so advice is disabled.
    if std::env::var_os("WIRELANE_LOG").is_none() {
        command.env("WIRELANE_LOG", "warn,wirelane_monitor::advice=off");
    }
    Err(command.stdout(pipe).exec()).context("starting 'wirelane record'")
}
