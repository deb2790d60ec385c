//! `wirelane groups`: captures by device.

use serde::Serialize;
use wirelane::escape::to_json;
use wirelane::groups::{self, Group};

use wirelane_monitor::out;
use wirelane_screen::table::{Table, amount, printable};

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

/// An expression, shortened for a column: the JSON output contains all of it.
fn shortened(expression: &str) -> String {
    const MOST: usize = 40;
    let shown = printable(expression).to_string();
    if shown.chars().count() <= MOST {
        return shown;
    }
    shown.chars().take(MOST - 3).chain("...".chars()).collect()
}

fn table(groups: &[Group]) -> String {
    let mut table = Table::new([
        "GROUP",
        "OWNER",
        "WORKERS",
        "FILTER",
        "seen",
        "filtered",
        "absorbed",
        "shed",
        "lost",
        "delivered",
    ]);
    for group in groups {
        let c = &group.counters;
        let gone = if group.alive { "" } else { " gone" };
        let wide = if group.device_wide { ", device-wide" } else { "" };
        let adaptive = if group.adaptive { ", adaptive" } else { "" };
        table.row([
            format!("{} {} {}{wide}", printable(&group.device), group.hook, group.place),
            format!("{} {}{gone}", printable(&group.owner), group.pid),
            format!("{} by {}{adaptive}", group.workers, group.steering),
            group.filter.as_deref().map_or_else(|| "-".to_owned(), shortened),
            amount(c.seen),
            amount(c.filtered),
            amount(c.absorbed),
            amount(c.shed),
            amount(c.lost),
            amount(c.delivered),
        ]);
    }
    table.to_string()
}
