//! `wirelane rules`: rule files, and the rules of running captures.

mod explain;
mod running;
mod show;
mod state;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use wirelane::Changed;
use wirelane::control::Status;
use wirelane::escape::to_json;
use wirelane::rules::RuleSet;

use crate::instance::Which;
use crate::values;
use wirelane_monitor::out;
use wirelane_monitor::rules::{Checked, instances};
use wirelane_screen::table::counted;

/// Check and explain rule files, and change the rules of a running capture
///
/// The rules of a capture that was started with --rules or --rules-capacity can be changed while it runs, without losing a
/// packet, by root and the user who started it.
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// Text after the options in the long help.
pub const HELP: &str = "\
A rule file:
  default = \"pass\"                  # if no rule decides

  [[rule]]                          # in the order of their ids
  id = 10
  name = \"no telnet\"
  port = 23
  action = \"drop\"                   # or pass, count, digest, redirect, none

  [[rule]]
  id = 20
  src = [\"192.0.2.0/24\", \"2001:db8::/32\"]
  not.dst-port = [80, 443]
  action = \"pass\"
  truncate = 128
  tag = 7

  [[exact]]                       # exact values, found by hash: a million
  id = 1000
  src = \"192.0.2.1\"
  dst = \"198.51.100.2\"
  protocol = \"udp\"
  action = \"count\"

Examples:
  wirelane rules check rules.toml
  wirelane rules explain rules.toml capture.pcapng --number 17
  sudo wirelane count -i eth1 --rules rules.toml
  sudo wirelane rules load other.toml            # while it runs
  sudo wirelane rules add id=30 host=203.0.113.0/24 action=drop
  sudo wirelane rules add --exact id=1001 src=192.0.2.9 action=drop idle=60
  sudo wirelane rules list --watch
  sudo wirelane rules del 30 1001
  sudo wirelane rules state netflow flows        # a map of a plug-in

Exit status: 0 done, 1 failed (the active rules do not change), 2 wrong usage.";

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Check a rule file: list every mistake, with line and column
    Check {
        /// The rule file
        file: PathBuf,
        /// A plug-in that the capture will have (--plugin NAME=FILE.bpf.o); with this option, rules that ask another are
        /// a mistake
        #[arg(long = "plugin", value_name = "NAME")]
        plugins: Vec<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    Explain(explain::Args),
    /// List the captures whose rules can be changed
    Instances {
        /// Print one JSON object a line for each capture, and a last one with "final": true
        #[arg(long)]
        json: bool,
    },
    /// Replace all rules by those of a file
    ///
    /// All at once: a packet is evaluated by the rules before or by those of the file. Rules that stay as they were go on
    /// counting. Exact-match rules that were added or made by packets are gone, unless they are in the file.
    Load {
        /// The rule file
        file: PathBuf,
        #[command(flatten)]
        which: Which,
    },
    Add(running::Add),
    Del(running::Del),
    List(show::List),
    /// Remove all exact-match rules
    Flush {
        /// And the others: only the default stays
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        which: Which,
    },
    State(state::Args),
    /// Show the sums of all rules
    Stats {
        #[command(flatten)]
        which: Which,
    },
}

/// Runs the command.
///
/// # Errors
/// The fault of a file, or the error of the capture.
pub fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Check { file, plugins, json } => {
            let checked = Checked::read(file, plugins)?;
            out::print(if *json { to_json(&checked)? + "\n" } else { checked.text(file) })
        }
        What::Explain(args) => explain::run(args),
        What::Instances { json } => out::print(instances(*json)?),
        What::Load { file, which } => {
            let mut client = running::connect(which)?;
            let rules = read_for(file, &client.status()?)?;
            changed(client.load(rules)?, which.json)
        }
        What::Add(args) => running::add(args),
        What::Del(args) => running::del(args),
        What::List(args) => show::list(args),
        What::Flush { all, which } => changed(running::connect(which)?.flush(*all)?, which.json),
        What::State(args) => state::run(args),
        What::Stats { which } => show::stats(which),
    }
}

/// Reads a rule file for a running capture.
fn read_for(file: &Path, status: &Status) -> Result<RuleSet> {
    Ok(RuleSet::read_for(file, Some(&status.egress_devices), Some(&status.plugins))?)
}

/// Shows the result of a change.
fn changed(changed: Changed, json: bool) -> Result<()> {
    if json {
        return out::print(to_json(&changed)? + "\n");
    }
    out::print(format!(
        "{} in force; {} added, {} removed\n",
        counted(changed.rules as u64, "wildcard rule"),
        counted(changed.added, "exact-match rule"),
        counted(changed.removed, "rule"),
    ))
}

/// An interval for `--watch`.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    values::seconds(text)
}
