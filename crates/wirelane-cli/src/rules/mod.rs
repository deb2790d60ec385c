//! `wirelane rules`: rule files, and the rules of running captures.

mod explain;
mod running;
mod show;
mod state;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use wirelane::Changed;
use wirelane::control::Status;
use wirelane::escape::to_json;
use wirelane::rules::{PatternLine, RuleSet, SetLine};

use crate::instance::Which;
use crate::values;
use wirelane_monitor::out;
use wirelane_screen::table::{counted, printable};

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
        What::Check { file, plugins, json } => check(file, plugins, *json),
        What::Explain(args) => explain::run(args),
        What::Instances { json } => show::instances(*json),
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

/// Contents of a rule file.
#[derive(Serialize)]
struct Checked {
    rules: usize,
    exact: usize,
    /// Capacities for `--rules-capacity`.
    nodes: usize,
    classes: usize,
    table_bytes: usize,
    /// Named sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sets: Vec<SetLine>,
    /// Patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    patterns: Vec<PatternLine>,
    /// Devices to which the rules send packets, for `--mirror-to`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    egress_devices: Vec<String>,
    /// Plug-ins that the rules evaluate, for `--plugin`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugins: Vec<String>,
}

/// Reads a rule file for a running capture.
fn read_for(file: &Path, status: &Status) -> Result<RuleSet> {
    Ok(RuleSet::read_for(file, Some(&status.egress_devices), Some(&status.plugins))?)
}

fn check(file: &Path, plugins: &[String], json: bool) -> Result<()> {
    let rules = RuleSet::read_for(file, None, (!plugins.is_empty()).then_some(plugins))?;
    let room = rules.room()?;
    let checked = Checked {
        rules: rules.rules.len(),
        exact: rules.exact.len(),
        nodes: room.nodes,
        classes: room.classes,
        table_bytes: room.bytes(),
        sets: rules.set_lines(),
        patterns: rules.pattern_lines(),
        egress_devices: rules.egress_devices(),
        plugins: rules.plugins(),
    };
    if json {
        return out::print(to_json(&checked)? + "\n");
    }
    let sets = checked.sets.iter().map(wirelane_monitor::rules::of_set);
    let lines = sets.chain(checked.patterns.iter().map(wirelane_monitor::rules::of_patterns));
    let mut more: String = lines.map(|line| line + "\n").collect();
    let mut options = Vec::new();
    if !checked.egress_devices.is_empty() {
        options.push(format!("--mirror-to {}", checked.egress_devices.join(",")));
    }
    options.extend(checked.plugins.iter().map(|name| format!("--plugin {name}=FILE.bpf.o")));
    if !options.is_empty() {
        let options = options.join(" ");
        more += &format!("for a capture that is started with {}\n", printable(&options));
    }
    out::print(format!(
        "{}: {}, {}; look-up tables of up to {} nodes and {} classes ({} KiB)\n{more}",
        printable(&file.display().to_string()),
        counted(checked.rules as u64, "wildcard rule"),
        counted(checked.exact as u64, "exact-match rule"),
        checked.nodes,
        checked.classes,
        checked.table_bytes.div_ceil(1024)
    ))
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
