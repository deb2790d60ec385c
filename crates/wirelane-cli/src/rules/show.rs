//! Shows the rules of a running capture, and their counters.

use std::time::Duration;

use anyhow::Result;
use wirelane::Hits;
use wirelane::escape::to_json;
use wirelane_monitor::out;
use wirelane_monitor::rules::{all_exact, lines, summary, table};

use super::running::connect;
use crate::instance::Which;
use wirelane_screen::table::amount;

/// List the active rules with their counters
#[derive(clap::Args, Debug)]
pub struct List {
    /// Show them again at every interval, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// Time from one report to the next
    #[arg(long, value_name = "TIME", value_parser = super::interval, default_value = "1", requires = "watch")]
    interval: Duration,

    /// Show exact-match rules too, each on every device that has it
    #[arg(long, alias = "precise")]
    exact: bool,

    #[command(flatten)]
    which: Which,
}

/// Runs `list`.
///
/// # Errors
/// The error of the capture.
pub fn list(args: &List) -> Result<()> {
    let mut client = connect(&args.which)?;
    loop {
        let stats = client.stats()?;
        let exact = if args.exact { all_exact(&mut client)? } else { Vec::new() };
        out::print(if args.which.json {
            lines(&stats, &exact)?
        } else {
            table(&stats, &exact) + &summary(&stats)
        })?;
        if !args.watch {
            return Ok(());
        }
        std::thread::sleep(args.interval);
        if !args.which.json {
            out::print("\n")?;
        }
    }
}

/// Runs `stats`.
///
/// # Errors
/// The error of the capture.
pub fn stats(which: &Which) -> Result<()> {
    let stats = connect(which)?.stats()?;
    if which.json {
        return out::print(to_json(&stats)? + "\n");
    }
    let hits = stats.rules.iter().map(|line| line.hits).fold(Hits::default(), Hits::and);
    out::print(format!(
        "{}wildcard rules were hit {} times ({} bytes)\n",
        summary(&stats),
        amount(hits.packets),
        amount(hits.bytes)
    ))
}
