//! `wirelane devices`: devices that can be captured.

use serde::Serialize;
use wirelane::KernelFeatures;
use wirelane::Selector;
use wirelane::device::{Device, Selected};
use wirelane::escape::to_json;

use wirelane_monitor::out;
use wirelane_screen::devices::{Style, detail, kernel as features, table};

/// List devices with their RX queues, and the kernel's capture features
///
/// Without DEV: a table of all devices. With DEV: all details, and a line per RX queue. Needs no privilege; names of
/// XDP programs need CAP_SYS_ADMIN.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Device to show in detail: eth1 with all of its RX queues, eth1@2 or eth1@0-3 with these; several with
    /// commas or as further arguments
    #[arg(value_name = "DEV")]
    pub devices: Vec<String>,
    /// Print one JSON object a line: one for each device, and the last one, about the kernel, with "final": true
    #[arg(long)]
    pub json: bool,
    /// Print only the names of the devices and of their RX queues as virtual devices, one a line, as -i takes them
    #[arg(long, conflicts_with = "json")]
    pub names: bool,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Columns of the table:
  STATE      up, no link, or down
  SPEED      speed of the link, in bits per second
  NUMA       NUMA node of the card
  RX QUEUES  in the notation of -i: eth1@0-3 are the RX queues 0 to 3 of eth1
  XDP        modes of the driver: 'native' captures fastest, '0-copy' is AF_XDP
             zero copy, 'generic' works with every driver; or the mode in use
  IRQS       number of interrupts

Examples:
  wirelane devices
  wirelane devices eth1
  wirelane devices --json | jq -r 'select(.final | not) | .device'";

/// The last line of the JSON output.
#[derive(Serialize)]
struct KernelLine<'a> {
    r#final: bool,
    kernel: &'a KernelFeatures,
}

/// Runs the command.
///
/// # Errors
/// If a device or queue does not exist, or the kernel does not answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.names && args.devices.is_empty() {
        return out::print(Device::list()?.iter().map(names).collect::<String>());
    }
    let kernel = KernelFeatures::probe()?;
    let style = Style { colour: out::in_colour(&std::io::stdout()) };
    let output = if args.devices.is_empty() {
        let devices = Device::list()?;
        if args.json {
            json_lines(&devices, &kernel)?
        } else {
            format!("{}\n{}", table(&devices, style), features(&kernel, style))
        }
    } else {
        let mut selectors = Vec::new();
        for list in &args.devices {
            selectors.extend(Selector::parse_list(list)?);
        }
        let selected = Selector::resolve_all(&selectors)?;
        if args.names {
            selected.into_iter().map(only_selected).map(|device| names(&device)).collect()
        } else if args.json {
            json_lines(&selected.into_iter().map(only_selected).collect::<Vec<_>>(), &kernel)?
        } else {
            let parts: Vec<String> = selected.iter().map(|one| detail(one, style)).collect();
            parts.join("\n")
        }
    };
    out::print(output)
}

/// The name of a device, and of each of its RX queues if it has several.
fn names(device: &Device) -> String {
    let name = &device.name;
    let queues = device.rx_queues.iter().filter(|_| device.rx_queues.len() > 1);
    format!("{name}\n") + &queues.map(|queue| format!("{name}@{}\n", queue.queue)).collect::<String>()
}

/// The device with only the selected queues.
fn only_selected(selected: Selected) -> Device {
    let Selected { mut device, queues, .. } = selected;
    device.rx_queues.retain(|queue| queues.contains(&queue.queue));
    device
}

fn json_lines(devices: &[Device], kernel: &KernelFeatures) -> anyhow::Result<String> {
    let mut lines = String::new();
    for device in devices {
        lines.push_str(&to_json(device)?);
        lines.push('\n');
    }
    lines.push_str(&to_json(&KernelLine { r#final: true, kernel })?);
    lines.push('\n');
    Ok(lines)
}
