//! `wirelane groups`: captures by device.

use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::groups;

use wirelane_monitor::out;
use wirelane_screen::groups::table;

/// List the captures on each device, with their ledgers
///
/// Every capture has a group of its own on each device: its own copies, workers and ledger. Shows those of this
/// network namespace, whoever owns them. Needs the rights of a capture, and changes nothing.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Print one JSON object a line for each group, and a last one with "final": true
    #[arg(long)]
    pub json: bool,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
Columns:
  GROUP      device, hook, and the group's slot there, 0 to 15; 'device-wide':
             packets that its rules drop reach nobody
  OWNER      command and process, as given by the owner; 'gone' after it: the
             owner was killed, and its slot will be cleared
  WORKERS    their number, and the steering
  FILTER     its tcpdump expression; '-': all packets
  seen       = filtered + absorbed + shed + lost + delivered, in packets

Examples:
  wirelane groups
  wirelane groups --json | jq -r 'select(.final | not) | .owner'";

#[derive(Serialize)]
struct Last {
    r#final: bool,
    groups: usize,
}

/// Runs the command.
///
/// # Errors
/// If privileges are missing, or the kernel does not answer.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let groups = groups::list()?;
    let mut output = String::new();
    if args.json {
        for group in &groups {
            output.push_str(&(to_json(group)? + "\n"));
        }
        output.push_str(&(to_json(&Last { r#final: true, groups: groups.len() })? + "\n"));
    } else if groups.is_empty() {
        output.push_str("no capture is running in this network namespace\n");
    } else {
        output = table(&groups);
    }
    out::print(output)
}
