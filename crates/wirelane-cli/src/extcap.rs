//! `wirelane extcap`: virtual devices for Wireshark, by its extcap protocol (extcap(4)).

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use wirelane::filter::Filter;
use wirelane::{Device, LinkType, Selector, linktype};

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

/// The configurable options, in the protocol's form.
const CONFIG: &str = "\
arg {number=0}{call=--direction}{display=Direction}{type=selector}{tooltip=Which packets of the device}\n\
value {arg=0}{value=rx}{display=Received}{default=true}\n\
value {arg=0}{value=tx}{display=Sent}{default=false}\n\
value {arg=0}{value=both}{display=Both}{default=false}\n\
arg {number=1}{call=--snap-length}{display=Bytes of each packet}{type=unsigned}{default=0}\
{tooltip=0 keeps all of them}\n";

/// The devices in the protocol's form: every RX queue, and the whole device if it has several.
fn interfaces(devices: &[Device]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("extcap {{version={version}}}{{display=Wirelane}}\n");
    for device in devices.iter().filter(|device| device.up && device.link_type != LinkType::Other) {
        let name = &device.name;
        // Braces would end a value.
        if name.contains(['{', '}']) {
            continue;
        }
        if let [_, .., last] = device.rx_queues.as_slice() {
            let all = format!("{name}@0-{}", last.queue);
            text.push_str(&format!(
                "interface {{value={all}}}{{display=Wirelane: all RX queues of {name}}}\n"
            ));
        }
        for queue in &device.rx_queues {
            let (value, queue) = (&queue.virtual_device, queue.queue);
            text.push_str(&format!(
                "interface {{value={value}}}{{display=Wirelane: RX queue {queue} of {name}}}\n"
            ));
        }
    }
    text
}

fn device(name: &str) -> Result<Device> {
    let selectors = Selector::parse_list(name)?;
    let [selector] = selectors.as_slice() else { bail!("'{name}' is several devices") };
    Ok(selector.resolve()?.device)
}

fn link_type(device: &Device) -> &'static str {
    match device.link_type {
        LinkType::Raw => "dlt {number=101}{name=RAW}{display=Raw IP}\n",
        _ => "dlt {number=1}{name=EN10MB}{display=Ethernet}\n",
    }
}

fn check(expression: &str, device: &Device) -> Result<(), wirelane::Error> {
    let link = linktype::number(device.link_type).unwrap_or(linktype::ETHERNET);
    Ok(Filter::compile(expression, link).map(drop)?)
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
